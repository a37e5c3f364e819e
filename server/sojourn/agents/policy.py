"""What may run without asking, and what a lasting approval covers.

A decision with a scope makes an approval rule (core/rules.py): `run` for the rest of its run, kept in the decision's
entry; `agent` for good, kept in the agent's config. Such a rule lifts an `ask`, never a `deny`; it can be listed and
taken back. Without patterns and lasting approvals a call costs one look into a dict.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from sojourn.core import rule_misfits, rules
from sojourn.core.agent import Caller
from sojourn.core.approvals import Approval, Policy, args_sha256, policy_of
from sojourn.core.errors import InvalidParams
from sojourn.core.run import RunEntry
from sojourn.core.values import clean
from sojourn.store.base import ReadTx
from sojourn.store.records import AgentRecord, ApprovalRecord, CallRecord, EntryRecord, RunRecord
from sojourn.tools.base import Tool

from . import stored
from .ledger import Ledger
from .passes import Pass, insert_entry, read_entries
from .runtime import Runtime

REVOKED = "approvalRevoked"
"""The kind of the entries that take a rule back for the rest of a run."""
CHANGED = "Not executed: its arguments are not those that were approved."
MOVED = "Not executed: no rule lets this call through any more. A rule, or where its path leads, has changed meanwhile."
ELSEWHERE = "Not executed: its path leads elsewhere than when this call was approved."
Resolve = Callable[[str], str]


def real_path(path: str) -> str:
    """The path without links. For what no path can be (it holds a NUL) something that no pattern of a path fits."""
    try:
        return os.path.realpath(path)
    except ValueError:
        return "\0"


def of(p: Pass, row: CallRecord, resolve: Resolve = real_path) -> Policy:
    """The policy of a call of a pass."""
    tool = p.tools.get(row.tool_name)
    own: Policy = tool.info.approval if tool is not None else "ask"
    given = p.config.approvals or {}
    lasting = lasting_of(p.run.entries) if p.run.entries else {}
    if lasting:
        given = {key: policy for key, policy in given.items() if lasting.get(key, True)}
    if not rules.are_simple(given):
        policy = rules.judge(call_of(row, tool, p.config.cwd, resolve), given, own)
    else:
        policy = policy_of(row.tool_name, given, own)
    if policy != "ask" or not lasting:
        return policy
    call = call_of(row, tool, p.config.cwd, resolve)
    held = (key for key, holds in lasting.items() if holds)
    return "allow" if any(rules.lets_through(call, key, given, own) for key in held) else "ask"


async def led_to(rt: Runtime, p: Pass, row: CallRecord) -> str | None:
    """Judges a call once more when it is about to run; where its path led then, if a rule or a person has looked at it.

    Between its gate and its start a link may have been pointed elsewhere, or a rule taken back. Raises
    `PermissionError` when the call would neither run by itself now nor was approved by somebody, or leads elsewhere
    than when it was approved.
    """
    approved_path = path_to_bind(p, row.tool_name, stored.args(row)) if _may_ask(p, row.tool_name) else None
    if rules.are_simple(p.config.approvals or {}) and not p.run.entries:
        return await _as_approved(rt, p, row, approved_path)
    seen: dict[str, str] = {}

    def resolve(path: str) -> str:
        return seen.setdefault(path, real_path(path))

    async with p.in_order:
        said = await asyncio.to_thread(of, p, row, resolve)
        refused = said == "deny" or (said == "ask" and await approved(rt, row) is None)
    if refused:
        raise PermissionError(MOVED)
    if said == "ask" and approved_path is not None:
        return await _as_approved(rt, p, row, approved_path)
    call = call_of(row, p.tools.get(row.tool_name), p.config.cwd)
    about = rules.subject_of(call)
    path = call.args.get(about.argument) if about is not None and about.kind == "path" else None
    return seen.get(posixpath.join(call.cwd or "/", path)) if isinstance(path, str) else None


async def approved(rt: Runtime, row: CallRecord) -> Approval | None:
    """The approval with which somebody has let exactly this call through; None when nobody has."""
    for one in await rt.store.read(lambda tx: asked(tx, row.owner, row.call_id)):
        approval = stored.approval(one)
        if approval.decision is not None and approval.decision.decision in ("approve", "edit"):
            return approval
    return None


def asked(tx: ReadTx, agent_id: str, call_id: str) -> list[ApprovalRecord]:
    """The approvals that a call was asked for; nothing when nobody was."""
    return tx.find(ApprovalRecord, agent_id=agent_id, call_id=call_id)


def path_to_bind(p: Pass, tool_name: str, args: dict[str, Any]) -> str | None:
    """The path that a call is about, absolute and with its links, if an approval of it may have to be bound to where
    it leads: a call that plainly needs none, or has a preview, which does that, is let be."""
    tool = p.tools.get(tool_name)
    if tool is None or getattr(tool, "preview", None) is not None or not _may_ask(p, tool_name):
        return None
    about = rules.subject_of(rules.Call(tool_name, args, tool.info.spec.input_schema, tool.info.subject))
    path = args.get(about.argument) if about is not None and about.kind == "path" else None
    return posixpath.join(p.config.cwd or "/", path) if isinstance(path, str) and "\0" not in path else None


def _may_ask(p: Pass, tool_name: str) -> bool:
    """Whether a call of the tool may need an approval, as far as its name tells."""
    tool, given = p.tools.get(tool_name), p.config.approvals or {}
    if not rules.are_simple(given) or p.run.entries:
        return True
    return policy_of(tool_name, given, "ask" if tool is None else tool.info.approval) == "ask"


async def _as_approved(rt: Runtime, p: Pass, row: CallRecord, path: str | None) -> str | None:
    """Where the path led when somebody approved the call with it. Raises `PermissionError` when it leads elsewhere."""
    if path is None:
        return None
    async with p.in_order:
        approval = await approved(rt, row)
        now = await asyncio.to_thread(os.path.realpath, path)
    if approval is None or approval.leads_to is None or path_to_bind(p, row.tool_name, approval.args) != path:
        return None
    if approval.leads_to != clean(now):
        raise PermissionError(f"{ELSEWHERE} It led to {approval.leads_to!r}, and leads to {now!r} now.")
    return now


def call_of(row: CallRecord, tool: Tool | None, cwd: str | None, resolve: Resolve = real_path) -> rules.Call:
    """A call as rules look at it."""
    info = tool.info if tool is not None else None
    return rules.Call(
        tool_name=row.tool_name,
        args=stored.args(row),
        schema=info.spec.input_schema if info else {},
        subject=info.subject if info else None,
        cwd=cwd,
        resolve=resolve,
    )


def lasting_of(entries: Iterable[RunEntry], *scopes: str) -> dict[str, bool]:
    """The rules that decisions of a run have made for its rest, and whether each still holds or was taken back."""
    found: dict[str, bool] = {}
    for entry in entries:
        value = entry.value
        if not isinstance(value, dict):
            continue
        if entry.kind == "approval" and value.get("scope") in (scopes or ("run", "agent")):
            found[str(value.get("covers") or value.get("toolName"))] = True
        elif entry.kind == REVOKED:
            found[str(value.get("rule"))] = False
    return found


def covers(p: Pass, row: CallRecord) -> str | None:
    """The rule that a lasting approval of this call would make, for the approval that is asked."""
    tool = p.tools.get(row.tool_name)
    own: Policy = tool.info.approval if tool is not None else "ask"
    return rules.covering(call_of(row, tool, p.config.cwd), p.config.approvals or {}, own)


def rule_for(rt: Runtime, agent: AgentRecord, row: CallRecord, pattern: str | None) -> str:
    """The rule of a decision with a scope. Raises `InvalidParams` when it would not let this very call through."""
    config = rt.config_of(stored.config(agent))
    tool = rt.toolset.tools_for(agent.agent_id, config, also=(row.tool_name,)).get(row.tool_name)
    own: Policy = tool.info.approval if tool is not None else "ask"
    call, given = call_of(row, tool, config.cwd), config.approvals or {}
    if pattern is None:
        rule = rules.covering(call, given, own)
        if rule is None:
            raise InvalidParams(
                f"No lasting approval can cover this call of {row.tool_name!r}: another rule is in the way, or it is "
                "too long. Approve it once.",
                field="scope",
            )
        return rule
    rule = f"{row.tool_name}: {pattern}"
    try:
        rules.parse(rule)
    except ValueError as error:
        raise InvalidParams(f"The pattern cannot be used: {error}.", field="pattern") from None
    if not rules.lets_through(call, rule, given, own):
        raise InvalidParams(rule_misfits.why_not(call, rule, given, own), field="pattern")
    return rule


def forbids(rt: Runtime, agent: AgentRecord, row: CallRecord, arguments: dict[str, Any]) -> bool:
    """Whether a rule denies the call with these (edited) arguments."""
    config = rt.config_of(stored.config(agent))
    tool = rt.toolset.tools_for(agent.agent_id, config, also=(row.tool_name,)).get(row.tool_name)
    call = rules.Call(
        tool_name=row.tool_name,
        args=arguments,
        schema=tool.info.spec.input_schema if tool else {},
        subject=tool.info.subject if tool else None,
        cwd=config.cwd,
        resolve=real_path,
    )
    return rules.judge(call, config.approvals or {}, "ask") == "deny"


def allow_always(agent: AgentRecord, rule: str) -> None:
    """Keeps a rule in the agent's config."""
    config = stored.config_json(agent)
    config["approvals"] = {**config.get("approvals", {}), rule: "allow"}
    agent.config = orjson.dumps(config).decode()


def is_attended(ledger: Ledger, rt: Runtime, p: Pass) -> bool:
    """Whether a client that answers approvals is attached to the agent or an ancestor."""
    line, agent = [p.agent_id], ledger.agent(p.agent_id)
    while agent.parent_agent_id is not None and agent.parent_agent_id not in line:
        line.append(agent.parent_agent_id)
        agent = ledger.agent(agent.parent_agent_id)
    return any(session.answers_approvals for session in rt.feed.sessions_of(line))


def is_bound(ledger: Ledger, row: CallRecord) -> bool:
    """Whether what would run is what was approved: the row's arguments, its hash and the decision's are one."""
    for one in asked(ledger.tx, row.owner, row.call_id):
        approval = stored.approval(one)
        made = approval.decision
        bound = (made.args_sha256 if made is not None else None) or approval.args_sha256
        return bound == row.args_sha256 == args_sha256(stored.args(row))
    return False


# -- what is listed and taken back ------------------------------------------------------------------------------------


async def listed(rt: Runtime, agent_id: str) -> dict[str, Any]:
    """The approval rules of an agent: its own, its preset's, and those of its unfinished run."""

    def query(tx: ReadTx) -> tuple[AgentRecord | None, list[str]]:
        agent = tx.get(AgentRecord, agent_id)
        return agent, _of_run(tx, agent) if agent is not None else []

    await rt.agent(agent_id)
    agent, of_run = await rt.store.read(query)
    assert agent is not None
    own = stored.config(agent)
    every = rt.config_of(own).approvals or {}
    found = [
        {"rule": key, "policy": policy, "source": "agent" if key in (own.approvals or {}) else "preset"}
        for key, policy in every.items()
    ]
    return {"rules": found + [{"rule": key, "policy": "allow", "source": "run"} for key in of_run]}


def _of_run(tx: ReadTx, agent: AgentRecord) -> list[str]:
    record = tx.get(RunRecord, agent.active_run_id) if agent.active_run_id else None
    entries = read_entries(tx, record.run_id) if record is not None else []
    return [rule for rule, holds in lasting_of(entries, "run").items() if holds]


async def revoke(rt: Runtime, caller: Caller, agent_id: str, rule: str) -> Any:
    """Takes a rule back: out of the agent's own config, and for the rest of its unfinished run."""

    def change(ledger: Ledger) -> dict[str, Any]:
        agent = ledger.agent(agent_id)
        record = ledger.active_run(agent)
        config = stored.config_json(agent)
        own = config.get("approvals") or {}
        of_run = _of_run(ledger.tx, agent)
        if rule not in own and rule not in of_run:
            there = ", ".join(map(repr, dict.fromkeys([*own, *of_run]))) or "none"
            raise InvalidParams(
                f"The agent {agent_id!r} has no rule {rule!r} of its own; it has: {there}.", field="rule"
            )
        if rule in own:
            config["approvals"] = {key: policy for key, policy in own.items() if key != rule}
            agent.config = orjson.dumps(config).decode()
        if record is not None:
            value: dict[str, Any] = {"rule": rule, "by": caller.client_id or "anonymous", "at": ledger.now}
            position = ledger.tx.count(EntryRecord, run_id=record.run_id)
            insert_entry(ledger, record.run_id, position, RunEntry(kind=REVOKED, turn=record.turn, value=value))
        left = config.get("approvals", {}).items()
        return {"rules": [{"rule": key, "policy": policy, "source": "agent"} for key, policy in left]}

    return await rt.answer_once(caller, "update", change)
