"""The lock of a state directory: one daemon at a time, for as long as it lives, whatever ends it.

It is the kernel's lock on an open file (flock), never a file's existence or a process id: a killed daemon leaves
nothing to clean up. The file descriptor is not inherited, so no child of a tool can hold it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path

CONNECT_HINT = "`sojourn ps` shows its agents, `sojourn shutdown` ends it"
"""Part of `Locked`'s message; a starter tells by it that another starter was first."""


class Locked(Exception):
    """Another daemon holds the state directory."""


class StateLock:
    """The held lock. Keep it as long as the daemon lives."""

    def __init__(self, state_dir: Path) -> None:
        """Takes the lock at once or raises `Locked`; `OSError` when the directory cannot be written to."""
        self._fd = os.open(state_dir / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            who = f"Another daemon{_pid(state_dir)}"
            raise Locked(f"{who} uses the state directory {str(state_dir)!r}; {CONNECT_HINT}.") from None

    def release(self) -> None:
        """Gives the lock back. The file stays: removing it would let two daemons hold two locks."""
        os.close(self._fd)


def _pid(state_dir: Path) -> str:
    """` (pid N)`, for people; nothing when `daemon.json` names no process that lives, as with `--stdio`."""
    try:
        pid = int(json.loads((state_dir / "daemon.json").read_bytes())["pid"])
        os.kill(pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f" (pid {pid})"
