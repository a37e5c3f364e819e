"""What a run keeps: entries, labels, closed histories, odd text and numbers."""

from __future__ import annotations

from typing import Any

import pytest
from run_driving import (
    RELOADS,
    TOOLS,
    assert_closed,
    at_calls,
    call,
    calling,
    finish,
    result,
    texts,
)

from sojourn.core.errors import InvalidParams, MaxTurns
from sojourn.core.messages import (
    AssistantMessage,
    user,
)
from sojourn.core.run import (
    AgentRun,
    CallTools,
    ModelTurn,
    NeedsResolution,
)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


# -- entries, labels ------------------------------------------------------------------------------------------------


def test_entries_keep_their_order_and_are_never_sent() -> None:
    """R-DR-30, R-DR-31."""
    plain, noted = AgentRun.new("go").max_turns(3), AgentRun.new("go").max_turns(3)
    assert noted.append_entry("approval", {"by": "me", "why": None}) == 0
    for run in (plain, noted):
        run.next_step()
        run.model_response(calling(call("a")))
    assert noted.append_entry("counter", 1) == 1
    assert noted.append_entry("counter", None, turn=7) == 2
    assert noted.next_step() == plain.next_step()
    for reload in RELOADS:
        again = reload(noted)
        assert [(e.kind, e.turn) for e in again.entries] == [("approval", 0), ("counter", 1), ("counter", 7)]
        assert [e.value for e in again.entries_of("counter")] == [1, None]
        assert again.last_entry_of("approval") == noted.entries[0]
        assert again.entries[0].value == {"by": "me", "why": None}
        assert finish(again) == finish(reload(plain))
    assert noted.last_entry_of("nothing") is None


@pytest.mark.parametrize("value", [float("nan"), {"a": [float("inf")]}, 2**70, {1, 2}, object(), {1: 2}, (1,)])
def test_an_entry_that_is_not_json_is_refused(value) -> None:
    run = AgentRun.new("go")
    with pytest.raises(InvalidParams):
        run.append_entry("x", value)
    assert run.entries == []


def test_an_entry_does_not_change_with_the_value_it_was_made_of() -> None:
    run, value = AgentRun.new("go"), {"a": [1]}
    run.append_entry("x", value)
    value["a"].append(2)
    assert run.entries[0].value == {"a": [1]}


def test_messages_are_labelled_once_in_order() -> None:
    run = AgentRun.new("go").with_history([user("old")]).max_turns(3)
    assert run.label_messages(5, "T1") == 6
    run.next_step()
    run.model_response(
        ModelTurn(content=(call("a"),), message_id="msg-6", executable_tools=TOOLS),
    )
    run.next_step()
    run.tool_results([result("a")])
    assert run.label_messages(7, "T2") == 8
    assert [(m.message_id, m.at) for m in run.messages] == [("msg-5", "T1"), ("msg-6", "T2"), ("msg-7", "T2")]
    assert run.history[0].message_id is None
    for reload in RELOADS:
        again = reload(run)
        assert again.label_messages(8, "T3") == 8
        assert again == run


def test_labels_fill_a_gap_that_stands_before_a_labelled_message() -> None:
    run = AgentRun.new([user("a"), user("b", message_id="msg-1", at="T0")])
    assert run.label_messages(2, "T1") == 3
    assert [(m.message_id, m.at) for m in run.messages] == [("msg-2", "T1"), ("msg-1", "T0")]


# -- histories that come in torn ------------------------------------------------------------------------------------


def test_a_torn_input_history_is_closed_in_what_the_run_gives_back() -> None:
    torn = [
        result("ghost"),
        user("x"),
        AssistantMessage(content=(call("a"), call("b"), call("a"))),
        result("a", "first"),
        result("ghost"),
        result("a", "second"),
        user("y"),
        AssistantMessage(content=(call("c"),)),
    ]
    run = AgentRun.new("hi").max_turns(0).with_history(torn)
    with pytest.raises(MaxTurns) as caught:
        run.next_step()
    assert_closed(caught.value.history)
    assert texts(caught.value.history) == ["x", "", "first", "not executed", "second", "y", "", "not executed", "hi"]
    assert run.full_history() == caught.value.history


def test_open_calls_are_closed_as_not_executed_and_answered_ones_keep_their_result() -> None:
    run = at_calls(call("a"), call("b"), call("c"))
    run.tool_results([result("c", "real")])
    assert texts(run.full_history()[2:]) == ["not executed", "not executed", "real"]
    assert_closed(run.full_history())


# -- text and numbers that cannot be saved as they are --------------------------------------------------------------


def test_a_run_can_be_saved_whatever_text_the_model_or_a_tool_gives() -> None:
    odd = "a\ud83d\x00\u2028\ufffe"
    run = AgentRun.new(odd).max_turns(3)
    run.next_step()
    run.model_response(calling(call("a", arguments={odd: [odd]})))
    run.next_step()
    run.tool_results([result("a", odd)])
    run.inject([user(odd)])
    for reload in RELOADS:
        assert reload(run) == run
    assert "\ufffd" in texts(run.messages)[0]


@pytest.mark.parametrize("bad", [float("nan"), 2**64, nested(250)])
def test_arguments_that_would_not_survive_saving_count_as_malformed(bad) -> None:
    run = AgentRun.new("go").max_turns(3)
    run.next_step()
    outcome = run.model_response(calling(call("a", arguments={"n": bad})))
    assert isinstance(outcome, NeedsResolution)
    assert outcome.context.reason == "malformed_arguments"
    assert isinstance(outcome.context.args, str)
    for reload in RELOADS:
        assert reload(run) == run


def test_deep_but_bearable_arguments_are_kept() -> None:
    deep = nested(100)
    run = at_calls(call("a", arguments={"n": deep}))
    for reload in RELOADS:
        step = reload(run).next_step()
        assert isinstance(step, CallTools)
        assert step.calls[0].call.arguments == {"n": deep}


def test_names_given_as_a_set_are_saved_in_one_order() -> None:
    assert ModelTurn.text("x", tools={"b", "a"}).executable_tools == ("a", "b")
    assert calling(call(), tools={"b", "a"}, allowed={"a"}).allowed_tools == ("a",)
