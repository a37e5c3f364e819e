"""How much of raw SQLite's speed the store leaves, and how late the event loop is meanwhile.

The baseline does the same statements with the same settings in one thread and nothing else: `writers` transitions to a
commit, which is what group commit aims at. Both run alternately on databases in the same directory; each line has the
medians of the rounds: `ratio` is our speed by the baseline's, `cpu_ratio` our CPU time a transition by the baseline's
(all threads, the event loop's included).
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from _report import Report

from sojourn.store._statements import statements_of, update_sql
from sojourn.store.base import Tx
from sojourn.store.migrations import open_writer
from sojourn.store.records import AgentRecord, EventRecord, MessageRecord, Record
from sojourn.store.sqlite import FILE_NAME, SqliteStore

ROUNDS = 5
SECONDS = 1.0
BODY = json.dumps({"role": "assistant", "content": [{"type": "text", "text": "word " * 400}]})
EVENT = json.dumps({"type": "messageEnd", "message": {"messageId": "msg-1", "text": "word " * 60}})
BULK = 2_000


def agent_of(n: int) -> AgentRecord:
    return AgentRecord(f"agent-{n}", "now", "now", n, f"conversation-{n}")


def step_of(n: int, seq: int) -> tuple[list[Record], AgentRecord]:
    """What a step of an agent writes: a message, three events, and its own row anew."""
    rows: list[Record] = [MessageRecord(f"conversation-{n}", seq, f"msg-{seq}", "assistant", BODY)]
    rows += [EventRecord(f"agent-{n}", seq * 3 + i, "now", EVENT) for i in range(3)]
    agent = agent_of(n)
    agent.last_seq = seq * 3 + 3
    return rows, agent


@dataclass(frozen=True)
class Pace:
    """How much was done in how long, with how much CPU time."""

    done: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.done / self.seconds


class Raw:
    """The baseline: a connection with the store's settings, in this thread."""

    def __init__(self, folder: Path, agents: int) -> None:
        self.db = open_writer(folder / FILE_NAME, "full")
        self.seq = 0
        self.agents = agents
        self.write([(statements_of(AgentRecord).insert, astuple(agent_of(n))) for n in range(agents)])

    def write(self, statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        for sql, values in statements:
            self.db.execute(sql, values)
        self.db.execute("COMMIT")

    def transitions(self) -> Pace:
        """Transitions."""
        update = update_sql(AgentRecord, ("last_seq", "updated_at"))
        done, start, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - start < SECONDS:
            self.seq += 1
            statements = []
            for n in range(self.agents):
                rows, agent = step_of(n, self.seq)
                statements += [(statements_of(type(row)).insert, astuple(row)) for row in rows]
                statements.append((update, (agent.last_seq, agent.updated_at, agent.agent_id)))
            self.write(statements)
            done += self.agents
            if self.seq % 50 == 0:
                self.db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        return Pace(done, time.perf_counter() - start, time.process_time() - cpu)

    def bulk(self) -> Pace:
        """Rows in one commit."""
        self.seq += 1
        rows = [astuple(EventRecord(f"bulk-{self.seq}", i, "now", EVENT)) for i in range(BULK)]
        start, cpu = time.perf_counter(), time.process_time()
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(statements_of(EventRecord).insert, rows)
        self.db.execute("COMMIT")
        return Pace(BULK, time.perf_counter() - start, time.process_time() - cpu)


class Ours:
    """The store, with so many agents writing at once."""

    def __init__(self, store: SqliteStore, agents: int) -> None:
        self.store = store
        self.seq = 0
        self.agents = agents
        self.lags: list[float] = []

    async def transitions(self) -> Pace:
        """Transitions."""
        done = 0
        start, cpu = time.perf_counter(), time.process_time()
        first = self.seq

        async def agent(n: int) -> None:
            nonlocal done
            seq = first
            while time.perf_counter() - start < SECONDS:
                seq += 1
                await self.store.write(lambda tx, seq=seq: _write_step(tx, n, seq))
                done += 1
                self.seq = max(self.seq, seq)

        clock = asyncio.create_task(self._clock())
        await asyncio.gather(*(agent(n) for n in range(self.agents)))
        clock.cancel()
        return Pace(done, time.perf_counter() - start, time.process_time() - cpu)

    async def bulk(self) -> Pace:
        """Rows in one transition."""
        self.seq += 1
        rows = [EventRecord(f"bulk-{self.seq}", i, "now", EVENT) for i in range(BULK)]
        start, cpu = time.perf_counter(), time.process_time()
        await self.store.write(lambda tx: [tx.insert(row) for row in rows])
        return Pace(BULK, time.perf_counter() - start, time.process_time() - cpu)

    async def _clock(self) -> None:
        while True:
            due = time.perf_counter() + 0.005
            await asyncio.sleep(0.005)
            self.lags.append(time.perf_counter() - due)


def _write_step(tx: Tx, n: int, seq: int) -> None:
    rows, agent = step_of(n, seq)
    for row in rows:
        tx.insert(row)
    tx.update(agent, "last_seq", "updated_at")


async def measure(agents: int, *, bulk: bool = False) -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        raw = Raw(Path(folder, "raw"), agents)
        store = await SqliteStore.open(Path(folder, "ours"))
        await store.write(lambda tx: [tx.insert(agent_of(n)) for n in range(agents)])
        ours = Ours(store, agents)
        before, paces = store.stats(), []
        for _ in range(ROUNDS):
            baseline = raw.bulk() if bulk else raw.transitions()
            paces.append((baseline, await (ours.bulk() if bulk else ours.transitions())))
        after = store.stats()
        await store.aclose()
        raw.db.close()
    more: dict[str, float] = {}
    if not bulk:
        more["transitions_per_commit"] = round(
            (after.transitions - before.transitions) / (after.commits - before.commits), 1
        )
        more["loop_lag_p99_ms"] = round(statistics.quantiles(ours.lags, n=100)[98] * 1000, 2)
    Report().line(
        "store.rows_in_one_transition" if bulk else f"store.transitions.{agents}_writers",
        statistics.median(our.rate for _, our in paces),
        "rows/s" if bulk else "transitions/s",
        baseline="sqlite3 executemany" if bulk else f"sqlite3 loop, {agents} transitions a commit",
        baseline_value=statistics.median(base.rate for base, _ in paces),
        ratio=statistics.median(our.rate / base.rate for base, our in paces),
        cpu_ratio=round(statistics.median(our.cpu / our.done * base.done / base.cpu for base, our in paces), 2),
        **more,
    )


async def main() -> None:
    for agents in (1, 10, 100):
        await measure(agents)
    await measure(1, bulk=True)


if __name__ == "__main__":
    asyncio.run(main())
