"""`docs/command-line.md`, made from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from ._commands import command_line

HEAD = """\
# The command line

Generated from the commands (`make docs`). `--config`, `--state-dir` and `--socket` are options of every command, after
its name; where they are left out, [configuration.md](configuration.md) says what counts.

Output for people is short, and coloured on a terminal; with `--json` a command prints one JSON value a line. Logs and
progress go to stderr. `prompt`, `resume`, `create`, `attach`, `connect` and the Python client start a daemon where none
runs; the others say that there is none.

The beginning of an id is enough for an agent, a job or an open approval where only one begins so. `prompt --agent`
makes an agent of the name that it is given, unless that is the beginning of an id which the daemon has made (`agent-`
and four digits or more).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | an error, which is said in a sentence |
| 2 | wrong usage |
| 3 | no daemon |
| 4 | the run ended paused |
| 5 | the run failed or was stopped |
| 130 | interrupted |
| 129, 143 | ended by a closed terminal (SIGHUP), by SIGTERM; what runs goes on |
"""

EVERYWHERE = {"--config", "--state-dir", "--socket", "--help"}


def command_markdown() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(command_line())
    parts = [HEAD]
    for name, command in sorted(_flat(root, "sojourn")):
        parts.append(_section(name, command))
    return "\n".join(parts)


def _flat(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        full = f"{prefix} {name}"
        if hasattr(command, "commands"):
            yield from _flat(command, full)
        else:
            yield full, command


def _section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = [f"[{_word(a)}]" if not a.required else _word(a) for a in arguments]
    lines = [f"## `{' '.join([name, *words])}`", "", " ".join((command.help or "").split()), ""]
    options = [p for p in command.params if p.param_type_name == "option" and not EVERYWHERE & set(p.opts)]
    if arguments or options:
        lines += ["| | |", "|---|---|"]
        lines += [f"| `{_word(a)}` | {_plain(getattr(a, 'help', '') or '')} |" for a in arguments]
        lines += [f"| `{_option(o)}` | {_plain(o.help or '')} |" for o in options]
        lines.append("")
    return "\n".join(lines)


def _word(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()).split(" ")[0].strip("[]")


def _option(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    return f"{', '.join(option.opts)}{value}".replace("|", "\\|")


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
