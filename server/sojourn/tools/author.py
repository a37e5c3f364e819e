"""`@tool`: a plain function becomes a tool. Its type hints are the schema, its docstring is what the model is told.

Rule: whatever the model sends, the function sees arguments of the types that it asked for, or is not called at all.
An `async def` runs on the daemon's loop; a plain `def` runs in a thread of its own, so that it never holds the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import inspect
import json
import logging
import re
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, PydanticUndefined, to_jsonable_python

from sojourn.core.approvals import Policy
from sojourn.core.messages import ImagePart, ResourcePart, TextPart, ToolSpec
from sojourn.core.rules import Subject
from sojourn.core.values import clean

from .base import MakePreview, OnInterrupt, ToolContext, ToolInfo, ToolOutput

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every provider takes as a function's name."""
GOES_ON = "goesOn"
"""The key of `ToolContext.extra` that says why work of a cancelled call could not be ended."""
_SHOWN_ERRORS = 5
_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "by position only",
    inspect.Parameter.VAR_POSITIONAL: "as any number of positions",
    inspect.Parameter.VAR_KEYWORD: "as arguments of any name",
}
_PARTS = (TextPart, ImagePart, ResourcePart)


class FunctionTool(Generic[P, R]):
    """A function as a tool. Calling it calls the function, so that its own tests need no daemon."""

    def __init__(self, function: Callable[P, R], *, name: str, description: str, source: str = "python") -> None:
        self.function = function
        self.close: Callable[[], Awaitable[None]] | None = None
        self.preview: MakePreview | None = None
        self._is_async = inspect.iscoroutinefunction(function)
        self._context, self._names, self._arguments = _read_signature(function, name)
        schema = self._arguments.model_json_schema(schema_generator=_Untitled)
        schema.pop("title", None)
        self.info = ToolInfo(ToolSpec(name=name, description=description, input_schema=schema), source=source)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.info.spec.name!r}>"

    async def aclose(self) -> None:
        """Called when the daemon ends; awaits what `@tool(close=...)` was given."""
        if self.close is not None:
            await self.close()

    async def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        """Checks the arguments, calls the function, and makes its answer a tool's output."""
        try:
            values = self.read(args)
        except ValueError as error:
            return ToolOutput.error(str(error))
        if self._is_async:
            return as_output(await _no_exit(self._call(values, ctx)), self.info.spec.name)
        inside = _threadsafe(ctx)
        answer = await in_thread(lambda: self._call(values, inside), ctx)
        return as_output(answer, self.info.spec.name)

    def read(self, args: dict[str, Any]) -> dict[str, Any]:
        """The function's parameters by name. Raises `ValueError` in words for the model."""
        try:
            checked = self._arguments.model_validate(args)
        except ValidationError as error:
            raise ValueError(_invalid(self.info.spec.name, error)) from None
        return {name: getattr(checked, field) for field, name in self._names.items()}

    def _call(self, values: dict[str, Any], ctx: ToolContext) -> Any:
        function: Callable[..., Any] = self.function
        return function(**values, **({self._context: ctx} if self._context else {}))


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Policy = "ask",
    on_interrupt: OnInterrupt = "fail",
    subject: Subject | None = None,
    bounded: bool = False,
    close: Callable[[], Awaitable[None]] | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Policy = "ask",
    on_interrupt: OnInterrupt = "fail",
    subject: Subject | None = None,
    bounded: bool = False,
    close: Callable[[], Awaitable[None]] | None = None,
) -> Any:
    """Makes a function a tool: `@tool`, or with `@tool(name=, description=, approval=, on_interrupt=, …)`.

    The name defaults to the function's, the description to its docstring, the schema comes from its type hints
    (`Annotated[int, Field(description=..., ge=1)]` says more). A parameter annotated `ToolContext` is given by the
    daemon and not shown to the model. `approval`: what happens when no config says otherwise; `on_interrupt="rerun"`
    promises that running a call again after a crash is harmless (its id is the key); `subject` is the argument that
    approval patterns look at; `bounded` says that a call ends by a time limit of its own, which a run whose
    `wall_clock_s` is over then waits for; `close` is awaited when the daemon ends, for work that outlives its calls.

    Raises `TypeError` for a function that cannot be called by named, typed arguments, `ValueError` for a name that
    providers refuse.
    """

    def make(function: Callable[..., Any]) -> FunctionTool[..., Any]:
        own = name or function.__name__
        if not TOOL_NAME.fullmatch(own):
            raise ValueError(f"{own!r} cannot be a tool's name: up to 64 letters, digits, '_' and '-' can.")
        text = description if description is not None else inspect.getdoc(function) or ""
        made = FunctionTool(function, name=own, description=text)
        made.info = dataclasses.replace(
            made.info, approval=approval, on_interrupt=on_interrupt, subject=subject, bounded=bounded
        )
        made.close = close
        return made

    return make if function is None else make(function)


def as_output(answer: Any, name: str) -> ToolOutput:
    """What the function of the tool `name` answered, as a tool's output.

    A string is text, a part or a list of parts is content, a `ToolOutput` stays; everything else is compact JSON text
    with null for NaN and infinities. Raises `TypeError` for what is not JSON.
    """
    if isinstance(answer, ToolOutput):
        return dataclasses.replace(answer, content=_clean_parts(answer.content))
    if answer is None:
        return ToolOutput.of("(no output)")
    if isinstance(answer, str):
        return ToolOutput.of(clean(answer))
    if isinstance(answer, _PARTS):
        return ToolOutput.of(_clean_parts((answer,)))
    if isinstance(answer, list | tuple) and answer and all(isinstance(item, _PARTS) for item in answer):
        return ToolOutput.of(_clean_parts(tuple(answer)))
    return ToolOutput.of(_json_text(answer, name))


def _json_text(answer: Any, name: str) -> str:
    try:
        plain = to_jsonable_python(answer, inf_nan_mode="null", by_alias=True)
    except (PydanticSerializationError, UnicodeError, ValueError) as error:
        raise TypeError(
            f"The tool {name!r} did its work, but its answer of type {type(answer).__name__!r} is not JSON: {error}."
        ) from error
    return clean(json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def _clean_parts(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    cleaned = [(part, clean(part.model_dump(by_alias=False))) for part in parts]
    return tuple(type(part).model_validate(fields) for part, fields in cleaned)


class _Untitled(GenerateJsonSchema):
    """Schemas without the titles that pydantic makes up from names: a model is charged for every word of them."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _read_signature(function: Callable[..., Any], name: str) -> tuple[str | None, dict[str, str], type[BaseModel]]:
    """The context's parameter, our field names with the parameter each stands for, and the model of the arguments.

    Fields have names of our own and the parameters' as aliases: a parameter may be called `json` or `model_x`, which
    pydantic's models keep for themselves.
    """
    hints = get_type_hints(function, include_extras=True)
    context: str | None = None
    names: dict[str, str] = {}
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in _KINDS:
            raise TypeError(
                f"The tool {name!r} takes {parameter.name!r} {_KINDS[parameter.kind]}; a model names its arguments."
            )
        if parameter.name not in hints:
            raise TypeError(f"The parameter {parameter.name!r} of the tool {name!r} has no type; it needs a type hint.")
        hint = hints[parameter.name]
        if hint is ToolContext:
            context = parameter.name
            continue
        field = f"p{len(fields)}"
        default = PydanticUndefined if parameter.default is parameter.empty else parameter.default
        names[field] = parameter.name
        fields[field] = (hint, Field(default, alias=parameter.name))
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    return context, names, create_model("Arguments", __config__=config, **fields)


def _invalid(name: str, error: ValidationError) -> str:
    """What the model reads when its arguments do not fit: each bad field by name, and what would be right."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{_place(item['loc'])}: {item['msg']}" for item in found[:_SHOWN_ERRORS]]
    if more := len(found) - len(lines):
        lines.append(f"and {more} more")
    return f"The tool {name!r} was not run, its arguments are not valid. " + "; ".join(lines) + "."


def _place(loc: tuple[int | str, ...]) -> str:
    text = ""
    for step in loc:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return repr(text)


def _threadsafe(ctx: ToolContext) -> ToolContext:
    """The context for a function that runs in a thread: its progress is told on the loop."""
    loop = asyncio.get_running_loop()

    def on_progress(text: str | None, fraction: float | None) -> None:
        loop.call_soon_threadsafe(ctx.on_progress, text, fraction)

    return dataclasses.replace(ctx, on_progress=on_progress)


async def in_thread(work: Callable[[], R], ctx: ToolContext) -> R:
    """Runs `work` in a thread of its own and answers its result.

    Not a pool: its threads are joined when the interpreter ends, and one that sleeps would keep the daemon from
    ending. How many run at once is bounded where calls are started (`limits.tool_concurrency` a run). When the call is
    cancelled the thread cannot be: that is said in the log and in `ctx.extra`.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: R | None, error: BaseException | None) -> None:
        if done.cancelled():
            logger.warning(
                "The thread of call %r of %r has ended; its call had been stopped.", ctx.call_id, ctx.agent_id
            )
        elif error is not None:
            done.set_exception(_harmless(error))
        else:
            done.set_result(result)  # type: ignore[arg-type]  # without an error there is a result

    def body() -> None:
        try:
            outcome: tuple[R | None, BaseException | None] = context.run(work), None
        except BaseException as error:  # noqa: BLE001 (whatever it is belongs to the caller, who waits for it)
            outcome = None, error
        with contextlib.suppress(RuntimeError):  # the loop may be gone; then nobody waits
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=body, name=f"tool {ctx.tool_name}", daemon=True).start()
    try:
        return await done
    except asyncio.CancelledError:
        ctx.extra[GOES_ON] = f"The thread of the tool {ctx.tool_name!r} cannot be ended and may still take effect."
        logger.warning("Call %r of %r was stopped, but its thread goes on.", ctx.call_id, ctx.agent_id)
        raise


async def _no_exit(work: Awaitable[R]) -> R:
    """Awaits `work`; a tool that says `sys.exit()`, or that it was interrupted, ends itself and not the daemon."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise _harmless(error) from error


def _harmless(error: BaseException) -> Exception:
    """The error as one that a future takes and a loop survives."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"The tool ended with {type(error).__name__}: {error}")
