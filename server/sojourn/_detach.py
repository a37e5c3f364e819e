"""Going into the background: the command that started the daemon returns when the daemon answers, or says why not.

Forks before anything that has threads. The daemon has a session of its own, nothing on stdin, and its log on stdout
and stderr; how it came up travels through a pipe to the process that waits.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

_READY = b"ready"


class Ready:
    """How the daemon came up, told once to whoever waits. Without a pipe (in the foreground) nobody does."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd

    def ok(self) -> None:
        """It answers."""
        self._tell(_READY)

    def failed(self, message: str) -> None:
        """It will not come up; `message` is one line."""
        if self._fd is None:
            print(message, file=sys.stderr, flush=True)  # noqa: T201 - what the command says to its person
        self._tell(message.encode())

    def _tell(self, data: bytes) -> None:
        if self._fd is not None:
            with contextlib.suppress(BrokenPipeError):  # whoever waited has gone; the daemon is there for others
                os.write(self._fd, data)
            os.close(self._fd)
            self._fd = None


def detach(log: Path) -> Ready | int:
    """Forks. In the daemon-to-be: its `Ready`. In the process that waits: the exit code, once it is known."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return _wait(reading, log)
    os.close(reading)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    output = _open(log)
    for fd in (1, 2):
        os.dup2(nothing if output is None else output, fd)
    os.close(nothing)
    if output is not None:
        os.close(output)
    os.chdir("/")
    return Ready(writing)


def _wait(reading: int, log: Path) -> int:
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    if said == _READY:
        return 0
    text = said.decode(errors="replace") or f"The daemon ended before it answered; its log is {str(log)!r}."
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - what the command says to its person
    return 1


def _open(log: Path) -> int | None:
    try:
        return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:
        return None  # Taking the lock in the same directory says what is wrong with it.
