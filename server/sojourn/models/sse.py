"""Bytes of a `text/event-stream` in, events out, in whatever pieces the network delivers them.

The rule: lines end at CR, LF or CRLF and at nothing else (WHATWG HTML, 9.2.6), and everything here stays bytes, so
a character cut by a piece's border is no case of its own and a charset in a header cannot garble it. Comments, blank
data, a leading BOM, `id` and `retry` are skipped. Unlike a browser, an unterminated last event is delivered (`close`):
whether an answer is complete is told by its terminal mark, not by a blank line.
"""

from __future__ import annotations

from itertools import repeat

from sojourn.core.errors import ModelError

SseEvent = tuple[str, bytes]
"""An event's name (`message` when it has none) and its data: the data lines joined by LF."""

MAX_EVENT_BYTES = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class SseDecoder:
    """Feed it pieces; each call answers the events that are complete now."""

    __slots__ = ("_at_start", "_cr", "_max", "_pieces", "_size")

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._pieces: list[bytes] = []  # of the unfinished event, line ends already LF
        self._size = 0
        self._cr = False  # the last piece ended in CR, so an LF that follows belongs to it
        self._at_start = True
        self._max = max_event_bytes

    def feed(self, piece: bytes) -> list[SseEvent]:
        """The events that `piece` completes. Raises `ModelError` when one event exceeds the limit."""
        if self._at_start:
            piece = self._skip_bom(piece)
        if self._cr or b"\r" in piece:
            piece = self._only_lf(piece)
        if not self._ends_an_event(piece):
            self._keep(piece)
            return []
        if self._pieces:
            piece = b"".join([*self._pieces, piece])
            self._pieces.clear()
        self._size = 0
        end = piece.rfind(b"\n\n")
        self._keep(piece[end + 2 :] if end >= 0 else piece)
        return _events(piece[:end]) if end >= 0 else []

    def close(self) -> list[SseEvent]:
        """The last event, if the stream ended without the blank line after it."""
        rest = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return _events(rest.removeprefix(_BOM))

    def _ends_an_event(self, piece: bytes) -> bool:
        # Asked of the piece alone: an event of very many small pieces is put together once, when it is whole.
        return b"\n\n" in piece or (piece.startswith(b"\n") and bool(self._pieces) and self._pieces[-1].endswith(b"\n"))

    def _skip_bom(self, piece: bytes) -> bytes:
        piece = b"".join([*self._pieces, piece])
        self._pieces.clear()
        self._size = 0
        if len(piece) < len(_BOM) and _BOM.startswith(piece):
            return piece
        self._at_start = False
        return piece.removeprefix(_BOM)

    def _only_lf(self, piece: bytes) -> bytes:
        if self._cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._cr = False
        if piece:
            self._cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _keep(self, rest: bytes) -> None:
        if not rest:
            return
        self._pieces.append(rest)
        self._size += len(rest)
        if self._size > self._max:
            raise ModelError(
                f"One event of the model's stream is over {self._max} bytes long; it is not read any further.",
                retryable=False,
                reason="eventTooLong",
            )


def _events(text: bytes) -> list[SseEvent]:
    data = text.split(b"\n\ndata: ")
    if text.startswith(b"data: ") and text.count(b"\n") == 2 * (len(data) - 1):
        # One data line per event and nothing else, which is what nearly every model sends: no Python per line.
        data[0] = data[0][6:]
        return list(zip(repeat("message"), filter(bytes.strip, data), strict=False))
    return [event for event in map(_event, text.split(b"\n\n")) if event is not None]


def _event(block: bytes) -> SseEvent | None:
    name = "message"
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ").decode("utf-8", "replace") or "message"
    joined = b"\n".join(data)
    return (name, joined) if joined.strip() else None
