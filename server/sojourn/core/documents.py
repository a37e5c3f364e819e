"""A document's text as an editor has it: changed by ranges of lines and UTF-16 columns, as the language server protocol
counts them, and the one range that turns a text into another.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from .values import Value

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")


class Position(Value):
    """A place in a text: a line and a column in UTF-16 units, both from 0. Beyond the end of a line means its end."""

    line: int
    character: int


class Range(Value):
    """From one place up to another."""

    start: Position
    end: Position


class Lines:
    """A text by its lines. Raises `ValueError` for a range that ends before it starts."""

    def __init__(self, text: str) -> None:
        self._lines = _split(text)
        self.length = len(text)
        """In characters."""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._lines)

    def replace(self, place: Range, text: str) -> None:
        """Puts `text` in the place of a range. What lies beyond the end of the text means its end."""
        first, before = self._at(place.start)
        last, after = self._at(place.end)
        if (last, after) < (first, before):
            raise ValueError("The range ends before it starts.")
        # One line more on both sides: an end of line may come about, or fall apart, between CR and LF.
        begin, end = max(0, first - 1), min(len(self._lines), last + 2)
        old = self._lines[begin:end]
        head = "".join(self._lines[begin:first]) + self._line(first)[:before]
        tail = self._line(last)[after:] + "".join(self._lines[last + 1 : end])
        new = head + text + tail
        self._lines[begin:end] = _split(new)
        self.length += len(new) - sum(map(len, old))

    def part(self, place: Range) -> str:
        """The text in a range; nothing when it ends before it starts."""
        first, before = self._at(place.start)
        last, after = self._at(place.end)
        lines = self._lines[first : last + 1]
        if last < len(self._lines):
            lines[-1:] = [line[:after] for line in lines[-1:]]
        return "".join(lines)[before:]

    def position(self, offset: int) -> Position:
        """The place of the character number `offset`."""
        number = 0
        for number, line in enumerate(self._lines):
            if offset < len(line):
                return Position(line=number, character=_units(line[:offset]))
            offset -= len(line)
        if self._lines and not self._lines[-1].endswith(("\r", "\n")):
            return Position(line=number, character=_units(self._lines[-1]))
        return Position(line=len(self._lines), character=0)

    def _line(self, number: int) -> str:
        return self._lines[number] if number < len(self._lines) else ""

    def _at(self, place: Position) -> tuple[int, int]:
        """The line and the character in it."""
        if place.line >= len(self._lines):
            last = self._line(len(self._lines) - 1) if self._lines else "\n"
            return (len(self._lines), 0) if last.endswith(("\r", "\n")) else (len(self._lines) - 1, len(last))
        line = self._lines[place.line]
        content = line.rstrip("\r\n")
        if content.isascii():
            return place.line, min(place.character, len(content))
        units = 0
        for index, char in enumerate(content):
            units += 2 if ord(char) > 0xFFFF else 1
            if units > place.character:
                return place.line, index
        return place.line, len(content)


def difference(old: str, new: str) -> tuple[Range, str]:
    """The one replacement that makes `new` of `old`; ends of lines are never torn."""
    start = _common(old, new)
    if old[start - 1 : start] == "\r" and "\n" in (old[start : start + 1], new[start : start + 1]):
        start -= 1
    most = min(len(old), len(new)) - start
    same = _common(old[len(old) - most :][::-1], new[len(new) - most :][::-1])
    if same and old[len(old) - same] == "\n" and "\r" in (_before(old, same), _before(new, same)):
        same -= 1
    lines = Lines(old)
    place = Range(start=lines.position(start), end=lines.position(len(old) - same))
    return place, new[start : len(new) - same]


def path_of(uri: str) -> str | None:
    """The path of a `file` URI of this machine; None for any other."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    path = unquote(parts.path)
    local = parts.scheme == "file" and parts.netloc in ("", "localhost")
    return path if local and path.startswith("/") and "\0" not in path else None


def _before(text: str, same: int) -> str:
    return text[len(text) - same - 1 : len(text) - same] if len(text) > same else ""


def _common(a: str, b: str) -> int:
    """How many characters two texts begin with together; found by halves, each compared at once."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _split(text: str) -> list[str]:
    return _LINE.findall(text)


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
