"""A model server on a loopback socket that answers what a test tells it to, byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sojourn.core.messages import user
from sojourn.models.base import ModelAnswer, ModelDelta, ModelNotice, ModelRequest, ModelReset, ModelSpec
from sojourn.models.retry import RetryPolicy

LIMIT_S = 30


@dataclass
class Received:
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Peer:
    """What an answer may do with its connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_gone(self) -> None:
        """Holds the connection open until the client closes it."""
        while await self.reader.read(1024):
            pass

    def abort(self) -> None:
        self.writer.transport.abort()


Answer = Callable[[Peer], Awaitable[None]]


@dataclass
class Loopback:
    port: int = 0
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@asynccontextmanager
async def loopback(*answers: Answer) -> AsyncIterator[Loopback]:
    """The n-th request gets the n-th answer, the last one repeats. One answer per connection."""
    server = Loopback()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        server.open += 1
        server.closed.clear()
        try:
            server.requests.append(await _receive(reader))
            await answers[min(len(server.requests), len(answers)) - 1](Peer(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            server.open -= 1
            if not server.open:
                server.closed.set()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()


async def _receive(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *fields = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (text.partition(":") for text in fields)}
    return Received(line, headers, await reader.readexactly(int(headers.get("content-length", 0))))


def raw(data: bytes, *, split: int | None = None, hold: bool = False, abort: bool = False) -> Answer:
    """`data` as it is, in pieces of `split` bytes; then the end of the connection, or hold it until the client goes."""

    async def answer(peer: Peer) -> None:
        size = split or len(data) or 1
        for at in range(0, len(data), size):
            await peer.send(data[at : at + size])
            if split:
                await asyncio.sleep(0)
        if abort:
            peer.abort()
        elif hold:
            await peer.until_gone()

    return answer


def head(status: int = 200, kind: str = "text/event-stream", **headers: str) -> bytes:
    fields = {"content-type": kind, "connection": "close", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return f"HTTP/1.1 {status} X\r\n".encode() + b"".join(f"{k}: {v}\r\n".encode() for k, v in fields.items()) + b"\r\n"


def sse(*chunks: Any, done: bool = True, split: int | None = None, hold: bool = False, **headers: str) -> Answer:
    """A stream of these chunks: dicts as JSON, bytes as they are."""
    return raw(head(**headers) + body_of(*chunks, done=done), split=split, hold=hold)


def body_of(*chunks: Any, done: bool = True) -> bytes:
    lines = [c if isinstance(c, bytes) else b"data: " + json.dumps(c, ensure_ascii=False).encode() for c in chunks]
    return b"".join(line + b"\n\n" for line in [*lines, *([b"data: [DONE]"] if done else [])])


def answer_json(value: Any, status: int = 200, **headers: str) -> Answer:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    headers = {"kind": "application/json", "content_length": str(len(body)), **headers}
    return raw(head(status, **headers) + body)


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk with one choice."""
    return {"id": "c-1", "model": "m-1", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(arguments: Any = None, **fields: Any) -> dict[str, Any]:
    """An entry of `tool_calls`: index, id, name as given."""
    function = {
        key: value for key, value in (("name", fields.pop("name", None)), ("arguments", arguments)) if value is not None
    }
    return {**fields, "function": function}


async def no_wait(delay_s: float) -> None:
    await asyncio.sleep(0)


PATIENT = RetryPolicy(max_retries=2, chance=lambda: 0.0, sleep=no_wait)
ONCE = RetryPolicy(max_retries=0)


def spec_for(server: Loopback | None = None, **fields: Any) -> ModelSpec:
    base = {"name": "tested", "backend": "openai-chat", "model": "m", "idle_timeout_s": 5.0, "total_timeout_s": 8.0}
    return ModelSpec(**{**base, "base_url": server.url if server else None, **fields})


def asked(*messages: Any, **fields: Any) -> ModelRequest:
    return ModelRequest(messages=list(messages) or [user("hi")], **fields)


@dataclass
class Heard:
    """What a stream said. `told` are the deltas' texts by part and kind since the last reset."""

    events: list[Any] = field(default_factory=list)
    told: dict[tuple[int, str], str] = field(default_factory=dict)
    resets: list[str] = field(default_factory=list)
    notices: list[ModelNotice] = field(default_factory=list)
    answer: ModelAnswer | None = None

    def add(self, event: Any) -> None:
        self.events.append(event)
        if isinstance(event, ModelReset):
            self.resets.append(event.reason)
            self.told.clear()
        elif isinstance(event, ModelNotice):
            self.notices.append(event)
        elif isinstance(event, ModelDelta):
            event.text.encode()
            assert event.text
            key = (event.part, event.kind)
            self.told[key] = self.told.get(key, "") + event.text
        else:
            assert self.answer is None
            self.answer = event


async def listen(model: Any, request: ModelRequest | None = None, heard: Heard | None = None) -> Heard:
    """Everything that the model says; `heard` keeps what came before an error."""
    heard = heard or Heard()
    async with asyncio.timeout(LIMIT_S):
        async for event in model.stream(request or asked()):
            heard.add(event)
    assert heard.answer is not None
    assert heard.events[-1] is heard.answer
    _check_deltas(heard)
    return heard


def _check_deltas(heard: Heard) -> None:
    """What was told as deltas is what the answer holds, part for part."""
    for (part, kind), text in heard.told.items():
        held = heard.answer.content[part]
        if kind == "toolArguments":
            assert held.type == "toolCall"
        else:
            assert held.text == text
            assert (held.type == "reasoning") == (kind == "reasoning")


def calls_of(heard: Heard) -> list[tuple[str, Any]]:
    return [(part.name, part.arguments) for part in heard.answer.content if part.type == "toolCall"]


def text_in(heard: Heard) -> str:
    return "".join(part.text for part in heard.answer.content if part.type == "text")


def texts(parts: Iterable[Any]) -> list[str]:
    return [part.type for part in parts]
