"""What a run owes from step to step: prompt, budget, tool rounds, the order of calls."""

from __future__ import annotations

import pytest
from run_driving import (
    RELOADS,
    TOOLS,
    assert_closed,
    at_calls,
    call,
    calling,
    finish,
    ids,
    refused,
    result,
    texts,
)

from sojourn.core.errors import InvalidParams, MaxTurns, ModelError
from sojourn.core.messages import (
    AssistantMessage,
    ToolChoice,
    ToolResultMessage,
    Usage,
    parts,
    user,
)
from sojourn.core.run import (
    ACCEPTS,
    AgentRun,
    CallModel,
    CallTools,
    Continue,
    Done,
    Failed,
    InvalidToolCallAction,
    ModelTurn,
    NeedsResolution,
    step_to_wire,
)

HISTORY = [user("earlier"), AssistantMessage(content=parts("answer"))]


# -- prompt, history, answer ----------------------------------------------------------------------------------------


def test_a_fresh_run_asks_the_model_once_and_is_done() -> None:
    """R-DR-01, R-DR-05, R-DR-06."""
    run = AgentRun.new("hi")
    assert run.next_step() == CallModel(prompt=user("hi"), history=[], turn=1)
    assert run.model_response(ModelTurn.text("hello")) == Continue()
    step = run.next_step()
    assert isinstance(step, Done)
    assert (step.result.output, texts(step.result.messages)) == ("hello", ["hi", "hello"])
    assert step.result.content == parts("hello")
    assert run.next_step() == step


def test_input_history_is_sent_and_is_not_the_runs_own() -> None:
    """R-DR-05."""
    run = AgentRun.new("hi").with_history(HISTORY)
    step = run.next_step()
    assert isinstance(step, CallModel)
    assert step.history == HISTORY
    assert texts(finish(run).result.messages) == ["hi", "fine"]
    assert texts(run.full_history()) == ["earlier", "answer", "hi", "fine"]


def test_what_the_inbox_held_goes_before_the_prompt() -> None:
    step = AgentRun.new([user("from the inbox"), user("hi")]).next_step()
    assert isinstance(step, CallModel)
    assert (texts(step.history), texts([step.prompt])) == (["from the inbox"], ["hi"])


def test_a_run_without_a_prompt_continues_a_conversation_that_owes_a_reply() -> None:
    run = AgentRun.new(None).with_history([*HISTORY, user("and?")])
    assert run.next_step() == CallModel(prompt=user("and?"), history=HISTORY, turn=1)
    assert texts(finish(run).result.messages) == ["fine"]


def test_a_run_with_nothing_to_send_says_so_and_takes_a_message_later() -> None:
    run = AgentRun.new(None)
    assert "inject" in str(refused(run, run.next_step))
    assert run.peek() is None
    run.inject([user("hi")])
    assert finish(run).result.output == "fine"


def test_usage_and_model_calls_are_summed_over_turns() -> None:
    run = AgentRun.new("hi").max_turns(2)
    run.next_step()
    run.model_response(calling(call(), usage=(10, 5)))
    run.next_step()
    run.tool_results([result("a")])
    run.next_step()
    run.model_response(ModelTurn.text("ok", usage=Usage(input_tokens=20, output_tokens=7)))
    step = run.next_step()
    assert isinstance(step, Done)
    assert step.result.usage == Usage(input_tokens=30, output_tokens=12)
    assert [made.index for made in step.result.model_calls] == [0, 1]
    assert [made.usage.input_tokens for made in step.result.model_calls] == [10, 20]
    assert len(step.result.messages) == 4


def test_a_model_call_keeps_what_the_driver_knows_of_it() -> None:
    turn = ModelTurn(
        content=parts("hi"), message_id="msg-9", at="2026-01-01T00:00:00Z", model="m", response_id="r", request_id="q",
        raw={"body": 1},
    )  # fmt: skip
    kept, bare = AgentRun.new("x").keep_raw(), AgentRun.new("x")
    for run in (kept, bare):
        run.next_step()
        run.model_response(turn)
        run.next_step()
        made = run.model_calls[0]
        assert (made.message_id, made.response_id, made.request_id) == ("msg-9", "r", "q")
        answer = run.messages[-1]
        assert isinstance(answer, AssistantMessage)
        assert (answer.message_id, answer.at, answer.model) == ("msg-9", "2026-01-01T00:00:00Z", "m")
    assert (kept.model_calls[0].raw, bare.model_calls[0].raw) == ({"body": 1}, None)


# -- the turn budget ------------------------------------------------------------------------------------------------


def test_no_turn_is_emitted_when_none_is_allowed() -> None:
    run = AgentRun.new("hi").max_turns(0)
    with pytest.raises(MaxTurns) as caught:
        run.next_step()
    assert (run.turn, run.state, caught.value.prompt) == (0, "failed", user("hi"))
    assert caught.value.data == {"kind": "maxTurns", "maxTurns": 0}


def test_the_tools_of_the_last_turn_still_run_and_their_results_are_kept() -> None:
    """R-DR-10."""
    run = at_calls(call(), max_turns=1)
    run.tool_results([result("a", "done")])
    with pytest.raises(MaxTurns) as caught:
        run.next_step()
    assert (run.turn, caught.value.data["maxTurns"]) == (1, 1)
    assert texts([caught.value.prompt]) == ["done"]
    assert caught.value.history[-1] == caught.value.prompt
    assert_closed(caught.value.history)
    refused(run, run.next_step)


def test_a_model_that_always_calls_is_asked_exactly_as_often_as_allowed() -> None:
    run = AgentRun.new("go").max_turns(3)
    for turn in (1, 2, 3):
        step = run.next_step()
        assert isinstance(step, CallModel)
        assert step.turn == turn
        run.model_response(calling(call(id="")))
        run.tool_results([result(i) for i in ids(run.next_step())])
    with pytest.raises(MaxTurns):
        run.next_step()
    assert run.turn == 3


def test_one_turn_is_allowed_unless_said_otherwise() -> None:
    assert AgentRun.new("hi").turn_limit == 1


@pytest.mark.parametrize("reload", RELOADS)
def test_an_exhausted_budget_is_still_exhausted_after_a_reload(reload) -> None:
    run = at_calls(call(), max_turns=1)
    run.tool_results([result("a")])
    again = reload(run)
    with pytest.raises(MaxTurns):
        again.next_step()
    assert again.state == "failed"
    failed = reload(again)
    assert failed.failure is not None
    assert (failed.failure.kind, failed.failure.data) == ("maxTurns", {"maxTurns": 1})
    assert step_to_wire(failed.peek())["error"]["kind"] == "maxTurns"


# -- tool rounds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reload", RELOADS)
def test_results_enter_the_history_in_call_order_whatever_their_arrival(reload) -> None:
    """R-DR-07, R-DR-15."""
    run = at_calls(call("a"), call("b", "mul"), call("c"))
    run.tool_results([result("c", "3")])
    run = reload(run)
    assert ids(run.next_step()) == ["a", "b"]
    run.tool_results([result("b", "2"), result("a", "1")])
    step = run.next_step()
    assert isinstance(step, CallModel)
    assert texts(run.messages[2:]) == ["1", "2", "3"]
    assert [m.tool_name for m in run.messages if isinstance(m, ToolResultMessage)] == ["add", "mul", "add"]


BAD_RESULTS = {
    "an unknown id": lambda: [result("a"), result("nobody")],
    "an id answered already": lambda: [result("a"), result("b")],
    "the same id twice": lambda: [result("a"), result("a")],
    "a user message": lambda: [result("a"), user("a")],
    "a mapping without an id": lambda: [result("a"), {"content": "x"}],
    "a number": lambda: [result("a"), 7],
}


@pytest.mark.parametrize("bad", BAD_RESULTS)
def test_a_batch_with_one_bad_result_is_refused_as_a_whole(bad) -> None:
    """R-DR-12, R-DR-15."""
    run = at_calls(call("a"), call("b"))
    run.tool_results([result("b")])
    refused(run, lambda: run.tool_results(BAD_RESULTS[bad]()))
    assert ids(run.next_step()) == ["a"]
    assert finish(run).result.output == "fine"


def test_results_are_taken_in_wire_form_too() -> None:
    run = at_calls(call("a"), call("b"))
    run.tool_results([{"callId": "a", "content": "1"}])
    run.tool_results([{"callId": "b", "content": [{"type": "text", "text": "2"}], "isError": True}])
    assert texts(run.messages[2:]) == ["1", "2"]
    assert [m.is_error for m in run.messages[2:] if isinstance(m, ToolResultMessage)] == [False, True]


def test_an_empty_batch_changes_nothing() -> None:
    run = at_calls(call("a"))
    before = run.model_dump_json()
    run.tool_results([])
    assert run.model_dump_json() == before


def test_text_and_calls_of_one_turn_are_kept_together() -> None:
    run = AgentRun.new("go").max_turns(2)
    run.next_step()
    run.model_response(ModelTurn(content=(*parts("let me see"), call("a")), executable_tools=TOOLS))
    assert ids(run.next_step()) == ["a"]
    run.tool_results([result("a")])
    assert texts(finish(run).result.messages) == ["go", "let me see", "ok", "fine"]


def test_calls_run_whatever_finish_reason_the_provider_gives() -> None:
    for reason in (None, "stop", "end_turn", "something new"):
        run = AgentRun.new("go").max_turns(2)
        run.next_step()
        run.model_response(ModelTurn(content=(call("a"),), finish_reason=reason, executable_tools=TOOLS))
        step = run.next_step()
        assert isinstance(step, CallTools)
        assert step.calls[0].preresolved_result is None


# -- ids of calls ---------------------------------------------------------------------------------------------------


def test_empty_and_repeated_ids_are_made_unique_and_the_providers_are_kept() -> None:
    run = at_calls(call(""), call("a"), call("a"), call(""))
    assert ids(run.next_step()) == ["call-1-1", "a", "call-1-3", "call-1-4"]
    turn = run.messages[-1]
    assert isinstance(turn, AssistantMessage)
    assert [made.provider_id for made in turn.calls] == [None, None, "a", None]


@pytest.mark.parametrize("reload", [lambda run: run, *RELOADS])
def test_an_id_that_the_history_has_is_made_unique(reload) -> None:
    before = [user("x"), AssistantMessage(content=(call("a"), call("call-1-1"))), result("a"), result("call-1-1")]
    run = AgentRun.new("go").with_history(before).max_turns(3)
    run.next_step()
    run.model_response(calling(call("a"), call("b")))
    assert ids(run.next_step()) == ["call-1-1-2", "b"]
    run.tool_results([result("call-1-1-2"), result("b")])
    run = reload(run)
    run.next_step()
    run.model_response(calling(call("b"), call("c")))
    assert ids(run.next_step()) == ["call-2-1", "c"]


def test_a_made_id_never_takes_one_that_the_turn_brings() -> None:
    assert ids(at_calls(call(""), call("call-1-1")).next_step()) == ["call-1-1-2", "call-1-1"]


def test_a_provider_id_that_was_given_is_not_replaced() -> None:
    run = at_calls(call("a").model_copy(update={"provider_id": "theirs"}), call("a").model_copy(update={"id": ""}))
    turn = run.messages[-1]
    assert isinstance(turn, AssistantMessage)
    assert turn.calls[0].provider_id == "theirs"


# -- order of calls -------------------------------------------------------------------------------------------------


def _asked() -> AgentRun:
    run = AgentRun.new("hi").max_turns(3)
    run.next_step()
    return run


def _answered(turn: ModelTurn) -> AgentRun:
    run = _asked()
    run.model_response(turn)
    return run


def _done() -> AgentRun:
    run = _answered(ModelTurn.text("hi"))
    run.next_step()
    return run


def _failed() -> AgentRun:
    run = AgentRun.new("hi").max_turns(0)
    with pytest.raises(MaxTurns):
        run.next_step()
    return run


STATES = {
    "preparing": lambda: AgentRun.new("hi").max_turns(3),
    "awaiting_model": _asked,
    "resolving_calls": lambda: _answered(calling(call(name="nope"))),
    "awaiting_advance": lambda: _answered(ModelTurn.text("hi")),
    "executing_tools": lambda: at_calls(call("a")),
    "done": _done,
    "failed": _failed,
}
CALLS = {
    "next_step": lambda run: run.next_step(),
    "model_response": lambda run: run.model_response(ModelTurn.text("x")),
    "resolve_invalid_tool_call": lambda run: run.resolve_invalid_tool_call(InvalidToolCallAction.skip()),
    "tool_results": lambda run: run.tool_results([result("a")]),
    "mark_dispatched": lambda run: run.mark_dispatched(["a"]),
    "withdraw_call": lambda run: run.withdraw_call(),
    "abandon": lambda run: run.abandon(ModelError("The model is away.")),
    "inject": lambda run: run.inject([user("more")]),
}
LEGAL = {
    "preparing": {"next_step", "inject", "abandon"},
    "awaiting_model": {"next_step", "model_response", "withdraw_call", "abandon"},
    "resolving_calls": {"resolve_invalid_tool_call"},
    "awaiting_advance": {"next_step"},
    "executing_tools": {"next_step", "tool_results", "mark_dispatched"},
    "done": {"next_step", "inject"},
    "failed": set(),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("state", STATES)
def test_a_call_out_of_order_is_refused_by_name_and_the_run_can_still_finish(state, name) -> None:
    """R-DR-11."""
    run = STATES[state]()
    assert run.state == state
    assert (state in ACCEPTS[name]) == (name in LEGAL[state])
    if name in LEGAL[state]:
        CALLS[name](run)
    else:
        error = refused(run, lambda: CALLS[name](run))
        assert error.data["call"] == name
        assert name in str(error)
    if run.state == "resolving_calls":
        run.resolve_invalid_tool_call(InvalidToolCallAction.repair("add"))
    if run.state != "failed":
        assert finish(run).result.messages


@pytest.mark.parametrize("state", STATES)
def test_reading_is_always_legal_and_changes_nothing(state) -> None:
    run = STATES[state]()
    before = run.model_dump_json()
    run.peek(), run.full_history(), run.usage, run.messages, run.entries_of("x"), run.last_entry_of("x"), run.machine()
    run.pending_invalid_tool_call(), run.can_continue, run.output_tool, run.dispatched, run.document()
    assert run.model_dump_json() == before
    run.append_entry("note", 1)
    assert run.state == state
    assert_closed(run.full_history())


@pytest.mark.parametrize("state", sorted(set(STATES) - {"preparing"}))
@pytest.mark.parametrize(
    "build",
    [
        lambda run: run.max_turns(9),
        lambda run: run.with_history([]),
        lambda run: run.max_invalid_tool_call_retries(9),
        lambda run: run.tool_choice(ToolChoice()),
        lambda run: run.output_schema({}),
        lambda run: run.keep_raw(),
    ],
)
def test_a_started_run_keeps_its_setup(state, build) -> None:
    run = STATES[state]()
    refused(run, lambda: build(run))


@pytest.mark.parametrize(
    "build",
    [
        lambda: AgentRun.new("x").max_turns(-1),
        lambda: AgentRun.new("x").max_invalid_tool_call_retries(-1),
        lambda: AgentRun.new("x").output_schema({}, max_retries=-1),
        lambda: AgentRun.new("x").with_history(["text"]),
        lambda: AgentRun.new([7]),
    ],
)
def test_an_impossible_setup_is_refused(build) -> None:
    with pytest.raises(InvalidParams) as caught:
        build()
    assert caught.value.data["field"]


# -- peek -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_peek_says_what_the_next_step_will_say_without_taking_it(state) -> None:
    run = STATES[state]()
    owed, turn = run.peek(), run.turn
    assert run.turn == turn
    if state == "resolving_calls":
        assert owed == NeedsResolution(run.pending_invalid_tool_call())
    elif state == "failed":
        assert owed == Failed(run.failure)
    else:
        assert owed == run.next_step()


def test_peek_foresees_that_the_budget_is_used_up() -> None:
    run = AgentRun.new("hi").max_turns(0)
    owed = run.peek()
    assert isinstance(owed, Failed)
    assert owed.failure.kind == "maxTurns"
    assert (run.state, run.failure) == ("preparing", None)
