"""Making, checking and migrating the database file, and the settings that each connection gets.

A file is of version n when the scripts `schema/0001_*.sql` to `schema/<n>_*.sql` ran on it, each in its own transaction
together with the number in `user_version`. A newer file is refused and left alone; of an older one a copy is kept.
Several openers of one fresh file agree: whoever comes second waits and finds the work done.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from shutil import disk_usage
from typing import Literal
from uuid import uuid4

from sojourn.core.errors import StorageError

Durability = Literal["full", "normal"]

APPLICATION_ID = 0x534F4A4E
"""`SOJN`: marks a file as ours."""
BUSY_TIMEOUT_S = 10.0
WAL_KEPT_BYTES = 12 * 1024 * 1024
"""To what the write-ahead log is cut once it is written back: to write over what is there syncs faster than to append.
Less than the size at which the writer writes it back, by which it sees that the log began anew."""

DAMAGED = "put a copy from before in its place, or move it away with the files beside it whose names begin with its own"
"""What to do about a file that is damaged."""
_NO_ROOM = 64 * 1024
_SETTING = "name another directory with --state-dir or SOJOURN_STATE_DIR"
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@dataclass(frozen=True, slots=True)
class Script:
    """A numbered step of the schema."""

    number: int
    name: str
    sql: str


def load_scripts(directory: Traversable | None = None) -> tuple[Script, ...]:
    """The scripts of the schema in their order. Raises `ValueError` when a number is missing or there twice."""
    files = [file for file in (directory or resources.files(__package__) / "schema").iterdir() if ".sql" in file.name]
    scripts = (Script(int(file.name.split("_")[0]), file.name, file.read_text(encoding="utf-8")) for file in files)
    found = sorted(scripts, key=lambda script: script.number)
    if [script.number for script in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"The scripts {[script.name for script in found]!r} are not numbered 1, 2, 3 and so on.")
    return tuple(found)


def open_writer(path: Path, durability: Durability, scripts: Sequence[Script] | None = None) -> sqlite3.Connection:
    """The one connection that writes, to a database of the newest version; directory and file are made when missing.

    Raises `StorageError` with what to do when the directory or the file cannot be used, or is of a newer version.
    """
    scripts = load_scripts() if scripts is None else scripts
    try:
        _refuse_remains(path)
        _make_private_directory(path.parent)
        _make_private_file(path)
        return _patiently_open(path, durability, scripts)
    except OSError as error:
        raise StorageError(f"The state directory {str(path.parent)!r} cannot be used ({error}); {_SETTING}.") from error
    except sqlite3.Error as error:
        raise StorageError(_why_not(path, error)) from error


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that can only read. It may be used in one thread at a time, whichever that is."""
    db = _connect(f"{path.as_uri()}?mode=ro")
    db.execute("PRAGMA query_only = ON")
    return db


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension; errors of the Python module itself count as `SQLITE_ERROR`."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _connect(uri: str) -> sqlite3.Connection:
    db = sqlite3.connect(
        uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=512
    )
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def _patiently_open(path: Path, durability: Durability, scripts: Sequence[Script]) -> sqlite3.Connection:
    # Switching a fresh file to WAL needs it alone and answers "locked" at once, without the busy timeout.
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        db = _connect(f"{path.as_uri()}?mode=rw")
        try:
            _refuse_strangers(db, path, newest=len(scripts))
            _configure(db, durability)
            _migrate(db, path, scripts)
            return db
        except BaseException as error:
            db.close()
            busy = isinstance(error, sqlite3.Error) and primary_code(error) in _BUSY
            if not busy or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _refuse_remains(path: Path) -> None:
    # SQLite deletes the log of a database that is empty, and with it all that was not written back yet. The log first:
    # whoever makes a fresh database has written its first page before there is a log.
    log = path.with_name(f"{path.name}-wal")
    if _size(log) and not _size(path):
        raise StorageError(
            f"{str(path)!r} is missing or empty, but {log.name!r} beside it holds what was written to it last; put the "
            f"database back beside it, move both away, or {_SETTING}."
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _refuse_strangers(db: sqlite3.Connection, path: Path, newest: int) -> None:
    with _transaction(db, "DEFERRED"):
        version, application = _pragma(db, "user_version"), _pragma(db, "application_id")
        tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        size = 0 if _pragma(db, "page_count") else _size(path)
    if size:
        raise StorageError(f"{str(path)!r} has only {size} bytes of a database; move it away, or {_SETTING}.")
    if application != APPLICATION_ID and (tables or version):
        raise StorageError(f"{str(path)!r} is a database, but not one of Sojourn; {_SETTING}.")
    if not 0 <= version <= newest:
        raise StorageError(
            f"{str(path)!r} is of version {version} and this Sojourn reads up to version {newest}; "
            f"use the newer Sojourn that wrote it, or {_SETTING}."
        )


def _configure(db: sqlite3.Connection, durability: Durability) -> None:
    db.execute("PRAGMA page_size = 8192")
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise sqlite3.OperationalError(f"a write-ahead log is not possible there, only {mode!r}")
    db.execute(f"PRAGMA synchronous = {durability}")
    # On macOS an fsync alone does not reach the disk.
    db.execute(f"PRAGMA fullfsync = {durability == 'full'}")
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
    # The store writes the log back itself, after its callers have their answers.
    db.execute("PRAGMA wal_autocheckpoint = 0")


def _migrate(db: sqlite3.Connection, path: Path, scripts: Sequence[Script]) -> None:
    version = _pragma(db, "user_version")
    if 0 < version < len(scripts):
        _keep_copy(db, path.with_name(f"{path.name}.v{version}.backup"))
    for script in scripts[version:]:
        with _transaction(db):
            if _pragma(db, "user_version") < script.number:
                for statement in _statements(script.sql):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {script.number}")
    with _transaction(db):  # also when there is nothing to do: a file that cannot be written is told at the start
        db.execute("INSERT INTO meta (name, value) VALUES ('store_id', ?) ON CONFLICT DO NOTHING", (uuid4().hex,))


@contextmanager
def _transaction(db: sqlite3.Connection, kind: Literal["DEFERRED", "IMMEDIATE"] = "IMMEDIATE") -> Iterator[None]:
    db.execute(f"BEGIN {kind}")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _statements(sql: str) -> Iterator[str]:
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _keep_copy(db: sqlite3.Connection, backup: Path) -> None:
    handle, name = tempfile.mkstemp(dir=backup.parent, prefix=f"{backup.name}.")
    os.close(handle)
    try:
        with closing(sqlite3.connect(name)) as copy:
            db.backup(copy)
        os.replace(name, backup)
    except BaseException:
        os.unlink(name)
        raise


def _pragma(db: sqlite3.Connection, name: str) -> int:
    value = db.execute(f"PRAGMA {name}").fetchone()[0]
    assert isinstance(value, int)
    return value


def _make_private_directory(directory: Path) -> None:
    if directory.is_dir():
        return
    _make_private_directory(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        directory.chmod(0o700)
    if not directory.is_dir():
        raise NotADirectoryError(f"{str(directory)!r} is not a directory")


def _make_private_file(path: Path) -> None:
    # Made under another name and linked: closing a descriptor of a database takes away the locks that SQLite holds on
    # it elsewhere in this process, so none of a file that others may have open is ever made.
    if not path.exists():
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
        os.close(handle)
        try:
            with suppress(FileExistsError):
                os.link(name, path)
        finally:
            os.unlink(name)
    path.chmod(0o600)


def _why_not(path: Path, error: sqlite3.Error) -> str:
    if primary_code(error) == sqlite3.SQLITE_NOTADB:
        return f"{str(path)!r} is not a Sojourn database ({error}); move it away, or {_SETTING}."
    if primary_code(error) == sqlite3.SQLITE_CORRUPT:
        return f"{str(path)!r} is damaged ({error}); {DAMAGED}, or {_SETTING}."
    if _is_full(path.parent, error):
        return f"The disk of {str(path.parent)!r} is full ({error}); make room on it, or {_SETTING}."
    return (
        f"The database {str(path)!r} cannot be opened for writing ({error}); its directory must be writable and on a "
        f"local file system: {_SETTING}."
    )


def _is_full(directory: Path, error: sqlite3.Error) -> bool:
    """Whether the disk is: SQLite says so of the file itself, but not of the memory that it shares through another."""
    code = primary_code(error)
    with suppress(OSError):
        return code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and disk_usage(directory).free < _NO_ROOM)
    return code == sqlite3.SQLITE_FULL
