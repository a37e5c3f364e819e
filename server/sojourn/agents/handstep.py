"""`run/step` on an agent's paused or interrupted run (D16): the same transitions as the loop's, driven by a client.

The pass opens (cause `step`) when something is about to change, reads the inbox where the loop would, and ends with
the run, or as `interrupted` when another driver takes over or the client's connection closes. A stop ends the run at
once: the client hears of it at its next step.
"""

from __future__ import annotations

import contextlib
from typing import Any

import orjson

from sojourn.core import events as ev
from sojourn.core.agent import Caller
from sojourn.core.errors import AgentBusy, Cancelled
from sojourn.core.messages import ToolResultMessage
from sojourn.core.run import Continue, Failed, InvalidToolCallAction, step_to_wire
from sojourn.store.records import AgentRecord, CallRecord, RunRecord

from . import ending, mailbox, rounds, stepping, stored, turns
from .ledger import Ledger
from .passes import Over, Pass, result_message
from .runtime import Runtime

ANSWERED = rounds.HAS_RESULT


async def step(rt: Runtime, caller: Caller, p: Pass, *, revision: int | None, feed: dict[str, Any] | None) -> Any:
    """Feeds an agent's run that the daemon does not drive. Raises `AgentBusy`, `StaleRevision`, `ProtocolViolation`."""

    def change(ledger: Ledger) -> dict[str, Any]:
        agent, record = p.records(ledger)
        p.check_current(ledger)
        stepping.check_revision(record, revision)
        if record.pass_open and record.driver != "step":
            raise AgentBusy(f"The run {record.run_id!r} is being driven; it is {agent.state}.", runId=record.run_id)
        p.sync_entries(ledger)
        before, machine = record.revision, record.machine
        if record.stop_requested:
            owed = _stop(ledger, p, record)
        else:
            _open(ledger, p, agent, record, feed)
            owed = _feed(ledger, p, agent, record, feed)
        # Within a transition the run is saved more than once; for its drivers that is one change, or none.
        record.revision = before + (feed is not None or record.machine != machine)
        return {"revision": record.revision, "step": owed}

    return await rt.answer_once(caller, "step", change)


def _stop(ledger: Ledger, p: Pass, record: RunRecord) -> dict[str, Any]:
    """Ends a run that was aborted, or whose stop was asked for: nothing of it is to be executed by anybody."""
    if not record.pass_open:
        turns.start(ledger, p, "step", driver="step")
    stop(ledger, p)
    assert p.run.failure is not None
    return step_to_wire(Failed(p.run.failure))


def _open(ledger: Ledger, p: Pass, agent: AgentRecord, record: RunRecord, feed: dict[str, Any] | None) -> None:
    changes = feed is not None or p.run.state in ("preparing", "done") or _has_settled_calls(ledger, p)
    if record.pass_open or not changes:
        return
    turns.start(ledger, p, "step", driver="step")
    ledger.set_state(agent, "running")
    if p.run.state == "executing_tools":
        _settle_known(ledger, p, agent, record)


def _has_settled_calls(ledger: Ledger, p: Pass) -> bool:
    if p.run.round is None:
        return False
    owed = {call.id for call in p.run.round.open_calls}
    settled = ("dispatched", *(state for state in ANSWERED if state != "preresolved"))
    return any(row.call_id in owed and row.state in settled for row in rounds.round_rows(ledger, p))


def _settle_known(ledger: Ledger, p: Pass, agent: AgentRecord, record: RunRecord) -> None:
    """What the rows know is given to the machine: results that came, calls that were dispatched and are lost."""
    known: list[ToolResultMessage] = []
    for row in rounds.round_rows(ledger, p):
        if row.state == "dispatched":
            rounds.interrupt(ledger, agent, record, row)
        if row.state in ANSWERED and row.state != "preresolved" and row.result:
            known.append(result_message(row, stored.result(row)))
    _give_results(ledger, p, agent, record, known)


def _give_results(
    ledger: Ledger, p: Pass, agent: AgentRecord, record: RunRecord, results: list[ToolResultMessage]
) -> None:
    assert p.run.round is not None
    owed = {call.id for call in p.run.round.open_calls}
    p.run.tool_results([result for result in results if result.call_id in owed])
    turns.show(ledger, p, agent, record, None)
    if p.run.state != "executing_tools":
        ledger.event(agent, ev.TurnEnd(turn=p.run.turn), run=record)


def _feed(
    ledger: Ledger, p: Pass, agent: AgentRecord, record: RunRecord, feed: dict[str, Any] | None
) -> dict[str, Any]:
    message_id = record.streaming_message or f"msg-{agent.next_message}"
    was = (p.run.state, p.run.turn)
    if feed is None and p.run.state == "preparing" and agent.inbox:
        mailbox.read(ledger, p)
    if feed is not None and "modelResponse" in feed and record.streaming_message is None:
        agent.next_message += 1
    round_before = p.run.round.calls if p.run.round is not None else ()
    owed = stepping.feed_run(p.run, feed, message_id, ledger.now)
    if feed is not None:
        _after_feed(ledger, p, agent, record, feed, message_id, [call.id for call in round_before])
    if isinstance(owed, Continue):
        owed = _next(ledger, p, agent, record)
    if (p.run.state, p.run.turn) != was or feed is not None:
        turns.show(ledger, p, agent, record, message_id)
    if isinstance(owed, Failed):
        ending.end(ledger, p, "failed", error=owed.failure.info())
    return step_to_wire(owed)


def _next(ledger: Ledger, p: Pass, agent: AgentRecord, record: RunRecord) -> Any:
    """What the run owes after its feed; the inbox is read where the loop would read it."""
    if p.run.state == "preparing" and agent.inbox:
        mailbox.read(ledger, p)
    new_turn = p.run.state == "preparing"
    owed = stepping.owed_now(p.run)
    if p.run.state == "awaiting_model" and new_turn:
        record.streaming_message = f"msg-{agent.next_message}"
        agent.next_message += 1
        ledger.event(agent, ev.TurnStart(turn=p.run.turn), run=record)
        p.save(ledger)
    elif p.run.state == "executing_tools":
        turns.show(ledger, p, agent, record, record.streaming_message)
    elif p.run.state == "done":
        turns.show(ledger, p, agent, record, None)
        ledger.event(agent, ev.TurnEnd(turn=p.run.turn), run=record)
        if agent.inbox and p.run.can_continue and mailbox.read(ledger, p):
            return _next(ledger, p, agent, record)
        ending.end(ledger, p, "done")
    return owed


def _after_feed(
    ledger: Ledger,
    p: Pass,
    agent: AgentRecord,
    record: RunRecord,
    feed: dict[str, Any],
    message_id: str,
    round_calls: list[str],
) -> None:
    if "modelResponse" in feed:
        record.streaming_message = None
        calls = p.run.model_calls
        ending.add_usage(agent, calls[-1].usage if calls else None)
        turns.show(ledger, p, agent, record, None)
    elif "toolResults" in feed:
        given = {result["callId"]: result for result in feed["toolResults"]}
        _mark_rows(ledger, p, agent, record, given)
        turns.show(ledger, p, agent, record, None)
        if p.run.state != "executing_tools" and round_calls:
            ledger.event(agent, ev.TurnEnd(turn=p.run.turn), run=record)
    del message_id


def _mark_rows(
    ledger: Ledger, p: Pass, agent: AgentRecord, record: RunRecord, given: dict[str, dict[str, Any]]
) -> None:
    """The client executed these calls: their rows hold the results, their approvals need nobody any more."""
    for call_id, result in given.items():
        row = ledger.tx.get(CallRecord, agent.agent_id, call_id)
        if row is None:
            continue
        row.state = "returned"
        wire = {"content": result["content"], "isError": result.get("isError", False), "pending": False}
        row.result = orjson.dumps(wire).decode()
        ledger.tx.update(row, "state", "result")
        rounds.close_approvals(ledger, agent, record, decision="closed", by="policy", call_id=call_id)
    del p


def stop(ledger: Ledger, p: Pass) -> Over:
    """Ends, as stopped, a run that a client steps: between two steps nobody is at work for it."""
    agent, record = p.records(ledger)
    if p.run.state == "executing_tools":
        return rounds.stop_round(ledger, p)
    record.streaming_message = None  # it was given an id, and shown to nobody
    if p.run.state == "resolving_calls":
        with contextlib.suppress(Cancelled):
            p.run.resolve_invalid_tool_call(InvalidToolCallAction.stop("stopped by the user"))
    else:
        p.run.abandon(ending.stopped_by_user())
    ledger.event(agent, ev.TurnEnd(turn=p.run.turn), run=record)
    return ending.end(ledger, p, "stopped")


def release(ledger: Ledger, agent_id: str, run_id: str | None = None) -> bool:
    """Ends a pass that a client steps, as interrupted; whether there was one."""
    agent = ledger.agent(agent_id)
    record = ledger.active_run(agent)
    if record is None or not record.pass_open or record.driver != "step" or run_id not in (None, record.run_id):
        return False
    if record.stop_requested:
        return False  # whoever stops it ends it
    text = "The client that stepped this run let go of it."
    ledger.warning(agent, "runInterrupted", text, run=record)
    end = ending.interrupted_end(ledger, agent, record)
    ending.close_record(ledger, agent, record, "interrupted", end, error=None)
    return True


async def is_stepped(rt: Runtime, agent_id: str) -> bool:
    """Whether a client steps the agent's run. Raises `AgentNotFound`."""
    agent = await rt.agent(agent_id)
    run_id = agent.active_run_id
    record = await rt.store.read(lambda tx: tx.get(RunRecord, run_id)) if run_id else None
    return record is not None and record.pass_open and record.driver == "step"
