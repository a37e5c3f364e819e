"""What an agent is to its clients: its config, its state as shown, what a pass came to, what waits for it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictFloat, StrictInt, field_validator

from . import rules
from .approvals import Approval, Policy
from .messages import InputPart, Message, Usage
from .servers import McpServer, ServerName
from .values import Json, Value

AgentState = Literal["idle", "running", "waiting", "paused", "interrupted"]
WaitingFor = Literal["approval", "tool", "model"]
OnApproval = Literal["wait", "pause", "deny"]
Cause = Literal["prompt", "resume", "inbox", "child", "step"]
EndReason = Literal["done", "paused", "stopped", "maxTurns", "failed", "interrupted"]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""An id that a client may choose. Never used as a path, always safe as one."""
ClientId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


def _is_rule(key: str) -> str:
    rules.parse(key)
    return key


RuleKey = Annotated[str, AfterValidator(_is_rule)]
"""Which calls an approval rule is about: `*`, a tool's name, or `NAME: PATTERN` (core/rules.py)."""


class Limits(Value):
    """Limits of one run by name; absent = none. Reaching one pauses or refuses with that name."""

    tokens: StrictInt | None = Field(default=None, ge=1)
    cost: StrictFloat | None = Field(default=None, gt=0)
    wall_clock_s: StrictFloat | None = Field(default=None, gt=0)
    approval_s: StrictFloat | None = Field(default=None, gt=0)
    children: StrictInt | None = Field(default=None, ge=0)
    depth: StrictInt | None = Field(default=None, ge=0)
    result_bytes: StrictInt | None = Field(default=None, ge=1)


class AgentConfig(Value):
    """How an agent behaves. Every field may be left out; `effective` values are filled in when a run starts."""

    preset: str | None = None
    system_prompt: str | None = None
    model: str | None = None
    tools: tuple[str, ...] | None = None
    max_turns: StrictInt | None = Field(default=None, ge=0, le=1_000_000)
    pause_on_pending: StrictBool | None = None
    on_restart: Literal["pause", "resume"] | None = None
    on_inbox_idle: Literal["wait", "resume"] | None = None
    on_approval: OnApproval | None = None
    on_approval_unattended: OnApproval | None = None
    jobs_on_stop: Literal["keep", "stop"] | None = None
    approvals: dict[RuleKey, Policy] | None = None
    limits: Limits | None = None
    sampling: dict[str, Any] | None = None
    compact_at: StrictFloat | None = Field(default=None, ge=0, le=1)
    cwd: str | None = None
    mcp_servers: dict[ServerName, McpServer] | None = None

    @field_validator("mcp_servers")
    @classmethod
    def _whole(cls, servers: dict[str, McpServer] | None) -> dict[str, McpServer] | None:
        for name, server in (servers or {}).items():
            for key, message in server.faults():
                raise ValueError(f"server {name!r}, {key!r}: {message}")
        return servers

    def over(self, base: AgentConfig) -> AgentConfig:
        """This config on top of `base`: what is set here wins, `approvals`, `limits` and `sampling` key by key."""
        merged = base.model_dump(exclude_none=True)
        for key, value in self.model_dump(exclude_none=True).items():
            old = merged.get(key)
            merged[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        return AgentConfig.model_validate(merged)


DEFAULT_MAX_TURNS = 25


class Parent(Value):
    """The call of another agent that an agent works for."""

    agent_id: str
    tool_call_id: str


class Agent(Value):
    """An agent as clients see it. Counts are of what is open now.

    `damage`: what of its record in the store cannot be read; only lists and `agent/changed` show such an agent.
    """

    agent_id: str
    title: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    state: AgentState = "idle"
    waiting_for: WaitingFor | None = None
    active_run_id: str | None = None
    needs_reply: bool = False
    config: AgentConfig = Field(default_factory=AgentConfig)
    seq: int = 0
    message_count: int = 0
    pending_calls: int = 0
    approvals: int = 0
    inbox: int = 0
    parent: Parent | None = None
    usage: Usage = Field(default_factory=Usage)
    created_at: str
    updated_at: str
    damage: str | None = None


class PendingCall(Value):
    """A call whose tool answered with a placeholder. `answered`: its real result waits in the inbox."""

    call_id: str
    tool_name: str
    args: dict[str, Any]
    since: str
    placeholder: tuple[InputPart, ...]
    answered: bool = False


class Job(Value):
    """A process that outlives the call that started it, and the daemon.

    `outcome` tells how it ended: `exited` (with an `exitCode`, or by a `signal`), `stopped`, `timedOut`, `notStarted`,
    or `lost` when the process that watched over it was killed. `delivered`: as what its result reached the agent.
    """

    job_id: str
    agent_id: str
    call_id: str
    tool_name: str
    command: str
    cwd: str | None = None
    state: Literal["running", "ended"]
    since: str
    ended_at: str | None = None
    outcome: Literal["exited", "stopped", "timedOut", "notStarted", "lost"] | None = None
    exit_code: int | None = None
    signal: int | None = None
    stopped_by: str | None = None
    output_bytes: int = 0
    delivered: Literal["result", "message", "nowhere"] | None = None


class Origin(Value):
    """Who caused something: the client and its request, where they gave names."""

    client_id: str | None = None
    request_id: str | None = None


class InboxItem(Value):
    """Something that reached an agent from outside its run: durable before it is acknowledged."""

    item_id: str
    kind: Literal["message", "result", "rejection"]
    content: tuple[InputPart, ...] | None = None
    error: str | None = None
    call_id: str | None = None
    at: str
    origin: Origin = Field(default_factory=Origin)


class ErrorInfo(Value):
    """Why a run failed, in the words of whoever knows."""

    kind: str
    message: str
    retryable: bool | None = None
    provider: str | None = None
    status: int | None = None


class ModelCall(Value):
    """One answered model call of a run, rejected turns included (they were billed).

    `raw` is the provider's body, kept only by runs that were asked to.
    """

    index: int
    usage: Usage = Field(default_factory=Usage)
    finish_reason: str | None = None
    message_id: str | None = None
    response_id: str | None = None
    request_id: str | None = None
    raw: Json = None


class RunOutcome(Value):
    """What a pass came to: the answer to `agent/prompt`, `agent/resume` and `agent/wait`.

    `bestEffort`: an output schema was asked for, and `output` is not valid for it, nor was there a try left.
    """

    agent_id: str
    run_id: str
    reason: EndReason
    output: str = ""
    content: tuple[Any, ...] = ()
    messages: tuple[Message, ...] = ()
    model_calls: tuple[ModelCall, ...] = ()
    pending_calls: tuple[PendingCall, ...] = ()
    approvals: tuple[Approval, ...] = ()
    usage: Usage = Field(default_factory=Usage)
    error: ErrorInfo | None = None
    best_effort: Literal[True] | None = None
    first_seq: int
    last_seq: int


class Caller(Value):
    """On whose behalf something is done: the client, and what makes a repeated request recognisable.

    `body_sha256` is the hash of method and params without `requestId` and `_meta`; set whenever `request_id` is.
    """

    client_id: str | None = None
    request_id: str | None = None
    body_sha256: str | None = None
    cwd: str | None = None

    @property
    def origin(self) -> Origin:
        """The caller as events and inbox items show it."""
        return Origin(client_id=self.client_id, request_id=self.request_id)


class Accepted(Value):
    """What a prompt that does not wait is answered: the run that took it, or the inbox item that it became."""

    agent_id: str | None = None
    run_id: str | None = None
    item_id: str | None = None
