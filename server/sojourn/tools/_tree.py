"""Walking the files below a directory: what git ignores left out, in one order, within limits, links never followed.

Rule: one walk serves `glob` and `grep`, so both see the same files.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ._places import FileRefused, Place

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

MAX_ENTRIES = 200_000
"""Names that one walk looks at."""
MAX_SECONDS = 10.0
MAX_DEPTH = 64
_MAX_IGNORE = 256 * 1024
_MAX_ALTERNATIVES = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LEFT_OUT = ".git"


@dataclass(slots=True)
class Walk:
    """One walk; `notes` says what it did not get to."""

    ignored: bool = False
    """Whether files that git ignores are walked as well."""
    notes: list[str] = field(default_factory=list)
    _seen: int = 0
    _deadline: float = 0.0

    def files(self, place: Place) -> Iterator[tuple[str, os.stat_result]]:
        """The regular files below the directory (or the file itself), relative to it, sorted by their names.

        A directory comes where its name belongs; the order is that of the path's names, not of its characters.
        """
        self._deadline = time.monotonic() + MAX_SECONDS
        fd = place.open_directory()
        try:
            yield from self._below(fd, "", ())
        finally:
            os.close(fd)

    def _below(self, directory: int, prefix: str, rules: tuple[_Rules, ...]) -> Iterator[tuple[str, os.stat_result]]:
        if not self.ignored and (own := _read_rules(directory, prefix)) is not None:
            rules = (*rules, own)
        for name in self._names(directory, prefix):
            try:
                found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except OSError:
                continue  # gone again, or nobody may look at it
            path = f"{prefix}{name}"
            if stat.S_ISDIR(found.st_mode):
                if name != _LEFT_OUT and not _is_ignored(f"{path}/", rules):
                    yield from self._into(directory, name, path, rules)
            elif stat.S_ISREG(found.st_mode) and not _is_ignored(path, rules):
                yield path, found

    def _into(
        self, directory: int, name: str, path: str, rules: tuple[_Rules, ...]
    ) -> Iterator[tuple[str, os.stat_result]]:
        if path.count("/") >= MAX_DEPTH:
            self._note(f"Directories deeper than {MAX_DEPTH} were left out.")
            return
        try:
            inner = os.open(name, _DIRECTORY, dir_fd=directory)
        except OSError as error:
            self._note(f"{path!r} was left out: {error.strerror}.")
            return
        try:
            yield from self._below(inner, f"{path}/", rules)
        finally:
            os.close(inner)

    def _names(self, directory: int, prefix: str) -> list[str]:
        names: list[str] = []
        if self._over():
            return names
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if self._over():
                        break
                    self._seen += 1
                    names.append(entry.name)
        except OSError as error:
            self._note(f"{prefix or '.'!r} was left out: {error.strerror}.")
        return sorted(names)

    def _over(self) -> bool:
        if self._seen >= MAX_ENTRIES:
            self._note(f"Only the first {MAX_ENTRIES} names were looked at; name a smaller directory.")
            return True
        if time.monotonic() > self._deadline:
            self._note(f"The search ended after {MAX_SECONDS:g} seconds; name a smaller directory.")
            return True
        return False

    def _note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < 5:
            self.notes.append(text)


@dataclass(frozen=True, slots=True)
class _Rules:
    """A `.gitignore`, and the directory that it is in."""

    prefix: str
    spec: GitIgnoreSpec


def _read_rules(directory: int, prefix: str) -> _Rules | None:
    try:
        fd = os.open(".gitignore", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        text = file.read(_MAX_IGNORE).decode("utf-8", "replace")
    from pathspec import GitIgnoreSpec

    lines = []
    for line in text.splitlines():
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:
            continue  # git ignores a line that it cannot read, too
        lines.append(line)
    return _Rules(prefix, GitIgnoreSpec.from_lines(lines)) if lines else None


def _is_ignored(path: str, rules: tuple[_Rules, ...]) -> bool:
    """The deepest `.gitignore` that says anything about `path` decides."""
    for one in reversed(rules):
        said = one.spec.check_file(path[len(one.prefix) :]).include
        if said is not None:
            return said
    return False


class Glob:
    """A pattern for paths: `*`, `?`, `[...]` within a name, `**` for any directories, `{a,b}` for either.

    A pattern without `/` is looked for in every directory.
    """

    def __init__(self, pattern: str) -> None:
        if not pattern.strip("/") or "\0" in pattern:
            raise FileRefused(f"{pattern!r} is no pattern for files; one is like 'src/**/*.py'.")
        texts = _alternatives(pattern)
        self._choices = [_segments(text) for text in texts]

    def matches(self, path: str) -> bool:
        """Whether a relative path fits."""
        names = path.split("/")
        return any(_fits(choice, names) for choice in self._choices)


def _segments(pattern: str) -> list[re.Pattern[str] | None]:
    """A regular expression for each name; None for `**`. fnmatch's expressions do not backtrack over stars."""
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if len(names) == 1 and names != ["**"] and not pattern.startswith("/"):
        names.insert(0, "**")
    return [None if name == "**" else re.compile(fnmatch.translate(name)) for name in names]


def _fits(segments: list[re.Pattern[str] | None], names: list[str]) -> bool:
    """Segments against names in time proportional to their product: `ends[i]`: the first i names fit so far."""
    ends = [True] + [False] * len(names)
    for segment in segments:
        if segment is None:
            reached = False
            ends = [reached := reached or end for end in ends]
        else:
            ends = [False] + [ends[i] and segment.match(name) is not None for i, name in enumerate(names)]
    return ends[-1]


def _alternatives(pattern: str) -> list[str]:
    """The patterns that `{a,b}` stands for."""
    done: list[str] = []
    todo = [pattern]
    while todo:
        text = todo.pop(0)
        found = re.search(r"\{([^{}]*,[^{}]*)\}", text)
        if found is None:
            done.append(text)
        else:
            todo += [text[: found.start()] + one + text[found.end() :] for one in found[1].split(",")]
        if len(done) + len(todo) > _MAX_ALTERNATIVES:
            raise FileRefused(f"{pattern[:100]!r} stands for more than {_MAX_ALTERNATIVES} patterns.")
    return done
