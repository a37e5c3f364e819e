"""Turns: a stored conversation as who says what, in an order that a dialect accepts; no provider's JSON yet.

Here is decided what is left out, where results and late results stand, and what is put in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, NamedTuple

from ._history_blocks import Block, Picture, blocks_of, is_sayable
from ._history_dialects import CONTINUE, EMPTY, NO_RESULT, NOTED, Dialect, WireIds
from ._history_rounds import Round, rounds
from .messages import (
    LateResultMessage,
    Message,
    Part,
    SummaryMessage,
    TextPart,
    ToolResultMessage,
)


class Result(NamedTuple):
    """A call's one result; `blocks` is never empty."""

    wire_id: str
    blocks: list[Block]
    is_error: bool


@dataclass(slots=True)
class Said:
    """A turn of the user or a system message; `blocks` is never empty."""

    role: Literal["user", "system"]
    blocks: list[Block]


@dataclass(slots=True)
class Spoken:
    """A turn of the model, and the results of its calls (one each, in call order)."""

    parts: tuple[Part, ...]
    results: list[Result]


@dataclass(slots=True)
class Turns:
    """The turns of one request, kept in the order that the dialect wants while they are added."""

    dialect: Dialect
    ids: WireIds
    turns: list[Said | Spoken] = field(default_factory=list)

    def read(self, messages: Iterable[Message]) -> None:
        """Adds a whole conversation."""
        for found in rounds(messages):
            if found.calls and found.turn is not None:
                self._speak(found.turn.content, self._results(found))
                self._show_images(found)
            elif found.turn is not None:
                self._speak(found.turn.content, [])
            for message in found.after:
                self._read_one(message)
        if not self.turns or (self.dialect.alternates and self._wants_user()):
            self._say("user", [CONTINUE])

    def _read_one(self, message: Message) -> None:
        if message.role in ("assistant", "toolResult"):
            return  # a result that answers no open call
        blocks = blocks_of(message.content, self.dialect) or [EMPTY]
        if message.role == "system" and self.dialect.system_in_middle:
            self._say("system", ["[image: not shown]" if isinstance(block, Picture) else block for block in blocks])
            return
        if message.role == "system":
            blocks = _headed("[system]", blocks)
        elif message.role == "summary":
            blocks = _headed("[summary of the conversation so far]", blocks)
        elif message.role == "lateResult":
            blocks = _headed(late_heading(message), blocks)
        self._say("user", blocks)

    def _say(self, role: Literal["user", "system"], blocks: list[Block]) -> None:
        last = self.turns[-1] if self.turns else None
        if isinstance(last, Said) and last.role == role and self.dialect.alternates:
            last.blocks.extend(blocks)
            return
        if isinstance(last, Spoken) and last.results and not self.dialect.user_after_result:
            self.turns.append(Spoken((TextPart(text=NOTED),), []))
        self.turns.append(Said(role, blocks))

    def _speak(self, parts: tuple[Part, ...], results: list[Result]) -> None:
        if results and not self.dialect.text_beside_calls and any(map(is_sayable, parts)):
            self._speak(tuple(part for part in parts if part.type != "toolCall"), [])
            parts = tuple(part for part in parts if part.type == "toolCall")
        if not self.turns or (self.dialect.alternates and self._wants_user()):
            self._say("user", [CONTINUE])
        self.turns.append(Spoken(parts, results))

    def _wants_user(self) -> bool:
        """Whether the model has said its last word."""
        last = self.turns[-1]
        return isinstance(last, Spoken) and not last.results

    def _results(self, found: Round) -> list[Result]:
        return [
            self._result(self.ids.give(call.id), result)
            for call, result in zip(found.calls, found.results, strict=True)
        ]

    def _result(self, wire_id: str, result: ToolResultMessage | None) -> Result:
        if result is None:
            return Result(wire_id, [NO_RESULT], True)
        blocks = blocks_of(result.content, self.dialect) or [EMPTY]
        if self._moves_images(result):
            blocks = ["[image: shown below]" if isinstance(block, Picture) else block for block in blocks]
        return Result(wire_id, blocks, result.is_error)

    def _show_images(self, found: Round) -> None:
        for result in found.results:
            if result is not None and self._moves_images(result):
                images = [part for part in result.content if part.type == "image"]
                pictures = [block for block in blocks_of(images, self.dialect) if isinstance(block, Picture)]
                if pictures:
                    self._say("user", [f"[image in the result of {result.tool_name} ({result.call_id})]", *pictures])

    def _moves_images(self, result: ToolResultMessage) -> bool:
        """Whether images of this result stand in a user turn after the round: no provider takes them in an error."""
        return result.is_error or not self.dialect.images_in_results


def since_summary(messages: Sequence[Message]) -> list[Message]:
    """What of a conversation the model sees: the last summary and what follows it.

    A round that was open when the summary came is kept whole, after the summary.
    """
    last = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].role == "summary"), None)
    if last is None:
        return list(messages)
    following = list(messages[last + 1 :])
    if (kept := kept_before(messages, last)) is not None:
        return [messages[last], *(m for m in messages[kept:last] if m.role != "summary"), *following]
    start = next((n for n in range(last - 1, -1, -1) if messages[n].role == "assistant"), last)
    before = [m for m in messages[start:last] if m.role in ("assistant", "toolResult")]
    rest = takewhile(lambda message: message.role != "assistant", following)
    was_open = len(rounds([*before, *rest])[-1].unanswered) < len(rounds(before)[-1].unanswered)
    return [messages[last], *(before if was_open else ()), *following]


def kept_before(messages: Sequence[Message], at: int) -> int | None:
    """Where what the summary at position `at` keeps begins; None when it keeps nothing that is there."""
    summary = messages[at]
    if not isinstance(summary, SummaryMessage) or summary.kept_from is None:
        return None
    return next((n for n in range(at - 1, -1, -1) if messages[n].message_id == summary.kept_from), None)


def late_heading(message: LateResultMessage) -> str:
    """The line that tells the model which earlier call a late result answers."""
    if message.is_error:
        return f"[{message.tool_name} ({message.call_id}), started earlier, failed]"
    return f"[result of {message.tool_name} ({message.call_id}), started earlier]"


def _headed(heading: str, blocks: list[Block]) -> list[Block]:
    first = blocks[0]
    return [f"{heading}\n{first}", *blocks[1:]] if isinstance(first, str) else [heading, *blocks]
