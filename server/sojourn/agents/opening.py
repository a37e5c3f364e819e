"""The transitions that open a pass: a prompt, a resume, an unfinished run carried on.

The inbox is read at the start, ahead of a prompt's own text. What an unfinished run left open is closed first: its
placeholders stay pending, its open approvals are closed, calls that never came back are failed with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sojourn.core.agent import Cause, Origin
from sojourn.core.errors import InvalidParams, NothingToResume
from sojourn.core.messages import ToolCallPart, ToolChoice, UserMessage, tool_result
from sojourn.store.records import AgentRecord, CallRecord, RunRecord

from . import ending, hooks, mailbox, rounds, stored, turns
from .ledger import Ledger
from .passes import Over, Pass, Todo
from .runtime import Conversation, Runtime


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request asks of the run that it begins, besides an answer."""

    tool_choice: ToolChoice | None = None
    output_schema: Mapping[str, Any] | None = None

    def __bool__(self) -> bool:
        return self.tool_choice is not None or self.output_schema is not None

    def tell(self, p: Pass) -> None:
        """Tells a run that has not begun. Raises `InvalidParams` for a tool that the agent does not have."""
        if self.tool_choice is not None:
            name = self.tool_choice.name
            if name is not None and name not in p.tools:
                known = ", ".join(sorted(p.tools)) or "none"
                raise InvalidParams(f"The agent has no tool {name!r}; it has: {known}.", field="toolChoice")
            p.run.tool_choice(self.tool_choice)
        if self.output_schema is not None:
            p.run.output_schema(self.output_schema, taken=p.tools)

    def refuse_for(self, p: Pass) -> None:
        """Raises `InvalidParams` if there is any: an unfinished run goes on under what it began with."""
        if self:
            field = "toolChoice" if self.output_schema is None else "outputSchema"
            raise InvalidParams(
                f"The run {p.run_id!r} goes on under what it began with; only a new run takes {field}.", field=field
            )


NO_WISHES = Wishes()


def prompt(
    ledger: Ledger,
    p: Pass,
    conversation: Conversation,
    message: UserMessage,
    *,
    old: Pass | None,
    cause: Cause,
    on_approval: str | None,
    origin: Origin | None,
    nest: tuple[str, str] | None = None,
) -> None:
    """A prompt is accepted: a new run begins with what the inbox holds, then the prompt, then its first turn."""
    agent = _enter(ledger, p, on_approval=on_approval, origin=origin, nest=nest, old=old)
    turns.start(ledger, p, cause, origin=origin)
    _close(ledger, p, agent, conversation, old)
    if agent.inbox:
        mailbox.read(ledger, p)
    p.run.inject([message])
    turns.show(ledger, p, *p.records(ledger), None)
    p.todo = turns.turn(ledger, p)


def fresh(ledger: Ledger, p: Pass, conversation: Conversation, *, cause: Cause, origin: Origin | None) -> None:
    """Resume without an unfinished run: a new run from where the conversation stands. Raises `NothingToResume`."""
    agent = ledger.agent(p.agent_id)
    if not mailbox.gather(ledger, agent) and not agent.needs_reply:
        raise NothingToResume(
            f"The agent {agent.agent_id!r} is {agent.state}: its inbox is empty and no reply is owed.",
            agentId=agent.agent_id,
        )
    _enter(ledger, p, on_approval=None, origin=origin, nest=None, old=None)
    turns.start(ledger, p, cause, origin=origin)
    _close(ledger, p, agent, conversation, None)
    if agent.inbox:
        mailbox.read(ledger, p)
    p.todo = turns.turn(ledger, p)


def _enter(
    ledger: Ledger,
    p: Pass,
    *,
    on_approval: str | None,
    origin: Origin | None,
    nest: tuple[str, str] | None,
    old: Pass | None,
) -> AgentRecord:
    agent = ledger.agent(p.agent_id)
    if old is not None:
        finished = ledger.run(old.run_id)
        finished.active = False
        ledger.save_run(finished)
    record = RunRecord(
        run_id=p.run_id,
        agent_id=agent.agent_id,
        conversation=agent.conversation,
        base=len(p.run.history),
        created_at=ledger.now,
        updated_at=ledger.now,
        state=p.run.state,
        max_turns=p.run.turn_limit,
        on_approval=on_approval,
        origin=origin.json_bytes().decode() if origin else None,
    )
    record.nested_agent_id, record.nested_call_id = nest or (None, None)
    ledger.adopt_run(record)
    p.entries_seen = ledger.entries.written
    return agent


def _close(ledger: Ledger, p: Pass, agent: AgentRecord, conversation: Conversation, old: Pass | None) -> None:
    """Closes what was left open before: the old run's round, and imported calls that have no result."""
    record = ledger.run(p.run_id)
    if old is not None:
        rounds.close_approvals(ledger, agent, record, decision="closed", by="policy", run_id=old.run_id)
        if old.run.state == "executing_tools":
            rounds.close_for_good(ledger, old, agent, record, p)
    if conversation.open_calls:
        for row in ledger.tx.find(CallRecord, owner=agent.agent_id, state="interrupted", result=None):
            _fail_imported(ledger, p, agent, record, row)
    _rebase(p, conversation, record, agent)


def _fail_imported(ledger: Ledger, p: Pass, agent: AgentRecord, record: RunRecord, row: CallRecord) -> None:
    row.result = rounds.text_result(rounds.INTERRUPTED)
    ledger.tx.update(row, "result")
    call = ToolCallPart(id=row.call_id, name=row.tool_name, arguments=stored.args(row))
    message = tool_result(call, rounds.INTERRUPTED, is_error=True).model_copy(
        update={"message_id": f"msg-{agent.next_message}", "at": ledger.now}
    )
    agent.next_message += 1
    rounds.warn_interrupted(ledger, agent, record, row, started=True)
    body = ledger.append_message(agent, message)
    p.conversation.add(message, body)
    p.bodies.append(body)
    ledger.show_message(agent, message, body, run=record)


def _rebase(p: Pass, conversation: Conversation, record: RunRecord, agent: AgentRecord) -> None:
    """What closing added to the conversation is the new run's history."""
    if len(conversation.messages) > len(p.run.history):
        p.run.with_history(conversation.messages)
        record.base = len(conversation.messages)
    assert record.base == agent.message_count


def carry_on(
    rt: Runtime,
    ledger: Ledger,
    p: Pass,
    *,
    cause: Cause,
    origin: Origin | None,
    forced: bool = False,
    lost: tuple[str, ...] = (),
) -> None:
    """Resume of a paused or interrupted run: the same run with what is left of its budget. Raises `NothingToResume`."""
    agent, record = p.records(ledger)
    p.sync_entries(ledger)
    if not forced:
        _check_something_to_do(ledger, p, agent)
    if cause != "child":
        leave_finished_call(ledger, record)
    turns.start(ledger, p, cause, origin=origin)
    _tell_lost(ledger, p, agent, record, lost)
    if record.stop_requested:
        p.todo = stop(ledger, p)
        return
    if p.run.state == "executing_tools":
        p.todo = _carry_on_round(rt, ledger, p)
        return
    if p.run.state == "awaiting_model":
        p.run.withdraw_call()
    if agent.inbox:
        mailbox.read(ledger, p)
    if p.config.pause_on_pending and agent.pending_calls and cause == "resume" and _run_waits(ledger, p):
        p.todo = ending.end(ledger, p, "paused")  # D5: what arrived is added, the rest is still owed
        return
    p.todo = turns.turn(ledger, p)


def stop(ledger: Ledger, p: Pass) -> Over:
    """Stops the open pass of a run wherever it stands."""
    return rounds.stop_round(ledger, p) if p.run.state == "executing_tools" else turns.stop_model_call(ledger, p)


def leave_finished_call(ledger: Ledger, record: RunRecord) -> None:
    """A child that is carried on by itself is shown in its parent's call only while that call is at work."""
    if record.nested_agent_id is None or record.nested_call_id is None:
        return
    parent = ledger.tx.get(AgentRecord, record.nested_agent_id)
    outer = ledger.active_run(parent) if parent is not None else None
    call = ledger.call(record.nested_agent_id, record.nested_call_id)
    if outer is None or not outer.pass_open or call is None or call.state != "dispatched":
        record.nested_agent_id = None  # which call began it is still known, should that call run again


def _tell_lost(ledger: Ledger, p: Pass, agent: AgentRecord, record: RunRecord, lost: tuple[str, ...]) -> None:
    """Calls of a document that were dispatched before it was saved: failed, never run; their messages are shown."""
    for call_id in lost:
        text = f"The call {call_id!r} was dispatched before its run was saved; it was not run again."
        ledger.warning(agent, "callInterrupted", text, run=record, data={"callId": call_id})
    if lost:
        turns.show(ledger, p, agent, record, None)


def _carry_on_round(rt: Runtime, ledger: Ledger, p: Pass) -> Todo:
    rows = rounds.round_rows(ledger, p)
    if all(row.state in ("proposed", "preresolved") for row in rows):
        assert p.run.round is not None
        return hooks.enter_round(ledger, rt, p, p.run.round.owed())
    for row in rows:
        if row.state == "proposed":
            rounds.not_started(ledger, row)
    return rounds.advance(ledger, rt, p)


def _run_waits(ledger: Ledger, p: Pass) -> bool:
    rows = ledger.tx.find(CallRecord, owner=p.agent_id, state="pending")
    return any(row.run_id == p.run_id for row in rows)


def _check_something_to_do(ledger: Ledger, p: Pass, agent: AgentRecord) -> None:
    """D6: nothing in the inbox, and the run waits for pending calls or undecided approvals only."""
    if p.records(ledger)[1].stop_requested:
        return
    if p.run.state == "executing_tools":
        rows = rounds.round_rows(ledger, p)
        states = {row.state for row in rows}
        if "awaiting_approval" not in states or "approved" in states:
            return
        waits = "its approvals are undecided"
    elif mailbox.gather(ledger, agent):
        return
    elif p.config.pause_on_pending and agent.state == "paused" and _run_waits(ledger, p):
        waits = "its pending calls have no result yet"
    else:
        return
    raise NothingToResume(
        f"The agent {agent.agent_id!r} is {agent.state}: its inbox is empty and {waits}.", agentId=agent.agent_id
    )
