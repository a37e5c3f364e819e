"""The protocol page is the code's own: up to date, complete, and its schema judges real messages rightly."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from pydantic import TypeAdapter
from shared_inputs import ROOT

import sojourn.methods  # noqa: F401 (fills METHODS)
from sojourn.core import errors
from sojourn.core.agent import Agent, AgentConfig, RunOutcome, Usage
from sojourn.core.approvals import Approval, Decision
from sojourn.core.events import (
    EVENT,
    AgentEnd,
    AgentStart,
    AgentUpdated,
    ApprovalRequested,
    ContextBudget,
    MessageDelta,
    MessageEnd,
    Nested,
    ToolExecEnd,
    ToolResult,
)
from sojourn.core.messages import AssistantMessage, TextPart, ToolCallPart, user
from sojourn.methods._docs import error_table, event_models, protocol_schema
from sojourn.methods._markdown import protocol_markdown
from sojourn.methods._table import METHODS
from sojourn.methods._wire import NOTIFICATIONS, REQUESTS

PAGE = ROOT / "docs/protocol.md"
NOW = "2026-01-02T03:04:05.678Z"
AGENT = Agent(agent_id="a", created_at=NOW, updated_at=NOW)


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return protocol_schema()


def judge(schema: dict[str, Any], place: dict[str, Any], instance: Any) -> None:
    Draft202012Validator({**place, "$defs": schema["$defs"]}).validate(instance)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == protocol_markdown(), "run `make docs`"


def test_the_script_says_that_a_page_is_stale_and_writes_it_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = runpy.run_path(str(ROOT / "scripts/generate_docs.py"))
    main = script["main"]
    main.__globals__["DOCS"] = tmp_path / "docs"
    assert main(["--check"]) == 1
    assert "docs/protocol.md is not up to date" in capsys.readouterr().err
    assert main([]) == 0
    assert main(["--check"]) == 0
    assert (tmp_path / "docs/protocol.md").read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
    assert main(["--chekc"]) == 2
    assert "'--chekc'" in capsys.readouterr().err


def test_every_method_notification_request_event_and_error_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    headings = set(re.findall(r"^#### `(.+)`$", page, re.MULTILINE))
    assert headings == {*METHODS, *NOTIFICATIONS, *REQUESTS}
    for event in event_models():
        assert f"\n| `{event.model_fields['type'].default}` |" in page
    for error in error_table():
        assert f"\n| {error['code']} | `{error['kind']}` |" in page


def test_every_link_on_the_page_leads_somewhere() -> None:
    page = PAGE.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) <= anchors


def test_everything_has_a_description(schema: dict[str, Any]) -> None:
    for place in ("methods", "notifications", "requests", "events"):
        for name, entry in schema[place].items():
            assert len(entry["description"]) > 10, name


def test_every_deliberate_error_is_in_the_table_once() -> None:
    table = {(error["code"], error["kind"]) for error in error_table()}
    assert len(table) == len(error_table())
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.SojournError) and kind is not errors.SojournError:
            assert (kind.code, kind.kind) in table, name
    assert {-32700, -32600, -32601, -32602, -32603, -32002, -32800} <= {code for code, _ in table}


def test_the_table_says_what_an_errors_data_holds() -> None:
    data = {error["kind"]: error["data"] for error in error_table()}
    assert data["alreadyDecided"] == ["by", "at", "decision"]
    assert data["limitReached"] == ["limit", "value", "max"]
    assert data["formatUnsupported"] == ["found", "supported", "field"]
    assert data["invalidParams"] == ["field"]
    assert data["agentNotFound"] == []


def test_the_schema_is_json_schema_and_every_reference_in_it_is_there(schema: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema
    refs = set(re.findall(r'"\$ref": "#/\$defs/([^"]+)"', json.dumps(schema)))
    assert refs == set(schema["$defs"])
    assert not [name for name in schema["$defs"] if "__" in name], "two shapes share a name"


def test_the_events_are_in_the_order_of_a_pass(schema: dict[str, Any]) -> None:
    order = list(schema["events"])
    assert (order[0], order[-1]) == ("agentStart", "agentEnd")
    assert order.index("messageStart") < order.index("messageDelta") < order.index("messageEnd")


VALID_PARAMS: list[tuple[str, Any]] = [
    ("agent/prompt", {"agentId": "a", "content": "hi", "requestId": "r"}),
    ("agent/prompt", {"agentId": "a", "content": [{"type": "text", "text": "hi"}], "_meta": {"x": 1}}),
    ("agent/update", {"agentId": "a", "title": None, "config": {"model": None}}),
    ("run/create", {"prompt": {"role": "user", "content": [{"type": "text", "text": "hi"}]}, "toolChoice": "none"}),
    ("run/step", {"runId": "r", "modelResponse": {"content": "hi", "executableTools": [], "allowedTools": []}}),
    ("run/appendEntry", {"runId": "r", "kind": "k", "value": None}),
    ("agent/list", {}),
]
INVALID_PARAMS: list[tuple[str, Any]] = [
    ("agent/prompt", {"agentId": "a"}),
    ("agent/prompt", {"agentId": "../a", "content": "hi"}),
    ("agent/prompt", {"agentId": "a", "content": [{"text": "hi"}]}),
    ("agent/prompt", {"agentId": "a", "content": "hi", "text": "hi"}),
    ("agent/list", {"limit": 0}),
    ("agent/get", {"agentId": "a", "requestId": "r"}),
    ("run/step", {"runId": "r", "modelResponse": {"content": [{"type": "video"}]}}),
]


@pytest.mark.parametrize(("name", "params"), VALID_PARAMS)
def test_the_schema_takes_what_a_method_takes(name: str, params: Any, schema: dict[str, Any]) -> None:
    judge(schema, schema["methods"][name]["params"], params)
    METHODS[name].params.model_validate(params, by_name=False)


@pytest.mark.parametrize(("name", "params"), INVALID_PARAMS)
def test_the_schema_refuses_what_a_method_refuses(name: str, params: Any, schema: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        judge(schema, schema["methods"][name]["params"], params)
    with pytest.raises(ValueError, match="validation error"):
        METHODS[name].params.model_validate(params, by_name=False)


APPROVAL = Approval(
    approval_id="p", agent_id="a", run_id="r", call_id="c", tool_name="t", args={}, args_sha256="0", since=NOW
)
TALK = AssistantMessage(content=(TextPart(text="x"), ToolCallPart(id="c", name="t", arguments="{")), usage=Usage())
EVENTS = [
    AgentStart(cause="prompt"),
    ContextBudget(used_tokens=1, window_tokens=None, reserved_tokens=0),
    MessageEnd(message=TALK),
    MessageEnd(message=user("x", message_id="m", at=NOW)),
    ApprovalRequested(approval=APPROVAL),
    AgentUpdated(config=AgentConfig(max_turns=1)),
    Nested(tool_call_id="c", event=MessageDelta(message_id="m", part=0, kind="text", offset=0, text="x")),
    ToolExecEnd(tool_call_id="c", tool_name="t", result=ToolResult(content=(TextPart(text="x"),))),
    AgentEnd(reason="done", messages=(TALK,)),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.type)
def test_what_the_daemon_says_is_what_the_schema_says(event: Any, schema: dict[str, Any]) -> None:
    said = {"agentId": "a", "seq": 1, "at": NOW, "event": event.wire()}
    judge(schema, schema["notifications"]["agent/event"]["params"], said)
    assert EVENT.validate_python(event.wire(), by_name=False) == event


def test_a_result_with_a_field_too_few_is_not_what_the_schema_says(schema: dict[str, Any]) -> None:
    place = schema["methods"]["agent/get"]["result"]
    judge(schema, place, AGENT.wire())
    for field in AGENT.wire():
        with pytest.raises(ValidationError, match="required property"):
            judge(schema, place, {key: value for key, value in AGENT.wire().items() if key != field})


def test_a_prompt_answers_an_outcome_or_what_accepted_it(schema: dict[str, Any]) -> None:
    outcome = RunOutcome(
        agent_id="a", run_id="r", reason="done", content=(TextPart(text="x"),), first_seq=1, last_seq=2
    )
    judge(schema, schema["methods"]["agent/prompt"]["result"], outcome.wire())
    judge(schema, schema["methods"]["agent/prompt"]["accepted"], {"runId": "r"})


def test_a_decision_is_shown_with_the_approval(schema: dict[str, Any]) -> None:
    decided = APPROVAL.model_copy(update={"decision": Decision(decision="deny", by="me", at=NOW)})
    judge(schema, schema["methods"]["approval/decide"]["result"], {"approval": decided.wire()})


def test_the_examples_of_the_page_are_json_that_a_method_takes() -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    shown += [json.loads(line) for line in re.findall(r"'(\{\"jsonrpc\".*?\})'", page)]
    assert len(shown) >= 3
    for message in shown:
        method = METHODS[message["method"]]
        TypeAdapter(method.params).validate_python(message.get("params", {}), by_name=False)
