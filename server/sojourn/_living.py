"""Whether a process lives. One that has ended and waits for its parent to take notice does not."""

from __future__ import annotations

import os


def lives(pid: int) -> bool:
    """Whether the process `pid` is there and has not ended; True where the system does not tell."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return not _zombie(pid)


def _zombie(pid: int) -> bool:
    """Whether the process is dead and only not yet waited for by its parent (Linux; elsewhere not told)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as status:
            return status.read().rpartition(b")")[2].split()[0] == b"Z"
    except (OSError, IndexError):
        return False
