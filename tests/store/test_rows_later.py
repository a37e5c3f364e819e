"""Rows that may wait for the commit: seen by whoever looks, written once, and refused without harm to others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sojourn.core.errors import StorageError
from sojourn.store.base import Conflict, Tx
from sojourn.store.records import AgentRecord, CallRecord, EventRecord, MessageRecord, RunRecord, snapshot
from sojourn.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


class Undone(Exception):
    """Ends a transition."""


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    store = await SqliteStore.open(tmp_path)
    await store.write(lambda tx: tx.insert(AgentRecord("a", "now", "now", 1, "a", title="first")))
    yield store
    await store.aclose()


def message(position: int, body: str = "{}") -> MessageRecord:
    return MessageRecord("a", position, f"msg-{position}", "user", body)


def renamed(tx: Tx, title: str) -> None:
    row = tx.get(AgentRecord, "a")
    assert row is not None
    before = snapshot(row)
    row.title = title
    tx.save(row, before)


async def together(store: SqliteStore, *transitions: Any) -> list[Any]:
    """The results, or errors, of transitions that share a commit."""
    before = store.stats().commits
    results = await asyncio.gather(*(store.write(change) for change in transitions), return_exceptions=True)
    assert store.stats().commits == before + 1
    return results


async def positions(store: SqliteStore) -> list[int]:
    return [row.position for row in await store.read(lambda tx: tx.find(MessageRecord, conversation="a"))]


async def test_a_later_row_is_there_for_every_query_of_its_batch(store: SqliteStore) -> None:
    async def seen(look: Any) -> Any:
        start = await store.write(lambda tx: tx.count(MessageRecord, conversation="a"))
        row = message(start + 1)
        results = await together(store, lambda tx: (tx.insert(row, later=True), look(tx))[1], look)
        assert results[0] == results[1]
        return results[0]

    assert await seen(lambda tx: tx.count(MessageRecord, conversation="a")) == 1
    assert len(await seen(lambda tx: tx.find(MessageRecord, conversation="a"))) == 2
    assert (await seen(lambda tx: tx.get(MessageRecord, "a", 3))).message_id == "msg-3"


@pytest.mark.parametrize(
    "rests",
    [
        [{}, {}],
        [{"run_id": "r"}, {}],
        [{"run_id": "r"}, {"origin": '{"clientId":"c"}'}, {}],
        [{}, {"run_id": "r", "ref_agent_id": "b", "ref_seq": 7, "ref_call_id": "c"}, {"origin": "{}"}],
        [{"ref_seq": 0}, {"run_id": ""}],
    ],
)
async def test_what_some_rows_of_a_batch_have_and_others_have_not_is_kept(
    store: SqliteStore, rests: list[dict[str, Any]]
) -> None:
    events = [EventRecord("a", n, "now", "{}", **rest) for n, rest in enumerate(rests, 1)]
    calls = [CallRecord("a", f"c{n}", "r", n, "look", "{}", "sha", "proposed", "now") for n in range(len(rests))]
    calls[-1].read_at = "later"
    changes = [
        lambda tx, event=event, call=call: (tx.insert(event, later=True), tx.insert(call, later=True))
        for event, call in zip(events, calls, strict=True)
    ]
    await together(store, *changes)
    assert await store.read(lambda tx: tx.find(EventRecord, agent_id="a")) == events
    assert await store.read(lambda tx: tx.find(CallRecord, owner="a", order="position")) == calls


async def test_rows_of_many_transitions_end_as_the_last_of_them_left_them(store: SqliteStore) -> None:
    def run(tx: Tx) -> None:
        tx.put(RunRecord("r", "a", "a", 0, "now", "now", "preparing", active=True), later=True)
        tx.insert(CallRecord("a", "c", "r", 0, "tool", "{}", "sha", "proposed", "now"), later=True)

    def ended(tx: Tx) -> None:
        row = tx.get(RunRecord, "r")
        assert row is not None
        row.active, row.state = False, "done"
        tx.update(row, "active", "state", later=True)

    def returned(tx: Tx) -> None:
        row = tx.get(CallRecord, "a", "c")
        assert row is not None
        row.state, row.result = "returned", "{}"
        tx.update(row, "state", "result", later=True)

    def another(tx: Tx) -> None:
        tx.put(RunRecord("s", "a", "a", 0, "now", "now", "preparing", active=True), later=True)

    names = [lambda tx, n=n: renamed(tx, f"name {n}") for n in range(3)]
    results = await together(store, run, returned, ended, another, *names)
    assert results == [None] * 7
    kept = await store.read(lambda tx: (tx.find(RunRecord), tx.get(CallRecord, "a", "c"), tx.get(AgentRecord, "a")))
    assert [(row.run_id, row.state, row.active) for row in kept[0]] == [("r", "done", False), ("s", "preparing", True)]
    assert (kept[1].state, kept[1].result) == ("returned", "{}")
    assert kept[2].title == "name 2"


async def test_what_a_failed_transition_left_for_later_is_not_written(store: SqliteStore) -> None:
    def failing(tx: Tx) -> None:
        renamed(tx, "never")
        tx.insert(message(1), later=True)
        raise Undone

    results = await together(
        store,
        lambda tx: renamed(tx, "kept"),
        failing,
        lambda tx: tx.get(AgentRecord, "a").title,  # type: ignore[union-attr]
        lambda tx: tx.insert(message(1, '"other"'), later=True),
    )
    assert isinstance(results[1], Undone)
    assert results[2] == "kept"
    assert await positions(store) == [1]
    assert (await store.read(lambda tx: tx.get(AgentRecord, "a"))).title == "kept"


async def test_a_refused_row_fails_its_transition_and_those_that_may_have_built_on_it(store: SqliteStore) -> None:
    await store.write(lambda tx: tx.insert(message(2)))
    heard: list[Any] = []
    store.on_commit(heard.extend)

    def taken(tx: Tx) -> None:
        renamed(tx, "refused")
        tx.insert(message(2), later=True)
        tx.publish("refused")

    def sound(position: int) -> Any:
        def change(tx: Tx) -> int:
            tx.insert(message(position), later=True)
            tx.publish(position)
            return position

        return change

    results = await together(store, sound(1), taken, sound(3))
    assert results[0] == 1
    assert isinstance(results[1], Conflict)
    assert isinstance(results[2], StorageError)
    assert heard == [1]
    assert await positions(store) == [1, 2]
    assert await store.write(lambda tx: tx.get(AgentRecord, "a").title) == "first"  # type: ignore[union-attr]
    assert await store.write(sound(3)) == 3


async def test_a_refused_row_fails_a_transition_that_had_its_commit_to_itself(store: SqliteStore) -> None:
    await store.write(lambda tx: tx.insert(message(2)))
    heard: list[Any] = []
    store.on_commit(heard.extend)
    store.on_degraded(heard.append)

    def taken(tx: Tx) -> None:
        renamed(tx, "refused")
        tx.insert(message(1), later=True)
        tx.insert(message(2), later=True)
        tx.publish("refused")

    with pytest.raises(Conflict):
        await store.write(taken)
    assert heard == []
    assert await positions(store) == [2]
    assert await store.write(lambda tx: tx.get(AgentRecord, "a").title) == "first"  # type: ignore[union-attr]
    await store.write(lambda tx: renamed(tx, "kept"))
    assert (await store.read(lambda tx: tx.get(AgentRecord, "a"))).title == "kept"


async def test_whoever_looks_after_a_refused_row_is_not_begun(store: SqliteStore) -> None:
    await store.write(lambda tx: tx.insert(message(2)))
    results = await together(
        store,
        lambda tx: tx.insert(message(2), later=True),
        lambda tx: tx.find(MessageRecord, conversation="a"),
        lambda tx: tx.insert(message(3)),
    )
    assert isinstance(results[0], Conflict)
    assert isinstance(results[1], StorageError)
    assert results[2] is None
    assert await positions(store) == [2, 3]


async def test_a_write_that_cannot_wait_keeps_what_waits_in_its_own_transition(store: SqliteStore) -> None:
    def mixed(tx: Tx) -> None:
        tx.insert(message(1), later=True)
        tx.insert(message(2))
        tx.insert(message(3), later=True)
        raise Undone

    results = await together(store, lambda tx: tx.insert(message(7), later=True), mixed)
    assert isinstance(results[1], Undone)
    assert await positions(store) == [7]


async def test_large_bodies_may_wait_too(store: SqliteStore) -> None:
    large = '{"content":"' + "x" * 100_000 + '"}'
    await together(store, *(lambda tx, n=n: tx.insert(message(n, large), later=True) for n in (1, 2)))
    assert [row.body for row in await store.read(lambda tx: tx.find(MessageRecord, conversation="a"))] == [large] * 2


async def test_a_row_that_is_gone_cannot_be_saved(store: SqliteStore) -> None:
    row = await store.read(lambda tx: tx.get(AgentRecord, "a"))
    assert row is not None
    before = snapshot(row)
    row.title = "late"
    await store.write(lambda tx: tx.delete(AgentRecord, "a"))
    with pytest.raises(KeyError, match="no row with the key"):
        await store.write(lambda tx: tx.save(row, before))
