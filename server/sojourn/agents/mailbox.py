"""Reading the inbox: each item's consumption and its effect are one transition.

An item is either unread or fully in the conversation. A result for a call that is still at work waits (D4).
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from sojourn.core import events as ev
from sojourn.core.agent import InboxItem, PendingCall
from sojourn.core.inbox import Dropped, read_item
from sojourn.core.messages import LateResultMessage, Message, UserMessage
from sojourn.store.records import AgentRecord, CallRecord, InboxRecord, RunRecord

from . import stored
from .ledger import Ledger
from .passes import Pass


@dataclass(frozen=True, slots=True)
class Read:
    """One item that is being read: the message it becomes, or why it is dropped."""

    row: InboxRecord
    item: InboxItem
    message: Message | None
    dropped: str | None = None
    call: CallRecord | None = None


def gather(ledger: Ledger, agent: AgentRecord) -> list[Read]:
    """The unread items that can be read now, in order, with what each becomes."""
    rows = ledger.tx.find(InboxRecord, agent_id=agent.agent_id, state="unread", order="position")
    return [read for row in rows if (read := _judge(ledger, agent, row)) is not None]


def _judge(ledger: Ledger, agent: AgentRecord, row: InboxRecord) -> Read | None:
    item = stored.item(row)
    call = ledger.call(agent.agent_id, item.call_id) if item.call_id is not None else None
    if call is not None and call.state in ("dispatched", "approved", "awaiting_approval"):
        return None  # D4: the call's own answer is not recorded yet; the result is used after it
    is_pending = call is not None and call.state == "pending"
    became = read_item(item, _as_pending(call) if call is not None and is_pending else None)
    if isinstance(became, Dropped):
        return Read(row, item, None, became.reason)
    return Read(row, item, became, call=call if is_pending else None)


def _as_pending(call: CallRecord) -> PendingCall:
    return PendingCall(call_id=call.call_id, tool_name=call.tool_name, args={}, since=call.since, placeholder=())


def consume(ledger: Ledger, agent: AgentRecord, record: RunRecord, reads: list[Read]) -> None:
    """Marks the items as read and their calls as resolved."""
    for read in reads:
        read.row.state = "dropped" if read.message is None else "read"
        read.row.run_id = record.run_id
        ledger.tx.update(read.row, "state", "run_id")
        agent.inbox -= 1
        if read.call is not None:
            read.call.state, read.call.read_at = "resolved", ledger.now
            ledger.tx.update(read.call, "state", "read_at")
            agent.pending_calls -= 1


def tell(
    ledger: Ledger, agent: AgentRecord, record: RunRecord, reads: list[Read], fresh: list[tuple[Message, bytes]]
) -> None:
    """The events of the items, in order; `fresh` are the saved messages, at least those that the items became."""
    messages = iter(fresh)
    for read in reads:
        if read.dropped is not None:
            ledger.event(agent, ev.InboxRead(item_id=read.item.item_id, outcome="dropped"), run=record)
            ledger.warning(agent, "resultDropped", read.dropped, run=record, data={"callId": read.item.call_id})
            continue
        ledger.event(agent, ev.InboxRead(item_id=read.item.item_id, outcome="delivered"), run=record)
        message, body = next(messages)
        if isinstance(message, LateResultMessage):
            result = ev.ToolResult(content=message.content, is_error=message.is_error)
            ledger.event(
                agent,
                ev.ToolResolved(tool_call_id=message.call_id, tool_name=message.tool_name, result=result),
                run=record,
            )
        ledger.show_message(agent, message, body, run=record)


def read(ledger: Ledger, p: Pass) -> bool:
    """Reads the inbox into the run; whether a message came of it."""
    agent, record = p.records(ledger)
    reads = gather(ledger, agent)
    if not reads:
        return False
    messages = [item.message for item in reads if isinstance(item.message, UserMessage | LateResultMessage)]
    if messages:
        p.run.inject(messages)
    consume(ledger, agent, record, reads)
    tell(ledger, agent, record, reads, p.save(ledger))
    return bool(messages)


def take_answer(ledger: Ledger, agent: AgentRecord, record: RunRecord, call: CallRecord) -> bool:
    """Uses a queued answer as the result of a call whose own never came (D4); whether there was one."""
    rows = ledger.tx.find(InboxRecord, agent_id=agent.agent_id, state="unread", call_id=call.call_id)
    if not rows:
        return False
    row = rows[0]
    item = stored.item(row)
    late = read_item(item, _as_pending(call))
    assert isinstance(late, LateResultMessage)
    wire = [part.wire() for part in late.content]
    call.result = orjson.dumps({"content": wire, "isError": late.is_error, "pending": False}).decode()
    call.state = "returned"
    ledger.tx.update(call, "state", "result")
    row.state, row.run_id = "read", record.run_id
    ledger.tx.update(row, "state", "run_id")
    agent.inbox -= 1
    ledger.event(agent, ev.InboxRead(item_id=item.item_id, outcome="delivered"), run=record)
    return True
