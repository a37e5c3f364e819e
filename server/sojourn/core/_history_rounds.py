"""Rounds: a conversation cut at its assistant turns, each turn with its results.

A result belongs to a call of the last turn before it, found by id and, where ids are doubled, by position. Whatever
else stands there, a result that fits no open call included, comes after the round in its order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .messages import AssistantMessage, Message, ToolCallPart, ToolResultMessage


@dataclass(slots=True)
class Round:
    """A turn (None for what stands before the first one), a place for each call's result, and what comes after."""

    turn: AssistantMessage | None
    calls: tuple[ToolCallPart, ...]
    results: list[ToolResultMessage | None]
    after: list[Message]

    @property
    def unanswered(self) -> list[ToolCallPart]:
        """The calls that have no result, in call order."""
        return [call for call, result in zip(self.calls, self.results, strict=True) if result is None]


def rounds(messages: Iterable[Message]) -> list[Round]:
    """The rounds of a conversation in order. The first one has no turn."""
    found = [Round(None, (), [], [])]
    open_places: dict[str, list[int]] = {}
    for message in messages:
        if message.role == "assistant":
            calls = tuple(part for part in message.content if part.type == "toolCall")
            found.append(Round(message, calls, [None] * len(calls), []))
            open_places = _places(calls) if calls else {}
        elif message.role == "toolResult" and open_places.get(message.call_id):
            found[-1].results[open_places[message.call_id].pop()] = message
        else:
            found[-1].after.append(message)
    return found


def _places(calls: tuple[ToolCallPart, ...]) -> dict[str, list[int]]:
    """Each id's positions among `calls`, the first one last (so that `pop` takes it first)."""
    places: dict[str, list[int]] = {}
    for position in range(len(calls) - 1, -1, -1):
        places.setdefault(calls[position].id, []).append(position)
    return places
