"""The SQLite store's schema and files, and what it says of a place that cannot be used."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from store_rows import event, message

from sojourn.core.errors import StorageError
from sojourn.store import migrations
from sojourn.store.records import INDEXES, TABLES, EventRecord, MessageRecord
from sojourn.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


def rows(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


def test_the_schema_is_that_of_the_records(tmp_path: Path) -> None:
    types = {str: "TEXT", int: "INTEGER", bool: "INTEGER", float: "REAL"}
    path = tmp_path / "sojourn.db"
    migrations.open_writer(path, "normal").close()
    for kind in TABLES:
        table = kind.TABLE
        hints = get_type_hints(kind)
        wanted = []
        for field in fields(kind):  # type: ignore[arg-type]
            plain = next(t for t in types if hints[field.name] in (t, t | None))
            wanted.append((field.name, types[plain], int(hints[field.name] == plain)))
        got = [
            (name, type_, notnull) for _, name, type_, notnull, _, _ in rows(path, f"PRAGMA table_info({table.name})")
        ]
        assert got == wanted, table.name
        assert rows(path, f"SELECT strict, wr FROM pragma_table_list WHERE name = '{table.name}'") == [(1, 0)]
        keys = {
            columns_in(path, index): (unique, partial)
            for _, index, unique, _, partial in rows(path, f"PRAGMA index_list({table.name})")
        }
        expected = dict.fromkeys((table.key, *table.unique), (1, 0))
        expected |= {columns: (1, 1) for columns, _, _ in table.unique_when}
        expected |= dict.fromkeys(INDEXES.get(table.name, ()), (0, 0))
        assert keys == expected, table.name
        for body in table.bodies:
            for event_, what in (("DELETE", "deleted"), (f"UPDATE OF {body}", "replaced")):
                ((sql,),) = rows(path, f"SELECT sql FROM sqlite_schema WHERE name = '{table.name}_{body}_{what}'")
                assert f"AFTER {event_} ON {table.name} WHEN OLD.{body} GLOB 'blobs:*'" in sql
                assert f"json_each(substr(OLD.{body}, 7), '$.blobs')" in sql


def columns_in(path: Path, index: str) -> tuple[str, ...]:
    return tuple(name for _, _, name in rows(path, f"PRAGMA index_info({index})"))


@contextmanager
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


async def test_only_the_owner_can_read_whatever_the_umask_is(tmp_path: Path) -> None:
    with open_umask():
        store = await SqliteStore.open(tmp_path / "new" / "state")
        await store.write(lambda tx: tx.insert(message(1)))
        await store.read(lambda tx: tx.count(MessageRecord))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "new").rglob("*")}
        await store.aclose()
    assert modes == {"state": 0o700, "sojourn.db": 0o600, "sojourn.db-wal": 0o600, "sojourn.db-shm": 0o600}
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


async def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    await (await SqliteStore.open(tmp_path)).aclose()
    (tmp_path / "sojourn.db").chmod(0o644)
    await (await SqliteStore.open(tmp_path)).aclose()
    assert stat.S_IMODE((tmp_path / "sojourn.db").stat().st_mode) == 0o600


async def test_an_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    await (await SqliteStore.open(tmp_path)).aclose()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def a_file_in_the_way(folder: Path) -> Path:
    (folder / "state").write_text("a file")
    return folder / "state"


def a_file_above(folder: Path) -> Path:
    return a_file_in_the_way(folder) / "below"


def no_database(folder: Path) -> Path:
    (folder / "sojourn.db").write_bytes(b"this is not a database" * 1000)
    return folder


def another_programs_database(folder: Path) -> Path:
    with closing(sqlite3.connect(folder / "sojourn.db")) as db:
        db.execute("CREATE TABLE theirs (x)")
    return folder


def a_directory_for_a_file(folder: Path) -> Path:
    (folder / "sojourn.db").mkdir()
    return folder


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (a_file_in_the_way, "not a directory"),
        (a_file_above, "not a directory"),
        (no_database, "not a Sojourn database"),
        (another_programs_database, "not one of Sojourn"),
        (a_directory_for_a_file, "cannot be opened"),
    ],
)
async def test_a_state_directory_that_cannot_be_used_is_named_with_its_setting(
    tmp_path: Path, trouble: Any, said: str
) -> None:
    directory = trouble(tmp_path)
    with pytest.raises(StorageError) as refused:
        await SqliteStore.open(directory)
    assert said in refused.value.message
    assert repr(str(directory))[:-1] in refused.value.message
    assert "--state-dir or SOJOURN_STATE_DIR" in refused.value.message
    assert "\n" not in refused.value.message


READ_ONLY = """
import asyncio, os, sys
from pathlib import Path
from sojourn.core.errors import StorageError
from sojourn.store.migrations import load_scripts
from sojourn.store.sqlite import SqliteStore
asyncio.run(asyncio.to_thread(load_scripts))  # while Python's own files can be read
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
try:
    asyncio.run(SqliteStore.open(Path(sys.argv[1])))
except StorageError as error:
    print(error)
"""


@pytest.mark.parametrize("existing", [False, True])
async def test_a_directory_that_cannot_be_written_is_told_at_the_start(tmp_path: Path, existing: bool) -> None:
    state = tmp_path / "state"
    if existing:
        await (await SqliteStore.open(state)).aclose()
        (state / "sojourn.db").chmod(0o444)
    else:
        state.mkdir()
    state.chmod(0o555)
    for above in (tmp_path, *tmp_path.parents[:3]):
        if above.is_relative_to("/tmp") and above != Path("/tmp"):
            above.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", READ_ONLY, str(state)], capture_output=True, text=True, timeout=30)
    assert "--state-dir or SOJOURN_STATE_DIR" in done.stdout, done.stderr
    assert str(state) in done.stdout
    assert len(list(state.iterdir())) == existing


async def test_eight_openers_of_one_fresh_store_agree(tmp_path: Path) -> None:
    stores = await asyncio.gather(*(SqliteStore.open(tmp_path / "state") for _ in range(8)))
    assert len({store.store_id for store in stores}) == 1

    async def save(store: SqliteStore, n: int) -> None:
        for seq in range(1, 6):
            await store.write(lambda tx, seq=seq: tx.insert(event(seq, agent=f"a{n}")))

    await asyncio.gather(*(save(store, n) for n, store in enumerate(stores)))
    assert await stores[0].read(lambda tx: tx.count(EventRecord)) == 40
    for store in stores:
        await store.aclose()


EIGHT = """
import asyncio, os, sys
from pathlib import Path
from sojourn.store.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]))
    os.write(1, store.store_id.encode() + b"\\n")
    await store.aclose()

start, go = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        os.close(go)
        os.read(start, 1)
        asyncio.run(main())
        os._exit(0)
os.close(go)
sys.exit(any(os.wait()[1] for _ in range(8)))
"""


def test_eight_processes_open_one_fresh_store_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EIGHT, str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    ids = done.stdout.split()
    assert len(ids) == 8
    assert len(set(ids)) == 1


# -- remains of a database --------------------------------------------------------------------------------------------


def killed(directory: Path) -> Path:
    """A database whose process was killed: all that it holds is in its log, as with every small one."""
    script = (
        "import asyncio, os, sys\nfrom pathlib import Path\nfrom store_rows import event\n"
        "from sojourn.store.sqlite import SqliteStore\n"
        "async def main():\n"
        "    store = await SqliteStore.open(Path(sys.argv[1]))\n"
        "    await store.write(lambda tx: tx.insert(event(1)))\n"
        "    os._exit(0)\n"
        "asyncio.run(main())\n"
    )
    tests = str(Path(__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": tests}
    subprocess.run([sys.executable, "-c", script, str(directory)], check=True, env=env, timeout=60)
    assert (directory / "sojourn.db-wal").stat().st_size > 0
    return directory / "sojourn.db"


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir() if not file.name.endswith("-shm")}


@pytest.mark.parametrize("empty", [False, True], ids=["gone", "empty"])
async def test_a_log_without_its_database_is_left_as_it_is(tmp_path: Path, empty: bool) -> None:
    path = killed(tmp_path)
    whole = path.read_bytes()
    path.unlink()
    if empty:
        path.touch()
    before = contents(tmp_path)
    with pytest.raises(StorageError, match=r"'sojourn\.db-wal' beside it holds what was written to it last; put"):
        await SqliteStore.open(tmp_path)
    assert contents(tmp_path) == before
    path.write_bytes(whole)
    store = await SqliteStore.open(tmp_path)
    assert await store.read(lambda tx: tx.count(EventRecord)) == 1
    await store.aclose()


@pytest.mark.parametrize("size", [1, 99, 1_000, 8_191])
async def test_the_beginning_of_a_database_is_not_taken_for_a_fresh_one(tmp_path: Path, size: int) -> None:
    await (await SqliteStore.open(tmp_path)).aclose()
    path = tmp_path / "sojourn.db"
    path.write_bytes(path.read_bytes()[:size])
    before = contents(tmp_path)
    with pytest.raises(StorageError, match=r"(has only \d+ bytes of a database|is damaged|is not a Sojourn database)"):
        await SqliteStore.open(tmp_path)
    assert contents(tmp_path) == before


async def test_a_damaged_database_is_said_to_be_damaged_and_left_as_it_is(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)
    await store.write(lambda tx: tx.insert(event(1)))
    await store.aclose()
    path = tmp_path / "sojourn.db"
    path.write_bytes(path.read_bytes()[: 8_192 * 4])
    before = contents(tmp_path)
    with pytest.raises(StorageError, match=r"is damaged .*; put a copy from before in its place, or move it away"):
        await SqliteStore.open(tmp_path)
    assert contents(tmp_path)["sojourn.db"] == before["sojourn.db"]


@pytest.mark.parametrize("version", [-1, 99])
async def test_a_version_that_nobody_here_knows_is_left_as_it_is(tmp_path: Path, version: int) -> None:
    await (await SqliteStore.open(tmp_path)).aclose()
    path = tmp_path / "sojourn.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")
    before = contents(tmp_path)
    with pytest.raises(StorageError, match=rf"is of version {version} and this Sojourn reads up to version \d+"):
        await SqliteStore.open(tmp_path)
    assert contents(tmp_path) == before
