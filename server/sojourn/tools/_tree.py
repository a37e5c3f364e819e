"""Walking the files below a directory: what git ignores left out, in one order, within limits, links never followed.

Rule: one walk serves `glob` and `grep`, so both see the same files.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ._ignore import MAX_BYTES, MAX_PATTERNS, Ignore, Segment, fit
from ._places import FileRefused, Place

MAX_ENTRIES = 200_000
"""Names that one walk looks at."""
MAX_SECONDS = 10.0
MAX_DEPTH = 64
_MAX_ALTERNATIVES = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LEFT_OUT = ".git"


@dataclass(slots=True)
class Walk:
    """One walk; `notes` says what it did not get to."""

    ignored: bool = False
    """Whether files that git ignores are walked as well."""
    stopped: Callable[[], bool] = lambda: False
    """Whether whoever asked has gone; then the walk ends."""
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
            if own.lines.cut:
                self._note(f"Only the first {MAX_PATTERNS} patterns of {prefix}.gitignore were used.")
        for name in self._names(directory, prefix):
            if self._late():
                return
            try:
                found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except OSError:
                continue  # gone again, or nobody may look at it
            path = f"{prefix}{name}"
            if stat.S_ISDIR(found.st_mode):
                if name != _LEFT_OUT and not self._is_ignored(path, rules, is_directory=True):
                    yield from self._into(directory, name, path, rules)
            elif stat.S_ISREG(found.st_mode) and not self._is_ignored(path, rules, is_directory=False):
                yield path, found

    def _is_ignored(self, path: str, rules: tuple[_Rules, ...], *, is_directory: bool) -> bool:
        """The deepest `.gitignore` that says anything about `path` decides. When the time is over, nothing is shown."""
        for one in reversed(rules):
            said = one.lines.says(path[len(one.prefix) :], is_directory=is_directory)
            if said is not None:
                return said
            if self._late():
                return True
        return False

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
        return self._late()

    def _late(self) -> bool:
        if self.stopped():
            self._note("The search was stopped.")
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
    lines: Ignore


def _read_rules(directory: int, prefix: str) -> _Rules | None:
    try:
        fd = os.open(".gitignore", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return _Rules(prefix, Ignore(os.pread(fd, MAX_BYTES, 0).decode("utf-8", "replace")))
    except OSError:
        return None
    finally:
        os.close(fd)


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
        return any(fit(choice, names) for choice in self._choices)


def _segments(pattern: str) -> tuple[Segment | None, ...]:
    """What each name fits; None for `**`. fnmatch's expressions do not backtrack over stars."""
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if len(names) == 1 and names != ["**"] and not pattern.startswith("/"):
        names.insert(0, "**")
    once = [name for at, name in enumerate(names) if name != "**" or names[at - 1 : at] != ["**"]]
    return tuple(None if name == "**" else re.compile(fnmatch.translate(name)).match for name in once)


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
