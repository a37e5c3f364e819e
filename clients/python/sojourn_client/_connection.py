"""One connection to a daemon: requests go out, answers come in, and what the daemon asks or tells is handed on.

It lives as long as its socket. Making a new one, and what a client wants from the daemon, is `client`'s business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

import orjson

from ._framing import Framing, Splitter, encode
from .errors import ConnectionLost, RpcError

_log = logging.getLogger(__name__)

_READ = 65536
REQUEST_CANCELLED = -32800


class Peer(Protocol):
    """Whoever answers and hears the daemon. Both are called in order of arrival and must not block."""

    def on_request(self, connection: Connection, request_id: Any, method: str, params: dict[str, Any]) -> None:
        """The daemon asks; answer later with `Connection.answer` or `Connection.refuse`."""
        ...

    def on_notification(self, method: str, params: dict[str, Any]) -> None:
        """The daemon tells."""
        ...

    def on_lost(self, connection: Connection) -> None:
        """The connection ended. Called once, also after `aclose`."""
        ...


class Connection:
    """A live connection. `closed` becomes true when its socket ended, for whatever reason."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer, *, framing: Framing
    ) -> None:
        self.closed = False
        self._reader = reader
        self._writer = writer
        self._peer = peer
        self._framing: Framing = framing
        self._next_id = 0
        self._waiting: dict[int, tuple[asyncio.Future[Any], Callable[[Any], None] | None]] = {}
        self._task = asyncio.create_task(self._read(), name="sojourn-client-read")

    async def request(
        self, method: str, params: dict[str, Any], *, on_result: Callable[[Any], None] | None = None
    ) -> Any:
        """The daemon's answer to `method`. Being cancelled cancels the request at the daemon, too.

        `on_result` is called with the result before anything that the daemon sent after it is looked at. Raises
        `RpcError` for an error answer, `ConnectionLost` when the connection ends first.
        """
        self._next_id += 1
        request_id = self._next_id
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = (future, on_result)
        try:
            await self._send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
            return await future
        except asyncio.CancelledError:
            self.notify("$/cancelRequest", {"id": request_id})
            raise
        finally:
            self._waiting.pop(request_id, None)
            if not future.cancel() and not future.cancelled():
                future.exception()  # Looked at: the loop must not complain of an answer that nobody awaits any more.

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Tells the daemon something; lost when the connection is."""
        self._write({"jsonrpc": "2.0", "method": method, "params": params})

    def answer(self, request_id: Any, result: Any) -> None:
        """Answers a request of the daemon."""
        self._write({"jsonrpc": "2.0", "id": request_id, "result": result})

    def refuse(self, request_id: Any, code: int, message: str) -> None:
        """Answers a request of the daemon with an error."""
        self._write({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}})

    async def wait_closed(self) -> None:
        """Returns when the connection has ended."""
        await asyncio.wait([self._task])

    async def aclose(self) -> None:
        """Closes the socket. Runs at the daemon go on. Idempotent."""
        self._writer.close()
        self._task.cancel()
        await asyncio.wait([self._task])
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()

    async def _send(self, body: dict[str, Any]) -> None:
        if self.closed:
            raise ConnectionLost("The connection to the daemon is closed.")
        self._write(body)
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise ConnectionLost("The connection to the daemon broke while a request was sent.") from error

    def _write(self, body: dict[str, Any]) -> None:
        if not self.closed:
            self._writer.write(encode(body, self._framing))

    async def _read(self) -> None:
        splitter = Splitter(self._framing)
        try:
            while data := await self._reader.read(_READ):
                for body in splitter.feed(data):
                    self._dispatch(orjson.loads(body))
        except (ConnectionError, ValueError) as error:
            _log.warning("The connection to the daemon broke: %s", error)
        finally:
            self._end()

    def _end(self) -> None:
        self.closed = True
        self._writer.close()
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost("The daemon closed the connection before it answered."))
        self._peer.on_lost(self)

    def _dispatch(self, message: Any) -> None:
        if not isinstance(message, dict):
            raise ValueError(f"the daemon sent a {type(message).__name__} where a message was due")
        params = message.get("params") or {}
        if "method" not in message:
            self._settle(message)
        elif "id" in message:
            self._peer.on_request(self, message["id"], message["method"], params)
        else:
            self._peer.on_notification(message["method"], params)

    def _settle(self, message: dict[str, Any]) -> None:
        waiting = self._waiting.get(message.get("id") or 0)
        error = message.get("error")
        if waiting is None:
            if error is not None:
                _log.warning("The daemon complains: %s", error.get("message"))
            return
        future, on_result = waiting
        if future.done():
            return
        if error is not None:
            future.set_exception(RpcError(error["code"], error["message"], error.get("data")))
            return
        if on_result is not None:
            on_result(message.get("result"))
        future.set_result(message.get("result"))
