"""Rows that may wait: what transitions write `later` is written once a batch, table by table, in as few statements.

A transition's rows are kept apart until it has ended well, then joined with those of the transitions before it. They
are written before anything else would meet them: a query of their table, a write that cannot wait, the commit. When
SQLite refuses them, they are written again transition by transition, so that the one to blame is found; those after it
may have built on it and fail with it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

from sojourn.core.errors import StorageError

from ._columns import columns_of, remembered
from ._statements import insert_sql, statements_of, update_sql
from .records import Record

Row = tuple[Any, ...]
Key = tuple[Any, ...]
Group = tuple[str, list[Row], tuple[int, ...]]
"""A statement, the values to run it with, and the places of bodies among them."""


class Later:
    """Rows to be written: new ones by table, and the state of known ones by their kind and key."""

    __slots__ = ("changed", "kinds", "new")

    def __init__(self) -> None:
        self.kinds: set[type[Record]] = set()
        self.new: dict[type[Record], list[Row]] = {}
        self.changed: dict[Key, tuple[str, Row, tuple[str, ...]]] = {}
        """`insert`, `put` or `update`, the whole row, and for an update the fields to write."""

    def add(self, kind: type[Record], rows: list[Row]) -> None:
        """New rows, which nobody will ask for by key."""
        found = self.new.get(kind)
        if found is None:
            self.kinds.add(kind)
            self.new[kind] = rows
        else:
            found += rows

    def change(self, kind: type[Record], key: Key, way: str, row: Row, fields: tuple[str, ...] = ()) -> None:
        """The row with this key (its kind first) is now `row`."""
        self.kinds.add(kind)
        before = self.changed.get(key)
        if before is not None and way == "update":
            way, _, known = before
            fields = known if fields == known else _union(kind, known, fields)
        self.changed[key] = way, row, fields

    def join(self, other: Later) -> None:
        """Takes what came after."""
        self.kinds |= other.kinds
        for kind, rows in other.new.items():
            if kind in self.new:
                self.new[kind] += rows
            else:
                self.new[kind] = rows.copy()
        for key, change in other.changed.items():
            if key in self.changed:
                self.change(key[0], key, *change)
            else:
                self.changed[key] = change

    def groups(self) -> Iterator[Group]:
        """What is to be run: changes of rows before new ones, so that what becomes free is free."""
        groups: dict[Any, Group] = {}
        for key, (way, row, fields) in self.changed.items():
            kind = key[0]
            if way == "update":
                plan = _update_of(kind, fields)
                group = groups.get(plan.sql)
                if group is None:
                    group = groups[plan.sql] = (plan.sql, [], plan.bodies)
                group[1].append(plan.values(row))
        yield from groups.values()
        groups.clear()
        inserted: dict[type[Record], list[Row]] = {}
        for key, (way, row, _) in self.changed.items():
            if way == "insert":
                inserted.setdefault(key[0], []).append(row)
            elif way == "put":
                statements = statements_of(key[0])
                groups.setdefault(key[0], (statements.put, [], statements.columns.bodies))[1].append(row)
        yield from groups.values()
        for new in (inserted, self.new):
            for kind, rows in new.items():
                yield _insert_of(kind, rows)


class Pen(Protocol):
    """Who writes: rows, and statements without any; `failure` once the disk failed it."""

    failure: sqlite3.Error | None

    def step(self, sql: str) -> None:
        """Runs a plain statement."""
        ...

    def write(self, rows: Later) -> None:
        """Writes rows. Raises when they are refused, which may leave some of them written."""
        ...


Part = tuple[Callable[[BaseException], None], Later]
"""A transition's rows, and whom to tell when they are refused."""


class Unwritten:
    """What the transitions of the open batch have left to be written."""

    def __init__(self) -> None:
        self.rows = Later()
        """All of them together; of a single transition its own."""
        self._parts: list[Part] = []

    @property
    def kinds(self) -> set[type[Record]]:
        """The tables that are not up to date."""
        return self.rows.kinds

    def take(self, fail: Callable[[BaseException], None], rows: Later) -> None:
        """The rows of a transition that ended well; `fail` is called should they be refused."""
        if not self._parts:
            self.rows = rows
        else:
            if len(self._parts) == 1:  # its own rows stay apart
                self.rows = Later()
                self.rows.join(self._parts[0][1])
            self.rows.join(rows)
        self._parts.append((fail, rows))

    def clear(self) -> None:
        """Forgets all of it."""
        self.rows, self._parts = Later(), []

    def write(self, pen: Pen, *, alone: bool = False) -> bool:
        """Writes what there is; False when a transition's rows were refused. Raises when the disk fails.

        `alone`: one transition is all that the open transaction holds. When it is refused, the caller rolls that back,
        which spares a savepoint.
        """
        parts, rows = self._parts, self.rows
        if not parts:
            return True
        self.clear()
        if alone:
            return _alone(parts[0], pen)
        pen.step("SAVEPOINT together")
        try:
            pen.write(rows)
        except Exception:
            if pen.failure is not None:
                raise
            pen.step("ROLLBACK TO together")
        else:
            parts = []
        pen.step("RELEASE together")
        return _one_by_one(parts, pen)


def _alone(part: Part, pen: Pen) -> bool:
    fail, rows = part
    try:
        pen.write(rows)
    except Exception as error:
        if pen.failure is not None:
            raise
        fail(error)
        return False
    return True


def _one_by_one(parts: Sequence[Part], pen: Pen) -> bool:
    refused = False
    for fail, rows in parts:
        if refused:
            fail(StorageError("It was not kept: a change before it, on which it may have built, was refused."))
            continue
        pen.step("SAVEPOINT alone")
        try:
            pen.write(rows)
        except Exception as error:
            if pen.failure is not None:
                raise
            pen.step("ROLLBACK TO alone")
            fail(error)
            refused = True
        pen.step("RELEASE alone")
    return not refused


def _union(kind: type[Record], some: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    names = {*some, *others}
    return tuple(name for name in columns_of(kind).names if name in names)


def _insert_of(kind: type[Record], rows: list[Row]) -> Group:
    """The last columns stay out when no row has a value there: binding None costs `sqlite3` more than any text."""
    columns = columns_of(kind)
    width = full = len(columns.names)
    first = rows[0]
    while first[width - 1] is None and columns.nullable[width - 1]:
        width -= 1
    nothing = (None,) * full
    for row in rows:
        while row[width:] != nothing[width:]:
            width += 1
    if width < full:
        rows = [row[:width] for row in rows]
    return insert_sql(kind, width), rows, _bodies_within(kind, width)


@remembered
def _bodies_within(kind: type[Record], width: int) -> tuple[int, ...]:
    return tuple(place for place in columns_of(kind).bodies if place < width)


@dataclass(frozen=True, slots=True)
class _Update:
    sql: str
    values: Callable[[Row], Row]
    bodies: tuple[int, ...]


@remembered
def _update_of(kind: type[Record], fields: tuple[str, ...]) -> _Update:
    columns = columns_of(kind)
    bodies = tuple(i for i, name in enumerate(fields) if name in kind.TABLE.bodies)
    return _Update(update_sql(kind, fields), itemgetter(*map(columns.position, fields), *columns.key), bodies)
