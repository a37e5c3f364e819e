"""Agents as things: make, list, describe, fork, delete; their conversations as clients read and replace them."""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Sequence
from typing import Any, Literal

import orjson

from sojourn.core import events as ev
from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.approvals import args_sha256
from sojourn.core.errors import AgentBusy, AlreadyExists, DamagedRecord, InvalidParams
from sojourn.core.inbox import needs_reply, repair
from sojourn.core.messages import Message, ToolCallPart, ToolResultMessage
from sojourn.store.base import Conflict, Damaged, ReadTx
from sojourn.store.records import (
    AgentRecord,
    ApprovalRecord,
    CallRecord,
    ClientToolRecord,
    EntryRecord,
    EventRecord,
    InboxRecord,
    JobRecord,
    MessageRecord,
    ModelCallRecord,
    RunRecord,
)

from . import clock, stored
from .ending import agent_view, pending_of, shown_agent
from .ledger import Ledger
from .rounds import close_approvals
from .runtime import Runtime

_OURS = re.compile(r"msg-([0-9]{1,15})")
PIECE = 2_000
"""How many rows one transition of a deletion removes."""


def check_config(rt: Runtime, agent_id: str, config: AgentConfig) -> None:
    """Raises the error of whatever the config names that is not there: preset, model, tool."""
    effective = rt.config_of(config)
    rt.model_name(effective)
    rt.toolset.tools_for(agent_id, effective)


async def create(rt: Runtime, caller: Caller, *, agent_id: str | None, config: AgentConfig | None) -> Any:
    """`agent/create`. Raises `AlreadyExists` for an id that is, or was, an agent's."""
    wanted = config or AgentConfig()
    if wanted.cwd is None and caller.cwd is not None and rt.config_of(wanted).cwd is None:
        wanted = wanted.model_copy(update={"cwd": caller.cwd})
    new_id = agent_id or clock.new_id("agent")
    check_config(rt, new_id, wanted)

    def change(ledger: Ledger) -> dict[str, Any]:
        record = new_record(ledger, new_id, wanted)
        return agent_view(record)

    return await rt.answer_once(caller, "create", change)


def new_record(ledger: Ledger, agent_id: str, config: AgentConfig, **fields: Any) -> AgentRecord:
    """Enters an agent. Raises `AlreadyExists`."""
    record = AgentRecord(
        agent_id=agent_id,
        created_at=ledger.now,
        updated_at=ledger.now,
        activity=clock.stamp(),
        conversation=agent_id,
        config=config.json_bytes().decode(),
        **fields,
    )
    try:
        ledger.adopt(record)
    except Conflict:
        raise AlreadyExists(
            f"The agent id {agent_id!r} is taken, or was an agent's that is deleted; choose another.", agentId=agent_id
        ) from None
    return record


async def listed(
    rt: Runtime,
    *,
    cursor: str | None,
    limit: int,
    state: str | None,
    parent_agent_id: str | None,
    labels: dict[str, str] | None,
) -> dict[str, Any]:
    """`agent/list`: roots, or one agent's children, newest activity first."""
    where: dict[str, Any] = {"deleted": False, "parent_agent_id": parent_agent_id}
    if state is not None:
        where["state"] = state

    def query(tx: ReadTx) -> dict[str, Any]:
        after = read_cursor(cursor, 2)
        found: list[AgentRecord] = []
        damaged: Damaged = {}
        while len(found) <= limit:
            page = tx.find(
                AgentRecord,
                order=("activity", "agent_id"),
                desc=True,
                after=after,
                limit=limit + 1,
                damaged=damaged,
                **where,
            )
            found += [row for row in page if _has_labels(row, labels)]
            if len(page) <= limit:
                break
            after = (page[-1].activity, page[-1].agent_id)
        answer: dict[str, Any] = {"agents": [shown_agent(row, damaged) for row in found[:limit]]}
        if len(found) > limit:
            last = found[limit - 1]
            answer["nextCursor"] = make_cursor(last.activity, last.agent_id)
        return answer

    return await rt.store.read(query)


def _has_labels(row: AgentRecord, labels: dict[str, str] | None) -> bool:
    try:
        return not labels or labels.items() <= stored.labels(row).items()
    except DamagedRecord:
        return False


def make_cursor(*values: Any) -> str:
    """An opaque cursor that holds these values."""
    return base64.urlsafe_b64encode(orjson.dumps(values)).decode()


def read_cursor(cursor: str | None, length: int) -> tuple[Any, ...] | None:
    """The values of a cursor that `make_cursor` made. Raises `InvalidParams`."""
    if cursor is None:
        return None
    try:
        values = orjson.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (binascii.Error, ValueError):
        values = None
    if not isinstance(values, list) or len(values) != length:
        raise InvalidParams("This cursor was not made by this method; leave it out to start.", field="cursor")
    return tuple(values)


async def update(rt: Runtime, caller: Caller, agent_id: str, changes: dict[str, Any]) -> Any:
    """`agent/update`: what is given changes, None clears; inside `config` key by key."""

    def change(ledger: Ledger) -> dict[str, Any]:
        agent = ledger.agent(agent_id)
        told: dict[str, Any] = {}
        if "config" in changes:
            told["config"] = _new_config(rt, agent, changes["config"])
        if "title" in changes:
            agent.title = told["title"] = changes["title"]
        if "labels" in changes:
            told["labels"] = changes["labels"] or {}
            agent.labels = orjson.dumps(told["labels"]).decode()
        if told:
            ledger.event(agent, ev.AgentUpdated.model_validate(told), origin=caller.origin)
        return agent_view(agent)

    return await rt.answer_once(caller, "update", change)


def _new_config(rt: Runtime, agent: AgentRecord, partial: dict[str, Any] | None) -> AgentConfig:
    config = {} if partial is None else {**stored.config_json(agent), **partial}
    value = AgentConfig.model_validate({key: item for key, item in config.items() if item is not None})
    check_config(rt, agent.agent_id, value)
    agent.config = value.json_bytes().decode()
    return value


async def messages(
    rt: Runtime, agent_id: str, *, cursor: str | None, limit: int, order: Literal["asc", "desc"]
) -> dict[str, Any]:
    """`agent/messages`, page by page."""
    agent = await rt.agent(agent_id)
    after = read_cursor(cursor, 1)

    def query(tx: ReadTx) -> dict[str, Any]:
        rows = tx.find(
            MessageRecord,
            conversation=agent.conversation,
            order="position",
            desc=order == "desc",
            after=after[0] if after else None,
            limit=limit + 1,
        )
        answer: dict[str, Any] = {"messages": [stored.message_json(row) for row in rows[:limit]]}
        if len(rows) > limit:
            answer["nextCursor"] = make_cursor(rows[limit - 1].position)
        return answer

    return await rt.store.read(query)


async def pending(rt: Runtime, agent_id: str) -> dict[str, Any]:
    """`agent/pendingCalls`."""
    agent = await rt.agent(agent_id)
    return {"pendingCalls": [call.wire() for call in await rt.store.read(lambda tx: pending_of(tx, agent))]}


def refuse_busy(ledger: Ledger, agent: AgentRecord, what: str) -> None:
    """Raises `AgentBusy` when a pass is open."""
    run = ledger.active_run(agent)
    if run is not None and run.pass_open:
        raise AgentBusy(
            f"The agent {agent.agent_id!r} is {agent.state}; {what} only while no pass is open.", runId=run.run_id
        )


async def replace_messages(rt: Runtime, caller: Caller, agent_id: str, new: Sequence[Message]) -> Any:
    """`agent/replaceMessages`: another conversation in the place of the old one, which is kept aside."""

    def change(ledger: Ledger) -> dict[str, Any]:
        agent = ledger.agent(agent_id)
        refuse_busy(ledger, agent, "its messages are replaced")
        run = ledger.active_run(agent)
        if run is not None:
            _end_old_run(ledger, agent, run)
        repaired = repair(list(new))
        number = int(agent.conversation.rpartition("#")[2]) + 1 if "#" in agent.conversation else 2
        agent.conversation = f"{agent_id}#{number}"
        agent.message_count = 0
        ledger.set_state(agent, "idle")
        enter_messages(ledger, agent, repaired.messages)
        for warning in repaired.warnings:
            ledger.event(agent, warning)
        ledger.event(agent, ev.AgentUpdated(messages_replaced=len(repaired.messages)), origin=caller.origin)
        _drop_calls(ledger, agent)
        enter_calls(ledger, agent, repaired.messages, {call.call_id for call in repaired.pending})
        return {
            "messages": len(repaired.messages),
            "pendingCalls": [call.wire() for call in pending_of(ledger.tx, agent)],
        }

    return await rt.answer_once(caller, "replace", change)


def _end_old_run(ledger: Ledger, agent: AgentRecord, run: RunRecord) -> None:
    close_approvals(ledger, agent, run, decision="closed", by="policy")
    run.active = False
    ledger.save_run(run)
    agent.active_run_id = None


def enter_messages(ledger: Ledger, agent: AgentRecord, new: Sequence[Message]) -> None:
    """Appends messages that have ids already, without events; numbers go on behind the highest of ours."""
    for message in new:
        stamped = message if message.at else message.model_copy(update={"at": ledger.now})
        ledger.append_message(agent, stamped)
        agent.next_message = max(agent.next_message, message_number(message) + 1)
    agent.needs_reply = needs_reply(new)


def message_number(message: Message) -> int:
    """The n of a message id `msg-<n>` as we make them; 0 for any other."""
    found = _OURS.fullmatch(message.message_id or "")
    return int(found[1]) if found else 0


def _drop_calls(ledger: Ledger, agent: AgentRecord) -> None:
    """The replaced conversation's calls: those that were pending are owed no more."""
    for row in ledger.tx.find(CallRecord, owner=agent.agent_id):
        ledger.tx.delete(CallRecord, row.owner, row.call_id)
    agent.pending_calls = 0


def enter_calls(ledger: Ledger, agent: AgentRecord, new: Sequence[Message], pending_ids: set[str]) -> None:
    """Rows for calls of a conversation from outside: pending ones, and those without a result."""
    results = {m.call_id: m for m in new if isinstance(m, ToolResultMessage)}
    for message in new:
        for position, call in enumerate(message.calls if message.role == "assistant" else ()):
            result = results.get(call.id)
            if result is not None and call.id not in pending_ids:
                continue
            ledger.tx.put(_imported_call(ledger, agent, call, position, result))
            agent.pending_calls += result is not None


def _imported_call(
    ledger: Ledger, agent: AgentRecord, call: ToolCallPart, position: int, placeholder: ToolResultMessage | None
) -> CallRecord:
    args = call.arguments if isinstance(call.arguments, dict) else {}
    row = CallRecord(
        owner=agent.agent_id,
        call_id=call.id,
        run_id="",
        position=position,
        tool_name=call.name,
        args=orjson.dumps(args).decode(),
        args_sha256=args_sha256(args),
        state="interrupted" if placeholder is None else "pending",
        since=(placeholder.at if placeholder else None) or ledger.now,
    )
    if placeholder is not None:
        content = orjson.dumps([part.wire() for part in placeholder.content]).decode()
        row.placeholder = content
        row.result = '{"content":' + content + ',"isError":false,"pending":true}'
    return row


async def fork(rt: Runtime, caller: Caller, agent_id: str, *, after_message: str | None) -> Any:
    """`agent/fork`: a copy of the conversation; placeholders become final, inbox and approvals stay behind."""

    def change(ledger: Ledger) -> dict[str, Any]:
        agent = ledger.agent(agent_id)
        rows = ledger.tx.find(MessageRecord, conversation=agent.conversation, order="position")
        if after_message is not None:
            place = next((i for i, row in enumerate(rows) if row.message_id == after_message), None)
            if place is None:
                raise InvalidParams(f"{agent_id!r} has no message {after_message!r}.", field="afterMessage")
            rows = rows[: place + 1]
        record = new_record(
            ledger,
            clock.new_id("agent"),
            stored.config(agent),
            title=agent.title,
            labels=agent.labels,
        )
        copied = [_final(stored.message(row)) for row in rows]
        repaired = repair(copied)
        enter_messages(ledger, record, repaired.messages)
        enter_calls(ledger, record, repaired.messages, set())
        return agent_view(record)

    return await rt.answer_once(caller, "fork", change)


def _final(message: Message) -> Message:
    if isinstance(message, ToolResultMessage) and message.pending:
        return message.model_copy(update={"pending": False})
    return message


async def delete(rt: Runtime, caller: Caller, agent_id: str, *, force: bool) -> None:
    """`agent/delete`: out of sight at once, then removed in pieces (which a restart goes on with)."""

    ended: list[str] = []

    def change(ledger: Ledger) -> None:
        agent = ledger.agent(agent_id)
        if not force:
            refuse_busy(ledger, agent, "it can be deleted (or with 'force')")
        with contextlib.suppress(DamagedRecord):  # its rows go, whatever they hold
            run = ledger.active_run(agent)
            if run is not None and run.active:
                run.active = run.pass_open = False
                ledger.save_run(run)
        agent.deleted, agent.active_run_id, agent.state, agent.waiting_for = True, None, "deleted", None
        damaged: Damaged = {}
        for row in ledger.tx.find(ApprovalRecord, agent_id=agent_id, decided=False, damaged=damaged):
            if (row.approval_id,) not in damaged:
                row.decided = True
                ledger.tx.update(row, "decided")
        ended.extend(rt.jobs.mark_stopped(ledger, (agent_id,)))

    await rt.agent(agent_id)
    if force:
        with contextlib.suppress(DamagedRecord):
            await rt.passes_of.stop(agent_id)
    await rt.answer_once(caller, "delete", change)
    rt.jobs.end(ended)
    rt.feed.forget(agent_id)
    await sweep(rt, agent_id)


async def sweep(rt: Runtime, agent_id: str) -> None:
    """Removes the rows of a deleted agent, a piece a transition. Events stay while a parent's still refer to them."""
    agent = await rt.store.read(lambda tx: tx.get(AgentRecord, agent_id))
    if agent is None or not agent.deleted:
        return
    runs = await rt.store.read(lambda tx: tx.find(RunRecord, agent_id=agent_id, damaged={}))

    def piece(ledger: Ledger) -> int:
        gone = 0
        conversation = agent.conversation
        base = conversation.partition("#")[0]
        count = int(conversation.rpartition("#")[2]) if "#" in conversation else 1
        for name in (base, *(f"{base}#{n}" for n in range(2, count + 1))):
            gone += ledger.tx.delete_some(MessageRecord, PIECE, conversation=name)
        for run in runs:
            gone += ledger.tx.delete_some(ModelCallRecord, PIECE, run_id=run.run_id)
            gone += ledger.tx.delete_some(EntryRecord, PIECE, run_id=run.run_id)
        gone += ledger.tx.delete_some(CallRecord, PIECE, owner=agent_id)
        gone += ledger.tx.delete_some(InboxRecord, PIECE, agent_id=agent_id)
        gone += ledger.tx.delete_some(ApprovalRecord, PIECE, agent_id=agent_id)
        gone += ledger.tx.delete_some(ClientToolRecord, PIECE, scope=agent_id)
        gone += ledger.tx.delete_some(RunRecord, PIECE, agent_id=agent_id)
        gone += ledger.tx.delete_some(JobRecord, PIECE, agent_id=agent_id, state="ended")
        if agent.parent_agent_id is None:
            gone += ledger.tx.delete_some(EventRecord, PIECE, agent_id=agent_id)
        if not gone:
            _finish_sweep(ledger, agent)
        return gone

    while await rt.write("sweep", piece):
        pass


def _finish_sweep(ledger: Ledger, agent: AgentRecord) -> None:
    """A root's row goes too, its id is free again; a child's stays as a mark while its parent's events refer to it."""
    if agent.parent_agent_id is None:
        ledger.tx.delete(AgentRecord, agent.agent_id)
    else:
        agent.state = "gone"
        ledger.tx.put(agent)


def counts(tx: ReadTx) -> tuple[int, int]:
    """How many agents there are, and how many runs have an open pass."""
    return tx.count(AgentRecord, deleted=False), tx.count(RunRecord, pass_open=True)
