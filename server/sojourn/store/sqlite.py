"""The embedded store: one SQLite file, one thread that writes, a few that read.

Every transition is committed by the writer's thread, many in one commit when many come at once; one that fails takes no
other along. Its batch comes back to the event loop a few transitions at a time, of each what it published and then its
answer. A commit that fails leaves the store degraded: reads work, writes are tried and refused, and it finds
out by itself when the disk is well again.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sojourn.core.errors import StorageError

from ._border import Listeners, run
from ._transactions import SqliteReadTx
from ._writer import Batch, Job, Writer, file_size, log_of
from .base import ReadTx, StoreStats, Tx
from .migrations import Durability, open_reader

T = TypeVar("T")

FILE_NAME = "sojourn.db"
READERS = 3
AT_ONCE = 2
"""Transitions of a batch that are handed on in one turn of the event loop: each wakes a task, and what that does takes
several turns, so that many times this is in the making at once. With 8, others waited two to three times as long."""
COMPANY, PATIENCE = 8, 8
"""From how many transitions in a batch on the next one is waited for, and for how many turns in which none came."""
HANDFUL = 64
"""Transitions that go to the writer in one piece: it takes whole pieces until a batch is full."""

_log = logging.getLogger(__name__)


class SqliteStore(Listeners):
    """A `Store` in `<state dir>/sojourn.db`. Made by `open`, on the event loop that it then serves."""

    store_id: str

    def __init__(self, state_dir: Path, durability: Durability) -> None:
        super().__init__()
        self._path = Path(state_dir).absolute() / FILE_NAME
        self._loop = asyncio.get_running_loop()
        self._writer = Writer(self._path, durability, self._deliver_soon)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._connections: dict[int, sqlite3.Connection] = {}
        self._closing: asyncio.Future[None] | None = None
        self._given = self._delivered = 0
        """How many transitions were given to the writer, and how many of them came back."""
        self._fresh: list[Job] = []
        self._company = 0
        """How many transitions shared the last batch."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @classmethod
    async def open(cls, state_dir: Path, *, durability: Durability = "full") -> SqliteStore:
        """Opens the store in a directory; both are made when missing, for their owner alone.

        `durability="normal"` gives up what the last moments before a power cut wrote (never a killed process's).
        Raises `StorageError` with what to do when the directory or the file cannot be used, or is of a newer version.
        """
        store = cls(state_dir, durability)
        try:
            store.store_id = await asyncio.to_thread(store._writer.start)
        except BaseException:
            await store.aclose()
            raise
        return store

    async def write(self, transition: Callable[[Tx], T]) -> T:
        """See `Store.write`."""
        self._refuse_when_closed()
        future: asyncio.Future[T] = self._loop.create_future()
        self._given += 1
        self._fresh.append(Job(transition, future))
        if len(self._fresh) == 1:
            self._loop.call_soon(self._gather, 0, 0)
        return await future

    def _gather(self, seen: int, quiet: int) -> None:
        """Hands over what the tasks that ran in this turn of the event loop have for the writer: one batch.

        When many shared the last batch, they are given some turns to come together again: each needs a few to do what
        it does between two transitions, and a batch that only some of them share costs as much as one for all.
        """
        found = len(self._fresh)
        quiet = 0 if found > seen else quiet + 1
        if self._company < COMPANY or found >= self._company or quiet > PATIENCE:
            self._hand_over()
        else:
            self._loop.call_soon(self._gather, found, quiet)

    def _hand_over(self) -> None:
        fresh, self._fresh = self._fresh, []
        for start in range(0, len(fresh), HANDFUL):
            self._writer.queue.put(fresh[start : start + HANDFUL])

    async def read(self, query: Callable[[ReadTx], T]) -> T:
        """See `Store.read`."""
        self._refuse_when_closed()
        if self._delivered < self._given:
            await self._caught_up()
            self._refuse_when_closed()
        return await self._loop.run_in_executor(self._readers, self._answer, query)

    async def _caught_up(self) -> None:
        """Returns when every transition that was given before was committed or failed."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((self._given, waiter))
        await waiter

    def stats(self) -> StoreStats:
        """See `Store.stats`; `bytes` counts the file and its log."""
        size = file_size(self._path) + file_size(log_of(self._path))
        writer = self._writer
        return StoreStats(str(self._path), size, writer.commits, writer.transitions, writer.write_backs)

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        if self._closing is None:
            self._hand_over()
            self._closing = self._loop.run_in_executor(None, self._close)
        await asyncio.shield(self._closing)

    def _refuse_when_closed(self) -> None:
        if self._closing is not None:
            raise StorageError(f"The store {str(self._path)!r} is closed; open it again to use it.")

    def _answer(self, query: Callable[[ReadTx], T]) -> T:
        try:
            connection = self._connection()
            connection.execute("BEGIN")
        except sqlite3.Error as error:
            raise StorageError(f"The store {str(self._path)!r} cannot be read ({error}).") from error
        try:
            return run(query, SqliteReadTx(connection.cursor()))
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _connection(self) -> sqlite3.Connection:
        thread = threading.get_ident()
        if thread not in self._connections:
            self._connections[thread] = open_reader(self._path)
        return self._connections[thread]

    def _close(self) -> None:
        # The readers first: the last connection to close writes the log back, and only the writer may.
        self._readers.shutdown()
        for connection in self._connections.values():
            connection.close()
        self._writer.stop()

    def _deliver_soon(self, batch: Batch) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, batch)
        except RuntimeError:
            _log.warning("The event loop ended before the store %r was closed; nobody hears of it.", str(self._path))

    def _deliver(self, batch: Batch) -> None:
        if batch.health_changed:
            self.tell_degraded(batch.failure)
        self._company = len(batch.jobs)
        self._pass_on(batch.jobs)

    def _pass_on(self, jobs: list[Job]) -> None:
        """Hands on what was published and lets those who wait go on, a few transitions in each turn of the event loop:
        others want to be heard between them."""
        now, rest = jobs[:AT_ONCE], jobs[AT_ONCE:]
        if rest:
            self._loop.call_soon(self._pass_on, rest)
        self.tell_published([item for job in now if job.error is None for item in job.published])
        for job in now:
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(job.error)
        self._delivered += len(now)
        while self._waiting and self._waiting[0][0] <= self._delivered:
            _, waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
