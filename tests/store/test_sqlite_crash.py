"""A killed process costs nothing that was acknowledged."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

LIFE = """
import asyncio, os, sys
from pathlib import Path
from sojourn.store.records import EventRecord
from sojourn.store.sqlite import SqliteStore

async def writer(store, agent):
    def step(tx):
        last = tx.find(EventRecord, agent_id=agent, order="seq", desc=True, limit=1)
        number = last[0].seq + 1 if last else 1
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

for _ in sys.stdin:  # a line is a life: forked, because starting Python takes longer than such a life
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(main())
        finally:
            os._exit(1)
    os.write(1, f"born {child}\\n".encode())
    os.waitpid(child, 0)
    os.write(1, b"dead -\\n")
"""
LIVES = 24


def test_every_acknowledged_row_survives_every_kill(tmp_path: Path) -> None:
    chance = random.Random(11)
    path = tmp_path / "state" / "sojourn.db"
    acknowledged: dict[str, int] = defaultdict(int)
    command = [sys.executable, "-c", LIFE, str(path.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(LIVES):
            for name, number in live_and_die(process, until=chance.randrange(1, 120)):
                acknowledged[name] = max(acknowledged[name], number)
            check(path, acknowledged)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0
    assert min(acknowledged.values()) > LIVES


def live_and_die(process: subprocess.Popen[str], until: int) -> Iterator[tuple[str, int]]:
    """A life that is ended after so many rows were acknowledged; answers all that were, in their order."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("live\n")
    process.stdin.flush()
    child, seen = 0, 0
    for line in process.stdout:
        name, word = line.split()
        if name == "dead":
            assert child < 0, "it died before it was killed"
            return
        if name == "born":
            child = int(word)
        else:
            seen += 1
            yield name, int(word)
        if child > 0 and seen >= until:
            os.kill(child, signal.SIGKILL)
            child = -1
    raise AssertionError("the process that starts the lives is gone")


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
