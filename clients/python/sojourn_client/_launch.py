"""Reaching the user's daemon, and starting one when none runs. Standard library only, and little of it.

Nobody decides by a pid file or by how fast somebody answers: who listens on the socket is the daemon, and who holds
the lock of the state directory may become it. So any number of starters end with one daemon.
"""

from __future__ import annotations

import os
import sys
import time

from sojourn import _paths
from sojourn._version import __version__

TYPE_CHECKING = False  # As typing has it, whose import takes longer than `sojourn connect` can wait.
if TYPE_CHECKING:
    import socket as _socket

START_TIMEOUT_S = 60.0
_LINES = 10
"""How much is repeated of what a daemon said that did not come up, e.g. about its config."""
STARTING = "Starting the daemon …"
"""What a command says before it starts one."""


class DaemonNotRunning(ConnectionError):
    """Nobody listens on the daemon's socket."""


class DaemonStartFailed(RuntimeError):
    """The daemon ended instead of answering; the message is what it said."""


class Place:
    """Where a daemon is to be found: what the options, the environment and the defaults come to."""

    def __init__(
        self,
        *,
        config: str | os.PathLike[str] | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        socket: str | os.PathLike[str] | None = None,
    ) -> None:
        self.state_dir = _paths.state_dir_name(state_dir)
        self.socket = _paths.socket_file_name(socket, state=state_dir)
        self.path = _paths.socket_path_name(self.socket)
        self._config = None if config is None else os.path.abspath(config)

    def serve_command(self) -> list[str]:
        """The command that starts this daemon, detached; it returns when the daemon answers, or says why not."""
        command = [sys.executable, "-m", "sojourn", "serve", "--detach"]
        command += ["--state-dir", self.state_dir, "--socket", self.socket]
        return command + (["--config", self._config] if self._config else [])


def dial(place: Place) -> _socket.socket:
    """A connected socket. Raises `DaemonNotRunning`; a daemon that is busy or stopped counts as running."""
    import socket

    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.connect(place.path)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        found.close()
        raise DaemonNotRunning(
            f"No daemon listens on {place.path!r}; `sojourn prompt` or `sojourn serve --detach` starts one."
        ) from None
    except OSError:
        found.close()
        raise
    return found


def reach(place: Place, *, timeout_s: float = START_TIMEOUT_S) -> _socket.socket:
    """A connected socket to the daemon, which is started when none runs.

    Raises `DaemonStartFailed` when it does not come up within `timeout_s` seconds, or at once when the daemon of the
    state directory listens on another socket.
    """
    deadline = time.monotonic() + timeout_s
    said = "The daemon came up and ended again, several times; its log says why."
    while True:
        try:
            return dial(place)
        except DaemonNotRunning:
            if time.monotonic() > deadline:
                raise DaemonStartFailed(said) from None
        failure = start(place, timeout_s=max(0.1, deadline - time.monotonic()))
        if failure is None:
            continue
        if not _another(failure):
            raise DaemonStartFailed(failure)
        if (elsewhere := _elsewhere(place)) is not None:
            raise DaemonStartFailed(elsewhere)
        said = failure
        time.sleep(0.05)  # Another starter was first, or an old daemon is about to end.


def start(place: Place, *, timeout_s: float) -> str | None:
    """Starts a daemon and waits until it answers: None, or what it said when it did not come up."""
    import subprocess

    try:
        done = subprocess.run(  # noqa: S603 - our own command
            place.serve_command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"The daemon did not answer within {timeout_s:.0f} s; its log is {place.state_dir}/daemon.log."
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    if any(line.startswith("Traceback ") for line in lines):
        lines = lines[-1:]
    return "\n".join(lines[-_LINES:]) or f"The daemon ended with exit code {done.returncode} and said nothing."


def mismatch(place: Place) -> str | None:
    """A sentence when the daemon that runs is of another version, by what it wrote into the state directory."""
    version = written(place).get("version")
    if version is None or version == __version__:
        return None
    return (
        f"The running daemon is Sojourn {version}, this is {__version__}; "
        "`sojourn shutdown` ends the old one, the next start is the new one."
    )


def written(place: Place) -> dict[str, object]:
    """What a daemon wrote into the state directory (`version`, `pid`, `socket`); it may have been killed since."""
    import json

    try:
        with open(os.path.join(place.state_dir, "daemon.json")) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _elsewhere(place: Place) -> str | None:
    """A sentence when the daemon that has the state directory answers on another socket, which it will go on doing."""
    found = written(place)
    socket = found.get("socket")
    if not isinstance(socket, str) or socket == place.path:
        return None
    try:
        dial(Place(state_dir=place.state_dir, socket=socket)).close()
    except OSError:
        return None
    return (
        f"The daemon (pid {found.get('pid')}) that has the state directory {place.state_dir!r} listens on {socket!r}, "
        f"and not on {place.path!r}. Use --socket {socket}, or another --state-dir for a daemon of its own."
    )


def _another(said: str) -> bool:
    from sojourn._lock import CONNECT_HINT

    return CONNECT_HINT in said
