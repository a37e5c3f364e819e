"""One client on stdin and stdout: frames only on stdout, whatever else in the process prints.

`claim` takes the two descriptors away from everything else, before anything is printed: frames go to a duplicate of
fd 1, and fd 1 itself becomes stderr; fd 0 becomes `/dev/null`. Children inherit neither.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import anyio
import anyio.lowlevel

from sojourn._living import lives

from .connection import Connection
from .host import Host
from .listen import CannotListen

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Stdio:
    """The process's two ends: descriptors of ours, which no child inherits."""

    read: int
    write: int


def claim() -> Stdio:
    """Takes fd 0 and fd 1 for frames. Raises `CannotListen` when they are closed. To be called once, early."""
    try:
        # Above 2: where stderr is closed, the lowest free number would be its.
        taken = Stdio(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3), fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3))
    except OSError:
        raise CannotListen("--stdio needs an open stdin and stdout.") from None
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)  # becomes stderr itself where that is closed
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    if nowhere == 2:
        os.set_inheritable(2, True)
    else:
        os.close(nowhere)
    return taken


async def serve_stdio(host: Host, ends: Stdio) -> int:
    """Serves the one client until it leaves, says `exit`, or its process (`processId` of `initialize`) is gone.

    The exit code for the process: 1 after `exit` without `shutdown` and after bytes that are no frames, else 0.
    """
    connection = Connection(host, name="stdio")
    loop = asyncio.get_running_loop()
    writer = await _open_writer(loop, connection, ends.write)
    async with anyio.create_task_group() as tasks:
        reader = await _open_reader(loop, connection, ends.read, writer)
        if reader is not None:
            tasks.start_soon(reader)
        tasks.start_soon(_watch_parent, connection)
        await connection.serve()
        tasks.cancel_scope.cancel()
    return 1 if connection.broken or (connection.exited and not connection.session.retired) else 0


async def _open_reader(
    loop: asyncio.AbstractEventLoop, connection: Connection, fd: int, writer: asyncio.WriteTransport
) -> Callable[[], Any] | None:
    """Connects `fd`; the coroutine function that reads it where the loop cannot (a file, `/dev/null`)."""
    if _can_wait(fd):
        await loop.connect_read_pipe(lambda: _In(connection, writer), os.fdopen(fd, "rb", buffering=0))
        return None
    source = _FileReader(connection, fd)
    connection.open(cast("asyncio.ReadTransport", source), writer)
    return source.run


async def _open_writer(loop: asyncio.AbstractEventLoop, connection: Connection, fd: int) -> asyncio.WriteTransport:
    if _can_wait(fd):
        writer, _ = await loop.connect_write_pipe(lambda: _Out(connection), os.fdopen(fd, "wb", buffering=0))
        return writer
    return cast("asyncio.WriteTransport", _FileWriter(connection, fd))


def _can_wait(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)


async def _watch_parent(connection: Connection) -> None:
    """Ends the connection when the client's process is gone, as LSP demands; a kept pipe would hide that."""
    while True:
        pid = connection.session.process_id
        if pid is not None and pid > 0 and not lives(pid):
            connection.end("its process is gone")
            return
        await anyio.sleep(_LOOK_S)


class _In(asyncio.Protocol):
    """The reading half of a connection on two pipes."""

    def __init__(self, connection: Connection, writer: asyncio.WriteTransport) -> None:
        self._connection = connection
        self._writer = writer
        self.data_received = connection.data_received  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.open(cast("asyncio.ReadTransport", transport), self._writer)

    def eof_received(self) -> None:
        self._connection.eof_received()


class _Out(asyncio.BaseProtocol):
    """The writing half: flow control, and the news that nobody reads any more."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)


class _FileReader:
    """Reads a regular file or a device that the event loop cannot wait for, a block a turn."""

    def __init__(self, connection: Connection, fd: int) -> None:
        self._connection = connection
        self._fd = fd
        self._reading = asyncio.Event()
        self._reading.set()
        self._closing = False

    async def run(self) -> None:
        while data := await self._read():
            self._connection.data_received(data)
        self._connection.eof_received()

    async def _read(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        await self._reading.wait()
        return b"" if self._closing else os.read(self._fd, _READ_BYTES)

    def pause_reading(self) -> None:
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._reading.set()
            os.close(self._fd)


class _FileWriter:
    """Writes to a regular file or a device, which never makes anybody wait."""

    def __init__(self, connection: Connection, fd: int) -> None:
        self._connection = connection
        self._fd = fd
        self._closing = False

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and not self._closing:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:  # a full disk: there is nobody to answer any more
            log.error("stdout cannot be written: %s", error.strerror)
            self.close()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str) -> None: ...

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            os.close(self._fd)
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    abort = close
