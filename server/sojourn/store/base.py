"""What a store promises: transitions in one order, commit then publish, and nothing of a transition that failed.

A *transition* is a plain function of a `Tx`. The store runs it where no other transition runs, so it reads and writes
without races; when it raises, nothing of it is kept and its neighbours are untouched. Its result, and everything it
gave to `Tx.publish`, comes back to the event loop after the commit, in commit order: first what it published, then its
waiting caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sojourn.core.errors import DamagedRecord

from .records import Record

R = TypeVar("R", bound=Record)
T = TypeVar("T")


Damaged = dict[tuple[Any, ...], DamagedRecord]
"""What is wrong with rows, by their key."""


class Conflict(Exception):
    """A row with this key, or with these unique values, exists already."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store has done since it was opened, and how large it is."""

    path: str
    bytes: int
    commits: int
    transitions: int
    write_backs: int = 0
    """How often a log was written back into the store's file; each takes a few syncs, as a commit takes one."""


class ReadTx(Protocol):
    """A consistent view. Never kept across an await."""

    def get(self, kind: type[R], *key: Any) -> R | None:
        """The record with this primary key (values in the order of `kind.TABLE.key`), a fresh object, or None.

        Raises `core.errors.DamagedRecord` when it holds a value that its column cannot."""
        ...

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
        """Records whose columns equal `where` (a tuple value means "one of these", None means IS NULL).

        Ordered by `order` (a column or several), default the primary key; `after` is the value, or the tuple of values,
        of the order columns behind which to start (before which, with `desc`).

        The first row with a value that its column cannot hold raises `core.errors.DamagedRecord`; when `damaged` is
        given, that is put there instead, and the row has an empty value in its place: no damaged row hides another.
        """
        ...

    def count(self, kind: type[R], /, **where: Any) -> int:
        """How many records `find` would answer."""
        ...


class Tx(ReadTx, Protocol):
    """A transition under way.

    A write that is given `later=True` may wait for the commit, when the rows of many transitions are written together;
    every later query sees it all the same. It is for rows that cannot be refused, such as one whose key was counted up:
    a refusal would come from `Store.write` instead of here, with nothing kept of the transition.
    """

    def insert(self, record: Record, *, later: bool = False) -> None:
        """Adds a row. Raises `Conflict` when its key or a unique value is taken."""
        ...

    def insert_all(self, records: Sequence[Record], *, later: bool = False) -> None:
        """Adds rows of one kind, in order, for less than one by one. Raises `Conflict` as `insert` does."""
        ...

    def put(self, record: Record, *, later: bool = False) -> None:
        """Adds the row or replaces the one with its key. Raises `Conflict` when another row holds a unique value."""
        ...

    def update(self, record: Record, *fields: str, later: bool = False) -> None:
        """Writes these fields of an existing row. Raises `KeyError` when there is none with its key."""
        ...

    def read(self, kind: type[R], *key: Any) -> tuple[R, tuple[Any, ...]] | None:
        """`get`, with what was in the row (`records.snapshot`), to be given to `save`."""
        ...

    def save(self, record: Record, before: tuple[Any, ...]) -> None:
        """Writes, later, the fields in which an existing row differs from what it was (`records.snapshot`)."""
        ...

    def delete(self, kind: type[R], *key: Any) -> bool:
        """Removes a row; answers whether there was one."""
        ...

    def delete_some(self, kind: type[R], limit: int, /, **where: Any) -> int:
        """Removes at most `limit` rows that match; answers how many. For deleting much in pieces."""
        ...

    def publish(self, item: Any) -> None:
        """Hands `item` to the commit listener once this transition is committed; forgotten when it fails."""
        ...


class Store(Protocol):
    """Where everything is kept."""

    store_id: str

    async def write(self, transition: Callable[[Tx], T]) -> T:
        """Commits a transition and answers its result.

        Raises what the transition raised (nothing kept), or `core.errors.StorageError` when the commit failed. Being
        cancelled does not undo it: the transition is either committed or not, whoever waits.
        """
        ...

    async def read(self, query: Callable[[ReadTx], T]) -> T:
        """Answers a query from a consistent view that holds every transition given to the store before the call."""
        ...

    def on_commit(self, listener: Callable[[list[Any]], None]) -> None:
        """Sets the one function that gets what was published, on the event loop, in commit order, in lists."""
        ...

    def on_degraded(self, listener: Callable[[str | None], None]) -> None:
        """Sets the function that hears that commits fail (with the reason) or work again (None)."""
        ...

    def stats(self) -> StoreStats:
        """Numbers for `server/status` and for checks."""
        ...

    async def aclose(self) -> None:
        """Commits what is queued, then closes. Idempotent."""
        ...
