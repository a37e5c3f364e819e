"""`@tool`: what the model is told, what the function gets, what becomes of its answer."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import logging
import sys
import threading
from collections.abc import Callable
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from tool_fakes import FakeHost

from sojourn.core.errors import Aborted
from sojourn.core.messages import ImagePart, TextPart, text_of
from sojourn.tools import ToolContext, ToolOutput, tool
from sojourn.tools.author import GOES_ON

pytestmark = pytest.mark.anyio


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


@tool(approval="allow", on_interrupt="rerun")
async def plan(
    ctx: ToolContext,
    title: str,
    when: date,
    points: list[Point],
    colour: Colour = Colour.RED,
    json: Annotated[int, Field(ge=1, description="How many")] = 1,
    model_x: Literal["a", "b"] | None = None,
) -> dict[str, Any]:
    """Plans a thing.

    In detail.
    """
    types = [type(v).__name__ for v in (title, when, points[0], colour)]
    return {"types": types, "json": json, "model_x": model_x, "call": ctx.call_id}


async def run(one: Any, args: dict[str, Any] | None = None, host: FakeHost | None = None) -> ToolOutput:
    async with asyncio.timeout(5):
        return await one.execute(args or {}, (host or FakeHost()).context(one.info.spec.name))


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn until `condition` holds."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


def test_the_model_is_told_the_name_the_docstring_and_a_plain_schema() -> None:
    spec = plan.info.spec
    assert (spec.name, spec.description) == ("plan", "Plans a thing.\n\nIn detail.")
    schema = spec.input_schema
    assert schema["required"] == ["title", "when", "points"]
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == ["title", "when", "points", "colour", "json", "model_x"]
    assert schema["properties"]["json"] == {"default": 1, "description": "How many", "minimum": 1, "type": "integer"}
    assert schema["properties"]["title"] == {"type": "string"}
    assert "title" not in schema
    assert (plan.info.approval, plan.info.on_interrupt) == ("allow", "rerun")


def test_what_is_left_out_is_the_careful_choice() -> None:
    @tool
    def plain() -> None:
        pass

    assert (plain.info.approval, plain.info.on_interrupt, plain.info.source) == ("ask", "fail", "python")
    assert plain.info.spec.input_schema == {"additionalProperties": False, "properties": {}, "type": "object"}
    assert plain.info.spec.description == ""


def test_a_name_and_a_description_can_be_given() -> None:
    @tool(name="other-name", description="Other words.")
    def some() -> str:
        """Own words."""
        return "x"

    assert (some.info.spec.name, some.info.spec.description) == ("other-name", "Other words.")
    assert repr(some) == "<tool 'other-name'>"


async def test_the_function_gets_the_types_it_asked_for_and_the_context() -> None:
    output = await run(plan, {"title": "t", "when": "2024-05-01", "points": [{"x": "3"}], "model_x": "b"})
    assert text_of(output.content) == (
        '{"types":["str","date","Point","Colour"],"json":1,"model_x":"b","call":"msg-2-call-1"}'
    )
    assert not output.is_error


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"when": "2024-05-01", "points": []}, ["'title': Field required"]),
        ({"title": "t", "when": "soon", "points": []}, ["'when': "]),
        ({"title": "t", "when": "2024-05-01", "points": [{"x": 1}, {"x": "one"}]}, ["'points[1].x': "]),
        ({"title": "t", "when": "2024-05-01", "points": [], "json": 0}, ["'json': ", "greater than or equal to 1"]),
        ({"title": "t", "when": "2024-05-01", "points": [], "colour": "green"}, ["'colour': ", "red"]),
        ({"title": "t", "when": "2024-05-01", "points": [], "extra": 1}, ["'extra': "]),
        ({"title": "t", "when": "2024-05-01", "points": [], "p0": "x"}, ["'p0': "]),
        ({"title": "t", "when": "2024-05-01", "points": [], "ctx": {}}, ["'ctx': "]),
        (
            {"title": None, "when": 1.5, "points": 1, "a": 1, "b": 1, "c": 1, "d": 1},
            ["'title'", "'when'", "and 2 more"],
        ),
        ({}, ["'title'", "'when'", "'points'"]),
    ],
)
async def test_arguments_that_do_not_fit_are_named_and_nothing_is_called(
    args: dict[str, Any], named: list[str]
) -> None:
    output = await run(plan, args)
    text = text_of(output.content)
    assert output.is_error
    assert text.startswith("The tool 'plan' was not run")
    for part in named:
        assert part in text


@dataclasses.dataclass
class Row:
    name: str
    size: float


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("words", "words"),
        ("", ""),
        ("lone \ud800 surrogate", "lone � surrogate"),
        (None, "(no output)"),
        ({"a": [1, 2.5, None, "ü"]}, '{"a":[1,2.5,null,"ü"]}'),
        ({"nan": float("nan"), "inf": [float("-inf")]}, '{"nan":null,"inf":[null]}'),
        ({"k": "\udfff"}, '{"k":"�"}'),
        (float("nan"), "null"),
        ([], "[]"),
        ([1, "a"], '[1,"a"]'),
        (True, "true"),
        (10**30, "1" + "0" * 30),
        (Row("r", 1.0), '{"name":"r","size":1.0}'),
        (Point(x=1), '{"x":1,"y":0}'),
        (date(2024, 5, 1), '"2024-05-01"'),
        (TextPart(text="part \ud800"), "part �"),
        ([TextPart(text="one "), TextPart(text="two")], "one two"),
        (ToolOutput.of("as \ud800 is"), "as � is"),
    ],
)
async def test_whatever_a_function_answers_becomes_text_that_any_reader_takes(answer: Any, text: str) -> None:
    @tool
    async def answers() -> Any:
        return answer

    output = await run(answers)
    assert text_of(output.content) == text
    assert not output.is_error
    assert not output.is_pending


async def test_images_placeholders_and_errors_pass_as_they_are() -> None:
    image = ImagePart(mime_type="image/png", data="aGk=")

    @tool
    async def see(what: str) -> Any:
        return {"image": [image], "pending": ToolOutput.pending("later"), "error": ToolOutput.error("no")}[what]

    assert (await run(see, {"what": "image"})).content == (image,)
    assert (await run(see, {"what": "pending"})).is_pending
    assert (await run(see, {"what": "error"})).is_error


@pytest.mark.parametrize("answer", [object(), {"a": object()}, b"\xff"])
async def test_an_answer_that_is_not_json_is_an_error_that_names_tool_and_type(answer: Any) -> None:
    @tool
    def odd() -> Any:
        return answer

    with pytest.raises(TypeError, match=r"'odd' did its work.*'(object|dict|bytes)' is not JSON"):
        await run(odd)


async def test_a_blocking_function_leaves_the_loop_free() -> None:
    release = threading.Event()
    where: list[str] = []

    @tool
    def block(ctx: ToolContext) -> str:
        where.append(threading.current_thread().name)
        ctx.progress("waiting", 0.5)
        assert release.wait(5)
        return "released"

    host = FakeHost()
    async with asyncio.timeout(5):
        call = asyncio.create_task(block.execute({}, host.context("block")))
        await until(lambda: bool(host.progress))  # the loop turns while the function blocks
        assert not call.done()
        release.set()
        assert text_of((await call).content) == "released"
    assert where == ["tool block"]
    assert host.progress == [("waiting", 0.5)]


async def test_stopping_a_blocking_function_is_immediate_and_what_goes_on_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    started, release, ended = threading.Event(), threading.Event(), threading.Event()

    @tool
    def stubborn() -> None:
        started.set()
        release.wait(5)
        ended.set()

    ctx = FakeHost().context("stubborn")
    with caplog.at_level(logging.WARNING):
        call = asyncio.create_task(stubborn.execute({}, ctx))
        await until(started.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not ended.is_set()
        assert "'stubborn'" in ctx.extra[GOES_ON]
        assert "its thread goes on" in caplog.text
        release.set()
        await until(lambda: "has ended" in caplog.text)
    assert ended.is_set()


async def test_a_thread_that_outlives_the_loop_ends_quietly() -> None:
    started, release = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    @tool
    def late() -> None:
        threads.append(threading.current_thread())
        started.set()
        release.wait(5)

    def inner() -> None:
        async def main() -> None:
            call = asyncio.create_task(late.execute({}, FakeHost().context("late")))
            await until(started.is_set)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

        asyncio.run(main())

    await asyncio.to_thread(inner)
    release.set()
    threads[0].join(5)
    assert not threads[0].is_alive()
    assert threads[0].daemon


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (ValueError("bad"), ValueError),
        (Aborted(), Aborted),
        (StopIteration(), RuntimeError),
        (SystemExit(3), RuntimeError),
        (KeyboardInterrupt(), RuntimeError),
    ],
)
async def test_what_a_function_raises_reaches_the_caller_and_never_ends_the_daemon(
    threaded: bool, raised: BaseException, seen: type[Exception]
) -> None:
    def fail() -> None:
        raise raised

    async def fail_async() -> None:
        raise raised

    with pytest.raises(seen):
        await run(tool(fail if threaded else fail_async))


async def test_a_context_variable_is_seen_in_the_thread() -> None:
    colour = contextvars.ContextVar("colour", default="none")
    colour.set("green")

    @tool
    def look() -> str:
        return colour.get()

    assert text_of((await run(look)).content) == "green"


def test_the_function_itself_stays_callable() -> None:
    @tool
    def double(n: int) -> int:
        """Doubles."""
        return n * 2

    assert double(4) == 8


def star(*many: int) -> None: ...
def stars(**many: int) -> None: ...
def only(a: int, /) -> None: ...
def bare(a) -> None: ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("function", "named"),
    [(star, "many"), (stars, "many"), (only, "'a' by position"), (bare, "'a'")],
)
def test_a_function_that_a_model_cannot_call_is_refused_where_it_is_written(function: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        tool(function)


@pytest.mark.parametrize("name", ["with space", "ümlaut", "a" * 65, "dot.ted", "new\n"])
def test_a_name_that_providers_refuse_is_refused_where_it_is_written(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a tool's name"):
        tool(name=name)(lambda: None)


def test_authors_import_three_names_from_one_place() -> None:
    module = sys.modules["sojourn.tools"]
    for name in ("tool", "ToolContext", "ToolOutput"):
        assert getattr(module, name)


def test_a_tool_may_say_what_its_calls_are_about() -> None:
    from sojourn.core.rules import Subject

    @tool(subject=Subject("query"))
    def look(query: str) -> str:
        """Looks something up."""
        return query

    assert look.info.subject == Subject("query")
