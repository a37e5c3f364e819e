"""Approvals: calls that may not run before somebody decides, and what a decision means.

An approval is bound to the exact arguments by their SHA-256; silence or an error never approves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import orjson

from . import schemas
from .messages import InputPart
from .values import Json, Value

Policy = Literal["allow", "ask", "deny"]
DecisionKind = Literal["approve", "deny", "edit", "answer", "abort", "stopped", "closed", "expired"]
"""What people may send is the first five; the last three are the daemon's own."""


class PathStep(Value):
    """One ancestor on the way to the agent that asks: `call_id` is the call of `agent_id` that the child works for."""

    agent_id: str
    call_id: str


class Decision(Value):
    """How an approval ended. `by` is a clientId, or `policy`, `limit`, `stop`."""

    decision: DecisionKind
    by: str
    at: str
    arguments: dict[str, Any] | None = None
    content: tuple[InputPart, ...] | None = None
    reason: str | None = None
    scope: Literal["once", "run", "agent"] | None = None
    covers: str | None = None
    """The approval rule that a scope of `run` or `agent` has made."""
    args_sha256: str | None = None
    """The hash of what runs, where the decision allows a call to run."""


class Preview(Value):
    """What a call would change, worked out before anybody is asked: a unified diff of one file.

    `base_sha256` is the hash of the text that the diff starts from, absent when the file is to be made: the call does
    nothing when the file is another by then. `truncated`: the diff is longer than what is shown.
    """

    type: Literal["diff"] = "diff"
    path: str
    text: str
    base_sha256: str | None = None
    truncated: Literal[True] | None = None


class Approval(Value):
    """A call that waits for a decision, or waited for one. Unchanged by restarts."""

    approval_id: str
    agent_id: str
    path: tuple[PathStep, ...] = ()
    run_id: str
    call_id: str
    tool_name: str
    args: dict[str, Any]
    args_sha256: str
    since: str
    expires_at: str | None = None
    editable: bool = True
    covers: str | None = None
    """The approval rule that a scope of `run` or `agent` makes, unless the decision names a pattern of its own."""
    preview: Preview | None = None
    leads_to: str | None = None
    """Where the path that the call is about led when it was asked, absolute and without links; not with a preview."""
    decision: Decision | None = None


def args_sha256(args: Json) -> str:
    """The hash that binds a decision to what runs: SHA-256 of the arguments as compact JSON with sorted keys."""
    return hashlib.sha256(orjson.dumps(args, option=orjson.OPT_SORT_KEYS)).hexdigest()


def misfit(arguments: Json, schema: Mapping[str, Any]) -> tuple[str, str] | None:
    """Where the arguments of a call do not fit its tool's schema, as `a.b`, and why; None when they fit.

    What cannot be judged (`schemas`: it takes too long, a reference leads nowhere) does not fit, with that as the why.
    """
    try:
        found = schemas.fault(arguments, schema)
    except schemas.SchemaFault as error:
        return "", f"they could not be judged by this schema: {error.message}"
    return None if found is None else (found.place, found.why)


def policy_of(tool_name: str, approvals: Mapping[str, Policy], own: Policy) -> Policy:
    """The policy of a call: `approvals[name]`, else `approvals["*"]`, else the tool's own."""
    return approvals.get(tool_name) or approvals.get("*") or own
