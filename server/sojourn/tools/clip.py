"""Long output in short: how it begins and how it ends, and how much is left out between."""

from __future__ import annotations

HEAD = 8_000
TAIL = 16_000


class Clip:
    """Takes bytes in pieces, keeps the first `head` and the last `tail` of them."""

    def __init__(self, head: int = HEAD, tail: int = TAIL) -> None:
        self._most_head, self._most_tail = head, tail
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0
        self._skipped = False

    def add(self, data: bytes) -> None:
        """Takes the next piece."""
        self._total += len(data)
        if not self._skipped and (room := self._most_head - len(self._head)) > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 4 * self._most_tail:
            del self._tail[: -self._most_tail]

    def skip(self, count: int) -> None:
        """Says that `count` bytes are missing here."""
        if count > 0:
            self._total += count
            self._skipped = True
            self._tail.clear()

    def text(self) -> str:
        """All of it, or its ends with a note of what is left out between."""
        tail = bytes(self._tail[-self._most_tail :])
        if len(self._head) + len(tail) >= self._total:
            return bytes(self._head + tail).decode(errors="replace")
        head, tail = whole_characters(bytes(self._head)), _from_start(tail)
        note = f"[... {self._total - len(head) - len(tail)} bytes left out, {self._total} in all ...]"
        return f"{head.decode(errors='replace')}\n{note}\n{tail.decode(errors='replace')}"


def whole_characters(data: bytes) -> bytes:
    """Without the beginning of a character at the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < needed else data
        if byte < 0x80:
            break
    return data


def _from_start(data: bytes) -> bytes:
    """Without the rest of a character at the beginning."""
    skip = 0
    while skip < min(3, len(data)) and data[skip] & 0xC0 == 0x80:
        skip += 1
    return data[skip:]
