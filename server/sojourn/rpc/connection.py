"""One connection: a transport's bytes to the protocol object and back, from the first byte to the last answer.

`serve` is its task and its owner: it ends when the client leaves, asks to, or cannot be understood any further. What
was asked before the end is still answered, within limits: a script that closes its side after the last request gets
its answers. A client that has gone stops nothing but its own waiting.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import select
import socket
from typing import Any, cast

import anyio

from sojourn.core.errors import LimitReached

from .answers import error_body
from .framing import Framer, FramingError
from .host import Host
from .outbox import Outbox
from .protocol import SojournProtocol, bad_framing, new_server
from .session import ClientSession

log = logging.getLogger(__name__)

EXIT_GRACE_S = 0.5
"""How long requests under way may still take when the client is on its way out (`exit`, end of stdin)."""
CLOSE_GRACE_S = 1.0
"""How long a client may take to read what is left for it when the connection is closed."""
_LOOK_S = 0.25
_numbers = itertools.count(1)


class Connection(asyncio.Protocol):
    """One client. Made per transport; `name` and `token` (None = none needed) are its listener's."""

    def __init__(self, host: Host, *, name: str, token: str | None = None) -> None:
        self.host = host
        self.reason = ""
        """Why it ended, for the log."""
        self.broken = False
        """Whether its bytes could not be understood."""
        self.exited = False
        """Whether `exit` was said."""
        self._framer = Framer(host.limits.max_frame_bytes)
        self.session = ClientSession(host, self, self._framer, name=f"{name}-{next(_numbers)}", token=token)
        self.outbox: Outbox
        self.protocol: SojournProtocol
        self._reader: asyncio.ReadTransport
        self._writer: asyncio.WriteTransport
        self._ended = asyncio.Event()
        self._lost = asyncio.Event()
        self._eof = False
        self._hurried = False
        self._greeted = False

    # ── what the transport calls ──────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A socket, which is both directions."""
        self.open(cast("asyncio.Transport", transport), cast("asyncio.Transport", transport))

    def open(self, reader: asyncio.ReadTransport, writer: asyncio.WriteTransport) -> None:
        """Starts on the two directions."""
        self._reader, self._writer = reader, writer
        self.outbox = Outbox(
            writer,
            self.host.turns,
            self.host.limits.max_client_queue_bytes,
            hold_reading=self._hold_reading,
            cut=self.cut,
        )
        server = new_server(self.session, self.outbox, self.end)
        self.protocol = cast("SojournProtocol", server.protocol)

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        framer = self._framer
        try:
            framer.feed(data)
            while not self._ended.is_set() and (body := framer.next()) is not None:
                self.protocol.receive(body)
        except FramingError as error:
            self._refuse(error)

    def eof_received(self) -> bool:
        """The client sends nothing more; it may still read."""
        self._eof = True
        if self._ended.is_set():
            return True
        try:
            last = self._framer.end()
            if last is not None:
                self.protocol.receive(last)
        except FramingError as error:
            log.info("Client %s: %s", self.session.name, error.reason)
        self.end("the client closed its side")
        return True

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self.outbox.pause()

    def resume_writing(self) -> None:
        """The transport's buffer has room."""
        self.outbox.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing can be written any more."""
        self.outbox.close(send=False)
        self._lost.set()
        self.end(f"the connection broke ({type(exc).__name__})" if exc else "the client left")

    # ── what the session calls ────────────────────────────────────────────────────────────────────────────────────

    def introduce(self) -> None:
        """`initialize` has been accepted: the hub hears of the client, after the answer is queued."""
        asyncio.get_running_loop().call_soon(self._greet)

    def exit(self) -> None:
        """The client said `exit`."""
        self.exited = True
        self.end("the client said exit")

    def end(self, reason: str) -> None:
        """Ends the connection in good order; the first reason counts."""
        if not self._ended.is_set():
            self.reason = reason
            self._ended.set()

    def cut(self, reason: str) -> None:
        """Ends the connection at once."""
        self.end(reason)
        self.outbox.close(send=False)
        self._writer.abort()

    # ── its task ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def serve(self) -> None:
        """Serves the client until the connection has ended; then nothing of it is left."""
        self.host.connections.add(self)
        log.info("Client %s connected.", self.session.name)
        try:
            await self._ended.wait()
            await self._linger()
        except asyncio.CancelledError:
            self._hurried = True  # the daemon ends: a slow reader gets a limit instead of its time
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._finish()
            self.host.connections.discard(self)
            log.info("Client %s is gone: %s.", self.session.name, self.reason or "the daemon ends")

    async def _linger(self) -> None:
        """Gives the requests under way their time: a little after `exit`; while the client still listens after the
        end of its own stream, as long as they need."""
        patience = None if self._eof and not self.exited and self._hangup_can_be_seen() else EXIT_GRACE_S
        with anyio.move_on_after(patience):
            while self._tasks() and not self._lost.is_set() and not self._hung_up():
                await asyncio.wait([*self._tasks()], timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)

    async def _finish(self) -> None:
        if self._hung_up():
            self.outbox.close(send=False)
        self.protocol.abandon()
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=EXIT_GRACE_S)
        if self._greeted:
            if self.session.plain is not None:
                self.host.hub.client_gone(self.session.plain)
            self.host.hub.client_gone(self.session)
        self.outbox.close(send=not self._lost.is_set())
        self._reader.close()
        self._writer.close()
        await self._until_read()
        if tasks := self._tasks():
            await asyncio.wait(tasks)

    async def _until_read(self) -> None:
        """Returns when the transport is closed; cuts a client that does not read what is left for it."""
        unread = -1
        while not self._lost.is_set() and unread != (unread := self._writer.get_write_buffer_size()):
            with anyio.move_on_after(CLOSE_GRACE_S):
                await self._lost.wait()
            if self._hurried:
                break
        if not self._lost.is_set():
            self._writer.abort()
            await self._lost.wait()

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {request.task for request in self.protocol.requests if request.task and not request.task.done()}

    def _greet(self) -> None:
        if not self._lost.is_set():
            self._greeted = True
            self.host.hub.client_ready(self.session)

    # ── small print ───────────────────────────────────────────────────────────────────────────────────────────────

    def _refuse(self, error: FramingError) -> None:
        log.warning("Client %s cannot be understood and is disconnected: %s", self.session.name, error.reason)
        self.broken = True
        if error.too_long is not None:
            limit = LimitReached(error.reason, limit="maxFrameBytes", value=error.too_long, max=self._framer.max_bytes)
            self.outbox.answer(self.session.frame(error_body(None, limit)))
        elif not error.http:
            self.outbox.answer(self.session.frame(error_body(None, bad_framing(error.reason))))
        self.end("its bytes are no frames")

    def _hold_reading(self, held: bool) -> None:
        if self._eof or self._reader.is_closing():
            return
        if held:
            self._reader.pause_reading()
        else:
            self._reader.resume_reading()

    def _socket(self) -> Any:
        return self._writer.get_extra_info("socket")

    def _hangup_can_be_seen(self) -> bool:
        found = self._socket()
        return found is not None and found.family == socket.AF_UNIX

    def _hung_up(self) -> bool:
        """Whether the peer has closed both directions (a unix socket tells; TCP does not, before a write fails)."""
        found = self._socket()
        if found is None or found.fileno() < 0 or not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(found.fileno(), 0)  # POLLHUP and POLLERR are reported without being asked for
        return bool(poll.poll(0))
