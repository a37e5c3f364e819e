"""What accepts a prompt or a resume: the transition that opens a pass of the agent as it is then, or refuses.

Each function gives an `Opening`, which `control` runs on an agent that it has just read, and again when that has moved.
"""

from __future__ import annotations

from collections.abc import Callable

from sojourn.core.agent import Accepted, Caller, Cause
from sojourn.core.errors import AgentBusy
from sojourn.core.messages import InputPart, UserMessage
from sojourn.store.records import AgentRecord, RunRecord

from . import loading, opening
from .inbox import put
from .ledger import Ledger
from .passes import Pass
from .runtime import Conversation, Runtime

Opening = Callable[[Ledger, Pass | None, Conversation, Pass | None], Accepted]
"""Opens a pass: takes the ledger, a fresh pass (None when the agent is busy), the conversation, the unfinished run."""


def prompt(
    rt: Runtime,
    caller: Caller,
    agent_id: str,
    content: tuple[InputPart, ...],
    *,
    queue: bool,
    on_approval: str | None,
) -> Opening:
    """A run begins with this prompt; a busy agent gets it into its inbox with `queue`, else `AgentBusy` is raised."""
    message = UserMessage.trusted(message_id=None, at=None, role="user", content=content)

    def change(ledger: Ledger, p: Pass | None, conversation: Conversation, old: Pass | None) -> Accepted:
        agent = ledger.agent(agent_id)
        run = ledger.active_run(agent)
        if run is not None and run.pass_open:
            return _queue(ledger, rt, agent, run, content, caller, queue=queue)
        opening.prompt(
            ledger,
            loading.needed(p),
            conversation,
            message,
            old=old,
            cause="prompt",
            on_approval=on_approval,
            origin=caller.origin,
        )
        return Accepted.trusted(agent_id=agent_id, run_id=loading.needed(p).run_id, item_id=None)

    return change


def resume(rt: Runtime, caller: Caller, agent_id: str, *, cause: Cause, wishes: opening.Wishes) -> Opening:
    """The unfinished run goes on, or one begins from where the conversation stands."""

    def change(ledger: Ledger, p: Pass | None, conversation: Conversation, old: Pass | None) -> Accepted:
        agent = ledger.agent(agent_id)
        run = ledger.active_run(agent)
        if run is not None and run.pass_open:
            raise AgentBusy(f"The agent {agent_id!r} is {agent.state} already.", runId=run.run_id)
        if old is not None:
            wishes.refuse_for(old)
            opening.carry_on(rt, ledger, old, cause=cause, origin=caller.origin)
            return Accepted(agent_id=agent_id, run_id=old.run_id)
        opening.fresh(ledger, loading.needed(p), conversation, cause=cause, origin=caller.origin)
        return Accepted(agent_id=agent_id, run_id=loading.needed(p).run_id)

    return change


def child_prompt(
    child_id: str,
    content: tuple[InputPart, ...],
    nest: tuple[str, str] | None,
    check: Callable[[Ledger], None],
) -> Opening:
    """A child's run begins inside of its parent's call; `check` refuses it when the parent is being stopped."""
    message = UserMessage(content=content)

    def change(ledger: Ledger, p: Pass | None, conversation: Conversation, old: Pass | None) -> Accepted:
        check(ledger)
        agent = ledger.agent(child_id)
        run = ledger.active_run(agent)
        if run is not None and run.pass_open:
            raise AgentBusy(f"The child agent {child_id!r} is {agent.state} already.", runId=run.run_id)
        opening.prompt(
            ledger,
            loading.needed(p),
            conversation,
            message,
            old=old,
            cause="child",
            on_approval=None,
            origin=None,
            nest=nest,
        )
        return Accepted(agent_id=child_id, run_id=loading.needed(p).run_id)

    return change


def child_resume(rt: Runtime, child_id: str, nest: tuple[str, str] | None, check: Callable[[Ledger], None]) -> Opening:
    """A child's unfinished run, if it has one, goes on inside of its parent's call."""

    def change(ledger: Ledger, _p: Pass | None, _c: Conversation, old: Pass | None) -> Accepted:
        check(ledger)
        if old is None:
            return Accepted(agent_id=child_id)
        record = ledger.run(old.run_id)
        record.nested_agent_id, record.nested_call_id = nest or (None, None)
        opening.carry_on(rt, ledger, old, cause="child", origin=None, forced=True)
        return Accepted(agent_id=child_id, run_id=old.run_id)

    return change


def _queue(
    ledger: Ledger,
    rt: Runtime,
    agent: AgentRecord,
    run: RunRecord,
    content: tuple[InputPart, ...],
    caller: Caller,
    *,
    queue: bool,
) -> Accepted:
    if not queue:
        raise AgentBusy(
            f"The agent {agent.agent_id!r} is {agent.state} in the run {run.run_id!r}; wait for it, stop it, "
            "push to its inbox, or prompt with ifBusy 'queue'.",
            runId=run.run_id,
        )
    wire = [part.wire() for part in content]
    item = put(
        ledger,
        agent,
        {"kind": "message", "content": wire},
        origin=caller.origin,
        most=rt.limits.max_inbox_items,
        is_prompt=True,
    )
    return Accepted(agent_id=agent.agent_id, item_id=item.item_id)
