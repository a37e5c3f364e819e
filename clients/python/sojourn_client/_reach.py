"""How a client gets its socket: the user's own daemon (started when asked to), or one on TCP."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from socket import socket

from sojourn import _paths

from . import _launch


class Reach:
    """A way to a daemon, used for every new connection."""

    def __init__(
        self,
        *,
        socket: str | os.PathLike[str] | None = None,
        tcp: str | None = None,
        token: str | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        config: str | os.PathLike[str] | None = None,
        start: bool = True,
    ) -> None:
        self.place = _launch.Place(config=config, state_dir=state_dir, socket=socket)
        self._tcp = None if tcp is None else _host_and_port(tcp)
        self._token = token
        self._start = start

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection. Raises `OSError`, `DaemonNotRunning` or `DaemonStartFailed`."""
        if self._tcp is not None:
            host, port = self._tcp
            return await asyncio.open_connection(host, port)
        step = _launch.reach if self._start else _launch.dial
        dialling = asyncio.get_running_loop().run_in_executor(None, step, self.place)
        try:
            sock = await asyncio.shield(dialling)
        except asyncio.CancelledError:
            dialling.add_done_callback(_hang_up)  # The thread cannot be stopped; what it still opens, nobody wants.
            raise
        return await asyncio.open_unix_connection(sock=sock)

    def token(self) -> str | None:
        """What `initialize` shows on TCP: the token given, else the one in the state directory."""
        if self._tcp is None or self._token is not None:
            return self._token
        file: Path = _paths.token_file(self.place.state_dir)
        try:
            return file.read_text().strip()
        except FileNotFoundError:
            return None


def _hang_up(dialled: asyncio.Future[socket]) -> None:
    if not dialled.cancelled() and dialled.exception() is None:
        dialled.result().close()


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{text!r} is not HOST:PORT, e.g. '127.0.0.1:7465'.")
    return host.strip("[]"), int(port)
