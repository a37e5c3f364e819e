"""The transitions of a tool round: calls are gated, dispatched, returned, and the round is closed.

`dispatched` is a durable mark, committed before a tool starts; it is what makes "never run twice" true. Results are
recorded as each call ends and enter the conversation in call order when the round closes.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from sojourn.core import events as ev
from sojourn.core import hot_events as hot
from sojourn.core.approvals import Approval, Decision, PathStep, Preview, args_sha256, misfit
from sojourn.core.messages import InputPart
from sojourn.core.run import PendingToolCall
from sojourn.store.records import AgentRecord, ApprovalRecord, CallRecord, RunRecord
from sojourn.tools.base import ToolOutput

from . import clock, ending, mailbox, policy, previews, stored
from .ledger import ApprovalClosed, ApprovalOpened, Ledger
from .passes import Over, Pass, RunTools, Todo, Wait, result_message
from .runtime import Runtime

INTERRUPTED = (
    "Interrupted: the daemon stopped while this call was at work. It may have taken effect; it was not run again."
)
NOT_STARTED = "Not started: the daemon stopped before this call's turn came."
STOPPED = "Stopped by the user."
UNASKED = (
    "Not executed: the daemon stopped while this call waited for a decision, and the run that it worked for ended."
)
OUT_OF_TIME = "Ended: the run reached its limit 'wallClockS' while this call was at work. It may have taken effect."
TOO_LATE = "Not started: the run had reached its limit 'wallClockS'."
HAS_RESULT = ("preresolved", "returned", "pending", "resolved", "failed", "denied", "interrupted")


def open_round(ledger: Ledger, rt: Runtime, p: Pass, calls: Sequence[PendingToolCall], *, fresh: bool = False) -> Todo:
    """Enters the calls of a turn, gates each by its policy, and dispatches those that need nobody.

    `fresh`: they were made in this transition, so none of them has a row yet.
    """
    agent, record = p.records(ledger)
    p.sync_entries(ledger)
    for position, pending in enumerate(calls):
        row = None if fresh else ledger.call(agent.agent_id, pending.call.id)
        if row is None:
            row = new_row(ledger, p, agent, record, pending, position)
            if row.state == "proposed":
                _gate(ledger, rt, p, agent, record, row)
            ledger.adopt_call(row)
        elif row.state == "proposed":
            _gate(ledger, rt, p, agent, record, row)
            ledger.tx.put(row)
    return advance(ledger, rt, p)


def new_row(
    ledger: Ledger, p: Pass, agent: AgentRecord, record: RunRecord, pending: PendingToolCall, position: int
) -> CallRecord:
    """The row of a call that was made now."""
    call = pending.call
    args = call.arguments if isinstance(call.arguments, dict) else {}
    row = CallRecord(
        owner=agent.agent_id,
        call_id=call.id,
        run_id=record.run_id,
        position=position,
        tool_name=call.name,
        args=orjson.dumps(args).decode(),
        args_sha256=args_sha256(args),
        state="proposed",
        since=ledger.now,
    )
    tool = p.tools.get(call.name)
    if tool is not None:
        row.on_interrupt = tool.info.on_interrupt
        row.client_id = tool.info.source.removeprefix("client:") if tool.info.source.startswith("client:") else None
    if pending.preresolved_result is not None:
        row.state = "preresolved"
        row.result = _result_json(pending.preresolved_result.content, is_error=True)
    return row


def _result_json(content: Sequence[InputPart], *, is_error: bool = False, pending: bool = False) -> str:
    wire = orjson.Fragment(parts_json(content))
    return orjson.dumps({"content": wire, "isError": is_error, "pending": pending}).decode()


def parts_json(content: Sequence[InputPart]) -> bytes:
    """Parts as a JSON array in wire form."""
    return b"[" + b",".join([part.json_bytes() for part in content]) + b"]"


def text_result(text: str, *, is_error: bool = True) -> str:
    """A result of one text part as a call's row holds it."""
    return orjson.dumps({"content": [{"type": "text", "text": text}], "isError": is_error, "pending": False}).decode()


def _gate(ledger: Ledger, rt: Runtime, p: Pass, agent: AgentRecord, record: RunRecord, row: CallRecord) -> None:
    said = policy.of(p, row)
    if row.tool_name not in p.tools:
        row.state, row.result = "failed", text_result(f"The tool {row.tool_name!r} is not available any more.")
    elif said == "deny":
        row.state, row.result = "denied", text_result(f"Denied by policy: {row.tool_name!r} may not run.")
    elif said == "ask" and (fault := misfit(stored.args(row), p.tools[row.tool_name].info.spec.input_schema)):
        place, why = fault
        text = f"Not executed, nobody was asked: the arguments do not fit the schema of {row.tool_name!r}: {why}"
        row.state, row.result = "failed", text_result(f"{text} (at {place!r})." if place else f"{text}.")
    elif said == "ask" and on_approval(ledger, rt, p, record) == "deny":
        row.state = "denied"
        row.result = text_result(f"Denied: {row.tool_name!r} needs an approval and this agent asks nobody.")
    elif said == "ask" and isinstance(preview := previews.of(p, row), previews.Faulty):
        row.state, row.result = "failed", text_result(preview.text)
    elif said == "ask":
        row.state = "awaiting_approval"
        _ask(ledger, p, agent, record, row)


def on_approval(ledger: Ledger, rt: Runtime, p: Pass, record: RunRecord) -> str:
    """What an open approval does to this run (D8)."""
    unattended = p.config.on_approval_unattended
    if unattended is not None and record.on_approval is None and not policy.is_attended(ledger, rt, p):
        return unattended
    return record.on_approval or p.config.on_approval or "wait"


def _ask(ledger: Ledger, p: Pass, agent: AgentRecord, record: RunRecord, row: CallRecord) -> None:
    seconds = p.config.limits.approval_s if p.config.limits else None
    preview = previews.of(p, row)
    approval = Approval(
        approval_id=clock.new_id("approval"),
        agent_id=agent.agent_id,
        path=_path(ledger, record),
        run_id=record.run_id,
        call_id=row.call_id,
        tool_name=row.tool_name,
        args=stored.args(row),
        args_sha256=row.args_sha256,
        since=ledger.now,
        expires_at=clock.later(seconds) if seconds else None,
        covers=policy.covers(p, row),
        preview=preview if isinstance(preview, Preview) else None,
        leads_to=preview.path if isinstance(preview, previews.Leads) else None,
    )
    ledger.tx.insert(
        ApprovalRecord(
            approval_id=approval.approval_id,
            agent_id=agent.agent_id,
            run_id=record.run_id,
            call_id=row.call_id,
            since=ledger.now,
            body=approval.json_bytes().decode(),
            expires_at=approval.expires_at,
        )
    )
    agent.approvals += 1
    ledger.event(agent, ev.ApprovalRequested(approval=approval), run=record)
    ledger.tx.publish(ApprovalOpened(agent.agent_id, approval.approval_id))
    show_waiting(ledger, record)


def _path(ledger: Ledger, record: RunRecord) -> tuple[PathStep, ...]:
    steps: list[PathStep] = []
    inner: RunRecord | None = record
    while inner is not None and inner.nested_agent_id and inner.nested_call_id:
        steps.insert(0, PathStep(agent_id=inner.nested_agent_id, call_id=inner.nested_call_id))
        inner = ledger.active_run(ledger.agent(inner.nested_agent_id))
    return tuple(steps)


def show_waiting(ledger: Ledger, record: RunRecord) -> None:
    """Shows the ancestors of a run whose child waits for a decision as waiting too."""
    inner: RunRecord | None = record
    while inner is not None and inner.nested_agent_id:
        parent = ledger.agent(inner.nested_agent_id)
        inner = ledger.active_run(parent)
        if inner is not None and inner.pass_open:
            ledger.set_state(parent, "waiting", "approval")


def round_rows(ledger: Ledger, p: Pass) -> list[CallRecord]:
    """The rows of the round's calls in call order."""
    calls = p.run.round.calls if p.run.round is not None else ()
    rows = [ledger.call(p.agent_id, call.id) for call in calls]
    return [row for row in rows if row is not None]


def advance(ledger: Ledger, rt: Runtime, p: Pass) -> Todo:
    """Dispatches what may run and has a place, and closes the round when nothing is owed any more."""
    agent, record = p.records(ledger)
    rows = round_rows(ledger, p)
    start = _dispatch(ledger, rt, p, agent, record, rows)
    asked = any(row.state == "awaiting_approval" for row in rows)
    if p.at_work:
        waits = asked or any(_child_waits(ledger, row) for row in rows)
        ledger.set_state(agent, *(("waiting", "approval") if waits else ("running", "tool")))
        p.save(ledger)
        return RunTools(tuple(start))
    if not asked:
        return close_round(ledger, rt, p, rows)
    if on_approval(ledger, rt, p, record) == "pause":
        return ending.end(ledger, p, "paused")
    ledger.set_state(agent, "waiting", "approval")
    p.save(ledger)
    return Wait()


def _may_rerun(p: Pass, row: CallRecord) -> bool:
    """Whether a call was at work in a former life and promises that running it again is harmless (D11)."""
    return row.state == "dispatched" and row.on_interrupt == "rerun" and row.call_id not in p.at_work


def _child_waits(ledger: Ledger, row: CallRecord) -> bool:
    if row.child_agent_id is None or row.state != "dispatched":
        return False
    child = ledger.tx.get(AgentRecord, row.child_agent_id)
    return child is not None and child.state == "waiting"


def _dispatch(
    ledger: Ledger, rt: Runtime, p: Pass, agent: AgentRecord, record: RunRecord, rows: list[CallRecord]
) -> list[CallRecord]:
    places = rt.limits.tool_concurrency - len(p.at_work)
    start: list[CallRecord] = []
    for row in rows:
        if places <= len(start):
            break
        if row.state == "approved" and not policy.is_bound(ledger, row):
            row.state, row.result = "failed", text_result(policy.CHANGED)
            ledger.tx.update(row, "state", "result")
        elif row.state == "proposed" and p.seconds_left == 0:
            row.state, row.result = "failed", text_result(TOO_LATE)
            ledger.tx.update(row, "state", "result")
        elif row.state in ("proposed", "approved"):
            row.state = "dispatched"
            ledger.tx.update(row, "state", later=True)
            ledger.event(
                agent,
                hot.tool_exec_start(row.call_id, row.tool_name, orjson.Fragment(row.args)),
                run=record,
            )
            start.append(row)
        elif _may_rerun(p, row) and not mailbox.take_answer(ledger, agent, record, row):
            if p.seconds_left == 0:
                interrupt(ledger, agent, record, row)
                continue
            row.result = None  # it is at work again
            ledger.tx.update(row, "result", later=True)
            start.append(row)
    p.at_work.update(row.call_id for row in start)
    return start


def returned(ledger: Ledger, rt: Runtime, p: Pass, call_id: str, output: ToolOutput) -> Todo | None:
    """A tool has ended: its result is recorded. None when the call was settled before (stopped): the output is late."""
    agent, record = p.records(ledger)
    p.running.pop(call_id, None)
    p.at_work.discard(call_id)
    row = ledger.call(agent.agent_id, call_id)
    if row is None or row.state != "dispatched":
        return None
    record_output(ledger, rt, agent, record, row, output)
    if p.leaving or record.stop_requested or not record.pass_open:
        return None  # whoever stops the run, or carries it on, uses the result
    return advance(ledger, rt, p)


def record_output(
    ledger: Ledger, rt: Runtime, agent: AgentRecord, record: RunRecord, row: CallRecord, output: ToolOutput
) -> None:
    """Writes a tool's output into its call's row and tells it: `toolExecEnd`."""
    body = _result_json(output.content, is_error=output.is_error, pending=output.is_pending)
    if len(body) > rt.limits.max_result_bytes:
        most = rt.limits.max_result_bytes
        text = f"The result of {row.tool_name!r} has {len(body)} bytes; the limit maxResultBytes is {most}."
        output = ToolOutput.error(text)
        body = text_result(text)
    row.result = body
    row.state = "pending" if output.is_pending else "returned"
    if output.is_pending:
        row.placeholder = parts_json(output.content).decode()
        row.sent = bool(output.sent)
        agent.pending_calls += 1
    ledger.tx.update(row, "state", "result", "placeholder", "sent", later=True)
    ledger.event(agent, hot.tool_exec_end(row.call_id, row.tool_name, orjson.Fragment(body)), run=record)


def close_round(ledger: Ledger, rt: Runtime, p: Pass, rows: list[CallRecord]) -> Todo:
    """Results enter the conversation in call order; then the pass pauses or the next turn begins."""
    from . import turns

    agent, record = p.records(ledger)
    settle(ledger, p, agent, record, rows)
    ledger.event(agent, hot.turn_end(p.run.turn), run=record)
    if p.config.pause_on_pending and any(row.state == "pending" for row in rows):
        return ending.end(ledger, p, "paused")
    return turns.next_turn(ledger, p)


def settle(ledger: Ledger, p: Pass, agent: AgentRecord, record: RunRecord, rows: list[CallRecord]) -> None:
    """Gives the machine every result of the round; calls that never came back are failed, each with a warning."""
    for row in rows:
        if row.state not in HAS_RESULT:
            interrupt(ledger, agent, record, row)
    assert p.run.round is not None
    owed = {call.id for call in p.run.round.open_calls}
    p.run.tool_results([result_message(row, stored.result(row)) for row in rows if row.call_id in owed])
    for message, body in p.save(ledger):
        ledger.show_message(agent, message, body, run=record)


def lose(ledger: Ledger, row: CallRecord) -> None:
    """Notes of a dispatched call that the daemon which ran it is gone; it is told when the round closes."""
    row.result = text_result(INTERRUPTED)
    ledger.tx.update(row, "result")


def is_lost(row: CallRecord) -> bool:
    """Whether a dispatched call is known not to be at work any more: a later recovery finds nothing new in it."""
    return row.state == "dispatched" and row.result is not None


def interrupt(ledger: Ledger, agent: AgentRecord, record: RunRecord, row: CallRecord) -> None:
    """A call that never came back: a queued answer is its result (D4), else it failed, with a warning."""
    if row.state == "dispatched" and mailbox.take_answer(ledger, agent, record, row):
        return
    started = row.state == "dispatched"
    row.state, row.result = "interrupted", text_result(INTERRUPTED if started else NOT_STARTED)
    ledger.tx.update(row, "state", "result", later=True)
    warn_interrupted(ledger, agent, record, row, started=started)


def warn_interrupted(ledger: Ledger, agent: AgentRecord, record: RunRecord, row: CallRecord, *, started: bool) -> None:
    """One warning for a call that never came back, or never began."""
    text = f"The call {row.call_id!r} of {row.tool_name!r} was {'interrupted' if started else 'not started'}."
    code = "callInterrupted" if started else "callNotStarted"
    ledger.warning(agent, code, text, run=record, data={"callId": row.call_id, "toolName": row.tool_name})


def close_stored(ledger: Ledger, agent: AgentRecord, record: RunRecord) -> None:
    """Closes the open round of a run that ends without being loaded: from the rows, results in call order."""
    for call_id in stored.round_calls(record):
        row = ledger.call(agent.agent_id, call_id)
        if row is None:
            continue
        if row.state not in HAS_RESULT:
            interrupt(ledger, agent, record, row)
        message = result_message(row, stored.result(row)).model_copy(
            update={"message_id": f"msg-{agent.next_message}", "at": ledger.now}
        )
        agent.next_message += 1
        ledger.show_message(agent, message, ledger.append_message(agent, message), run=record)


def not_started(ledger: Ledger, row: CallRecord) -> None:
    """A call of a round that had begun, whose turn had not come when the daemon died (D1)."""
    row.state, row.result = "failed", text_result(NOT_STARTED)
    ledger.tx.update(row, "state", "result", later=True)


def close_for_good(ledger: Ledger, old: Pass, agent: AgentRecord, record: RunRecord, p: Pass) -> None:
    """Closes the round of a run that ends because another begins: its calls get results, its history is whole."""
    _enter_missing(ledger, old)
    rows = round_rows(ledger, old)
    for row in rows:
        if row.state in ("awaiting_approval", "approved", "proposed"):
            row.state, row.result = "failed", text_result("Not executed: the run was ended by a new prompt.")
            ledger.tx.update(row, "state", "result", later=True)
        elif row.state not in HAS_RESULT:
            interrupt(ledger, agent, record, row)
    assert old.run.round is not None
    owed = {call.id for call in old.run.round.open_calls}
    old.run.tool_results([result_message(row, stored.result(row)) for row in rows if row.call_id in owed])
    for message, body in old.save(ledger):
        p.bodies.append(body)
        ledger.show_message(agent, message, body, run=record)


def _enter_missing(ledger: Ledger, p: Pass) -> None:
    """Enters the calls of a round that a client opened by hand: nothing has judged or dispatched them."""
    assert p.run.round is not None
    agent, record = p.records(ledger)
    for position, pending in enumerate(p.run.round.owed()):
        if ledger.call(agent.agent_id, pending.call.id) is None:
            ledger.adopt_call(new_row(ledger, p, agent, record, pending, position))


def stop_round(ledger: Ledger, p: Pass) -> Over:
    """Stopped in a tool round: finished results are kept, every other call gets "stopped by the user"."""
    agent, record = p.records(ledger)
    _enter_missing(ledger, p)
    rows = round_rows(ledger, p)
    close_approvals(ledger, agent, record, decision="stopped", by="stop")
    for row in rows:
        row_now = ledger.call(agent.agent_id, row.call_id)
        assert row_now is not None
        if row_now.state in HAS_RESULT:
            continue
        started = row_now.state == "dispatched"
        row_now.state, row_now.result = "failed", text_result(STOPPED)
        ledger.tx.update(row_now, "state", "result")
        if started:
            end = hot.tool_exec_end(row.call_id, row.tool_name, orjson.loads(row_now.result))
            ledger.event(agent, end, run=record)
        if reason := p.goes_on.pop(row.call_id, None):
            data = {"callId": row.call_id, "toolName": row.tool_name}
            ledger.warning(agent, "toolGoesOn", reason, run=record, data=data)
    settle(ledger, p, agent, record, round_rows(ledger, p))
    ledger.event(agent, hot.turn_end(p.run.turn), run=record)
    p.run.abandon(ending.stopped_by_user())
    return ending.end(ledger, p, "stopped")


def close_approvals(
    ledger: Ledger,
    agent: AgentRecord,
    record: RunRecord,
    *,
    decision: str,
    by: str,
    run_id: str | None = None,
    call_id: str | None = None,
) -> None:
    """Closes the open approvals of a run (`record`'s, unless `run_id` names another; all, or one call's)."""
    if not agent.approvals:
        return
    for row in ledger.tx.find(ApprovalRecord, agent_id=agent.agent_id, decided=False):
        if row.run_id != (run_id or record.run_id) or call_id not in (None, row.call_id):
            continue
        approval = stored.approval(row)
        made = Decision.model_validate({"decision": decision, "by": by, "at": ledger.now})
        decide_row(ledger, agent, record, row, approval.model_copy(update={"decision": made}))


def decide_row(
    ledger: Ledger, agent: AgentRecord, record: RunRecord | None, row: ApprovalRecord, approval: Approval
) -> None:
    """Writes a decision: once, for everybody."""
    row.decided, row.body = True, approval.json_bytes().decode()
    ledger.tx.update(row, "decided", "body")
    agent.approvals -= 1
    ledger.event(agent, ev.ApprovalResolved(approval=approval), run=record)
    ledger.tx.publish(ApprovalClosed(approval.approval_id))
