"""Structured output: a run that was asked for JSON of a schema gives it, asks again, or says that it could not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from run_driving import RELOADS, TOOLS, assert_closed, call, ids, reload_json, result, texts

from sojourn.core.errors import InvalidParams
from sojourn.core.messages import AssistantMessage, ReasoningPart, TextPart, ToolCallPart, parts, user
from sojourn.core.run import (
    AgentRun,
    CallModel,
    Continue,
    Done,
    InvalidToolCallAction,
    ModelTurn,
    NeedsResolution,
    step_to_wire,
)

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def asked(*, max_turns: int = 4, max_retries: int = 1, schema: dict[str, Any] = SCHEMA) -> AgentRun:
    run = AgentRun.new("go").max_turns(max_turns).output_schema(schema, max_retries=max_retries)
    run.next_step()
    return run


def answering(run: AgentRun, *content: Any, finish_reason: str = "stop") -> Any:
    """What the run owes after the model said `content`."""
    turn = ModelTurn.model_validate({"content": content, "finish_reason": finish_reason, "executable_tools": TOOLS})
    assert run.model_response(turn) == Continue()
    return run.next_step()


def final(arguments: dict[str, Any] | str, id: str = "f") -> ToolCallPart:
    return ToolCallPart(id=id, name="final_result", arguments=arguments)


@pytest.mark.parametrize("reload", [lambda run: run, *RELOADS])
def test_the_output_tool_finishes_the_run_with_compact_json(reload: Callable[[AgentRun], AgentRun]) -> None:
    run = reload(asked())
    thought = ReasoningPart(text="so", provider="p", opaque="sig")
    step = answering(run, thought, TextPart(text="Here:"), call("a"), final({"n": 3}))
    assert isinstance(step, Done)
    assert (step.result.output, step.result.best_effort) == ('{"n":3}', False)
    assert step.result.content == (thought, TextPart(text='{"n":3}'))
    recorded = run.messages[-1]
    assert isinstance(recorded, AssistantMessage)
    assert recorded.calls == ()
    assert len(run.messages) == 2
    assert reload(run).next_step() == step
    assert "bestEffort" not in step_to_wire(step)["result"]


def test_plain_text_that_is_the_json_is_an_output() -> None:
    step = answering(asked(), TextPart(text=' {"n": 3}\n'))
    assert isinstance(step, Done)
    assert (step.result.output, step.result.best_effort) == (' {"n": 3}\n', False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("three", "not JSON"),
        ("", "not JSON"),
        ('```json\n{"n": 3}\n```', "not JSON"),
        ('{"n": NaN}', "not JSON"),
        ('{"n": "3"}', "$.n"),
        ("{}", "'n' is a required property"),
    ],
)
def test_text_that_is_not_the_output_is_asked_for_again(text: str, said: str) -> None:
    run = asked()
    step = answering(run, TextPart(text=text))
    assert isinstance(step, CallModel)
    assert step.turn == 2
    assert said in texts([step.prompt])[0]
    assert "final_result" in texts([step.prompt])[0]
    step = answering(run, final({"n": 1}))
    assert isinstance(step, Done)
    assert step.result.output == '{"n":1}'
    assert_closed(run.messages)


def test_invalid_arguments_are_answered_with_the_error_and_siblings_do_not_run() -> None:
    run = asked()
    step = answering(run, call("a"), final({"n": "x"}), call("b"))
    assert isinstance(step, CallModel)
    assert_closed(run.messages)
    answers = texts(run.messages[2:])
    assert "'x' is not of type 'integer'" in answers[1]
    assert answers[0] == answers[2] == "Not run, because the final output was given in the same turn."
    step = answering(reload_json(run), final({"n": 1}, "f2"))
    assert isinstance(step, Done)


@pytest.mark.parametrize(
    ("content", "output"), [(final({"n": "x"}), '{"n":"x"}'), (final("{torn"), "{torn"), (TextPart(text="x"), "x")]
)
@pytest.mark.parametrize(("max_turns", "max_retries"), [(1, 5), (4, 0)])
def test_with_no_try_left_the_best_effort_is_given_and_marked(
    content: Any, output: str, max_turns: int, max_retries: int
) -> None:
    run = asked(max_turns=max_turns, max_retries=max_retries)
    step = answering(run, content)
    assert isinstance(step, Done)
    assert (step.result.output, step.result.best_effort) == (output, True)
    assert_closed(run.messages)
    for reload in RELOADS:
        assert reload(run).next_step() == step
    assert step_to_wire(step)["result"]["bestEffort"] is True


def test_the_model_is_asked_again_as_often_as_allowed_and_no_more() -> None:
    run, turns = asked(max_turns=9, max_retries=2), 1
    step = answering(run, final({}))
    while isinstance(step, CallModel):
        turns += 1
        step = (
            answering(reload_json(run) if turns == 2 else run, final({})) if turns != 2 else answering(run, final({}))
        )
    assert isinstance(step, Done)
    assert (turns, run.turn, step.result.best_effort) == (3, 3, True)


@pytest.mark.parametrize("reload", RELOADS)
def test_used_retries_are_counted_over_a_reload(reload: Callable[[AgentRun], AgentRun]) -> None:
    run = asked(max_retries=1)
    answering(run, final({}))
    step = answering(reload(run), final({}))
    assert isinstance(step, Done)
    assert step.result.best_effort


def test_malformed_arguments_of_the_output_tool_are_asked_for_again() -> None:
    run = asked()
    step = answering(run, final('{"n": '))
    assert isinstance(step, CallModel)
    assert "not a JSON object" in texts([step.prompt])[0]


def test_an_output_that_was_cut_is_not_taken_even_when_it_is_valid() -> None:
    run = asked(max_retries=1)
    step = answering(run, final({"n": 1}), finish_reason="length")
    assert isinstance(step, CallModel)
    assert "cut" in texts([step.prompt])[0]
    step = answering(run, final({"n": 1}), finish_reason="length")
    assert isinstance(step, Done)
    assert step.result.best_effort


def test_other_tools_run_as_usual_before_the_output() -> None:
    run = asked()
    assert ids(answering(run, call("a"))) == ["a"]
    run.tool_results([result("a")])
    run.next_step()
    assert isinstance(answering(run, final({"n": 1})), Done)


def test_an_unknown_sibling_is_asked_about_before_the_output_is_taken() -> None:
    run = asked()
    outcome = run.model_response(ModelTurn.calls(final({"n": 1}), call("b", "nope"), tools=TOOLS))
    assert isinstance(outcome, NeedsResolution)
    run.resolve_invalid_tool_call(InvalidToolCallAction.skip("no"))
    step = run.next_step()
    assert isinstance(step, Done)
    assert (step.result.output, step.result.best_effort) == ('{"n":1}', False)


def test_a_call_can_be_repaired_to_the_output_tool() -> None:
    run = asked()
    run.model_response(ModelTurn.calls(call("a", "finalResult", {"n": 1}), tools=TOOLS))
    run.resolve_invalid_tool_call(InvalidToolCallAction.repair("final_result"))
    step = run.next_step()
    assert isinstance(step, Done)
    assert step.result.output == '{"n":1}'


@pytest.mark.parametrize("reload", [lambda run: run, *RELOADS])
def test_a_run_that_goes_on_after_its_output_treats_ids_alike_with_and_without_a_reload(
    reload: Callable[[AgentRun], AgentRun],
) -> None:
    run = asked()
    answering(run, final({"n": 1}, "f"))
    run = reload(run)
    run.inject([user("again")])
    run.next_step()
    run.model_response(ModelTurn.calls(call("f"), tools=TOOLS))
    assert ids(run.next_step()) == ["f"]


@pytest.mark.parametrize(
    ("taken", "name"),
    [
        ((), "final_result"),
        (("final_result",), "final_result-2"),
        (("final_result", "final_result-2"), "final_result-3"),
    ],
)
def test_the_output_tools_name_is_made_unique(taken: tuple[str, ...], name: str) -> None:
    assert AgentRun.new("go").output_schema(SCHEMA, taken=taken).output_tool == name
    assert AgentRun.new("go").output_tool is None


REMOTE = {"$ref": "http://127.0.0.1:1/never-fetched.json"}


@pytest.mark.parametrize(
    "schema", [{"type": "thing"}, {"required": "n"}, {"maximum": float("nan")}, {"pattern": "("}, REMOTE]
)
def test_a_schema_that_is_none_is_refused(schema: dict[str, Any]) -> None:
    run = AgentRun.new("go")
    with pytest.raises(InvalidParams):
        run.output_schema(schema)
    assert run.output is None


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/none"},
    ],
)
def test_a_schema_that_cannot_be_applied_ends_as_best_effort(schema: dict[str, Any]) -> None:
    run = asked(schema=schema, max_retries=0)
    step = answering(run, final({"n": "x"}))
    assert isinstance(step, Done)
    assert step.result.best_effort


def test_output_need_not_be_an_object() -> None:
    step = answering(asked(schema={"type": "array", "items": {"type": "integer"}}), *parts("[1, 2]"))
    assert isinstance(step, Done)
    assert not step.result.best_effort
