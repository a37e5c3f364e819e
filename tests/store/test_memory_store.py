"""What is the memory store's own: it is strict, so that what could not be saved fails in tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from store_rows import agent, event, message

from sojourn.core.errors import StorageError
from sojourn.store.memory import MemoryStore
from sojourn.store.records import AgentRecord, EventRecord, JobRecord, Record, Table

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (message(1, "not json"), ValueError),
        (message(1, '{"n":NaN}'), ValueError),
        (message(1, '"\\ud800"'), ValueError),
        (agent("a1", labels="{"), ValueError),
        (JobRecord("j", "a", "c", "running", "now", body="{,}"), ValueError),
        (agent("a1", last_seq=True), TypeError),
        (agent("a1", needs_reply=1), TypeError),
        (agent("a1", usage=b"{}"), TypeError),
    ],
)
async def test_what_could_not_be_saved_is_refused(record: Record, error: type[Exception]) -> None:
    store = MemoryStore()
    for change in ("insert", "put"):
        with pytest.raises(error):
            await store.write(lambda tx, change=change: getattr(tx, change)(record))
    assert await store.read(lambda tx: tx.count(type(record))) == 0


@dataclass
class Odd(Record):
    TABLE: ClassVar[Table] = Table("odd", ("name",))

    name: str
    values: list[str]


async def test_a_record_has_plain_columns() -> None:
    with pytest.raises(TypeError, match="list"):
        await MemoryStore().write(lambda tx: tx.insert(Odd("x", [])))


async def test_an_event_inside_another_agents_has_no_body_of_its_own() -> None:
    store = MemoryStore()
    await store.write(lambda tx: tx.insert(event(1, body="", ref_agent_id="child", ref_seq=1, ref_call_id="x")))
    assert await store.read(lambda tx: tx.count(EventRecord, body=None)) == 0


async def test_it_can_refuse_writes_like_a_full_disk() -> None:
    store, heard = MemoryStore(), list[Any]()
    store.on_degraded(heard.append)
    store.refuse_writes("the disk is full")
    store.refuse_writes("the disk is full")
    with pytest.raises(StorageError, match="the disk is full"):
        await store.write(lambda tx: tx.insert(agent("a1")))
    assert await store.read(lambda tx: tx.count(AgentRecord)) == 0
    store.refuse_writes(None)
    await store.write(lambda tx: tx.insert(agent("a1")))
    assert heard == ["the disk is full", None]
