"""HTTP to a server: a body that is one message has the limit of a message. In a stream each event has one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2

from .process import MAX_MESSAGE_BYTES

_EVENTS = "text/event-stream"


async def bound(response: httpx2.Response) -> None:
    """For `event_hooks`: gives the body of a response its limit, before any of it is read."""
    stream = response.stream
    if not response.headers.get("content-type", "").startswith(_EVENTS) and isinstance(stream, httpx2.AsyncByteStream):
        response.stream = _Bounded(stream)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE_BYTES
        async for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise httpx2.ReadError(f"it sent a message of more than {MAX_MESSAGE_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
