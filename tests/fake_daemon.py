"""A daemon that does what a test tells it to, on a real socket: for what no healthy daemon does on demand."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

APPROVAL = {
    "approvalId": "p",
    "agentId": "a",
    "runId": "r",
    "callId": "c",
    "toolName": "rm",
    "args": {"path": "/"},
    "argsSha256": "0",
    "since": "t",
}
"""An approval as a daemon asks for it."""


class Refuse(Exception):
    """Raised by a handler: an error answer."""

    def __init__(self, code: int, message: str, **data: Any) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, "data": data}


class Silent(Exception):
    """Raised by a handler: no answer at all."""


class Connection:
    """One client of the fake daemon."""

    def __init__(self, daemon: FakeDaemon, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._daemon, self._reader, self._writer = daemon, reader, writer
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = itertools.count(2**30)
        self.notifications: list[tuple[str, dict[str, Any]]] = []

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def send(self, method: str, **params: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n")

    def event(self, seq: int | None, event: dict[str, Any], agent: str = "a", **more: Any) -> None:
        numbered = {} if seq is None else {"seq": seq}
        self.send("agent/event", agentId=agent, at="2026-01-01T00:00:00Z", event=event, **numbered, **more)

    def start_asking(self, method: str, **params: Any) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        id = next(self._ids)
        self._asked[id] = asyncio.get_running_loop().create_future()
        self.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n")
        return id, self._asked[id]

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The client's whole answer."""
        return await self.start_asking(method, **params)[1]

    def drop(self) -> None:
        """The connection breaks."""
        self._writer.transport.abort()

    async def serve(self) -> None:
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
        except ConnectionError:
            pass
        finally:
            self._writer.close()

    def _take(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            self._asked.pop(message["id"]).set_result(message)
            return
        method, params = message["method"], message.get("params", {})
        if "id" not in message:
            self.notifications.append((method, params))
            self._daemon.news.set()
            return
        self._daemon.requests.append((method, params))
        try:
            answer = {"result": self._daemon.answer(self, method, params)}
        except Refuse as refusal:
            answer = {"error": refusal.error}
        except Silent:
            return
        finally:
            self._daemon.news.set()
        self.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode() + b"\n")
        for then in self._daemon.afterwards:
            then()
        self._daemon.afterwards.clear()


class FakeDaemon:
    """Answers by `handlers[method](connection, params)`; remembers what it was asked."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="sj-", dir="/tmp"))
        self.socket = self.root / "s"
        self.version = "0.1.0"
        self.connections: list[Connection] = []
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.handlers: dict[str, Callable[[Connection, dict[str, Any]], Any]] = {"initialize": self._initialize}
        self.afterwards: list[Callable[[], None]] = []
        self.news = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        shutil.rmtree(self.root)

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.socket, limit=2**26)

    async def close(self) -> None:
        """As if it had been killed."""
        assert self._server is not None
        self._server.close()
        for connection in self.connections:
            connection.drop()
        self.connections.clear()
        self.socket.unlink(missing_ok=True)

    @property
    def client(self) -> Connection:
        """The newest connection."""
        return self.connections[-1]

    def asked(self, method: str) -> list[dict[str, Any]]:
        """The params of every request of this method."""
        return [params for name, params in self.requests if name == method]

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits until something that the clients sent makes `condition` true."""
        async with asyncio.timeout(10):
            while not condition():
                self.news.clear()
                await self.news.wait()

    def answer(self, connection: Connection, method: str, params: dict[str, Any]) -> Any:
        handler = self.handlers.get(method)
        if handler is None:
            raise Refuse(-32601, f"no {method}")
        return handler(connection, params)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer)
        self.connections.append(connection)
        self.news.set()
        await connection.serve()

    def _initialize(self, _connection: Connection, _params: dict[str, Any]) -> dict[str, Any]:
        ours = {"protocolVersion": 1, "instanceId": "i", "storeId": "s", "limits": {}, "methods": []}
        return {
            "serverInfo": {"name": "sojourn", "version": self.version},
            "capabilities": {"experimental": {"sojourn": ours}},
        }
