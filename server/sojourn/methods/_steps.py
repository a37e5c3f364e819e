"""What a hand-driven run owes and takes, in wire form: steps, and what `run/step` may be fed with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StrictBool, model_validator

from sojourn.core.agent import ErrorInfo, ModelCall
from sojourn.core.messages import Message, Part, ToolResultMessage, Usage
from sojourn.core.run import InvalidToolCallContext, ModelTurn
from sojourn.core.values import Value

from ._fields import Id, ModelContent, ResultContent, needs

RunState = Literal[
    "preparing", "awaiting_model", "resolving_calls", "awaiting_advance", "executing_tools", "done", "failed"
]


class StepCall(Value):
    """A call as its driver executes it."""

    id: str
    name: str
    arguments: dict[str, Any] | str


class PendingToolCall(Value):
    """A call that is owed a result. With `preresolvedResult`: answer with that very result, execute nothing."""

    call: StepCall
    preresolved_result: ToolResultMessage | None = None


class RunResult(Value):
    """What a finished run came to. `messages` are its own, never the history it was given.

    `bestEffort`: the output is not valid for the schema that was asked for, and no try was left.
    """

    output: str
    content: tuple[Part, ...] = ()
    messages: tuple[Message, ...] = ()
    usage: Usage = Field(default_factory=Usage)
    model_calls: tuple[ModelCall, ...] = ()
    best_effort: Literal[True] | None = None


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
    context: InvalidToolCallContext


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


class ModelResponse(ModelTurn):
    """A model's turn, and the names of the tools that it was told of (`executableTools`) and was allowed to call.

    `allowedTools` left out = all of them. Some providers' words are understood as `finishReason`.
    """

    content: ModelContent


class StepResult(Value):
    """The result of one call."""

    call_id: Id
    content: ResultContent
    is_error: StrictBool = False


class Resolution(Value):
    """What becomes of an invalid call; `repair` needs `toolName`."""

    action: Literal["fail", "retry", "repair", "skip", "stop"]
    feedback: str | None = None
    tool_name: str | None = None
    reason: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> Resolution:
        wanted = self.action != "repair" or self.tool_name
        needs(wanted, "The action 'repair' needs 'toolName', the tool to call instead.", field="resolution.toolName")
        return self
