"""Rows for the tests of the stores."""

from __future__ import annotations

from typing import Any

from sojourn.store.base import Store
from sojourn.store.records import (
    AgentRecord,
    EventRecord,
    InboxRecord,
    MessageRecord,
    Record,
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


async def add(store: Store, *records: Record) -> None:
    """Commits these rows together."""
    await store.write(lambda tx: [tx.insert(record) for record in records])


async def found(store: Store, kind: type[Any], **question: Any) -> list[Any]:
    """What `find` answers to a reader."""
    return await store.read(lambda tx: tx.find(kind, **question))


async def positions(store: Store, **question: Any) -> list[int]:
    """The positions of the messages that `find` answers."""
    return [row.position for row in await found(store, MessageRecord, **question)]
