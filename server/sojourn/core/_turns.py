"""The rules of one turn: ids of calls, which calls are invalid, what answers a round.

Values and functions of values; `sojourn.core.run` holds the machine that uses them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import Any

import orjson
from pydantic import Field, ValidationError
from pydantic_core import PydanticSerializationError, from_json

from ._steps import InvalidCallReason, InvalidToolCallContext, ModelTurn, PendingToolCall
from .errors import InvalidParams, ProtocolViolation
from .messages import (
    AssistantMessage,
    ImagePart,
    LateResultMessage,
    Message,
    Part,
    RefusalPart,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    parts,
    tool_result,
)
from .values import Value, clean

NOT_EXECUTED = "not executed"
INTERRUPTED = "interrupted; may have taken effect"
NOT_RUN = "Not run, because another call of the same turn was invalid."
NOT_RUN_CUT = "Not run, because the turn that makes this call was cut short. Make the call again, whole."
NOT_RUN_OUTPUT = "Not run, because the final output was given in the same turn."

_WHY: Mapping[InvalidCallReason, str] = {
    "unknown_tool": "there is no tool {!r}",
    "disallowed_by_tool_choice": "the tool {!r} may not be called now",
    "malformed_arguments": "the arguments of this call of {!r} are not a JSON object",
}
_CUT = frozenset(("length", "contentFilter"))
_NAMES: Mapping[type, Callable[[Any], tuple[str | None, ...]]] = {
    UserMessage: attrgetter("message_id", "at"),
    AssistantMessage: attrgetter("message_id", "at", "model"),
    ToolResultMessage: attrgetter("message_id", "at", "call_id", "tool_name"),
}
_PART_NAMES: Mapping[type, Callable[[Any], tuple[str | None, ...]]] = {
    TextPart: attrgetter("text", "provider"),
    ToolCallPart: attrgetter("id", "name", "provider", "provider_id"),
}
_SURELY_SHALLOW, _DEPTH_OF_DOCUMENT = 64, 16


def is_cut(message: AssistantMessage) -> bool:
    """Whether the provider ended the turn before the model did."""
    return message.finish_reason in _CUT


def is_empty(message: AssistantMessage) -> bool:
    """Whether there is nothing in the turn to keep: no part, or only texts without a letter."""
    return all(isinstance(part, TextPart) and not part.text and part.opaque is None for part in message.content)


def is_answerless(message: AssistantMessage) -> bool:
    """Whether the turn has no text (a refusal is one), no call and no image."""
    return not any(
        part.text if isinstance(part, TextPart | RefusalPart) else isinstance(part, ToolCallPart | ImagePart)
        for part in message.content
    )


def sound(message: Message) -> Message:
    """`message`, mended where it has lone surrogates, so that saving it never fails."""
    if _is_plain(message):
        return message
    try:
        message.json_bytes()
    except PydanticSerializationError:
        fields = message.model_dump()
        return type(message).model_validate(clean({**fields, "content": list(fields["content"])}))
    return message


def _is_plain(message: Message) -> bool:
    """Whether there is only ASCII text in it, which is always sound; cheaper than trying to save it."""
    names = _NAMES.get(type(message))
    if names is None or not _are_ascii(names(message)):
        return False
    for part in message.content:
        names = _PART_NAMES.get(type(part))
        if names is None or part.opaque is not None or not _are_ascii(names(part)):  # type: ignore[union-attr]
            return False
        if isinstance(part, ToolCallPart) and not _is_sound_json(part.arguments):
            return False
    return True


def _are_ascii(names: tuple[str | None, ...]) -> bool:
    return "".join(filter(None, names)).isascii()


def _is_sound_json(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def explain(context: InvalidToolCallContext) -> str:
    """Why the model cannot make this call and what it can call, without a full stop."""
    why = _WHY[context.reason].format(context.tool_name)
    return f"{why}; it may call {', '.join(map(repr, context.allowed_tools)) or 'nothing'}"


# -- calls and their ids ------------------------------------------------------------------------------------------


def has_calls(content: tuple[Part, ...]) -> bool:
    """Whether a tool is called in it."""
    return ToolCallPart in map(type, content)


def call_ids(messages: Iterable[Message]) -> Iterator[str]:
    """The ids that calls and results in `messages` have."""
    for message in messages:
        if isinstance(message, AssistantMessage):
            yield from (call.id for call in message.calls)
        elif isinstance(message, ToolResultMessage | LateResultMessage):
            yield message.call_id


def assistant_message(turn: ModelTurn, *, taken: AbstractSet[str], number: int) -> AssistantMessage:
    """The message of turn `number`, its calls with ids that are unique among themselves and `taken`."""
    message = AssistantMessage.trusted(
        message_id=turn.message_id,
        at=turn.at,
        role="assistant",
        content=_with_unique_ids(turn.content, taken, number),
        model=turn.model,
        finish_reason=turn.finish_reason,
        usage=turn.usage,
    )
    mended = sound(message)
    assert isinstance(mended, AssistantMessage)
    return mended


def _with_unique_ids(content: tuple[Part, ...], taken: AbstractSet[str], number: int) -> tuple[Part, ...]:
    if not has_calls(content):
        return content
    used: set[str] = set()  # beside `taken`, which is as large as the conversation and never copied
    fine: set[int] = set()
    for position, part in enumerate(content):
        if isinstance(part, ToolCallPart) and part.id and part.id not in taken and part.id not in used:
            used.add(part.id)
            fine.add(position)
    new: list[Part] = []
    calls = 0
    for position, part in enumerate(content):
        if isinstance(part, ToolCallPart):
            calls += 1
            part = _with_json_arguments(part)
            if position not in fine:
                fresh = unused(f"call-{number}-{calls}", taken, used)
                used.add(fresh)
                part = part.model_copy(update={"id": fresh, "provider_id": part.provider_id or part.id or None})
        new.append(part)
    return tuple(new)


def unused(wish: str, *taken: Container[str]) -> str:
    """`wish`, or `wish-2`, `wish-3`, … , the first that is not taken."""
    name, n = wish, 1
    while any(name in names for names in taken):
        n += 1
        name = f"{wish}-{n}"
    return name


def _with_json_arguments(call: ToolCallPart) -> ToolCallPart:
    # NaN, numbers beyond 64 bits and very deep nesting would not come back from the disk as they are: malformed.
    try:
        arguments: dict[str, Any] | str = clean(call.arguments)
        data = orjson.dumps(arguments)
        if data.count(b"[") + data.count(b"{") > _SURELY_SHALLOW:
            from_json(b"[" * _DEPTH_OF_DOCUMENT + data + b"]" * _DEPTH_OF_DOCUMENT)
    except (InvalidParams, TypeError, ValueError):
        arguments = json.dumps(call.arguments, default=str)
    return call if arguments is call.arguments else call.model_copy(update={"arguments": arguments})


def closed(messages: Sequence[Message]) -> list[Message]:
    """`messages` with exactly one result directly after each call: open calls get one, results without call go."""
    new: list[Message] = []
    calls: tuple[ToolCallPart, ...] = ()
    found: list[ToolResultMessage] = []
    for message in messages:
        if isinstance(message, ToolResultMessage):
            found.append(message)
            continue
        new += _results_in_order(calls, found)
        new.append(message)
        calls, found = (message.calls if isinstance(message, AssistantMessage) else ()), []
    return [*new, *_results_in_order(calls, found)]


def _results_in_order(calls: tuple[ToolCallPart, ...], found: list[ToolResultMessage]) -> Iterator[ToolResultMessage]:
    for call in calls:
        at = next((i for i, result in enumerate(found) if result.call_id == call.id), None)
        yield tool_result(call, NOT_EXECUTED, is_error=True) if at is None else found.pop(at)


# -- the turn that is being judged --------------------------------------------------------------------------------


class OpenTurn(Value):
    """A model's turn that is not in the history yet. Calls before `position` are judged.

    `repaired` has the new names and `skipped` the reasons, both by call id.
    """

    message: AssistantMessage
    executable_tools: tuple[str, ...]
    allowed_tools: tuple[str, ...]
    position: int = Field(ge=0, strict=True)
    repaired: dict[str, str]
    skipped: dict[str, str]

    @classmethod
    def begin(cls, message: AssistantMessage, turn: ModelTurn) -> OpenTurn:
        """The turn before anybody looked at it. Nothing of a turn that was cut will run, so nothing is asked."""
        return cls.trusted(
            message=message,
            executable_tools=turn.executable_tools,
            allowed_tools=turn.executable_tools if turn.allowed_tools is None else turn.allowed_tools,
            position=len(message.calls) if is_cut(message) else 0,
            repaired={},
            skipped={},
        )

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The calls under their repaired names."""
        return self.accepted().calls

    def accepted(self) -> AssistantMessage:
        """The turn as the history will show it."""
        if not self.repaired:
            return self.message
        content = tuple(
            part.model_copy(update={"name": self.repaired[part.id]})
            if isinstance(part, ToolCallPart) and part.id in self.repaired
            else part
            for part in self.message.content
        )
        return self.message.model_copy(update={"content": content})

    def judged(self, output_tool: str | None) -> OpenTurn:
        """The turn at its next invalid call, or behind its last call."""
        calls, position = self.calls, self.position
        while position < len(calls) and self.invalid(calls[position], output_tool) is None:
            position += 1
        return self if position == self.position else self.but(position=position)

    def consistent(self, output_tool: str | None, *, whole: bool) -> bool:
        """Whether `position` is at the first invalid call, or behind the last when the turn is `whole`."""
        start = len(self.calls) if is_cut(self.message) else 0
        position = self.model_copy(update={"position": start}).judged(output_tool).position
        return position == self.position and (position == len(self.calls)) == whole

    def invalid(self, call: ToolCallPart, output_tool: str | None) -> InvalidCallReason | None:
        """Why the model cannot make `call`. The output tool judges its arguments itself."""
        if call.id in self.skipped or call.name == output_tool:
            return None
        if call.name not in self.allowed_tools:
            return "disallowed_by_tool_choice" if call.name in self.executable_tools else "unknown_tool"
        return "malformed_arguments" if isinstance(call.arguments, str) else None

    def preresolved(self) -> dict[str, ToolResultMessage]:
        """The results that calls of this turn have without running: one skipped, or a turn cut, and none runs."""
        if is_cut(self.message):
            return {call.id: tool_result(call, NOT_RUN_CUT, is_error=True) for call in self.calls}
        if not self.skipped:
            return {}
        return {call.id: tool_result(call, self.skipped.get(call.id, NOT_RUN), is_error=True) for call in self.calls}


class Round(Value):
    """The calls of the turn that ends the run's messages, and what answers them so far, by call id."""

    calls: tuple[ToolCallPart, ...]
    preresolved: dict[str, ToolResultMessage]
    answers: dict[str, ToolResultMessage]
    dispatched: tuple[str, ...]

    @property
    def open_calls(self) -> tuple[ToolCallPart, ...]:
        """The calls that have no answer, in the order of their making."""
        return tuple(call for call in self.calls if call.id not in self.answers)

    def owed(self) -> tuple[PendingToolCall, ...]:
        """The open calls for the driver."""
        return tuple(PendingToolCall(call, self.preresolved.get(call.id)) for call in self.open_calls)

    def results(self) -> list[ToolResultMessage]:
        """The answers in call order."""
        return [self.answers[call.id] for call in self.calls if call.id in self.answers]

    def consistent(self) -> bool:
        """Whether every id in it is one of its calls, and a call is open."""
        ids = {call.id for call in self.calls}
        return bool(self.open_calls) and ids.issuperset((*self.preresolved, *self.answers, *self.dispatched))

    def answered(self, given: Iterable[ToolResultMessage | Mapping[str, Any]]) -> Round:
        """The round with these results in it. Raises `ProtocolViolation` for all of them when one does not fit."""
        fresh: dict[str, ToolResultMessage] = {}
        for item in given:
            result = _as_result(item)
            if result.call_id in fresh:
                raise _refused("tool_results", f"answers {result.call_id!r} twice in one batch; a call has one result.")
            fresh[result.call_id] = self._fitting(result)
        return self.but(answers={**self.answers, **fresh})

    def _fitting(self, result: ToolResultMessage) -> ToolResultMessage:
        call = self._open(result.call_id, "tool_results")
        settled = self.preresolved.get(call.id)
        if settled is None:
            return result if result.tool_name == call.name else result.model_copy(update={"tool_name": call.name})
        if settled.content != result.content:
            raise _refused("tool_results", f"gives {call.id!r} another result than the one it is preresolved with.")
        return settled

    def marked(self, ids: Iterable[str]) -> Round:
        """The round with these calls dispatched. Raises `ProtocolViolation` when one is not to be run."""
        fresh = dict.fromkeys(self.dispatched)
        for call_id in ids:
            if self._open(call_id, "mark_dispatched").id in self.preresolved:
                raise _refused("mark_dispatched", f"names {call_id!r}, which is preresolved and must not run.")
            fresh[call_id] = None
        return self.model_copy(update={"dispatched": tuple(fresh)})

    def interrupted(self) -> list[ToolResultMessage]:
        """Results that fail every call that was started and has no answer."""
        return [tool_result(c, INTERRUPTED, is_error=True) for c in self.open_calls if c.id in self.dispatched]

    def _open(self, call_id: str, method: str) -> ToolCallPart:
        if call_id in self.answers:
            raise _refused(method, f"names {call_id!r}, which has been answered; a call has one result.")
        call = next((call for call in self.calls if call.id == call_id), None)
        if call is None:
            known = ", ".join(repr(call.id) for call in self.open_calls)
            raise _refused(method, f"names {call_id!r}, which is no call of this round; open are {known}.")
        return call


def _as_result(item: ToolResultMessage | Mapping[str, Any]) -> ToolResultMessage:
    result: Any = item
    if isinstance(item, Mapping):
        fields: dict[str, Any] = {"toolName": "", **item}
        if isinstance(fields.get("content"), str):
            fields["content"] = parts(fields["content"])
        try:
            result = ToolResultMessage.model_validate(fields)
        except ValidationError as error:
            raise _refused("tool_results", f"is given something that is not a tool result: {error}") from None
    if not isinstance(result, ToolResultMessage):
        raise _refused("tool_results", f"is given {result!r}, which is not a tool result.")
    mended = sound(result)
    assert isinstance(mended, ToolResultMessage)
    return mended


def _refused(method: str, why: str) -> ProtocolViolation:
    return ProtocolViolation(
        f"{method}() {why} The run is still in state 'executing_tools'.", call=method, state="executing_tools"
    )
