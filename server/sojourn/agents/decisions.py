"""Approvals: listing them, and the one decision that each gets.

What runs is what was approved: the decision is bound to the hash of the arguments, and the call runs with the
arguments in its row. A decision is durable before it is acknowledged; then it wakes the run, wherever it waits.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import orjson

from sojourn.core.agent import Caller
from sojourn.core.approvals import Approval, Decision, args_sha256, misfit
from sojourn.core.errors import AlreadyDecided, ApprovalNotFound, DamagedRecord, InvalidParams, StorageError
from sojourn.core.messages import InputPart
from sojourn.core.run import RunEntry
from sojourn.store.base import ReadTx
from sojourn.store.records import AgentRecord, ApprovalRecord, CallRecord, EntryRecord, RunRecord

from . import children, clock, policy, rounds, stored
from .ledger import Ledger, StopAsked, Wake
from .passes import insert_entry
from .runtime import Runtime

log = logging.getLogger(__name__)


async def listed(rt: Runtime, agent_id: str | None) -> dict[str, Any]:
    """Open approvals: of an agent and its descendants, or of all, oldest first."""
    if agent_id is None:
        rows = await rt.store.read(lambda tx: tx.find(ApprovalRecord, decided=False, order="since", damaged={}))
    else:
        await rt.agent(agent_id)

        def query(tx: ReadTx) -> list[ApprovalRecord]:
            family = (agent_id, *children.descendants(tx, agent_id))
            rows = [
                row for one in family for row in tx.find(ApprovalRecord, agent_id=one, decided=False, order="since")
            ]
            return sorted(rows, key=lambda row: row.since)

        rows = await rt.store.read(query)
    return {"approvals": _shown(rows, all_agents=agent_id is None)}


def _shown(rows: list[ApprovalRecord], *, all_agents: bool) -> list[dict[str, Any]]:
    """Of all agents, a damaged one hides no other; who asks about an agent is told."""
    shown = []
    for row in rows:
        try:
            shown.append(stored.approval(row).wire())
        except DamagedRecord as error:
            if not all_agents:
                raise
            log.error("An open approval is not listed. %s", error)
    return shown


async def decide(
    rt: Runtime,
    caller: Caller,
    approval_id: str,
    decision: str,
    *,
    arguments: dict[str, Any] | None = None,
    content: tuple[InputPart, ...] | None = None,
    reason: str | None = None,
    scope: str | None = None,
    pattern: str | None = None,
    by: str | None = None,
) -> Any:
    """Decides. Raises `AlreadyDecided` naming the winner, `ApprovalNotFound`, `InvalidParams` for misfit arguments."""
    who = by or caller.client_id or "anonymous"
    if by is None:
        await _expire_late(rt, approval_id)

    def change(ledger: Ledger) -> dict[str, Any]:
        row = ledger.tx.get(ApprovalRecord, approval_id)
        if row is None:
            raise ApprovalNotFound(f"There is no approval {approval_id!r}.", approvalId=approval_id)
        approval = stored.approval(row)
        if row.decided:
            raise _late(approval)
        _check(rt, ledger, row, decision, arguments)
        runs = {"approve": approval.args_sha256, "edit": args_sha256(arguments)}.get(decision)
        made = Decision.model_validate(
            {
                "decision": decision,
                "by": who,
                "at": ledger.now,
                "arguments": arguments if decision == "edit" else None,
                "content": content if decision == "answer" else None,
                "reason": reason,
                "scope": scope,
                "covers": _covered(rt, ledger, row, decision, scope, arguments=arguments, pattern=pattern),
                "args_sha256": runs,
            }
        )
        decided = approval.model_copy(update={"decision": made})
        _apply(ledger, row, decided)
        return {"approval": decided.wire()}

    return await rt.answer_once(caller, "decide", change)


def _late(approval: Approval) -> AlreadyDecided:
    made = approval.decision
    assert made is not None
    return AlreadyDecided(
        f"The approval {approval.approval_id!r} was decided already: {made.decision} by {made.by!r} at {made.at}.",
        decision=made.decision,
        by=made.by,
        at=made.at,
    )


def _check(rt: Runtime, ledger: Ledger, row: ApprovalRecord, decision: str, arguments: dict[str, Any] | None) -> None:
    if decision != "edit":
        return
    if arguments is None:
        raise InvalidParams("The decision 'edit' needs 'arguments', which the call then runs with.", field="arguments")
    call = _call_of(ledger, row)
    config = rt.config_of(stored.config(ledger.agent(row.agent_id)))
    if policy.forbids(rt, ledger.agent(row.agent_id), call, arguments):
        raise InvalidParams(f"A rule denies {call.tool_name!r} with these arguments.", field="arguments")
    tool = rt.toolset.tools_for(row.agent_id, config, also=(call.tool_name,)).get(call.tool_name)
    if tool is None:
        return
    fault = misfit(arguments, tool.info.spec.input_schema)
    if fault is not None:
        place, why = fault
        raise InvalidParams(
            f"The edited arguments do not fit the schema of {call.tool_name!r}: {why}.",
            field=f"arguments.{place}" if place else "arguments",
        )


def _covered(
    rt: Runtime,
    ledger: Ledger,
    row: ApprovalRecord,
    decision: str,
    scope: str | None,
    *,
    arguments: dict[str, Any] | None,
    pattern: str | None,
) -> str | None:
    """The rule that a lasting decision makes; None for one that counts once."""
    if decision not in ("approve", "edit") or scope not in ("run", "agent"):
        if pattern is not None:
            raise InvalidParams(
                "A 'pattern' says what a lasting approval covers; it needs the decision 'approve' or 'edit' with the "
                "scope 'run' or 'agent'.",
                field="pattern",
            )
        return None
    call = _call_of(ledger, row)
    if arguments is not None:
        call = replace(call, args=orjson.dumps(arguments).decode())
    return policy.rule_for(rt, ledger.agent(row.agent_id), call, pattern)


def _call_of(ledger: Ledger, row: ApprovalRecord) -> CallRecord:
    call = ledger.call(row.agent_id, row.call_id)
    if call is None:
        raise stored.damaged(row, "call_id", "there is no such call")
    return call


def _apply(ledger: Ledger, row: ApprovalRecord, approval: Approval) -> None:
    """Writes the decision into the approval, its call and its run, and wakes whoever waits for it."""
    agent = ledger.agent(row.agent_id)
    record = ledger.run(row.run_id)
    call = _call_of(ledger, row)
    made = approval.decision
    assert made is not None
    _settle_call(call, made.decision, approval)
    ledger.tx.update(call, "state", "args", "args_sha256", "result")
    rounds.decide_row(ledger, agent, record if record.pass_open else None, row, approval)
    _keep_entry(ledger, record, approval)
    if made.covers is not None and made.scope == "agent":
        policy.allow_always(agent, made.covers)
    if made.decision == "abort":
        _abort(ledger, agent, record)
    _show_state(ledger, agent, record)
    if record.pass_open:
        ledger.tx.publish(Wake(row.agent_id))
        for step in reversed(approval.path):
            ledger.tx.publish(Wake(step.agent_id))


def _abort(ledger: Ledger, agent: AgentRecord, record: RunRecord) -> None:
    """The run is stopped; a paused one, which nothing goes on with until somebody does, is when it is carried on."""
    if record.pass_open:
        children.ask_to_stop(ledger, agent.agent_id)
        ledger.tx.publish(StopAsked(agent.agent_id))
    else:
        record.stop_requested = True
        ledger.save_run(record)


def _settle_call(call: CallRecord, decision: str, approval: Approval) -> None:
    made = approval.decision
    assert made is not None
    if decision in ("approve", "edit"):
        call.state = "approved"
        if made.arguments is not None:
            call.args = orjson.dumps(made.arguments).decode()
            call.args_sha256 = args_sha256(made.arguments)
    elif decision == "answer":
        call.state = "returned"
        wire = [part.wire() for part in made.content or ()]
        call.result = orjson.dumps({"content": wire, "isError": False, "pending": False}).decode()
    elif decision != "abort":
        call.state = "denied"
        why = f" Reason: {made.reason}" if made.reason else ""
        who = "the time limit" if made.by == "limit" else "the reviewer"
        call.result = rounds.text_result(f"Denied by {who}: {call.tool_name!r} was not run.{why}")


def _keep_entry(ledger: Ledger, record: RunRecord, approval: Approval) -> None:
    """A decision is part of its run: hooks and a resumed run see it. Written by the run itself when it is in memory."""
    made = approval.decision
    assert made is not None
    value: dict[str, Any] = {
        "approvalId": approval.approval_id,
        "callId": approval.call_id,
        "toolName": approval.tool_name,
        "decision": made.decision,
        "by": made.by,
        "at": made.at,
    }
    if made.scope and made.decision in ("approve", "edit"):
        value["scope"] = made.scope
    if made.covers is not None:
        value["covers"] = made.covers
    position = ledger.tx.count(EntryRecord, run_id=record.run_id)
    insert_entry(ledger, record.run_id, position, RunEntry(kind="approval", turn=record.turn, value=value))


def _show_state(ledger: Ledger, agent: AgentRecord, record: RunRecord) -> None:
    """With its last approval decided, the agent (and its ancestors) run again."""
    if not record.pass_open or agent.approvals:
        return
    ledger.set_state(agent, "running", "tool")
    inner = record
    while inner.nested_agent_id:
        parent = ledger.agent(inner.nested_agent_id)
        outer = ledger.active_run(parent)
        if outer is None or not outer.pass_open or parent.approvals:
            return
        ledger.set_state(parent, "running", "tool")
        inner = outer


async def _expire_late(rt: Runtime, approval_id: str) -> None:
    """A decision that comes after the time limit is too late, however busy the daemon was."""
    row = await rt.store.read(lambda tx: tx.get(ApprovalRecord, approval_id))
    if (
        row is not None
        and not row.decided
        and row.expires_at
        and stored.read(row, "expires_at", clock.seconds_until) <= 0
    ):
        await expire(rt, approval_id)


async def expire(rt: Runtime, approval_id: str) -> None:
    """The time limit of an approval has passed: it is denied, unless somebody was faster."""
    caller = Caller()
    try:
        await decide(rt, caller, approval_id, "expired", reason="Nobody decided in time.", by="limit")
    except (AlreadyDecided, ApprovalNotFound, StorageError):
        return
