"""What the tests of the whole daemon share: scripts of its model, short words for a client, and a reader of events that
checks on its own what it is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wire import Wire

from sojourn_client.testing import DaemonProcess

LEFT_OUT = ("inboxQueued", "inboxRead", "approvalRequested", "approvalResolved", "agentUpdated", "toolExecProgress")
"""What the sequences of long-running work do not speak of (besides resets and the start of a streamed message)."""


def client(daemon: DaemonProcess, client_id: str | None = "test", **sojourn: Any) -> Tape:
    """A new connection that has said hello."""
    wire = Tape.unix(daemon.socket, timeout=30)
    wire.initialize(client_id, **sojourn)
    return wire


def agent(wire: Wire, agent_id: str, **config: Any) -> str:
    """Creates an agent (with all tools, unless the config says which) and attaches the client."""
    wire.call("agent/create", {"agentId": agent_id, "config": {"tools": ["*"], **config}})
    wire.call("agent/attach", {"agentId": agent_id, "afterSeq": 0})
    return agent_id


def prompt(wire: Wire, agent_id: str, text: str, **options: Any) -> Any:
    """The outcome of a prompt."""
    return wire.call("agent/prompt", {"agentId": agent_id, "content": text, **options})


def numbered(wire: Wire, agent_id: str) -> list[dict[str, Any]]:
    """The params of the numbered events of an agent that have arrived, in their order of arrival."""
    return [params for params in wire.events(agent_id) if "seq" in params]


def stored(wire: Wire, agent_id: str, after: int = 0, *, limit: int = 100) -> list[dict[str, Any]]:
    """The params of all events that the daemon keeps of an agent."""
    found: list[dict[str, Any]] = []
    while True:
        page = wire.call("agent/events", {"agentId": agent_id, "afterSeq": after, "limit": limit})
        if not page["events"]:
            return found
        found += page["events"]
        after = page["nextSeq"]


def conversation(wire: Wire, agent_id: str) -> list[tuple[str, str]]:
    """An agent's messages as (role, text)."""
    page = wire.call("agent/messages", {"agentId": agent_id, "limit": 1000})
    return [(message["role"], text(message["content"])) for message in page["messages"]]


def text(content: list[dict[str, Any]]) -> str:
    """The words in a content."""
    return "".join(part.get("text", "") for part in content if part["type"] == "text")


def shape(event: dict[str, Any]) -> str:
    """An event's type, `nested:` before it for each child."""
    return f"nested:{shape(event['event'])}" if event["type"] == "nested" else str(event["type"])


def story(events: list[dict[str, Any]]) -> list[str]:
    """The events as the sequences are written: deltas of one message are one, `messageStart` of a streamed message and
    what is not spoken of are left out."""
    told: list[str] = []
    for event in events:
        name, inner = shape(event), unwrapped(event)[1]
        streamed = inner["type"] == "messageStart" and inner["role"] == "assistant"
        again = inner["type"] == "messageDelta" and told[-1:] == [name]
        if not (streamed or again or inner["type"] in LEFT_OUT):
            told.append(name)
    return told


def effects(world: Path) -> list[dict[str, Any]]:
    """What `demo_deploy` did, in order."""
    return [json.loads(line) for line in world.read_text().splitlines()] if world.exists() else []


class Tape(Wire):
    """A connection that also keeps everything in its order of arrival."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.tape: list[dict[str, Any]] = []

    def _sort(self, message: Any) -> None:
        self.tape.append(message)
        super()._sort(message)


Place = tuple[tuple[str, ...], str, int]
"""The calls that lead to a child, a message and a part of it."""


class Reader:
    """One agent's events over any number of connections, as the protocol says that a client reads them.

    It keeps its own account: numbers must follow one another, a delta must begin where the text ends.
    """

    def __init__(self) -> None:
        self.seq = 0
        self.events: list[dict[str, Any]] = []
        """The numbered events."""
        self.texts: dict[Place, str] = {}
        """What was streamed, by message and part; it stays when the message has ended."""
        self.deltas = 0
        self._played = 0

    def play(self, wire: Tape, attach: int) -> None:
        """Takes in what has newly arrived on a connection on which the request `attach` was sent."""
        for message in wire.tape[self._played :]:
            if message.get("id") == attach and "method" not in message:
                self.attached(message["result"])
            elif message.get("method") == "agent/event":
                self.read(message["params"])
        self._played = len(wire.tape)

    def leave(self) -> None:
        """The connection is over."""
        self._played = 0

    def attached(self, answer: dict[str, Any]) -> None:
        """Takes in the answer to `agent/attach`."""
        for piece in answer["streaming"]:
            place = tuple(step["callId"] for step in piece.get("path", [])), piece["messageId"], piece["part"]
            known = self.texts.get(place, "")
            assert piece["text"].startswith(known), f"{place}: {known!r} was streamed, and now {piece['text']!r}"
            self.texts[place] = piece["text"]

    def read(self, params: dict[str, Any]) -> None:
        """Takes in an `agent/event`."""
        if "seq" in params:
            assert params["seq"] == self.seq + 1, f"event {params['seq']} came after {self.seq}"
            self.seq = params["seq"]
            self.events.append(params["event"])
            return
        path, event = unwrapped(params["event"])
        if event["type"] == "messageDelta":
            self.deltas += 1
            place = path, event["messageId"], event["part"]
            known = self.texts.get(place, "")
            assert event["offset"] == len(known), f"{place}: offset {event['offset']} after {len(known)} characters"
            self.texts[place] = known + event["text"]

    def streamed(self) -> list[tuple[str, str]]:
        """For every text that was streamed: how far it came, and the text that the finished message has there."""
        pairs = []
        for path, event in map(unwrapped, self.events):
            if event["type"] == "messageEnd" and event["message"]["role"] == "assistant":
                for number, part in enumerate(event["message"]["content"]):
                    heard = self.texts.get((path, event["message"]["messageId"], number))
                    if part["type"] in ("text", "reasoning") and heard is not None:
                        pairs.append((heard, part["text"]))
        return pairs


def unwrapped(event: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The calls that an event is wrapped in, outermost first, and the event inside."""
    path = []
    while event["type"] == "nested":
        path.append(event["toolCallId"])
        event = event["event"]
    return tuple(path), event
