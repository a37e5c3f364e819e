"""What calls would change, worked out between the model's answer and its transition: transitions do no other I/O.

Rule: a preview changes nothing and never holds a run up; one that fails is the call's failed result, without anybody
being asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sojourn.core.approvals import Approval, Preview, args_sha256
from sojourn.core.messages import ToolCallPart
from sojourn.models.base import ModelAnswer
from sojourn.store.records import ApprovalRecord, CallRecord
from sojourn.tools.base import MakePreview, Tool, ToolContext

from .passes import Pass
from .runtime import Runtime

log = logging.getLogger(__name__)

WAIT_S = 10.0
"""How long the previews of one turn may take; those that are not ready by then are left out."""


@dataclass(frozen=True, slots=True)
class Faulty:
    """The call cannot do anything: why, in words for the model."""

    text: str


Previews = dict[tuple[str, str], Preview | Faulty]
"""By the call's tool and the hash of its arguments."""


def wanted(p: Pass, answer: ModelAnswer) -> list[ToolCallPart]:
    """The calls of an answer that have a preview."""
    return [part for part in answer.content if isinstance(part, ToolCallPart) and has(p, part)]


def has(p: Pass, call: ToolCallPart) -> bool:
    """Whether a call has a preview."""
    return _maker(p.tools, call.name) is not None


async def look_ahead(rt: Runtime, p: Pass, calls: list[ToolCallPart]) -> None:
    """Works out the previews of the calls of one answer, in order: each sees what those before it would leave."""
    ahead: dict[str, Any] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            for part in calls:
                if isinstance(part.arguments, dict):
                    await _one(rt, p, part.name, part.arguments, ahead)


async def _one(rt: Runtime, p: Pass, name: str, arguments: dict[str, Any], ahead: dict[str, Any]) -> None:
    make = _maker(p.tools, name)
    assert make is not None
    key = name, args_sha256(arguments)
    try:
        found = await make(arguments, _context(rt, p, name, ahead))
    except Exception as error:  # noqa: BLE001 (the tool boundary: what fails here would fail when it runs)
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


async def approved(rt: Runtime, tool: Tool, call: CallRecord) -> Preview | None:
    """The preview that a call was approved with."""
    if getattr(tool, "preview", None) is None:
        return None
    rows = await rt.store.read(lambda tx: tx.find(ApprovalRecord, agent_id=call.owner, call_id=call.call_id))
    for row in rows:
        approval = Approval.model_validate(orjson.loads(row.body))
        if approval.decision is not None and approval.decision.decision in ("approve", "edit"):
            return approval.preview
    return None
