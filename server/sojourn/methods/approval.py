"""`approval/*`: calls that may not run before somebody decides. Silence never approves."""

from __future__ import annotations

from typing import Any, Literal

from sojourn.core.approvals import Approval, Policy
from sojourn.core.values import Value

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


class RulesParams(Params):
    """Whose rules."""

    agent_id: AgentId


class RevokeParams(Mutating):
    """A rule as `approval/rules` lists it."""

    agent_id: AgentId
    rule: str


class ApprovalRule(Value):
    """A rule, and where it stands: in the agent's own config, its preset's, or in a decision for its unfinished run."""

    rule: str
    policy: Policy
    source: Literal["agent", "preset", "run"]


class Rules(Result):
    """Approval rules; docs/configuration.md says which one holds for a call."""

    rules: tuple[ApprovalRule, ...]


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
        pattern=params.pattern,
    )


@method("approval/rules", params=RulesParams, result=Rules)
async def rules(session: Session, params: RulesParams) -> Any:
    """The approval rules of an agent, lasting decisions among them."""
    return await session.hub.approval_rules(params.agent_id)


@method("approval/revoke", params=RevokeParams, result=Rules)
async def revoke(session: Session, params: RevokeParams) -> Any:
    """Takes a rule back, also for the rest of an unfinished run. Answers the rules that the agent still has itself."""
    return await session.hub.approval_revoke(session.caller(params, "approval/revoke"), params.agent_id, params.rule)
