"""What both stores know of a record type: its columns, and which questions may be asked about them.

Worked out once per type from the dataclass itself, so that a table is described in one place, `records.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_type_hints

from sojourn.core.errors import DamagedRecord

from .base import Damaged
from .records import Record, Table

F = TypeVar("F", bound=Callable[..., Any])

MAX_CHOICES = 30_000
"""How many values "one of these" may list; SQLite binds at most 32,766 variables to a statement."""


def remembered(function: F) -> F:
    """Keeps a function's last answers. (`lru_cache`, but mypy takes the classes of records for unhashable.)"""
    return cast("F", lru_cache(maxsize=1024)(function))


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a record type in the order of its fields; `bools` and `bodies` are positions in it."""

    table: Table
    names: tuple[str, ...]
    types: tuple[type, ...]
    nullable: tuple[bool, ...]
    bools: tuple[str, ...]
    bodies: tuple[int, ...]
    key: tuple[int, ...]
    row: Callable[[Any], tuple[Any, ...]]
    """The column values of a record."""
    name: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    """What a row is remembered by: its kind and the values of its key."""
    known_shapes: set[tuple[type, ...]] = field(default_factory=set)
    """The types of rows that were looked at and found to be what they should."""

    def position(self, name: str) -> int:
        """Where the column `name` stands. Raises `ValueError` when the table has none of that name."""
        try:
            return self.names.index(name)
        except ValueError:
            raise ValueError(f"{self.table.name!r} has no column {name!r}; it has {', '.join(self.names)}.") from None


@remembered
def columns_of(kind: type[Record]) -> Columns:
    """The columns of a record type."""
    hints = get_type_hints(kind)
    names = tuple(field.name for field in fields(kind))  # type: ignore[arg-type]  # every Record is a dataclass
    key = tuple(names.index(name) for name in kind.TABLE.key)
    kinds = tuple(_plain_type(hints[name]) for name in names)
    return Columns(
        table=kind.TABLE,
        names=names,
        types=kinds,
        nullable=tuple(NoneType in get_args(hints[name]) for name in names),
        bools=tuple(name for name, type_ in zip(names, kinds, strict=True) if type_ is bool),
        bodies=tuple(names.index(name) for name in kind.TABLE.bodies),
        key=key,
        row=attrgetter(*names),
        name=lambda row: (kind, *[row[place] for place in key]),
    )


def shape_of(row: tuple[Any, ...]) -> tuple[type, ...]:
    """The types of a row's values."""
    return tuple(map(type, row))


def whole_row(columns: Columns, row: tuple[Any, ...], damaged: Damaged | None) -> tuple[Any, ...]:
    """The row, when each value is one that its column can hold: a disk may have made others of them.

    Raises `DamagedRecord`, or puts it into `damaged` and answers the row with empty values in the place of wrong ones.
    """
    wrong = [place for place, value in enumerate(row) if not _fits(columns, place, value)]
    if not wrong:
        columns.known_shapes.add(shape_of(row))
        return row
    key = tuple(row[place] for place in columns.key)
    found, place = type(row[wrong[0]]).__name__, wrong[0]
    why = f"it holds {found} in the place of {columns.types[place].__name__}"
    error = DamagedRecord.of(columns.table.name, [str(part) for part in key], columns.names[place], why)
    if damaged is None:
        raise error
    whole = list(row)
    for place in wrong:
        whole[place] = None if columns.nullable[place] else columns.types[place]()
    damaged[tuple(whole[place] for place in columns.key)] = error
    return tuple(whole)


def _fits(columns: Columns, place: int, value: Any) -> bool:
    wanted = columns.types[place]
    return (value is None and columns.nullable[place]) or type(value) is (int if wanted is bool else wanted)


def _plain_type(hint: Any) -> type:
    choices = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    plain = [choice for choice in choices if choice is not NoneType]
    if len(plain) != 1 or plain[0] not in (str, int, bool, float):
        raise TypeError(f"A column holds str, int, bool or float, maybe None, and not {hint!r}.")
    return cast("type", plain[0])


@remembered
def order_columns(kind: type[Record], order: str | tuple[str, ...]) -> tuple[str, ...]:
    """The columns to sort by, the primary key by default. Raises `ValueError` for what cannot be sorted by."""
    columns = columns_of(kind)
    names = (order,) if isinstance(order, str) else order or kind.TABLE.key
    for name in names:
        if columns.position(name) in columns.bodies:
            raise ValueError(f"The column {name!r} of {kind.TABLE.name!r} is a body; bodies have no order.")
    return names


@remembered
def tells_apart(kind: type[Record], names: tuple[str, ...]) -> bool:
    """Whether no two rows can have the same values in these columns."""
    return any(set(names).issuperset(unique) for unique in (kind.TABLE.key, *kind.TABLE.unique))


def start_values(kind: type[Record], order: Sequence[str], after: Any) -> tuple[Any, ...]:
    """`after` as one value per order column. Raises `ValueError` when it does not fit them."""
    values = after if isinstance(after, tuple) else (after,)
    if len(values) != len(order):
        raise ValueError(f"after={after!r} gives {len(values)} values for the order columns {', '.join(order)}.")
    columns = columns_of(kind)
    nullable = [name for name in order if columns.nullable[columns.position(name)]]
    if nullable or None in values:
        raise ValueError(f"after={after!r} needs order columns that are never None, in {', '.join(order)}.")
    return values


def check_limit(limit: int | None) -> None:
    """Raises `ValueError` for a limit below 0 (SQLite would take it for "no limit")."""
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit!r} is not a number of rows; leave it out for all of them.")


def check_where(columns: Columns, name: str, values: Iterable[Any]) -> None:
    """Raises `ValueError` for a condition on an unknown column, or on the text of a body."""
    body = columns.position(name) in columns.bodies
    if body and any(value is not None for value in values):
        raise ValueError(f"The column {name!r} of {columns.table.name!r} is a body; it can only be compared with None.")


def check_fields(columns: Columns, names: tuple[str, ...]) -> None:
    """Raises `ValueError` unless these are fields that an update can write."""
    if not names:
        raise ValueError(f"An update of {columns.table.name!r} names the fields that it writes.")
    for name in names:
        if columns.position(name) in columns.key:
            raise ValueError(f"{name!r} is part of the key of {columns.table.name!r}; a row's key never changes.")


def choices(name: str, value: Any) -> tuple[Any, ...]:
    """The values that the column `name` may have under a condition. Raises `ValueError` when they are too many."""
    several = value if isinstance(value, tuple) else (value,)
    if len(several) > MAX_CHOICES:
        raise ValueError(f"{name!r} may be one of {len(several)} values; {MAX_CHOICES} is the limit.")
    return several
