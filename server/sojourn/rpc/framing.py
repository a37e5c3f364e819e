"""Bytes to message bodies and back, without I/O.

The first byte of a connection after blanks decides its framing: `{` or `[` means one JSON text a line, anything else
LSP header frames (`Content-Length: N`, other headers, a blank line, N bytes). A stream that cannot be read any further
raises `FramingError` once; the bodies before it are handed out first. Nothing is reserved for a length that was only
announced.
"""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["headers", "lines"]

MAX_HEADER_LINE = 8192
MAX_HEADER_BLOCK = 65536
_BLANKS = b" \t\r\n"
_PLAIN_HEADER = re.compile(rb"Content-Length: (\d{1,15})\r\n\r\n")
_HTTP_REQUEST = re.compile(rb"[A-Z]{3,10} \S+ HTTP/\d")


class FramingError(Exception):
    """The stream cannot be read any further. `reason` is one sentence for the log and the client.

    `http`: a browser or an HTTP client speaks here and gets no JSON-RPC answer. `too_long`: the announced or reached
    size when it passed the limit.
    """

    def __init__(self, reason: str, *, http: bool = False, too_long: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.http = http
        self.too_long = too_long


class Framer:
    """Takes bytes with `feed`, gives bodies with `next` until it has none. `kind` is None before the first byte."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.kind: Kind | None = None
        self._buffer: bytes | bytearray = b""
        self._pos = 0
        self._searched = 0
        self._length: int | None = None
        self._declared: int | None = None
        self._block = 0
        self._first = True

    def feed(self, data: bytes) -> None:
        """Adds bytes as they came from the peer."""
        if self._pos >= len(self._buffer):
            self._buffer = data  # the common case: whole frames in one read, nothing is copied
        else:
            if isinstance(self._buffer, bytearray):
                del self._buffer[: self._pos]
            else:
                self._buffer = bytearray(memoryview(self._buffer)[self._pos :])
            self._buffer += data
        self._pos = 0

    def next(self) -> bytes | None:
        """The next body, or None when more bytes are needed. Raises `FramingError`."""
        if self.kind is None and not self._detect():
            return None
        return self._next_framed() if self.kind == "headers" else self._next_line()

    def end(self) -> bytes | None:
        """At the end of the stream: the last line when it lacks its newline.

        Raises `FramingError` when the stream ended inside a frame.
        """
        rest = bytes(self._buffer[self._pos :])
        self._buffer, self._pos = b"", 0
        if self.kind == "lines":
            return rest if rest.strip(_BLANKS) else None
        if rest or self._length or self._block:
            raise FramingError("The stream ended in the middle of a frame.")
        return None

    def _detect(self) -> bool:
        while self._pos < len(self._buffer) and self._buffer[self._pos] in _BLANKS:
            self._pos += 1
        if self._pos == len(self._buffer):
            return False
        self.kind = "lines" if self._buffer[self._pos] in b"{[" else "headers"
        return True

    def _next_line(self) -> bytes | None:
        while (line := self._line(self.max_bytes, "A line")) is not None:
            if line.strip(_BLANKS):
                return line
        return None

    def _line(self, limit: int, what: str) -> bytes | None:
        end = self._buffer.find(b"\n", self._pos + self._searched)
        size = (len(self._buffer) if end < 0 else end) - self._pos
        if size > limit:
            raise FramingError(f"{what} is longer than {limit} bytes.", too_long=size)
        if end < 0:
            self._searched = size
            return None
        line = bytes(self._buffer[self._pos : end])
        self._pos, self._searched = end + 1, 0
        return line

    def _next_framed(self) -> bytes | None:
        if self._length is None:
            plain = None if self._block else _PLAIN_HEADER.match(self._buffer, self._pos)
            if plain is not None:
                self._length = int(plain[1])
                self._pos = plain.end()
                if self._length > self.max_bytes:
                    self._accept(self._length)
            elif not self._read_headers():
                return None
        length = self._length or 0
        end = self._pos + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[self._pos : end])
        self._pos, self._length, self._first = end, None, False
        return body

    def _read_headers(self) -> bool:
        while (line := self._line(MAX_HEADER_LINE, "A header line")) is not None:
            line = line.rstrip(b"\r")
            if line.strip(_BLANKS):
                self._header(line)
            elif self._block:  # blank lines between frames mean nothing
                if self._declared is None:
                    raise FramingError("A header block has no Content-Length.")
                self._accept(self._declared)
                self._declared, self._block = None, 0
                return True
        return False

    def _header(self, line: bytes) -> None:
        if self._first and not self._block and _HTTP_REQUEST.match(line):
            raise FramingError("An HTTP request is not JSON-RPC.", http=True)
        self._block += len(line)
        if self._block > MAX_HEADER_BLOCK:
            raise FramingError(f"A header block is longer than {MAX_HEADER_BLOCK} bytes.")
        name, colon, value = line.partition(b":")
        if not colon:
            raise FramingError("A line where a header was due is not one.")
        if name.strip().lower() == b"content-length":
            self._declare(value.strip())

    def _declare(self, value: bytes) -> None:
        if not value.isdigit() or len(value) > 19:
            raise FramingError("A Content-Length is not a plain number of bytes.")
        length = int(value)
        if self._declared not in (None, length):
            raise FramingError("A header block has two different Content-Lengths.")
        self._declared = length

    def _accept(self, length: int) -> None:
        if length > self.max_bytes:
            raise FramingError(f"A frame is longer than {self.max_bytes} bytes.", too_long=length)
        self._length = length


def frame(body: bytes, kind: Kind | None) -> bytes:
    """`body` as it goes over the wire in the framing `kind` (None, not known yet = header frames)."""
    if kind == "lines":
        return body + b"\n"
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
