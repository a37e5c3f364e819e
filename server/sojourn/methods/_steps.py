"""What a hand-driven run owes and takes, in wire form: steps, and what `run/step` may be fed with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StrictBool, model_validator

from sojourn.core.agent import ErrorInfo, ModelCall
from sojourn.core.messages import FinishReason, Message, Part, ToolChoice, ToolResultMessage, Usage
from sojourn.core.values import Value

from ._fields import Id, ModelContent, ResultContent, needs

RunState = Literal[
    "preparing", "awaiting_model", "resolving_calls", "awaiting_advance", "executing_tools", "done", "failed"
]


class StepCall(Value):
    """A call as its driver executes it."""

    id: str
    name: str
    arguments: dict[str, Any]


class PendingToolCall(Value):
    """A call that is owed a result. With `preresolvedResult`: answer with that very result, execute nothing."""

    call: StepCall
    preresolved_result: ToolResultMessage | None = None


class InvalidCall(Value):
    """A call that the model cannot make, and what it could have called."""

    tool_name: str
    call_id: str
    args: dict[str, Any] | str
    reason: Literal["unknown_tool", "disallowed_by_tool_choice", "malformed_arguments"]
    available_tools: tuple[str, ...]
    allowed_tools: tuple[str, ...]
    tool_choice: ToolChoice | None = None
    history: tuple[Message, ...]


class RunResult(Value):
    """What a finished run came to. `messages` are its own, never the history it was given."""

    output: str
    content: tuple[Part, ...] = ()
    messages: tuple[Message, ...] = ()
    usage: Usage = Field(default_factory=Usage)
    model_calls: tuple[ModelCall, ...] = ()


class CallModelStep(Value):
    """Ask the model with `history` and `prompt`; feed the answer as `modelResponse`."""

    type: Literal["callModel"] = "callModel"
    prompt: Message
    history: tuple[Message, ...]
    turn: int


class CallToolsStep(Value):
    """Execute the calls; feed the results as `toolResults`, in any order, all or some."""

    type: Literal["callTools"] = "callTools"
    calls: tuple[PendingToolCall, ...]


class NeedsResolutionStep(Value):
    """The model made a call that it cannot make; feed a `resolution`."""

    type: Literal["needsResolution"] = "needsResolution"
    context: InvalidCall


class DoneStep(Value):
    """The run is done."""

    type: Literal["done"] = "done"
    result: RunResult


class FailedStep(Value):
    """The run has failed."""

    type: Literal["failed"] = "failed"
    error: ErrorInfo


Step = Annotated[
    CallModelStep | CallToolsStep | NeedsResolutionStep | DoneStep | FailedStep,
    Discriminator("type"),
]


class ModelResponse(Value):
    """A model's turn, and the names of the tools that it was told of and was allowed to call."""

    content: ModelContent
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    executable_tools: tuple[str, ...]
    allowed_tools: tuple[str, ...]
    response_id: str | None = None
    provider_request_id: str | None = None


class StepResult(Value):
    """The result of one call."""

    call_id: Id
    content: ResultContent
    is_error: StrictBool = False


class Resolution(Value):
    """What becomes of an invalid call: `retry` needs `feedback`, `repair` needs `toolName`."""

    action: Literal["fail", "retry", "repair", "skip", "stop"]
    feedback: str | None = None
    tool_name: str | None = None
    reason: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> Resolution:
        said = f"The action is {self.action!r}"
        needs(self.action != "retry" or self.feedback, f"{said}; it needs 'feedback'.", field="resolution.feedback")
        needs(self.action != "repair" or self.tool_name, f"{said}; it needs 'toolName'.", field="resolution.toolName")
        return self
