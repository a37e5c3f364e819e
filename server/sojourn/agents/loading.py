"""Reading a pass: the unfinished run of an agent from disk, or a fresh run on its conversation."""

from __future__ import annotations

from typing import Any

from sojourn.core.run import AgentRun
from sojourn.store.base import ReadTx
from sojourn.store.records import AgentRecord, RunRecord

from . import children, clock, stored
from .ledger import message_json
from .passes import Moved, Pass, new_pass, read_run, restore
from .runtime import Conversation, Runtime


def fresh(rt: Runtime, agent: AgentRecord, conversation: Conversation) -> Pass:
    """A run that begins where the conversation stands, under the agent's config; nothing of it is stored yet."""
    config = rt.config_of(stored.config(agent))
    turns_left = rt.max_turns(config)
    run = AgentRun.new(None).with_history(conversation.messages, call_ids=conversation.call_ids)
    run.max_turns(turns_left)
    run.max_invalid_tool_call_retries(turns_left)
    return new_pass(rt, agent, clock.new_run_id(), run, conversation)


async def unfinished(rt: Runtime, agent: AgentRecord, conversation: Conversation) -> Pass | None:
    """The agent's unfinished run, from disk."""
    if agent.active_run_id is None:
        return None
    run_id = agent.active_run_id

    def query(tx: ReadTx) -> Any:
        record = tx.get(RunRecord, run_id)
        return None if record is None else (read_run(tx, record), children.nest_of(tx, record))

    found = await rt.store.read(query)
    if found is None:
        return None
    parts, nest = found
    p = new_pass(rt, agent, run_id, restore(parts, conversation), conversation)
    p.run.knowing_call_ids(conversation.call_ids)
    p.nest = nest
    p.count_time(parts.record.created_at)
    p.loaded = (parts.record.revision, len(conversation.messages))
    p.bodies = [message_json(m) for m in conversation.messages[parts.record.pass_first_message :]]
    return p


def needed(p: Pass | None) -> Pass:
    """The pass. Raises `Moved` when there is none: the agent was read as one that has none open, or no run left."""
    if p is None:
        raise Moved
    return p


def is_busy(agent: AgentRecord) -> bool:
    """Whether a pass of the agent is open."""
    return agent.active_run_id is not None and agent.state in ("running", "waiting")


def standing(agent: AgentRecord) -> tuple[Any, ...]:
    """What must not have changed between reading an agent and the transition."""
    return agent.conversation, agent.message_count, agent.active_run_id, is_busy(agent)
