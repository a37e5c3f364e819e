"""What the outside world knows: what a client sent, what it was answered, what it heard, and what really happened.

This is the suite's own memory. Nothing in it comes from the daemon's store.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Intent:
    """A request that changes something. Unless it was answered, it is sent again after a crash with the same id."""

    method: str
    params: dict[str, Any]
    token: str | None = None
    """A word of its own that its content carries."""
    answer: dict[str, Any] | None = None
    refused: int | None = None

    @property
    def open(self) -> bool:
        return self.answer is None and self.refused is None

    @property
    def acknowledged(self) -> bool:
        return self.answer is not None


@dataclass
class Notebook:
    """All lives of one store, seen from outside."""

    world: Path
    intents: list[Intent] = field(default_factory=list)
    heard: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    """The numbered events that a client got, by agent and seq."""
    contradictions: list[str] = field(default_factory=list)
    """Events that were heard twice, differently."""
    tokens: int = 0

    def token(self) -> str:
        """A word that was never used."""
        self.tokens += 1
        return f"tok{self.tokens:05}"

    def intend(self, method: str, params: dict[str, Any], *, token: str | None = None) -> Intent:
        """Notes a request before it is sent."""
        intent = Intent(method, {**params, "requestId": f"request-{len(self.intents)}"}, token)
        self.intents.append(intent)
        return intent

    def hear(self, params: dict[str, Any]) -> None:
        """Notes an `agent/event`."""
        if "seq" not in params:
            return
        key = params["agentId"], params["seq"]
        before = self.heard.setdefault(key, params["event"])
        if before != params["event"]:
            self.contradictions.append(f"event {key} was heard as {before} and as {params['event']}")

    def effects(self) -> list[dict[str, Any]]:
        """What tools did to the world, in order."""
        if not self.world.exists():
            return []
        return [json.loads(line) for line in self.world.read_text().splitlines()]
