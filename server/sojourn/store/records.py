"""The rows: one mutable dataclass a table, the same for every store. Bodies are JSON text.

A field's Python type is its column's: `str` TEXT, `int` INTEGER, `bool` INTEGER 0/1, `float` REAL, `| None` nullable.
`schema/*.sql` holds the same tables for SQLite; the conformance suite compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import compress
from operator import attrgetter, ne
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Table:
    """A table's name, its primary key, its unique sets (rows with a None in the set are free) and its large columns.

    `bodies` are JSON text columns that may be large: strings of 4 KiB and more inside a body above 64 KiB, and all
    image data, are kept once each, by SHA-256, outside the row.
    `unique_when` restricts a unique set to the rows whose column has that value.
    """

    name: str
    key: tuple[str, ...]
    unique: tuple[tuple[str, ...], ...] = ()
    unique_when: tuple[tuple[tuple[str, ...], str, object], ...] = ()
    bodies: tuple[str, ...] = ()


class Record:
    """A row."""

    TABLE: ClassVar[Table]


def snapshot(record: Record) -> tuple[Any, ...]:
    """What is in a row now, for `changes`."""
    kind: Any = type(record)
    values: tuple[Any, ...] = _values(kind)[1](record)
    return values


def changes(record: Record, before: tuple[Any, ...]) -> tuple[str, ...]:
    """The fields that are no longer as they were in the snapshot `before`."""
    kind: Any = type(record)
    names, values = _values(kind)
    now = values(record)
    return () if now == before else tuple(compress(names, map(ne, now, before)))


@lru_cache(maxsize=64)
def _values(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    names = tuple(field.name for field in fields(kind))
    return names, attrgetter(*names)


@dataclass(slots=True)
class AgentRecord(Record):
    """An agent: what is known of it without reading its conversation."""

    TABLE: ClassVar[Table] = Table("agents", ("agent_id",))

    agent_id: str
    created_at: str
    updated_at: str
    activity: int
    """A number that grows with every change in the store; the order of `agent/list`."""
    conversation: str
    """The id under which its messages stand; changes with `agent/replaceMessages`."""
    config: str = "{}"
    title: str | None = None
    labels: str = "{}"
    state: str = "idle"
    waiting_for: str | None = None
    active_run_id: str | None = None
    needs_reply: bool = False
    last_seq: int = 0
    message_count: int = 0
    next_message: int = 1
    """The number of the next message id, `msg-<n>`; grows also for messages that were begun and lost."""
    pending_calls: int = 0
    approvals: int = 0
    inbox: int = 0
    next_item: int = 1
    parent_agent_id: str | None = None
    parent_call_id: str | None = None
    usage: str = '{"inputTokens":0,"outputTokens":0}'
    deleted: bool = False
    epoch: int = 0
    """Fences writers once several daemons share a store; constant with SQLite."""


@dataclass(slots=True)
class MessageRecord(Record):
    """A message at a gapless position (from 1) of a conversation."""

    TABLE: ClassVar[Table] = Table(
        "messages", ("conversation", "position"), unique=(("conversation", "message_id"),), bodies=("body",)
    )

    conversation: str
    position: int
    message_id: str
    role: str
    body: str


@dataclass(slots=True)
class EventRecord(Record):
    """An event. `body` is its JSON, or empty when it is a nested one: then it is the event `ref_seq` of `ref_agent_id`
    (which may be nested itself), inside the call `ref_call_id`."""

    TABLE: ClassVar[Table] = Table("events", ("agent_id", "seq"), bodies=("body",))

    agent_id: str
    seq: int
    at: str
    body: str
    run_id: str | None = None
    origin: str | None = None
    ref_agent_id: str | None = None
    ref_seq: int | None = None
    ref_call_id: str | None = None


@dataclass(slots=True)
class RunRecord(Record):
    """A run: the machine without its history, and where its pass stands."""

    TABLE: ClassVar[Table] = Table(
        "runs",
        ("run_id",),
        unique_when=((("agent_id",), "active", True),),
        bodies=("machine", "outcome"),
    )

    run_id: str
    agent_id: str | None
    conversation: str
    base: int
    """How many messages of the conversation are the run's input history (the rest are its own)."""
    created_at: str
    updated_at: str
    state: str
    revision: int = 0
    machine: str = "{}"
    turn: int = 0
    max_turns: int = 1
    usage: str = "{}"
    active: bool = False
    """The agent's unfinished run (at most one an agent): a pass is open, or it can be resumed."""
    pass_open: bool = False
    driver: str | None = None
    """Who drives the open pass: `agent` (the loop), `step` (a client), or nobody."""
    cause: str | None = None
    pass_first_seq: int = 0
    pass_first_message: int = 0
    """The position before the pass's first message."""
    streaming_message: str | None = None
    """The message id of the model call under way."""
    crashes: int = 0
    stop_requested: bool = False
    on_approval: str | None = None
    origin: str | None = None
    nested_agent_id: str | None = None
    nested_call_id: str | None = None
    """The parent's call inside which this run's events are shown, while it is a foreground child."""
    outcome: str | None = None
    """The last pass's RunOutcome without messages."""


@dataclass(slots=True)
class ModelCallRecord(Record):
    """One answered model call of a run."""

    TABLE: ClassVar[Table] = Table("model_calls", ("run_id", "position"))

    run_id: str
    position: int
    body: str


@dataclass(slots=True)
class EntryRecord(Record):
    """A host's own record inside a run; never sent to the model."""

    TABLE: ClassVar[Table] = Table("entries", ("run_id", "position"), bodies=("value",))

    run_id: str
    position: int
    kind: str
    turn: int
    value: str


@dataclass(slots=True)
class CallRecord(Record):
    """A tool call and how far it is. `owner` is the agent, or the run when it has none.

    `state`: `proposed`, `preresolved`, `awaiting_approval`, `approved`, `denied`, `dispatched`, `returned`, `pending`,
    `resolved`, `failed`, `interrupted`.
    """

    TABLE: ClassVar[Table] = Table("calls", ("owner", "call_id"), bodies=("args", "result", "placeholder"))

    owner: str
    call_id: str
    run_id: str
    position: int
    tool_name: str
    args: str
    args_sha256: str
    state: str
    since: str
    on_interrupt: str = "fail"
    message_id: str | None = None
    result: str | None = None
    """Its result as JSON `{content, isError, pending}` once it returned."""
    placeholder: str | None = None
    client_id: str | None = None
    """The client that runs the tool, for client tools."""
    sent: bool = False
    """Whether a client tool's call was ever handed to its owner."""
    child_agent_id: str | None = None
    answered_by: str | None = None
    answered_at: str | None = None
    read_at: str | None = None
    """When its real result was read from the inbox (pending calls)."""


@dataclass(slots=True)
class InboxRecord(Record):
    """An inbox item. `state`: `unread`, `read`, `dropped`, `removed`. One queued answer per call."""

    TABLE: ClassVar[Table] = Table(
        "inbox",
        ("agent_id", "position"),
        unique=(("item_id",),),
        unique_when=((("agent_id", "call_id"), "state", "unread"),),
        bodies=("body",),
    )

    agent_id: str
    position: int
    item_id: str
    kind: str
    body: str
    """The InboxItem in wire form."""
    at: str
    state: str = "unread"
    call_id: str | None = None
    run_id: str | None = None
    """The run that read it."""
    is_prompt: bool = False
    """A queued prompt: when still unread at the end of a pass it starts one of its own (D7)."""


@dataclass(slots=True)
class ApprovalRecord(Record):
    """An approval, `body` in wire form. One per call."""

    TABLE: ClassVar[Table] = Table("approvals", ("approval_id",), unique=(("agent_id", "call_id"),), bodies=("body",))

    approval_id: str
    agent_id: str
    run_id: str
    call_id: str
    since: str
    body: str
    decided: bool = False
    expires_at: str | None = None


@dataclass(slots=True)
class RequestRecord(Record):
    """A mutating request that carried a `requestId`, and its answer."""

    TABLE: ClassVar[Table] = Table("requests", ("client_id", "request_id"), bodies=("answer",))

    client_id: str
    request_id: str
    body_sha256: str
    at: str
    answer: str | None = None
    """The result as JSON, once there is one."""
    agent_id: str | None = None
    run_id: str | None = None
    item_id: str | None = None


@dataclass(slots=True)
class ClientToolRecord(Record):
    """A tool that a client registered; `scope` is an agent id or `*`."""

    TABLE: ClassVar[Table] = Table("client_tools", ("scope", "name"), bodies=("body",))

    scope: str
    name: str
    client_id: str
    body: str


@dataclass(slots=True)
class JobRecord(Record):
    """A process that outlives the tool call that started it, and the daemon."""

    TABLE: ClassVar[Table] = Table("jobs", ("job_id",), bodies=("body",))

    job_id: str
    agent_id: str
    call_id: str
    state: str
    since: str
    body: str = "{}"


@dataclass(slots=True)
class MetaRecord(Record):
    """A named value of the store itself, e.g. `store_id`."""

    TABLE: ClassVar[Table] = Table("meta", ("name",))

    name: str
    value: str


TABLES: tuple[type[Record], ...] = (
    AgentRecord,
    MessageRecord,
    EventRecord,
    RunRecord,
    ModelCallRecord,
    EntryRecord,
    CallRecord,
    InboxRecord,
    ApprovalRecord,
    RequestRecord,
    ClientToolRecord,
    JobRecord,
    MetaRecord,
)
INDEXES: dict[str, tuple[tuple[str, ...], ...]] = {
    "agents": (("parent_agent_id", "deleted", "activity"), ("state",)),
    "runs": (("agent_id", "created_at"), ("active", "pass_open"), ("created_at",)),
    "calls": (("run_id", "position"), ("owner", "state"), ("client_id", "state")),
    "inbox": (("agent_id", "state", "position"), ("state",)),
    "approvals": (("agent_id", "decided"), ("decided", "since")),
    "requests": (("at",),),
    "jobs": (("state",),),
}
"""Columns that queries use besides keys and unique sets."""
