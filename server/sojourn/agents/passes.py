"""A pass: what is in memory of an agent's unfinished run while somebody drives it, and what its next move is.

`agents/turns.py`, `rounds.py` and `ending.py` hold the transitions that move it on; each answers a `Todo`, the one
thing that the loop does next. Between two transitions the run in memory equals the run on disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import TypeAdapter

from sojourn.core.agent import AgentConfig, EndReason, ModelCall
from sojourn.core.errors import FormatUnsupported
from sojourn.core.messages import InputPart, Message, TextPart, ToolResultMessage, Usage
from sojourn.core.run import AgentRun, InvalidToolCallAction, PendingToolCall, RunEntry
from sojourn.models.base import Model
from sojourn.store.base import ReadTx
from sojourn.store.records import (
    AgentRecord,
    CallRecord,
    EntryRecord,
    ModelCallRecord,
    RunRecord,
)
from sojourn.tools.base import Tool

from . import clock, stored
from .ledger import Ledger
from .runtime import Conversation, Runtime

if TYPE_CHECKING:
    from .previews import Previews


@dataclass(frozen=True, slots=True)
class AskModel:
    """Send the conversation to the model; its answer will be message `message_id`."""

    message_id: str
    messages: list[Message]
    turn: int


@dataclass(frozen=True, slots=True)
class Compact:
    """The model's window fills: have the conversation summed up, as message `message_id`, before the next turn."""

    message_id: str


@dataclass(frozen=True, slots=True)
class AskHooks:
    """Ask the hooks about the calls of the round, then open it."""

    calls: tuple[PendingToolCall, ...]


@dataclass(frozen=True, slots=True)
class RunTools:
    """Start these (dispatched) calls; then wait for a result or a decision."""

    start: tuple[CallRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing of ours is at work: only a decision moves the run on. It holds no slot and no task."""


@dataclass(frozen=True, slots=True)
class Over:
    """The pass has ended."""

    reason: EndReason


Todo = AskModel | Compact | AskHooks | RunTools | Wait | Over


class Moved(Exception):
    """The run or its agent changed between reading it and the transition: read again."""


@dataclass(slots=True)
class Streamed:
    """What was streamed of the message under way, by part."""

    kind: str
    text: str = ""


@dataclass(slots=True, eq=False)
class Pass:
    """An agent's unfinished run in memory."""

    agent_id: str
    run_id: str
    run: AgentRun
    conversation: Conversation
    config: AgentConfig
    model_name: str
    model: Model
    tools: Mapping[str, Tool]
    compact_at: float = 0
    """How full the model's window may get before the conversation is summed up; 0 = however full."""
    compacted_at: int = 0
    """How long the conversation was when that was last tried."""
    saved_messages: int = 0
    saved_model_calls: int = 0
    saved_entries: int = 0
    entries_seen: int | None = None
    """How many entries had been written to all runs when it last knew its own."""
    bodies: list[bytes] = field(default_factory=list)
    """The pass's own messages as JSON, for `agentEnd`."""
    todo: Todo | None = None
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Tool calls at work in this process."""
    previews: Previews = field(default_factory=dict)
    """What the calls of the last answer would change."""
    in_order: asyncio.Lock = field(default_factory=asyncio.Lock)
    at_work: set[str] = field(default_factory=set)
    """The calls that this life has dispatched and that have not returned: those in `running`, and those that the loop
    is about to start. Many results may be committed before it comes to start anything."""
    starting: set[str] = field(default_factory=set)
    """Child agents that its calls may start and that do not run yet."""
    streamed: dict[int, Streamed] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    ends_at: float | None = None
    """When `limits.wall_clock_s` is over, by the monotonic clock; None without that limit."""
    timed: dict[str, float] = field(default_factory=dict)
    """Of calls whose tool is at work: when their time is over. A call that begins late, since a person let it through
    after the end, gets the limit's time once more."""
    out_of_time: set[str] = field(default_factory=set)
    """Calls that were told to end because it was."""
    left_behind: set[str] = field(default_factory=set)
    """Calls that have a result although their tool, told to end, still works."""
    nudged: bool = False
    """A decision was made: the round must be looked at."""
    loaded: tuple[int, int] | None = None
    """The run's revision and the agent's message count when it was read from disk; None for a run that is new."""
    goes_on: dict[str, str] = field(default_factory=dict)
    """Calls that were stopped and whose work could not be ended, with what is to be said of that."""
    over: bool = False
    """Its pass was ended by somebody else: its driver goes, without another word."""
    leaving: bool = False
    """Its tools are being left: what they still answer is recorded, and moves nothing on."""
    broken: Exception | None = None
    """A result could not be committed: the driver gives up and leaves the run as it is on disk."""
    stop_asked: bool = False
    told: set[str] = field(default_factory=set)
    """What its clients were told of tools that are missing."""
    give_up: Callable[[], None] | None = None
    """Ends the wait for the model call, or what else is under way, without its answer."""
    task: asyncio.Task[None] | None = None
    nest: tuple[tuple[str, str], ...] = ()
    """Inside which calls the run is shown, innermost first."""
    noted: list[RunEntry] = field(default_factory=list)
    """The run's entries as hooks last read them."""
    offered: tuple[str, ...] | None = None
    """The names of the tools that hooks left for the model call under way; None = all."""
    resolutions: list[InvalidToolCallAction | None] = field(default_factory=list)
    """What hooks said about the invalid calls of the answer that is taken next, in order; None = nothing."""
    _saving: Ledger | None = None
    _saved_usage: Usage | None = None

    def ask_to_stop(self) -> None:
        """Tells the driver to stop the run where it stands."""
        self.stop_asked = True
        self.wake.set()
        if self.give_up is not None:
            self.give_up()

    def count_time(self, begun: str) -> None:
        """Works out when the time of the run, which began at `begun`, is over."""
        limits = self.config.limits
        if limits is not None and limits.wall_clock_s is not None:
            self.ends_at = time.monotonic() + limits.wall_clock_s - clock.seconds_since(begun)

    def time_call(self, call_id: str) -> None:
        """A call begins: notes when its time will be over."""
        left = self.seconds_left
        if left is not None and self.config.limits is not None:
            self.timed[call_id] = time.monotonic() + (left or self.config.limits.wall_clock_s or 0.0)

    @property
    def seconds_left(self) -> float | None:
        """Of the time of the run, 0 when it is over; None when that is not limited."""
        return None if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())

    def records(self, ledger: Ledger) -> tuple[AgentRecord, RunRecord]:
        """The rows of the agent and of the run within a transition."""
        return ledger.rows(self.agent_id, self.run_id)

    def check_current(self, ledger: Ledger) -> None:
        """Raises `Moved` when the run went on since it was read from disk."""
        agent, record = self.records(ledger)
        if self.loaded is not None and self.loaded != (record.revision, agent.message_count):
            raise Moved

    def save(self, ledger: Ledger) -> list[tuple[Message, bytes]]:
        """Writes what the run has grown by: new messages (answered with their JSON), model calls, entries.

        The machine follows at the end of the transition, once, however often this is called in it.
        """
        agent, record = self.records(ledger)
        run = self.run
        fresh = self._save_messages(ledger, agent) if len(run.messages) > self.saved_messages else []
        if len(run.model_calls) > self.saved_model_calls or len(run.entries) > self.saved_entries:
            self._save_extras(ledger)
        if self._saving is not ledger:
            self._saving = ledger
            record.revision += 1
            ledger.save_run(record)
            ledger.at_last(lambda: self._save_record(record))
        return fresh

    def _save_messages(self, ledger: Ledger, agent: AgentRecord) -> list[tuple[Message, bytes]]:
        agent.next_message = self.run.label_messages(agent.next_message, ledger.now)
        fresh: list[tuple[Message, bytes]] = []
        for message in self.run.messages[self.saved_messages :]:
            body = ledger.append_message(agent, message)
            self.conversation.add(message, body)
            self.bodies.append(body)
            fresh.append((message, body))
        self.saved_messages += len(fresh)
        agent.needs_reply = fresh[-1][0].role != "assistant"
        return fresh

    def _save_extras(self, ledger: Ledger) -> None:
        run = self.run
        while self.saved_model_calls < len(run.model_calls):
            call = run.model_calls[self.saved_model_calls]
            ledger.tx.insert(ModelCallRecord(self.run_id, call.index, call.json_bytes().decode()), later=True)
            self.saved_model_calls += 1
        while self.saved_entries < len(run.entries):
            insert_entry(ledger, self.run_id, self.saved_entries, run.entries[self.saved_entries])
            self.saved_entries += 1

    def sync_entries(self, ledger: Ledger) -> None:
        """Takes in the entries that others wrote meanwhile (decisions, `run/appendEntry`)."""
        if self.entries_seen == ledger.entries.written:
            return
        self.entries_seen = ledger.entries.written
        for entry in read_entries(ledger.tx, self.run_id, after=self.saved_entries - 1):
            self.run.entries.append(entry)
            self.saved_entries += 1

    def _save_record(self, record: RunRecord) -> None:
        record.machine = self.run.machine()
        record.state, record.turn, record.max_turns = self.run.state, self.run.turn, self.run.turn_limit
        if self.run.usage is not self._saved_usage:
            self._saved_usage = self.run.usage
            record.usage = self.run.usage.json_bytes().decode()
        self._saving = None


def insert_entry(ledger: Ledger, run_id: str, position: int, entry: RunEntry) -> None:
    """Writes one entry of a run."""
    ledger.entries.written += 1
    ledger.tx.insert(EntryRecord(run_id, position, entry.kind, entry.turn, orjson.dumps(entry.value).decode()))


def read_entries(tx: ReadTx, run_id: str, *, after: int = -1) -> list[RunEntry]:
    """The entries of a run behind position `after`."""
    rows = tx.find(EntryRecord, run_id=run_id, order="position", after=after)
    return [RunEntry(kind=row.kind, turn=row.turn, value=stored.plain(row, "value")) for row in rows]


@dataclass(frozen=True, slots=True)
class RunParts:
    """What is stored of a run besides its messages."""

    record: RunRecord
    model_calls: list[ModelCall]
    entries: list[RunEntry]


def read_run(tx: ReadTx, record: RunRecord) -> RunParts:
    """The parts of a run."""
    rows = tx.find(ModelCallRecord, run_id=record.run_id, order="position")
    calls = [stored.model_call(row) for row in rows]
    return RunParts(record, calls, read_entries(tx, record.run_id))


def restore(parts: RunParts, conversation: Conversation) -> AgentRun:
    """The run as it was saved, with its history and messages out of the conversation. Raises `DamagedRecord`."""
    record = parts.record
    stored.fields(record, "machine")
    try:
        return AgentRun.restore(
            record.machine,
            history=conversation.messages[: record.base],
            messages=conversation.messages[record.base :],
            model_calls=parts.model_calls,
            entries=parts.entries,
        )
    except FormatUnsupported as error:
        raise stored.damaged(record, "machine", error.message) from error


def result_message(call: CallRecord, result: dict[str, Any]) -> ToolResultMessage:
    """The tool result message of a call whose row holds `result` (`{content, isError, pending}`)."""
    return ToolResultMessage.trusted(
        message_id=None,
        at=None,
        role="toolResult",
        call_id=call.call_id,
        tool_name=call.tool_name,
        content=tuple([_part(part) for part in result["content"]]),
        is_error=result.get("isError", False),
        pending=result.get("pending", False),
    )


def _part(wire: dict[str, Any]) -> InputPart:
    if wire.keys() == _PLAIN_TEXT:
        return TextPart.trusted(type="text", text=wire["text"], provider=None, opaque=None)
    return _INPUT_PART.validate_python(wire)


_PLAIN_TEXT = {"type", "text"}
_INPUT_PART: TypeAdapter[InputPart] = TypeAdapter(InputPart)


def new_pass(rt: Runtime, agent: AgentRecord, run_id: str, run: AgentRun, conversation: Conversation) -> Pass:
    """A pass over a run that is stored whole, with the agent's model and tools.

    Raises `UnknownModel` or `UnknownTool` when the config names what is not there.
    """
    config = rt.config_of(stored.config(agent))
    name = rt.model_name(config)
    return Pass(
        agent_id=agent.agent_id,
        run_id=run_id,
        run=run,
        conversation=conversation,
        config=config,
        model_name=name,
        model=rt.model_of(name),
        tools=rt.toolset.tools_for(
            agent.agent_id, config, also=[call.name for call in run.round.calls] if run.round else ()
        ),
        compact_at=rt.limits.compact_at if config.compact_at is None else config.compact_at,
        saved_messages=len(run.messages),
        saved_model_calls=len(run.model_calls),
        saved_entries=len(run.entries),
    )
