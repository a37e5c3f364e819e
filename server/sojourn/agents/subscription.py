"""What the feed knows of its clients: each connection, what it is attached to, and what it still wishes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol

from sojourn.core.agent import Caller


class Subscriber(Protocol):
    """A client's connection, as the feed sees it."""

    client_id: str | None
    root_path: str | None
    delta_latency_ms: int | None
    answers_approvals: bool
    runs_tools: bool

    def notify(self, body: bytes) -> bool:
        """Queues an encoded notification; False, and nothing queued, when the queue is full or closed."""
        ...

    async def room(self) -> None:
        """Returns when the queue has drained; raises when the connection is closed."""
        ...

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """Asks the client something; its answer. Raises `core.errors.ClientRefused`."""
        ...

    def cancel_requested(self) -> bool:
        """Whether the request that the current task answers was cancelled by its client."""
        ...

    def caller(self, params: Any, method: str) -> Caller:
        """Who asks."""
        ...


@dataclass(slots=True)
class Piece:
    """One part of a message under way: what was streamed of it, and where it belongs."""

    path: tuple[tuple[str, str], ...]
    message_id: str
    part: int
    kind: str
    text: str = ""

    def wire(self) -> dict[str, Any]:
        """The piece as `agent/attach` shows it."""
        shown: dict[str, Any] = {"messageId": self.message_id, "part": self.part, "kind": self.kind, "text": self.text}
        if self.path:
            shown["path"] = [{"agentId": agent_id, "callId": call_id} for agent_id, call_id in self.path]
        return shown


Key = tuple[str, str, int]
"""Which agent, message and part a piece is of."""


@dataclass(slots=True, eq=False)
class Subscription:
    """One client attached to one agent."""

    session: Subscriber
    agent_id: str
    deltas: bool
    sent: int
    """The newest seq that the client has or has queued."""
    live: bool = False
    lengths: dict[Key, int] = field(default_factory=dict)
    """How much of each piece the client has, while it catches up."""
    caught_up: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    held: list[tuple[Key, int, str, str]] = field(default_factory=list)
    """Deltas that wait to be joined (`deltas.maxLatencyMs`): key, offset, kind, text."""
    flush: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class Wishes:
    """What a client asked in one breath: attachments to one agent, by number, of which some are still read."""

    count: int = 0
    reading: set[int] = field(default_factory=set)
    newest: int = 0
    """The number of the newest that was read and not refused."""
    best: tuple[Subscription, int] | None = None
    """That one, with the head it was read at, while it waits for those that came after it."""
    over: bool = False
    """The client has detached meanwhile, or is gone."""
