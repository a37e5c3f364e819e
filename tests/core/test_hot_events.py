"""Events that are built as plain data are, on the wire, what their classes would be."""

from __future__ import annotations

from typing import Any

import pytest

from sojourn.core import events as ev
from sojourn.core import hot_events as hot
from sojourn.core.messages import TextPart, Usage
from sojourn.core.values import Value, decode

RESULT = ev.ToolResult(content=(TextPart(text="x"),), is_error=True)
FULL = Usage(input_tokens=1, output_tokens=2, cached_input_tokens=3, reasoning_tokens=4)
STATS: dict[str, Any] = {"duration_ms": 5, "first_token_ms": None, "finish_reason": "stop"}


def stats(usage: Usage | None, first: int | None) -> ev.GenerationStats:
    counts = usage.model_dump() if usage else {}
    return ev.GenerationStats(model="m", **counts, duration_ms=5, time_to_first_token_ms=first, finish_reason="stop")


@pytest.mark.parametrize(
    ("plain", "value"),
    [
        (hot.agent_start("resume"), ev.AgentStart(cause="resume")),
        (hot.turn_start(3), ev.TurnStart(turn=3)),
        (hot.turn_end(3), ev.TurnEnd(turn=3)),
        (hot.context_budget(1, None, 2), ev.ContextBudget(used_tokens=1, window_tokens=None, reserved_tokens=2)),
        (hot.context_budget(1, 9, 2), ev.ContextBudget(used_tokens=1, window_tokens=9, reserved_tokens=2)),
        (hot.message_start("msg-1", "toolResult"), ev.MessageStart(message_id="msg-1", role="toolResult")),
        (hot.generation_stats("m", None, **STATS), stats(None, None)),
        (hot.generation_stats("m", Usage(input_tokens=7), **STATS), stats(Usage(input_tokens=7), None)),
        (hot.generation_stats("m", FULL, **{**STATS, "first_token_ms": 8}), stats(FULL, 8)),
        (
            hot.tool_exec_start("c", "t", {"a": None}),
            ev.ToolExecStart(tool_call_id="c", tool_name="t", args={"a": None}),
        ),
        (
            hot.tool_exec_end("c", "t", RESULT.wire()),
            ev.ToolExecEnd(tool_call_id="c", tool_name="t", result=RESULT),
        ),
    ],
)
def test_a_plain_event_is_what_its_class_is_on_the_wire(plain: dict[str, Any], value: Value) -> None:
    assert plain == decode(value.json_bytes())
    assert next(iter(plain)) == "type"
    assert ev.EVENT.validate_python(plain, by_name=False) == value
