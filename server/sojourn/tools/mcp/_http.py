"""HTTP to a server: a body that is one message has the limit of a message, packed or not, and answers its request.

In a stream each event has such a limit, and the SDK takes its answer for the request's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import orjson

from .process import MAX_MESSAGE_BYTES

_EVENTS, _JSON = "text/event-stream", "application/json"
_INTERNAL_ERROR = -32603
_SHOWN = 80


async def judge(response: httpx2.Response) -> None:
    """For `event_hooks`: gives the body of a response its limit, before any of it is read.

    One that is no answer to its request becomes an error that is: else the request would be waited for in vain.
    """
    stream, kind = response.stream, response.headers.get("content-type", "").lower()
    if kind.startswith(_EVENTS) or not isinstance(stream, httpx2.AsyncByteStream):
        return
    response.stream = _Bounded(stream)
    if not kind.startswith(_JSON):
        return
    packed = httpx2.Response(response.status_code, headers=response.headers, stream=response.stream)
    body = b"".join([piece async for piece in _bounded(packed.aiter_bytes())])
    response.headers.pop("content-encoding", None)
    response.stream = httpx2.ByteStream(body if response.status_code >= 400 else _answer(response.request, body))


def _answer(request: httpx2.Request, body: bytes) -> bytes:
    """The body, or an error in its place. What is no JSON is left to the SDK, which says so at once."""
    try:
        asked, said = orjson.loads(request.content), orjson.loads(body)
    except ValueError:
        return body
    if not isinstance(said, dict) or not isinstance(asked, dict) or asked.get("id") is None:
        return body
    is_answer = "result" in said or "error" in said
    if is_answer and said.get("id") is not None and str(said["id"]) == str(asked["id"]):
        return body
    if is_answer and said.get("id") is None and isinstance(said.get("error"), dict):
        return orjson.dumps(said | {"id": asked["id"]})  # it was refused before its id was read
    what = "something that is no answer"
    if is_answer:
        what = "no id" if said.get("id") is None else f"the id {str(said['id'])[:_SHOWN]!r}"
    return _error(asked["id"], f"it answered with {what} to the request {str(asked['id'])!r}")


def _error(asked: Any, text: str) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": asked, "error": {"code": _INTERNAL_ERROR, "message": text}})


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in _bounded(aiter(self._stream)):
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _bounded(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    left = MAX_MESSAGE_BYTES
    async for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise httpx2.ReadError(f"it sent a message of more than {MAX_MESSAGE_BYTES} bytes")
        yield piece
