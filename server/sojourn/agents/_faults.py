"""Named kill points for the crash harness: `SOJOURN_FAULT=after:dispatch` makes the daemon kill itself there.

`before:NAME` strikes before the commit of the transition NAME, `after:NAME` after its commit and before anybody hears
of it; `:N` at the end means the N-th time. Without the variable nothing here does anything.
"""

from __future__ import annotations

import os
import signal


def _parse(text: str) -> tuple[str, int]:
    point, _, count = text.rpartition(":")
    return (point, int(count)) if count.isdigit() else (text, 1)


_POINT, _left = _parse(os.environ.get("SOJOURN_FAULT", ""))
FAULTS = bool(_POINT)
"""Whether there is a point to strike at."""


def strike(point: str) -> None:
    """Kills the process when `point` is the one that was asked for."""
    global _left
    if point != _POINT:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
