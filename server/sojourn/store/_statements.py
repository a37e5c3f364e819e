"""The SQL of every operation on every table, built once each; SQLite's own statement cache keeps it prepared.

Names come from the record types only; what a caller gives is bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ._columns import Columns, check_fields, check_where, choices, columns_of, order_columns, remembered, tells_apart
from .records import Record

Condition = tuple[str, int, bool]
"""A column, how many values it may have, and whether None is one more."""


@dataclass(frozen=True, slots=True)
class Statements:
    """The SQL that needs no conditions."""

    columns: Columns
    insert: str
    put: str
    get: str
    delete: str


@remembered
def statements_of(kind: type[Record]) -> Statements:
    """The SQL for one row of a table."""
    columns = columns_of(kind)
    table, names = columns.table.name, ", ".join(columns.names)
    key = " AND ".join(f"{name} = ?" for name in columns.table.key)
    insert = insert_sql(kind, len(columns.names))
    changes = ", ".join(f"{n} = excluded.{n}" for i, n in enumerate(columns.names) if i not in columns.key)
    return Statements(
        columns=columns,
        insert=insert,
        put=f"{insert} ON CONFLICT ({', '.join(columns.table.key)}) DO UPDATE SET {changes}",
        get=f"SELECT {names} FROM {table} WHERE {key}",  # noqa: S608
        delete=f"DELETE FROM {table} WHERE {key}",  # noqa: S608
    )


@remembered
def insert_sql(kind: type[Record], width: int) -> str:
    """Adds a row of its first `width` columns; the others are NULL."""
    names = columns_of(kind).names[:width]
    return f"INSERT INTO {kind.TABLE.name} ({', '.join(names)}) VALUES ({', '.join('?' * width)})"  # noqa: S608


def update_sql(kind: type[Record], fields: tuple[str, ...]) -> str:
    """Writes these fields of the row with a key; binds the fields, then the key. Raises `ValueError` for wrong ones."""
    check_fields(columns_of(kind), fields)
    changes = ", ".join(f"{name} = ?" for name in fields)
    key = " AND ".join(f"{name} = ?" for name in kind.TABLE.key)
    return f"UPDATE {kind.TABLE.name} SET {changes} WHERE {key}"  # noqa: S608


def conditions_of(where: Mapping[str, Any]) -> tuple[tuple[Condition, ...], list[Any]]:
    """The shape of the conditions, which decides the SQL, and the values to bind in their order."""
    conditions: list[Condition] = []
    values: list[Any] = []
    for name, value in where.items():
        if value is None:
            conditions.append((name, 0, True))
        elif isinstance(value, tuple):
            plain = [choice for choice in choices(name, value) if choice is not None]
            conditions.append((name, len(plain), len(plain) < len(value)))
            values += plain
        else:
            conditions.append((name, 1, False))
            values.append(value)
    return tuple(conditions), values


@remembered
def query_sql(
    kind: type[Record], conditions: tuple[Condition, ...], order: str | tuple[str, ...], desc: bool, after: bool
) -> str:
    """Selects rows in an order; binds the values of the conditions, those of `after`, and last the limit (or -1)."""
    columns, names = columns_of(kind), order_columns(kind, order)
    terms = [_condition(columns, *condition) for condition in conditions]
    if after:
        terms.append(f"({', '.join(names)}) {'<' if desc else '>'} ({', '.join('?' * len(names))})")
    way = " DESC" if desc else ""
    # Rows that the order does not tell apart come as they were made, which costs nothing: an index ends with the rowid.
    sorted_by = names if tells_apart(kind, names) else (*names, "rowid")
    return (
        f"SELECT {', '.join(columns.names)} FROM {kind.TABLE.name}{_where(terms)} "  # noqa: S608
        f"ORDER BY {', '.join(name + way for name in sorted_by)} LIMIT ?"
    )


@remembered
def count_sql(kind: type[Record], conditions: tuple[Condition, ...]) -> str:
    """Counts rows; binds the values of the conditions."""
    terms = [_condition(columns_of(kind), *condition) for condition in conditions]
    return f"SELECT count(*) FROM {kind.TABLE.name}{_where(terms)}"  # noqa: S608


@remembered
def delete_some_sql(kind: type[Record], conditions: tuple[Condition, ...]) -> str:
    """Deletes the oldest rows; binds the values of the conditions and a limit."""
    terms = [_condition(columns_of(kind), *condition) for condition in conditions]
    table = kind.TABLE.name
    return f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table}{_where(terms)} ORDER BY rowid LIMIT ?)"  # noqa: S608


def _where(terms: list[str]) -> str:
    return f" WHERE {' AND '.join(terms)}" if terms else ""


def _condition(columns: Columns, name: str, values: int, null: bool) -> str:
    check_where(columns, name, (True,) * values)
    terms = []
    if values == 1:
        terms.append(f"{name} = ?")
    elif values or not null:
        terms.append(f"{name} IN ({', '.join('?' * values)})")
    if null:
        terms.append(f"{name} IS NULL")
    return f"({' OR '.join(terms)})" if len(terms) > 1 else terms[0]
