"""The table of tools that an agent may name: built-in ones, and those of installed packages (`sojourn.tools`).

Rule: a package that is broken costs its own tools and a line in the log, never the start of the daemon.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sojourn.core.errors import UnknownTool

from .base import Tool, ToolInfo
from .delegate import delegate, delegate_to
from .demo import DemoTools
from .files import FileTools
from .processes import Surroundings
from .shell import shell_tool

logger = logging.getLogger(__name__)

GROUP = "sojourn.tools"
ALL = "*"


@dataclass(frozen=True, slots=True)
class ToolProblem:
    """What is wrong with tools from `source`, in one sentence; for `sojourn doctor`."""

    source: str
    message: str


class Toolbox:
    """Tools by name. What it was given first under a name stays; it closes its tools.

    `problems` are the packages and tools that could not be used.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._sets: dict[str, list[str]] = {}
        self.problems: list[ToolProblem] = []
        for one in tools:
            self.add(one)

    @classmethod
    def standard(
        cls,
        *,
        files: bool = True,
        shell: Surroundings | None = None,
        demo: bool = True,
        packages: bool = True,
        kinds: Mapping[str, str | None] | None = None,
    ) -> Toolbox:
        """`delegate`, the toolsets `files` and `shell`, the demo's tools, and what installed packages offer.

        `shell` says what its commands get of the daemon's own; None = no shell. `kinds` of child agents are told to
        models, with what each is for. Others are added by whoever makes them.
        """
        toolbox = cls()
        toolbox.add(delegate if kinds is None else delegate_to(kinds), source="builtin")
        for one in FileTools().tools() if files else ():
            toolbox.add(one, source="builtin", toolset="files")
        if shell is not None:
            toolbox.add(shell_tool(shell), source="builtin", toolset="shell")
        if demo:
            for one in DemoTools().tools():
                toolbox.add(one, source="demo")
        if packages:
            toolbox.load(entry_points(group=GROUP))
        return toolbox

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        """The tools in the order in which they came."""
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def add(self, one: Tool, *, source: str | None = None, toolset: str | None = None) -> bool:
        """Enters a tool; `source` says where it comes from. A name that is taken: a problem, and False.

        A config that names the `toolset` names all of its tools.
        """
        name = one.info.spec.name
        where = source or one.info.source
        if name in self._tools:
            first = self._tools[name].info.source
            self._complain(where, f"Its tool {name!r} is left out: {first!r} has one of that name already.")
            return False
        if source is not None:
            with contextlib.suppress(AttributeError):  # a tool with a fixed info says itself where it comes from
                one.info = dataclasses.replace(one.info, source=source)
        self._tools[name] = one
        if toolset is not None:
            self._sets.setdefault(toolset, []).append(name)
        return True

    def remove(self, name: str) -> bool:
        """Takes a tool out; answers whether it was there."""
        return self._tools.pop(name, None) is not None

    def load(self, points: Iterable[EntryPoint]) -> None:
        """Enters what entry points offer: a tool, a list of tools, or a callable that answers either."""
        for point in points:
            package = point.dist.name if point.dist else point.value.partition(":")[0]
            source = f"package {package}"
            try:
                for one in list(_tools_of(point.load())):
                    self.add(one, source=source)
            except (Exception, SystemExit) as error:  # noqa: BLE001 (other people's code; a bad package costs only itself)
                self._complain(
                    source, f"Its entry point {point.name!r} cannot be used: {type(error).__name__}: {error}"
                )

    def toolsets(self) -> tuple[str, ...]:
        """The names of the toolsets."""
        return tuple(self._sets)

    def select(self, names: tuple[str, ...] | None) -> dict[str, Tool]:
        """The tools that a config names, by themselves or by their toolset: None = none, `*` = all.

        Raises `UnknownTool` naming what exists.
        """
        wanted = names or ()
        if unknown := [name for name in wanted if name != ALL and name not in self._tools and name not in self._sets]:
            there = ", ".join(sorted({*self._tools, *self._sets})) or "none"
            which = ", ".join(repr(name) for name in unknown)
            raise UnknownTool(f"There is no tool {which}; there are: {there}.", tools=unknown)
        if ALL in wanted:
            return dict(self._tools)
        meant = [one for name in wanted for one in ([name] if name in self._tools else self._sets[name])]
        return {name: self._tools[name] for name in meant if name in self._tools}

    async def aclose(self) -> None:
        """Closes every tool that can be closed, once, whatever one of them says to it; the table is empty then."""
        tools, self._tools = self._tools, {}
        for name, one in tools.items():
            if close := getattr(one, "aclose", None):
                try:
                    await close()
                except Exception:  # other people's code; the rest is closed all the same
                    logger.exception("Closing the tool %r failed.", name)

    def _complain(self, source: str, message: str) -> None:
        self.problems.append(ToolProblem(source, message))
        logger.warning("Tools of %s: %s", source, message)


def _tools_of(thing: Any) -> Iterator[Tool]:
    """The tools in what an entry point loaded to."""
    if isinstance(thing, list | tuple | set | frozenset):
        for item in thing:
            yield from _tools_of(item)
    elif isinstance(getattr(thing, "info", None), ToolInfo) and callable(getattr(thing, "execute", None)):
        yield thing
    elif callable(thing) and not inspect.iscoroutinefunction(thing):
        answer = thing()
        if callable(answer) and not hasattr(answer, "info"):
            raise TypeError(f"{thing!r} answers {answer!r}, which is not a tool; decorate it with @tool.")
        yield from _tools_of(answer)
    else:
        raise TypeError(f"{thing!r} is not a tool; a tool has `info` and `execute`, or is made by @tool.")
