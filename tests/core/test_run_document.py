"""Saved runs: strict about their form, the same after every reload, small without the conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter
from run_driving import RELOADS, TOOLS, at_calls, call, calling, finish, ids, reload_apart, result

from sojourn.core.errors import FormatUnsupported, MaxTurns, UnknownToolCall
from sojourn.core.messages import AssistantMessage, ToolChoice, Usage, parts, user
from sojourn.core.run import (
    RUN_FORMAT,
    AgentRun,
    CallModel,
    CallTools,
    Done,
    InvalidToolCallAction,
    ModelTurn,
    NeedsResolution,
    step_to_wire,
)


def rich() -> AgentRun:
    """A run that has something in as many fields as one state allows: it waits for results."""
    run = (
        AgentRun.new("go")
        .with_history([user("x"), AssistantMessage(content=(call("old"),)), result("old")])
        .max_turns(5)
        .max_invalid_tool_call_retries(2)
        .tool_choice(ToolChoice(mode="auto"))
        .output_schema({"type": "object"})
    )
    run.append_entry("note", {"a": [1, None]})
    run.next_step()
    run.model_response(calling(call("a"), call("b", "nope"), call("c")))
    run.resolve_invalid_tool_call(InvalidToolCallAction.skip("no"))
    step = run.next_step()
    assert isinstance(step, CallTools)
    run.tool_results([p.preresolved_result for p in step.calls[:1] if p.preresolved_result])
    return run


def resolving() -> AgentRun:
    run = AgentRun.new("go").max_turns(3)
    run.next_step()
    run.model_response(calling(call("a", "nope"), call("b", "nope")))
    run.resolve_invalid_tool_call(InvalidToolCallAction.repair("add"))
    return run


def answered() -> AgentRun:
    run = AgentRun.new("go").max_turns(3)
    run.next_step()
    run.model_response(calling(call("a")))
    return run


def done() -> AgentRun:
    run = AgentRun.new("go").max_turns(3)
    finish(run)
    return run


def failed() -> AgentRun:
    run = resolving()
    with pytest.raises(UnknownToolCall):
        run.resolve_invalid_tool_call(InvalidToolCallAction.fail())
    return run


def asked() -> AgentRun:
    run = AgentRun.new("go").max_turns(3)
    run.next_step()
    return run


RUNS: dict[str, Callable[[], AgentRun]] = {
    "preparing": lambda: AgentRun.new("go"),
    "awaiting_model": asked,
    "resolving_calls": resolving,
    "awaiting_advance": answered,
    "executing_tools": rich,
    "done": done,
    "failed": failed,
}


@pytest.mark.parametrize("make", RUNS)
@pytest.mark.parametrize("reload", RELOADS)
def test_a_reloaded_run_is_the_same_run(make: str, reload: Callable[[AgentRun], AgentRun]) -> None:
    run = RUNS[make]()
    again = reload(run)
    assert again == run
    assert again.model_dump_json() == run.model_dump_json()
    assert again.peek() == run.peek()
    assert again.state == make


@pytest.mark.parametrize("reload", RELOADS)
def test_a_reloaded_run_asks_for_the_same_calls_and_can_be_finished(reload: Callable[[AgentRun], AgentRun]) -> None:
    """R-DR-13."""
    run = at_calls(call("a"), call("b"))
    first = run.next_step()
    again = reload(run)
    assert again.next_step() == first
    assert again.next_step() == first
    assert finish(again).result.output == "fine"


@pytest.mark.parametrize("reload", RELOADS)
def test_a_run_saved_while_the_model_answers_asks_it_the_same_for_free(reload: Callable[[AgentRun], AgentRun]) -> None:
    run = asked()
    again = reload(run)
    step = again.next_step()
    assert step == run.next_step()
    assert isinstance(step, CallModel)
    assert (step.turn, again.turn) == (1, 1)


def script(run: AgentRun, between: Callable[[AgentRun], AgentRun]) -> tuple[AgentRun, Any]:
    """A run with everything in it: tools, an invalid call repaired, one retried, a cut turn, an injected message."""
    turns: Iterator[ModelTurn] = iter(
        [
            calling(call(""), call("b", "nope"), usage=(7, 1)),
            calling(call("c", "add", "{"), usage=(9, 2)),
            ModelTurn(content=(call("b"),), finish_reason="length", executable_tools=TOOLS),
            ModelTurn.text("one", usage=Usage(input_tokens=3, reasoning_tokens=2)),
            calling(call("call-1-1"), usage=(1, 1)),
            ModelTurn.text("two"),
        ]
    )
    actions = iter([InvalidToolCallAction.repair("mul"), InvalidToolCallAction.retry("again, please")])
    run, injected = between(run), False
    while True:
        step = run.next_step()
        run = between(run)
        match step:
            case CallModel():
                outcome = run.model_response(next(turns))
                run = between(run)
                while isinstance(outcome, NeedsResolution):
                    outcome = run.resolve_invalid_tool_call(next(actions))
                    run = between(run)
            case CallTools(calls):
                for pending in reversed(calls):
                    run.tool_results([pending.preresolved_result or result(pending.call.id, pending.call.name)])
                    run = between(run)
            case Done() if injected:
                return run, step
            case Done():
                run.inject([user("and then?")])
                run, injected = between(run), True


@pytest.mark.parametrize("reload", RELOADS)
def test_reloading_after_every_call_changes_nothing(reload: Callable[[AgentRun], AgentRun]) -> None:
    """R-DR-04."""

    def start() -> AgentRun:
        return AgentRun.new("go").with_history([user("x")]).max_turns(6).max_invalid_tool_call_retries(1)

    plain, plain_step = script(start(), lambda run: run)
    saved, saved_step = script(start(), reload)
    assert plain_step.result.output == "two"
    assert saved_step == plain_step
    assert saved_step.result.usage == Usage(input_tokens=20, output_tokens=4, reasoning_tokens=2)
    assert saved == plain


# -- strictness -----------------------------------------------------------------------------------------------------

LOADS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "load text": lambda document: AgentRun.load(json.dumps(document)),
    "load bytes": lambda document: AgentRun.load(json.dumps(document).encode()),
    "load data": AgentRun.load,
    "model_validate_json": lambda document: AgentRun.model_validate_json(json.dumps(document)),
    "model_validate": AgentRun.model_validate,
    "inside another model": lambda document: TypeAdapter(dict[str, AgentRun]).validate_python({"run": document}),
}


def refusal(document: dict[str, Any], load: str = "load data") -> FormatUnsupported:
    with pytest.raises(FormatUnsupported) as caught:
        LOADS[load](document)
    return caught.value


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("found", [RUN_FORMAT + 1, RUN_FORMAT - 1, 99, "1", None, True, 1.5])
def test_another_format_is_refused_with_both_numbers(found: Any, load: str) -> None:
    """R-DR-28."""
    error = refusal({**rich().document(), "format": found}, load)
    assert (error.data.get("found"), error.data["supported"]) == (found, RUN_FORMAT)
    assert repr(found) in str(error)
    assert f"format {RUN_FORMAT}" in str(error)


def test_another_format_is_refused_before_its_fields_are_looked_at() -> None:
    assert refusal({"format": 2, "anything": "else"}).data["found"] == 2


@pytest.mark.parametrize("load", LOADS)
def test_an_unknown_field_is_refused_by_name(load: str) -> None:
    """R-DR-29."""
    error = refusal({**rich().document(), "mood": "good"}, load)
    assert error.data == {"kind": "formatUnsupported", "field": "mood"}
    assert "'mood'" in str(error)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("field", sorted(AgentRun.new("x").document()))
def test_every_missing_field_is_refused_by_name(field: str, load: str) -> None:
    document = rich().document()
    del document[field]
    assert refusal(document, load).data["field"] == field


def places(value: Any, path: str = "") -> Iterator[tuple[Any, str, str]]:
    """Every object in a document with its path and one of its keys, messages included."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield value, path, key
            yield from places(item, f"{path}.{key}" if path else key)
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from places(item, f"{path}[{i}]")


FREE = ("arguments", "jsonSchema", "value", "data", "preresolved", "answers", "repaired", "skipped")


@pytest.mark.parametrize("make", RUNS)
def test_an_unknown_field_is_refused_wherever_it_stands(make: str) -> None:
    paths = {path for _, path, _ in places(RUNS[make]().document()) if not any(free in path for free in FREE)}
    assert len(paths) > 3
    for path in paths:
        document = RUNS[make]().document()
        next(owner for owner, at, _ in places(document) if at == path)["mood"] = 1
        assert refusal(document).data["field"] == (f"{path}.mood" if path else "mood")


def test_a_field_in_pythons_spelling_is_refused() -> None:
    document = rich().document()
    document["messages"][0]["message_id"] = "msg-1"
    assert refusal(document).data["field"] == "messages[0].message_id"


def test_a_field_of_the_wrong_kind_is_refused_by_name() -> None:
    for field, value in [("turn", -1), ("turn", "1"), ("maxTurns", 1.5), ("state", "dreaming"), ("messages", {})]:
        assert refusal({**rich().document(), field: value}).data["field"] == field
    document = rich().document()
    document["messages"][0]["content"][0]["text"] = 7
    error = refusal(document)
    assert error.data["field"] == "messages[0].content[0].text"
    assert "valid string" in str(error)


def test_a_missing_field_inside_a_message_is_refused_by_name() -> None:
    document = rich().document()
    del document["history"][1]["content"][0]["name"]
    error = refusal(document)
    assert error.data["field"] == "history[1].content[0].name"
    assert "lacks" in str(error)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '"run"', b"\xff"])
def test_what_is_no_document_at_all_is_refused(text: str | bytes) -> None:
    with pytest.raises(FormatUnsupported):
        AgentRun.load(text)


@pytest.mark.parametrize(
    ("make", "changes", "field"),
    [
        ("preparing", {"state": "done"}, "ending"),
        ("preparing", {"state": "failed"}, "failure"),
        ("preparing", {"state": "executing_tools"}, "round"),
        ("preparing", {"state": "awaiting_model"}, "turn"),
        ("preparing", {"turn": 2}, "turn"),
        ("awaiting_model", {"state": "awaiting_advance"}, "openTurn"),
        ("awaiting_model", {"messages": []}, "messages"),
        ("resolving_calls", {"state": "awaiting_advance"}, "openTurn"),
        ("awaiting_advance", {"state": "resolving_calls"}, "openTurn"),
        ("executing_tools", {"state": "preparing"}, "round"),
        ("executing_tools", {"messages": []}, "messages"),
        ("executing_tools", {"messages": rich().document()["messages"][:1]}, "messages"),
        ("done", {"state": "preparing"}, "ending"),
        ("done", {"messages": done().document()["messages"][:1]}, "messages"),
        ("failed", {"state": "preparing"}, "failure"),
    ],
)
def test_a_document_whose_parts_contradict_its_state_is_refused(make: str, changes: dict[str, Any], field: str) -> None:
    assert refusal({**RUNS[make]().document(), **changes}).data["field"] == field


@pytest.mark.parametrize(
    ("make", "field", "inner", "value", "named"),
    [
        ("executing_tools", "round", "answers", {"ghost": result("ghost").wire()}, "messages"),
        ("executing_tools", "round", "dispatched", ["ghost"], "messages"),
        ("executing_tools", "round", "calls", [], "messages"),
        ("resolving_calls", "openTurn", "position", 0, "openTurn"),
        ("resolving_calls", "openTurn", "position", 9, "openTurn"),
        ("awaiting_advance", "openTurn", "allowedTools", [], "openTurn"),
    ],
)
def test_a_round_or_turn_that_does_not_fit_is_refused(
    make: str, field: str, inner: str, value: Any, named: str
) -> None:
    document = RUNS[make]().document()
    document[field][inner] = value
    assert refusal(document).data["field"] == named


# -- the machine apart from the conversation ------------------------------------------------------------------------


def test_the_machine_does_not_grow_with_the_conversation() -> None:
    short, long = asked(), AgentRun.new("go").with_history([user("x" * 1000)] * 500).max_turns(3)
    long.next_step()
    assert len(long.machine()) == len(short.machine()) < 1024
    for _ in range(200):
        long.append_entry("note", "x" * 1000)
    assert len(long.machine()) == len(short.machine())


def test_the_machine_alone_says_which_calls_are_open() -> None:
    """R-DR-01."""
    machine = json.loads(rich().machine())
    assert set(machine) == set(rich().document()) - {"history", "messages", "modelCalls", "entries"}
    assert [made["id"] for made in machine["round"]["calls"]] == ["a", "b", "c"]
    assert list(machine["round"]["answers"]) == ["a"]


def test_a_machine_of_another_format_is_refused() -> None:
    run = rich()
    machine = json.dumps({**json.loads(run.machine()), "format": 7})
    with pytest.raises(FormatUnsupported, match="7"):
        AgentRun.restore(machine, history=[], messages=[], model_calls=[], entries=[])


def test_a_machine_with_another_conversation_is_refused() -> None:
    run = rich()
    with pytest.raises(FormatUnsupported):
        AgentRun.restore(run.machine(), history=run.history, messages=[user("go")], model_calls=[], entries=[])


def test_restoring_does_not_share_lists_with_its_caller() -> None:
    run = asked()
    again = reload_apart(run)
    again.messages.append(user("other"))
    assert len(run.messages) == 1


# -- steps on the wire ----------------------------------------------------------------------------------------------


def test_steps_have_the_form_of_the_protocol() -> None:
    run = AgentRun.new("go").with_history([user("x")]).max_turns(2)
    said = {"role": "user", "content": [{"type": "text", "text": "go"}]}
    assert step_to_wire(run.next_step()) == {
        "type": "callModel",
        "prompt": said,
        "history": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        "turn": 1,
    }
    run.model_response(calling(call("a", "add", {"x": None})))
    wire = step_to_wire(run.next_step())
    assert wire == {"type": "callTools", "calls": [{"call": {"id": "a", "name": "add", "arguments": {"x": None}}}]}
    run.tool_results([result("a")])
    run.next_step()
    run.model_response(ModelTurn.text("hi"))
    wire = step_to_wire(run.next_step())
    assert wire["type"] == "done"
    assert (wire["result"]["output"], wire["result"]["messages"][0]) == ("hi", said)
    assert [made["index"] for made in wire["result"]["modelCalls"]] == [0, 1]
    json.dumps(wire)


def test_preresolved_results_and_failures_have_the_form_of_the_protocol() -> None:
    wire = step_to_wire(rich().next_step())
    assert ids(rich().next_step()) == ["b", "c"]
    assert wire["calls"][0]["preresolvedResult"] == {
        "role": "toolResult",
        "callId": "b",
        "toolName": "nope",
        "content": [{"type": "text", "text": "no"}],
        "isError": True,
        "pending": False,
    }
    run = AgentRun.new("go").max_turns(0)
    with pytest.raises(MaxTurns):
        run.next_step()
    owed = run.peek()
    assert owed is not None
    wire = step_to_wire(owed)
    assert (wire["type"], wire["error"]["kind"], set(wire["error"])) == ("failed", "maxTurns", {"kind", "message"})


def test_a_run_is_a_plain_value() -> None:
    assert issubclass(AgentRun, BaseModel)
    assert AgentRun.new("a") == AgentRun.new("a") != AgentRun.new("b")
    assert AgentRun.new("a") != "a"
    assert AgentRun.model_validate(AgentRun.new("a")) == AgentRun.new("a")
    with pytest.raises(TypeError):
        hash(AgentRun.new("a"))


def test_a_turn_can_be_given_in_wire_form() -> None:
    turn = ModelTurn.model_validate(
        {"content": "hi", "finishReason": "content_filter", "executableTools": ["b", "a"], "allowedTools": []},
        by_name=False,
    )
    assert (turn.content, turn.finish_reason) == (parts("hi"), "contentFilter")
    assert (turn.executable_tools, turn.allowed_tools) == (("b", "a"), ())
