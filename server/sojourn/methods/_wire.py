"""What the daemon says by itself: its notifications, and its requests to clients.

Docs and clients are typed from the two tables at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, model_validator

from sojourn.core.agent import Agent, Origin
from sojourn.core.approvals import Approval
from sojourn.core.events import Event
from sojourn.core.values import Value

from ._fields import ResultContent, needs


class EventParams(Value):
    """An event of an agent that this connection is attached to.

    `seq` is absent on live events (deltas and progress); `replayed` marks what was stored before the client attached.
    """

    agent_id: str
    run_id: str | None = None
    seq: int | None = None
    at: str
    origin: Origin | None = None
    replayed: Literal[True] | None = None
    event: Event


class AgentChanged(Value):
    """An agent as it is now, or `deleted` with the id of one that is gone. Unnumbered; several changes may be one."""

    agent: Agent | None = None
    agent_id: str | None = None
    deleted: Literal[True] | None = None


class Resync(Value):
    """This client was too slow and its live events were dropped: attach again from the last `seq` it saw."""

    agent_id: str
    seq: int


class ServerState(Value):
    """The daemon's own state has changed."""

    state: Literal["ready", "draining", "degraded"]
    reason: str | None = None


class ExecuteParams(Value):
    """A call of a tool that this client registered."""

    agent_id: str
    run_id: str
    call_id: str
    name: str
    arguments: dict[str, Any]


class ExecuteResult(Value):
    """The call's result; `pending` marks a placeholder, whose real result comes through `inbox/resolve`."""

    content: ResultContent
    is_error: StrictBool = False
    pending: StrictBool = False


class ApprovalQuestion(Value):
    """A call that waits for a decision."""

    approval: Approval


class DecisionFields(Value):
    """A decision, as `approval/decide` takes it and `approval/request` is answered with.

    `scope`: it counts `once`, for the rest of the `run`, or for the `agent` for good. A lasting one makes the approval
    rule that the approval names as `covers`; with `pattern` the rule `TOOL: PATTERN`.
    """

    decision: Literal["approve", "deny", "edit", "answer", "abort"]
    arguments: dict[str, Any] | None = None
    content: ResultContent | None = None
    reason: str | None = None
    scope: Literal["once", "run", "agent"] | None = None
    pattern: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> DecisionFields:
        edits, answers = self.decision == "edit", self.decision == "answer"
        said = f"The decision is {self.decision!r}"
        needs(edits or self.arguments is None, f"{said}; 'arguments' belong to 'edit' only.", field="arguments")
        needs(not edits or self.arguments is not None, f"{said}; it needs 'arguments'.", field="arguments")
        needs(answers or self.content is None, f"{said}; 'content' belongs to 'answer' only.", field="content")
        needs(not answers or self.content is not None, f"{said}; it needs 'content'.", field="content")
        return self


class ApprovalAnswer(DecisionFields):
    """The client's decision. The first valid one from anywhere wins; an error or silence decides nothing."""


@dataclass(frozen=True, slots=True)
class DaemonRequest:
    """A request that the daemon sends: the models of its params and of the client's result."""

    params: type[Value]
    result: type[Value]
    doc: str


NOTIFICATIONS: dict[str, type[Value]] = {
    "agent/event": EventParams,
    "agent/changed": AgentChanged,
    "agent/resync": Resync,
    "server/state": ServerState,
}
"""The daemon's notifications by name; a model's docstring is the notification's documentation."""

REQUESTS: dict[str, DaemonRequest] = {
    "tool/execute": DaemonRequest(
        ExecuteParams,
        ExecuteResult,
        "Asks the newest connection of a tool's owner to run it. While the owner is away, or silent for "
        "`clientToolWaitS`, the call becomes pending; the owner's later answer still counts.",
    ),
    "approval/request": DaemonRequest(
        ApprovalQuestion,
        ApprovalAnswer,
        "Asks a client that is attached to the agent or an ancestor for a decision, also right after attaching. The "
        "first valid answer from anywhere wins, the others get `$/cancelRequest`.",
    ),
}
"""The daemon's requests by name, to clients that declared them in `initialize`; their ids are integers from 2^30 up."""
