"""Writing inside a transition: events get their `seq`, messages their position, agents their counts.

A `Ledger` lives for one transition on the store's writer thread. It encodes each event once: the same bytes are the
row's body and, wrapped in `agent/event`, what every attached client gets after the commit. `nested` rows of ancestors
are written in the same transaction as the child's event that they refer to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import orjson

from sojourn.core import events as ev
from sojourn.core import hot_events as hot
from sojourn.core.agent import AgentState, Origin, RunOutcome, WaitingFor
from sojourn.core.errors import AgentNotFound, RunNotFound
from sojourn.core.hot_events import WireEvent
from sojourn.core.messages import Message
from sojourn.core.values import Value
from sojourn.store.base import Tx
from sojourn.store.records import (
    AgentRecord,
    CallRecord,
    EventRecord,
    MessageRecord,
    RunRecord,
    snapshot,
)

_LAST_SEQ = [column.name for column in fields(AgentRecord)].index("last_seq")


class Published(NamedTuple):
    """A committed event on its way to the clients: its row, and the event's JSON."""

    record: EventRecord
    body: bytes

    @property
    def params(self) -> bytes:
        """All of `agent/event`; put together for those who listen."""
        return params_json(self.record, self.body)


@dataclass(frozen=True, slots=True)
class Changed:
    """An agent's row is now `record`."""

    record: AgentRecord


@dataclass(frozen=True, slots=True)
class Wake:
    """Something happened that the driver of this agent's pass must look at; starts one when there is none."""

    agent_id: str


@dataclass(frozen=True, slots=True)
class InboxArrived:
    """Something reached an agent's inbox; it may start a pass where none is open (D10)."""

    agent_id: str


@dataclass(frozen=True, slots=True)
class PassEnded:
    """A pass is over: whoever waits for it may answer; what is left in the inbox may start the next."""

    agent_id: str
    run_id: str
    continue_inbox: bool
    outcome: RunOutcome | None = None
    """What it came to, where whoever ended it had that at hand."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A decision asks for the agent's run to be stopped."""

    agent_id: str


@dataclass(frozen=True, slots=True)
class ApprovalOpened:
    """An approval waits: ask the clients that answer such requests."""

    agent_id: str
    approval_id: str


@dataclass(frozen=True, slots=True)
class ApprovalClosed:
    """An approval was decided: withdraw the question."""

    approval_id: str


def message_json(message: Message) -> bytes:
    """A message as it is stored and sent."""
    return message.json_bytes()


def params_json(record: EventRecord, body: bytes) -> bytes:
    """The params of `agent/event` for a stored event whose (resolved) body is given."""
    head = b'{"agentId":' + orjson.dumps(record.agent_id)
    if record.run_id:
        head += b',"runId":' + orjson.dumps(record.run_id)
    head += b',"seq":%d,"at":"%s"' % (record.seq, record.at.encode())
    if record.origin:
        head += b',"origin":' + record.origin.encode()
    return head + b',"event":' + body + b"}"


def nested_json(call_id: str, body: bytes) -> bytes:
    """`body` wrapped into a `nested` event."""
    return b'{"type":"nested","toolCallId":' + orjson.dumps(call_id) + b',"event":' + body + b"}"


@dataclass(slots=True)
class EntryCount:
    """How many entries transitions have written to whichever run; only transitions look at it."""

    written: int = 0


class Ledger:
    """One transition's writing. `flush` must be called last; `Runtime.write` does."""

    def __init__(self, tx: Tx, now: str, stamp: int, entries: EntryCount) -> None:
        self.tx = tx
        self.entries = entries
        self.now = now
        self._stamp = stamp
        self._agents: dict[str, AgentRecord] = {}
        self._runs: dict[str, RunRecord] = {}
        self._dirty_runs: set[str] = set()
        self._calls: dict[tuple[str, str], CallRecord] = {}
        self._events: list[Published] = []
        """What happened, in order; published as one list, which is as good as one after another and costs less."""
        self._last: list[Callable[[], None]] = []
        self._agents_read: dict[str, tuple[Any, ...]] = {}
        self._runs_read: dict[str, tuple[Any, ...]] = {}
        self._pairs: dict[str, tuple[AgentRecord, RunRecord]] = {}

    # -- rows ---------------------------------------------------------------------------------------------------

    def agent(self, agent_id: str) -> AgentRecord:
        """The agent's row, to be changed in place. Raises `AgentNotFound`."""
        record = self._agents.get(agent_id)
        if record is None:
            found = self.tx.read(AgentRecord, agent_id)
            if found is not None and not found[0].deleted:
                record, self._agents_read[agent_id] = found
                self._agents[agent_id] = record
        if record is None or record.deleted:
            raise AgentNotFound(f"There is no agent {agent_id!r}.", agentId=agent_id)
        return record

    def rows(self, agent_id: str, run_id: str) -> tuple[AgentRecord, RunRecord]:
        """`agent` and `run`."""
        pair = self._pairs.get(run_id)
        if pair is None or pair[0].deleted:
            pair = self._pairs[run_id] = self.agent(agent_id), self.run(run_id)
        return pair

    def adopt(self, record: AgentRecord) -> None:
        """Enters a new agent."""
        self.tx.insert(record)
        self._agents[record.agent_id] = record

    def run(self, run_id: str) -> RunRecord:
        """The run's row, to be changed in place and given to `save_run`. Raises `RunNotFound`."""
        record = self._runs.get(run_id)
        if record is None:
            found = self.tx.read(RunRecord, run_id)
            if found is None:
                raise RunNotFound(f"There is no run {run_id!r}.", runId=run_id)
            record, self._runs_read[run_id] = found
            self._runs[run_id] = record
        return record

    def adopt_run(self, record: RunRecord) -> None:
        """Enters a new run; written at `flush`, after the agent's former run was."""
        self.save_run(record)

    def save_run(self, record: RunRecord) -> None:
        """Marks a run's row as changed."""
        if self._runs.get(record.run_id) is not record:
            self._runs[record.run_id] = record
            self._pairs.pop(record.run_id, None)
        self._dirty_runs.add(record.run_id)

    def use_run(self, record: RunRecord) -> RunRecord:
        """The row of this run within the transition: the one it already holds, else `record`."""
        return self._runs.setdefault(record.run_id, record)

    def forget_run(self, run_id: str) -> None:
        """Removes a run's row."""
        self.tx.delete(RunRecord, run_id)
        self._runs.pop(run_id, None)
        self._pairs.pop(run_id, None)
        self._dirty_runs.discard(run_id)

    def active_run(self, agent: AgentRecord) -> RunRecord | None:
        """The agent's unfinished run."""
        return self.run(agent.active_run_id) if agent.active_run_id else None

    def call(self, owner: str, call_id: str) -> CallRecord | None:
        """A call's row, the same object for the whole transition; what changes it writes it (`tx.update`)."""
        found = self._calls.get((owner, call_id)) or self.tx.get(CallRecord, owner, call_id)
        if found is not None:
            self._calls[owner, call_id] = found
        return found

    def adopt_call(self, record: CallRecord) -> None:
        """Enters a new call."""
        self.tx.insert(record, later=True)
        self._calls[record.owner, record.call_id] = record

    def calls_of(self, run: RunRecord, **where: Any) -> list[CallRecord]:
        """The calls of a run in the order of their making."""
        return self.tx.find(CallRecord, run_id=run.run_id, order="position", **where)

    def set_state(self, agent: AgentRecord, state: AgentState, waiting_for: WaitingFor | None = None) -> None:
        """What the agent is doing, as lists show it."""
        agent.state, agent.waiting_for = state, waiting_for

    # -- events -------------------------------------------------------------------------------------------------

    def event(
        self,
        agent: AgentRecord,
        event: Value | WireEvent | bytes,
        *,
        run: RunRecord | None = None,
        origin: Origin | None = None,
    ) -> int:
        """Appends an event (value, wire form or JSON) with ancestors' `nested` rows; its seq."""
        if isinstance(event, dict):
            body = orjson.dumps(event)
        else:
            body = event if isinstance(event, bytes) else event.json_bytes()
        agent.last_seq = seq = agent.last_seq + 1
        record = EventRecord(agent.agent_id, seq, self.now, body.decode(), run.run_id if run else None)
        if origin:
            record.origin = _origin_json(origin)
        if not self._events:
            self.tx.publish(self._events)
        self._events.append(Published(record, body))
        if run is not None and run.nested_agent_id:
            self._tell_ancestors(agent, body, run)
        return seq

    def _tell_ancestors(self, agent: AgentRecord, body: bytes, run: RunRecord) -> None:
        child: AgentRecord = agent
        inner: RunRecord | None = run
        while inner is not None and inner.nested_agent_id and inner.nested_call_id:
            parent = self.agent(inner.nested_agent_id)
            body = nested_json(inner.nested_call_id, body)
            outer = self.active_run(parent)
            parent.last_seq += 1
            record = EventRecord(
                agent_id=parent.agent_id,
                seq=parent.last_seq,
                at=self.now,
                body="",
                run_id=outer.run_id if outer else None,
                ref_agent_id=child.agent_id,
                ref_seq=child.last_seq,
                ref_call_id=inner.nested_call_id,
            )
            self._events.append(Published(record, body))
            child, inner = parent, outer

    def warning(
        self, agent: AgentRecord, code: str, message: str, *, run: RunRecord | None = None, data: Any = None
    ) -> None:
        """Appends a `warning`."""
        self.event(agent, ev.Warning(code=code, message=message, data=data), run=run)

    # -- messages -----------------------------------------------------------------------------------------------

    def append_message(self, agent: AgentRecord, message: Message) -> bytes:
        """Appends a (labelled) message to the agent's conversation; its JSON."""
        assert message.message_id is not None
        body = message_json(message)
        agent.message_count += 1
        self.tx.insert(
            MessageRecord(agent.conversation, agent.message_count, message.message_id, message.role, body.decode()),
            later=True,
        )
        return body

    def show_message(
        self, agent: AgentRecord, message: Message, body: bytes, *, run: RunRecord | None, started: bool = False
    ) -> None:
        """The events of a message: `messageStart` unless it was `started` before, `messageEnd`."""
        assert message.message_id is not None
        if not started:
            self.event(agent, hot.message_start(message.message_id, message.role), run=run)
        self.event(agent, b'{"type":"messageEnd","message":' + body + b"}", run=run)

    # -- the end ------------------------------------------------------------------------------------------------

    def at_last(self, work: Callable[[], None]) -> None:
        """Does `work` once everything else of the transition is done, before the rows are written."""
        self._last.append(work)

    def flush(self) -> None:
        """Writes the events, and the rows that were changed in place."""
        for work in self._last:
            work()
        self.tx.insert_all([event.record for event in self._events], later=True)
        for run_id in sorted(self._dirty_runs, key=lambda r: self._runs[r].active):
            record = self._runs[run_id]
            record.updated_at = self.now
            self._write(record, self._runs_read.get(run_id))
        for agent in self._agents.values():
            before = self._agents_read.get(agent.agent_id)
            # Nearly always something happened, which spares comparing the rest.
            if before is None or agent.last_seq != before[_LAST_SEQ] or snapshot(agent) != before:
                agent.updated_at, agent.activity = self.now, self._stamp
                self._write(agent, before)
                self.tx.publish(Changed(agent))

    def _write(self, record: AgentRecord | RunRecord, before: tuple[Any, ...] | None) -> None:
        """Writes what is no longer as it was when the row was read; all of it when it was not read here."""
        if before is None:
            self.tx.put(record, later=True)
        else:
            self.tx.save(record, before)


def _origin_json(origin: Origin | None) -> str | None:
    if origin is None or (origin.client_id is None and origin.request_id is None):
        return None
    return origin.json_bytes().decode()


def bodies(messages: Iterable[bytes]) -> bytes:
    """A JSON array of encoded messages."""
    return b"[" + b",".join(messages) + b"]"
