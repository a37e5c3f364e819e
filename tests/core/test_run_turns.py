"""Turns that were cut or are empty, messages from outside, calls that were started."""

from __future__ import annotations

import pytest
from run_driving import (
    RELOADS,
    TOOLS,
    at_calls,
    call,
    calling,
    finish,
    ids,
    refused,
    reload_json,
    result,
    texts,
)

from sojourn.core.errors import ModelError, ModelResponseError
from sojourn.core.messages import (
    AssistantMessage,
    ImagePart,
    LateResultMessage,
    ReasoningPart,
    RefusalPart,
    SummaryMessage,
    TextPart,
    Usage,
    parts,
    user,
)
from sojourn.core.run import (
    AgentRun,
    CallModel,
    CallTools,
    Continue,
    Done,
    Failed,
    ModelTurn,
    step_to_wire,
)

# -- turns that were cut, empty turns -------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["length", "contentFilter"])
@pytest.mark.parametrize(
    "content", [(), parts(""), (ReasoningPart(text="hm"),), (ReasoningPart(text="hm"), TextPart(text=""))]
)
def test_a_cut_turn_without_an_answer_names_the_reason_and_records_nothing(reason, content) -> None:
    run = AgentRun.new("hi").max_turns(3)
    run.next_step()
    run.model_response(ModelTurn(content=content, finish_reason=reason, usage=Usage(input_tokens=3)))
    with pytest.raises(ModelResponseError, match=repr(reason)) as caught:
        run.next_step()
    assert (run.state, run.messages, caught.value.history) == ("failed", [user("hi")], [user("hi")])
    assert (caught.value.data["reason"], run.usage.input_tokens) == (reason, 3)
    assert "limit" in str(caught.value)
    assert run.failure is not None
    assert run.failure.kind == "modelResponseError"


@pytest.mark.parametrize(
    "part",
    [TextPart(text="half an ans"), RefusalPart(text="I will not"), ImagePart(mime_type="image/png", data="AA==")],
)
def test_a_cut_turn_that_says_something_is_an_answer(part) -> None:
    run = AgentRun.new("hi")
    run.next_step()
    run.model_response(ModelTurn(content=(part,), finish_reason="max_tokens"))
    step = run.next_step()
    assert isinstance(step, Done)
    assert step.result.content == (part,)
    assert step.result.model_calls[0].finish_reason == "length"


@pytest.mark.parametrize("reload", [lambda run: run, *RELOADS])
@pytest.mark.parametrize("content", [(), parts("")])
def test_an_empty_turn_that_was_not_cut_is_a_success_and_is_not_recorded(content, reload) -> None:
    run = AgentRun.new("hi").max_turns(2)
    run.next_step()
    run.model_response(ModelTurn(content=content, finish_reason="stop"))
    run.next_step()
    step = reload(run).next_step()
    assert isinstance(step, Done)
    assert (step.result.output, step.result.content, texts(step.result.messages)) == ("", (), ["hi"])


def test_a_reasoning_only_turn_that_was_not_cut_is_kept() -> None:
    run = AgentRun.new("hi")
    run.next_step()
    run.model_response(ModelTurn(content=(ReasoningPart(text="hm"),), finish_reason="stop"))
    step = run.next_step()
    assert isinstance(step, Done)
    assert (step.result.output, len(step.result.messages)) == ("", 2)


@pytest.mark.parametrize("reason", ["length", "contentFilter"])
def test_no_call_of_a_cut_turn_runs_and_the_conversation_goes_on(reason) -> None:
    run = AgentRun.new("go").max_turns(3)
    run.next_step()
    torn = call("b", "add", '{"path": "/ho')
    turn = ModelTurn(
        content=(*parts("so"), call("a"), torn, call("c", "nope")), finish_reason=reason, executable_tools=TOOLS
    )
    assert run.model_response(turn) == Continue()
    step = reload_json(run).next_step()
    assert step == run.next_step()
    assert isinstance(step, CallTools)
    answers = [pending.preresolved_result for pending in step.calls]
    assert [a.is_error and "cut short" in texts([a])[0] for a in answers if a] == [True] * 3
    refused(run, lambda: run.mark_dispatched(["a"]))
    run.tool_results([a for a in answers if a])
    following = run.next_step()
    assert isinstance(following, CallModel)
    assert following.turn == 2
    assert finish(run).result.output == "fine"


# -- messages from outside ------------------------------------------------------------------------------------------


def test_injected_messages_are_part_of_the_next_model_call() -> None:
    run = at_calls(call("a"))
    run.tool_results([result("a")])
    late = LateResultMessage(call_id="old", tool_name="build", content=parts("built"))
    run.inject([late, SummaryMessage(content=parts("so far")), user("and hurry")])
    step = run.next_step()
    assert isinstance(step, CallModel)
    assert texts([*step.history, step.prompt]) == ["go", "", "ok", "built", "so far", "and hurry"]


@pytest.mark.parametrize("reload", [lambda run: run, *RELOADS])
def test_a_message_at_the_final_answer_reopens_the_run(reload) -> None:
    run = AgentRun.new("hi").max_turns(2)
    first = finish(run, "one")
    run = reload(run)
    assert run.can_continue
    run.inject([user("wait")])
    step = run.next_step()
    assert isinstance(step, CallModel)
    assert (step.turn, texts(step.history)) == (2, ["hi", "one"])
    assert texts(finish(run, "two").result.messages) == ["hi", "one", "wait", "two"]
    assert first.result.output == "one"


def test_a_message_is_refused_when_no_turn_is_left_and_the_run_stays_done() -> None:
    run = AgentRun.new("hi")
    finish(run)
    assert not run.can_continue
    refused(run, lambda: run.inject([user("wait")]))
    assert isinstance(run.next_step(), Done)


def test_nothing_injected_reopens_nothing() -> None:
    run = AgentRun.new("hi").max_turns(2)
    finish(run)
    run.inject([])
    assert run.state == "done"


@pytest.mark.parametrize("message", [AssistantMessage(content=parts("I")), result("a"), "text"])
def test_only_what_comes_from_outside_can_be_injected(message) -> None:
    run = AgentRun.new("hi")
    refused(run, lambda: run.inject([user("ok"), message]))


# -- dispatched calls -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reload", [lambda run: run, *RELOADS])
def test_started_calls_without_a_result_are_failed_and_never_offered_again(reload) -> None:
    run = at_calls(call("a"), call("b"), call("c"))
    run.mark_dispatched(["a", "b"])
    run.mark_dispatched(["b"])
    run.tool_results([result("a", "real")])
    run = reload(run)
    assert run.dispatched == {"a", "b"}
    assert run.fail_dispatched() == ("b",)
    assert run.fail_dispatched() == ()
    assert ids(run.next_step()) == ["c"]
    run.tool_results([result("c")])
    assert texts(run.messages[2:]) == ["real", "interrupted; may have taken effect", "ok"]
    assert run.dispatched == frozenset()


def test_failing_the_last_open_call_closes_the_round() -> None:
    run = at_calls(call("a"))
    run.mark_dispatched(["a"])
    assert run.fail_dispatched() == ("a",)
    assert isinstance(run.next_step(), CallModel)
    assert run.fail_dispatched() == ()


@pytest.mark.parametrize("call_ids", [["nobody"], ["b", "a"]])
def test_only_open_calls_can_be_marked_as_started(call_ids) -> None:
    run = at_calls(call("a"), call("b"))
    run.tool_results([result("a")])
    refused(run, lambda: run.mark_dispatched(call_ids))
    assert run.dispatched == frozenset()


# -- drivers that cannot go on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reload", [lambda run: run, *RELOADS])
def test_a_model_call_without_an_answer_can_be_taken_back_and_costs_nothing(reload) -> None:
    run = AgentRun.new("hi").max_turns(1)
    run.next_step()
    run.withdraw_call()
    run = reload(run)
    run.inject([user("and this")])
    step = run.next_step()
    assert isinstance(step, CallModel)
    assert (step.turn, texts([*step.history, step.prompt])) == (1, ["hi", "and this"])
    assert finish(run).result.output == "fine"


@pytest.mark.parametrize("reload", RELOADS)
@pytest.mark.parametrize("asked", [True, False])
def test_a_run_whose_driver_cannot_go_on_fails_and_remembers_why(reload, asked) -> None:
    run = AgentRun.new("hi").max_turns(2)
    if asked:
        run.next_step()
    run.abandon(ModelError("The model is away.", retryable=True))
    again = reload(run)
    assert again == run
    assert again.failure is not None
    assert (again.failure.kind, again.failure.message) == ("modelError", "The model is away.")
    owed = again.peek()
    assert owed == Failed(again.failure)
    assert step_to_wire(owed)["error"] == {"kind": "modelError", "message": "The model is away.", "retryable": True}
    assert not again.can_continue


@pytest.mark.parametrize("together", [False, True])
def test_a_driver_that_knows_the_conversations_call_ids_shares_them(together) -> None:
    known = {"a"}
    run = AgentRun.new("go").max_turns(3)
    run = run.with_history([], call_ids=known) if together else run.knowing_call_ids(known)
    run.next_step()
    run.model_response(calling(call("a"), call("b")))
    assert ids(run.next_step()) == ["call-1-1", "b"]
    assert known == {"a", "call-1-1", "b"}
