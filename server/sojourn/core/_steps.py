"""What a run and its driver say to each other: the model's turn goes in, steps and outcomes come out.

Values only, and their form on the wire. `sojourn.core.run` gives them their meaning; import them from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, JsonValue, SerializerFunctionWrapHandler, model_serializer, model_validator

from .agent import ErrorInfo, ModelCall
from .errors import SojournError
from .messages import FinishReason, Message, Part, TextPart, ToolCallPart, ToolChoice, ToolResultMessage, Usage
from .values import Json, Value

InvalidCallReason = Literal["unknown_tool", "disallowed_by_tool_choice", "malformed_arguments"]

_FINISH_REASONS = frozenset(("stop", "length", "toolCalls", "contentFilter", "refusal", "stopped", "other"))
_PROVIDERS_WORDS = {
    "content_filter": "contentFilter",
    "end_turn": "stop",
    "max_tokens": "length",
    "stop_sequence": "stop",
    "tool_calls": "toolCalls",
    "tool_use": "toolCalls",
}


def _as_parts(content: Any) -> Any:
    return (TextPart(text=content),) if isinstance(content, str) else content


def _as_finish_reason(reason: Any) -> Any:
    # A driver that calls the model itself has the provider's word for it.
    if not isinstance(reason, str) or reason in _FINISH_REASONS:
        return reason
    return _PROVIDERS_WORDS.get(reason, "other")


def _in_order(names: Any) -> Any:
    # The order of a set differs from process to process; what is saved must not.
    return sorted(names) if isinstance(names, set | frozenset) else names


Names = Annotated[tuple[str, ...], BeforeValidator(_in_order)]


class ModelTurn(Value):
    """One answer of the model, and what the driver had advertised for it.

    `executable_tools` are the names that exist, `allowed_tools` those that the active tool choice permits (left out:
    all that exist). `message_id` and `at` are the driver's, for the assistant message. `raw` is the provider's body;
    it is stored only by a run that was told to (`AgentRun.keep_raw`). `usage` None means: not reported.
    """

    content: Annotated[tuple[Part, ...], BeforeValidator(_as_parts)]
    usage: Usage | None = None
    finish_reason: Annotated[FinishReason | None, BeforeValidator(_as_finish_reason)] = None
    message_id: str | None = None
    at: str | None = None
    model: str | None = None
    response_id: str | None = None
    request_id: str | None = None
    raw: Json = None
    executable_tools: Names = ()
    allowed_tools: Names | None = None

    @classmethod
    def text(
        cls, text: str, *, usage: Usage | None = None, finish_reason: FinishReason = "stop", tools: Iterable[str] = ()
    ) -> ModelTurn:
        """A turn that says `text`; `tools` were advertised."""
        return cls(
            content=(TextPart(text=text),),
            usage=usage,
            finish_reason=finish_reason,
            executable_tools=tuple(_in_order(tools)),
        )

    @classmethod
    def calls(
        cls,
        *calls: ToolCallPart,
        tools: Iterable[str],
        allowed: Iterable[str] | None = None,
        usage: Usage | None = None,
    ) -> ModelTurn:
        """A turn that makes `calls`; `tools` were advertised and `allowed` of them permitted (left out: all)."""
        return cls(
            content=calls,
            usage=usage,
            finish_reason="toolCalls",
            executable_tools=tuple(_in_order(tools)),
            allowed_tools=None if allowed is None else tuple(_in_order(allowed)),
        )


class InvalidToolCallContext(Value):
    """A call that the model cannot make. `history` ends with the untouched turn that makes it."""

    tool_name: str
    call_id: str
    args: dict[str, Any] | str
    reason: InvalidCallReason
    available_tools: tuple[str, ...]
    allowed_tools: tuple[str, ...]
    tool_choice: ToolChoice | None = None
    history: list[Message]


class InvalidToolCallAction(Value):
    """What becomes of an invalid call.

    `fail` and `stop` end the run; `retry` asks the model again with `feedback`; `repair` renames the call to
    `tool_name`; `skip` answers it with `reason` and runs nothing of the turn.
    """

    action: Literal["fail", "retry", "repair", "skip", "stop"]
    feedback: str | None = None
    tool_name: str | None = None
    reason: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> InvalidToolCallAction:
        if self.action == "repair" and self.tool_name is None:
            raise ValueError("The action 'repair' needs 'toolName', the name of the tool to call instead")
        return self

    @classmethod
    def fail(cls) -> InvalidToolCallAction:
        """Ends the run with `UnknownToolCall`."""
        return cls(action="fail")

    @classmethod
    def retry(cls, feedback: str | None = None) -> InvalidToolCallAction:
        """Asks the model again; it reads `feedback`, or the list of tools, as the call's result."""
        return cls(action="retry", feedback=feedback)

    @classmethod
    def repair(cls, tool_name: str) -> InvalidToolCallAction:
        """Calls `tool_name` instead."""
        return cls(action="repair", tool_name=tool_name)

    @classmethod
    def skip(cls, reason: str | None = None) -> InvalidToolCallAction:
        """Answers the call with `reason`."""
        return cls(action="skip", reason=reason)

    @classmethod
    def stop(cls, reason: str | None = None) -> InvalidToolCallAction:
        """Ends the run with `Cancelled`."""
        return cls(action="stop", reason=reason)


class RunEntry(Value):
    """A host's own record inside a run: order kept, not interpreted, never sent to the model."""

    kind: str
    turn: int
    value: JsonValue

    @model_serializer(mode="wrap")
    def _keep_null(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        fields["value"] = self.value
        return fields


class RunResult(Value):
    """What a finished run came to. `messages` are its own, never the history that it was given.

    `best_effort`: an output schema was asked for, and this is not valid for it, nor was there a try left.
    """

    output: str
    content: tuple[Part, ...]
    messages: tuple[Message, ...]
    usage: Usage
    model_calls: tuple[ModelCall, ...]
    best_effort: bool = False


class Failure(Value):
    """Why a run failed, as it is kept in the document. The history is not in it: a failed run's own is closed."""

    kind: str
    message: str
    data: dict[str, Any]

    @classmethod
    def of(cls, error: SojournError) -> Failure:
        """What is kept of `error`."""
        data = {key: value for key, value in error.data.items() if key != "kind"}
        return cls(kind=error.kind, message=error.message, data=data)

    def info(self) -> ErrorInfo:
        """The failure as clients see it."""
        return ErrorInfo(kind=self.kind, message=self.message, retryable=self.data.get("retryable"))


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model for the answer to `prompt`, with `history` before it; feed it to `model_response`."""

    prompt: Message
    history: list[Message]
    turn: int


@dataclass(frozen=True, slots=True)
class PendingToolCall:
    """A call that is owed a result. With `preresolved_result`: answer with that very result, execute nothing."""

    call: ToolCallPart
    preresolved_result: ToolResultMessage | None = None


@dataclass(frozen=True, slots=True)
class CallTools:
    """Execute the calls (in the order of their making); feed the results, all or some, to `tool_results`."""

    calls: tuple[PendingToolCall, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The run has its result."""

    result: RunResult


Step = CallModel | CallTools | Done


@dataclass(frozen=True, slots=True)
class Failed:
    """The run has failed (of `peek`), or would fail at the next step."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Continue:
    """The turn is taken; go on with `next_step`."""


@dataclass(frozen=True, slots=True)
class NeedsResolution:
    """The model made a call that it cannot make; decide with `resolve_invalid_tool_call`."""

    context: InvalidToolCallContext


@dataclass(frozen=True, slots=True)
class TurnRetried:
    """The turn was answered with feedback; `next_step` asks the model again."""


Outcome = Continue | NeedsResolution | TurnRetried
Owed = Step | NeedsResolution | Failed


def step_to_wire(owed: Owed) -> dict[str, Any]:
    """What a run owes or came to, in the form that `run/step` answers."""
    match owed:
        case CallModel(prompt, history, turn):
            return {
                "type": "callModel",
                "prompt": prompt.wire(),
                "history": [message.wire() for message in history],
                "turn": turn,
            }
        case CallTools(calls):
            return {"type": "callTools", "calls": [_pending_to_wire(pending) for pending in calls]}
        case NeedsResolution(context):
            return {"type": "needsResolution", "context": context.wire()}
        case Failed(failure):
            return {"type": "failed", "error": failure.info().wire()}
    wire = owed.result.wire()
    if not owed.result.best_effort:
        del wire["bestEffort"]
    return {"type": "done", "result": wire}


def _pending_to_wire(pending: PendingToolCall) -> dict[str, Any]:
    call = pending.call
    wire: dict[str, Any] = {"call": {"id": call.id, "name": call.name, "arguments": call.arguments}}
    if pending.preresolved_result is not None:
        wire["preresolvedResult"] = pending.preresolved_result.wire()
    return wire
