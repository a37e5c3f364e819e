"""Where a store meets those who use it: the functions that it is given to run, and the two that it calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Ending(Protocol):
    """A transaction that can be made unusable."""

    def end(self) -> None:
        """Every later use raises."""
        ...


X = TypeVar("X", bound=Ending)


class Ended:
    """What stands in the place of a transaction's data once it is over."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("This transaction is over; read and write inside the function that the store was given.")

    def __getitem__(self, _: Any) -> Any:
        return self.over


def run(function: Callable[[X], T], tx: X) -> T:
    """Runs a transition or a query, whose transaction is unusable afterwards."""
    try:
        return function(tx)
    except StopIteration as error:  # a future cannot carry one
        raise RuntimeError("A transition or a query raised StopIteration.") from error
    finally:
        tx.end()


class Listeners:
    """Whom a store tells of commits and of its health. What they raise is logged: it is no caller's failure."""

    def __init__(self) -> None:
        self._commit: Callable[[list[Any]], None] | None = None
        self._degraded: Callable[[str | None], None] | None = None

    def on_commit(self, listener: Callable[[list[Any]], None]) -> None:
        """See `Store.on_commit`."""
        self._commit = listener

    def on_degraded(self, listener: Callable[[str | None], None]) -> None:
        """See `Store.on_degraded`."""
        self._degraded = listener

    def tell_published(self, items: list[Any]) -> None:
        """Hands on what transitions published, when they published anything."""
        if items and self._commit is not None:
            _call(self._commit, items)

    def tell_degraded(self, reason: str | None) -> None:
        """Hands on that writes fail, or work again."""
        if self._degraded is not None:
            _call(self._degraded, reason)


def _call(listener: Callable[[Any], None], news: Any) -> None:
    try:
        listener(news)
    except Exception:  # noqa: BLE001 (whoever waits for the commit must still get the answer)
        _log.exception("A listener of the store failed; the commit stands.")
