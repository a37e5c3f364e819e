"""Calls that the model cannot make: what is asked, and what each answer does to the call and to its siblings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError
from run_driving import RELOADS, TOOLS, assert_closed, call, calling, finish, ids, refused, result, texts

from sojourn.core.errors import Cancelled, RunFailed, UnknownToolCall
from sojourn.core.messages import AssistantMessage, ToolCallPart, ToolChoice, Usage, user
from sojourn.core.run import (
    AgentRun,
    CallModel,
    CallTools,
    Continue,
    InvalidToolCallAction,
    ModelTurn,
    NeedsResolution,
    TurnRetried,
    step_to_wire,
)

Action = InvalidToolCallAction
NOT_RUN = "Not run, because another call of the same turn was invalid."


def asking(*calls: ToolCallPart, retries: int = 0, max_turns: int = 4, choice: ToolChoice | None = None) -> AgentRun:
    """A run that waits for a decision about one of `calls`."""
    run = AgentRun.new("go").max_turns(max_turns).max_invalid_tool_call_retries(retries)
    if choice is not None:
        run.tool_choice(choice)
    run.next_step()
    assert isinstance(run.model_response(calling(*calls, usage=(5, 2))), NeedsResolution)
    return run


def failing(run: AgentRun, action: InvalidToolCallAction) -> RunFailed:
    """That the action fails the run, records nothing of the turn, and is remembered over a reload."""
    with pytest.raises(RunFailed) as caught:
        run.resolve_invalid_tool_call(action)
    assert run.state == "failed"
    assert run.messages == [user("go")]
    assert caught.value.history == [user("go")]
    assert run.usage == Usage(input_tokens=5, output_tokens=2)
    for reload in RELOADS:
        failure = reload(run).failure
        assert failure is not None
        assert (failure.kind, failure.message) == (caught.value.kind, caught.value.message)
        assert {"kind": failure.kind, **failure.data} == caught.value.data
    refused(run, run.next_step)
    return caught.value


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (call("a", "nope"), "unknown_tool"),
        (call("a", ""), "unknown_tool"),
        (call("a", "add\n"), "unknown_tool"),
        (call("a", "mul"), "disallowed_by_tool_choice"),
        (call("a", "add", '{"x": '), "malformed_arguments"),
        (call("a", "add", ""), "malformed_arguments"),
        (call("a", "nope", "{"), "unknown_tool"),
    ],
)
def test_the_question_names_the_call_and_the_reason(made: ToolCallPart, reason: str) -> None:
    """R-DR-09, R-DR-21."""
    run = AgentRun.new("go").with_history([user("x")]).max_turns(4).tool_choice(ToolChoice(mode="tool", name="add"))
    run.next_step()
    outcome = run.model_response(calling(call("ok"), made, allowed=("add",)))
    assert isinstance(outcome, NeedsResolution)
    asked = outcome.context
    assert (asked.tool_name, asked.call_id, asked.args, asked.reason) == (made.name, "a", made.arguments, reason)
    assert (asked.available_tools, asked.allowed_tools) == (TOOLS, ("add",))
    assert asked.tool_choice == ToolChoice(mode="tool", name="add")
    assert texts(asked.history) == ["x", "go", ""]
    untouched = asked.history[-1]
    assert isinstance(untouched, AssistantMessage)
    assert untouched.calls == (call("ok"), made)
    wire = step_to_wire(outcome)
    assert wire["type"] == "needsResolution"
    assert (wire["context"]["toolName"], wire["context"]["callId"]) == (made.name, "a")
    assert len(wire["context"]["history"]) == 3


@pytest.mark.parametrize("reload", RELOADS)
def test_the_same_question_is_asked_after_a_reload(reload: Callable[[AgentRun], AgentRun]) -> None:
    run = asking(call("a"), call("b", "nope"), call("c", "nope"))
    before = run.pending_invalid_tool_call()
    assert before is not None
    run = reload(run)
    assert run.pending_invalid_tool_call() == before
    assert run.peek() == NeedsResolution(before)
    run.resolve_invalid_tool_call(Action.repair("mul"))
    following = reload(run).pending_invalid_tool_call()
    assert following is not None
    assert following.call_id == "c"


def test_no_question_is_pending_unless_one_was_asked() -> None:
    run = AgentRun.new("go")
    assert run.pending_invalid_tool_call() is None
    run.next_step()
    run.model_response(ModelTurn.text("hi"))
    assert run.pending_invalid_tool_call() is None


# -- fail, stop -----------------------------------------------------------------------------------------------------


def test_fail_ends_the_run_naming_the_tool_and_those_there_are() -> None:
    """R-DR-09."""
    error = failing(asking(call("a"), call("b", "nope")), Action.fail())
    assert isinstance(error, UnknownToolCall)
    assert (error.data["toolName"], error.data["availableTools"]) == ("nope", list(TOOLS))
    assert error.data["allowedTools"] == list(TOOLS)
    assert "'nope'" in str(error)
    assert "'add'" in str(error)


@pytest.mark.parametrize(("reason", "said"), [("enough of it", "enough of it"), (None, "the driver")])
def test_stop_ends_the_run_with_its_reason(reason: str | None, said: str) -> None:
    """R-DR-09."""
    error = failing(asking(call("a", "nope")), Action.stop(reason))
    assert isinstance(error, Cancelled)
    assert said in error.data["reason"]
    assert said in str(error)


# -- retry ----------------------------------------------------------------------------------------------------------


def test_retry_records_the_turn_with_feedback_and_costs_a_turn() -> None:
    """R-DR-09."""
    run = asking(call("a"), call("b", "nope"), call("c"), retries=1)
    assert run.resolve_invalid_tool_call(Action.retry("there is no nope")) == TurnRetried()
    step = run.next_step()
    assert isinstance(step, CallModel)
    assert (step.turn, run.turn) == (2, 2)
    assert texts(run.messages) == ["go", "", NOT_RUN, "there is no nope", NOT_RUN]
    assert_closed(run.messages)
    assert finish(run).result.usage.input_tokens == 5


def test_a_retry_beyond_its_own_budget_fails_the_run() -> None:
    run = asking(call("a", "nope"), retries=1)
    run.resolve_invalid_tool_call(Action.retry("no"))
    run.next_step()
    run.model_response(calling(call("b", "nope")))
    with pytest.raises(UnknownToolCall) as caught:
        run.resolve_invalid_tool_call(Action.retry("no"))
    assert (run.state, texts(run.messages)) == ("failed", ["go", "", "no"])
    assert_closed(caught.value.history)


def test_no_retry_is_allowed_unless_said_otherwise() -> None:
    assert isinstance(failing(asking(call("a", "nope")), Action.retry("no")), UnknownToolCall)


@pytest.mark.parametrize("reload", RELOADS)
def test_used_retries_are_counted_over_a_reload_and_never_given_back(reload: Callable[[AgentRun], AgentRun]) -> None:
    run = asking(call("a", "nope"), retries=1)
    run.resolve_invalid_tool_call(Action.retry("no"))
    run.next_step()
    run.model_response(calling(call("b")))
    run.next_step()
    run.tool_results([result("b")])
    run = reload(run)
    run.next_step()
    run.model_response(calling(call("c", "nope")))
    with pytest.raises(UnknownToolCall):
        run.resolve_invalid_tool_call(Action.retry("no"))


def test_retry_drops_the_repairs_and_skips_of_its_turn() -> None:
    run = asking(call("a", "nope"), call("b", "nope"), call("c", "nope"), retries=1)
    run.resolve_invalid_tool_call(Action.repair("add"))
    run.resolve_invalid_tool_call(Action.skip("skipped"))
    run.resolve_invalid_tool_call(Action.retry("no"))
    recorded = run.messages[1]
    assert isinstance(recorded, AssistantMessage)
    assert [made.name for made in recorded.calls] == ["nope"] * 3
    assert texts(run.messages[2:]) == [NOT_RUN, NOT_RUN, "no"]


@pytest.mark.parametrize(
    ("made", "said"),
    [(call("a", "nope"), "no tool 'nope'"), (call("a", "add", "{"), "not a JSON object")],
)
def test_retry_without_feedback_says_what_is_wrong_and_what_can_be_called(made: ToolCallPart, said: str) -> None:
    run = asking(made, retries=1)
    run.resolve_invalid_tool_call(Action.retry())
    assert said in texts(run.messages)[2]
    assert "'add', 'mul'" in texts(run.messages)[2]


def test_a_retry_on_the_last_turn_is_kept_before_the_budget_ends_the_run() -> None:
    run = asking(call("a", "nope"), retries=5, max_turns=1)
    run.resolve_invalid_tool_call(Action.retry("no"))
    with pytest.raises(RunFailed) as caught:
        run.next_step()
    assert caught.value.kind == "maxTurns"
    assert texts(caught.value.history) == ["go", "", "no"]
    assert_closed(caught.value.history)


# -- repair ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reload", [lambda run: run, *RELOADS])
def test_repair_renames_the_call_and_everything_runs(reload: Callable[[AgentRun], AgentRun]) -> None:
    """R-DR-09."""
    run = asking(call("a"), call("b", "nope", {"y": 2}))
    assert run.resolve_invalid_tool_call(Action.repair("mul")) == Continue()
    step = reload(run).next_step()
    assert step == run.next_step()
    assert isinstance(step, CallTools)
    assert [(p.call.id, p.call.name, p.call.arguments) for p in step.calls] == [
        ("a", "add", {"x": 1}),
        ("b", "mul", {"y": 2}),
    ]
    assert [p.preresolved_result for p in step.calls] == [None, None]
    recorded = run.messages[-1]
    assert isinstance(recorded, AssistantMessage)
    assert [made.name for made in recorded.calls] == ["add", "mul"]


def test_repair_to_a_tool_that_is_not_allowed_fails_naming_it() -> None:
    error = failing(asking(call("a", "nope")), Action.repair("neither"))
    assert error.data["toolName"] == "neither"
    assert "'neither'" in str(error)
    assert "'nope'" in str(error)


def test_repair_to_a_tool_that_exists_and_is_not_allowed_fails_too() -> None:
    run = AgentRun.new("go").max_turns(3)
    run.next_step()
    run.model_response(calling(call("a", "nope"), allowed=("add",)))
    with pytest.raises(UnknownToolCall, match="'mul'"):
        run.resolve_invalid_tool_call(Action.repair("mul"))


def test_malformed_arguments_cannot_be_repaired() -> None:
    error = failing(asking(call("a", "add", "{")), Action.repair("mul"))
    assert "malformed" in str(error)


def test_a_renamed_call_with_malformed_arguments_is_asked_about_again() -> None:
    run = asking(call("a", "nope", "{"), retries=1)
    outcome = run.resolve_invalid_tool_call(Action.repair("add"))
    assert isinstance(outcome, NeedsResolution)
    assert (outcome.context.tool_name, outcome.context.reason) == ("add", "malformed_arguments")
    run.resolve_invalid_tool_call(Action.skip("torn"))
    assert ids(run.next_step()) == ["a"]


# -- skip -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reload", [lambda run: run, *RELOADS])
def test_skip_answers_the_call_and_nothing_of_the_turn_runs(reload: Callable[[AgentRun], AgentRun]) -> None:
    """R-DR-09, R-DR-19."""
    run = asking(call("a"), call("b", "nope"), call("c", "nope"))
    run.resolve_invalid_tool_call(Action.repair("mul"))
    run = reload(run)
    assert run.resolve_invalid_tool_call(Action.skip("no such thing")) == Continue()
    step = reload(run).next_step()
    assert step == run.next_step()
    assert isinstance(step, CallTools)
    settled = [pending.preresolved_result for pending in step.calls]
    assert texts([s for s in settled if s]) == [NOT_RUN, NOT_RUN, "no such thing"]
    assert [s.tool_name for s in settled if s] == ["add", "mul", "nope"]
    refused(run, lambda: run.tool_results([result("a", "I ran it")]))
    run.tool_results([settled[2], settled[0]])
    run = reload(run)
    run.tool_results([{"callId": "b", "content": NOT_RUN}])
    assert texts(run.messages[2:]) == [NOT_RUN, NOT_RUN, "no such thing"]
    assert all(message.is_error for message in run.messages[2:])
    assert isinstance(run.next_step(), CallModel)


def test_one_of_two_calls_with_the_same_id_is_skipped_and_each_reads_its_own_result() -> None:
    for provider_id in ("same", ""):
        run = AgentRun.new("go").max_turns(3)
        run.next_step()
        outcome = run.model_response(calling(call(provider_id), call(provider_id, "nope")))
        assert isinstance(outcome, NeedsResolution)
        run.resolve_invalid_tool_call(Action.skip("skipped"))
        step = run.next_step()
        assert isinstance(step, CallTools)
        run.tool_results([p.preresolved_result for p in reversed(step.calls) if p.preresolved_result])
        assert texts(run.messages[2:]) == [NOT_RUN, "skipped"]
        assert_closed(run.messages)


def test_skip_under_the_tool_choice_none_fails_the_run() -> None:
    error = failing(asking(call("a", "nope"), choice=ToolChoice(mode="none")), Action.skip("no"))
    assert isinstance(error, UnknownToolCall)
    assert "none" in str(error)


def test_full_history_closes_skipped_calls_with_what_they_are_preresolved_with() -> None:
    run = asking(call("a"), call("b", "nope"))
    run.resolve_invalid_tool_call(Action.skip("gone"))
    run.next_step()
    assert texts(run.full_history()[2:]) == [NOT_RUN, "gone"]


# -- the form of actions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wire",
    [{"action": "repair"}, {"action": "guess"}, {}, {"action": "fail", "why": "x"}, {"action": "skip", "reason": 3}],
)
def test_an_action_that_makes_no_sense_is_refused(wire: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        InvalidToolCallAction.model_validate(wire)


def test_actions_come_in_wire_form() -> None:
    assert Action.model_validate({"action": "repair", "toolName": "x"}) == Action.repair("x")
    assert Action.model_validate({"action": "retry", "feedback": "x"}) == Action.retry("x")
    assert Action.model_validate({"action": "skip", "reason": "x"}) == Action.skip("x")


def test_a_skip_without_a_reason_says_that_the_call_was_skipped() -> None:
    run = asking(call("a", "nope"))
    run.resolve_invalid_tool_call(Action.skip())
    run.next_step()
    assert "skipped" in texts(run.full_history())[-1]


def test_names_that_nobody_reported_are_unknown() -> None:
    run = AgentRun.new("go")
    run.next_step()
    outcome = run.model_response(ModelTurn(content=(call("a"),)))
    assert isinstance(outcome, NeedsResolution)
    assert "nothing" in str(failing_text(run))


def failing_text(run: AgentRun) -> RunFailed:
    with pytest.raises(UnknownToolCall) as caught:
        run.resolve_invalid_tool_call(Action.fail())
    return caught.value
