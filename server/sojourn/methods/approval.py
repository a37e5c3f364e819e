"""`approval/*`: calls that may not run before somebody decides. Silence never approves."""

from __future__ import annotations

from typing import Any

from sojourn.core.approvals import Approval

from ._fields import AgentId, Id
from ._table import Mutating, Params, Result, Session, method
from ._wire import DecisionFields


class ListParams(Params):
    """`agentId` left out: over all agents and their children."""

    agent_id: AgentId | None = None


class Approvals(Result):
    """Open approvals, oldest first."""

    approvals: tuple[Approval, ...]


class DecideParams(DecisionFields, Mutating):
    """The decision. `edit` runs the call with `arguments`; `answer` makes `content` the result and runs nothing."""

    approval_id: Id


class Decided(Result):
    """The approval with its decision."""

    approval: Approval


@method("approval/list", params=ListParams, result=Approvals)
async def list_(session: Session, params: ListParams) -> Any:
    """Open approvals of one agent and its children, or of all."""
    return await session.hub.approvals(params.agent_id)


@method("approval/decide", params=DecideParams, result=Decided)
async def decide(session: Session, params: DecideParams) -> Any:
    """Decides. The first decision wins; a later one is `alreadyDecided` and says who was first."""
    return await session.hub.decide(
        session.caller(params, "approval/decide"),
        params.approval_id,
        params.decision,
        arguments=params.arguments,
        content=params.content,
        reason=params.reason,
        scope=params.scope,
    )
