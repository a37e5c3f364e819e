"""The requests of a client that are under way."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from .answers import Id


class Request:
    """A request under way; without an id a notification, which is not answered.

    `working`: its handler is at work, and may be cancelled; `cancelled`: by its client, `abandoned`: as that left.
    """

    __slots__ = ("abandoned", "batch", "cancelled", "id", "task", "working")

    def __init__(self, id: Id, batch: Batch | None) -> None:
        self.id = id
        self.batch = batch
        self.cancelled = False
        self.abandoned = False
        self.working = False
        self.task: asyncio.Task[None] | None = None

    def stop(self, *, by_client: bool) -> None:
        """Cancels what it does; it is answered all the same."""
        told = self.stopped
        self.cancelled = self.cancelled or by_client
        self.abandoned = self.abandoned or not by_client
        if self.working and not told and self.task and self.task is not asyncio.current_task():
            self.task.cancel()

    @property
    def stopped(self) -> bool:
        """Whether it is to end without a result."""
        return self.cancelled or self.abandoned


class Batch:
    """The answers of one batch, sent as one array when the last is there."""

    __slots__ = ("answers", "owed")

    def __init__(self) -> None:
        self.owed = 1  # for the reading of the batch itself
        self.answers: list[bytes] = []


CURRENT: ContextVar[Request | None] = ContextVar("sojourn_request", default=None)
"""The request that the current task, or one that started it, answers."""
