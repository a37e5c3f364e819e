"""The inbox from outside: push, resolve, reject, list, remove. Each is durable before it is acknowledged."""

from __future__ import annotations

from typing import Any

from sojourn.core import events as ev
from sojourn.core.agent import Caller, InboxItem, Origin
from sojourn.core.errors import AlreadyDecided, CallNotFound, InvalidParams, LimitReached
from sojourn.core.messages import InputPart
from sojourn.core.values import Json
from sojourn.store.records import AgentRecord, CallRecord, InboxRecord

from . import stored
from .ledger import InboxArrived, Ledger
from .runtime import Runtime


def put(
    ledger: Ledger,
    agent: AgentRecord,
    item: dict[str, Any],
    *,
    origin: Origin,
    most: int | None = None,
    is_prompt: bool = False,
    wake: bool = True,
) -> InboxItem:
    """Appends an item, and without `wake` starts nothing by that. Raises `LimitReached` when `most` are unread."""
    if most is not None and agent.inbox >= most:
        raise LimitReached(
            f"The inbox of {agent.agent_id!r} holds {agent.inbox} unread items, the limit maxInboxItems; let it read.",
            limit="maxInboxItems",
            value=agent.inbox,
            max=most,
        )
    number = agent.next_item
    agent.next_item += 1
    agent.inbox += 1
    value = InboxItem.model_validate(
        {**item, "item_id": f"{agent.agent_id}-item-{number}", "at": ledger.now, "origin": origin}
    )
    ledger.tx.insert(
        InboxRecord(
            agent_id=agent.agent_id,
            position=number,
            item_id=value.item_id,
            kind=value.kind,
            body=value.json_bytes().decode(),
            at=ledger.now,
            call_id=value.call_id,
            is_prompt=is_prompt,
        )
    )
    run = ledger.active_run(agent)
    ledger.event(
        agent, ev.InboxQueued(item=value), run=run if run is not None and run.pass_open else None, origin=origin
    )
    if wake:
        ledger.tx.publish(InboxArrived(agent.agent_id))
    return value


def put_answer(
    ledger: Ledger,
    agent: AgentRecord,
    call: CallRecord,
    *,
    content: list[Json] | None,
    error: str | None,
    origin: Origin,
    most: int | None = None,
    wake: bool = True,
) -> InboxItem:
    """Appends the answer of a call that nobody answered yet. Raises `LimitReached` when `most` items are unread."""
    call.answered_by, call.answered_at = origin.client_id or "anonymous", ledger.now
    ledger.tx.update(call, "answered_by", "answered_at")
    item: dict[str, Any] = {"kind": "rejection" if error is not None else "result", "call_id": call.call_id}
    if error is not None:
        item["error"] = error
    else:
        item["content"] = content or []
    return put(ledger, agent, item, origin=origin, most=most, wake=wake)


def answer_call(
    ledger: Ledger,
    agent_id: str,
    call_id: str,
    *,
    content: list[Json] | None,
    error: str | None,
    origin: Origin,
    most: int,
    of_run: str | None = None,
) -> dict[str, Any] | Exception:
    """Queues a pending call's result or rejection; `of_run`: of this run's call only.

    A second answer, or one for a call that never was pending, commits a warning and is answered with the exception
    that the caller must raise after the commit (D3).
    """
    agent = ledger.agent(agent_id)
    call = ledger.call(agent_id, call_id)
    if of_run is not None and (call is None or call.run_id != of_run):
        return CallNotFound(f"The agent {agent_id!r} has no call {call_id!r} of the run {of_run!r}.", callId=call_id)
    refused: AlreadyDecided | CallNotFound | None = None
    if call is None or (call.placeholder is None and call.state != "dispatched"):
        state = "" if call is None else f" It is {call.state.replace('_', ' ')}, and never was pending."
        refused = CallNotFound(f"The agent {agent_id!r} has no pending call {call_id!r}.{state}", callId=call_id)
    elif call.answered_at is not None or call.state == "resolved":
        refused = AlreadyDecided(
            f"The call {call_id!r} was answered by {call.answered_by!r} at {call.answered_at}; this is dropped.",
            by=call.answered_by,
            at=call.answered_at,
        )
    if refused is not None:
        ledger.warning(agent, "resultDropped", refused.message, data={"callId": call_id})
        return refused
    assert call is not None
    item = put_answer(ledger, agent, call, content=content, error=error, origin=origin, most=most)
    return {"itemId": item.item_id}


async def push(rt: Runtime, caller: Caller, agent_id: str, content: tuple[InputPart, ...]) -> Any:
    """`inbox/push`: a user message."""

    def change(ledger: Ledger) -> dict[str, Any]:
        wire = [part.wire() for part in content]
        item = put(
            ledger,
            ledger.agent(agent_id),
            {"kind": "message", "content": wire},
            origin=caller.origin,
            most=rt.limits.max_inbox_items,
        )
        return {"itemId": item.item_id}

    return await rt.answer_once(caller, "push", change)


async def answer(
    rt: Runtime,
    caller: Caller,
    agent_id: str,
    call_id: str,
    *,
    content: tuple[InputPart, ...] | None = None,
    error: str | None = None,
    of_run: str | None = None,
) -> Any:
    """`inbox/resolve` and `inbox/reject`."""

    def change(ledger: Ledger) -> dict[str, Any] | Exception:
        return answer_call(
            ledger,
            agent_id,
            call_id,
            content=None if content is None else [part.wire() for part in content],
            error=error,
            origin=caller.origin,
            most=rt.limits.max_inbox_items,
            of_run=of_run,
        )

    return await rt.answer_once(caller, "push", change)


async def unread(rt: Runtime, agent_id: str) -> dict[str, Any]:
    """`inbox/list`."""
    await rt.agent(agent_id)
    rows = await rt.store.read(lambda tx: tx.find(InboxRecord, agent_id=agent_id, state="unread", order="position"))
    return {"items": [stored.item(row).wire() for row in rows]}


async def remove(rt: Runtime, caller: Caller, agent_id: str, item_id: str) -> Any:
    """`inbox/remove`: takes back an unread item; a call whose answer is taken back waits again."""

    def change(ledger: Ledger) -> dict[str, Any]:
        agent = ledger.agent(agent_id)
        rows = ledger.tx.find(InboxRecord, item_id=item_id)
        if not rows or rows[0].agent_id != agent_id:
            raise InvalidParams(f"The inbox of {agent_id!r} never held an item {item_id!r}.", field="itemId")
        row = rows[0]
        if row.state != "unread":
            return {"outcome": "removed" if row.state == "removed" else "alreadyRead"}
        row.state = "removed"
        ledger.tx.update(row, "state")
        agent.inbox -= 1
        call = ledger.call(agent_id, row.call_id) if row.call_id else None
        if call is not None:
            call.answered_by = call.answered_at = None
            ledger.tx.update(call, "answered_by", "answered_at")
        return {"outcome": "removed"}

    return await rt.answer_once(caller, "push", change)
