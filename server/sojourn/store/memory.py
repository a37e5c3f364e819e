"""A store that forgets: for tests and for daemons that keep nothing.

It holds its rows as plain column values and is strict about them (types, 64-bit integers, encodable text, bodies that
are JSON), so that what could not be saved fails here, in a test. Its order of things is that of `SqliteStore`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from sojourn.core.errors import StorageError
from sojourn.core.values import decode

from ._border import Ended, Listeners, run
from ._columns import (
    Columns,
    check_fields,
    check_limit,
    check_where,
    choices,
    columns_of,
    order_columns,
    start_values,
)
from .base import Conflict, Damaged, ReadTx, StoreStats, Tx
from .records import MetaRecord, Record, changes, snapshot

R = TypeVar("R", bound=Record)
T = TypeVar("T")
Row = tuple[Any, ...]
Key = tuple[Any, ...]

_JSON = frozenset({"body", "config", "labels", "pass_usage", "usage"})
"""Columns besides `Table.bodies` that hold JSON."""


class MemoryStore(Listeners):
    """A `Store` in memory. `refuse_writes` makes it behave as on a full disk."""

    def __init__(self) -> None:
        super().__init__()
        self.store_id = uuid4().hex
        self._tables = _Tables()
        self._commits = 0
        self._closed = False
        self._reason: str | None = None
        self._tables[MetaRecord].place(("store_id",), ("store_id", self.store_id))

    async def write(self, transition: Callable[[Tx], T]) -> T:
        """See `Store.write`."""
        self._refuse_when_closed()
        if self._reason is not None:
            raise StorageError(f"The store in memory could not write ({self._reason}); nothing was kept.")
        tx = _MemoryTx(self._tables)
        try:
            result = run(transition, tx)
        except BaseException:
            tx.undo()
            raise
        self._commits += 1
        self.tell_published(tx.published)
        await asyncio.sleep(0)
        return result

    async def read(self, query: Callable[[ReadTx], T]) -> T:
        """See `Store.read`."""
        self._refuse_when_closed()
        result = run(query, _MemoryReadTx(self._tables))
        await asyncio.sleep(0)
        return result

    def refuse_writes(self, reason: str | None) -> None:
        """From now on every write fails for this reason; with None they work again. The listener hears of both."""
        if reason != self._reason:
            self._reason = reason
            self.tell_degraded(reason)

    def stats(self) -> StoreStats:
        """See `Store.stats`; the path is `:memory:`, the size is not known."""
        return StoreStats(":memory:", 0, self._commits, self._commits)

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        self._closed = True

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StorageError("The store in memory is closed; what it held is gone.")


class _MemoryReadTx:
    def __init__(self, tables: _Tables) -> None:
        self._tables: Any = tables

    def end(self) -> None:
        """Every later use raises: the transaction is over."""
        self._tables = Ended()

    def get(self, kind: type[R], *key: Any) -> R | None:
        """See `ReadTx.get`."""
        table = self._tables[kind]
        if len(key) != len(table.columns.key):
            raise TypeError(f"The key of {kind.TABLE.name!r} is {kind.TABLE.key!r}, and not {key!r}.")
        row = table.rows.get(key)
        return None if row is None else kind(*row)

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
        names = order_columns(kind, order if isinstance(order, str) else tuple(order))
        start = None if after is None else start_values(kind, names, after)
        check_limit(limit)
        table = self._tables[kind]
        places = [table.columns.position(name) for name in names]
        rows = table.matching(where)
        if start is not None:
            rows = [row for row in rows if (_values(row, places) < start if desc else _values(row, places) > start)]
        rows.sort(key=lambda row: [(row[i] is not None, row[i]) for i in places])
        if desc:
            rows.reverse()
        return [kind(*row) for row in rows[:limit]]

    def count(self, kind: type[R], /, **where: Any) -> int:
        """See `ReadTx.count`."""
        return len(self._tables[kind].matching(where))


class _MemoryTx(_MemoryReadTx):
    def __init__(self, tables: _Tables) -> None:
        super().__init__(tables)
        self.published: list[Any] = []
        self._undo: list[tuple[_Table, Key, Row | None, int]] = []

    def insert(self, record: Record, *, later: bool = False) -> None:
        """See `Tx.insert`."""
        table = self._tables[type(record)]
        row = _checked(table.columns, record)
        key = _values(row, table.columns.key)
        if key in table.rows:
            raise Conflict(f"{table.columns.table.name!r} has a row with the key {key!r} already.")
        self._place(table, key, row)

    def insert_all(self, records: Sequence[Record], *, later: bool = False) -> None:
        """See `Tx.insert_all`."""
        for record in records:
            self.insert(record)

    def put(self, record: Record, *, later: bool = False) -> None:
        """See `Tx.put`."""
        table = self._tables[type(record)]
        row = _checked(table.columns, record)
        self._place(table, _values(row, table.columns.key), row)

    def update(self, record: Record, *fields: str, later: bool = False) -> None:
        """See `Tx.update`."""
        table = self._tables[type(record)]
        check_fields(table.columns, fields)
        new = _checked(table.columns, record)
        key = _values(new, table.columns.key)
        if key not in table.rows:
            raise KeyError(f"There is no row with the key {key!r} in {table.columns.table.name!r}.")
        row = list(table.rows[key])
        for name in fields:
            row[table.columns.position(name)] = new[table.columns.position(name)]
        self._place(table, key, tuple(row))

    def read(self, kind: type[R], *key: Any) -> tuple[R, tuple[Any, ...]] | None:
        """See `Tx.read`."""
        record = self.get(kind, *key)
        return None if record is None else (record, snapshot(record))

    def save(self, record: Record, before: tuple[Any, ...]) -> None:
        """See `Tx.save`."""
        if fields := changes(record, before):
            self.update(record, *fields)

    def delete(self, kind: type[R], *key: Any) -> bool:
        """See `Tx.delete`."""
        table = self._tables[kind]
        if key not in table.rows:
            return False
        self._note(table, key)
        table.remove(key)
        return True

    def delete_some(self, kind: type[R], limit: int, /, **where: Any) -> int:
        """See `Tx.delete_some`."""
        check_limit(limit)
        table = self._tables[kind]
        gone = table.matching(where)[:limit]
        for row in gone:
            self.delete(kind, *_values(row, table.columns.key))
        return len(gone)

    def publish(self, item: Any) -> None:
        """See `Tx.publish`."""
        self.published.append(item)

    def undo(self) -> None:
        """Takes back every change, the last one first."""
        for table, key, row, number in reversed(self._undo):
            if row is None:
                table.remove(key)
            else:
                table.place(key, row, number)

    def _place(self, table: _Table, key: Key, row: Row) -> None:
        table.refuse_taken(key, row)
        self._note(table, key)
        table.place(key, row)

    def _note(self, table: _Table, key: Key) -> None:
        self._undo.append((table, key, table.rows.get(key), table.numbers.get(key, 0)))


class _Table:
    """The rows of a table by key, the order in which they were made, and who holds each unique value."""

    def __init__(self, kind: type[Record]) -> None:
        self.columns = columns_of(kind)
        self.rows: dict[Key, Row] = {}
        self.numbers: dict[Key, int] = {}
        self._next = 1
        self._groups: dict[Any, dict[Key, None]] = {}
        self._taken: dict[tuple[int, Key], Key] = {}

    def matching(self, where: dict[str, Any]) -> list[Row]:
        """The rows that match, in the order in which they were made."""
        tests = []
        keys: Iterable[Key] = self.rows
        for name, value in where.items():
            wanted = choices(name, value)
            check_where(self.columns, name, wanted)
            tests.append((self.columns.position(name), wanted))
            if name == self.columns.table.key[0] and len(wanted) == 1:
                keys = self._groups.get(wanted[0], ())
        rows = ((key, self.rows[key]) for key in keys)
        found = [(self.numbers[key], row) for key, row in rows if all(row[i] in wanted for i, wanted in tests)]
        found.sort(key=lambda pair: pair[0])
        return [row for _, row in found]

    def refuse_taken(self, key: Key, row: Row) -> None:
        """Raises `Conflict` when another row holds a unique value of this one."""
        for held in self._unique_values(row):
            if self._taken.get(held, key) != key:
                raise Conflict(f"{self.columns.table.name!r} has a row with {held[1]!r} already, which is unique.")

    def place(self, key: Key, row: Row, number: int | None = None) -> None:
        """Adds or replaces the row; a replaced one keeps its place in the order."""
        if key in self.rows:
            number = self.numbers[key]
            self.remove(key)
        elif number is None:
            number, self._next = self._next, self._next + 1
        self.rows[key] = row
        self.numbers[key] = number
        self._groups.setdefault(key[0], {})[key] = None
        for held in self._unique_values(row):
            self._taken[held] = key

    def remove(self, key: Key) -> None:
        """Removes the row with this key, which is there."""
        for held in self._unique_values(self.rows[key]):
            del self._taken[held]
        del self.rows[key], self.numbers[key], self._groups[key[0]][key]

    def _unique_values(self, row: Row) -> Iterable[tuple[int, Key]]:
        table, place = self.columns.table, self.columns.position
        sets = [(names, None, None) for names in table.unique]
        for i, (names, when, value) in enumerate([*sets, *table.unique_when]):
            values = tuple(row[place(name)] for name in names)
            if None not in values and (when is None or row[place(when)] == value):
                yield i, values


class _Tables(dict[type[Record], _Table]):
    def __missing__(self, kind: type[Record]) -> _Table:
        self[kind] = table = _Table(kind)
        return table


def _values(row: Row, places: Iterable[int]) -> Row:
    return tuple(row[i] for i in places)


def _checked(columns: Columns, record: Record) -> Row:
    row = columns.row(record)
    for name, value, type_, nullable in zip(columns.names, row, columns.types, columns.nullable, strict=True):
        if value is None and nullable:
            continue
        if type(value) is not type_:
            raise TypeError(f"{columns.table.name}.{name} holds {type_.__name__}, and not {value!r}.")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise OverflowError(f"{columns.table.name}.{name} does not fit into 64 bits.")
        if isinstance(value, str):
            value.encode()
            if value and (name in _JSON or name in columns.table.bodies):
                decode(value)
    return row
