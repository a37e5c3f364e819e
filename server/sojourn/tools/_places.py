"""Paths inside of a working directory: found without ever leaving it, whatever links, `..` and races there are.

Rule: nothing is opened by a path that was checked before. A path is walked name by name from the open directory, each
directory opened relative to the one before it and never through a link; links are read and walked like any other path.
So what was found inside is inside, also when somebody renames and links at the same time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections import deque
from collections.abc import Callable
from typing import Literal, Self, TypeGuard

MAX_LINKS = 40
MAX_NAMES = 256
MAX_PATH = 4096
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_TEMPORARY = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT_MODE = 0o3777
_ACCESS_LIST = "system.posix_acl_access"
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


Missing = Literal["refuse", "make", "leave"]


NO_DIRECTORY = "This agent has no working directory ('cwd' in its config)"


def is_directory_name(cwd: str | None) -> TypeGuard[str]:
    """Whether an agent's `cwd` names a directory at all; the daemon's own never stands in for it."""
    return cwd is not None and "\0" not in cwd and cwd.startswith("/")


class FileRefused(Exception):
    """Something cannot be done with a file; the message is for the model."""


class Root:
    """An agent's working directory, opened. Close it."""

    def __init__(self, cwd: str | None) -> None:
        if not is_directory_name(cwd):
            raise FileRefused(f"{NO_DIRECTORY}, so there are no files.")
        self._given = os.path.abspath(cwd)
        self.path = os.path.realpath(cwd)
        """Without links; what places are told relative to."""
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise FileRefused(f"The working directory {cwd!r} cannot be opened: {error.strerror}.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def place(self, path: str, *, missing: Missing = "refuse") -> Place:
        """Where `path` leads, relative to the directory or absolute inside of it; the last name may be missing.

        `missing` says what becomes of directories on the way that are not there: they are made, or left to be made.
        Raises `FileRefused` for what is outside, or not there.
        """
        return _Walk(self, path, missing).go()

    def inside(self, path: str) -> list[str]:
        """The names of `path` below the directory. Raises `FileRefused` when it is an absolute one of elsewhere."""
        if not path.startswith("/"):
            return path.split("/")
        for root in (self.path, self._given):
            if path == root or path.startswith(root.rstrip("/") + "/"):
                return path[len(root) :].split("/")
        raise outside(path)

    def opened(self) -> int:
        """A descriptor of the directory of the caller's own."""
        return os.dup(self._fd)


def in_line(name: str) -> str:
    """A name as it stands in a line of a list: one with line ends or control characters would be taken for more."""
    return name if name.isprintable() else repr(name)


def outside(path: str) -> FileRefused:
    """What is said of a path that leads out of the working directory."""
    return FileRefused(f"{path!r} is outside of the working directory; only files in it can be used.")


class _Walk:
    """One path on its way: open directories from the root to where it stands, and the names still to go."""

    def __init__(self, root: Root, path: str, missing: Missing) -> None:
        if "\0" in path or len(os.fsencode(path)) > MAX_PATH:
            raise FileRefused(f"{path[:100]!r} is no path: it is too long, or has a NUL in it.")
        self._root = root
        self._path = path
        self._missing = missing
        self._todo = deque(root.inside(path))
        self._open = [root.opened()]
        self._names: list[str] = []
        self._links = 0

    def go(self) -> Place:
        """The place. Closes every descriptor but the place's own."""
        try:
            name = self._advance()
            return Place(self._root, self._path, os.dup(self._open[-1]), tuple(self._names), name)
        except OSError as error:
            raise FileRefused(f"{self._path!r} cannot be reached: {error.strerror}.") from None
        finally:
            for fd in self._open:
                os.close(fd)

    def _advance(self) -> str:
        """Walks to the last directory; the name in it, `.` for itself."""
        while self._todo:
            name = self._todo.popleft()
            if name in ("", "."):
                continue
            if name == "..":
                self._up()
                continue
            here = _lstat(name, self._open[-1])
            if here is not None and stat.S_ISLNK(here.st_mode):
                self._follow(name)
            elif not any(more not in ("", ".") for more in self._todo):
                return name
            elif here is None and self._missing == "leave":
                return self._rest(name)
            else:
                self._down(name, missing=here is None)
        return "."

    def _rest(self, name: str) -> str:
        """All that is left of a path whose next directory is not there."""
        if ".." in self._todo:
            raise FileRefused(f"There is no {'/'.join([*self._names, name])!r} in the working directory.")
        return "/".join([name, *(more for more in self._todo if more not in ("", "."))])

    def _up(self) -> None:
        if not self._names:
            raise outside(self._path)
        self._names.pop()
        os.close(self._open.pop())

    def _follow(self, name: str) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise FileRefused(f"{self._path!r} leads through too many links.")
        target = os.readlink(name, dir_fd=self._open[-1])
        if target.startswith("/"):
            try:
                names = self._root.inside(target)
            except FileRefused:
                raise outside(self._path) from None
            while self._names:
                self._up()
        else:
            names = target.split("/")
        self._todo.extendleft(reversed(names))

    def _down(self, name: str, *, missing: bool) -> None:
        if len(self._names) >= MAX_NAMES:
            raise FileRefused(f"{self._path!r} leads too deep.")
        if missing:
            if self._missing == "refuse":
                raise FileRefused(f"There is no {'/'.join([*self._names, name])!r} in the working directory.")
            _make_directory(name, self._open[-1])
        try:
            self._open.append(os.open(name, _DIRECTORY, dir_fd=self._open[-1]))
        except NotADirectoryError:
            raise FileRefused(f"{'/'.join([*self._names, name])!r} is not a directory.") from None
        self._names.append(name)


class Place:
    """A name in an open directory, inside of the root. Close it."""

    def __init__(self, root: Root, asked: str, directory: int, parents: tuple[str, ...], name: str) -> None:
        self._directory = directory
        self.name = name
        self.asked = asked
        self.shown = "/".join([*parents, name]) if name != "." else "/".join(parents) or "."
        """Relative to the working directory, without links."""
        self.path = os.path.join(root.path, self.shown) if self.shown != "." else root.path
        """Absolute, without links; for naming it, not for opening it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the directory."""
        os.close(self._directory)

    def stat(self) -> os.stat_result | None:
        """What is there now; None when nothing is."""
        return _lstat(self.name, self._directory)

    def file(self) -> os.stat_result | None:
        """The regular file that is there; None when nothing is. Raises `FileRefused` for anything else."""
        found = self.stat()
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise self._no_file(found)
        return found

    def open(self) -> int:
        """The regular file that is there, opened for reading. Nothing else is ever opened, so nothing can hang."""
        if self.file() is None or "/" in self.name:
            raise FileRefused(f"There is no {self.shown!r} in the working directory.")
        try:
            fd = os.open(self.name, _READ, dir_fd=self._directory)
        except OSError as error:
            raise self.unreadable(error) from None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise self._no_file(found)
        return fd

    def open_directory(self) -> int:
        """The directory that is there, opened."""
        found = self.stat()
        if found is None:
            raise FileRefused(f"There is no {self.shown!r} in the working directory.")
        try:
            return os.open(self.name, _DIRECTORY, dir_fd=self._directory)
        except NotADirectoryError:
            raise FileRefused(f"{self.shown!r} is not a directory.") from None
        except OSError as error:
            raise self.unreadable(error) from None

    def read(self, limit: int) -> bytes:
        """The whole file. Raises `FileRefused` for one of more than `limit` bytes."""
        fd = self.open()
        try:
            with os.fdopen(fd, "rb") as file:
                data = file.read(limit + 1)
        except OSError as error:
            raise self.unreadable(error) from None
        if len(data) > limit:
            raise FileRefused(f"{self.shown!r} has more than {limit} bytes, which is the limit here.")
        return data

    def unreadable(self, error: OSError) -> FileRefused:
        """What is said of a failed read: a disk or a system's own files may refuse one at any moment."""
        return FileRefused(f"{self.shown!r} cannot be read: {error.strerror}.")

    def put(self, data: bytes, *, still: Callable[[], None]) -> None:
        """Makes `data` the file's content at once or not at all: a temporary file beside it takes its place.

        An existing file keeps its mode (not setuid), its access list and its user attributes; a new one is as open as
        its directory, without anything executable. Other names of the file (hard links) keep what they had: they may be
        outside. `still` is called last, and raises when the file is not what it was any more.
        """
        found = self.file()
        if found is not None and not found.st_mode & 0o222:
            raise FileRefused(f"{self.shown!r} is read-only.")
        temporary = f".sojourn-{secrets.token_hex(8)}"
        try:
            self._write(temporary, data, found)
            still()
            self._move(temporary, new=found is None)
        except OSError as error:
            raise FileRefused(f"{self.shown!r} cannot be written: {error.strerror}.") from None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self._directory)

    def _write(self, temporary: str, data: bytes, found: os.stat_result | None) -> None:
        fd = os.open(temporary, _TEMPORARY, 0o600, dir_fd=self._directory)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if found is not None and (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(OSError):  # only root may give files away
                    os.fchown(fd, found.st_uid, found.st_gid)
            mode = found.st_mode & _KEPT_MODE if found is not None else os.fstat(self._directory).st_mode & 0o666
            if found is not None:
                self._keep_attributes(fd)
            os.fchmod(fd, mode | 0o200)
            os.fsync(fd)

    def _keep_attributes(self, fd: int) -> None:
        """Gives the new file the old one's attributes, as far as its file system has them. Capabilities are none."""
        if not hasattr(os, "listxattr"):
            return
        with contextlib.suppress(OSError, FileRefused):
            old = self.open()
            try:
                for name in os.listxattr(old):
                    if name.startswith("user.") or name == _ACCESS_LIST:
                        os.setxattr(fd, name, os.getxattr(old, name))
            finally:
                os.close(old)

    def _move(self, temporary: str, *, new: bool) -> None:
        if new:
            try:
                os.link(temporary, self.name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            except FileExistsError:
                raise FileRefused(f"{self.shown!r} was made by somebody else meanwhile; nothing was written.") from None
            except OSError:  # a file system without hard links
                os.replace(temporary, self.name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        else:
            os.replace(temporary, self.name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        with contextlib.suppress(OSError):
            os.fsync(self._directory)

    def _no_file(self, found: os.stat_result) -> FileRefused:
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something odd")
        return FileRefused(f"{self.shown!r} is {kind}, not a file.")


def _lstat(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _make_directory(name: str, parent: int) -> None:
    """A directory that is as open as its parent: the daemon's own umask is for the daemon's own files."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
        fd = os.open(name, _DIRECTORY, dir_fd=parent)
        try:
            os.fchmod(fd, os.fstat(parent).st_mode & 0o777)
        finally:
            os.close(fd)
