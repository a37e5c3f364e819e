"""The rows that one real turn writes, and the raw baseline that writes them again with nothing else around.

A turn is recorded at the store's border (`Tx.insert`, `insert_all`, `put`, `update`), one list of writes a transition.
The baseline gives them other keys of the same length and writes them with `sqlite3.executemany`, as many commits.
"""

from __future__ import annotations

import copy
import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from sojourn.store._writer import WAL_BYTES
from sojourn.store.migrations import open_writer
from sojourn.store.records import AgentRecord, EventRecord, MessageRecord, Record, changes
from sojourn.store.sqlite import FILE_NAME, SqliteStore


@dataclass(frozen=True)
class Write:
    """One row that was written; `columns` are those of an update, none when the whole row was."""

    op: str
    record: Record
    columns: tuple[str, ...] = ()


Transition = list[Write]
Statements = list[tuple[str, list[tuple[Any, ...]]]]


class RecordingStore:
    """A store that keeps account of what transitions write."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.transitions: list[Transition] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, transition: Callable[[Any], Any]) -> Any:
        def recorded(tx: Any) -> Any:
            kept: Transition = []
            self.transitions.append(kept)
            return transition(_RecordingTx(tx, kept))

        return await self._store.write(recorded)

    @property
    def bytes(self) -> int:
        """Bytes of row contents written so far: text as UTF-8, a number as 8."""
        return sum(_size(value) for t in self.transitions for write in t for value in statement_of(write)[1])


class _RecordingTx:
    def __init__(self, tx: Any, kept: Transition) -> None:
        self._tx = tx
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def insert(self, record: Record, *, later: bool = False) -> None:
        self._kept.append(Write("insert", copy.copy(record)))
        self._tx.insert(record, later=later)

    def insert_all(self, records: Sequence[Record], *, later: bool = False) -> None:
        self._kept.extend(Write("insert", copy.copy(record)) for record in records)
        self._tx.insert_all(records, later=later)

    def put(self, record: Record, *, later: bool = False) -> None:
        self._kept.append(Write("put", copy.copy(record)))
        self._tx.put(record, later=later)

    def save(self, record: Record, before: tuple[Any, ...]) -> None:
        self._kept.append(Write("update", copy.copy(record), changes(record, before)))
        self._tx.save(record, before)

    def update(self, record: Record, *columns: str, later: bool = False) -> None:
        self._kept.append(Write("update", copy.copy(record), columns))
        self._tx.update(record, *columns, later=later)


def _size(value: Any) -> int:
    return len(value.encode()) if isinstance(value, str) else 8


def statement_of(write: Write) -> tuple[str, tuple[Any, ...]]:
    """The statement of a write and its values."""
    table, record = write.record.TABLE, write.record
    names = [field.name for field in fields(record)]  # type: ignore[arg-type]
    if write.op == "insert":
        sql = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        return sql, tuple(getattr(record, name) for name in names)
    columns = write.columns or tuple(name for name in names if name not in table.key)
    sets, key = ", ".join(f"{name} = ?" for name in columns), " AND ".join(f"{name} = ?" for name in table.key)
    sql = f"UPDATE {table.name} SET {sets} WHERE {key}"
    return sql, tuple(getattr(record, name) for name in (*columns, *table.key))


class Raw:
    """The baseline: one thread, one connection with the store's settings, values ready before the clock starts."""

    def __init__(self, folder: Path, turn: list[Transition], agents: int) -> None:
        self.db: sqlite3.Connection = open_writer(folder / FILE_NAME, "full")
        (page,) = self.db.execute("PRAGMA page_size").fetchone()
        # Its log is written back when it is as large as the store lets its own become.
        self.db.execute(f"PRAGMA wal_autocheckpoint = {WAL_BYTES // page}")
        self.turn = _first_puts_insert(turn)
        self._agents = agents
        self._number = 0
        writes = [write for transition in turn for write in transition]
        self._events = sum(isinstance(write.record, EventRecord) for write in writes)
        self._messages = sum(isinstance(write.record, MessageRecord) for write in writes)
        known = next(write.record for write in writes if isinstance(write.record, AgentRecord))
        self.write([_grouped([self.keyed(Write("insert", known), n) for n in range(agents)])])

    def prepared(self) -> list[Statements]:
        """The statements of another turn of all agents, commit by commit."""
        self.begin_turn()
        return [
            _grouped([self.keyed(write, n) for write in transition for n in range(self._agents)])
            for transition in self.turn
        ]

    def write(self, commits: list[Statements]) -> None:
        """Writes what was prepared."""
        for statements in commits:
            self.db.execute("BEGIN IMMEDIATE")
            for sql, values in statements:
                self.db.executemany(sql, values)
            self.db.execute("COMMIT")

    def begin_turn(self) -> None:
        """From here on `keyed` gives the keys of the next turn."""
        self._number += 1

    def keyed(self, write: Write, agent: int) -> Write:
        """The write for another agent and turn, with keys of the same length; bodies as they are."""
        record: Any = copy.copy(write.record)
        if isinstance(record, EventRecord):
            record.seq += self._number * self._events
        if isinstance(record, MessageRecord):
            record.position += self._number * self._messages
        for field in fields(record):
            value = getattr(record, field.name)
            if not isinstance(value, str):
                continue
            if field.name in ("agent_id", "conversation", "owner"):
                setattr(record, field.name, f"{value[:-6]}{agent:06d}")
            elif field.name in ("run_id", "active_run_id"):
                setattr(record, field.name, f"{value[:-12]}{self._number:06d}{agent:06d}")
            elif field.name in ("message_id", "call_id"):
                setattr(
                    record, field.name, re.sub(r"\d+", lambda n: str(int(n[0]) + 10 * self._number), value, count=1)
                )
        return Write(write.op, record, write.columns)


Plain = list[tuple[str, list[Any], list[int]]]
"""Statements, their values, and which of these are data yet to be encoded as JSON."""


class RawLoop:
    """The least program that writes these rows: agent by agent it encodes each JSON column and runs each statement.

    As many commits as `Raw`, each with all agents in it, which is as far as group commit can go.
    """

    def __init__(self, folder: Path, turn: list[Transition], agents: int) -> None:
        self._raw = Raw(folder, turn, agents)
        self._agents = agents
        self._turn = self._raw.turn
        self.db = self._raw.db

    def prepared(self) -> list[Plain]:
        """The data of another turn of all agents, commit by commit."""
        self._raw.begin_turn()
        return [
            [_unencoded(self._raw.keyed(write, n)) for n in range(self._agents) for write in transition]
            for transition in self._turn
        ]

    def write(self, commits: list[Plain]) -> None:
        """Writes what was prepared."""
        for statements in commits:
            self.db.execute("BEGIN IMMEDIATE")
            for sql, values, encode in statements:
                for place in encode:
                    values[place] = orjson.dumps(values[place]).decode()
                self.db.execute(sql, values)
            self.db.execute("COMMIT")


def _unencoded(write: Write) -> tuple[str, list[Any], list[int]]:
    sql, row = statement_of(write)
    values = list(row)
    encode = [place for place, value in enumerate(values) if isinstance(value, str) and value[:1] in ("{", "[")]
    for place in encode:
        values[place] = orjson.loads(values[place])
    return sql, values, encode


def _grouped(writes: list[Write]) -> Statements:
    pairs = [statement_of(write) for write in writes]
    return [(sql, [values for _, values in some]) for sql, some in groupby(pairs, key=lambda pair: pair[0])]


def _first_puts_insert(turn: list[Transition]) -> list[Transition]:
    """The recorded writes; a run's row, which is put before it exists, is inserted."""
    known: set[tuple[Any, ...]] = set()
    result = []
    for transition in turn:
        writes = []
        for write in transition:
            key = (write.record.TABLE.name, *(getattr(write.record, name) for name in write.record.TABLE.key))
            fresh = write.op == "put" and key not in known and not isinstance(write.record, AgentRecord)
            known.add(key)
            writes.append(Write("insert", write.record) if fresh else write)
        result.append(writes)
    return result
