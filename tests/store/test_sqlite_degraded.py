"""When the disk says no: nothing is acknowledged or published, reads work, and it recovers by itself."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from store_rows import event, message

from sojourn.core.errors import StorageError
from sojourn.store import _writer
from sojourn.store.base import Tx
from sojourn.store.records import EventRecord, MessageRecord
from sojourn.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(tmp_path)
    async with asyncio.timeout(60):
        yield opened
        await opened.aclose()


class Health:
    """What a store said of itself."""

    def __init__(self, store: SqliteStore) -> None:
        self.heard: list[str | None] = []
        self._changed = asyncio.Event()
        store.on_degraded(self._hear)

    def _hear(self, reason: str | None) -> None:
        self.heard.append(reason)
        self._changed.set()

    async def change(self) -> str | None:
        async with asyncio.timeout(10):
            await self._changed.wait()
        self._changed.clear()
        return self.heard[-1]


def limit_pages(store: SqliteStore, more: int | None) -> Any:
    """A transition's way to make the database full after so many more pages (None: as large as it likes)."""
    db = store._writer._connection
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    return db.execute(f"PRAGMA max_page_count = {2**31 if more is None else pages + more}").fetchone()


BIG = '["' + '","'.join("y" * 4000 for _ in range(100)) + '"]'


async def test_a_full_database_refuses_the_whole_batch_and_recovers(store: SqliteStore) -> None:
    health, published = Health(store), []
    store.on_commit(published.extend)
    await store.write(lambda tx: tx.insert(message(1)))
    await store.write(lambda tx: limit_pages(store, 3))

    def saving(n: int, body: str) -> Any:
        def transition(tx: Tx) -> None:
            tx.insert(message(n, body))
            tx.publish(n)

        return transition

    bodies = {2: "{}", 3: BIG, 4: "{}"}
    results = await asyncio.gather(*(store.write(saving(*pair)) for pair in bodies.items()), return_exceptions=True)
    assert [type(result) for result in results] == [StorageError] * 3
    assert "full" in str(results[0])
    assert published == []
    assert "full" in str(await health.change())
    assert await store.read(lambda tx: [row.position for row in tx.find(MessageRecord)]) == [1]

    await asyncio.to_thread(limit_pages, store, None)
    await store.write(saving(5, "{}"))
    assert published == [5]
    assert health.heard[-1] is None
    assert await store.read(lambda tx: [row.position for row in tx.find(MessageRecord)]) == [1, 5]


async def test_an_idle_store_finds_out_by_itself_that_the_disk_is_well(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_writer, "PROBE_S", 0.05)
    health = Health(store)
    await store.write(lambda tx: limit_pages(store, 1))
    with pytest.raises(StorageError):
        await store.write(lambda tx: tx.insert(message(1, BIG)))
    assert await health.change() is not None
    await asyncio.to_thread(limit_pages, store, None)
    assert await health.change() is None
    assert len(health.heard) == 2
    await store.write(lambda tx: tx.insert(message(1, BIG)))


async def test_a_transition_cannot_talk_a_failing_disk_away(store: SqliteStore) -> None:
    await store.write(lambda tx: limit_pages(store, 1))

    def stubborn(tx: Tx) -> str:
        tx.insert(message(1))
        try:
            tx.insert(message(2, BIG))
        except StorageError:
            return "never mind"
        return "kept"

    with pytest.raises(StorageError):
        await store.write(stubborn)
    await asyncio.to_thread(limit_pages, store, None)
    assert await store.read(lambda tx: tx.count(MessageRecord)) == 0


async def test_a_page_that_cannot_be_read_fails_its_reader_alone(store: SqliteStore) -> None:
    health = Health(store)

    def damaged(tx: Any) -> None:
        tx.insert(message(2))
        tx._rows("SELECT * FROM a_table_that_is_gone", ())

    results = await asyncio.gather(
        store.write(lambda tx: tx.insert(message(1))),
        store.write(damaged),
        store.write(lambda tx: tx.insert(message(3))),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), StorageError, type(None)]
    assert await store.read(lambda tx: [row.position for row in tx.find(MessageRecord)]) == [1, 3]
    assert health.heard == []


async def test_a_store_can_be_closed_while_its_disk_is_full(store: SqliteStore) -> None:
    await store.write(lambda tx: limit_pages(store, 1))
    writes = [asyncio.create_task(store.write(lambda tx, n=n: tx.insert(message(n, BIG)))) for n in range(3)]
    await asyncio.sleep(0)
    await store.aclose()
    assert {type(result) for result in await asyncio.gather(*writes, return_exceptions=True)} == {StorageError}


async def test_a_defect_of_the_writer_reaches_its_callers(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job: Any) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr(store._writer, "_step", broken)
    with pytest.raises(StorageError, match="a defect"):
        await store.write(lambda tx: tx.insert(message(1)))
    monkeypatch.undo()
    await store.write(lambda tx: tx.insert(message(1)))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_disk_that_fills_up_costs_the_step_under_way_and_nothing_earlier(
    tiny_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_writer, "PROBE_S", 0.05)
    store = await SqliteStore.open(tiny_disk / "state")
    health = Health(store)
    body = '"' + "x" * 3000 + '"'
    acknowledged = 0

    async def fill_up() -> None:
        nonlocal acknowledged
        for n in range(1, 1000):
            await save(n)
            acknowledged = n

    async def save(n: int) -> None:
        await store.write(lambda tx: tx.insert(event(n, body=body)))

    ballast = tiny_disk / "ballast"
    ballast.write_bytes(b"b" * 600_000)
    with pytest.raises(StorageError):
        await fill_up()
    assert acknowledged > 5
    assert await health.change() is not None
    for _ in range(3):
        with pytest.raises(StorageError):
            await store.write(lambda tx: [tx.insert(event(5000 + i, body=body)) for i in range(300)])
    assert await store.read(lambda tx: tx.count(EventRecord)) == acknowledged

    ballast.unlink()
    while health.heard[-1] is not None:
        await health.change()
    await save(acknowledged + 1)
    await store.aclose()
    again = await SqliteStore.open(tiny_disk / "state")
    events = await again.read(lambda tx: tx.find(EventRecord))
    assert [e.seq for e in events] == list(range(1, acknowledged + 2))
    assert {e.body for e in events} == {body}
    await again.aclose()


async def test_a_store_cannot_be_made_on_a_full_disk(tiny_disk: Path) -> None:
    (tiny_disk / "ballast").write_bytes(b"b" * (2 * 1024 * 1024 - 4096))
    with pytest.raises(StorageError, match=r"is full .*; make room on it, or .* --state-dir or SOJOURN_STATE_DIR"):
        await SqliteStore.open(tiny_disk / "state")
    (tiny_disk / "ballast").unlink()
    store = await SqliteStore.open(tiny_disk / "state")
    await store.write(lambda tx: tx.insert(message(1)))
    await store.aclose()


async def test_a_store_cannot_be_opened_on_a_disk_that_is_full(tiny_disk: Path) -> None:
    await (await SqliteStore.open(tiny_disk / "state")).aclose()
    with contextlib.suppress(OSError), (tiny_disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(b"b" * 4096)
    with pytest.raises(StorageError, match=r"is full .*; make room on it"):
        await SqliteStore.open(tiny_disk / "state")
    (tiny_disk / "ballast").unlink()
    await (await SqliteStore.open(tiny_disk / "state")).aclose()
