"""Time and chance, which the core must not read itself."""

from __future__ import annotations

import re
import secrets
import time
from datetime import UTC, datetime
from functools import lru_cache

_RUN_ID = re.compile(r"run-([0-9a-f]{13})[0-9a-f]{6}")


def now() -> str:
    """The time, ISO 8601 in UTC with milliseconds."""
    seconds, ms = divmod(time.time_ns() // 1_000_000, 1000)
    return f"{_second(seconds)}.{ms:03d}Z"


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def stamp() -> int:
    """A number that grows with time, in microseconds, also when the clock was set back; orders agents by activity."""
    global _last_stamp
    _last_stamp = max(time.time_ns() // 1000, _last_stamp + 1)
    return _last_stamp


_last_stamp = 0
_FAR = 2**52
"""A stamp in the next century, which only a damaged row has; run ids have no room for it."""


def after_stamp(number: int) -> None:
    """Lets fresh stamps be greater than this one, which a former life may have made by another clock."""
    global _last_stamp
    if number < _FAR:
        _last_stamp = max(_last_stamp, number)


def later(seconds: float) -> str:
    """The time in `seconds` from now."""
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_until(at: str) -> float:
    """How long until `at`, negative when it has passed."""
    return datetime.fromisoformat(at).timestamp() - time.time()


def seconds_since(at: str) -> float:
    """How long ago `at` was; 0 when the clock was set back behind it."""
    return max(0.0, -seconds_until(at))


def new_id(prefix: str) -> str:
    """A fresh id, e.g. `agent-9f1c…`."""
    return f"{prefix}-{secrets.token_hex(8)}"


def new_run_id() -> str:
    """A fresh run id; later ones sort behind earlier ones, also when the clock was set back."""
    global _last_run
    _last_run = max(stamp(), _last_run + 1)
    return f"run-{_last_run:013x}{secrets.token_hex(3)}"


_last_run = 0


def after_run(run_id: str) -> None:
    """Lets fresh run ids sort behind this one, which a former life may have made by another clock."""
    global _last_run
    if found := _RUN_ID.fullmatch(run_id):
        _last_run = max(_last_run, int(found[1], 16))
