"""What the tests of the wire share: a hub with nothing in it, methods that do what a case needs, a raw client.

Run as a program it serves one client on stdin and stdout.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
from pydantic import Field

from sojourn.core.errors import AgentNotFound, Overloaded
from sojourn.core.values import Value
from sojourn.methods._table import METHODS, Mutating, Params, method
from sojourn.rpc.answers import encode_notification
from sojourn.rpc.host import Host, WireLimits
from sojourn.rpc.listen import serve_unix
from sojourn.rpc.stdio import Stdio, claim, serve_stdio

LIMIT_S = 10.0


class FakeHub:
    """Remembers who came and went; `gate` is what waiting methods wait for."""

    store_id = "store-of-tests"

    def __init__(self) -> None:
        self.here: list[Any] = []
        self.gone: list[Any] = []
        self.gate = asyncio.Event()
        self.seen: list[Any] = []
        self.shut_down: list[str] = []

    def client_ready(self, session: Any) -> None:
        self.here.append(session)

    def client_gone(self, session: Any) -> None:
        self.gone.append(session)

    async def status(self) -> dict[str, Any]:
        return {"state": "ready", "agents": 3, "activeRuns": 1, "store": {"path": "memory", "bytes": 0}}

    async def list_agents(self, **_: Any) -> dict[str, Any]:
        return {"agents": []}

    async def shutdown(self, mode: str) -> None:
        self.shut_down.append(mode)


class Anything(Params):
    value: Any = None
    count: int = 0
    size: int = 0


class Prompt(Params):
    agent_id: str
    content: str
    parts: tuple[Text, ...] = ()
    max_turns: int = Field(default=1, ge=0)


class Text(Value):
    text: str


class Change(Mutating):
    title: str | None = None
    label: str | None = None


class Outcome(Value):
    score: float | None = None
    text: str | None = None


class Opaque:
    pass


@contextmanager
def wire_methods() -> Iterator[None]:
    """Enters methods `test/*` into the table, and takes them out again."""
    before = dict(METHODS)
    _enter()
    try:
        yield
    finally:
        METHODS.clear()
        METHODS.update(before)


def _enter() -> None:
    _enter_plain()
    _enter_waiting()
    _enter_odd()
    _enter_busy()


def _enter_plain() -> None:
    @method("test/echo", params=Anything, result=None)
    async def echo(session: Any, params: Anything) -> Any:
        session.hub.seen.append(params.value)
        return {"value": params.value}

    @method("test/nothing", params=Anything, result=None)
    async def nothing(session: Any, params: Anything) -> None: ...

    @method("test/prompt", params=Prompt, result=None)
    async def prompt(session: Any, params: Prompt) -> Any:
        return {"agentId": params.agent_id}

    @method("test/caller", params=Change, result=None)
    async def caller(session: Any, params: Change) -> Any:
        return session.caller(params, "test/caller")

    @method("test/session", params=Anything, result=None)
    async def about(session: Any, params: Anything) -> Any:
        names = ("client_id", "root_path", "delta_latency_ms", "answers_approvals", "runs_tools")
        return {name: getattr(session, name) for name in names}


def _enter_waiting() -> None:
    @method("test/wait", params=Anything, result=None)
    async def wait(session: Any, params: Anything) -> Any:
        session.hub.seen.append(("started", params.value))
        try:
            await session.hub.gate.wait()
        except asyncio.CancelledError:
            session.hub.seen.append(("cancelled", params.value, session.cancel_requested()))
            raise
        return {"value": params.value}

    @method("test/inline", params=Anything, result=None, inline=True)
    async def inline(session: Any, params: Anything) -> None:
        await asyncio.sleep(0)

    @method("test/tidying", params=Anything, result=None)
    async def tidying(session: Any, params: Anything) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            await session.hub.gate.wait()
            session.hub.seen.append("kept")

    @method("test/stubborn", params=Anything, result=None)
    async def stubborn(session: Any, params: Anything) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("failed while it was cancelled") from None

    @method("test/ask", params=Anything, result=None)
    async def ask(session: Any, params: Anything) -> Any:
        return {"answer": await session.request("tool/execute", {"value": params.value})}


def _enter_odd() -> None:
    results: dict[str, Any] = {
        "nan": {"n": math.nan, "i": math.inf},
        "nan in a value": Outcome(score=math.nan, text="ok"),
        "surrogate": {"t": "a\ud800b", "k\udfff": [1]},
        "surrogate in a value": Outcome(text="a\ud800b"),
        "huge": {"n": 10**30},
        "values": {"all": [Outcome(text="x")]},
        "unserialisable": {"x": Opaque()},
        "emoji": {"t": "\N{SNOWMAN}\N{ROCKET} \u4f60\u597d"},
    }

    @method("test/odd", params=Anything, result=None)
    async def odd(session: Any, params: Anything) -> Any:
        return results[params.value]

    def fail(how: str) -> BaseException:
        match how:
            case "ours":
                return AgentNotFound("There is no agent 'a'.", agentId="a")
            case "grouped":
                return ExceptionGroup("g", [ExceptionGroup("h", [Overloaded("Later.", retryAfterMs=5)])])
            case "odd data":
                return AgentNotFound("There is no agent.", what=Opaque())
            case _:
                return RuntimeError("secret /home/somebody/file.py")

    @method("test/fail", params=Anything, result=None)
    async def failing(session: Any, params: Anything) -> Any:
        raise fail(params.value)


def _enter_busy() -> None:
    @method("test/big", params=Anything, result=None)
    async def big(session: Any, params: Anything) -> Any:
        return {"text": "x" * params.size}

    @method("test/flood", params=Anything, result=None)
    async def flood(session: Any, params: Anything) -> Any:
        body = encode_notification("test/event", {"text": "x" * params.size})
        return {"accepted": sum(session.notify(body) for _ in range(params.count))}

    @method("test/paced", params=Anything, result=None)
    async def paced(session: Any, params: Anything) -> Any:
        body = encode_notification("test/event", {"text": "x" * params.size})
        for _ in range(params.count):
            await session.room()
            if not session.notify(body):
                return {"accepted": False}
        return {"accepted": True}

    @method("test/print", params=Anything, result=None)
    async def noisy(session: Any, params: Anything) -> Any:
        print("printed by a library", flush=True)
        os.write(1, b"written by C\n")
        subprocess.run("echo by a child; cat", shell=True, check=True)  # `cat` ends: stdin is not the protocol's
        return {"done": True}


# ── the client ────────────────────────────────────────────────────────────────────────────────────────────────────────


def header_frame(message: Any) -> bytes:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def line_frame(message: Any) -> bytes:
    return (message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n"


def request(id: Any, method: str, params: Any = ..., **rest: Any) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": id, "method": method, **rest}
    return message if params is ... else {**message, "params": params}


def notification(method: str, params: Any = ...) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "method": method}
    return message if params is ... else {**message, "params": params}


def hello(**sojourn: Any) -> dict[str, Any]:
    """An `initialize` request with the id "hello"."""
    return request("hello", "initialize", {"capabilities": {"experimental": {"sojourn": sojourn}}})


def strict(text: bytes) -> Any:
    """The JSON in `text`, which must hold no NaN."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text.decode(), parse_constant=refuse)


class Wire:
    """A raw client. `lines`: it speaks newline-delimited JSON."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, lines: bool = False) -> None:
        self.reader = reader
        self.writer = writer
        self.lines = lines
        self.others: list[Any] = []
        """Messages that came while `call` waited for its answer."""

    def send(self, *messages: Any) -> None:
        frame = line_frame if self.lines else header_frame
        self.raw(b"".join(frame(message) for message in messages))

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self) -> Any:
        async with asyncio.timeout(LIMIT_S):
            if self.lines:
                line = await self.reader.readline()
                if not line:
                    raise EOFError
                return strict(line)
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise AssertionError(f"no frame: {error.partial!r}") from None
                raise EOFError from None
            assert head.startswith(b"Content-Length: "), head
            return strict(await self.reader.readexactly(int(head[16:])))

    async def call(self, method: str, id: Any = "call", **params: Any) -> Any:
        """The whole answer to a request."""
        self.send(request(id, method, params))
        while (message := await self.receive()).get("id") != id:
            self.others.append(message)
        return message

    async def rest(self) -> list[Any]:
        """Everything until the daemon closes the connection."""
        found = []
        while True:
            try:
                found.append(await self.receive())
            except (EOFError, ConnectionError):
                return found

    async def barrier(self) -> list[Any]:
        """Everything that is answered before a last request is: nothing else is on its way."""
        self.send(request("barrier", "test/nothing"))
        found = []
        while (message := await self.receive()) != {"jsonrpc": "2.0", "id": "barrier", "result": None}:
            found.append(message)
        return found

    def close(self) -> None:
        self.writer.close()


class Daemon:
    """A host on a unix socket, in this process."""

    def __init__(self, host: Host, hub: FakeHub, path: Path) -> None:
        self.host = host
        self.hub = hub
        self.path = path
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, *, greet: bool = True, lines: bool = False, limit: int = 2**26, **sojourn: Any) -> Wire:
        reader, writer = await asyncio.open_unix_connection(self.path, limit=limit)
        self._writers.append(writer)
        wire = Wire(reader, writer, lines=lines)
        if greet:
            wire.send(hello(**sojourn), notification("initialized", {}))
            assert (await wire.receive())["result"]["serverInfo"]["name"] == "sojourn"
        return wire

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def daemon(folder: Path, **limits: int) -> AsyncIterator[Daemon]:
    hub = FakeHub()
    host = Host(hub, WireLimits(**limits))  # type: ignore[arg-type]
    with wire_methods():
        async with serve_unix(host, folder / "d" / "sojourn.sock") as path:
            running = Daemon(host, hub, path)
            try:
                yield running
            finally:
                running.hang_up()


async def until(true: Any) -> None:
    """Waits until `true()` is."""
    async with asyncio.timeout(LIMIT_S):
        while not true():
            await asyncio.sleep(0.005)


async def _serve_stdio(ends: Stdio) -> int:
    with wire_methods():
        return await serve_stdio(Host(FakeHub()), ends)  # type: ignore[arg-type]


if __name__ == "__main__":
    import logging

    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    sys.exit(anyio.run(_serve_stdio, claim()))
