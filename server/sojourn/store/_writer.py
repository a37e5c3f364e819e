"""The thread that writes: batches, commits, the write-ahead log's size, tidying, and finding out when a disk is well.

It never waits to collect a batch: transitions queue up while the previous commit is on its way to the disk, and the
next one takes all of them. What the event loop must hear goes to it in one piece a batch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from sojourn.core.errors import DamagedRecord, StorageError

from ._border import run
from ._later import Later, Unwritten
from ._transactions import RowCache, SqliteTx
from .base import Tx
from .migrations import BUSY_TIMEOUT_S, Durability, open_writer

MAX_BATCH = 256
"""Transitions of one commit: more would keep the event loop busy with their answers."""
PROBE_S = 1.0
"""How often a store whose writes fail tries one of its own."""
WAL_BYTES = 16 * 1024 * 1024
"""From which size on the log is written back, as far as the readers of the moment allow. That takes three
syncs, and comes at every fortieth turn of a lone agent."""
LOOK_EVERY = 4
"""Commits of a small log to a look at its size."""
WAL_STEP_BYTES = 4 * 1024 * 1024
"""How much it then grows before the next try."""
WAL_LIMIT_BYTES = 32 * 1024 * 1024
"""From which size on the writer waits for those readers, so that the log can start anew."""
TIDY_EVERY = 16
"""Commits of a busy store to a step of tidying; an idle one tidies at once."""
WAL_PATIENCE_MS = 100
TIDY_BLOBS = 16
TIDY_PAGES = 256
"""What a step of tidying takes on, so that writes never wait long for it. So many free pages are kept for reuse."""

_log = logging.getLogger(__name__)


class Job:
    """A transition, who waits for it, and how it went."""

    __slots__ = ("error", "future", "published", "result", "transition")

    def __init__(self, transition: Callable[[Tx], Any], future: asyncio.Future[Any]) -> None:
        self.transition = transition
        self.future = future
        self.result: Any = None
        self.published: list[Any] = []
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Nothing of it is kept."""
        self.error = error


class Batch:
    """The jobs of one commit and what the event loop must hear of it: `failure` only when `health_changed`."""

    __slots__ = ("failure", "health_changed", "jobs")

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = jobs
        self.failure: str | None = None
        self.health_changed = False


class Writer:
    """Owns the connection that writes. `queue`, `start` and `stop` are for others, the rest is the thread's own."""

    def __init__(self, path: Path, durability: Durability, deliver: Callable[[Batch], None]) -> None:
        self.queue: SimpleQueue[list[Job] | None] = SimpleQueue()
        self.commits = 0
        self.transitions = 0
        self.write_backs = 0
        self._path = path
        self._log_path = str(log_of(path))
        self._durability: Durability = durability
        self._deliver = deliver
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._failure: str | None = None
        self._untidy = True
        self._stopping = False
        self._checkpoint_at = 0
        self._rows = RowCache()
        self._unwritten = Unwritten()

    def start(self) -> str:
        """Opens the database and starts the thread; answers the store's id. Raises `StorageError`."""
        self._connection = open_writer(self._path, self._durability)
        self._db = self._connection.cursor()
        (store_id,) = self._db.execute("SELECT value FROM meta WHERE name = 'store_id'").fetchone()
        self._thread.start()
        return str(store_id)

    def stop(self) -> None:
        """Commits what is queued, closes the database and ends the thread."""
        self.queue.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            jobs = self._take()
            if jobs:
                self._commit(Batch(jobs))
                self._keep_log_small()
            elif self._failure is not None:
                self._probe()
            if self._untidy and (not jobs or self.commits % TIDY_EVERY == 0):
                self._untidy = self._tidy()
        self._connection.close()

    def _take(self) -> list[Job]:
        """What is queued, after waiting for the first; nothing when there is other work to do meanwhile."""
        jobs: list[Job] = []
        with suppress(Empty):
            if self._failure is not None:
                more = self.queue.get(timeout=PROBE_S)
            else:
                more = self.queue.get(block=not self._untidy)
            while more is not None:
                jobs += more
                if len(jobs) >= MAX_BATCH or self.queue.empty():  # nobody else takes from it
                    return jobs
                more = self.queue.get_nowait()
            self._stopping = True
        return jobs

    def _commit(self, batch: Batch) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for job in batch.jobs:
                self._step(job)
            kept = self._write_out(alone=len(batch.jobs) == 1)
            self._db.execute("COMMIT" if kept else "ROLLBACK")
        except Exception as error:  # noqa: BLE001 (a writer that dies would leave every caller waiting for ever)
            self._undo()
            self._fail(batch, error)
        else:
            self.commits += 1
            self.transitions += sum(job.error is None for job in batch.jobs)
            self._note_health(batch, None)
        self._deliver(batch)

    def _fail(self, batch: Batch, error: Exception) -> None:
        """Nothing of a batch was kept. When a damaged page is to blame and it is known whose, the disk is as well as
        it was."""
        if isinstance(error, DamagedRecord) and len(batch.jobs) == 1:
            batch.jobs[0].error = error
        text = f"The store {str(self._path)!r} could not write ({error}); nothing was kept."
        for job in batch.jobs:
            job.error = job.error if isinstance(job.error, DamagedRecord) else StorageError(text)
        if any(not isinstance(job.error, DamagedRecord) for job in batch.jobs):
            self._note_health(batch, str(error))

    def _step(self, job: Job) -> None:
        """Runs a transition. Raises when the disk fails."""
        tx = SqliteTx(self._db, self._rows, self._unwritten)
        later: Later | None = None

        def whole(tx: SqliteTx) -> Any:
            nonlocal later
            result = job.transition(tx)
            later = tx.finish()
            return result

        try:
            job.result = run(whole, tx)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it belongs to whoever gave the transition)
            job.error = error
        if tx.failure is not None:
            raise tx.failure
        if job.error is not None:
            self._forget_step(tx)
        elif later is not None and later.kinds:
            self._unwritten.take(job.fail, later)
        if tx.saved:
            self._db.execute("RELEASE step")
        if job.error is None:
            job.published = tx.published
            self._untidy = self._untidy or tx.deleted

    def _forget_step(self, tx: SqliteTx) -> None:
        self._rows.restart(self._unwritten.rows)
        if tx.saved:
            self._db.execute("ROLLBACK TO step")

    def _write_out(self, *, alone: bool) -> bool:
        """Writes what the batch's transitions left for later; False when there is nothing to keep, because its only
        transition was refused. Raises when the disk fails."""
        tx = SqliteTx(self._db, self._rows, self._unwritten)
        written = tx.write_out(alone=alone)
        if not written:
            self._rows.clear()
        return written or not alone

    def _undo(self) -> None:
        self._rows.clear()
        self._unwritten.clear()
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):  # the next batch finds the transaction open, fails and tries this again
                self._db.execute("ROLLBACK")

    def _note_health(self, batch: Batch, failure: str | None) -> None:
        batch.failure = failure
        batch.health_changed = failure != self._failure
        if batch.health_changed:
            level = logging.INFO if failure is None else logging.ERROR
            _log.log(level, "Writing to %r: %s.", str(self._path), failure or "works again")
        self._failure = failure

    def _probe(self) -> None:
        batch = Batch([])
        with suppress(sqlite3.Error):  # the log itself may hold the space that is missing
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        try:
            # Large enough to need new pages: a full disk still lets a row of an old page be changed.
            self._db.execute("INSERT OR REPLACE INTO blobs (sha256, data) VALUES ('probe', zeroblob(65536))")
            self._db.execute("DELETE FROM blobs WHERE sha256 = 'probe'")
        except sqlite3.Error as error:
            self._undo()
            self._note_health(batch, str(error))
        else:
            self._note_health(batch, None)
        if batch.health_changed:
            self._deliver(batch)

    def _keep_log_small(self) -> None:
        if self._checkpoint_at == WAL_BYTES and self.commits % LOOK_EVERY:
            return
        size = file_size(self._log_path)
        if size < WAL_BYTES:
            self._checkpoint_at = WAL_BYTES
        elif size >= self._checkpoint_at:
            # A finished write-back lets the next commit start the log anew and cut it, unless a reader still uses it.
            self._checkpoint_at = size + WAL_STEP_BYTES
            self.write_backs += 1
            mode = "PASSIVE" if size < WAL_LIMIT_BYTES else "RESTART"
            with suppress(sqlite3.Error):  # when the disk is full, the next commit says so
                self._db.execute(f"PRAGMA busy_timeout = {WAL_PATIENCE_MS}")
                self._db.execute(f"PRAGMA wal_checkpoint({mode})")
            self._db.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")

    def _tidy(self) -> bool:
        """A step: removes blobs that no body quotes, gives free pages back; answers whether there may be more to do."""
        try:
            unquoted = self._db.execute(
                "SELECT sha256 FROM blob_uses WHERE uses <= 0 LIMIT ?", (TIDY_BLOBS,)
            ).fetchall()
            (free,) = self._db.execute("PRAGMA freelist_count").fetchone()
            if not unquoted and free <= TIDY_PAGES:
                return False
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("DELETE FROM blobs WHERE sha256 = ?", unquoted)
            self._db.executemany("DELETE FROM blob_uses WHERE sha256 = ?", unquoted)
            self._db.execute(f"PRAGMA incremental_vacuum({min(free, TIDY_PAGES)})").fetchall()
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            _log.warning("Tidying %r failed and is put off: %s.", str(self._path), error)
            self._undo()
            return False
        self.commits += 1
        return True


def log_of(path: Path) -> Path:
    """The write-ahead log of a database file."""
    return path.with_name(f"{path.name}-wal")


def file_size(path: str | Path) -> int:
    """Bytes of a file, 0 when there is none."""
    try:
        return os.stat(path).st_size  # after each commit: a `Path` takes ten times as long
    except OSError:
        return 0
