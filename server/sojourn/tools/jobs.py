"""Jobs: commands that outlive the call that started them, and the daemon. What is known of one is in its directory.

Rule: whether a job runs is told by the lock that its supervisor holds from its first moment to its last, never by a
process id; a process is signalled only when its time of birth and the start of the machine are the recorded ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ._supervise import birth, boot
from .clip import Clip
from .processes import Ended, Order, Supervisor, Surroundings, read_ended, read_lines, read_time, supervised, wake

_RECORD = 64 * 1024
"""Bytes of a record that are read; a supervisor writes a few hundred."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job's directory: what its supervisor wrote, and whether that is alive."""

    directory: Path
    started: dict[str, str] = field(default_factory=dict)
    ended: Ended | None = None
    """How it ended; None = it runs."""

    @property
    def is_ours(self) -> bool:
        """Whether the process that the job names is its supervisor: by id, time of birth and start of the machine."""
        return _is(self.started, "pid", "birth")


def launch(directory: Path, order: Order, around: Surroundings, *, most_bytes: int) -> Supervisor:
    """Starts a job in a new directory. From the first moment of its supervisor's life its lock is held.

    Raises `OSError`.
    """
    directory.mkdir(mode=0o700, parents=True)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        options = [f"dir={directory}", f"lock={lock}", f"most={most_bytes}", *order.options(around)]
        return Supervisor(
            supervised(options, order),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=around.environment(),
            start_new_session=True,
            pass_fds=(lock,),
        )
    finally:
        os.close(lock)
        os.close(log)


def look(directory: Path) -> Job:
    """Where a job stands. One whose supervisor is gone has ended, with a record or without.

    Raises `OSError` when that cannot be told now.
    """
    alive = _is_locked(directory / "lock")  # looked at first: a record is written before the lock is let go
    started = _readable(read_lines(_text(directory / "started")))
    ended = read_ended(_text(directory / "result"))
    if ended is None and not alive:
        record = (directory / "started").exists()
        ended = Ended("lost" if record else "notStarted", began=float(started.get("began", 0)))
    return Job(directory, started, ended)


def _readable(started: dict[str, str]) -> dict[str, str]:
    """A record of a start; none when it is damaged: nobody is signalled by it then."""
    try:
        read_time(started.get("began", "0"))
        numbers = [int(started.get(key, 0)) for key in ("pid", "command")]
    except ValueError:
        return {}
    return started if min(numbers) >= 0 else {}


def go_on(job: Job) -> None:
    """Wakes a job's supervisor that its command has stopped: nobody would hear of its end."""
    if job.ended is None and job.is_ours:
        wake(int(job.started["pid"]))


def stop(job: Job) -> bool:
    """Asks a job's supervisor to end its command; False when it cannot be asked (yet)."""
    if job.ended is not None or not job.is_ours:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(job.started["pid"]), signal.SIGTERM)
    return True


def end_orphans(job: Job) -> None:
    """Ends the command of a job whose supervisor was killed. A group whose leader is another process is not its."""
    leader = int(job.started.get("command", 0))
    if leader and job.started.get("boot") == boot() and birth(leader) in ("", job.started.get("commandBirth")):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def _is(started: Mapping[str, str], pid: str, born: str) -> bool:
    if not started.get(pid) or started.get("boot") != boot():
        return False
    return birth(int(started[pid])) == started.get(born)


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _text(path: Path) -> str:
    """A record; nothing where there is none, or something that is no file: reading that might never end."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        return os.read(fd, _RECORD).decode(errors="replace") if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a job's output: where it begins, and the bytes. `offset` is behind the one asked for where a middle
    was not kept."""

    offset: int
    data: bytes


def size(directory: Path) -> int:
    """How many bytes of output a job has made so far."""
    segments = _segments(directory)
    return segments[-1][0] + segments[-1][1] if segments else 0


def read(directory: Path, offset: int, most: int) -> Piece:
    """At most `most` bytes of a job's output from `offset` on; what was not kept is skipped."""
    for start, length, path in _segments(directory):
        if start + length <= offset or not length:  # an empty one: the disk took nothing
            continue
        begin = max(start, offset)
        try:
            with path.open("rb") as file:
                file.seek(begin - start)
                return Piece(begin, file.read(most))
        except FileNotFoundError:  # it made place for newer output just now
            continue
    return Piece(offset, b"")


def clipped(directory: Path, clip: Clip) -> str:
    """The whole output of a job as a result shows it."""
    offset = 0
    while (piece := read(directory, offset, 256 * 1024)).data:
        clip.skip(piece.offset - offset)
        clip.add(piece.data)
        offset = piece.offset + len(piece.data)
    clip.skip(size(directory) - offset)
    return clip.text()


def _segments(directory: Path) -> list[tuple[int, int, Path]]:
    """The files of a job's output: offset of the first byte, length, path, in order. What is no file is not its."""
    found = []
    for path in sorted(directory.glob("out-*")):
        with contextlib.suppress(FileNotFoundError, ValueError):
            there = path.lstat()
            if stat.S_ISREG(there.st_mode):
                found.append((int(path.name.removeprefix("out-")), there.st_size, path))
    return found
