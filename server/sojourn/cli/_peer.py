"""The process of the daemon: the kernel knows who listens on the socket; where it does not tell, `daemon.json`."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path

from sojourn_client._launch import Place, dial


def listener(place: Place) -> int | None:
    """The process that listens on the socket. Raises `DaemonNotRunning`."""
    with dial(place) as probe:
        if hasattr(socket, "SO_PEERCRED"):
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            return int(struct.unpack("3i", credentials)[0])
    return written(place)


def written(place: Place) -> int | None:
    """The process that wrote `daemon.json`, which may have been killed since."""
    try:
        return int(json.loads(Path(place.state_dir, "daemon.json").read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def other_daemon(place: Place) -> str | None:
    """A sentence when the daemon that answers has another state directory than the one that was named.

    One socket serves all state directories of a user, unless it is said as well. Raises `DaemonNotRunning`.
    """
    process = listener(place)
    if not process or process == written(place):
        return None
    return (
        f"The daemon that answers at {place.path} has another state directory than {place.state_dir}; "
        "for a daemon of that one, name a socket with --socket, too."
    )
