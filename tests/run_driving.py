"""Driving runs in tests: short ways to make turns, answer calls, and to save and load between any two calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from sojourn.core.errors import ProtocolViolation
from sojourn.core.messages import (
    AssistantMessage,
    Message,
    ToolCallPart,
    ToolResultMessage,
    Usage,
    parts,
    text_of,
)
from sojourn.core.run import AgentRun, CallTools, Done, ModelTurn

TOOLS = ("add", "mul")


def call(id: str = "a", name: str = "add", arguments: dict[str, Any] | str | None = None) -> ToolCallPart:
    return ToolCallPart(id=id, name=name, arguments={"x": 1} if arguments is None else arguments)


def calling(
    *calls: ToolCallPart,
    tools: Iterable[str] = TOOLS,
    allowed: Iterable[str] | None = None,
    usage: tuple[int, int] = (1, 1),
) -> ModelTurn:
    return ModelTurn.calls(
        *calls, tools=tools, allowed=allowed, usage=Usage(input_tokens=usage[0], output_tokens=usage[1])
    )


def result(call_id: str, text: str = "ok", *, is_error: bool = False) -> ToolResultMessage:
    return ToolResultMessage(call_id=call_id, tool_name="?", content=parts(text), is_error=is_error)


def at_calls(*calls: ToolCallPart, max_turns: int = 3, prompt: str = "go") -> AgentRun:
    """A run that waits for the results of `calls`."""
    run = AgentRun.new(prompt).max_turns(max_turns)
    run.next_step()
    run.model_response(calling(*calls))
    assert isinstance(run.next_step(), CallTools)
    return run


def finish(run: AgentRun, text: str = "fine") -> Done:
    """Drives the run to its end: every call is answered, the model says `text`."""
    for _ in range(50):
        step = run.next_step()
        if isinstance(step, Done):
            return step
        if isinstance(step, CallTools):
            run.tool_results([p.preresolved_result or result(p.call.id) for p in step.calls])
        else:
            run.model_response(ModelTurn.text(text))
    raise AssertionError("the run does not end")


def ids(step: Any) -> list[str]:
    """The ids of the calls that a CallTools step owes."""
    assert isinstance(step, CallTools)
    return [pending.call.id for pending in step.calls]


def texts(messages: Iterable[Message]) -> list[str]:
    return [text_of(message.content) for message in messages]


def reload_json(run: AgentRun) -> AgentRun:
    return AgentRun.model_validate_json(run.model_dump_json())


def reload_document(run: AgentRun) -> AgentRun:
    return AgentRun.load(run.document())


def reload_apart(run: AgentRun) -> AgentRun:
    return AgentRun.restore(
        run.machine(), history=run.history, messages=run.messages, model_calls=run.model_calls, entries=run.entries
    )


RELOADS: tuple[Callable[[AgentRun], AgentRun], ...] = (reload_json, reload_document, reload_apart)


def refused(run: AgentRun, do: Callable[[], Any]) -> ProtocolViolation:
    """That `do` is a protocol violation which names the state and changes nothing."""
    before = run.model_dump_json()
    with pytest.raises(ProtocolViolation) as caught:
        do()
    assert run.model_dump_json() == before
    assert caught.value.data["state"] == run.state
    assert repr(run.state) in str(caught.value)
    return caught.value


def assert_closed(messages: Sequence[Message]) -> None:
    """That each call has exactly one result directly after its turn, in call order, and no result stands elsewhere."""
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        assert not isinstance(message, ToolResultMessage), f"a result without its call: {message}"
        if isinstance(message, AssistantMessage):
            for made in message.calls:
                assert rest, f"no result for {made.id}"
                answer = rest.pop(0)
                assert isinstance(answer, ToolResultMessage)
                assert answer.call_id == made.id
