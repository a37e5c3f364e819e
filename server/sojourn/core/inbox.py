"""How reading the inbox changes a conversation, and what a conversation owes: all of it worked out from its messages.

The conversation is the whole of the state: a call is pending from its placeholder until its late result stands there.
`repair` is the door for conversations from outside; what passed it, the loop can carry on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from . import events
from ._history_rounds import Round, rounds
from .agent import InboxItem, PendingCall
from .messages import (
    AssistantMessage,
    LateResultMessage,
    Message,
    Part,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    parts,
    tool_result,
)


@dataclass(frozen=True, slots=True)
class Dropped:
    """An inbox item that changes nothing; `reason` is a sentence for a `warning` with `code`."""

    reason: str
    code: str = "resultDropped"


@dataclass(frozen=True, slots=True)
class Repaired:
    """A conversation that the loop can carry on, and what it owes.

    `pending`: placeholders without their late result. `unanswered`: calls without any result; whoever starts the next
    run fails them (`close_open_calls`), they are never run again.
    """

    messages: list[Message]
    warnings: list[events.Warning]
    pending: list[PendingCall]
    unanswered: list[ToolCallPart]


def read_item(item: InboxItem, call: PendingCall | None) -> UserMessage | LateResultMessage | Dropped:
    """What reading `item` adds to the conversation, without id and time; `call` is the pending call that it names.

    None for `call` means that no call of this id is pending: it never was, or its result was read before.
    """
    if item.kind == "message":
        return UserMessage(content=item.content or ())
    if call is None:
        return Dropped(f"The result for the call {item.call_id!r} was dropped: the call is not pending (any more).")
    is_error = item.kind == "rejection"
    content = item.content or (parts(item.error) if item.error else ())
    return LateResultMessage(call_id=call.call_id, tool_name=call.tool_name, content=content, is_error=is_error)


def pending_calls_of(messages: Iterable[Message]) -> list[PendingCall]:
    """The calls whose placeholder has no late result yet, in the order in which they were made.

    `since` is the placeholder's time, empty when it has none; unparsable arguments are shown as none.
    """
    owed = _Owed()
    for found in rounds(messages):
        for call, result in zip(found.calls, found.results, strict=True):
            owed.add(call, result)
        for message in found.after:
            if message.role == "lateResult":
                owed.settle(message.call_id)
    return [_pending_call(call, result) for call, result in owed.calls()]


def unanswered_calls(messages: Iterable[Message]) -> list[ToolCallPart]:
    """The calls without any result, not even a placeholder, in the order in which they were made."""
    return [call for found in rounds(messages) for call in found.unanswered]


def needs_reply(messages: Sequence[Message]) -> bool:
    """Whether the model owes the conversation an answer: the last word is not its own, or it asked for tools.

    Summaries and system messages are nobody's word.
    """
    for message in reversed(messages):
        if message.role == "assistant":
            return bool(message.calls)
        if message.role in ("user", "toolResult", "lateResult"):
            return True
    return False


def close_open_calls(messages: Iterable[Message], text: str) -> list[Message]:
    """The conversation with exactly one result directly after each turn's calls, in call order.

    A call without one gets `text` as an error; a result without an open call is left out.
    """
    closed: list[Message] = []
    for found in rounds(messages):
        closed.extend([found.turn] if found.turn is not None else [])
        for call, result in zip(found.calls, found.results, strict=True):
            closed.append(result or tool_result(call, text, is_error=True))
        closed.extend(message for message in found.after if message.role != "toolResult")
    return closed


def repair(messages: Sequence[Message], *, first: int = 1) -> Repaired:
    """The door for a conversation from outside. What cannot stand is left out, each time with a warning.

    Results are put directly after their turn, in call order; a second result of a pending call becomes its late
    result; results and late results of no open call are left out; a call id that occurred before becomes
    `<message id>-call-<i>`, its results with it. A message id that is missing or occurred before becomes `msg-<n>`,
    `n` from `first` on.
    """
    door = _Door(_Ids.of(messages, first))
    for found in rounds(messages):
        door.admit(found)
    return Repaired(door.messages, door.warnings, pending_calls_of(door.messages), unanswered_calls(door.messages))


@dataclass(slots=True)
class _Owed:
    """Placeholders that wait for their late result; where ids are doubled, the first one gets the first result."""

    _waiting: dict[int, tuple[ToolCallPart, ToolResultMessage]] = field(default_factory=dict)
    _by_id: dict[str, list[int]] = field(default_factory=dict)
    _count: int = 0

    def add(self, call: ToolCallPart, result: ToolResultMessage | None) -> None:
        """Takes up a call's result when it is a placeholder; what settles it has the result's call id."""
        if result is not None and result.pending:
            self._waiting[self._count] = call, result
            self._by_id.setdefault(result.call_id, []).append(self._count)
            self._count += 1

    def settle(self, call_id: str) -> ToolCallPart | None:
        """The call that a late result of this id answers, which no longer waits; None when none does."""
        numbers = self._by_id.get(call_id)
        return self._waiting.pop(numbers.pop(0))[0] if numbers else None

    def calls(self) -> Iterable[tuple[ToolCallPart, ToolResultMessage]]:
        """What still waits, in the order of the calls."""
        return self._waiting.values()


@dataclass(slots=True)
class _Ids:
    """Gives ids that are not given yet; a made one is none that the conversation came with."""

    taken: set[str]
    number: int
    messages: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, messages: Sequence[Message], first: int) -> _Ids:
        ids = {message.message_id for message in messages if message.message_id}
        calls = {call.id for message in messages if message.role == "assistant" for call in message.calls}
        return cls(ids | calls, first)

    def message(self, wanted: str | None) -> str:
        """`wanted`, or the next free `msg-<n>` when it is none or was given before."""
        given = wanted or ""
        if not given or given in self.messages:
            while (given := f"msg-{self.number}") in self.taken:
                self.number += 1
            self.taken.add(given)
        self.messages.add(given)
        return given

    def call(self, wanted: str, message_id: str, number: int) -> str:
        """`wanted`, or a free `<message_id>-call-<i>`, `i` from `number` on, when it is empty or was given before."""
        if not wanted or wanted in self.calls:
            while (wanted := f"{message_id}-call-{number}") in self.taken:
                number += 1
            self.taken.add(wanted)
        self.calls.add(wanted)
        return wanted


@dataclass(slots=True)
class _Door:
    """Lets the rounds of a conversation in, one after the other."""

    ids: _Ids
    messages: list[Message] = field(default_factory=list)
    warnings: list[events.Warning] = field(default_factory=list)
    owed: _Owed = field(default_factory=_Owed)

    def admit(self, found: Round) -> None:
        """Lets a round in: its turn, its results, what comes after."""
        if found.turn is not None:
            turn = self._turn(found.turn)
            self.messages.append(turn)
            for call, result in zip(turn.calls, found.results, strict=True):
                self.owed.add(call, result)
                if result is not None:
                    self._place(result, call.id)
        for message in found.after:
            self._admit_one(message)

    def _turn(self, turn: AssistantMessage) -> AssistantMessage:
        message_id = self.ids.message(turn.message_id)
        content: list[Part] = []
        number = 0
        for part in turn.content:
            if part.type == "toolCall":
                number += 1
                call_id = self.ids.call(part.id, message_id, number)
                if call_id != part.id:
                    self._warn(
                        "callRenamed", f"The call id {part.id!r} is not unique; the call is now {call_id!r}.", call_id
                    )
                    part = part.model_copy(update={"id": call_id})
            content.append(part)
        return turn.model_copy(update={"message_id": message_id, "content": tuple(content)})

    def _admit_one(self, message: Message) -> None:
        if message.role not in ("toolResult", "lateResult"):
            self.messages.append(message.model_copy(update={"message_id": self.ids.message(message.message_id)}))
            return
        is_final = message.role == "lateResult" or not message.pending
        call = self.owed.settle(message.call_id) if is_final else None
        if call is None:
            what = "late result" if message.role == "lateResult" else "result"
            text = (
                f"A {what} for the call {message.call_id!r} was left out: no such call waits for one where it stands."
            )
            self._warn("resultDropped", text, message.call_id)
            return
        late = LateResultMessage(
            call_id=message.call_id,
            tool_name=message.tool_name,
            content=message.content,
            is_error=message.is_error,
            message_id=message.message_id,
            at=message.at,
        )
        self._place(late, call.id)

    def _place(self, result: ToolResultMessage | LateResultMessage, call_id: str) -> None:
        message_id = self.ids.message(result.message_id)
        self.messages.append(result.model_copy(update={"message_id": message_id, "call_id": call_id}))

    def _warn(self, code: str, text: str, call_id: str) -> None:
        self.warnings.append(events.Warning(code=code, message=text, data={"callId": call_id}))


def _pending_call(call: ToolCallPart, placeholder: ToolResultMessage) -> PendingCall:
    return PendingCall(
        call_id=call.id,
        tool_name=call.name,
        args=call.arguments if isinstance(call.arguments, dict) else {},
        since=placeholder.at or "",
        placeholder=placeholder.content,
    )
