"""Rows for the tests of the stores."""

from __future__ import annotations

from typing import Any

from sojourn.store.records import (
    AgentRecord,
    EventRecord,
    InboxRecord,
    MessageRecord,
    RunRecord,
)

AT = "2030-01-01T00:00:00Z"


def message(position: int, text: str = "{}", *, conversation: str = "c1") -> MessageRecord:
    return MessageRecord(conversation, position, f"msg-{position}", "user", text)


def event(seq: int, *, agent: str = "a1", body: str = "{}", **more: Any) -> EventRecord:
    return EventRecord(agent, seq, AT, body, **more)


def agent(name: str = "a1", **more: Any) -> AgentRecord:
    return AgentRecord(name, AT, AT, more.pop("activity", 1), f"conversation-{name}", **more)


def a_run(name: str, *, agent_id: str | None = "a1", **more: Any) -> RunRecord:
    return RunRecord(name, agent_id, "c1", 0, more.pop("created_at", AT), AT, "preparing", **more)


def item(position: int, *, agent_id: str = "a1", call_id: str | None = None, state: str = "unread") -> InboxRecord:
    return InboxRecord(agent_id, position, f"{agent_id}-{position}", "message", "{}", AT, state, call_id)
