"""Ends processes when this one is killed: a small program beside it (`_supervise.py`, `watch`) has a list of them.

Rule: the program learns of a process when it has begun and forgets it when it was ended in order. Whatever ends this
process, its end of the pipe closes, and what is still on the list is ended. There is no program while nothing is named.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys

from ._supervise import __file__ as _program
from ._supervise import birth
from .processes import Supervisor, reap

log = logging.getLogger(__name__)


class Watch:
    """The leaders of sessions that must not outlive this process."""

    def __init__(self, *, grace_s: float) -> None:
        self._grace_s = grace_s
        self._named: dict[int, str] = {}
        self.program: Supervisor | None = None

    def add(self, pid: int) -> None:
        """Names the leader of a session, which has begun."""
        self._named[pid] = birth(pid)
        if self.program is None or self.program.poll() is not None:
            self._start()
            return
        self._say(f"+{pid} {self._named[pid]}\n")

    def discard(self, pid: int) -> None:
        """Forgets one: it was ended with all of its session."""
        self._named.pop(pid, None)
        self._say(f"-{pid}\n")
        if not self._named and self.program is not None:
            program, self.program = self.program, None
            assert program.stdin is not None
            with contextlib.suppress(OSError):
                program.stdin.close()
            reap(program)

    def pids(self) -> tuple[int, ...]:
        """Those that are named."""
        return tuple(self._named)

    def _start(self) -> None:
        if self.program is not None and self.program.stdin is not None:  # it was killed
            self.program.stdin.close()
        options = ["watch=1", f"grace={self._grace_s}"]
        try:
            self.program = Supervisor(
                [sys.executable, "-I", "-S", _program, *options, "--"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            log.warning("Nothing watches over the processes of servers, should this one be killed: %s", error)
            self.program = None
            return
        for pid, born in self._named.items():
            self._say(f"+{pid} {born}\n")

    def _say(self, line: str) -> None:
        if self.program is not None and self.program.stdin is not None:
            with contextlib.suppress(OSError):  # it was killed; the next one is told everything
                self.program.stdin.write(line.encode())
