"""A killed process costs nothing that was acknowledged."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path

WRITERS = """
import asyncio, os, sys
from pathlib import Path
from sojourn.store.records import EventRecord
from sojourn.store.sqlite import SqliteStore

async def writer(store, agent):
    def step(tx):
        seq = (tx.find(EventRecord, agent_id=agent, order="seq", desc=True, limit=1) or [None])[0]
        number = seq.seq + 1 if seq else 1
        body = '"' + agent * (30_000 if number % 7 == 0 else 20) + '"'
        tx.insert(EventRecord(agent, number, "now", body))
        tx.insert(EventRecord("twin of " + agent, number, "now", body))
        return number
    while True:
        number = await store.write(step)
        os.write(1, f"{agent} {number}\\n".encode())

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]))
    await asyncio.gather(*(writer(store, name) for name in ("one", "two", "three", "four")))

asyncio.run(main())
"""
LIVES = 24


def test_every_acknowledged_row_survives_every_kill(tmp_path: Path) -> None:
    chance = random.Random(11)
    state = tmp_path / "state"
    acknowledged: dict[str, int] = defaultdict(int)
    for life in range(LIVES):
        lines = live_and_die(state, until=chance.randrange(0, 120))
        for line in lines:
            name, number = line.split()
            assert int(number) == acknowledged[name] + 1 or life, "numbers follow one another"
            acknowledged[name] = max(acknowledged[name], int(number))
        check(state / "sojourn.db", acknowledged)
    assert min(acknowledged.values()) > LIVES


def live_and_die(state: Path, until: int) -> list[str]:
    """Runs the writers, kills them after they acknowledged so many rows; answers all that they acknowledged."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITERS, str(state)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(until + 1)]
        process.kill()
        rest, errors = process.communicate(timeout=30)
    assert "" not in lines, errors
    whole = "".join(lines) + rest
    return whole[: whole.rindex("\n")].splitlines()


def check(path: Path, acknowledged: dict[str, int]) -> None:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        sql = "SELECT agent_id, count(*), max(seq) FROM events GROUP BY agent_id"
        stored = {name: (count, last) for name, count, last in db.execute(sql)}
        quoted = {d for (d,) in db.execute("SELECT sha256 FROM blob_uses")}
        assert quoted == {d for (d,) in db.execute("SELECT sha256 FROM blobs")}
    for name, number in acknowledged.items():
        count, last = stored[name]
        assert count == last >= number
        assert stored[f"twin of {name}"] == (count, last), "a transition is kept whole or not at all"
