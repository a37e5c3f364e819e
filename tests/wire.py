"""A small synchronous JSON-RPC client for tests: one JSON value a line over a socket, every wait bounded.

It keeps what it was not asked for: notifications in `notifications`, the daemon's own requests in `requests` until
somebody replies (or at once, by a function in `handlers`). One thread, no magic: reading happens inside waiting.

    with Wire.unix(path) as wire:
        wire.initialize(client_id="me")
        agent = wire.call("agent/create", {"config": {"tools": ["demo_build"]}})
        first = wire.send("agent/prompt", {"agentId": agent["agentId"], "content": "build it"})
        wire.event("agentEnd", agent_id=agent["agentId"])
        outcome = wire.answer(first)
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

TIMEOUT_S = 10.0


class WireError(Exception):
    """The daemon answered a request with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: dict[str, Any] = error.get("data") or {}

    @property
    def kind(self) -> str | None:
        return self.data.get("kind")


class WireTimeout(AssertionError):
    """Nothing of the kind that was waited for came in time; says what did come."""


class WireClosed(ConnectionError):
    """The daemon ended the connection."""


class Wire:
    """One connection to a daemon."""

    def __init__(self, sock: socket.socket, *, timeout: float = TIMEOUT_S) -> None:
        self._sock = sock
        self._timeout = timeout
        self._ids = itertools.count(1)
        self._rest = b""
        self._answers: dict[Any, dict[str, Any]] = {}
        self.notifications: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.handlers: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self.closed = False

    @classmethod
    def unix(cls, path: str | Path, *, timeout: float = TIMEOUT_S) -> Self:
        """Connects to the unix socket at `path`, waiting up to `timeout` seconds for somebody to listen there."""
        return cls(_connect(socket.AF_UNIX, str(path), timeout), timeout=timeout)

    @classmethod
    def tcp(cls, host: str, port: int, *, timeout: float = TIMEOUT_S) -> Self:
        """Connects to a TCP port, waiting likewise."""
        return cls(_connect(socket.AF_INET, (host, port), timeout), timeout=timeout)

    def with_timeout(self, timeout: float) -> Self:
        """The same connection, waiting so long where nothing else is said."""
        self._timeout = timeout
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves without a word, as a client that dies does."""
        self.closed = True
        self._sock.close()

    # what a client says

    def initialize(
        self, client_id: str | None = None, *, root_uri: str | None = None, **sojourn: Any
    ) -> dict[str, Any]:
        """The handshake; `sojourn` goes into `capabilities.experimental.sojourn`, e.g. `tools={"execute": {}}`."""
        ours = {"protocolVersions": [1], **({"clientId": client_id} if client_id else {}), **sojourn}
        params = {"processId": None, "rootUri": root_uri, "capabilities": {"experimental": {"sojourn": ours}}}
        result: dict[str, Any] = self.call("initialize", params)
        self.notify("initialized", {})
        return result

    def call(self, method: str, params: Any = None, *, timeout: float | None = None) -> Any:
        """Sends a request and answers its result; raises `WireError` for an error answer."""
        return self.answer(self.send(method, params), timeout=timeout)

    def send(self, method: str, params: Any = None) -> int:
        """Sends a request without waiting; answers its id."""
        id = next(self._ids)
        body = {"jsonrpc": "2.0", "id": id, "method": method}
        self.write(body if params is None else {**body, "params": params})
        return id

    def answer(self, id: Any, *, timeout: float | None = None) -> Any:
        """The result of the request `id`, waiting for it."""
        self._until(lambda: id in self._answers, timeout, f"an answer to request {id!r}")
        message = self._answers.pop(id)
        if "error" in message:
            raise WireError(message["error"])
        return message["result"]

    def answered(self, id: Any) -> bool:
        """Whether the answer is here already, after reading what has arrived."""
        self.pump()
        return self.has_answer(id)

    def has_answer(self, id: Any) -> bool:
        """Whether the answer was read already."""
        return id in self._answers

    def error(self, method: str, params: Any = None, *, timeout: float | None = None) -> WireError:
        """The error that a request is answered with; fails when it succeeds."""
        try:
            result = self.call(method, params, timeout=timeout)
        except WireError as refused:
            return refused
        raise AssertionError(f"{method} was expected to be refused and answered {result!r}")

    def cancel(self, id: Any) -> None:
        """`$/cancelRequest` for one of our requests."""
        self.notify("$/cancelRequest", {"id": id})

    def notify(self, method: str, params: Any = None) -> None:
        """Sends a notification."""
        self.write({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})

    def reply(self, request: dict[str, Any], result: Any) -> None:
        """Answers a request of the daemon."""
        self.write({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def refuse(self, request: dict[str, Any], code: int, message: str) -> None:
        """Answers a request of the daemon with an error."""
        self.write({"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": message}})

    def write(self, message: Any) -> None:
        """One JSON value as a line."""
        self.write_raw(json.dumps(message).encode() + b"\n")

    def write_raw(self, data: bytes) -> None:
        """Bytes as they are. Reads while the daemon does not take them, so that neither waits for the other."""
        deadline = time.monotonic() + self._timeout
        view = memoryview(data)
        while view:
            readable, writable, _ = select.select([self._sock], [self._sock], [], max(0.0, deadline - time.monotonic()))
            if readable:
                self._read_once()
            if writable:
                view = view[self._send_some(view) :]
            if not readable and not writable:
                raise WireTimeout(f"the daemon took no bytes for {self._timeout} s")

    # what the daemon says

    def notification(
        self, method: str, matches: Callable[[dict[str, Any]], bool] = lambda _: True, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """The params of the first notification of this method that matches, taken out of `notifications`."""
        return self._take(self.notifications, method, matches, timeout, f"a {method}")["params"]

    def request(
        self, method: str, matches: Callable[[dict[str, Any]], bool] = lambda _: True, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """The first request of the daemon for this method whose params match, whole (for `reply`), taken out."""
        return self._take(self.requests, method, matches, timeout, f"a request {method}")

    def event(
        self, type: str, *, agent_id: str | None = None, timeout: float | None = None, **fields: Any
    ) -> dict[str, Any]:
        """The params of the first `agent/event` with this type (and these fields of the event), taken out."""

        def matches(params: dict[str, Any]) -> bool:
            event = params["event"]
            ours = agent_id is None or params["agentId"] == agent_id
            return ours and event["type"] == type and all(event.get(key) == value for key, value in fields.items())

        return self._take(self.notifications, "agent/event", matches, timeout, f"the event {type}")["params"]

    def events(self, agent_id: str | None = None) -> list[dict[str, Any]]:
        """The params of every `agent/event` that has arrived and was not taken out, in order."""
        self.pump()
        found = (n["params"] for n in self.notifications if n["method"] == "agent/event")
        return [params for params in found if agent_id is None or params["agentId"] == agent_id]

    def wait_until(self, condition: Callable[[], bool], what: str, *, timeout: float | None = None) -> None:
        """Reads until `condition` holds."""
        self._until(condition, timeout, what)

    def wait_closed(self, *, timeout: float | None = None) -> None:
        """Reads until the daemon ends the connection."""
        try:
            self._until(lambda: False, timeout, "the end of the connection")
        except WireClosed:
            return

    def pump(self) -> None:
        """Reads what has arrived, without waiting; a connection that ended is noted in `closed`."""
        while not self.closed and select.select([self._sock], [], [], 0)[0]:
            try:
                self._read_once()
            except WireClosed:
                return

    # inside

    def _take(
        self,
        kept: list[dict[str, Any]],
        method: str,
        matches: Callable[[dict[str, Any]], bool],
        timeout: float | None,
        what: str,
    ) -> dict[str, Any]:
        found: list[int] = []
        seen = 0

        def look() -> bool:
            nonlocal seen
            while seen < len(kept) and not found:
                message = kept[seen]
                if message["method"] == method and matches(message.get("params") or {}):
                    found.append(seen)
                seen += 1
            return bool(found)

        self._until(look, timeout, what)
        return kept.pop(found[0])

    def _until(self, done: Callable[[], bool], timeout: float | None, what: str) -> None:
        limit = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        while not done():
            if self.closed:
                raise WireClosed(f"the connection ended before {what} came")
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._sock], [], [], left)[0]:
                raise WireTimeout(f"{what} did not come within {limit} s; {self._inventory()}")
            self._read_once()

    def _inventory(self) -> str:
        methods = [n["method"] for n in self.notifications[-8:]]
        return f"answers waiting: {list(self._answers)}, last notifications: {methods}, requests: {self.requests[-3:]}"

    def _send_some(self, view: memoryview) -> int:
        try:
            return self._sock.send(view[: 1 << 16], socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.closed = True
            raise WireClosed("the connection ended while we wrote") from error

    def _read_once(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.closed = True
            raise WireClosed("the daemon ended the connection")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                self._sort(json.loads(line))

    def _sort(self, message: Any) -> None:
        for one in message if isinstance(message, list) else [message]:
            if "method" not in one:
                self._answers[one["id"]] = one
            elif "id" not in one:
                self.notifications.append(one)
            elif handler := self.handlers.get(one["method"]):
                self.reply(one, handler(one["params"]))
            else:
                self.requests.append(one)


def _connect(family: int, address: Any, timeout: float) -> socket.socket:
    deadline = time.monotonic() + timeout
    while True:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return sock
