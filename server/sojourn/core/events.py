"""The closed union of events, in the order in which a pass emits them.

Every event is committed before anyone hears of it and then has a `seq` (per agent, from 1, gapless, never reset),
except the live ones: `messageDelta`, `toolExecProgress`, and a `nested` around one of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, SerializerFunctionWrapHandler, TypeAdapter, model_serializer

from .agent import AgentConfig, Cause, EndReason, ErrorInfo, InboxItem, PendingCall
from .approvals import Approval
from .messages import FinishReason, InputPart, Message, Usage
from .values import Json, Value

DeltaKind = Literal["text", "reasoning", "toolArguments"]


class ToolResult(Value):
    """A tool's result as events show it."""

    content: tuple[InputPart, ...]
    is_error: bool = False
    pending: bool = False


class AgentStart(Value):
    """A pass begins. Exactly one `agentEnd` follows, the last event of the pass."""

    type: Literal["agentStart"] = "agentStart"
    cause: Cause


class TurnStart(Value):
    """A model call and the tool round it asks for begin; `turn` counts from 1 in its run."""

    type: Literal["turnStart"] = "turnStart"
    turn: int


class ContextBudget(Value):
    """How full the model's window is by estimate, in tokens; `window_tokens` is null when unknown."""

    type: Literal["contextBudget"] = "contextBudget"
    used_tokens: int
    window_tokens: int | None
    reserved_tokens: int

    @model_serializer(mode="wrap")
    def _keep_null(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        fields["windowTokens"] = self.window_tokens
        return fields


class MessageStart(Value):
    """A message begins; for a streamed one, deltas follow."""

    type: Literal["messageStart"] = "messageStart"
    message_id: str
    role: Literal["system", "user", "assistant", "toolResult", "lateResult", "summary"]


class MessageDelta(Value):
    """A piece of part number `part` of a message. `offset` counts Unicode code points. Not numbered."""

    type: Literal["messageDelta"] = "messageDelta"
    message_id: str
    part: int
    kind: DeltaKind
    offset: int
    text: str


class MessageReset(Value):
    """What was streamed of this message is void; deltas start again at offset 0, if at all."""

    type: Literal["messageReset"] = "messageReset"
    message_id: str
    reason: Literal["retry", "cut", "restart"]


class GenerationStats(Value):
    """What a model call cost. An absent count was not reported by the provider."""

    type: Literal["generationStats"] = "generationStats"
    model: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: float | None = None
    duration_ms: int
    time_to_first_token_ms: int | None = None
    finish_reason: FinishReason


class MessageEnd(Value):
    """The whole message, now part of the conversation."""

    type: Literal["messageEnd"] = "messageEnd"
    message: Message


class ApprovalRequested(Value):
    """A call waits for a decision."""

    type: Literal["approvalRequested"] = "approvalRequested"
    approval: Approval


class ApprovalResolved(Value):
    """A decision was made; `approval.decision` says which and by whom."""

    type: Literal["approvalResolved"] = "approvalResolved"
    approval: Approval


class ToolExecStart(Value):
    """A tool starts; its call was durably marked before."""

    type: Literal["toolExecStart"] = "toolExecStart"
    tool_call_id: str
    tool_name: str
    args: dict[str, Any]


class ToolExecProgress(Value):
    """News from a running tool: a piece of output, or a fraction from 0 to 1. Not numbered."""

    type: Literal["toolExecProgress"] = "toolExecProgress"
    tool_call_id: str
    text: str | None = None
    fraction: float | None = None


class ToolExecEnd(Value):
    """A tool ended; `result.pending` marks a placeholder."""

    type: Literal["toolExecEnd"] = "toolExecEnd"
    tool_call_id: str
    tool_name: str
    result: ToolResult


class ToolResolved(Value):
    """A pending call's real result was read from the inbox."""

    type: Literal["toolResolved"] = "toolResolved"
    tool_call_id: str
    tool_name: str
    result: ToolResult


class TurnEnd(Value):
    """A turn is over: its message and all its results are in the conversation."""

    type: Literal["turnEnd"] = "turnEnd"
    turn: int


class Paused(Value):
    """The pass ends with calls pending or approvals open; `agentEnd{reason: "paused"}` follows."""

    type: Literal["paused"] = "paused"
    pending: tuple[PendingCall, ...]
    approvals: tuple[Approval, ...]


class Warning(Value):
    """Something that a person may want to know; `code` is stable."""

    type: Literal["warning"] = "warning"
    code: str
    message: str
    data: Json = None


class InboxQueued(Value):
    """Something reached the inbox."""

    type: Literal["inboxQueued"] = "inboxQueued"
    item: InboxItem


class InboxRead(Value):
    """An inbox item was read: `delivered` into the conversation, or `dropped` (a `warning` says why)."""

    type: Literal["inboxRead"] = "inboxRead"
    item_id: str
    outcome: Literal["delivered", "dropped"]


class AgentUpdated(Value):
    """The agent's own description changed; only what changed is there."""

    type: Literal["agentUpdated"] = "agentUpdated"
    title: str | None = None
    labels: dict[str, str] | None = None
    config: AgentConfig | None = None
    messages_replaced: int | None = None


class Nested(Value):
    """An event of a child run, inside the call `tool_call_id` that started it. A grandchild's is wrapped twice."""

    type: Literal["nested"] = "nested"
    tool_call_id: str
    event: Event


class AgentEnd(Value):
    """A pass is over. `messages` are those the pass added to the conversation."""

    type: Literal["agentEnd"] = "agentEnd"
    reason: EndReason
    messages: tuple[Message, ...] = ()
    usage: Usage = Field(default_factory=Usage)
    error: ErrorInfo | None = None


Event = Annotated[
    AgentStart
    | TurnStart
    | ContextBudget
    | MessageStart
    | MessageDelta
    | MessageReset
    | GenerationStats
    | MessageEnd
    | ApprovalRequested
    | ApprovalResolved
    | ToolExecStart
    | ToolExecProgress
    | ToolExecEnd
    | ToolResolved
    | TurnEnd
    | Paused
    | Warning
    | InboxQueued
    | InboxRead
    | AgentUpdated
    | Nested
    | AgentEnd,
    Discriminator("type"),
]
Nested.model_rebuild()
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
