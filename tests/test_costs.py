"""What a turn costs, counted: commits and bytes. Nothing here looks at a clock; `make bench` measures time."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import pytest
from house import House, ToldTool, call, house

from sojourn.models.base import ModelRequest
from sojourn.store.records import Record
from sojourn.store.sqlite import SqliteStore

MOST_OFTEN = 30
"""Turns of one agent to a write-back of the log, which takes three syncs."""

pytestmark = pytest.mark.anyio


def look_once(request: ModelRequest) -> Any:
    """A user's message is answered by a call, a call's result by a word."""
    return [call("look", at=1)] if request.messages[-1].role == "user" else "done"


class CountingStore:
    """A store that counts the bytes of what transitions write: text as UTF-8, all else as 8."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, transition: Callable[[Any], Any]) -> Any:
        return await self._store.write(lambda tx: transition(_CountingTx(tx, self)))


class _CountingTx:
    def __init__(self, tx: Any, store: CountingStore) -> None:
        self._tx = tx
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def _count(self, values: Sequence[Any]) -> None:
        self._store.bytes += sum(len(value.encode()) if isinstance(value, str) else 8 for value in values)

    def insert(self, record: Record, *, later: bool = False) -> None:
        self._count(astuple(copy.copy(record)))
        self._tx.insert(record, later=later)

    def insert_all(self, records: Sequence[Record], *, later: bool = False) -> None:
        for record in records:
            self._count(astuple(record))
        self._tx.insert_all(records, later=later)

    def put(self, record: Record, *, later: bool = False) -> None:
        self._count(astuple(record))
        self._tx.put(record, later=later)

    def save(self, record: Record, before: tuple[Any, ...]) -> None:
        self._count([*(new for new, old in zip(astuple(record), before, strict=True) if new != old)])
        self._tx.save(record, before)

    def update(self, record: Record, *columns: str, later: bool = False) -> None:
        known = {field.name for field in fields(record)}
        assert known.issuperset(columns)
        self._count([getattr(record, name) for name in (*columns, *record.TABLE.key)])
        self._tx.update(record, *columns, later=later)


async def turns(home: House, agents: int, count: int) -> float:
    """Commits for each of so many turns (user, model, tool, model) of so many agents at once."""
    before = home.store.stats().commits

    async def one(agent_id: str) -> None:
        for _ in range(count):
            outcome = await home.prompt("look", agent_id)
            assert [message.role for message in outcome.messages] == ["user", "assistant", "toolResult", "assistant"]

    await asyncio.gather(*(one(f"a{n}") for n in range(agents)))
    return (home.store.stats().commits - before) / (agents * count)


async def test_a_turn_with_a_tool_takes_at_most_four_commits(tmp_path: Path) -> None:
    async with house(*[look_once] * 10, tools=[ToldTool("look")], path=tmp_path) as home:
        await home.agent("a0")
        assert await turns(home, 1, 5) <= 4


async def test_the_log_is_written_back_so_rarely_that_it_adds_next_to_no_syncs(tmp_path: Path) -> None:
    async with house(*[look_once] * 250, tools=[ToldTool("look")], path=tmp_path) as home:
        await home.agent("a0")
        assert await turns(home, 1, 120) <= 4
        assert 1 <= home.store.stats().write_backs <= 120 / MOST_OFTEN


async def test_a_hundred_busy_agents_share_their_commits(tmp_path: Path) -> None:
    async with house(*[look_once] * 400, tools=[ToldTool("look")], path=tmp_path) as home:
        for n in range(100):
            await home.agent(f"a{n}", attach=False)
        assert await turns(home, 100, 2) <= 0.3


async def test_a_step_writes_no_more_in_a_long_conversation(tmp_path: Path) -> None:
    store = CountingStore(await SqliteStore.open(tmp_path))
    written: dict[int, int] = {}
    async with house(*[look_once] * 600, tools=[ToldTool("look")], store=store) as home:  # type: ignore[arg-type]
        await home.agent("a0", attach=False)
        said = 0
        for length in (12, 1000):
            while said < length:
                before = store.bytes
                said += len((await home.prompt("look", "a0")).messages)
                written[said] = store.bytes - before
    await store.aclose()
    assert written[12] > 1000
    assert written[1000] <= 1.3 * written[12]
