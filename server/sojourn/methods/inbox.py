"""`inbox/*`: reaching an agent from outside its run. Everything is durable before it is acknowledged."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from sojourn.core.agent import InboxItem

from ._fields import AgentId, Id, PromptContent, ResultContent
from ._table import Mutating, Params, Result, Session, method


class PushParams(Mutating):
    """What to say."""

    agent_id: AgentId
    content: PromptContent


class ResolveParams(Mutating):
    """A pending call and its result."""

    agent_id: AgentId
    call_id: Id
    content: ResultContent


class RejectParams(Mutating):
    """A pending call and why it failed."""

    agent_id: AgentId
    call_id: Id
    error: str = Field(min_length=1)


class Queued(Result):
    """The item that now waits in the inbox."""

    item_id: str


class InboxParams(Params):
    """Which agent."""

    agent_id: AgentId


class InboxItems(Result):
    """What is unread, in order."""

    items: tuple[InboxItem, ...]


class RemoveParams(Mutating):
    """Which item of which agent."""

    agent_id: AgentId
    item_id: Id


class Removed(Result):
    """Whether the item could still be taken back."""

    outcome: Literal["removed", "alreadyRead"]


@method("inbox/push", params=PushParams, result=Queued)
async def push(session: Session, params: PushParams) -> Any:
    """Leaves a message that the agent reads at its next look into the inbox, also in the middle of a run."""
    caller = session.caller(params, "inbox/push")
    return await session.hub.inbox_push(caller, params.agent_id, params.content)


@method("inbox/resolve", params=ResolveParams, result=Queued)
async def resolve(session: Session, params: ResolveParams) -> Any:
    """Delivers a pending call's result. A second result is `alreadyDecided`, an unknown call `callNotFound`."""
    caller = session.caller(params, "inbox/resolve")
    return await session.hub.inbox_resolve(caller, params.agent_id, params.call_id, params.content)


@method("inbox/reject", params=RejectParams, result=Queued)
async def reject(session: Session, params: RejectParams) -> Any:
    """Delivers a pending call's failure; otherwise as `inbox/resolve`."""
    caller = session.caller(params, "inbox/reject")
    return await session.hub.inbox_reject(caller, params.agent_id, params.call_id, params.error)


@method("inbox/list", params=InboxParams, result=InboxItems)
async def list_(session: Session, params: InboxParams) -> Any:
    """What is unread, in order."""
    return await session.hub.inbox_list(params.agent_id)


@method("inbox/remove", params=RemoveParams, result=Removed)
async def remove(session: Session, params: RemoveParams) -> Any:
    """Takes an unread item back."""
    caller = session.caller(params, "inbox/remove")
    return await session.hub.inbox_remove(caller, params.agent_id, params.item_id)
