"""A transition's view of an SQLite database.

What SQLite refuses becomes a plain Python error: `Conflict` for a taken key or unique value, `TypeError` for a value
that its column cannot hold, `StorageError` for the disk. An error of the disk stays in `failure`, whatever the
transition does with it: nothing of its batch can be kept.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter, ne
from typing import Any, ClassVar, TypeVar

from sojourn.core.errors import DamagedRecord, StorageError

from ._bodies import MARK, must_pack, none_to_pack, pack, unpack
from ._border import Ended
from ._columns import check_limit, columns_of, order_columns, remembered, shape_of, start_values, whole_row
from ._later import Later, Unwritten
from ._statements import (
    conditions_of,
    count_sql,
    delete_some_sql,
    query_sql,
    statements_of,
    update_sql,
)
from .base import Conflict, Damaged
from .migrations import DAMAGED, primary_code
from .records import AgentRecord, CallRecord, Record, RunRecord

R = TypeVar("R", bound=Record)

_log = logging.getLogger(__name__)

_TAKEN = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)
_DISK = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
)


class SqliteReadTx:
    """A `ReadTx` in the transaction that is open on a connection; unusable once that has ended."""

    __slots__ = ("_db", "failure")

    def __init__(self, db: sqlite3.Cursor) -> None:
        self._db: Any = db
        self.failure: sqlite3.Error | None = None

    def get(self, kind: type[R], *key: Any) -> R | None:
        """See `ReadTx.get`."""
        found = self._rows(statements_of(kind).get, key)
        return self._records(kind, found)[0] if found else None

    def find(
        self,
        kind: type[R],
        /,
        *,
        order: str | Sequence[str] = (),
        desc: bool = False,
        after: Any = None,
        limit: int | None = None,
        damaged: Damaged | None = None,
        **where: Any,
    ) -> list[R]:
        """See `ReadTx.find`."""
        order = order if isinstance(order, str) else tuple(order)
        conditions, values = conditions_of(where)
        sql = query_sql(kind, conditions, order, desc, after is not None)
        if after is not None:
            values += start_values(kind, order_columns(kind, order), after)
        check_limit(limit)
        return self._records(kind, self._rows(sql, (*values, -1 if limit is None else limit)), damaged)

    def count(self, kind: type[R], /, **where: Any) -> int:
        """See `ReadTx.count`."""
        conditions, values = conditions_of(where)
        ((number,),) = self._rows(count_sql(kind, conditions), values)
        assert isinstance(number, int)
        return number

    def end(self) -> None:
        """Every later use raises: the transaction is over."""
        self._db = Ended()

    def _records(self, kind: type[R], rows: list[tuple[Any, ...]], damaged: Damaged | None = None) -> list[R]:
        columns = statements_of(kind).columns
        if not columns.known_shapes.issuperset(map(shape_of, rows)):
            rows = [whole_row(columns, row, damaged) for row in rows]
        for i in columns.bodies:
            for n, row in enumerate(rows):
                text = row[i]
                if text is not None and text.startswith(MARK):
                    rows[n] = (*row[:i], self._unpacked(text), *row[i + 1 :])
        records = [kind(*row) for row in rows]
        for name in columns.bools:
            for record in records:
                setattr(record, name, bool(getattr(record, name)))
        return records

    def _unpacked(self, text: str) -> str:
        try:
            return unpack(text, self._blob)
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
        ) as error:
            # It stays as it is, which is no JSON: whoever reads it says so.
            _log.error("A packed body is damaged (%s).", error)
            return text

    def _blob(self, digest: str) -> bytes | None:
        rows = self._rows("SELECT data FROM blobs WHERE sha256 = ?", (digest,))
        if not rows:
            _log.error("A body quotes the blob %s, which is lost.", digest)
            return None
        data: bytes = rows[0][0]
        return data

    def _rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(sql, values).fetchall()  # type: ignore[no-any-return]
        except sqlite3.Error as error:
            if "decode to UTF-8" in str(error):
                return self._damaged_rows(sql, values)
            raise self._plain(error, sql) from error

    def _damaged_rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        # A damaged text in one row must not hide the others.
        connection: sqlite3.Connection = self._db.connection
        connection.text_factory = _decoded
        try:
            return self._db.execute(sql, values).fetchall()  # type: ignore[no-any-return]
        finally:
            connection.text_factory = str

    def _plain(self, error: sqlite3.Error, sql: str) -> Exception:
        if primary_code(error) == sqlite3.SQLITE_CORRUPT:
            self.failure = error  # SQLite commits nothing of a transaction that met it
            return DamagedRecord.file(_table_of(sql), str(error), DAMAGED)
        if isinstance(error, sqlite3.IntegrityError):
            taken = getattr(error, "sqlite_errorcode", 0) in _TAKEN
            return Conflict(f"{error}: another row has it.") if taken else TypeError(f"{error}.")
        if not hasattr(error, "sqlite_errorcode") or isinstance(error, sqlite3.DataError):
            return TypeError(f"SQLite cannot keep this: {error}.")
        if primary_code(error) in _DISK:
            self.failure = error
        return StorageError(f"The store cannot do this: {error}.")


class RowCache:
    """Rows as the writer's open transaction has them: a step of an agent reads the rows that its last step wrote.

    Only whoever writes may use it, and must `clear` it when anything is rolled back.
    """

    KINDS: ClassVar[frozenset[Any]] = frozenset((AgentRecord, RunRecord, CallRecord))

    def __init__(self, *, keep: int = 4096) -> None:
        self._rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._keep = keep

    def get(self, kind: type[Record], key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The row, None when it must be read."""
        return self._rows.get((kind, *key))

    def put(self, record: Record, row: tuple[Any, ...]) -> None:
        """The whole row was written, or read."""
        kind = type(record)
        if kind in self.KINDS:
            self._rows[columns_of(kind).name(row)] = row
            if len(self._rows) > self._keep:
                del self._rows[next(iter(self._rows))]

    def update(
        self, kind: type[Record], key: tuple[Any, ...], places: tuple[int, ...], values: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        """Some columns of the row were written: the row as it is now, None when it is not at hand."""
        name = (kind, *key)
        row = self._rows.get(name)
        if row is None:
            return None
        fresh = list(row)
        for place, value in zip(places, values, strict=False):
            fresh[place] = value
        self._rows[name] = row = tuple(fresh)
        return row

    def replace(self, key: tuple[Any, ...], row: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
        """The whole row was written; False, and nothing done, when it is not at hand as it was `before`."""
        if self._rows.get(key) != before:
            return False
        self._rows[key] = row
        return True

    def clear(self) -> None:
        """Forgets all rows."""
        self._rows.clear()

    def restart(self, unwritten: Later) -> None:
        """Forgets all rows but those that are not in the database yet."""
        self._rows.clear()
        self._rows.update({key: row for key, (_, row, _) in unwritten.changed.items()})


class SqliteTx(SqliteReadTx):
    """A `Tx` of the writer's transaction; in a savepoint of its own from its first write on that cannot wait."""

    __slots__ = ("_cache", "_later", "_unwritten", "deleted", "published", "saved")

    def __init__(self, db: sqlite3.Cursor, cache: RowCache, unwritten: Unwritten) -> None:
        super().__init__(db)
        self._cache: Any = cache
        self._unwritten: Any = unwritten
        self._later = Later()
        self.published: list[Any] = []
        self.deleted = False
        self.saved = False
        """Whether it is in a savepoint, `step`."""

    def get(self, kind: type[R], *key: Any) -> R | None:
        """See `ReadTx.get`."""
        found = self.read(kind, *key)
        return None if found is None else found[0]

    def read(self, kind: type[R], *key: Any) -> tuple[R, tuple[Any, ...]] | None:
        """See `Tx.read`."""
        row: tuple[Any, ...] | None = self._cache.get(kind, key)
        if row is not None:
            return kind(*row), row
        self._look(kind)
        record = super().get(kind, *key)
        if record is None:
            return None
        row = statements_of(kind).columns.row(record)
        self._cache.put(record, row)
        return record, row

    def find(
        self,
        kind: type[R],
        /,
        *,
        order: str | Sequence[str] = (),
        desc: bool = False,
        after: Any = None,
        limit: int | None = None,
        damaged: Damaged | None = None,
        **where: Any,
    ) -> list[R]:
        """See `ReadTx.find`."""
        self._look(kind)
        return super().find(kind, order=order, desc=desc, after=after, limit=limit, damaged=damaged, **where)

    def count(self, kind: type[R], /, **where: Any) -> int:
        """See `ReadTx.count`."""
        self._look(kind)
        return super().count(kind, **where)

    def insert(self, record: Record, *, later: bool = False) -> None:
        """See `Tx.insert`."""
        kind = type(record)
        statements = statements_of(kind)
        columns = statements.columns
        row = columns.row(record)
        if later:
            if kind not in RowCache.KINDS:
                self._later.add(kind, [row])
                return
            self._later.change(kind, columns.name(row), "insert", row)
        else:
            self._enter()
            self._write(statements.insert, row, columns.bodies)
        self._cache.put(record, row)

    def insert_all(self, records: Sequence[Record], *, later: bool = False) -> None:
        """See `Tx.insert_all`."""
        if not records:
            return
        kind = type(records[0])
        statements = statements_of(kind)
        rows = list(map(statements.columns.row, records))
        if later and kind not in RowCache.KINDS:
            self._later.add(kind, rows)
        else:
            self._enter()
            self._write_all(statements.insert, rows, statements.columns.bodies)

    def put(self, record: Record, *, later: bool = False) -> None:
        """See `Tx.put`."""
        kind = type(record)
        statements = statements_of(kind)
        columns = statements.columns
        row = columns.row(record)
        if later and kind in RowCache.KINDS:
            self._later.change(kind, columns.name(row), "put", row)
        else:
            self._enter()
            self._write(statements.put, row, columns.bodies)
        self._cache.put(record, row)

    def update(self, record: Record, *fields: str, later: bool = False) -> None:
        """See `Tx.update`."""
        kind = type(record)
        plan = _update_plan(kind, fields)
        values = plan.values(record)
        key = values[len(fields) :]
        if later and (row := self._cache.update(kind, key, plan.places, values)) is not None:
            self._later.change(kind, (kind, *key), "update", row, fields)
            return
        self._enter()
        if self._write(plan.sql, values, plan.bodies):
            self._cache.update(kind, key, plan.places, values)
        else:
            raise KeyError(f"There is no row with the key {key!r} in {kind.TABLE.name!r}.")

    def save(self, record: Record, before: tuple[Any, ...]) -> None:
        """See `Tx.save`."""
        kind = type(record)
        columns = columns_of(kind)
        row = columns.row(record)
        fields = tuple(compress(columns.names, map(ne, row, before)))
        if not fields:
            return
        key = columns.name(row)
        if self._cache.replace(key, row, before):
            self._later.change(kind, key, "update", row, fields)
        else:
            self.update(record, *fields)

    def delete(self, kind: type[R], *key: Any) -> bool:
        """See `Tx.delete`."""
        self._enter()
        self._cache.clear()
        gone = self._change(statements_of(kind).delete, key)
        self.deleted = self.deleted or gone > 0
        return gone > 0

    def delete_some(self, kind: type[R], limit: int, /, **where: Any) -> int:
        """See `Tx.delete_some`."""
        check_limit(limit)
        self._enter()
        self._cache.clear()
        conditions, values = conditions_of(where)
        gone = self._change(delete_some_sql(kind, conditions), (*values, limit))
        self.deleted = self.deleted or gone > 0
        return gone

    def finish(self) -> Later:
        """The transition has ended well: what may still wait. One that is in a savepoint leaves nothing."""
        if self.saved:
            self._enter()
        return self._later

    def write_out(self, *, alone: bool = False) -> bool:
        """Writes what earlier transitions left; False when some of it was refused, whose transitions then failed.
        See `Unwritten.write`."""
        return bool(self._unwritten.write(self, alone=alone))

    def end(self) -> None:
        """See `SqliteReadTx.end`."""
        super().end()
        self._cache = self._unwritten = Ended()

    def publish(self, item: Any) -> None:
        """See `Tx.publish`."""
        self.published.append(item)

    def step(self, sql: str) -> None:
        """See `Pen.step`."""
        self._db.execute(sql)

    def write(self, rows: Later) -> None:
        """See `Pen.write`."""
        for sql, values, bodies in rows.groups():
            self._write_all(sql, values, bodies)

    def _look(self, kind: type[Record]) -> None:
        """Before a query: what waits to be written to its table is written."""
        if kind in self._later.kinds:
            self._enter()
        elif kind in self._unwritten.kinds:
            self._catch_up()

    def _enter(self) -> None:
        """Before a write that cannot wait: all that waits is written, and from here on there is a savepoint."""
        if not self.saved:
            self._catch_up()
            self._db.execute("SAVEPOINT step")
            self.saved = True
        if self._later.kinds:
            rows, self._later = self._later, Later()
            self.write(rows)

    def _catch_up(self) -> None:
        if not self.write_out():
            raise StorageError("It was not begun: a change before it, on which it may have built, was refused.")

    def _write_all(self, sql: str, rows: list[tuple[Any, ...]], bodies: tuple[int, ...]) -> None:
        for i in bodies:
            if not none_to_pack([row[i] for row in rows]):
                written = sum(self._write(sql, row, bodies) for row in rows)
                break
        else:
            try:
                written = self._db.executemany(sql, rows).rowcount
            except sqlite3.Error as error:
                raise self._plain(error, sql) from error
        if written != len(rows):
            raise KeyError(f"{len(rows) - written} of {len(rows)} rows were not there to be changed: {sql}")

    def _write(self, sql: str, row: tuple[Any, ...], bodies: tuple[int, ...]) -> int:
        quoted: list[dict[str, bytes]] = []
        for i in bodies:
            text = row[i]
            if isinstance(text, str) and must_pack(text) and (packed := pack(text)) is not None:
                row = (*row[:i], packed.text, *row[i + 1 :])
                quoted.append(packed.blobs)
        written = self._change(sql, row)
        if quoted and written:  # counted once the row is there: a transition may go on after a refused one
            for blobs in quoted:
                self._keep(blobs)
        return written

    def _keep(self, blobs: dict[str, bytes]) -> None:
        for digest, data in blobs.items():
            if not self._change("UPDATE blob_uses SET uses = uses + 1 WHERE sha256 = ?", (digest,)):
                self._change("INSERT INTO blob_uses (sha256, uses) VALUES (?, 1)", (digest,))
                self._change("INSERT INTO blobs (sha256, data) VALUES (?, ?)", (digest, data))

    def _change(self, sql: str, values: Sequence[Any]) -> int:
        try:
            return self._db.execute(sql, values).rowcount  # type: ignore[no-any-return]
        except sqlite3.Error as error:
            raise self._plain(error, sql) from error


@dataclass(frozen=True, slots=True)
class _Update:
    sql: str
    values: Callable[[Any], tuple[Any, ...]]
    bodies: tuple[int, ...]
    places: tuple[int, ...]


@remembered
def _update_plan(kind: type[Record], fields: tuple[str, ...]) -> _Update:
    bodies = tuple(i for i, name in enumerate(fields) if name in kind.TABLE.bodies)
    places = tuple(map(columns_of(kind).position, fields))
    return _Update(update_sql(kind, fields), attrgetter(*fields, *kind.TABLE.key), bodies, places)


def _decoded(data: bytes) -> str:
    return data.decode(errors="replace")


def _table_of(sql: str) -> str:
    found = re.search(r"(?:FROM|INTO|UPDATE) (\w+)", sql)
    return found[1] if found else "?"
