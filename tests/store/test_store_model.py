"""Both stores, given the same random transitions, answer and keep the same.

`MemoryStore` is the model of `SqliteStore`: dicts and a list of what to take back, against SQL and savepoints.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_rows import a_run, item

from sojourn.store.base import Conflict, Store, Tx
from sojourn.store.memory import MemoryStore
from sojourn.store.records import InboxRecord, Record, RunRecord
from sojourn.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

agents = st.sampled_from(["a1", "a2"])
items = st.builds(
    item,
    st.integers(1, 4),
    agent_id=agents,
    call_id=st.sampled_from([None, "x", "y", "\x00"]),
    state=st.sampled_from(["unread", "read"]),
)
runs = st.builds(
    a_run,
    st.sampled_from(["r1", "r2", "r3"]),
    agent_id=st.sampled_from([None, "a1", "a2"]),
    created_at=st.sampled_from(["1", "2"]),
    active=st.booleans(),
    turn=st.integers(-(2**63), 2**63 - 1),
    machine=st.sampled_from(["{}", '{"type":"image","data":"' + "A" * 100 + '"}', '"' + "z" * 70_000 + '"']),
)
rows: st.SearchStrategy[Record] = items | runs
states = st.sampled_from(["unread", "read", ("unread",), ("unread", "read"), ()])
calls = st.sampled_from([None, "x", ("x", None), ("x", "y", "\x00")])
conditions = st.fixed_dictionaries({}, optional={"agent_id": agents, "state": states, "call_id": calls})
limits = st.none() | st.integers(0, 5)
orders = st.sampled_from(["call_id", ("state", "position"), "state", (), ("agent_id", "position")])

Step = Callable[[Tx], Any]


def _find(order: Any, desc: bool, limit: int | None, where: dict[str, Any]) -> Step:
    return lambda tx: [astuple(row) for row in tx.find(InboxRecord, order=order, desc=desc, limit=limit, **where)]


def _page(after: int, desc: bool, where: dict[str, Any]) -> Step:
    start = ("read", after)
    return lambda tx: [
        astuple(row) for row in tx.find(InboxRecord, order=("state", "position"), after=start, desc=desc, **where)
    ]


def _update(row: Record, fields: list[str]) -> Step:
    return lambda tx: tx.update(row, *fields)


changes: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda row: lambda tx: tx.insert(row), rows),
    st.builds(lambda row: lambda tx: tx.put(row), rows),
    st.builds(
        lambda several: lambda tx: tx.insert_all(several), st.lists(items, max_size=3) | st.lists(runs, max_size=3)
    ),
    st.builds(_update, items, st.lists(st.sampled_from(["state", "call_id", "item_id"]), min_size=1, unique=True)),
    st.builds(_update, runs, st.lists(st.sampled_from(["active", "turn", "machine"]), min_size=1, unique=True)),
    st.builds(lambda agent, n: lambda tx: tx.delete(InboxRecord, agent, n), agents, st.integers(1, 4)),
    st.builds(lambda n, where: lambda tx: tx.delete_some(InboxRecord, n, **where), st.integers(0, 3), conditions),
)
questions: st.SearchStrategy[Step] = st.one_of(
    st.builds(_find, orders, st.booleans(), limits, conditions),
    st.builds(_page, st.integers(0, 5), st.booleans(), conditions),
    st.builds(lambda where: lambda tx: tx.count(InboxRecord, **where), conditions),
    st.builds(lambda agent: lambda tx: [astuple(r) for r in tx.find(RunRecord, agent_id=agent)], agents | st.none()),
)
transitions = st.lists(st.tuples(st.lists(changes | questions, max_size=6), st.booleans()), min_size=1, max_size=10)


async def played(store: Store, script: list[tuple[list[Step], bool]]) -> list[Any]:
    """What the transitions answered, what was published, and all that is kept in the end."""
    heard: list[Any] = []
    store.on_commit(heard.append)

    def transition(steps: list[Step], fails: bool) -> Callable[[Tx], list[Any]]:
        def change(tx: Tx) -> list[Any]:
            answers = []
            for step in steps:
                try:
                    answers.append(step(tx))
                except (Conflict, KeyError) as error:
                    answers.append(type(error))
                tx.publish(answers[-1])
            if fails:
                raise LookupError(str(answers))
            return answers

        return change

    answers = [
        str(answer)
        for steps, fails in script
        for answer in await asyncio.gather(store.write(transition(steps, fails)), return_exceptions=True)
    ]
    kept = await store.read(lambda tx: [astuple(row) for kind in (InboxRecord, RunRecord) for row in tx.find(kind)])
    await store.aclose()
    return [answers, heard, kept]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=transitions)
async def test_both_stores_answer_and_keep_the_same(script: list[tuple[list[Step], bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = await SqliteStore.open(Path(folder), durability="normal")
        assert await played(store, script) == await played(MemoryStore(), script)
