"""Searching files for a regular expression, by ripgrep where it is installed, else in this process.

Rule: both give the same answers. ripgrep only says which lines of which files match; what is shown is read here, like
everything else in a working directory. A pattern that the two read differently is never given to ripgrep. Neither can
be made to run for long: ripgrep is ended, and the library looks at its clock and lets the daemon's other threads work.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ._places import FileRefused, Root, in_line
from ._text import is_binary

MAX_MATCHES = 200
MAX_FILE = 10 * 1024 * 1024
MAX_SECONDS = 20.0
MAX_PATTERN = 1_000
_MAX_SHOWN_LINE = 300
_MAX_SHOWN = 96 * 1024
_BATCH_BYTES = 128 * 1024
_RG = [
    *("--no-config", "--no-messages", "--color", "never", "--no-heading", "--with-filename", "--null", "--line-number"),
    *("--max-columns", "1", "--text", "--encoding", "none", "--threads", "1", "--case-sensitive"),
    *("--max-count", str(MAX_MATCHES + 1)),
]
_HIT = re.compile(rb"([^\0]+)\0(\d+):[^\n]*\n?")
_DIFFERENT = re.compile(r"\\[^dDwWsSbnrt.*+?()\[\]{}|^$/\\\-]|\[\[|\[\^?\]|&&|--|~~|\(\?(?!:)|[^\x00-\x7f]|\{,")
"""What in a pattern ripgrep and the library may read differently, or only one of them reads."""


@dataclass(slots=True)
class Search:
    """What is looked for, and what was found."""

    pattern: str
    ignore_case: bool = False
    context: int = 0
    lines: list[str] = field(default_factory=list)
    matches: int = 0
    notes: list[str] = field(default_factory=list)
    stopped: Callable[[], bool] = lambda: False
    _size: int = 0
    _deadline: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)
    """Counted from when it was asked for: the walk that finds the files is part of it."""

    def run(self, root: Root, files: Iterable[str], *, rg: str | None) -> None:
        """Searches `files` (relative to the root, in order) with the ripgrep at `rg`, or without. Fills `lines`."""
        compiled = self._compiled()
        search = self._by_ripgrep if rg is not None and not _DIFFERENT.search(self.pattern) else self._by_library
        with contextlib.suppress(_Enough):
            search(root, files, compiled, rg)

    # -- the two ways -------------------------------------------------------------------------------------------------

    def _by_library(self, root: Root, files: Iterable[str], compiled: Any, rg: str | None = None) -> None:
        simple = not _DIFFERENT.search(self.pattern)
        for path in files:
            self._in_time()
            text = _text(root, path)
            if text is None or (simple and not self._found(compiled, text)):
                continue
            lines = _lines(text)
            hits = (number for number, line in enumerate(lines) if self._found(compiled, line))
            self._show(path, lines, hits)

    def _by_ripgrep(self, root: Root, files: Iterable[str], compiled: Any, rg: str | None) -> None:
        assert rg is not None
        for batch in _batches(files):
            code = self._one_ripgrep(root, [rg, *_RG, *(["-i"] if self.ignore_case else [])], batch)
            if code not in (0, 1):  # a pattern that it cannot read, a file that it may not: looked at here
                self._by_library(root, batch, compiled)

    def _one_ripgrep(self, root: Root, command: list[str], batch: list[str]) -> int:
        expression = _carriage(self.pattern)
        with subprocess.Popen(  # noqa: S603 (its arguments are options of ours, a pattern after -e, paths after --)
            [*command, "-e", expression, "--", *(f"./{path}" for path in batch)],
            cwd=root.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            watch = threading.Timer(max(0.0, self._deadline - time.monotonic()), process.kill)
            watch.daemon = True
            watch.start()
            assert process.stdout is not None
            shown = False
            try:
                for path, hits in itertools.groupby(_hits(process.stdout), key=lambda hit: hit[0]):
                    shown = True
                    self._look(root, path, [number for _, number in hits])
                code = process.wait()
            finally:
                watch.cancel()
                process.kill()
            self._in_time()
            return 0 if shown else code

    def _look(self, root: Root, path: str, hits: list[int]) -> None:
        """Shows lines that ripgrep found, as they are in the file that we see."""
        text = _text(root, path)
        if text is not None:
            lines = _lines(text)
            self._show(path, lines, (number - 1 for number in hits if number <= len(lines)))

    # -- what is shown ------------------------------------------------------------------------------------------------

    def _show(self, path: str, lines: list[str], hits: Iterable[int]) -> None:
        shown = -1
        for number in hits:
            self._in_time()
            if self.matches >= MAX_MATCHES or self._size > _MAX_SHOWN:
                self.notes.append(f"Only the first {self.matches} matches are shown; there are more.")
                raise _Enough
            self.matches += 1
            for near in range(max(0, number - self.context, shown + 1), number + self.context + 1):
                if near < len(lines):
                    self._add(path, near, lines[near], hit=near == number)
            shown = max(shown, number + self.context)

    def _add(self, path: str, number: int, line: str, *, hit: bool) -> None:
        line = line.removesuffix("\r")
        if len(line) > _MAX_SHOWN_LINE:
            line = f"{line[:_MAX_SHOWN_LINE]} [cut: {len(line)} characters]"
        mark = ":" if hit else "-"
        self.lines.append(f"{in_line(path)}{mark}{number + 1}{mark} {line}")
        self._size += len(self.lines[-1])

    # -- the pattern --------------------------------------------------------------------------------------------------

    def _compiled(self) -> Any:
        import regex

        if not self.pattern or len(self.pattern) > MAX_PATTERN or "\0" in self.pattern or "\n" in self.pattern:
            raise FileRefused(f"A pattern is one line of 1 to {MAX_PATTERN} characters.")
        flags = regex.MULTILINE | (regex.IGNORECASE if self.ignore_case else 0)
        try:
            return regex.compile(_carriage(self.pattern), flags)
        except (regex.error, RecursionError, OverflowError, MemoryError, ValueError) as error:
            why = str(error) or "there is too much of it"
            raise FileRefused(
                f"{self.pattern[:200]!r} is no regular expression: {why}. With literal=true it is plain text."
            ) from None

    def _found(self, compiled: Any, text: str) -> bool:
        self._in_time()
        left = max(0.001, self._deadline - time.monotonic())
        try:
            return compiled.search(text, timeout=left, concurrent=True) is not None
        except TimeoutError:
            self._late()
        except (MemoryError, RecursionError):  # it keeps every place where it may have to try again
            self.notes.append("The search was ended: the pattern takes too much memory here; a simpler one does not.")
            raise _Enough from None

    def _in_time(self) -> None:
        if time.monotonic() >= self._deadline or self.stopped():
            self._late()

    def _late(self) -> NoReturn:
        self.notes.append(
            f"The search was ended after {MAX_SECONDS:g} seconds; a simpler pattern or a smaller directory is faster."
        )
        raise _Enough


class _Enough(Exception):
    """The search is over."""


def ripgrep() -> str | None:
    """Where ripgrep is installed, if it is."""
    return shutil.which("rg")


def literal(text: str) -> str:
    """A pattern that matches `text` only, in characters that both ways read alike."""
    return re.sub(r"([.*+?()\[\]{}|^$\\])", r"\\\1", text)


def _carriage(pattern: str) -> str:
    """The pattern with `$` also before the CR of a CRLF."""
    out, escaped, in_class = [], False, False
    for char in pattern:
        if not escaped:
            in_class = char == "[" or (in_class and char != "]")
        out.append(r"\r?$" if char == "$" and not escaped and not in_class else char)
        escaped = char == "\\" and not escaped
    return "".join(out)


def _text(root: Root, path: str) -> str | None:
    """A file's text; None for what is no UTF-8 text, or not there any more."""
    try:
        with root.place(path) as place:
            data = place.read(MAX_FILE)
        return None if is_binary(data) else data.decode()
    except (FileRefused, UnicodeDecodeError):
        return None


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _batches(files: Iterable[str]) -> Iterator[list[str]]:
    """The files in pieces that fit into one command."""
    batch: list[str] = []
    size = 0
    for path in files:
        batch.append(path)
        size += len(path.encode("utf-8", "surrogateescape")) + 16
        if size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _hits(output: Iterable[bytes]) -> Iterator[tuple[str, int]]:
    """The paths and line numbers in ripgrep's output."""
    for line in output:
        if found := _HIT.fullmatch(line):
            yield found[1].decode("utf-8", "surrogateescape").removeprefix("./"), int(found[2])
