"""What presets name that is not there: tools, and rules that no tool will ever meet."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from sojourn.core.errors import UnknownTool

if TYPE_CHECKING:
    from sojourn.config import Config
    from sojourn.tools.table import Toolbox


def faults(config: Config, toolbox: Toolbox) -> Iterator[str]:
    """A sentence for each name that is wrong. Tools of MCP servers are not looked at."""
    known = sorted({*(one.info.spec.name for one in toolbox), *toolbox.toolsets()})
    for preset, settings in config.presets().items():
        for name in settings.tools or ():
            if "__" not in name and not _there(toolbox, name):
                yield f"agents.{preset}.tools: there is no tool {name!r}{_close(name, known)}"
        for rule in settings.approvals or ():
            name = rule.partition(":")[0].strip()
            # A tool may come from a client later on, so only what looks like a slip of the pen is told.
            if "*" not in name and name not in known and (close := _close(name, known)):
                yield f"agents.{preset}.approvals: there is no tool {name!r}{close}"


def _there(toolbox: Toolbox, name: str) -> bool:
    try:
        toolbox.select((name,))
    except UnknownTool:
        return False
    return True


def _close(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {close[0]!r}?" if close else ""
