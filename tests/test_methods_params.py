"""What a method does not take: each wrong field is named as it stands on the wire, and the input is not echoed."""

from __future__ import annotations

import base64
from typing import Any

import pytest

import sojourn.methods  # noqa: F401 (fills METHODS)
from sojourn.core.errors import InvalidParams
from sojourn.methods._parse import from_wire
from sojourn.methods._table import METHODS
from sojourn.methods._wire import REQUESTS, ApprovalAnswer, ExecuteResult

A = {"agentId": "a"}
R = {"runId": "r"}


def refusal(name: str, data: Any) -> InvalidParams:
    with pytest.raises(InvalidParams) as refused:
        from_wire(METHODS[name].params, data, of=name)
    return refused.value


TEXT = {"type": "text", "text": "x"}
TOOL = {"name": "t", "description": "d", "inputSchema": {"type": "object"}}
PNG = base64.b64encode(b"\x89PNG").decode()

WRONG: list[tuple[str, Any, str, str]] = [
    # left out, or nothing at all
    ("agent/prompt", None, "agentId", "needs 'agentId'"),
    ("agent/prompt", {}, "agentId", "needs 'agentId'"),
    ("agent/prompt", A, "content", "needs 'content'"),
    ("agent/prompt", [], "", "must be an object"),
    ("agent/prompt", "a", "", "must be an object"),
    ("run/step", {"toolResults": []}, "runId", "needs 'runId'"),
    ("run/appendEntry", {**R, "kind": "k"}, "value", "needs 'value'"),
    ("tool/register", {}, "tools", "needs 'tools'"),
    # unknown fields come before what is missing
    (
        "agent/prompt",
        {**A, "text": "hi"},
        "content",
        "needs 'content', and knows no field 'text'; it takes requestId, agentId, content,",
    ),
    ("agent/prompt", {"agent_id": "a", "content": "hi"}, "agentId", "needs 'agentId', and knows no field 'agent_id'"),
    ("agent/list", {"Limit": 1}, "Limit", "knows no field 'Limit'"),
    ("model/list", {"x": 1}, "x", "knows no field 'x'; it takes none"),
    (
        "agent/create",
        {"config": {"limits": {"tokns": 1}}},
        "config.limits.tokns",
        "'config.limits.tokns'; it takes tokens,",
    ),
    ("agent/create", {"config": {"mcpServers": {"a": {"x": 1}}}}, "config.mcpServers.a.x", "'config.mcpServers.a.x'."),
    ("agent/get", {**A, "requestId": "r"}, "requestId", "knows no field 'requestId'"),
    ("agent/create", {"config": {"max_turns": 1}}, "config.max_turns", "knows no field 'config.max_turns'"),
    ("agent/create", {"config": {"limits": {"turns": 1}}}, "config.limits.turns", "knows no field"),
    ("agent/prompt", {**A, "content": [{**TEXT, "foo": 1}]}, "content[0].foo", "knows no field 'content[0].foo'"),
    ("agent/prompt", {**A, "content": [TEXT, {**TEXT, "text": {"text": 1}}]}, "content[1].text", "a valid string"),
    ("agent/prompt", {**A, "content": "x", "a" * 900: 1}, "a" * 900, "knows no field"),
    # wrong types, none of them taken for something else
    ("agent/prompt", {"agentId": 1, "content": "x"}, "agentId", "a valid string"),
    ("agent/prompt", {**A, "content": 1}, "content", "a string or a list of parts"),
    ("agent/prompt", {**A, "content": None}, "content", "a string or a list of parts"),
    ("agent/prompt", {**A, "content": ["x"]}, "content[0]", "must be an object"),
    ("agent/prompt", {**A, "content": "x", "wait": "yes"}, "wait", "a valid boolean"),
    ("agent/prompt", {**A, "content": "x", "wait": 0}, "wait", "a valid boolean"),
    ("agent/list", {"limit": "5"}, "limit", "a valid integer"),
    ("agent/list", {"limit": True}, "limit", "a valid integer"),
    ("agent/list", {"limit": 1.5}, "limit", "a valid integer"),
    ("agent/list", {"labels": {"x": 1}}, "labels.x", "a valid string"),
    ("agent/attach", {**A, "afterSeq": "0"}, "afterSeq", "a valid integer"),
    ("agent/create", {"config": {"maxTurns": "5"}}, "config.maxTurns", "a valid integer"),
    ("agent/create", {"config": {"maxTurns": 2**63}}, "config.maxTurns", "less than or equal to 1000000"),
    ("agent/events", {**A, "afterSeq": 2**63}, "afterSeq", "less than or equal to"),
    ("agent/create", {"config": {"pauseOnPending": 1}}, "config.pauseOnPending", "a valid boolean"),
    ("agent/create", {"config": {"tools": [1]}}, "config.tools[0]", "a valid string"),
    ("agent/create", {"_meta": 1}, "_meta", "must be an object"),
    ("agent/create", {"requestId": 1}, "requestId", "a valid string"),
    ("agent/resume", {**A, "run": "{}"}, "run", "must be an object"),
    ("run/import", {"run": []}, "run", "must be an object"),
    ("run/step", {**R, "revision": "1"}, "revision", "a valid integer"),
    (
        "run/step",
        {**R, "modelResponse": {"content": [{"type": "toolCall", "id": "i", "name": "n", "arguments": 1}]}},
        "modelResponse.content[0].arguments",
        "must be",
    ),
    (
        "run/step",
        {**R, "toolResults": [{"callId": "c", "content": "x", "isError": "no"}]},
        "toolResults[0].isError",
        "boolean",
    ),
    # values that are out of range
    ("agent/list", {"limit": 0}, "limit", "greater than or equal to 1"),
    ("agent/list", {"limit": 1001}, "limit", "less than or equal to 1000"),
    ("agent/list", {"cursor": ""}, "cursor", "at least 1 character"),
    ("agent/events", {**A, "afterSeq": -1}, "afterSeq", "greater than or equal to 0"),
    ("run/create", {"prompt": "x", "maxTurns": -1}, "maxTurns", "greater than or equal to 0"),
    ("run/create", {"prompt": "x", "maxTurns": 10**30}, "maxTurns", "64 bits"),
    ("agent/update", {**A, "title": ""}, "title", "at least 1 character"),
    ("agent/update", {**A, "labels": {"": "x"}}, "labels.", "at least 1 character"),
    ("inbox/reject", {**A, "callId": "c", "error": ""}, "error", "at least 1 character"),
    ("agent/create", {"requestId": ""}, "requestId", "at least 1 character"),
    ("agent/create", {"requestId": "x" * 201}, "requestId", "at most 200 characters"),
    ("agent/create", {"config": {"limits": {"cost": float("nan")}}}, "config.limits.cost", "must be finite"),
    ("tool/unregister", {"names": []}, "names", "at least 1 item"),
    # one of a few words
    ("agent/list", {"state": "busy"}, "state", "must be 'idle', 'running', 'waiting', 'paused' or 'interrupted'"),
    ("agent/prompt", {**A, "content": "x", "ifBusy": "wait"}, "ifBusy", "must be 'reject' or 'queue'"),
    ("agent/messages", {**A, "order": "up"}, "order", "must be 'asc' or 'desc'"),
    (
        "agent/create",
        {"config": {"approvals": {"x": "maybe"}}},
        "config.approvals.x",
        "must be 'allow', 'ask' or 'deny'",
    ),
    ("approval/decide", {"approvalId": "p", "decision": "closed"}, "decision", "must be 'approve', 'deny', 'edit',"),
    ("run/list", {"state": "running"}, "state", "must be 'preparing',"),
    ("run/step", {**R, "resolution": {"action": "ignore"}}, "resolution.action", "must be 'fail', 'retry',"),
    ("server/shutdown", {"mode": "later"}, "mode", "must be 'drain' or 'now'"),
    # content
    ("agent/prompt", {**A, "content": ""}, "content", "at least one part that is not empty"),
    ("agent/prompt", {**A, "content": []}, "content", "at least one part that is not empty"),
    ("inbox/push", {**A, "content": [{"type": "text", "text": ""}]}, "content", "at least one part that is not empty"),
    ("run/create", {"prompt": ""}, "prompt", "at least one part that is not empty"),
    ("agent/prompt", {**A, "content": [{}]}, "content[0].type", "must be given"),
    ("agent/prompt", {**A, "content": [{"type": "video"}]}, "content[0].type", "one of 'text', 'image', 'resource'"),
    ("agent/prompt", {**A, "content": [{"type": "reasoning", "text": "x"}]}, "content[0].type", "one of 'text',"),
    (
        "agent/prompt",
        {**A, "content": [{"type": "image", "mimeType": "image/png"}]},
        "content",
        "data (base64) or a uri",
    ),
    (
        "agent/prompt",
        {**A, "content": [{"type": "image", "mimeType": "image/png", "data": PNG, "uri": "file:///x"}]},
        "content",
        "and not both",
    ),
    ("inbox/push", {**A, "content": [{"type": "image", "mimeType": "image/png", "data": "%%"}]}, "content", "base64"),
    # messages
    ("agent/replaceMessages", {**A, "messages": [{"role": "robot"}]}, "messages[0].role", "one of 'system', 'user'"),
    ("agent/replaceMessages", {**A, "messages": [{"role": "user"}]}, "messages[0].content", "needs"),
    (
        "agent/replaceMessages",
        {**A, "messages": [{"role": "user", "content": "x"}, {"role": "toolResult", "toolName": "t", "content": "x"}]},
        "messages[1].callId",
        "needs",
    ),
    ("run/create", {"prompt": [{"type": "text", "text": 2}]}, "prompt[0].text", "a valid string"),
    ("run/create", {"prompt": {"role": "user", "content": [{"type": "text"}]}}, "prompt.content[0].text", "needs"),
    ("run/create", {"prompt": "x", "history": ["x"]}, "history[0]", "must be"),
    # ids never become a path or anything else
    *(
        ("agent/create", {"agentId": bad}, "agentId", "pattern")
        for bad in (
            "../../x",
            "/abs",
            "a/b",
            "..",
            ".hidden",
            "",
            "x" * 129,
            "x" * 5000,
            "a\0b",
            "Ａ",
            "a\n",
            "-a",
            "a b",
        )
    ),
    ("agent/get", {"agentId": "../x"}, "agentId", "pattern"),
    ("approval/list", {"agentId": "a/b"}, "agentId", "pattern"),
    ("run/get", {"runId": ""}, "runId", "at least 1 character"),
    ("run/get", {"runId": "x" * 301}, "runId", "at most 300 characters"),
    # decisions
    ("approval/decide", {"approvalId": "p", "decision": "edit"}, "arguments", "'edit'; it needs 'arguments'"),
    ("approval/decide", {"approvalId": "p", "decision": "answer"}, "content", "'answer'; it needs 'content'"),
    (
        "approval/decide",
        {"approvalId": "p", "decision": "approve", "arguments": {}},
        "arguments",
        "belong to 'edit' only",
    ),
    ("approval/decide", {"approvalId": "p", "decision": "deny", "content": "x"}, "content", "belongs to 'answer' only"),
    ("approval/decide", {"decision": "edit"}, "approvalId", "needs 'approvalId'"),
    # steps
    ("run/step", {**R, "toolResults": [], "resolution": {"action": "fail"}}, "resolution", "not with toolResults and"),
    ("run/step", {**R, "resolution": {"action": "repair"}}, "resolution.toolName", "needs 'toolName'"),
    *(
        ("run/step", {**R, "modelResponse": {"content": [], "usage": {name: -1}}}, f"modelResponse.usage.{name}", "0")
        for name in ("inputTokens", "outputTokens", "cachedInputTokens", "reasoningTokens", "cost")
    ),
    # schemas and choices
    (
        "run/create",
        {"prompt": "x", "outputSchema": {"type": "nonsense"}},
        "outputSchema",
        "not a valid JSON Schema at type",
    ),
    ("run/create", {"prompt": "x", "outputSchema": []}, "outputSchema", "must be an object"),
    (
        "run/create",
        {"prompt": "x", "toolChoice": "maybe"},
        "toolChoice",
        "must be 'auto', 'none', 'required' or 'tool'",
    ),
    ("run/create", {"prompt": "x", "toolChoice": "tool"}, "toolChoice", "belongs to mode 'tool'"),
    (
        "run/create",
        {"prompt": "x", "toolChoice": {"mode": "auto", "name": "t"}},
        "toolChoice",
        "belongs to mode 'tool'",
    ),
    ("tool/register", {"tools": []}, "tools", "at least 1 item"),
    ("tool/register", {"tools": [TOOL, {**TOOL, "name": "a b"}]}, "tools[1].name", "pattern"),
    ("tool/register", {"tools": [{**TOOL, "name": "x" * 65}]}, "tools[0].name", "pattern"),
    ("tool/register", {"tools": [{**TOOL, "inputSchema": {}}]}, "tools[0].inputSchema", '"type": "object"'),
    (
        "tool/register",
        {"tools": [{**TOOL, "inputSchema": {"type": "string"}}]},
        "tools[0].inputSchema",
        '"type": "object"',
    ),
    (
        "tool/register",
        {"tools": [{**TOOL, "inputSchema": {"type": "object", "properties": 5}}]},
        "tools[0].inputSchema",
        "not a valid JSON Schema at properties",
    ),
    (
        "tool/register",
        {"tools": [{**TOOL, "approval": "never"}]},
        "tools[0].approval",
        "must be 'allow', 'ask' or 'deny'",
    ),
]


@pytest.mark.parametrize(("name", "data", "field", "said"), WRONG)
def test_what_is_wrong_is_named_in_wire_form(name: str, data: Any, field: str, said: str) -> None:
    error = refusal(name, data)
    assert error.data == {"kind": "invalidParams", "field": field}
    assert said in error.message
    assert error.message.endswith(".")
    assert len(error.message) < 500


SECRET = "s3cret-value"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("agent/get", {"agentId": f"{SECRET}/"}),
        ("agent/prompt", {**A, "content": [{"type": SECRET}]}),
        ("agent/prompt", {**A, "content": "x", "ifBusy": SECRET}),
        ("agent/list", {"limit": SECRET}),
        ("inbox/push", {**A, "content": [{"type": "image", "mimeType": "a", "data": f"%{SECRET}"}]}),
    ],
)
def test_a_refusal_does_not_echo_the_input(name: str, data: Any) -> None:
    assert SECRET not in str(refusal(name, data))


@pytest.mark.parametrize("name", ["agent/list", "model/list", "server/status", "agent/create", "approval/list"])
@pytest.mark.parametrize("data", [None, {}])
def test_params_may_be_left_out_where_nothing_is_required(name: str, data: Any) -> None:
    assert from_wire(METHODS[name].params, data, of=name) == METHODS[name].params()


def test_meta_is_ignored_whatever_is_in_it() -> None:
    params = from_wire(METHODS["agent/get"].params, {**A, "_meta": {"jsonrpc": "1.0", "deep": [{}]}}, of="agent/get")
    assert params.agent_id == "a"


def test_lone_surrogates_become_the_replacement_character() -> None:
    params = from_wire(METHODS["agent/prompt"].params, {**A, "content": "a\ud83d"}, of="agent/prompt")
    assert params.content[0].text == "a\ufffd"


@pytest.mark.parametrize(
    "image",
    [
        {"type": "image", "mimeType": "image/png", "data": PNG},
        {"type": "image", "mimeType": "image/png", "uri": "file:///x.png"},
    ],
)
def test_an_image_alone_is_something_to_say(image: dict[str, Any]) -> None:
    params = from_wire(METHODS["agent/prompt"].params, {**A, "content": [image]}, of="agent/prompt")
    assert params.content[0].wire() == image


def test_a_tools_result_may_be_empty() -> None:
    result = from_wire(ExecuteResult, {"content": []}, of="tool/execute")
    assert (result.content, result.is_error, result.pending) == ((), False, False)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({}, "decision"),
        ({"decision": "edit"}, "arguments"),
        ({"decision": "approve", "approvalId": "p"}, "approvalId"),
    ],
)
def test_a_clients_answer_about_an_approval_is_judged_like_a_decision(data: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        from_wire(REQUESTS["approval/request"].result, data, of="approval/request")
    assert refused.value.data["field"] == field
    assert from_wire(ApprovalAnswer, {"decision": "deny", "reason": "no"}, of="x").reason == "no"
