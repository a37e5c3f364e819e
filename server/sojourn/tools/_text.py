"""Text of files for a model: ranges of lines within limits, what is no text, and what a change looks like.

Rule: what is cut is said. A file is read as far as needed and never further than its limits, however long its lines.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable

from sojourn.core.approvals import Preview

MAX_LINES = 2_000
"""Lines of one answer."""
MAX_BYTES = 128 * 1024
"""Bytes of one answer."""
MAX_LINE = 2_000
"""Bytes of one line that are shown."""
SCAN = 256 * 1024 * 1024
"""How far into a file is looked for a line."""
COUNT = 32 * 1024 * 1024
"""How far lines are counted beyond what was asked for."""
_WINDOW = 512 * 1024
_CHUNK = 1 << 20
_DIFF_LINES = 4_000
_DIFF_CHARS = 40_000
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


Source = Callable[[int, int], bytes]
"""`source(size, position)`: that many bytes from there, fewer at the end."""


def image_type(head: bytes) -> str | None:
    """The media type of an image by its first bytes, of those that models read."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES.items() if head.startswith(magic)), None)


def is_binary(data: bytes) -> bool:
    """Whether these bytes are of something that is no text."""
    return b"\0" in data


def read_lines(source: Source, first: int, count: int) -> tuple[str, list[str]] | None:
    """Up to `count` lines from line `first` (1 is the first) on, and what is to be said of them; None for no text."""
    if is_binary(source(8192, 0)):
        return None
    start = _offset(source, first)
    if start is None:
        return "", [f"There is no line {first} in the first {SCAN} bytes."]
    window = source(_WINDOW, start)
    if is_binary(window):
        return None
    if not window:
        return "", ["The file is empty." if first == 1 else f"There is no line {first}: {_length(source)}."]
    lines = _whole_lines(window, ended=not source(1, start + len(window)))
    kept = _fitting(lines[: min(count, MAX_LINES)])
    text, notes = _shown(lines[:kept], first)
    after = start + sum(map(len, lines[:kept]))
    if more := _more(source, after, whole=lines[kept - 1].endswith(b"\n")):
        notes.insert(0, f"Lines {first} to {first + kept - 1}; {more} follow, go on with line={first + kept}.")
    elif first > 1:
        notes.insert(0, f"Lines {first} to {first + kept - 1}, the last one.")
    return text, notes


def _offset(source: Source, first: int) -> int | None:
    """Where line `first` begins, or the text ends; None when that is too far."""
    owed, position = first - 1, 0
    while owed > 0:
        if position >= SCAN:
            return None
        chunk = source(_CHUNK, position)
        if not chunk:
            break
        found = chunk.count(b"\n")
        if found < owed:
            owed -= found
            position += len(chunk)
            continue
        place = -1
        for _ in range(owed):
            place = chunk.index(b"\n", place + 1)
        return position + place + 1
    return position


def _length(source: Source) -> str:
    lines, position, last = 0, 0, b"\n"
    while chunk := source(_CHUNK, position):
        lines, position, last = lines + chunk.count(b"\n"), position + len(chunk), chunk[-1:]
    lines += last != b"\n"
    return f"it has {lines} lines"


def _whole_lines(window: bytes, *, ended: bool) -> list[bytes]:
    lines = window.split(b"\n")
    last = lines.pop()
    whole = [line + b"\n" for line in lines]
    return [*whole, last] if last and (ended or not whole) else whole


def _fitting(lines: list[bytes]) -> int:
    size = 0
    for number, line in enumerate(lines):
        size += min(len(line), MAX_LINE)
        if size > MAX_BYTES and number:
            return number
    return len(lines)


def _shown(lines: list[bytes], first: int) -> tuple[str, list[str]]:
    notes, out, long = [], [], []
    for number, line in enumerate(lines, first):
        if len(line) > MAX_LINE + 2:
            long.append(str(number))
            line = line[:MAX_LINE].decode("utf-8", "ignore").encode() + b"\n"
        out.append(line)
    data = b"".join(out)
    if long:
        which = ", ".join(long[:5]) + (f" and {len(long) - 5} more" if len(long) > 5 else "")
        notes.append(f"Cut after {MAX_LINE} bytes: line {which}.")
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
        notes.append("Its lines end with CRLF.")
    try:
        return data.decode(), notes
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), [*notes, "It is not UTF-8; what could not be read is shown as \ufffd."]


def _more(source: Source, position: int, *, whole: bool) -> str:
    """How many lines come after `position`, in words; empty for none. Not `whole`: the line before it goes on there."""
    lines, start, last = 0, position, b"\n"
    while position - start < COUNT and (chunk := source(_CHUNK, position)):
        lines, position, last = lines + chunk.count(b"\n"), position + len(chunk), chunk[-1:]
    ended = not source(1, position)
    lines += last != b"\n" if position > start else 0
    lines -= not whole
    return (f"{lines}" if lines > 0 else "") if ended else f"more than {lines}"


# -- changes ----------------------------------------------------------------------------------------------------------


def sha256(text: str) -> str:
    """The hash of a text as it stands in a file."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def preview_of(path: str, before: str | None, after: str) -> Preview:
    """The change of one file as a unified diff; `before` is None for a file that is to be made."""
    diff = unified_diff(path, before, after)
    cut = len(diff) > _DIFF_CHARS
    if cut:
        shown = diff[:_DIFF_CHARS].rpartition("\n")[0]
        left = diff.count("\n") - shown.count("\n") - 1
        diff = f"{shown}\n[{left} more lines of this change are not shown]\n"
    base = None if before is None else sha256(before)
    return Preview(path=path, text=diff, base_sha256=base, truncated=True if cut else None)


def unified_diff(path: str, before: str | None, after: str) -> str:
    """A unified diff with three lines of context."""
    old, new = _split(before or ""), _split(after)
    head = f"--- {'/dev/null' if before is None else f'a/{path}'}\n+++ b/{path}\n"
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    tail = 0
    while tail < min(len(old), len(new)) - same and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    start, keep = max(0, same - 3), max(0, tail - 3)
    old_part, new_part = old[start : len(old) - keep], new[start : len(new) - keep]
    if max(len(old_part), len(new_part)) > _DIFF_LINES:  # difflib's time grows with the square
        hunks = [_whole_hunk(start, old_part, new_part)]
    else:
        lines = list(difflib.unified_diff(old_part, new_part, n=3))[2:]
        hunks = [_moved(line, start) if line.startswith("@@ ") else line for line in lines]
    return head + "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in hunks)


def _split(text: str) -> list[str]:
    lines = text.split("\n")
    last = lines.pop()
    return [*(f"{line}\n" for line in lines), *([last] if last else [])]


def _whole_hunk(start: int, old: list[str], new: list[str]) -> str:
    head = f"@@ -{start + 1 if old else start},{len(old)} +{start + 1 if new else start},{len(new)} @@\n"
    marked = [f"-{line}" for line in old] + [f"+{line}" for line in new]
    lines = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in marked)
    return head + "".join(lines)


def _moved(header: str, by: int) -> str:
    return re.sub(r"([-+])(\d+)", lambda found: f"{found[1]}{int(found[2]) + by}", header)
