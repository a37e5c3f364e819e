"""What is the SQLite store's own: its files, group commit, blobs, the log's size, plans, how it starts."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from store_rows import a_run, agent, event, message

from sojourn.core.errors import DamagedRecord, StorageError
from sojourn.store import _writer, migrations
from sojourn.store.base import Conflict, Damaged, Tx
from sojourn.store.records import (
    AgentRecord,
    ApprovalRecord,
    CallRecord,
    EventRecord,
    InboxRecord,
    MessageRecord,
    MetaRecord,
    Record,
    RunRecord,
)
from sojourn.store.sqlite import AT_ONCE, SqliteStore

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(tmp_path / "state")
    async with asyncio.timeout(60):
        yield opened
        await opened.aclose()


def file_of(store: SqliteStore) -> Path:
    return Path(store.stats().path)


def rows(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


async def test_what_was_acknowledged_is_there_after_opening_again(tmp_path: Path) -> None:
    first = await SqliteStore.open(tmp_path)
    await first.write(lambda tx: tx.insert(message(1)))
    await first.aclose()
    second = await SqliteStore.open(tmp_path)
    assert second.store_id == first.store_id
    assert await second.read(lambda tx: tx.get(MessageRecord, "c1", 1)) == message(1)
    await second.aclose()


async def test_an_opening_that_is_given_up_leaves_nothing_open(tmp_path: Path) -> None:
    for turns in range(4):
        opening = asyncio.create_task(SqliteStore.open(tmp_path))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    store = await SqliteStore.open(tmp_path)
    await store.write(lambda tx: tx.insert(message(1)))
    await store.aclose()
    async with asyncio.timeout(10):
        while any(thread.name == "store-writer" for thread in threading.enumerate()):
            await asyncio.to_thread(lambda: None)


async def test_two_stores_have_two_ids(tmp_path: Path) -> None:
    stores = [await SqliteStore.open(tmp_path / name) for name in "ab"]
    assert stores[0].store_id != stores[1].store_id
    for store in stores:
        await store.aclose()


async def test_nothing_but_the_database_is_left_behind(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)
    await store.write(lambda tx: tx.insert(message(1)))
    await store.read(lambda tx: tx.count(MessageRecord))
    await store.aclose()
    assert [file.name for file in tmp_path.iterdir()] == ["sojourn.db"]


async def test_the_connection_is_set_up_for_safety(store: SqliteStore) -> None:
    db = store._writer._connection
    wanted = {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "auto_vacuum": 2,
        "page_size": 8192,
        "trusted_schema": 0,
        "application_id": 0x534F4A4E,
        "user_version": len(migrations.load_scripts()),
        "journal_size_limit": migrations.WAL_KEPT_BYTES,
        "wal_autocheckpoint": 0,
    }
    assert {name: db.execute(f"PRAGMA {name}").fetchone()[0] for name in wanted} == wanted


async def test_normal_durability_leaves_the_fsync_to_the_checkpoint(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path, durability="normal")
    assert store._writer._connection.execute("PRAGMA synchronous").fetchone() == (1,)
    await store.aclose()


async def test_a_hundred_writers_share_few_commits(store: SqliteStore) -> None:
    before = store.stats().commits

    async def writer(n: int) -> None:
        for seq in range(1, 6):
            await store.write(lambda tx, seq=seq: tx.insert(event(seq, agent=f"a{n}")))

    await asyncio.gather(*(writer(n) for n in range(100)))
    assert store.stats().transitions >= 500
    # Five rounds of a hundred; a round is split at most where it overtakes the commit under way.
    assert store.stats().commits - before <= 50


async def test_one_writer_gets_one_commit_per_transition(store: SqliteStore) -> None:
    before = store.stats().commits
    for seq in range(1, 21):
        await store.write(lambda tx, seq=seq: tx.insert(event(seq)))
    assert store.stats().commits - before == 20


async def test_a_batch_is_handed_on_in_order_a_few_transitions_at_a_time(store: SqliteStore) -> None:
    lists: list[list[Any]] = []
    store.on_commit(lists.append)
    before = store.stats().commits

    async def write(n: int) -> None:
        await store.write(lambda tx: tx.publish(n))
        assert n in {item for items in lists for item in items}

    await asyncio.gather(*(write(n) for n in range(200)))
    assert store.stats().commits - before == 1
    assert [n for items in lists for n in items] == list(range(200))
    assert {len(items) for items in lists} == {AT_ONCE}


async def test_the_log_stays_small_while_readers_are_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "WAL_KEPT_BYTES", 768 * 1024)
    monkeypatch.setattr(_writer, "WAL_BYTES", 1024 * 1024)
    monkeypatch.setattr(_writer, "WAL_STEP_BYTES", 512 * 1024)
    monkeypatch.setattr(_writer, "WAL_LIMIT_BYTES", 3 * 1024 * 1024)
    store = await SqliteStore.open(tmp_path)
    log = _writer.log_of(file_of(store))
    body = '"' + "x" * 2000 + '"'
    sizes = []
    done = asyncio.Event()

    async def reader() -> None:
        while not done.is_set():
            await store.read(lambda tx: tx.find(EventRecord, agent_id="a1", order="seq", desc=True, limit=50))

    async def writer(n: int) -> None:
        for seq in range(1, 101):
            await store.write(lambda tx, seq=seq: tx.insert(event(seq, agent=f"a{n}", body=body)))
            sizes.append(_writer.file_size(log))

    readers = [asyncio.create_task(reader()) for _ in range(3)]
    await asyncio.gather(*(writer(n) for n in range(40)))
    done.set()
    await asyncio.gather(*readers)
    assert await store.read(lambda tx: tx.count(EventRecord)) == 4000
    await store.aclose()
    # The log starts anew within a step of its limit; it is then cut to what is kept of it.
    assert max(sizes) < 3 * 1024 * 1024 + 512 * 1024 + migrations.WAL_KEPT_BYTES


async def test_a_reader_that_stays_does_not_stop_the_writer(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_writer, "WAL_BYTES", 64 * 1024)
    monkeypatch.setattr(_writer, "WAL_STEP_BYTES", 64 * 1024)
    monkeypatch.setattr(_writer, "WAL_LIMIT_BYTES", 256 * 1024)
    monkeypatch.setattr(_writer, "WAL_PATIENCE_MS", 1)
    log = _writer.log_of(file_of(store))
    body = '"' + "x" * 4000 + '"'
    with closing(sqlite3.connect(file_of(store))) as stranger:
        stranger.execute("BEGIN")
        stranger.execute("SELECT count(*) FROM events").fetchone()
        for seq in range(1, 101):
            await store.write(lambda tx, seq=seq: tx.insert(event(seq, body=body)))
        held = _writer.file_size(log)
        assert held > 256 * 1024
    for seq in range(101, 121):
        await store.write(lambda tx, seq=seq: tx.insert(event(seq, body=body)))
    ((_, frames, written_back),) = rows(file_of(store), "PRAGMA wal_checkpoint(PASSIVE)")
    assert frames * 8192 < held  # it began anew once the reader had gone
    assert written_back == frames


QUESTIONS: list[tuple[type[Record], dict[str, Any]]] = [
    (MessageRecord, {"conversation": "c", "order": "position", "after": 5, "limit": 10}),
    (MessageRecord, {"conversation": "c", "order": "position", "after": 5, "limit": 10, "desc": True}),
    (EventRecord, {"agent_id": "a", "order": "seq", "after": 5, "limit": 10}),
    (AgentRecord, {"parent_agent_id": None, "deleted": False, "order": "activity", "desc": True, "limit": 10}),
    (AgentRecord, {"state": ("running", "stopping")}),
    (RunRecord, {"agent_id": "a", "order": "created_at", "desc": True, "limit": 10}),
    (RunRecord, {"active": True, "pass_open": True}),
    (CallRecord, {"run_id": "r", "order": "position"}),
    (CallRecord, {"owner": "a", "state": ("pending", "dispatched")}),
    (InboxRecord, {"agent_id": "a", "state": "unread", "order": "position", "limit": 10}),
    (ApprovalRecord, {"decided": False, "order": "since"}),
]


@pytest.mark.parametrize(("kind", "question"), QUESTIONS)
async def test_questions_of_the_daily_work_use_an_index_and_sort_nothing_large(
    store: SqliteStore, kind: type[Record], question: dict[str, Any]
) -> None:
    asked: list[str] = []
    store._writer._connection.set_trace_callback(asked.append)
    await store.write(lambda tx: tx.find(kind, **question))
    store._writer._connection.set_trace_callback(None)
    (sql,) = (text for text in asked if f" FROM {kind.TABLE.name} " in text)
    plan = [detail for *_, detail in rows(file_of(store), f"EXPLAIN QUERY PLAN {sql}")]
    assert plan[0].startswith("SEARCH"), plan
    if "limit" in question:
        assert len(plan) == 1, plan  # no sorting of everything that matches


async def test_a_large_string_is_kept_once_however_often_it_is_quoted(store: SqliteStore) -> None:
    body = '{"content":[{"type":"text","text":"' + "x" * 1_000_000 + '"}]}'
    for n in range(1, 6):
        await store.write(lambda tx, n=n: [tx.insert(message(n, body)), tx.insert(event(n, body=body))])
    assert await store.read(lambda tx: {row.body for row in tx.find(MessageRecord)}) == {body}
    assert await store.read(lambda tx: {row.body for row in tx.find(EventRecord)}) == {body}
    assert rows(file_of(store), "SELECT uses FROM blob_uses") == [(10,)]
    await store.aclose()
    assert file_of(store).stat().st_size < 1_700_000


async def test_a_blob_goes_when_nobody_quotes_it_any_more(store: SqliteStore) -> None:
    large, other = ('"' + letter * 100_000 + '"' for letter in "xy")
    digests = "SELECT count(*) FROM blobs"

    def transition(tx: Tx) -> None:
        tx.insert(message(1, large))
        tx.insert(message(2, large))
        tx.insert(a_run("r1", machine=large, outcome=large))
        tx.insert(a_run("r2", machine=other))

    await store.write(transition)
    assert rows(file_of(store), digests) == [(2,)]
    await store.write(lambda tx: tx.delete(MessageRecord, "c1", 1))
    await store.write(lambda tx: tx.update(a_run("r1"), "machine", "outcome"))
    await store.write(lambda tx: tx.put(a_run("r2")))
    await store.aclose()
    again = await SqliteStore.open(file_of(store).parent)
    await tidied(again)
    assert rows(file_of(store), digests) == [(1,)]
    (kept,) = await again.read(lambda tx: tx.find(MessageRecord))
    assert kept.body == large
    await again.write(lambda tx: tx.delete_some(MessageRecord, 10))
    await tidied(again)
    assert rows(file_of(store), digests) == [(0,)]
    assert rows(file_of(store), "SELECT count(*) FROM blob_uses") == [(0,)]
    await again.aclose()


async def tidied(store: SqliteStore) -> None:
    """Returns once the writer has nothing left to tidy."""
    async with asyncio.timeout(10):
        while store._writer._untidy:
            await store.read(lambda tx: None)


async def test_a_refused_row_quotes_no_blob(store: SqliteStore) -> None:
    large = '"' + "x" * 100_000 + '"'

    def transition(tx: Tx) -> None:
        tx.insert(message(1, large))
        with pytest.raises(Conflict):
            tx.insert(message(1, large))
        with pytest.raises(KeyError):
            tx.update(message(7, large), "body")

    await store.write(transition)
    assert rows(file_of(store), "SELECT uses FROM blob_uses") == [(1,)]


async def test_tidying_that_fails_harms_nobody(store: SqliteStore, caplog: pytest.LogCaptureFixture) -> None:
    await tidied(store)
    with closing(sqlite3.connect(file_of(store))) as stranger:
        stranger.execute("ALTER TABLE blob_uses RENAME TO elsewhere")
    await store.write(lambda tx: [tx.insert(message(1)), tx.delete(MessageRecord, "c1", 1)])
    await tidied(store)
    assert "put off" in caplog.text
    await store.write(lambda tx: tx.insert(message(1)))


async def test_a_store_whose_file_is_gone_cannot_be_read(store: SqliteStore) -> None:
    file_of(store).unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        await store.read(lambda tx: tx.count(MessageRecord))


async def test_a_busy_store_tidies_too(store: SqliteStore) -> None:
    await tidied(store)
    await store.write(lambda tx: tx.insert(message(1, '"' + "x" * 100_000 + '"')))
    blobs: list[int] = []
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def transition(tx: Any) -> None:  # queues the next one, so that something is queued at every moment
        tx.delete(MessageRecord, "c1", 1)
        blobs.append(len(tx._rows("SELECT 1 FROM blobs", ())))
        last = blobs[-1] == 0 or len(blobs) > 200
        following = _writer.Job((lambda tx: None) if last else transition, done if last else loop.create_future())
        store._writer.queue.put([following])

    await store.write(transition)
    await done
    assert blobs[0] == 1
    assert blobs[-1] == 0


async def test_deleting_much_gives_the_space_back(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_writer, "TIDY_PAGES", 100)
    body = '"' + "x" * 30_000 + '"'
    await store.write(lambda tx: [tx.insert(message(n, body)) for n in range(100)])
    large = store.stats().bytes
    await store.write(lambda tx: tx.delete_some(MessageRecord, 1000))
    await tidied(store)
    await store.aclose()
    assert file_of(store).stat().st_size < large / 2
    assert rows(file_of(store), "PRAGMA integrity_check") == [("ok",)]


async def test_one_damaged_row_hides_no_other(store: SqliteStore, caplog: pytest.LogCaptureFixture) -> None:
    large = '{"text":"' + "x" * 100_000 + '"}'
    await store.write(lambda tx: [tx.insert(message(1, large)), *(tx.insert(message(n)) for n in (2, 3))])
    await store.aclose()
    with closing(sqlite3.connect(file_of(store), isolation_level=None)) as db:
        db.execute("DELETE FROM blobs")
        db.execute("UPDATE messages SET role = CAST(x'75ff' AS TEXT) WHERE position = 2")
    again = await SqliteStore.open(file_of(store).parent)
    for ask in (again.read, again.write):
        first, second, third = await ask(lambda tx: tx.find(MessageRecord))
        assert first.body.startswith('{"text":"[lost: ')
        assert second.role == "u\ufffd"
        assert third == message(3)
    assert "lost" in caplog.text
    await again.aclose()


async def test_a_value_that_its_column_cannot_hold_is_damage_that_hides_no_other_row(store: SqliteStore) -> None:
    await store.write(lambda tx: [tx.insert(message(n)) for n in (1, 2, 3)])
    await store.aclose()
    path = file_of(store)
    for old, new in (("STRICT", ""), ("", "")):
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            if old:
                db.execute("PRAGMA writable_schema = ON")
                db.execute("UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = 'messages'", (old, new))
            else:
                db.execute("UPDATE messages SET body = x'00', role = 7 WHERE position = 2")
    again = await SqliteStore.open(path.parent)
    for ask in (again.read, again.write):
        damaged: Damaged = {}
        first, second, third = await ask(lambda tx, told=damaged: tx.find(MessageRecord, damaged=told))  # type: ignore[misc]
        assert (first, third) == (message(1), message(3))
        assert (second.position, second.role, second.body) == (2, "7", "")
        assert damaged.keys() == {("c1", 2)}
        for question in (lambda tx: tx.find(MessageRecord), lambda tx: tx.get(MessageRecord, "c1", 2)):
            with pytest.raises(DamagedRecord, match=r"'c1', '2' .*'messages' .*'body' .*bytes in the place of str"):
                await ask(question)
    await again.aclose()


async def test_a_page_that_cannot_be_read_is_told_with_its_table(store: SqliteStore) -> None:
    await store.write(lambda tx: [tx.insert(message(n, '"' + "x" * 3_000 + '"')) for n in range(1, 40)])
    await store.write(lambda tx: tx.insert(agent()))
    await store.aclose()
    path = file_of(store)
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    for start in range(size, len(data), size):
        if b"xxxxxxxx" in data[start : start + size]:
            data[start : start + 200] = b"\xff" * 200
    path.write_bytes(data)
    again = await SqliteStore.open(path.parent)
    for ask in (again.read, again.write):
        with pytest.raises(DamagedRecord, match="The database is damaged where this part of the table 'messages' is"):
            await ask(lambda tx: tx.find(MessageRecord))
        assert await ask(lambda tx: tx.get(AgentRecord, "a1")) == agent()
    await again.aclose()


async def test_an_answer_that_nobody_can_hear_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stores: list[SqliteStore] = []

    async def leave_open() -> None:
        stores.append(await SqliteStore.open(tmp_path))

    await asyncio.to_thread(lambda: asyncio.run(leave_open()))
    (store,) = stores
    job = _writer.Job(lambda tx: tx.insert(message(1)), asyncio.get_running_loop().create_future())
    store._writer.queue.put([job])
    store._close()
    assert "event loop ended" in caplog.text
    again = await SqliteStore.open(tmp_path)
    assert await again.read(lambda tx: tx.count(MessageRecord)) == 1
    await again.aclose()


async def test_the_loop_is_free_while_the_disk_works(store: SqliteStore, record_property: Any) -> None:
    """Reports how late the event loop is while agents save; the figure depends on the machine and decides nothing."""
    loop = asyncio.get_running_loop()
    lags = []
    done = asyncio.Event()

    async def clock() -> None:
        while not done.is_set():
            due = loop.time() + 0.001
            await asyncio.sleep(0.001)
            lags.append(loop.time() - due)

    async def writer(n: int) -> None:
        for seq in range(1, 21):
            await store.write(lambda tx, seq=seq: [tx.insert(event(seq * 10 + i, agent=f"a{n}")) for i in range(5)])

    watching = asyncio.create_task(clock())
    await asyncio.gather(*(writer(n) for n in range(20)))
    done.set()
    await watching
    record_property("loop_lag_p99_ms", round(sorted(lags)[len(lags) * 99 // 100] * 1000, 2))
    assert await store.read(lambda tx: tx.count(EventRecord)) == 2000


async def test_a_query_sees_every_transition_that_was_given_before_it(store: SqliteStore) -> None:
    for number in range(50):
        writing = asyncio.ensure_future(store.write(lambda tx, n=number: tx.put(MetaRecord(f"n{n}", "x"))))
        await asyncio.sleep(0)
        assert await store.read(lambda tx, n=number: tx.get(MetaRecord, f"n{n}")) is not None
        await writing
        abandoned = asyncio.ensure_future(store.write(lambda tx, n=number: tx.put(MetaRecord(f"m{n}", "x"))))
        await asyncio.sleep(0)
        abandoned.cancel()
        assert await store.read(lambda tx, n=number: tx.get(MetaRecord, f"m{n}")) is not None
