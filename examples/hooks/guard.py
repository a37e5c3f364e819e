"""A hook in a file: nothing is deployed to production at the weekend, keys never reach a model, calls are counted.

Name it in the config (`[hooks] files = ["guard.py"]`); a package offers the same by an entry point `sojourn.hooks`.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from sojourn.core.messages import TextPart
from sojourn.tools.base import ToolOutput
from sojourn.tools.hooks import Change, HookContext, Request, ToolCall, Veto

SATURDAY = 5
KEY = re.compile(r"\b(sk|ghp)[-_][A-Za-z0-9_-]{8,}")


def before_model(ctx: HookContext, request: Request) -> Change | None:
    """After twenty calls the model is told to come to an end."""
    made = len(ctx.entries("guard.call"))
    return Change(note=f"You have made {made} calls. Come to an end.") if made >= 20 else None


def before_tool(ctx: HookContext, call: ToolCall) -> Veto | None:
    """Every call is noted; one that deploys to production at the weekend is refused."""
    ctx.append_entry("guard.call", {"tool": call.name, "callId": call.call_id})
    if "deploy" in call.name and call.arguments.get("target") == "prod" and _weekday() >= SATURDAY:
        return Veto("Production is not touched at the weekend. Deploy to staging, or wait until Monday.")
    return None


def after_tool(ctx: HookContext, call: ToolCall, output: ToolOutput) -> ToolOutput | None:
    """What looks like a key is taken out of a result before the model and the store see it."""
    content: tuple[Any, ...] = tuple(
        TextPart(text=KEY.sub("[key]", part.text)) if isinstance(part, TextPart) else part for part in output.content
    )
    return None if content == output.content else ToolOutput(content, is_error=output.is_error)


def _weekday() -> int:
    return datetime.now().astimezone().weekday()
