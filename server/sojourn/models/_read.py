"""Reads one answer from its reply, for every backend: a stream of events, one JSON object, or neither.

What the body is, its first byte says, not its content type: servers get the header wrong more often than the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Protocol

from sojourn.core.errors import ModelError

from ._assemble import parse_json
from ._http import Reply, Wire
from ._wire_errors import error_in, stream_error
from .base import ModelDelta
from .sse import SseDecoder

REST_LIMIT_S = 2.0
"""How long a finished answer waits for what may still follow (usage, the last mark)."""
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_STREAM_BYTES = 256 * 1024 * 1024
"""Of a stream; of a usual one a fiftieth is text."""
_BLANK_BYTES = 64 * 1024
_PIECES_AT_ONCE = 32
"""After so many pieces others have their turn: those that came together are read without waiting."""
_BOM = b"\xef\xbb\xbf"


class Reader(Protocol):
    """What understands the events of one API."""

    @property
    def finished(self) -> bool:
        """Whether the answer is complete, though something may still follow."""
        ...

    @property
    def done(self) -> bool:
        """Whether nothing more can follow."""
        ...

    def event(self, name: str, data: bytes) -> list[ModelDelta]:
        """The deltas of one event. Raises `ModelError` for a failure that it tells, `ValueError` if it is not JSON."""
        ...

    def whole(self, answer: dict[str, Any]) -> list[ModelDelta] | None:
        """The deltas of a whole answer that was not streamed; None if it is no answer of this API."""
        ...


async def read_answer(reply: Reply, reader: Reader, wire: Wire) -> AsyncGenerator[ModelDelta, None]:
    """The deltas of the answer, to its terminal mark. Raises `ModelError` when it ends before that."""
    head = await _head(reply)
    first = head.removeprefix(_BOM).lstrip()[:1]
    if first in (b"{", b"["):
        for delta in await _whole(reply, head.removeprefix(_BOM), reader, wire):
            yield delta
        return
    if first == b"<":
        kind = reply.headers.get("content-type", "no content type")
        raise wire.peer.error(
            f"answered with a web page ({kind}) instead of a stream; is {wire.base_url!r} the API's address?",
            retryable=False,
            reason="badAnswer",
        )
    decoder = SseDecoder()
    pieces = _Pieces(reply, reader, wire)
    piece = head
    while piece:
        for name, data in decoder.feed(piece):
            for delta in _event(reader, name, data, wire):
                pieces.goes_on()
                yield delta
            if reader.done:
                await reply.drain()
                return
        piece = await pieces.next()
    for delta in _last(decoder, reader, wire):
        yield delta
    if not reader.finished:
        raise wire.cut()


async def _head(reply: Reply) -> bytes:
    """The first bytes, up to one that is not blank. Blank lines before it mean nothing and are not kept."""
    head = b""
    while not head.removeprefix(_BOM).strip() and len(head) < _BLANK_BYTES:
        piece = await reply.read()
        if not piece:
            break
        head = (head + piece).lstrip(b"\r\n")
    return head


class _Pieces:
    """The pieces of a stream after its first. What follows a finished answer is waited for as long as it tells
    something, not while it only keeps alive."""

    def __init__(self, reply: Reply, reader: Reader, wire: Wire) -> None:
        self._reply = reply
        self._reader = reader
        self._wire = wire
        self._until: float | None = None
        self._size = self._count = 0

    def goes_on(self) -> None:
        """The answer was told more of."""
        self._until = None

    async def next(self) -> bytes:
        """The next piece; b"" at the end. How a finished answer's connection ends is no matter."""
        self._count += 1
        if not self._count % _PIECES_AT_ONCE:
            await asyncio.sleep(0)
        if self._reader.finished:
            return await self._after_the_end()
        piece = await self._reply.read()
        self._size += len(piece)
        if self._size > MAX_STREAM_BYTES:
            raise self._wire.peer.error(
                f"sent over {MAX_STREAM_BYTES} bytes of one answer; nothing of it is kept.",
                retryable=False,
                reason="badAnswer",
            )
        return piece

    async def _after_the_end(self) -> bytes:
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + REST_LIMIT_S
        if now >= self._until:
            return b""
        try:
            return await self._reply.read(within_s=self._until - now)
        except ModelError:
            return b""


def _event(reader: Reader, name: str, data: bytes, wire: Wire) -> list[ModelDelta]:
    try:
        return reader.event(name, data)
    except (ValueError, RecursionError):
        raise wire.peer.error(
            "sent something in its stream that is not JSON; nothing of the answer is kept.",
            retryable=True,
            reason="badChunk",
        ) from None


def _last(decoder: SseDecoder, reader: Reader, wire: Wire) -> list[ModelDelta]:
    """The deltas of an event that the end of the stream left open; half an event is a cut."""
    deltas: list[ModelDelta] = []
    for name, data in decoder.close():
        try:
            deltas += reader.event(name, data)
        except (ValueError, RecursionError):
            if not reader.finished:
                raise wire.cut("in the middle of an event") from None
    return deltas


async def _whole(reply: Reply, head: bytes, reader: Reader, wire: Wire) -> list[ModelDelta]:
    pieces, size = [head], len(head)
    while piece := await reply.read():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise wire.peer.error(
                f"answered with over {MAX_BODY_BYTES} bytes of JSON.", retryable=False, reason="badAnswer"
            )
    try:
        answer = parse_json(b"".join(pieces))
    except (ValueError, RecursionError):
        raise wire.cut("its JSON is not whole") from None
    if isinstance(answer, list):
        answer = next((item for item in answer if isinstance(item, dict)), {})
    error = error_in(answer)
    if error is not None:
        raise stream_error(wire.peer, error)
    deltas = reader.whole(answer)
    if deltas is None:
        raise wire.peer.error(
            "answered with JSON that is neither an answer nor an error.", retryable=False, reason="badAnswer"
        )
    return deltas
