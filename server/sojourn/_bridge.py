"""`sojourn connect`: bytes from stdin to the daemon's socket and back, for editors that start a server as a child.

It knows nothing of what it carries, and starts the daemon when none runs. Standard library only: ready in
milliseconds, small, and gone as soon as either side ends.
"""

from __future__ import annotations

import os
import sys

from sojourn_client import _launch

TYPE_CHECKING = False  # As typing has it, whose import takes longer than `sojourn connect` can wait.
if TYPE_CHECKING:
    import socket

_BLOCK = 65536
_LINGER_S = 2.0

_HELP = """\
Usage: sojourn connect [OPTIONS]

Connects stdin and stdout to the daemon. Editors launch this; a daemon is started if none runs.

Options:
  --config PATH     The config file of a daemon that is started.
  --state-dir PATH  The state directory.
  --socket PATH     The daemon's socket.
  --help            Show this and exit.
"""

_FOR_PROGRAMS = (
    "Connected. This is the daemon's wire, for programs: JSON-RPC, a message a line. Ctrl-D leaves. "
    "People use `sojourn prompt` and `sojourn attach`."
)


def main(argv: list[str]) -> int:
    """Runs `sojourn connect` with these arguments; the exit code: 0, 1 when the daemon cannot be reached, 2 usage."""
    try:
        options = _parse(argv)
    except ValueError as error:
        _say(f"{error}\n{_HELP.splitlines()[0]}")
        return 2
    if options is None:
        sys.stdout.write(_HELP)
        return 0
    place = _launch.Place(**options)
    try:
        daemon = _reach(place)
    except (_launch.DaemonStartFailed, OSError) as error:
        _say(str(error))
        return 1
    if said := _launch.mismatch(place):
        _say(said)
    if os.isatty(0):
        _say(_FOR_PROGRAMS)
    return carry(daemon)


def carry(daemon: socket.socket) -> int:
    """Carries bytes both ways until one side ends."""
    import threading

    up = threading.Thread(target=_up, args=(daemon,), daemon=True)
    up.start()
    try:
        while data := daemon.recv(_BLOCK):
            _write_all(1, data)
    except OSError:
        return 0  # Whoever started this is gone, or the daemon is.
    return 0


def _reach(place: _launch.Place) -> socket.socket:
    try:
        return _launch.dial(place)
    except _launch.DaemonNotRunning:
        _say(_launch.STARTING)
        return _launch.reach(place)


def _up(daemon: socket.socket) -> None:
    import socket
    import time

    try:
        while data := os.read(0, _BLOCK):
            daemon.sendall(data)
        daemon.shutdown(socket.SHUT_WR)
    except OSError:
        os._exit(0)
    # The daemon may still have answers for what came last; then it closes, and so ends `carry`.
    time.sleep(_LINGER_S)
    os._exit(0)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _parse(argv: list[str]) -> dict[str, str] | None:
    """The options by name; None when help was asked for. Raises `ValueError` at anything else."""
    options: dict[str, str] = {}
    rest = list(argv)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in ("--help", "-h"):
            return None
        if name not in ("--config", "--state-dir", "--socket"):
            raise ValueError(f"`sojourn connect` has no option {name!r}.")
        if not equals and not rest:
            raise ValueError(f"The option {name!r} needs a path.")
        options[name[2:].replace("-", "_")] = value if equals else rest.pop(0)
    return options


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
