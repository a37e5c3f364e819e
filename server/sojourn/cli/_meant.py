"""Commands that are looked for here by people who know other programs, and what does it instead."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

_LIST = "`sojourn ps` lists the agents."
_SAY = "`sojourn prompt TEXT` says something to an agent; `sojourn attach AGENT` shows one live."
MEANT = {
    "agents": _LIST,
    "list": _LIST,
    "ls": _LIST,
    "status": "`sojourn ps` lists the agents; `sojourn doctor` looks at everything.",
    "ask": _SAY,
    "chat": _SAY,
    "send": _SAY,
    "remove": "`sojourn delete AGENT` deletes an agent.",
    "rm": "`sojourn delete AGENT` deletes an agent.",
    "deny": "`sojourn approve ID --deny` denies.",
    "help": "`sojourn --help` lists the commands.",
    "kill": "`sojourn stop AGENT` ends an agent's run; `sojourn shutdown` ends the daemon.",
    "log": "`sojourn events AGENT` tells what an agent did; the daemon's log is `daemon.log` in its state directory.",
    "logs": "`sojourn events AGENT` tells what an agent did; the daemon's log is `daemon.log` in its state directory.",
    "models": "`sojourn call model/list` lists the models; `sojourn doctor --models` tries them.",
    "new": "`sojourn create` makes an agent; `sojourn prompt --new TEXT` makes one and talks to it.",
    "restart": "`sojourn shutdown`; the next command starts the daemon anew.",
    "start": "`sojourn serve --detach` starts the daemon; so does `sojourn prompt`.",
    "tools": "`sojourn call tool/list` lists the tools.",
    "version": "`sojourn --version` tells it.",
}
"""What people type who know other programs, and what does it here."""


class Commands(TyperGroup):
    """The commands, with a word for those who look for one that is not here."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant; of some that are not here, what does it instead."""
        if args and args[0] in MEANT and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {args[0]!r}. {MEANT[args[0]]}")
        return super().resolve_command(ctx, args)
