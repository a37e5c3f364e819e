"""What calls would change, and where their paths lead, worked out between the model's answer and its transition:
transitions do no other I/O.

Rule: a preview changes nothing and never holds a run up; one that fails is the call's failed result, without anybody
being asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sojourn.core import rules
from sojourn.core.approvals import Preview, args_sha256
from sojourn.core.messages import Part, ToolCallPart
from sojourn.core.values import clean
from sojourn.store.records import CallRecord
from sojourn.tools.base import MakePreview, Tool, ToolContext

from . import policy
from .passes import Pass
from .runtime import Runtime

log = logging.getLogger(__name__)

WAIT_S = 10.0
"""How long the previews of one turn may take; those that are not ready by then are left out."""


@dataclass(frozen=True, slots=True)
class Faulty:
    """The call cannot do anything: why, in words for the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Leads:
    """Where the path of a call without a preview leads, absolute and without links."""

    path: str


Previews = dict[tuple[str, str, str], Preview | Faulty | Leads]
"""By the call, its tool and the hash of its arguments: a call may be given others before it is asked for."""


def wanted(p: Pass, content: Iterable[Part]) -> list[ToolCallPart]:
    """The calls of an answer that something is worked out for."""
    return [part for part in content if isinstance(part, ToolCallPart) and has(p, part)]


def of(p: Pass, row: CallRecord) -> Preview | Faulty | Leads | None:
    """What was worked out for a call as it is now."""
    return p.previews.get((row.call_id, row.tool_name, row.args_sha256))


def has(p: Pass, call: ToolCallPart) -> bool:
    """Whether something is worked out for a call."""
    if _maker(p.tools, call.name) is not None:
        return True
    return isinstance(call.arguments, dict) and policy.path_to_bind(p, call.name, call.arguments) is not None


async def look_ahead(rt: Runtime, p: Pass, calls: list[ToolCallPart]) -> None:
    """Works out the previews of the calls of one answer, in order: each sees what those before it would leave."""
    ahead: dict[str, Any] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            for part in calls:
                if isinstance(part.arguments, dict):
                    await _one(rt, p, part, part.arguments, ahead)


async def _one(rt: Runtime, p: Pass, call: ToolCallPart, arguments: dict[str, Any], ahead: dict[str, Any]) -> None:
    make = _maker(p.tools, call.name)
    key = call.id, call.name, args_sha256(arguments)
    if make is None:
        if (path := policy.path_to_bind(p, call.name, arguments)) is not None:
            p.previews[key] = Leads(clean(await asyncio.to_thread(os.path.realpath, path)))
        return
    try:
        found = await make(arguments, _context(rt, p, call.name, ahead))
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 (the tool boundary)
        p.previews[key] = Faulty(str(error) or type(error).__name__)
    else:
        if found is not None:
            p.previews[key] = found


def _maker(tools: Mapping[str, Tool], name: str) -> MakePreview | None:
    return getattr(tools.get(name), "preview", None)


def _context(rt: Runtime, p: Pass, name: str, ahead: dict[str, Any]) -> ToolContext:
    def nothing(*_: object) -> Any:
        raise RuntimeError("A preview has no inbox and no children.")

    return ToolContext(
        agent_id=p.agent_id,
        run_id=p.run_id,
        call_id="",
        tool_name=name,
        cwd=p.config.cwd,
        inbox=nothing,
        run_child=nothing,
        start_child=nothing,
        on_progress=lambda _text, _fraction: None,
        stopped=lambda: p.stop_asked,
        documents=rt.toolset.buffers,
        extra={"ahead": ahead},
    )


async def approved(rt: Runtime, p: Pass, tool: Tool, call: CallRecord) -> Preview | None:
    """The preview that a call was approved with; None when the decision made it about something else."""
    if getattr(tool, "preview", None) is None:
        return None
    async with p.in_order:  # calls that were started together reach their tools in that order
        approval = await policy.approved(rt, call)
    if approval is None or approval.decision is None:
        return None
    made = approval.decision
    is_other = made.decision == "edit" and _other(tool, approval.args, made.arguments or {})
    return None if is_other else approval.preview


def _other(tool: Tool, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether a call with these arguments is about something else than before."""
    info = tool.info
    about = rules.subject_of(rules.Call(info.spec.name, after, info.spec.input_schema, info.subject))
    return before != after if about is None else before.get(about.argument) != after.get(about.argument)
