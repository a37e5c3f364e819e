"""Every method ends in one call of the hub: which one, and with what. The hub is a recorder here."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import pytest

import sojourn.methods  # noqa: F401 (fills METHODS)
from sojourn.agents.hub import Hub
from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.errors import Forbidden
from sojourn.core.messages import AssistantMessage, TextPart, ToolChoice, UserMessage
from sojourn.methods._parse import from_wire
from sojourn.methods._table import LSP_NAMESPACES, METHODS, Params

pytestmark = pytest.mark.anyio

ANSWER = object()
EDITORS = {name for name in METHODS if name.startswith(LSP_NAMESPACES)}
ELSEWHERE = {"initialize", "initialized", "shutdown", "exit", "server/status", *EDITORS}
"""Methods that are about the connection and the process, tested with them."""


class Recorder:
    """Stands for the hub: notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        async def note(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            return ANSWER

        return note


@dataclass
class Connection:
    """Stands for the session."""

    hub: Recorder = field(default_factory=Recorder)
    client_id: str | None = "tester"
    root_path: str | None = "/project"
    asked: list[str] = field(default_factory=list)

    def caller(self, params: Params, method: str) -> Caller:
        self.asked.append(method)
        return Caller(client_id=self.client_id, request_id=getattr(params, "request_id", None))

    def cancel_requested(self) -> bool:
        return False


CALLER = Caller(client_id="tester")
SESSION = "the session"
UNWISHED = {"output_schema": None, "tool_choice": None}
HI = (TextPart(text="hi"),)
SAVED = {"format": 1, "anything": [None]}
SCHEMA = {"type": "object"}
CALLS: list[tuple[str, dict[str, Any], str, tuple[Any, ...], dict[str, Any]]] = [
    ("agent/create", {}, "create_agent", (CALLER,), {"agent_id": None, "config": None}),
    (
        "agent/create",
        {"agentId": "a", "config": {"maxTurns": 3}},
        "create_agent",
        (CALLER,),
        {"agent_id": "a", "config": AgentConfig(max_turns=3)},
    ),
    (
        "agent/list",
        {},
        "list_agents",
        (),
        {"cursor": None, "limit": 100, "state": None, "parent_agent_id": None, "labels": None},
    ),
    (
        "agent/list",
        {"cursor": "c", "limit": 5, "state": "paused", "parentAgentId": "p", "labels": {"x": "y"}},
        "list_agents",
        (),
        {"cursor": "c", "limit": 5, "state": "paused", "parent_agent_id": "p", "labels": {"x": "y"}},
    ),
    ("agent/watch", {}, "watch", (SESSION,), {}),
    ("agent/unwatch", {}, "unwatch", (SESSION,), {}),
    ("agent/get", {"agentId": "a"}, "get_agent", ("a",), {}),
    ("agent/update", {"agentId": "a"}, "update_agent", (CALLER, "a", {}), {}),
    (
        "agent/update",
        {"agentId": "a", "title": None, "config": {"model": None, "maxTurns": 2, "limits": {"tokens": None}}},
        "update_agent",
        (CALLER, "a", {"title": None, "config": {"model": None, "maxTurns": 2, "limits": {"tokens": None}}}),
        {},
    ),
    (
        "agent/update",
        {"agentId": "a", "title": "T", "labels": {}, "config": None},
        "update_agent",
        (CALLER, "a", {"config": None, "title": "T", "labels": {}}),
        {},
    ),
    ("agent/fork", {"agentId": "a"}, "fork_agent", (CALLER, "a"), {"after_message": None}),
    ("agent/fork", {"agentId": "a", "afterMessage": "msg-2"}, "fork_agent", (CALLER, "a"), {"after_message": "msg-2"}),
    ("agent/delete", {"agentId": "a"}, "delete_agent", (CALLER, "a"), {"force": False}),
    ("agent/delete", {"agentId": "a", "force": True}, "delete_agent", (CALLER, "a"), {"force": True}),
    (
        "agent/prompt",
        {"agentId": "a", "content": "hi"},
        "prompt",
        (CALLER, "a", HI),
        {"if_busy": "reject", "on_approval": None, "wait": True, "session": SESSION, **UNWISHED},
    ),
    (
        "agent/prompt",
        {
            "agentId": "a",
            "content": [{"type": "text", "text": "hi"}],
            "ifBusy": "queue",
            "onApproval": "deny",
            "wait": False,
        },
        "prompt",
        (CALLER, "a", HI),
        {"if_busy": "queue", "on_approval": "deny", "wait": False, "session": SESSION, **UNWISHED},
    ),
    (
        "agent/prompt",
        {"agentId": "a", "content": "hi", "outputSchema": {"type": "object"}, "toolChoice": {"mode": "required"}},
        "prompt",
        (CALLER, "a", HI),
        {
            "if_busy": "reject",
            "on_approval": None,
            "wait": True,
            "session": SESSION,
            "output_schema": {"type": "object"},
            "tool_choice": ToolChoice(mode="required"),
        },
    ),
    ("agent/compact", {"agentId": "a"}, "compact", (CALLER, "a"), {}),
    (
        "agent/resume",
        {"agentId": "a"},
        "resume",
        (CALLER, "a"),
        {"run": None, "wait": True, "session": SESSION, **UNWISHED},
    ),
    (
        "agent/resume",
        {"agentId": "a", "run": SAVED, "wait": False},
        "resume",
        (CALLER, "a"),
        {"run": SAVED, "wait": False, "session": SESSION, **UNWISHED},
    ),
    ("agent/stop", {"agentId": "a"}, "stop", (CALLER, "a"), {}),
    ("agent/wait", {"agentId": "a"}, "wait", ("a", None), {}),
    ("agent/wait", {"agentId": "a", "runId": "r"}, "wait", ("a", "r"), {}),
    ("agent/attach", {"agentId": "a"}, "attach", (SESSION, "a"), {"after_seq": None, "deltas": True}),
    (
        "agent/attach",
        {"agentId": "a", "afterSeq": 0, "deltas": False},
        "attach",
        (SESSION, "a"),
        {"after_seq": 0, "deltas": False},
    ),
    ("agent/detach", {"agentId": "a"}, "detach", (SESSION, "a"), {}),
    ("agent/events", {"agentId": "a"}, "events", ("a",), {"after_seq": 0, "limit": 100}),
    ("agent/events", {"agentId": "a", "afterSeq": 7, "limit": 1000}, "events", ("a",), {"after_seq": 7, "limit": 1000}),
    ("agent/messages", {"agentId": "a"}, "messages", ("a",), {"cursor": None, "limit": 100, "order": "asc"}),
    (
        "agent/messages",
        {"agentId": "a", "cursor": "c", "limit": 1, "order": "desc"},
        "messages",
        ("a",),
        {"cursor": "c", "limit": 1, "order": "desc"},
    ),
    (
        "agent/replaceMessages",
        {
            "agentId": "a",
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "messageId": "m", "content": [{"type": "text", "text": "ho"}]},
            ],
        },
        "replace_messages",
        (CALLER, "a", [UserMessage(content=HI), AssistantMessage(message_id="m", content=(TextPart(text="ho"),))]),
        {},
    ),
    ("agent/replaceMessages", {"agentId": "a", "messages": []}, "replace_messages", (CALLER, "a", []), {}),
    ("agent/pendingCalls", {"agentId": "a"}, "pending_calls", ("a",), {}),
    ("job/list", {}, "job_list", (None, None), {}),
    ("job/list", {"agentId": "a", "state": "running"}, "job_list", ("a", "running"), {}),
    ("job/output", {"jobId": "j"}, "job_output", ("j",), {"offset": 0, "limit": 65536}),
    ("job/output", {"jobId": "j", "offset": 7, "limit": 99}, "job_output", ("j",), {"offset": 7, "limit": 99}),
    ("job/stop", {"jobId": "j"}, "job_stop", (CALLER, "j"), {}),
    ("inbox/push", {"agentId": "a", "content": "hi"}, "inbox_push", (CALLER, "a", HI), {}),
    ("inbox/resolve", {"agentId": "a", "callId": "c", "content": "hi"}, "inbox_resolve", (CALLER, "a", "c", HI), {}),
    (
        "inbox/resolve",
        {"agentId": "a", "callId": "c", "content": ""},
        "inbox_resolve",
        (CALLER, "a", "c", (TextPart(text=""),)),
        {},
    ),
    ("inbox/reject", {"agentId": "a", "callId": "c", "error": "no"}, "inbox_reject", (CALLER, "a", "c", "no"), {}),
    ("inbox/list", {"agentId": "a"}, "inbox_list", ("a",), {}),
    ("inbox/remove", {"agentId": "a", "itemId": "i"}, "inbox_remove", (CALLER, "a", "i"), {}),
    ("approval/list", {}, "approvals", (None,), {}),
    ("approval/list", {"agentId": "a"}, "approvals", ("a",), {}),
    ("approval/rules", {"agentId": "a"}, "approval_rules", ("a",), {}),
    ("approval/revoke", {"agentId": "a", "rule": "shell: ls *"}, "approval_revoke", (CALLER, "a", "shell: ls *"), {}),
    (
        "approval/decide",
        {"approvalId": "p", "decision": "approve"},
        "decide",
        (CALLER, "p", "approve"),
        {"arguments": None, "content": None, "reason": None, "scope": None, "pattern": None},
    ),
    (
        "approval/decide",
        {"approvalId": "p", "decision": "edit", "arguments": {"n": None}, "reason": "r", "scope": "run"},
        "decide",
        (CALLER, "p", "edit"),
        {"arguments": {"n": None}, "content": None, "reason": "r", "scope": "run", "pattern": None},
    ),
    (
        "approval/decide",
        {"approvalId": "p", "decision": "answer", "content": "hi"},
        "decide",
        (CALLER, "p", "answer"),
        {"arguments": None, "content": HI, "reason": None, "scope": None, "pattern": None},
    ),
    (
        "run/create",
        {"prompt": "hi"},
        "run_create",
        (CALLER,),
        {
            "prompt": UserMessage(content=HI),
            "history": [],
            "max_turns": 1,
            "max_invalid_tool_call_retries": 0,
            "tool_choice": None,
            "output_schema": None,
        },
    ),
    (
        "run/create",
        {
            "prompt": {"role": "user", "content": "hi"},
            "history": [{"role": "user", "content": "hi"}],
            "maxTurns": 0,
            "maxInvalidToolCallRetries": 2,
            "toolChoice": "none",
            "outputSchema": SCHEMA,
        },
        "run_create",
        (CALLER,),
        {
            "prompt": UserMessage(content=HI),
            "history": [UserMessage(content=HI)],
            "max_turns": 0,
            "max_invalid_tool_call_retries": 2,
            "tool_choice": ToolChoice(mode="none"),
            "output_schema": SCHEMA,
        },
    ),
    ("run/step", {"runId": "r"}, "run_step", (CALLER, SESSION, "r"), {"revision": None, "feed": None}),
    (
        "run/step",
        {"runId": "r", "revision": 4, "toolResults": [{"callId": "c", "content": "hi", "isError": True}]},
        "run_step",
        (CALLER, SESSION, "r"),
        {
            "revision": 4,
            "feed": {"toolResults": [{"callId": "c", "content": [{"type": "text", "text": "hi"}], "isError": True}]},
        },
    ),
    (
        "run/step",
        {
            "runId": "r",
            "modelResponse": {
                "content": [{"type": "toolCall", "id": "x", "name": "t", "arguments": {"n": None}}],
                "finishReason": "toolCalls",
                "usage": {"inputTokens": 3},
                "executableTools": ["t"],
                "allowedTools": [],
            },
        },
        "run_step",
        (CALLER, SESSION, "r"),
        {
            "revision": None,
            "feed": {
                "modelResponse": {
                    "content": [{"type": "toolCall", "id": "x", "name": "t", "arguments": {"n": None}}],
                    "finishReason": "toolCalls",
                    "usage": {"inputTokens": 3, "outputTokens": 0},
                    "executableTools": ["t"],
                    "allowedTools": [],
                }
            },
        },
    ),
    (
        "run/step",
        {"runId": "r", "resolution": {"action": "repair", "toolName": "t"}},
        "run_step",
        (CALLER, SESSION, "r"),
        {"revision": None, "feed": {"resolution": {"action": "repair", "toolName": "t"}}},
    ),
    (
        "run/step",
        {"runId": "r", "toolResults": []},
        "run_step",
        (CALLER, SESSION, "r"),
        {"revision": None, "feed": {"toolResults": []}},
    ),
    ("run/get", {"runId": "r"}, "run_get", ("r",), {}),
    ("run/list", {}, "run_list", (), {"agent_id": None, "state": None, "cursor": None, "limit": 100}),
    (
        "run/list",
        {"agentId": "a", "state": "executing_tools", "cursor": "c", "limit": 2},
        "run_list",
        (),
        {"agent_id": "a", "state": "executing_tools", "cursor": "c", "limit": 2},
    ),
    ("run/export", {"runId": "r"}, "run_export", ("r",), {}),
    ("run/import", {"run": SAVED}, "run_import", (CALLER, SAVED), {}),
    (
        "run/appendEntry",
        {"runId": "r", "kind": "ticket", "value": {"n": None}},
        "run_append_entry",
        (CALLER, "r", "ticket", {"n": None}),
        {},
    ),
    (
        "run/appendEntry",
        {"runId": "r", "kind": "ticket", "value": None},
        "run_append_entry",
        (CALLER, "r", "ticket", None),
        {},
    ),
    ("run/entries", {"runId": "r"}, "run_entries", ("r", None), {}),
    ("run/entries", {"runId": "r", "kind": "ticket"}, "run_entries", ("r", "ticket"), {}),
    ("run/delete", {"runId": "r"}, "run_delete", (CALLER, "r"), {}),
    (
        "tool/register",
        {"tools": [{"name": "t", "description": "d", "inputSchema": SCHEMA}]},
        "register_tools",
        (
            CALLER,
            SESSION,
            [{"name": "t", "description": "d", "inputSchema": SCHEMA, "approval": "ask", "onInterrupt": "fail"}],
            None,
        ),
        {},
    ),
    (
        "tool/register",
        {
            "agentId": "a",
            "tools": [
                {
                    "name": "t.x",
                    "description": "",
                    "inputSchema": SCHEMA,
                    "approval": "allow",
                    "onInterrupt": "rerun",
                }
            ],
        },
        "register_tools",
        (
            CALLER,
            SESSION,
            [{"name": "t.x", "description": "", "inputSchema": SCHEMA, "approval": "allow", "onInterrupt": "rerun"}],
            "a",
        ),
        {},
    ),
    ("tool/unregister", {"names": ["t"]}, "unregister_tools", (CALLER, ["t"]), {}),
    ("tool/list", {}, "list_tools", (None,), {}),
    ("tool/list", {"agentId": "a"}, "list_tools", ("a",), {}),
    ("model/list", {}, "models", (), {}),
    ("server/shutdown", {}, "shutdown", ("drain",), {}),
    ("server/shutdown", {"mode": "now"}, "shutdown", ("now",), {}),
]


@pytest.mark.parametrize(
    ("name", "data", "hub_method", "args", "kwargs"), CALLS, ids=[f"{i}-{call[0]}" for i, call in enumerate(CALLS)]
)
async def test_a_method_ends_in_one_call_of_the_hub(
    name: str, data: dict[str, Any], hub_method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    session = Connection()
    method = METHODS[name]
    answer = await method.handler(session, from_wire(method.params, data, of=name))
    ((asked, got_args, got_kwargs),) = session.hub.calls
    assert asked == hub_method
    assert tuple(SESSION if arg is session else arg for arg in got_args) == args
    assert {key: SESSION if value is session else value for key, value in got_kwargs.items()} == kwargs
    assert answer is (ANSWER if method.result is not None or name != "server/shutdown" else None)
    assert session.asked == ([name] if CALLER in args else [])


@pytest.mark.parametrize("call", CALLS, ids=[f"{i}-{call[2]}" for i, call in enumerate(CALLS)])
def test_the_hub_takes_such_a_call(call: tuple[Any, ...]) -> None:
    _, _, hub_method, args, kwargs = call
    inspect.signature(getattr(Hub, hub_method)).bind(None, *args, **kwargs)


def test_every_method_is_in_the_table_of_calls() -> None:
    assert {call[0] for call in CALLS} | ELSEWHERE == set(METHODS)


@pytest.mark.parametrize("name", sorted({call[0] for call in CALLS if CALLER in call[3]}))
async def test_what_changes_something_takes_a_request_id_and_hands_it_on(name: str) -> None:
    data = next(call[1] for call in CALLS if call[0] == name)
    session = Connection()
    params = from_wire(METHODS[name].params, {**data, "requestId": "r-1"}, of=name)
    assert params.MUTATING
    await METHODS[name].handler(session, params)
    assert Caller(client_id="tester", request_id="r-1") in session.hub.calls[0][1]


@pytest.mark.parametrize("name", ["tool/register", "tool/unregister"])
async def test_tools_need_a_client_with_a_name(name: str) -> None:
    session = Connection(client_id=None)
    data = next(call[1] for call in CALLS if call[0] == name)
    with pytest.raises(Forbidden, match="'clientId'") as refused:
        await METHODS[name].handler(session, from_wire(METHODS[name].params, data, of=name))
    assert refused.value.data["field"] == "clientId"
    assert session.hub.calls == []


def test_reading_methods_refuse_a_request_id() -> None:
    reading = {name for name, method in METHODS.items() if not method.params.MUTATING}
    assert {"agent/get", "agent/wait", "agent/attach", "run/get", "tool/list", "server/status"} <= reading
