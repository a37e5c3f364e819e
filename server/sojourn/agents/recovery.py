"""What happens at start, before any client is served: every pass that was open when the daemon died gets its end.

Idempotent, and it never reads a conversation. A run with an open approval, its own or a descendant's, is not
interrupted: it waits again, and one late decision carries it on. Nor is one whose decision was acknowledged and not
carried out, whatever was decided: that is done now.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from sojourn.core import events as ev
from sojourn.core.agent import ErrorInfo
from sojourn.core.errors import AgentNotFound, DamagedRecord, InvalidParams, RunNotFound, StorageError
from sojourn.core.messages import Usage
from sojourn.store.base import Damaged, ReadTx
from sojourn.store.records import AgentRecord, ApprovalRecord, CallRecord, InboxRecord, RunRecord

from . import clock, ending, opening, rounds, stored
from .ledger import Ledger
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
    found = await rt.store.read(_open_runs)
    open_runs = [run for run in found if run.agent_id is not None and run.agent_id not in rt.live]
    stopping = [run for run in open_runs if run.stop_requested]
    kept = await rt.store.read(lambda tx: _waiting(tx, open_runs))
    for run in sorted(open_runs, key=lambda run: -_depth(run, open_runs)):
        if run.run_id not in kept and run not in stopping:
            await _interrupt_or_leave(rt, run.run_id, in_order=in_order)
    if open_runs:
        await rt.write("recover", lambda ledger: _keep(ledger, kept))
        await rt.write("recover", lambda ledger: _leave_interrupted(ledger, stopping))
    resume = await rt.store.read(lambda tx: _to_resume(rt, tx))
    look = await rt.store.read(lambda tx: _decided(tx, kept))
    return Recovered(resume, look, [run.agent_id for run in stopping if run.agent_id is not None])


async def after_former_lives(rt: Runtime) -> None:
    """Lets what is made from now on sort behind what is stored, also when the clock was set back in between."""

    def query(tx: ReadTx) -> tuple[list[RunRecord], list[AgentRecord]]:
        newest = tx.find(RunRecord, order=("run_id",), desc=True, limit=1, damaged={})
        roots: dict[str, Any] = {"parent_agent_id": None, "deleted": False}
        return newest, tx.find(AgentRecord, order="activity", desc=True, limit=1, damaged={}, **roots)

    runs, agents = await rt.store.read(query)
    for run in runs:
        clock.after_run(run.run_id)
    for agent in agents:
        clock.after_stamp(agent.activity)


def _open_runs(tx: ReadTx) -> list[RunRecord]:
    damaged: Damaged = {}
    rows = tx.find(RunRecord, pass_open=True, damaged=damaged)
    for error in damaged.values():
        log.error("An open run is left as it is. %s", error)
    return [row for row in rows if (row.run_id,) not in damaged]


async def _interrupt_or_leave(rt: Runtime, run_id: str, *, in_order: bool) -> None:
    """Ends the pass of a run as interrupted; one that is damaged costs neither the others nor the daemon its start."""
    try:
        await rt.write("recover", lambda ledger: _interrupt(rt, ledger, run_id, in_order=in_order))
    except DamagedRecord as error:
        await leave_damaged(rt, run_id, error)
    except StorageError:
        raise
    except Exception:
        log.exception("The run %s, which an end of the daemon interrupted, is left as it is on disk.", run_id)


async def leave_damaged(rt: Runtime, run_id: str, error: DamagedRecord) -> bool:
    """Ends the open pass of a run as interrupted, because a record of it is damaged, and says which; whether it did."""
    log.error("The run %s is interrupted. %s", run_id, error)
    try:
        return await rt.write("end", lambda ledger: _leave(ledger, run_id, error))
    except (DamagedRecord, AgentNotFound, RunNotFound) as more:
        log.error("The run %s is left as it is on disk. %s", run_id, more)
        return False


def _leave(ledger: Ledger, run_id: str, error: DamagedRecord) -> bool:
    record = ledger.run(run_id)
    if not record.pass_open or record.agent_id is None:
        return False
    agent = ledger.agent(record.agent_id)
    if record.streaming_message is not None:
        ledger.event(agent, ev.MessageReset(message_id=record.streaming_message, reason="cut"), run=record)
    ledger.warning(agent, "recordDamaged", error.message, run=record, data=error.data)
    info = ending.error_info(error)
    end = ending.agent_end("interrupted", [], Usage(), info)
    ending.close_record(ledger, agent, record, "interrupted", end, error=info)
    return True


def _to_resume(rt: Runtime, tx: ReadTx) -> list[str]:
    """Out of what is stored alone: a wish to be resumed outlives a daemon that is killed before it does it."""
    damaged: Damaged = {}
    agents = tx.find(AgentRecord, state="interrupted", damaged=damaged)
    return [one.agent_id for one in agents if (one.agent_id,) not in damaged and _is_to_resume(rt, tx, one)]


def _is_to_resume(rt: Runtime, tx: ReadTx, agent: AgentRecord) -> bool:
    if agent.deleted or agent.active_run_id is None or not _goes_on_by_itself(rt, agent):
        return False
    try:
        run = tx.get(RunRecord, agent.active_run_id)
        # A child inside a call is carried on by its parent's.
        return run is not None and run.nested_agent_id is None and ending.is_left_by_daemon(run)
    except DamagedRecord:  # whoever asks for it is told
        return False


def _goes_on_by_itself(rt: Runtime, agent: AgentRecord) -> bool:
    try:
        return rt.config_of(stored.config(agent)).on_restart == "resume"
    except (InvalidParams, DamagedRecord):  # its preset is not configured any more; its config cannot be read
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
    kept = {run.run_id for run in mine if _is_to_wait(tx, run)}
    by_agent = {run.agent_id: run for run in runs}
    for run in [run for run in runs if run.run_id in kept]:
        chain, inner = [run], run
        while inner.nested_agent_id is not None:
            parent = by_agent.get(inner.nested_agent_id)
            call = _call_around(tx, inner)
            if parent is None or call is None or call.on_interrupt != "rerun" or parent.driver != "agent":
                kept -= {one.run_id for one in chain}  # its question can reach nobody: it is stopped with its parent
                break
            chain.append(parent)
            inner = parent
        else:
            kept |= {one.run_id for one in chain}
    return kept


def _call_around(tx: ReadTx, run: RunRecord) -> CallRecord | None:
    try:
        return tx.get(CallRecord, run.nested_agent_id, run.nested_call_id)
    except DamagedRecord:
        return None


def _leave_interrupted(ledger: Ledger, stopping: list[RunRecord]) -> None:
    """What a stopped child still says is not shown in its parent's call when that was interrupted."""
    for run in stopping:
        try:
            record = ledger.run(run.run_id)
            opening.leave_finished_call(ledger, record)
        except (DamagedRecord, AgentNotFound, RunNotFound) as error:
            log.error("The run %s is stopped, and its parent cannot be read. %s", run.run_id, error)
        else:
            ledger.save_run(record)


def _is_to_wait(tx: ReadTx, run: RunRecord) -> bool:
    try:
        return _asks(tx, run) or _only_decided(tx, run)
    except DamagedRecord:  # it is interrupted, which says so
        return False


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
    rows = [tx.get(CallRecord, run.agent_id, call_id) for call_id in stored.round_calls(run)]
    return [row for row in rows if row is not None]


def _decided(tx: ReadTx, kept: set[str]) -> list[str]:
    """Agents whose decision was acknowledged and not carried out yet."""
    found: list[str] = []
    for run_id in sorted(kept):
        run = tx.get(RunRecord, run_id)
        if run is None or run.agent_id is None:
            continue
        try:
            decided = tx.count(CallRecord, run_id=run_id, state="approved") or _only_decided(tx, run)
        except DamagedRecord:  # it cannot wait any longer, which is found by whoever looks at it
            decided = True
        if decided:
            found.append(run.agent_id)
    return found


def _keep(ledger: Ledger, kept: set[str]) -> None:
    """Shows the kept runs as waiting, and notes which of their calls were at work in the life that is over, and whose
    turn had not come in it (D1)."""
    for run_id in sorted(kept):
        try:
            record = ledger.run(run_id)
            agent = ledger.agent(record.agent_id or "")
            at_work, not_begun = (ledger.calls_of(record, state=state) for state in ("dispatched", "proposed"))
        except (DamagedRecord, AgentNotFound) as error:
            log.error("The run %s waits, and its agent cannot be read. %s", run_id, error)
            continue
        ledger.set_state(agent, "waiting", "approval")
        for row in at_work:
            rounds.lose(ledger, row)
        for row in not_begun:
            rounds.not_started(ledger, row)


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
    messages, usage = ending.stored_messages(ledger, agent, record), stored.usage(record)
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
    rows = await rt.store.read(lambda tx: tx.find(InboxRecord, state="unread", damaged={}))
    return list(dict.fromkeys(row.agent_id for row in rows))
