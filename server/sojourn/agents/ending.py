"""How a pass ends, and what it came to.

`paused` and `interrupted` end the pass only; every other reason ends the run, and its agent takes the next prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import orjson

from sojourn.core import events as ev
from sojourn.core.agent import EndReason, ErrorInfo, Origin, PendingCall, RunOutcome
from sojourn.core.approvals import Approval
from sojourn.core.errors import Cancelled, DamagedRecord, SojournError
from sojourn.core.messages import AssistantMessage, Usage, text_of
from sojourn.core.values import Json
from sojourn.store.base import Damaged, ReadTx
from sojourn.store.records import (
    AgentRecord,
    ApprovalRecord,
    CallRecord,
    InboxRecord,
    MessageRecord,
    ModelCallRecord,
    RunRecord,
)

from . import stored
from .ledger import Ledger, PassEnded, Wake, bodies
from .passes import Over, Pass

_OUTCOME = ("reason", "from", "to", "conversation", "firstSeq", "lastSeq", "error")
_NO_USAGE = Usage().json_bytes().decode()


def error_info(error: Exception) -> ErrorInfo:
    """An error as runs and outcomes show it."""
    if isinstance(error, SojournError):
        data = error.data
        return ErrorInfo(
            kind=error.kind,
            message=error.message,
            retryable=data.get("retryable"),
            provider=data.get("provider"),
            status=data.get("status"),
        )
    return ErrorInfo(kind="internal", message=f"{type(error).__name__}: {error}")


def stopped_by_user() -> Cancelled:
    """With what a run is given up that somebody stopped."""
    return Cancelled("The run was stopped by the user.", reason="stopped by the user")


def end(ledger: Ledger, p: Pass, reason: EndReason, *, error: ErrorInfo | None = None) -> Over:
    """Ends the pass: `paused` where it is one, `agentEnd`, and the agent's rest state."""
    agent, record = p.records(ledger)
    p.save(ledger)
    if reason == "paused":
        ledger.event(
            agent, ev.Paused(pending=pending_of(ledger.tx, agent), approvals=open_of(ledger.tx, agent)), run=record
        )
    end_event = agent_end(reason, p.bodies, p.run.usage, error)
    close_record(
        ledger,
        agent,
        record,
        reason,
        end_event,
        error=error,
        outcome=lambda: _outcome(ledger, p, reason, error),
        best_effort=_is_best_effort(p),
    )
    return Over(reason)


def _outcome(ledger: Ledger, p: Pass, reason: EndReason, error: ErrorInfo | None) -> RunOutcome:
    """What `outcome_of` will read from the store, out of the pass."""
    agent, record = p.records(ledger)
    messages = tuple(p.conversation.messages[record.pass_first_message : agent.message_count])
    last = messages[-1] if messages and isinstance(messages[-1], AssistantMessage) else None
    return RunOutcome.trusted(
        agent_id=agent.agent_id,
        run_id=record.run_id,
        reason=reason,
        output=text_of(last.content) if last else "",
        content=last.content if last else (),
        messages=messages,
        model_calls=tuple(p.run.model_calls),
        pending_calls=pending_of(ledger.tx, agent),
        approvals=open_of(ledger.tx, agent),
        usage=p.run.usage,
        error=error,
        best_effort=_is_best_effort(p),
        first_seq=record.pass_first_seq,
        last_seq=agent.last_seq,
    )


def _is_best_effort(p: Pass) -> Literal[True] | None:
    return True if p.run.ending is not None and p.run.ending.error else None


def agent_end(reason: EndReason, messages: list[bytes], usage: Usage, error: ErrorInfo | None) -> bytes:
    """The `agentEnd` event as JSON."""
    tail = b',"error":' + error.json_bytes() if error else b""
    return b'{"type":"agentEnd","reason":"%s","messages":%s,"usage":%s%s}' % (
        reason.encode(),
        bodies(messages),
        usage.json_bytes(),
        tail,
    )


def interrupted_end(ledger: Ledger, agent: AgentRecord, record: RunRecord) -> bytes:
    """The `agentEnd` of a pass that was interrupted: its messages are read from the store."""
    return agent_end("interrupted", stored_messages(ledger, agent, record), stored.usage(record), None)


def stored_messages(ledger: Ledger, agent: AgentRecord, record: RunRecord) -> list[bytes]:
    """The pass's own messages, as stored. Raises `DamagedRecord`: they go out as they are."""
    rows = ledger.tx.find(
        MessageRecord, conversation=agent.conversation, order="position", after=record.pass_first_message
    )
    for row in rows:
        stored.message(row)
    return [row.body.encode() for row in rows]


def close_record(
    ledger: Ledger,
    agent: AgentRecord,
    record: RunRecord,
    reason: EndReason,
    end_event: bytes,
    *,
    error: ErrorInfo | None,
    outcome: Callable[[], RunOutcome] | None = None,
    best_effort: bool | None = None,
    by_daemon: bool = False,
) -> None:
    """Writes the end of a pass into the rows of its run and its agent. `by_daemon`: see `is_left_by_daemon`."""
    ledger.event(agent, end_event, run=record)
    resumable = reason in ("paused", "interrupted")
    record.pass_open, record.active, record.driver = False, resumable, None
    record.stop_requested, record.streaming_message = record.stop_requested and resumable, None
    record.crashes = record.crashes if reason == "interrupted" else 0
    record.outcome = orjson.dumps(
        {
            "reason": reason,
            "from": record.pass_first_message,
            "to": agent.message_count,
            "conversation": agent.conversation,
            "firstSeq": record.pass_first_seq,
            "lastSeq": agent.last_seq,
            "error": error.wire() if error else None,
            **({"bestEffort": True} if best_effort else {}),
            **({"byDaemon": True} if by_daemon else {}),
        }
    ).decode()
    agent.active_run_id = record.run_id if resumable else None
    ledger.set_state(agent, "paused" if reason == "paused" else "interrupted" if reason == "interrupted" else "idle")
    ledger.save_run(record)
    if not resumable:
        tell_parent(ledger, agent, record, reason, error)
    if record.nested_agent_id:
        ledger.tx.publish(Wake(record.nested_agent_id))
    continues = _continues(ledger, agent, reason)
    ledger.tx.publish(PassEnded(agent.agent_id, record.run_id, continues, outcome() if outcome else None))


def is_left_by_daemon(record: RunRecord) -> bool:
    """Whether the run's last pass was interrupted by an end of the daemon, and nobody has let it be."""
    if record.pass_open or record.outcome is None:
        return False
    return "byDaemon" in stored.fields(record, "outcome")


def let_be(record: RunRecord) -> bool:
    """The daemon does not resume this run by itself any more: somebody wants it stopped. Whether that is news."""
    if record.outcome is None or not is_left_by_daemon(record):
        return False
    saved = stored.fields(record, "outcome")
    del saved["byDaemon"]
    record.outcome = orjson.dumps(saved).decode()
    return True


def add_usage(agent: AgentRecord, usage: Usage | None) -> None:
    """Adds one model call's usage to the agent's total."""
    if usage is not None:
        agent.usage = (stored.usage(agent) + usage).json_bytes().decode()


def _continues(ledger: Ledger, agent: AgentRecord, reason: EndReason) -> bool:
    """Whether what is left in the inbox starts the next pass by itself (D7, D10)."""
    if not agent.inbox or reason == "interrupted":
        return False
    unread = ledger.tx.find(InboxRecord, agent_id=agent.agent_id, state="unread")
    if any(item.is_prompt for item in unread):
        return True
    config = stored.config(agent)
    return config.on_inbox_idle == "resume" and reason not in ("stopped", "failed", "maxTurns")


def tell_parent(
    ledger: Ledger, agent: AgentRecord, record: RunRecord, reason: EndReason, error: ErrorInfo | None
) -> None:
    """Puts a background child's reply into its parent's inbox as the result of the call that started it."""
    if agent.parent_agent_id is None or agent.parent_call_id is None or record.nested_agent_id:
        return
    parent = ledger.tx.get(AgentRecord, agent.parent_agent_id)
    call = ledger.call(agent.parent_agent_id, agent.parent_call_id)
    if parent is None or parent.deleted or call is None or call.child_agent_id != agent.agent_id:
        return
    if call.answered_at is not None or call.state not in ("dispatched", "pending"):
        return
    from .inbox import put_answer

    content, failure = last_answer(ledger.tx, agent), None
    if reason != "done":
        failure = error.message if error else f"The child agent {agent.agent_id!r} ended: {reason}."
    asker, origin = ledger.agent(parent.agent_id), Origin(client_id=agent.agent_id)
    put_answer(ledger, asker, call, content=content, error=failure, origin=origin)


def last_answer(tx: ReadTx, agent: AgentRecord) -> list[Json]:
    """The content of the conversation's last message when it is the model's, as input parts in wire form."""
    rows = tx.find(MessageRecord, conversation=agent.conversation, order="position", desc=True, limit=1)
    if not rows:
        return []
    message = stored.message(rows[0])
    kept = ("text", "image", "resource")
    return [part.wire() for part in message.content if part.type in kept] if message.role == "assistant" else []


def pending_of(tx: ReadTx, agent: AgentRecord) -> tuple[PendingCall, ...]:
    """The calls whose real result is still owed, oldest first."""
    if not agent.pending_calls:
        return ()
    rows = tx.find(CallRecord, owner=agent.agent_id, state="pending")
    rows.sort(key=lambda row: (row.since, row.position))
    return tuple(
        stored.value(
            row,
            "placeholder",
            PendingCall,
            {
                "call_id": row.call_id,
                "tool_name": row.tool_name,
                "args": stored.args(row),
                "since": row.since,
                "placeholder": stored.plain(row, "placeholder") if row.placeholder else (),
                "answered": row.answered_at is not None,
            },
        )
        for row in rows
    )


def open_of(tx: ReadTx, agent: AgentRecord) -> tuple[Approval, ...]:
    """The agent's own open approvals, oldest first."""
    if not agent.approvals:
        return ()
    rows = tx.find(ApprovalRecord, agent_id=agent.agent_id, decided=False, order="since")
    return tuple(stored.approval(row) for row in rows)


def outcome_of(tx: ReadTx, record: RunRecord, agent: AgentRecord) -> RunOutcome:
    """What the run's last pass came to. The run must have ended a pass."""
    assert record.outcome is not None
    saved = stored.fields(record, "outcome", *_OUTCOME)
    rows = (
        tx.find(
            MessageRecord,
            conversation=saved["conversation"],
            order="position",
            after=saved["from"],
            limit=saved["to"] - saved["from"],
        )
        if saved["to"] > saved["from"]
        else []
    )
    messages = [stored.message(row) for row in rows]
    last = messages[-1] if messages and isinstance(messages[-1], AssistantMessage) else None
    calls = tx.find(ModelCallRecord, run_id=record.run_id, order="position")
    return RunOutcome(
        agent_id=agent.agent_id,
        run_id=record.run_id,
        reason=saved["reason"],
        output=text_of(last.content) if last else "",
        content=tuple(last.content) if last else (),
        messages=tuple(messages),
        model_calls=tuple(stored.model_call(call) for call in calls),
        pending_calls=pending_of(tx, agent),
        approvals=open_of(tx, agent),
        usage=stored.usage(record),
        error=ErrorInfo.model_validate(saved["error"]) if saved["error"] else None,
        best_effort=saved.get("bestEffort"),
        first_seq=saved["firstSeq"],
        last_seq=saved["lastSeq"],
    )


def shown_agent(record: AgentRecord, damaged: Damaged | None = None) -> dict[str, Any]:
    """`agent_view` for those who are shown many agents: a damaged one says so in `damage`, with what else is known."""
    found = (damaged or {}).get((record.agent_id,))
    if found is None:
        try:
            return agent_view(record)
        except DamagedRecord as error:
            found = error
    whole = replace(record, config="{}", labels="{}", usage=_NO_USAGE)
    return {**agent_view(whole), "damage": found.message}


def agent_view(record: AgentRecord) -> dict[str, Any]:
    """An agent's row in the wire form of `core.agent.Agent`."""
    view: dict[str, Any] = {
        "agentId": record.agent_id,
        "labels": stored.labels(record),
        "state": record.state,
        "needsReply": record.needs_reply,
        "config": stored.config_json(record),
        "seq": record.last_seq,
        "messageCount": record.message_count,
        "pendingCalls": record.pending_calls,
        "approvals": record.approvals,
        "inbox": record.inbox,
        "usage": stored.usage(record).wire(),
        "createdAt": record.created_at,
        "updatedAt": record.updated_at,
    }
    optional = {"title": record.title, "waitingFor": record.waiting_for, "activeRunId": record.active_run_id}
    view.update({key: value for key, value in optional.items() if value is not None})
    if record.parent_agent_id:
        view["parent"] = {"agentId": record.parent_agent_id, "toolCallId": record.parent_call_id}
    return view
