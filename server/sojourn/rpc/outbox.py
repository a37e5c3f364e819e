"""The bounded queue between the daemon and one reader: frames out in order, nobody else held up by it.

The first frame of a loop turn is written directly, the others are joined into one write at the turn's end. Beyond what
the transport takes, frames wait here. Events are refused above the hard limit (the feed then says `agent/resync`);
answers are never refused: the connection stops reading while unread ones pass half of the limit, requests wait with
theirs above it, and a reader that takes nothing for `STALL_S` with the limit passed is cut.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio

from .host import Turns

SOFT_BYTES = 256 * 1024
STALL_S = 10.0
_TRANSPORT_BYTES = 64 * 1024
_WRITE_BYTES = 256 * 1024


class Sink(Protocol):
    """The part of an asyncio write transport that is used."""

    def write(self, data: bytes, /) -> None:
        """Sends what can be sent, keeps the rest."""

    def get_write_buffer_size(self) -> int:
        """Bytes that are kept."""
        ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Above `high` kept bytes the owner is paused, below `low` resumed."""


class Outbox:
    """One connection's frames on their way out. `hold_reading(True)` asks its owner to stop reading requests,
    `cut(reason)` to end the connection."""

    def __init__(
        self, sink: Sink, turns: Turns, hard: int, *, hold_reading: Callable[[bool], None], cut: Callable[[str], None]
    ) -> None:
        self.closed = False
        self.full_of_answers = False
        """Whether unread answers pass the hard limit, so that the next one should wait."""
        self._sink = sink
        self._turns = turns
        self._hard = hard
        self._half = hard // 2
        self._hold_reading = hold_reading
        self._cut = cut
        self._turn = -1
        self._paused = False
        self._reading_held = False
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._accepted = 0  # bytes ever put; less what is unsent, it tells which answers have been read
        self._answers: deque[tuple[int, int]] = deque()  # (accepted bytes at its end, its bytes)
        self._answer_bytes = 0
        self._progress = asyncio.Event()
        self._watch: asyncio.TimerHandle | None = None
        sink.set_write_buffer_limits(high=_TRANSPORT_BYTES)

    def event(self, frame: bytes) -> bool:
        """Queues an event's frame; False, and nothing queued, when closed or above the hard limit."""
        if self.closed:
            return False
        if not self._waiting:
            turns = self._turns
            if self._turn != turns.now and not self._paused:  # as `_put`, without its call: events are many
                self._turn = turns.now
                if not turns.armed:
                    turns.arm()
                self._accepted += len(frame)
                self._sink.write(frame)
                return True
        elif self._waiting_bytes + len(frame) > self._hard and self._events() + len(frame) > self._hard:
            return False
        self._put(frame)
        return True

    def must(self, frame: bytes) -> None:
        """Queues a frame that may not be dropped and is bounded elsewhere: a request of the daemon, its cancel."""
        if not self.closed:
            self._put(frame)

    def answer(self, frame: bytes) -> None:
        """Queues an answer."""
        if self.closed:
            return
        self._put(frame)
        if self._waiting or self._sink.get_write_buffer_size():
            size = len(frame)
            self._answers.append((self._accepted, size))
            self._answer_bytes += size
            if self._answer_bytes > self._half:
                self._account()

    async def until_answers_fit(self) -> None:
        """Returns when unread answers are below the hard limit again, or the connection is closed."""
        while self.full_of_answers and not self.closed:
            self._progress.clear()
            await self._progress.wait()

    async def room(self) -> None:
        """Returns when less than the soft limit is unsent. Raises `anyio.ClosedResourceError` when closed."""
        while not self.closed and self._unsent() >= min(SOFT_BYTES, self._hard // 2 + 1):
            self._progress.clear()
            await self._progress.wait()
        if self.closed:
            raise anyio.ClosedResourceError

    def pause(self) -> None:
        """The transport has enough (`asyncio.BaseProtocol.pause_writing`)."""
        self._paused = True

    def resume(self) -> None:
        """The transport takes more (`asyncio.BaseProtocol.resume_writing`)."""
        self._paused = False
        self.flush()
        self._account()

    def flush(self) -> None:
        """Gives the transport what waits, as far as it takes it."""
        while self._waiting and not self._paused and not self.closed:
            self._sink.write(self._take(_WRITE_BYTES))
        if self._answers:
            self._account()
        self._progress.set()

    def close(self, *, send: bool) -> None:
        """Takes nothing more. With `send` everything queued goes to the transport first, to be written as it closes."""
        if self.closed:
            return
        if send and self._waiting:
            self._sink.write(self._take(self._waiting_bytes))
        self.closed = True
        self._waiting.clear()
        self._progress.set()
        if self._watch:
            self._watch.cancel()

    def _put(self, frame: bytes) -> None:
        size = len(frame)
        self._accepted += size
        if not self._waiting and not self._paused:
            turns = self._turns
            if self._turn != turns.now:
                self._turn = turns.now
                if not turns.armed:
                    turns.arm()
                self._sink.write(frame)
                return
            turns.hold(self)
        self._waiting.append(frame)
        self._waiting_bytes += size

    def _take(self, at_most: int) -> bytes:
        taken = [self._waiting.popleft()]
        size = len(taken[0])
        while self._waiting and size + len(self._waiting[0]) <= at_most:
            taken.append(self._waiting.popleft())
            size += len(taken[-1])
        self._waiting_bytes -= size
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def _unsent(self) -> int:
        return self._waiting_bytes + self._sink.get_write_buffer_size()

    def _events(self) -> int:
        """Unread bytes of events that wait here; frames that the transport holds already are not counted."""
        self._settle()
        return self._waiting_bytes - min(self._answer_bytes, self._waiting_bytes)

    def _settle(self) -> None:
        """Takes answers that are out of our hands off the account."""
        unsent = self._unsent()
        if not unsent:
            self._answers.clear()
            self._answer_bytes = 0
            return
        sent = self._accepted - unsent
        while self._answers and self._answers[0][0] <= sent:
            self._answer_bytes -= self._answers.popleft()[1]

    def _account(self) -> None:
        self._settle()
        held = self._answer_bytes > self._half
        self.full_of_answers = self._answer_bytes > self._hard
        if held is not self._reading_held:
            self._reading_held = held
            self._hold_reading(held)
        if not self.full_of_answers:
            self._progress.set()
        elif self._watch is None:
            sent = self._accepted - self._unsent()
            self._watch = asyncio.get_running_loop().call_later(STALL_S, self._stalled, sent)

    def _stalled(self, sent_then: int) -> None:
        self._watch = None
        self._settle()
        if self._answer_bytes > self._hard and self._accepted - self._unsent() == sent_then:
            self._cut(f"it left {self._answer_bytes} bytes of answers unread for {STALL_S:g} s")
        else:
            self._account()
