"""Hooks: what other code may see and change around model calls and tools.

A hook is an object, an instance or a module, with one or more of the functions that `POINTS` names. They may be sync
(then each call runs in a thread of its own) or async, and answer None when they have nothing to say.

Rule: a hook never brings the daemon down. One that raises, takes too long or answers what is no answer is a fault; the
fault closes what the hook guards, unless the hook says `on_fault = "open"`. A hook that cannot be loaded keeps the
daemon from starting: what guards something must not be missing without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

from pydantic_core import PydanticSerializationError, to_jsonable_python

from sojourn.core.messages import Content, ImagePart, Message, ResourcePart, TextPart
from sojourn.core.run import InvalidToolCallAction, InvalidToolCallContext, RunEntry
from sojourn.core.values import clean

from .base import ToolOutput

logger = logging.getLogger(__name__)

GROUP = "sojourn.hooks"
Point = Literal["before_model", "on_invalid_call", "before_tool", "after_tool", "on_run_end"]
STUCK = 8
"""How many calls of one sync hook may hang at the same time; from there on it is not called any more."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is about to be sent to the model. `tools` are the names of those that are offered."""

    model: str
    system: str | None
    messages: Sequence[Message]
    tools: tuple[str, ...]
    sampling: Mapping[str, Any]
    turn: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model has made. Its arguments are a copy: only `Replace` changes them."""

    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """What is sent instead, for this one request: nothing of it is kept in the conversation.

    `system` replaces the system prompt, `sampling` is merged over the settings, `tools` are the only ones offered (of
    those that there are), `note` is a user message after all others.
    """

    system: str | None = None
    sampling: Mapping[str, Any] | None = None
    tools: Collection[str] | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """The run ends here. Before a model call it ends failed (`cancelled`), before a tool it is stopped."""

    reason: str


@dataclass(frozen=True, slots=True)
class Veto:
    """The call is not run; the model reads these words as its result."""

    words: str


@dataclass(frozen=True, slots=True)
class Replace:
    """The call runs with these arguments. They must fit the tool's schema, and are what an approval shows and binds."""

    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The call is not run; this is its result."""

    content: Content


@dataclass(slots=True)
class HookContext:
    """Where a hook is called, and the run's own records.

    `append_entry` notes something in the run: durable when what the hook decided takes effect, never sent to the model,
    seen by later hooks, also after a pause or a restart.
    """

    agent_id: str
    run_id: str
    turn: int
    point: Point
    preset: str | None = None
    cwd: str | None = None
    noted: list[RunEntry] = field(default_factory=list)
    fresh: list[RunEntry] = field(default_factory=list)

    def entries(self, kind: str | None = None) -> list[RunEntry]:
        """The run's entries, or those of a kind, oldest first: decisions (`approval`) and what was noted."""
        return [entry for entry in (*self.noted, *self.fresh) if kind in (None, entry.kind)]

    def last_entry(self, kind: str) -> RunEntry | None:
        """The newest entry of a kind."""
        return next((entry for entry in reversed(self.entries(kind))), None)

    def append_entry(self, kind: str, value: Any) -> None:
        """Notes JSON data under a kind. Raises `TypeError` for what is not JSON; keep secrets out of it."""
        if not isinstance(kind, str) or not kind:
            raise TypeError(f"The kind of an entry is a text, not {kind!r}.")
        try:
            plain = clean(to_jsonable_python(value, by_alias=True, inf_nan_mode="null"))
        except (PydanticSerializationError, ValueError) as error:
            raise TypeError(f"The value of the entry {kind!r} is not JSON: {error}.") from error
        self.fresh.append(RunEntry(kind=clean(kind), turn=self.turn, value=plain))


POINTS: Mapping[Point, tuple[type, ...]] = {
    "before_model": (Change, Stop),
    "on_invalid_call": (InvalidToolCallAction,),
    "before_tool": (Veto, Replace, Answer, Stop),
    "after_tool": (ToolOutput, str),
    "on_run_end": (),
}
"""The functions of a hook, and what each may answer besides None."""
_PARTS = (TextPart, ImagePart, ResourcePart)
_INSIDE: Mapping[str, Any] = {
    "words": str,
    "reason": str,
    "arguments": dict,
    "system": str | None,
    "note": str | None,
    "sampling": dict | None,
    "tools": list | tuple | set | frozenset | None,
}
"""What the fields of an answer are."""
GUARDED: frozenset[Point] = frozenset(("before_model", "before_tool", "after_tool"))
"""Where a fault closes something."""

__all__ = [
    "GROUP",
    "POINTS",
    "Answer",
    "Change",
    "Hook",
    "HookContext",
    "HookFault",
    "HookProblem",
    "InvalidToolCallAction",
    "InvalidToolCallContext",
    "Replace",
    "Request",
    "Stop",
    "ToolCall",
    "Veto",
    "load",
]


class HookFault(Exception):
    """A hook raised, took too long, or answered what is no answer."""


class HookProblem(Exception):
    """A hook cannot be loaded; the message says which and what to do."""


class Hook:
    """A hook by name. `closes`: its faults close what it guards."""

    def __init__(self, name: str, target: Any) -> None:
        self.name = name
        self.functions: dict[Point, Callable[..., Any]] = {
            point: function for point in POINTS if callable(function := getattr(target, point, None))
        }
        if not self.functions:
            raise TypeError(f"{target!r} has none of the functions {', '.join(POINTS)}")
        wanted = getattr(target, "on_fault", "closed")
        if wanted not in ("closed", "open"):
            raise TypeError(f"its on_fault is {wanted!r}; it is 'closed' or 'open'")
        self.closes = wanted == "closed"
        self._stuck = 0

    def __repr__(self) -> str:
        return f"<hook {self.name!r}>"

    async def call(self, point: Point, *arguments: Any, within_s: float) -> Any:
        """What the hook answers at a point; None when it has nothing to say. Raises `HookFault`."""
        work = asyncio.create_task(self._work(self.functions[point], arguments), name=f"hook {self.name}")
        work.add_done_callback(_seen)
        try:
            done, _ = await asyncio.wait({work}, timeout=within_s)
        finally:
            if not work.done():
                work.cancel()
        if not done:
            raise HookFault(f"it took longer than hookWaitS = {within_s:g} s")
        if work.cancelled():
            raise HookFault("it cancelled itself")
        if (error := work.exception()) is not None:
            raise HookFault(str(error) if isinstance(error, HookFault) else f"{type(error).__name__}: {error}")
        answer = work.result()
        if answer is not None and not isinstance(answer, POINTS[point]):
            may = ", ".join(kind.__name__ for kind in POINTS[point]) or "nothing"
            raise HookFault(f"it answered {type(answer).__name__}; it may answer None or {may}")
        try:
            nonsense = _nonsense(answer)
        except Exception as error:  # noqa: BLE001 (an answer may be anything, also something that breaks when looked at)
            nonsense = f"something that cannot be read ({type(error).__name__})"
        if nonsense is not None:
            raise HookFault(f"it answered a {type(answer).__name__} with {nonsense}")
        return answer

    async def _work(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        try:
            if inspect.iscoroutinefunction(function):
                return await function(*arguments)
            answer = await self._in_thread(function, arguments)
            return await answer if inspect.isawaitable(answer) else answer
        except (SystemExit, KeyboardInterrupt) as error:  # they end the hook, not the daemon
            raise HookFault(f"it ended with {type(error).__name__}") from None

    async def _in_thread(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Runs a sync hook in a thread of its own; one that hangs is left behind, up to `STUCK` of them."""
        if self._stuck >= STUCK:
            raise HookFault(f"{STUCK} of its calls hang still; it is not called any more")
        loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        self._stuck += 1

        def settle(answer: Any, error: BaseException | None) -> None:
            self._stuck -= 1
            if done.done():
                return
            if error is None:
                done.set_result(answer)
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                done.set_exception(error)
            else:
                done.set_exception(HookFault(f"it ended with {type(error).__name__}"))

        def body() -> None:
            try:
                outcome: tuple[Any, BaseException | None] = function(*arguments), None
            except BaseException as error:  # noqa: BLE001 (whatever it is belongs to the caller, who waits for it)
                outcome = None, error
            with contextlib.suppress(RuntimeError):  # the loop may be gone; then nobody waits
                loop.call_soon_threadsafe(settle, *outcome)

        threading.Thread(target=body, name=f"hook {self.name}", daemon=True).start()
        return await done


def _nonsense(answer: Any) -> str | None:
    """What is wrong inside of an answer, which is what other people's code has put there."""
    if isinstance(answer, InvalidToolCallAction):
        return None  # checked when it was made
    for name, kind in _INSIDE.items():
        if hasattr(answer, name) and not isinstance(value := getattr(answer, name), kind):
            return f"{name} = {value!r}"
    content = getattr(answer, "content", "")
    if not isinstance(content, str) and not all(isinstance(part, _PARTS) for part in content):
        return f"content = {content!r}, which is neither text nor parts"
    return None


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def load(*, packages: bool = True, files: Iterable[str | Path] = ()) -> list[Hook]:
    """The hooks of installed packages (by name) and of files (as listed). Raises `HookProblem`."""
    found = _of_packages(entry_points(group=GROUP)) if packages else []
    return [*found, *(_of_file(Path(file)) for file in files)]


def _of_packages(points: Iterable[EntryPoint]) -> list[Hook]:
    hooks = []
    for point in sorted(points, key=lambda point: point.name):
        try:
            target = point.load()
            hooks.append(Hook(point.name, target() if inspect.isclass(target) else target))
        except (Exception, SystemExit) as error:  # other people's code; it is told, and the start refused
            raise HookProblem(
                f"The hook {point.name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}. Repair or "
                "uninstall its package, or set hooks.packages = false."
            ) from error
    return hooks


def _of_file(path: Path) -> Hook:
    """A module of its own, under a name that meets nobody else's."""
    name = f"sojourn_hook_{path.stem}"
    try:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError("it is no Python file; its name ends in .py")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return Hook(path.stem, module)
    except (Exception, SystemExit) as error:  # other people's code; it is told, and the start refused
        sys.modules.pop(name, None)
        raise HookProblem(
            f"The hook file {str(path)!r} cannot be loaded: {type(error).__name__}: {error}. Repair it, or take it out "
            "of hooks.files."
        ) from error
