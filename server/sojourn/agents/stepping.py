"""Runs that a client drives by hand, and run documents.

A run without an agent keeps its messages under its own id and has no events. An agent's paused or interrupted run can
be stepped too (D16): its pass opens at the first feed with cause `step` and ends when the run does, when another
driver takes over, or when the client's connection closes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sojourn.core.agent import Caller
from sojourn.core.errors import (
    AgentBusy,
    Cancelled,
    DamagedRecord,
    ModelError,
    RunFailed,
    RunNotFound,
    StaleRevision,
)
from sojourn.core.inbox import repair
from sojourn.core.messages import Message, ToolChoice, ToolResultMessage
from sojourn.core.run import (
    AgentRun,
    Continue,
    Failed,
    Failure,
    InvalidToolCallAction,
    ModelTurn,
    NeedsResolution,
    Owed,
    RunEntry,
    step_to_wire,
)
from sojourn.store.base import Damaged, ReadTx
from sojourn.store.records import (
    CallRecord,
    EntryRecord,
    MessageRecord,
    ModelCallRecord,
    RunRecord,
)

from . import clock, roster, stored
from .ledger import Ledger, message_json
from .passes import Pass, insert_entry, new_pass, read_run, restore, result_message
from .runtime import Conversation, Runtime, read_conversation
from .turns import own_ids


async def create(
    rt: Runtime,
    caller: Caller,
    *,
    prompt: Message,
    history: list[Message],
    max_turns: int,
    max_invalid_tool_call_retries: int,
    tool_choice: ToolChoice | None,
    output_schema: dict[str, Any] | None,
) -> Any:
    """`run/create`: a hand-driven run."""
    run = AgentRun.new(prompt).with_history(repair(history).messages).max_turns(max_turns)
    run.max_invalid_tool_call_retries(max_invalid_tool_call_retries)
    if tool_choice is not None:
        run.tool_choice(tool_choice)
    if output_schema is not None:
        run.output_schema(output_schema)
    return await rt.answer_once(caller, "step", lambda ledger: _enter(ledger, run))


async def import_run(rt: Runtime, caller: Caller, document: dict[str, Any]) -> Any:
    """`run/import`: always under a new id. Raises `FormatUnsupported`."""
    run = AgentRun.load(document)
    return await rt.answer_once(caller, "step", lambda ledger: _enter(ledger, run))


def _enter(ledger: Ledger, run: AgentRun) -> dict[str, Any]:
    run_id = clock.new_run_id()
    run.history = repair(run.history).messages
    record = RunRecord(
        run_id=run_id,
        agent_id=None,
        conversation=run_id,
        base=len(run.history),
        created_at=ledger.now,
        updated_at=ledger.now,
        state=run.state,
    )
    ledger.adopt_run(record)
    _own_names(run)
    run.label_messages(_next_number([*run.history, *run.messages]), ledger.now)
    taken: set[str] = set()
    for position, message in enumerate([*run.history, *run.messages], 1):
        _insert_message(ledger, run_id, position, message, taken)
    for call in run.model_calls:
        ledger.tx.insert(ModelCallRecord(run_id, call.index, call.json_bytes().decode()))
    for position, entry in enumerate(run.entries):
        insert_entry(ledger, run_id, position, entry)
    _save(record, run)
    return {"runId": run_id, "revision": record.revision}


def _own_names(run: AgentRun) -> None:
    """Takes the ids from the run's messages that occurred before: a new one is given by `label_messages`."""
    taken = {message.message_id for message in run.history}
    for place, message in enumerate(run.messages):
        if message.message_id in taken:
            run.messages[place] = message.model_copy(update={"message_id": None})
        taken.add(message.message_id)


def _next_number(messages: Iterable[Message]) -> int:
    """The first n for which no `msg-<n>` or higher is taken."""
    return 1 + max((roster.message_number(message) for message in messages), default=0)


def _insert_message(ledger: Ledger, run_id: str, position: int, message: Message, taken: set[str]) -> None:
    name = message.message_id or f"msg-{position}"
    while name in taken:
        name += "+"
    taken.add(name)
    stamped = message.model_copy(update={"message_id": name, "at": message.at or ledger.now})
    ledger.tx.insert(MessageRecord(run_id, position, name, message.role, message_json(stamped).decode()))


def _save(record: RunRecord, run: AgentRun) -> None:
    record.machine = run.machine()
    record.state, record.turn, record.max_turns = run.state, run.turn, run.turn_limit
    record.usage = run.usage.json_bytes().decode()


# -- reading ------------------------------------------------------------------------------------------------------


def record_of(tx: ReadTx, run_id: str) -> RunRecord:
    """A run's row. Raises `RunNotFound`."""
    record = tx.get(RunRecord, run_id)
    if record is None:
        raise RunNotFound(f"There is no run {run_id!r}.", runId=run_id)
    return record


def _read(tx: ReadTx, run_id: str) -> tuple[RunRecord, AgentRun]:
    """A run as it stands on disk, its calls' rows taken into account, without changing anything."""
    record = record_of(tx, run_id)
    conversation = read_conversation(tx, record.conversation)
    if _was_left(record) and record.outcome is not None:  # what follows is of later runs
        del conversation.messages[stored.fields(record, "outcome")["to"] :]
    run = restore(read_run(tx, record), conversation)
    if record.agent_id is not None and run.state == "executing_tools":
        _take_rows(tx, record.agent_id, run)
    return record, run


def _take_rows(tx: ReadTx, agent_id: str, run: AgentRun) -> None:
    """Gives a copy of an agent's run what its calls' rows know: results, and which calls were dispatched."""
    assert run.round is not None
    rows = [row for call in run.round.open_calls if (row := tx.get(CallRecord, agent_id, call.id)) is not None]
    dispatched = [row.call_id for row in rows if row.state == "dispatched"]
    known = [row for row in rows if row.result and row.state != "dispatched"]
    results = [result_message(row, stored.result(row)) for row in known]
    settled = run.round.preresolved
    if dispatched:
        run.mark_dispatched([call_id for call_id in dispatched if call_id not in settled])
    if results:
        run.tool_results(results)


def _was_left(record: RunRecord) -> bool:
    """Whether it is a run of an agent that has ended it, or has gone on without it."""
    return record.agent_id is not None and not record.active


def _left(record: RunRecord, run: AgentRun) -> Failed | None:
    """How a run ended in the middle of which its agent went on without it: nobody can carry it on."""
    if not _was_left(record) or run.state in ("done", "failed"):
        return None
    return Failed(Failure.of(Cancelled(f"The run {record.run_id!r} is over: its agent went on without it.")))


async def get(rt: Runtime, run_id: str) -> dict[str, Any]:
    """`run/get`."""
    return await rt.store.read(lambda tx: _shown(*_read(tx, run_id)))


def _shown(record: RunRecord, run: AgentRun) -> dict[str, Any]:
    shown = _listed(record)
    if not (record.pass_open and record.driver == "agent"):
        owed = _left(record, run) or run.peek()
        if owed is not None:
            shown["step"] = step_to_wire(owed)
    return shown


def _listed(record: RunRecord) -> dict[str, Any]:
    usage = stored.usage(record).wire()
    shown: dict[str, Any] = {
        "runId": record.run_id,
        "revision": record.revision,
        "state": record.state,
        "turn": record.turn,
        "maxTurns": record.max_turns,
        "usage": usage,
    }
    if record.agent_id is not None:
        shown["agentId"] = record.agent_id
    return shown


def _listed_all_the_same(row: RunRecord, damaged: Damaged) -> dict[str, Any]:
    """A damaged run says so in `damage`, with what else is known: it hides no other."""
    found = damaged.get((row.run_id,))
    if found is None:
        try:
            return _listed(row)
        except DamagedRecord as error:
            found = error
    return {**_listed(replace(row, usage="{}")), "damage": found.message}


async def listed(
    rt: Runtime, *, agent_id: str | None, state: str | None, cursor: str | None, limit: int
) -> dict[str, Any]:
    """`run/list`, newest first."""
    where: dict[str, Any] = {
        key: value for key, value in (("agent_id", agent_id), ("state", state)) if value is not None
    }

    def query(tx: ReadTx) -> dict[str, Any]:
        after = roster.read_cursor(cursor, 1)
        damaged: Damaged = {}
        rows = tx.find(RunRecord, order=("run_id",), desc=True, after=after, limit=limit + 1, damaged=damaged, **where)
        answer: dict[str, Any] = {"runs": [_listed_all_the_same(row, damaged) for row in rows[:limit]]}
        if len(rows) > limit:
            answer["nextCursor"] = roster.make_cursor(rows[limit - 1].run_id)
        return answer

    return await rt.store.read(query)


async def export(rt: Runtime, run_id: str) -> dict[str, Any]:
    """`run/export`: the whole run as one document, dispatched calls marked."""
    return {"run": await rt.store.read(lambda tx: _read(tx, run_id)[1].document())}


# -- entries ------------------------------------------------------------------------------------------------------


async def append_entry(rt: Runtime, caller: Caller, run_id: str, kind: str, value: Any) -> Any:
    """`run/appendEntry`."""

    def change(ledger: Ledger) -> dict[str, Any]:
        record = ledger.run(run_id)
        position = ledger.tx.count(EntryRecord, run_id=run_id)
        insert_entry(ledger, run_id, position, RunEntry(kind=kind, turn=record.turn, value=value))
        record.revision += 1
        ledger.save_run(record)
        return {"index": position}

    return await rt.answer_once(caller, "step", change)


async def entries(rt: Runtime, run_id: str, kind: str | None) -> dict[str, Any]:
    """`run/entries`."""

    def query(tx: ReadTx) -> dict[str, Any]:
        record_of(tx, run_id)
        where: dict[str, Any] = {} if kind is None else {"kind": kind}
        rows = tx.find(EntryRecord, run_id=run_id, order="position", **where)
        return {"entries": [{"kind": r.kind, "turn": r.turn, "value": stored.plain(r, "value")} for r in rows]}

    return await rt.store.read(query)


async def delete(rt: Runtime, caller: Caller, run_id: str) -> None:
    """`run/delete`: not while it is an agent's unfinished run."""

    def change(ledger: Ledger) -> None:
        record = ledger.run(run_id)
        if record.active:
            raise AgentBusy(
                f"The run {run_id!r} is unfinished and belongs to {record.agent_id!r}; stop or finish it first.",
                runId=run_id,
            )
        if record.agent_id is None:
            ledger.tx.delete_some(MessageRecord, 1_000_000, conversation=run_id)
        ledger.tx.delete_some(ModelCallRecord, 1_000_000, run_id=run_id)
        ledger.tx.delete_some(EntryRecord, 1_000_000, run_id=run_id)
        ledger.forget_run(run_id)

    await rt.answer_once(caller, "step", change)


# -- feeding ------------------------------------------------------------------------------------------------------


def check_revision(record: RunRecord, revision: int | None) -> None:
    """Raises `StaleRevision` when the caller speaks of another revision than the run is at."""
    if revision is not None and revision != record.revision:
        raise StaleRevision(
            f"The run {record.run_id!r} is at revision {record.revision}, not {revision}; look at it again.",
            revision=record.revision,
        )


def feed_run(run: AgentRun, feed: dict[str, Any] | None, message_id: str, at: str) -> Owed | Continue:
    """Feeds a run what is given: a call to decide about, how it failed, or `Continue` (ask `owed_now`).

    Raises `ProtocolViolation` for what the run refuses; nothing has changed then.
    """
    try:
        if feed is not None:
            _give(run, feed, message_id, at)
    except (RunFailed, ModelError):
        if run.failure is None:
            raise
    if run.failure is not None:
        return Failed(run.failure)
    context = run.pending_invalid_tool_call()
    return Continue() if context is None else NeedsResolution(context)


def owed_now(run: AgentRun) -> Owed:
    """What the run owes; a step that fails it answers `Failed`."""
    try:
        return run.next_step()
    except (RunFailed, ModelError):
        if run.failure is None:
            raise
        return Failed(run.failure)


def _give(run: AgentRun, feed: dict[str, Any], message_id: str, at: str) -> None:
    ((name, value),) = feed.items()
    if name == "modelResponse":
        turn = ModelTurn.model_validate(
            {
                "content": value["content"],
                "usage": value.get("usage"),
                "finishReason": value.get("finishReason"),
                "responseId": value.get("responseId"),
                "requestId": value.get("providerRequestId"),
                "executableTools": value.get("executableTools") or (),
                "allowedTools": value.get("allowedTools"),
                "messageId": message_id,
                "at": at,
            }
        )
        run.model_response(turn.model_copy(update={"content": own_ids(message_id, turn.content)}))
    elif name == "toolResults":
        run.tool_results(value)
    else:
        run.resolve_invalid_tool_call(InvalidToolCallAction.model_validate(value))


async def step_alone(
    rt: Runtime, caller: Caller, record: RunRecord, *, revision: int | None, feed: dict[str, Any] | None
) -> Any:
    """`run/step` for a run without an agent, or one that its agent has left behind, which says how it ended."""
    run_id = record.run_id

    def change(ledger: Ledger) -> dict[str, Any]:
        row, run = _read(ledger.tx, run_id)
        row = ledger.use_run(row)
        check_revision(row, revision)
        if (left := _left(row, run)) is not None:
            return {"revision": row.revision, "step": step_to_wire(left)}
        saved, calls = len(run.messages), len(run.model_calls)
        before = run.machine()
        if run.dispatched:
            run.fail_dispatched()
        number = _next_number([*run.history, *run.messages])
        owed = feed_run(run, feed, f"msg-{number}", ledger.now)
        if isinstance(owed, Continue):
            owed = owed_now(run)
        run.label_messages(number + (feed is not None and "modelResponse" in feed), ledger.now)
        taken = {m.message_id or "" for m in [*run.history, *run.messages[:saved]]}
        for offset, message in enumerate(run.messages[saved:]):
            _insert_message(ledger, run_id, row.base + saved + offset + 1, message, taken)
        for call in run.model_calls[calls:]:
            ledger.tx.insert(ModelCallRecord(run_id, call.index, call.json_bytes().decode()))
        if run.machine() != before:
            _save(row, run)
            row.revision += 1
            ledger.save_run(row)
        return {"revision": row.revision, "step": step_to_wire(owed)}

    return await rt.answer_once(caller, "step", change)


# -- a document under an agent ------------------------------------------------------------------------------------


def adopt_document(rt: Runtime, ledger: Ledger, agent_id: str, document: dict[str, Any]) -> Pass:
    """D15: a new agent with the named agent's config, whose conversation is the document's; its unfinished run."""
    named = ledger.agent(agent_id)
    run = AgentRun.load(document)
    config = stored.config(named)
    agent = roster.new_record(ledger, clock.new_id("agent"), config)
    run.history = repair(run.history).messages
    base = len(run.history)
    _own_names(run)
    agent.next_message = run.label_messages(_next_number([*run.history, *run.messages]), ledger.now)
    conversation = Conversation(agent.conversation)
    roster.enter_messages(ledger, agent, [*run.history, *run.messages])
    for message in [*run.history, *run.messages]:
        conversation.add(message, message_json(message))
    pending = {m.call_id for m in run.history + run.messages if isinstance(m, ToolResultMessage) and m.pending}
    late = {m.call_id for m in run.history + run.messages if m.role == "lateResult"}
    open_calls = {call.id for call in run.round.calls} if run.round is not None else set()
    known = [
        m for m in run.history + run.messages if not (m.role == "assistant" and open_calls & {c.id for c in m.calls})
    ]
    roster.enter_calls(ledger, agent, known, pending - late)
    record = RunRecord(
        run_id=clock.new_run_id(),
        agent_id=agent.agent_id,
        conversation=agent.conversation,
        base=base,
        created_at=ledger.now,
        updated_at=ledger.now,
        state=run.state,
    )
    agent.active_run_id, record.active = record.run_id, True
    ledger.adopt_run(record)
    p = new_pass(rt, agent, record.run_id, run, conversation)
    p.saved_model_calls = p.saved_entries = 0
    p.save(ledger)
    return p
