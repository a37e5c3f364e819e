"""What presets name that is not there: tools, MCP servers, and rules that no call will ever meet."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from sojourn.core import rules
from sojourn.core.errors import UnknownTool
from sojourn.tools.mcp.naming import server_of

if TYPE_CHECKING:
    from sojourn.config import Config
    from sojourn.tools.table import Toolbox


def faults(config: Config, toolbox: Toolbox) -> Iterator[str]:
    """A sentence for each name that is wrong. Tools of MCP servers that are there are not looked at."""
    known = sorted({*(one.info.spec.name for one in toolbox), *toolbox.toolsets()})
    for preset, settings in config.presets().items():
        servers = {*config.mcp_servers(), *(settings.mcp_servers or {})}
        for name in settings.tools or ():
            server = server_of(name)
            if server is not None and server not in servers:
                there = ", ".join(sorted(servers)) or "none are configured"
                yield f"agents.{preset}.tools: {name!r} fits no MCP server; there are: {there}"
            elif server is None and not _there(toolbox, name):
                yield f"agents.{preset}.tools: there is no tool {name!r}{_close(name, known)}"
        for rule in settings.approvals or ():
            name = rule.partition(":")[0].strip()
            # A tool may come from a client later on, so only what looks like a slip of the pen is told.
            if "*" not in name and name not in known and (close := _close(name, known)):
                yield f"agents.{preset}.approvals: there is no tool {name!r}{close}"
            elif why := _never(rule, name, toolbox):
                yield f"agents.{preset}.approvals: {why}"


def _never(rule: str, name: str, toolbox: Toolbox) -> str | None:
    """Why a rule with a pattern fits no call of the tool that it names; None when one could, or it is not known."""
    infos = [one.info for one in toolbox if one.info.spec.name == name]
    if not infos or ":" not in rule:
        return None
    (info,) = infos
    call = rules.Call(name, {}, info.spec.input_schema, info.subject)
    if rules.parse(rule).aim(call)[0] is not None:
        return None
    arguments = ", ".join(map(repr, sorted(rules.properties(call)))) or "none"
    return f"{rule!r} fits no call: a pattern for {name!r} names one of its arguments ({arguments}), ARGUMENT=PATTERN"


def _there(toolbox: Toolbox, name: str) -> bool:
    try:
        toolbox.select((name,))
    except UnknownTool:
        return False
    return True


def _close(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {close[0]!r}?" if close else ""
