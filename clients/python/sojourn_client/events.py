"""An agent's events as one unbroken list, whatever happens to the connection.

Numbered events are told apart by `seq`: what was seen is dropped, what is missing is asked for again from the last one
seen. Deltas carry offsets: what was streamed of a message while nobody looked arrives as one piece.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ._texts import Texts
from .errors import EventsGone

if TYPE_CHECKING:
    from sojourn.core.events import Event

    from .client import Client

QUEUE_LIMIT = 10_000
"""Events that wait for a slow consumer. Beyond it they are dropped, and read again from disk when it comes back."""


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One event of an agent. `seq` is None for the live ones: `messageDelta`, `toolExecProgress`, nested ones too."""

    agent_id: str
    event: dict[str, Any]
    seq: int | None = None
    at: str | None = None
    run_id: str | None = None
    origin: dict[str, Any] | None = None
    replayed: bool = False

    @classmethod
    def from_wire(cls, params: dict[str, Any]) -> AgentEvent:
        """From the params of `agent/event`."""
        return cls(
            agent_id=params["agentId"],
            event=params["event"],
            seq=params.get("seq"),
            at=params.get("at"),
            run_id=params.get("runId"),
            origin=params.get("origin"),
            replayed=params.get("replayed", False),
        )

    def wire(self) -> dict[str, Any]:
        """As the params of `agent/event`."""
        fields = {
            "agentId": self.agent_id,
            "runId": self.run_id,
            "seq": self.seq,
            "at": self.at,
            "origin": self.origin,
            "replayed": self.replayed or None,
            "event": self.event,
        }
        return {key: value for key, value in fields.items() if value is not None}

    @property
    def type(self) -> str:
        """The event's type; `nested` for a child's."""
        return str(self.event["type"])

    def innermost(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The calls that lead to the child (none for the agent's own events), and the event inside."""
        path, event = [], self.event
        while event["type"] == "nested":
            path.append(event["toolCallId"])
            event = event["event"]
        return tuple(path), event

    def typed(self) -> Event:
        """The event as its model (`sojourn.core.events`)."""
        from sojourn.core.events import EVENT

        return EVENT.validate_python(self.event, by_name=False)


class EventStream:
    """An endless iterator of `AgentEvent`: `async with client.events(...) as events: async for event in events: …`.

    `seq` is the number of the last event given out: start there to read on in another process. `attachment` is what
    the daemon answered to the latest `agent/attach` (the agent, its pending calls, its open approvals).
    """

    def __init__(self, client: Client, agent_id: str, *, after_seq: int | None, deltas: bool) -> None:
        self.agent_id = agent_id
        self.seq = after_seq
        self.attachment: dict[str, Any] = {}
        self._client = client
        self._deltas = deltas
        self._queue: deque[dict[str, Any] | None] = deque()
        self._ready: deque[AgentEvent] = deque()
        self._wake = asyncio.Event()
        self._texts = Texts()
        self._attached = False
        self._accepting = False
        self._closed = False
        self._streaming: list[dict[str, Any]] | None = None
        self._mending = False

    async def __aenter__(self) -> Self:
        """Attaches, so that nothing that happens from here on is missed. Raises `RpcError`, e.g. `agentNotFound`."""
        await self._attach()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[AgentEvent]:
        return self

    async def __anext__(self) -> AgentEvent:
        while not self._ready:
            if self._closed:
                raise StopAsyncIteration
            if not self._attached:
                await self._attach()
            elif self._queue:
                self._take(self._queue.popleft())
            else:
                self._wake.clear()
                await self._wake.wait()
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Detaches and ends the iterator. Idempotent."""
        if not self._closed:
            self._closed = True
            self._wake.set()
            await self._client.detach(self)

    # What the client calls, in order of arrival.

    def push(self, params: dict[str, Any]) -> None:
        """An `agent/event` for this stream's agent."""
        if not self._accepting:
            return
        if len(self._queue) >= QUEUE_LIMIT:
            self.restart()
        else:
            self._queue.append(params)
        self._wake.set()

    def restart(self) -> None:
        """What comes next cannot be relied on (connection lost, `agent/resync`, queue full): attach again, once what is
        queued has been given out."""
        self._accepting = False
        self._queue.append(None)
        self._wake.set()

    def end(self) -> None:
        """The client was closed: no more events."""
        self._closed = True
        self._wake.set()

    # The consumer's side.

    async def _attach(self) -> None:
        self._accepting = False
        self._queue.clear()
        params: dict[str, Any] = {"agentId": self.agent_id, "deltas": self._deltas}
        if self.seq is not None:
            params["afterSeq"] = self.seq
        await self._client.attach(self, params, self._on_attached)
        if self.attachment["mode"] == "snapshot":
            raise EventsGone(self.agent_id, self.attachment["oldestSeq"], self.attachment["seq"])

    def _on_attached(self, result: dict[str, Any]) -> None:
        self.attachment = result
        self._streaming = result.get("streaming", []) if self._deltas else None
        if self.seq is None:
            self.seq = result["seq"]
        self._attached = True
        self._accepting = result["mode"] != "snapshot"
        self._give_streamed()

    def _take(self, params: dict[str, Any] | None) -> None:
        if params is None:
            self._attached = False
            return
        item = AgentEvent.from_wire(params)
        if item.seq is None:
            self._take_live(item)
        elif self.seq is None or item.seq == self.seq + 1:
            self.seq = item.seq
            self._texts.note(*item.innermost())
            self._give(item)
            self._give_streamed()
        elif item.seq > self.seq:
            self.restart()

    def _take_live(self, item: AgentEvent) -> None:
        path, event = item.innermost()
        if event["type"] != "messageDelta":
            self._give(item)
            return
        fresh = self._texts.admit(path, event, force=self._mending)
        if fresh is None:
            self._mending = True  # The next attempt takes what comes: asking once more would ask for ever.
            self.restart()
        elif fresh["text"]:
            self._give(item if fresh is event else _live(item.agent_id, path, fresh))

    def _give(self, item: AgentEvent) -> None:
        self._mending = False
        self._ready.append(item)

    def _give_streamed(self) -> None:
        if self._streaming is None or self.seq is None or self.seq < self.attachment["seq"]:
            return
        for piece in self._streaming:
            path = tuple(step if isinstance(step, str) else step["callId"] for step in piece.get("path", ()))
            delta = self._texts.catch_up(path, piece)
            if delta["text"]:
                self._ready.append(_live(self.agent_id, path, delta))
        self._streaming = None


def _live(agent_id: str, path: tuple[str, ...], event: dict[str, Any]) -> AgentEvent:
    for call_id in reversed(path):
        event = {"type": "nested", "toolCallId": call_id, "event": event}
    return AgentEvent(agent_id=agent_id, event=event)
