"""Commands of tools: each runs under a supervisor of its own (`_supervise.py`), attached to a call or as a job.

Rule: a command gets nothing that is the daemon's: no descriptor, no terminal, none of its secrets; and nothing that it
starts is left when its call was stopped, its time is over or the daemon is dead. Only a job outlives that (`jobs.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from ._supervise import birth, stat_of

How = Literal["exited", "stopped", "timedOut", "notStarted", "lost"]
"""How a command ended; `lost`: nobody knows, its supervisor was killed."""

GRACE_S = 2.0
"""From TERM to KILL."""
_SUPERVISE = str(Path(__file__).with_name("_supervise.py"))
_PLAIN = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
"""What keeps programs from asking a person who is not there."""
_OURS = ("SOJOURN_", "COVERAGE_", "PYTEST_", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "JOURNAL_")
_EAGER = 1024 * 1024
_READ = 65536
_BREATH_S = 0.002
_LATEST_S = 1e11
_SURE_S = 3.0
"""How much longer than its grace a supervisor may take to end a command, before the daemon itself does."""
_WAKE_S = 0.5
"""How often is looked whether a supervisor was stopped."""
_AT_START = {"command", "commandBirth"}
"""What a supervisor tells when its command begins."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What commands get of the daemon's own: its environment without `hidden` names, and the umask of the person."""

    hidden: frozenset[str] = frozenset()
    umask: int = 0o022

    def environment(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a command."""
        kept = {
            name: value
            for name, value in (os.environ if environ is None else environ).items()
            if name not in self.hidden and not name.startswith(_OURS)
        }
        return kept | _PLAIN


@dataclass(frozen=True, slots=True)
class Order:
    """A command to run: its words, where, and for how many seconds at most (None = as long as it takes)."""

    argv: tuple[str, ...]
    cwd: str | None = None
    limit_s: float | None = None
    grace_s: float = GRACE_S

    def options(self, around: Surroundings) -> list[str]:
        """What the supervisor is told."""
        return [
            f"cwd={self.cwd or ''}",
            f"limit={self.limit_s or 0}",
            f"grace={self.grace_s}",
            f"umask={around.umask:o}",
        ]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `left`: it had left processes behind, which were ended. Times are seconds since 1970."""

    how: How
    code: int | None = None
    signal: int | None = None
    left: bool = False
    began: float = 0
    ended: float = 0
    error: str | None = None

    @property
    def is_error(self) -> bool:
        """Whether it did not succeed."""
        return self.how != "exited" or self.code != 0

    @property
    def text(self) -> str:
        """What a model is told of it."""
        after = f" after {self.ended - self.began:.1f} s" if self.ended else ""
        what = {
            "exited": f"exit code {self.code}{after}",
            "stopped": f"stopped{after}",
            "timedOut": f"its time limit was reached{after}; all of it was ended",
            "notStarted": f"it could not be started: {self.error or 'the daemon ended before it was'}",
            "lost": self.error or "it ended without a record: the process that watched over it was killed",
        }[self.how]
        if self.how == "exited" and self.signal is not None:
            what = f"ended by {signal_name(self.signal)}{after}"
        rest = "; processes that it left behind were ended, use background for what must go on" if self.left else ""
        return f"[{what}{rest}]"


def signal_name(number: int) -> str:
    """A signal as people write it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_ended(text: str) -> Ended | None:
    """What a supervisor told at the end; None when it did not come to that, `lost` when it cannot be read."""
    try:
        return _read_ended(read_lines(text))
    except ValueError:
        return Ended("lost", error="it ended without a readable record")


def _read_ended(said: dict[str, str]) -> Ended | None:
    if not said.keys() - _AT_START:
        return None
    if (how := said.get("outcome")) not in get_args(How):
        raise ValueError(f"{how!r} is no outcome")
    return Ended(
        cast(How, how),
        code=int(said["code"]) if "code" in said else None,
        signal=int(said["signal"]) if "signal" in said else None,
        left=said.get("left") == "1",
        began=read_time(said.get("began", "0")),
        ended=read_time(said.get("ended", "0")),
        error=said.get("error"),
    )


def read_time(text: str) -> float:
    """Seconds since 1970. Raises `ValueError` for what is none, or no time that can be shown."""
    seconds = float(text)
    if not 0 <= seconds < _LATEST_S:
        raise ValueError(f"{text!r} is no time")
    return seconds


def read_lines(text: str) -> dict[str, str]:
    """The `key=value` lines of a supervisor."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


class Supervisor(subprocess.Popen[bytes]):
    """A supervisor's process. It may well outlive this object."""

    def __del__(self, *_unused: object) -> None:
        """Not `Popen`'s, which complains about a process that still runs."""


def supervised(options: Iterable[str], order: Order) -> list[str]:
    """The command line of a supervisor. Raises `ValueError` for what cannot be in one."""
    if any("\0" in word for word in (*order.argv, order.cwd or "")):
        raise ValueError("A command cannot hold a NUL character.")
    return [sys.executable, "-I", "-S", _SUPERVISE, *options, "--", *order.argv]


# -- attached to a call ---------------------------------------------------------------------------------------------


class Attached:
    """A command that a call waits for. `on_output` gets its output (stdout and stderr, as they come)."""

    def __init__(self, around: Surroundings, on_output: Callable[[bytes], None]) -> None:
        self._around = around
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        self._told = bytearray()
        self._taken = 0
        self._watched: set[int] = set()
        self._over: asyncio.Future[None] = self._loop.create_future()

    async def run(self, order: Order) -> Ended:
        """Runs it to its end. Being cancelled ends the command, within its grace, and does not wait for that.

        Raises `OSError` when no process can be made.
        """
        process = Supervisor(
            supervised(order.options(self._around), order),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=self._around.environment(),
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        report, output = process.stdout.fileno(), process.stderr.fileno()
        patience = order.grace_s + _SURE_S
        overdue: asyncio.Handle | None = None
        self._waking: asyncio.TimerHandle = self._loop.call_later(_WAKE_S, self._wake, process)
        try:
            if order.limit_s:
                overdue = self._loop.call_later(order.limit_s + 1, self._overdue, process, patience)
            for fd, read in ((report, self._read_report), (output, self._read_output)):
                os.set_blocking(fd, False)
                self._watch(fd, read)
            await self._over
            self._drain(output)
        finally:
            self._waking.cancel()
            if overdue is not None:
                overdue.cancel()
            for fd in (report, output):
                self._unwatch(fd)
            process.stdin.close()  # the lifeline
            _signal(process, signal.SIGCONT)  # a command may have stopped its supervisor
            process.stdout.close()
            process.stderr.close()
            reap(process)
            if not self._over.done():  # the call was stopped: nobody waits for its end any more
                self._loop.call_later(patience, self._make_sure, process)
        if (ended := read_ended(self._told.decode(errors="replace"))) is None:
            self._make_sure(process)
        return ended or Ended("lost")

    def _wake(self, process: Supervisor) -> None:
        """Lets a supervisor go on that the command has stopped: nobody else would before its time is over."""
        wake(process.pid)
        self._waking = self._loop.call_later(_WAKE_S, self._wake, process)

    def _overdue(self, process: Supervisor, patience: float) -> None:
        """The command's time has been over for long: its supervisor is stopped again and again. It gets a last chance,
        then all of it is ended."""
        _signal(process, signal.SIGCONT)
        self._loop.call_later(patience, self._make_sure, process)

    def _make_sure(self, process: Supervisor) -> None:
        """Ends a command whose supervisor does not: it was killed or stopped, maybe by the command."""
        if process.poll() is not None and read_ended(self._told.decode(errors="replace")) is not None:
            return
        _signal(process, signal.SIGKILL)
        said = read_lines(self._told.decode(errors="replace"))
        end_session(int(said.get("command", 0)), said.get("commandBirth", ""))

    def _watch(self, fd: int, read: Callable[[int], None]) -> None:
        self._watched.add(fd)
        self._loop.add_reader(fd, read, fd)

    def _unwatch(self, fd: int) -> None:
        self._watched.discard(fd)
        self._loop.remove_reader(fd)

    def _read_report(self, fd: int) -> None:
        if data := os.read(fd, _READ):
            self._told += data
            return
        self._unwatch(fd)
        if not self._over.done():
            self._over.set_result(None)

    def _read_output(self, fd: int) -> None:
        if not self._take(fd):
            self._unwatch(fd)
        elif self._taken > _EAGER:  # a flood: others must have their turn, and it must not burn the processor
            self._loop.remove_reader(fd)
            self._loop.call_later(_BREATH_S, self._go_on, fd)

    def _go_on(self, fd: int) -> None:
        if fd in self._watched:
            self._loop.add_reader(fd, self._read_output, fd)

    def _take(self, fd: int) -> bool:
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return False
        self._taken += len(data)
        if data:
            self._on_output(data)
        return bool(data)

    def _drain(self, fd: int) -> None:
        """What is in the pipe when the command has ended; a process that went its own way may hold it open."""
        for _ in range(32):
            if not self._take(fd):
                return


def _signal(process: Supervisor, number: int) -> None:
    """Signals a supervisor that was not taken note of yet: its id is its own until then."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def wake(pid: int) -> None:
    """Lets a supervisor go on that was stopped (SIGSTOP), where /proc tells so. `pid` must be known to be its own."""
    if stat_of(pid)[:1] == ["T"]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)


def end_session(leader: int, born: str) -> None:
    """Kills what a command started in its session, when its leader is that process (or gone)."""
    if leader <= 1 or birth(leader) not in ("", born):
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit() and (fields := stat_of(int(name))) and fields[3] == str(leader):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(name), signal.SIGKILL)


_leaving: set[Supervisor] = set()


def reap(process: Supervisor) -> None:
    """Takes note of a supervisor's end, without waiting for it."""
    _leaving.add(process)
    for one in list(_leaving):
        if one.poll() is not None:
            _leaving.discard(one)


async def gone(within_s: float) -> bool:
    """Whether every attached command's supervisor is gone, waiting so long for that."""
    deadline = asyncio.get_running_loop().time() + within_s
    while left := [one for one in _leaving if one.poll() is None]:
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(0.01)
    _leaving.intersection_update(left)
    return not left


def words(command: str | Sequence[str]) -> tuple[str, ...]:
    """A command line as it is given to a shell, or a program with its arguments, as the words to execute."""
    return (shell(), "-c", command) if isinstance(command, str) else tuple(command)


def shell() -> str:
    """The shell that runs command lines."""
    return "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
