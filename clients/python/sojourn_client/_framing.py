"""Bytes to JSON bodies and back, in the two framings that the daemon understands."""

from __future__ import annotations

import json
from typing import Any, Literal

import orjson

Framing = Literal["lines", "headers"]


def encode(body: dict[str, Any], framing: Framing) -> bytes:
    """A message as the bytes to send."""
    try:
        data = orjson.dumps(body)
    except TypeError:
        # A lone surrogate, or an integer beyond 64 bits: sent escaped, judged by the daemon.
        data = json.dumps(body, allow_nan=False).encode()
    if framing == "lines":
        return data + b"\n"
    return b"Content-Length: %d\r\n\r\n" % len(data) + data


class Splitter:
    """Takes what was read, gives the bodies that are complete. Raises `ValueError` at bytes that are no frames."""

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._buffer = bytearray()
        self._scanned = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Adds `data` and answers every body that it completes, in order."""
        self._buffer += data
        next_body = self._line if self._framing == "lines" else self._framed
        bodies = []
        while (body := next_body()) is not None:
            if body:
                bodies.append(body)
        return bodies

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._scanned)
        if end < 0:
            self._scanned = len(self._buffer)
            return None
        return self._take(end, end + 1).strip()

    def _framed(self) -> bytes | None:
        end = self._buffer.find(b"\r\n\r\n", max(0, self._scanned - 3))
        if end < 0:
            self._scanned = len(self._buffer)
            return None
        start = end + 4
        length = _content_length(bytes(self._buffer[:end]))
        if len(self._buffer) < start + length:
            self._scanned = end
            return None
        return self._take(start + length, start + length)[start:]

    def _take(self, end: int, rest: int) -> bytes:
        body = bytes(self._buffer[:end])
        del self._buffer[:rest]
        self._scanned = 0
        return body


def _content_length(header: bytes) -> int:
    for line in header.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    raise ValueError(f"The daemon sent a header without a Content-Length: {header[:80]!r}.")
