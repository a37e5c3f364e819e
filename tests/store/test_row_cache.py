"""The writer keeps its last rows at hand: what it gives is what the database has, also after something was undone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sojourn.store.base import Tx
from sojourn.store.records import AgentRecord, CallRecord, RunRecord
from sojourn.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


class Undone(Exception):
    """Ends a transition."""


def agent(tx: Tx) -> AgentRecord:
    found = tx.get(AgentRecord, "a")
    assert found is not None
    return found


def renamed(tx: Tx, title: str) -> None:
    row = agent(tx)
    row.title = title
    tx.update(row, "title")


def put(tx: Tx, title: str) -> None:
    row = agent(tx)
    row.title = title
    tx.put(row)


def gone(tx: Tx, title: str) -> None:
    assert tx.delete(AgentRecord, "a")


def swept(tx: Tx, title: str) -> None:
    assert tx.delete_some(AgentRecord, 10, agent_id="a") == 1


async def opened(path: Path) -> SqliteStore:
    store = await SqliteStore.open(path)
    await store.write(lambda tx: tx.insert(AgentRecord("a", "now", "now", 1, "a", title="first")))
    return store


@pytest.mark.parametrize("change", [renamed, put, gone, swept])
async def test_what_a_failed_transition_wrote_is_seen_by_no_other(tmp_path: Path, change: Any) -> None:
    store = await opened(tmp_path)

    def failing(tx: Tx) -> None:
        change(tx, "never")
        raise Undone

    jobs = [store.write(failing), store.write(lambda tx: agent(tx).title)]
    failed, title = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(failed, Undone)
    assert title == "first"
    await store.aclose()


@pytest.mark.parametrize("change", [renamed, put])
async def test_a_row_that_was_changed_is_read_back_as_the_database_has_it(tmp_path: Path, change: Any) -> None:
    store = await opened(tmp_path)
    await store.write(lambda tx: change(tx, "second"))
    written = await store.write(agent)
    assert written == await store.read(lambda tx: tx.get(AgentRecord, "a"))
    assert written.title == "second"
    await store.aclose()


@pytest.mark.parametrize("remove", [gone, swept])
async def test_a_removed_row_is_not_there_any_more(tmp_path: Path, remove: Any) -> None:
    store = await opened(tmp_path)
    await store.write(lambda tx: remove(tx, ""))
    assert await store.write(lambda tx: tx.get(AgentRecord, "a")) is None
    await store.aclose()


async def test_what_a_reader_of_a_row_does_to_it_stays_its_own(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    mine = await store.write(agent)
    mine.title = "only in memory"
    assert (await store.write(agent)).title == "first"
    await store.aclose()


async def test_an_update_writes_its_fields_alone(tmp_path: Path) -> None:
    store = await opened(tmp_path)

    def change(tx: Tx) -> None:
        row = agent(tx)
        row.title, row.state = "second", "running"
        tx.update(row, "state")

    await store.write(change)
    row = await store.write(agent)
    assert (row.title, row.state) == ("first", "running")
    await store.aclose()


async def test_large_bodies_come_back_whole(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    large = '{"content":"' + "x" * 100_000 + '"}'
    call = CallRecord("a", "c", "r", 0, "tool", large, "sha", "proposed", "now")
    await store.write(lambda tx: tx.insert(call))
    call.result = large
    await store.write(lambda tx: tx.update(call, "result"))
    assert await store.write(lambda tx: tx.get(CallRecord, "a", "c")) == call
    assert await store.read(lambda tx: tx.get(CallRecord, "a", "c")) == call
    await store.aclose()


async def test_more_rows_than_are_kept_are_all_found(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    ids = [f"run-{n}" for n in range(5000)]
    await store.write(lambda tx: [tx.put(RunRecord(i, None, "c", 0, "now", "now", "done")) for i in ids])
    found = await store.write(lambda tx: [tx.get(RunRecord, i) for i in ids])
    assert [row.run_id for row in found if row is not None] == ids
    await store.aclose()
