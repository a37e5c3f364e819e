"""What happens at start, before any client is served: every pass that was open when the daemon died gets its end.

Idempotent, and it never reads a conversation. A run with an open approval, its own or a descendant's, is not
interrupted: it waits again, and one late decision carries it on. Nor is one whose decision was acknowledged and not
carried out, whatever was decided: that is done now.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from sojourn.core import events as ev
from sojourn.core.agent import ErrorInfo
from sojourn.core.errors import InvalidParams
from sojourn.store.base import ReadTx
from sojourn.store.records import AgentRecord, ApprovalRecord, CallRecord, InboxRecord, RunRecord

from . import ending, opening, rounds
from .ledger import Ledger
from .passes import parse_config
from .runtime import Runtime

log = logging.getLogger(__name__)

MAX_CRASHES = 3
WAITS = ("awaiting_approval", "approved")


class Recovered(NamedTuple):
    """Agents that something is to be done with, now that all passes have their end or wait again."""

    resume: Sequence[str] = ()
    """Those that this or an earlier end of the daemon interrupted, and that their config wants resumed."""
    look: Sequence[str] = ()
    """Waiting ones whose decision was not carried out."""
    stop: Sequence[str] = ()
    """Those whose stop was asked for, by a decision to abort too, and not carried out."""


async def recover(rt: Runtime, *, in_order: bool = False) -> Recovered:
    """Ends or keeps every open pass that nobody drives.

    `in_order`: the daemon ends because it was told to, which no run is to blame for.
    """
    runs = await rt.store.read(lambda tx: tx.find(RunRecord, pass_open=True))
    open_runs = [run for run in runs if run.agent_id is not None and run.agent_id not in rt.live]
    stopping = [run for run in open_runs if run.stop_requested]
    kept = await rt.store.read(lambda tx: _waiting(tx, open_runs))
    for run in sorted(open_runs, key=lambda run: -_depth(run, open_runs)):
        if run.run_id not in kept and run not in stopping:
            await rt.write("recover", lambda ledger, r=run: _interrupt(rt, ledger, r.run_id, in_order=in_order))  # type: ignore[misc]
    if open_runs:
        await rt.write("recover", lambda ledger: _keep(ledger, kept))
        await rt.write("recover", lambda ledger: _leave_interrupted(ledger, stopping))
    resume = await rt.store.read(lambda tx: _to_resume(rt, tx))
    look = await rt.store.read(lambda tx: _decided(tx, kept))
    return Recovered(resume, look, [run.agent_id for run in stopping if run.agent_id is not None])


def _to_resume(rt: Runtime, tx: ReadTx) -> list[str]:
    """Out of what is stored alone: a wish to be resumed outlives a daemon that is killed before it does it."""
    found: list[str] = []
    for agent in tx.find(AgentRecord, state="interrupted"):
        if agent.deleted or agent.active_run_id is None or not _goes_on_by_itself(rt, agent):
            continue
        run = tx.get(RunRecord, agent.active_run_id)
        # A child inside a call is carried on by its parent's.
        if run is not None and run.nested_agent_id is None and ending.is_left_by_daemon(run):
            found.append(agent.agent_id)
    return found


def _goes_on_by_itself(rt: Runtime, agent: AgentRecord) -> bool:
    try:
        return rt.config_of(parse_config(agent.config)).on_restart == "resume"
    except InvalidParams:  # its preset is not configured any more
        return False


def _depth(run: RunRecord, runs: list[RunRecord]) -> int:
    by_agent = {one.agent_id: one for one in runs}
    depth, inner = 0, run
    while inner.nested_agent_id in by_agent and depth <= len(runs):
        inner = by_agent[inner.nested_agent_id]
        depth += 1
    return depth


def _waiting(tx: ReadTx, runs: list[RunRecord]) -> set[str]:
    """The runs that a decision carries on: their own, or a foreground child's under a call that may run again."""
    mine = [run for run in runs if run.driver == "agent" and not run.stop_requested]
    kept = {run.run_id for run in mine if _asks(tx, run) or _only_decided(tx, run)}
    by_agent = {run.agent_id: run for run in runs}
    for run in [run for run in runs if run.run_id in kept]:
        chain, inner = [run], run
        while inner.nested_agent_id is not None:
            parent = by_agent.get(inner.nested_agent_id)
            call = tx.get(CallRecord, inner.nested_agent_id, inner.nested_call_id)
            if parent is None or call is None or call.on_interrupt != "rerun" or parent.driver != "agent":
                kept -= {one.run_id for one in chain}  # its question can reach nobody: it is stopped with its parent
                break
            chain.append(parent)
            inner = parent
        else:
            kept |= {one.run_id for one in chain}
    return kept


def _leave_interrupted(ledger: Ledger, stopping: list[RunRecord]) -> None:
    """What a stopped child still says is not shown in its parent's call when that was interrupted."""
    for run in stopping:
        record = ledger.run(run.run_id)
        opening.leave_finished_call(ledger, record)
        ledger.save_run(record)


def _asks(tx: ReadTx, run: RunRecord) -> bool:
    return run.state == "executing_tools" and any(row.state in WAITS for row in tx.find(CallRecord, run_id=run.run_id))


def _only_decided(tx: ReadTx, run: RunRecord) -> bool:
    """Whether all calls of the open round are settled, one by a decision: a kill came before the round was closed."""
    if run.state != "executing_tools" or run.agent_id is None:
        return False
    rows = {row.call_id: row for row in _round_of(tx, run)}
    if not rows or not all(row.state in rounds.HAS_RESULT or rounds.is_lost(row) for row in rows.values()):
        return False
    asked = tx.find(ApprovalRecord, agent_id=run.agent_id, decided=True)
    return any(row.run_id == run.run_id and row.call_id in rows for row in asked)


def _round_of(tx: ReadTx, run: RunRecord) -> list[CallRecord]:
    open_round = orjson.loads(run.machine).get("round")
    calls = open_round["calls"] if open_round else ()
    rows = [tx.get(CallRecord, run.agent_id, call["id"]) for call in calls]
    return [row for row in rows if row is not None]


def _decided(tx: ReadTx, kept: set[str]) -> list[str]:
    """Agents whose decision was acknowledged and not carried out yet."""
    found: list[str] = []
    for run_id in sorted(kept):
        run = tx.get(RunRecord, run_id)
        if run is None or run.agent_id is None:
            continue
        if tx.count(CallRecord, run_id=run_id, state="approved") or _only_decided(tx, run):
            found.append(run.agent_id)
    return found


def _keep(ledger: Ledger, kept: set[str]) -> None:
    """Shows the kept runs as waiting, and notes which of their calls were at work in the life that is over."""
    for run_id in sorted(kept):
        record = ledger.run(run_id)
        if record.agent_id is None:
            continue
        ledger.set_state(ledger.agent(record.agent_id), "waiting", "approval")
        for row in ledger.calls_of(record, state="dispatched"):
            rounds.lose(ledger, row)


def _interrupt(rt: Runtime, ledger: Ledger, run_id: str, *, in_order: bool) -> None:
    """Ends the pass of a run as interrupted, or the run as failed where it brings the daemon down again and again."""
    record = ledger.run(run_id)
    if not record.pass_open:
        return
    assert record.agent_id is not None
    agent = ledger.agent(record.agent_id)
    _close_questions(ledger, agent, record)
    if record.streaming_message is not None:
        reset = ev.MessageReset(message_id=record.streaming_message, reason="restart")
        ledger.event(agent, reset, run=record)
    by_agent = record.driver == "agent"  # a client that steps by hand has let go of it, like one that hangs up
    record.crashes += not in_order
    if by_agent and record.crashes >= MAX_CRASHES and not in_order and _goes_on_by_itself(rt, agent):
        error = ErrorInfo(
            kind="crashLoop",
            message=f"The daemon ended {record.crashes} times in a row during this run; it is not resumed by itself.",
        )
        _fail(ledger, agent, record, error)
        return
    text = (
        f"The daemon stopped in the middle of this run. `sojourn resume {agent.agent_id}` "
        f"(agent/resume with the agentId {agent.agent_id!r}) carries it on."
    )
    ledger.warning(agent, "runInterrupted", text, run=record)
    end = ending.interrupted_end(ledger, agent, record)
    by_daemon = by_agent and record.crashes < MAX_CRASHES
    ending.close_record(ledger, agent, record, "interrupted", end, error=None, by_daemon=by_daemon)


def give_up(ledger: Ledger, run_id: str, error: Exception) -> None:
    """Ends a run that a fault of the daemon's own stopped as failed: what it was about to write cannot be written."""
    record = ledger.run(run_id)
    if not record.pass_open or record.driver != "agent" or record.agent_id is None:
        return
    agent = ledger.agent(record.agent_id)
    _close_questions(ledger, agent, record)
    if record.streaming_message is not None:
        ledger.event(agent, ev.MessageReset(message_id=record.streaming_message, reason="cut"), run=record)
    _fail(ledger, agent, record, ErrorInfo(kind="internal", message=ending.error_info(error).message))


def _fail(ledger: Ledger, agent: AgentRecord, record: RunRecord, error: ErrorInfo) -> None:
    rounds.close_stored(ledger, agent, record)
    messages, usage = ending.stored_messages(ledger, agent, record), ending.stored_usage(record)
    end = ending.agent_end("failed", messages, usage, error)
    ending.close_record(ledger, agent, record, "failed", end, error=error)


def _close_questions(ledger: Ledger, agent: AgentRecord, record: RunRecord) -> None:
    """Its question reaches nobody any more (its parent is gone): the call is not executed, and says so."""
    rounds.close_approvals(ledger, agent, record, decision="stopped", by="stop")
    for row in ledger.calls_of(record, state="awaiting_approval"):
        row.state, row.result = "failed", rounds.text_result(rounds.UNASKED)
        ledger.tx.update(row, "state", "result")


async def unread_agents(rt: Runtime) -> list[str]:
    """Agents with something unread, which may start a pass by itself (D7, D10)."""
    rows = await rt.store.read(lambda tx: tx.find(InboxRecord, state="unread"))
    return list(dict.fromkeys(row.agent_id for row in rows))
