"""Versions of the database file."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from store_rows import agent, message

from sojourn.core.errors import StorageError
from sojourn.store import migrations
from sojourn.store.migrations import Script, load_scripts, open_writer
from sojourn.store.records import AgentRecord, MessageRecord
from sojourn.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

ADDED = Script(2, "0002_added.sql", "CREATE TABLE added (x TEXT) STRICT; -- one\nINSERT INTO added VALUES ('a;b');\n")
BROKEN = Script(3, "0003_broken.sql", "CREATE TABLE half (x TEXT) STRICT;\nINSERT INTO nowhere VALUES (1);\n")


def first() -> Script:
    """The script of the first version, which never changes once it is released."""
    script = load_scripts()[0]
    assert script.name == "0001_initial.sql"
    return script


def value(path: Path, sql: str) -> object:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchone()[0]


@pytest.fixture
async def version_1(tmp_path: Path) -> Path:
    """A database of version 1 with something in it."""
    store = await SqliteStore.open(tmp_path)
    await store.write(lambda tx: [tx.insert(agent("a1")), tx.insert(message(1, '"' + "x" * 100_000 + '"'))])
    await store.aclose()
    assert value(tmp_path / "sojourn.db", "PRAGMA user_version") == 1
    return tmp_path / "sojourn.db"


async def test_an_older_file_is_copied_then_migrated(version_1: Path) -> None:
    open_writer(version_1, "full", [first(), ADDED]).close()
    assert value(version_1, "PRAGMA user_version") == 2
    assert value(version_1, "SELECT x FROM added") == "a;b"
    assert value(version_1, "SELECT agent_id FROM agents") == "a1"
    backup = version_1.with_name("sojourn.db.v1.backup")
    assert value(backup, "PRAGMA user_version") == 1
    assert value(backup, "SELECT agent_id FROM agents") == "a1"
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert {file.name for file in version_1.parent.iterdir()} == {"sojourn.db", backup.name}


async def test_a_step_that_fails_leaves_the_version_before_it(version_1: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        open_writer(version_1, "full", [first(), ADDED, BROKEN])
    assert value(version_1, "PRAGMA user_version") == 2
    assert value(version_1, "SELECT count(*) FROM sqlite_schema WHERE name = 'half'") == 0
    mended = Script(3, BROKEN.name, "CREATE TABLE whole (x TEXT) STRICT;")
    open_writer(version_1, "full", [first(), ADDED, mended]).close()
    assert value(version_1, "PRAGMA user_version") == 3
    assert version_1.with_name("sojourn.db.v2.backup").exists()


async def test_a_copy_that_cannot_be_made_stops_the_migration(version_1: Path) -> None:
    version_1.with_name("sojourn.db.v1.backup").mkdir()
    with pytest.raises(StorageError, match="--state-dir"):
        open_writer(version_1, "full", [first(), ADDED])
    assert value(version_1, "PRAGMA user_version") == 1
    assert len(list(version_1.parent.iterdir())) == 2


async def test_a_newer_file_is_refused_with_both_numbers_and_left_alone(version_1: Path) -> None:
    with closing(sqlite3.connect(version_1)) as db:
        db.execute("PRAGMA user_version = 4711")
    before = version_1.read_bytes()
    with pytest.raises(StorageError, match=r"version 4711 .* version 1;.*--state-dir or SOJOURN_STATE_DIR"):
        await SqliteStore.open(version_1.parent)
    assert version_1.read_bytes() == before


async def test_a_file_of_the_first_version_can_be_used(version_1: Path) -> None:
    store = await SqliteStore.open(version_1.parent)
    assert await store.read(lambda tx: tx.get(AgentRecord, "a1")) == agent("a1")
    assert await store.read(lambda tx: tx.get(MessageRecord, "c1", 1)) == message(1, '"' + "x" * 100_000 + '"')
    await store.aclose()


async def test_a_file_of_zero_bytes_becomes_a_fresh_store(tmp_path: Path) -> None:
    (tmp_path / "sojourn.db").touch()
    store = await SqliteStore.open(tmp_path)
    await store.write(lambda tx: tx.insert(agent("a1")))
    await store.aclose()


@pytest.mark.parametrize("names", [["0002_b.sql"], ["0001_a.sql", "0003_c.sql"], ["0001_a.sql", "0001_b.sql"]])
def test_scripts_are_numbered_without_gaps(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(ValueError, match="numbered"):
        load_scripts(tmp_path)


def test_a_busy_file_is_waited_for_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sojourn.db"
    monkeypatch.setattr(migrations, "BUSY_TIMEOUT_S", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageError, match="locked"):
            open_writer(path, "normal")
    open_writer(path, "normal").close()


def test_a_file_system_without_shared_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "_connect", lambda uri: sqlite3.connect(":memory:", isolation_level=None))
    with pytest.raises(StorageError, match="local file system"):
        open_writer(tmp_path / "sojourn.db", "normal")
