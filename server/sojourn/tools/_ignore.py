"""What a `.gitignore` says of a path, as git reads one, in time that no file of whoever wrote it can blow up.

Rule: no line is matched by backtracking. A name is matched in time proportional to its length times the line's, and
lines are limited in their length and number; what is beyond the limits is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

MAX_BYTES = 256 * 1024
"""How much of a file is read."""
MAX_LINE = 1_000
"""Characters of a line that is used."""
MAX_PATTERNS = 1_000
"""Lines of one file that are more than a plain name."""

Segment = Callable[[str], object]
"""Whether a name fits."""
_ONE = re.compile(r"\\(.)|(\*+)|(\?)|(\[[!^]?\]?(?:\[:[a-z]+:\]|\\.|[^\]\\])*+\])|(.)", re.DOTALL)
_IN_SET = re.compile(r"\[:([a-z]+):\]|\\(.)|(.)-([^\]])|(.)", re.DOTALL)
_CLASSES = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s"}


@dataclass(frozen=True, slots=True)
class _Line:
    """A line: its names (None for `**`), or one name in any directory, and where it stands in the file."""

    number: int
    segments: tuple[Segment | None, ...]
    anywhere: bool
    ignores: bool
    directories: bool

    def fits(self, names: list[str], is_directory: bool) -> bool:
        if self.directories and not is_directory:
            return False
        return fit(self.segments, names[-1:] if self.anywhere else names)


class Ignore:
    """The lines of a `.gitignore`."""

    def __init__(self, text: str) -> None:
        self._plain: dict[str, list[_Line]] = {}
        """Lines that are a plain name, by it: the last one for files; before it a later one for directories only."""
        self._patterns: list[_Line] = []
        """The others, the last one first."""
        self.cut = False
        """Whether lines were left out because there are too many."""
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n")):
            self._take(number, _without_blanks(line.removesuffix("\r")))
        self._patterns.reverse()

    def says(self, path: str, *, is_directory: bool) -> bool | None:
        """Whether it ignores `path` (relative to its directory); None when no line fits. The last that fits decides."""
        names = path.split("/")
        plain = next((one for one in self._plain.get(names[-1], ()) if is_directory or not one.directories), None)
        for line in self._patterns:
            if plain is not None and line.number < plain.number:
                break
            if line.fits(names, is_directory):
                return line.ignores
        return None if plain is None else plain.ignores

    def _take(self, number: int, text: str) -> None:
        if text.startswith("#") or len(text) > MAX_LINE:
            return
        ignores = not text.startswith("!")
        text = text if ignores else text[1:]
        directories = text.endswith("/")
        text = text.rstrip("/")
        anywhere = "/" not in text
        if anywhere and not re.search(r"[*?\[\\]", text):
            line = _Line(number, (), True, ignores, directories)
            before = self._plain.get(text, []) if directories else []
            self._plain[text] = [line, *(one for one in before if not one.directories)]
        elif len(self._patterns) >= MAX_PATTERNS:
            self.cut = True
        else:
            segments = (segment_of(text),) if anywhere else segments_of(text)
            self._patterns.append(_Line(number, segments, anywhere, ignores, directories))


def fit(segments: tuple[Segment | None, ...], names: list[str]) -> bool:
    """Segments against all names, in time proportional to their product. `ends[i]`: the first i names fit so far."""
    if len(segments) - segments.count(None) > len(names):
        return False
    ends = [True] + [False] * len(names)
    for segment in segments:
        if segment is None:
            reached = False
            ends = [reached := reached or end for end in ends]
        else:
            ends = [False] + [ends[i] and bool(segment(name)) for i, name in enumerate(names)]
    return ends[-1]


def segments_of(pattern: str) -> tuple[Segment | None, ...]:
    """What the names of a path fit; None for `**`, any number of directories. At the end `**` is all that is inside."""
    found: list[Segment | None] = []
    for name in pattern.removeprefix("/").split("/"):
        if name != "**":
            found.append(segment_of(name))
        elif not found or found[-1] is not None:
            found.append(None)
    return (*found, _any) if found[-1] is None else tuple(found)


def segment_of(pattern: str) -> Segment:
    """What one name fits: `*`, `?`, `[...]`, and a backslash before what is meant as it is."""
    parts = [""]
    for found in _ONE.finditer(pattern):
        escaped, stars, any_one, letters, plain = found.groups()
        if plain in ("[", "\\"):
            return _none  # a set without an end, a backslash before nothing
        if stars:
            parts.append("")
        else:
            parts[-1] += "." if any_one else _set(letters) if letters else re.escape(escaped or plain)
    first, *rest = parts
    if rest:  # what is between stars takes the first place where it fits and stays there: nothing is tried twice
        middle = "".join(f"(?>.*?{part})" for part in rest[:-1] if part)
        first += f"{middle}.*{rest[-1]}"
    return re.compile(first, re.DOTALL).fullmatch


def _set(text: str) -> str:
    body = text[1:-1]
    negated = body[0] in "!^"
    out = ""
    for found in _IN_SET.finditer(body[negated:]):
        name, escaped, low, high, plain = found.groups()
        if name:
            out += _CLASSES.get(name, "")
        elif low:
            out += f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""
        else:
            out += re.escape(escaped or plain)
    if negated:
        return f"[^/{out}]"
    return f"[{out}]" if out else "(?!)"


def _any(_name: str) -> bool:
    return True


def _none(_name: str) -> bool:
    return False


def _without_blanks(text: str) -> str:
    """Without the blanks at the end, but for one after a backslash."""
    short = text.rstrip(" ")
    slashes = len(short) - len(short.rstrip("\\"))
    return f"{short} " if slashes % 2 and short != text else short
