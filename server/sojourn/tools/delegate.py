"""`delegate`: a child agent as a tool. The child does one task in a conversation of its own and reports back.

It is `rerun`: run again with the same call id after a restart, it enters the same child (agents.md, "Tools and
children"), so that a child's open approval and its parent's run survive together.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sojourn.core.agent import AgentConfig

from .author import tool
from .base import ToolContext, ToolOutput

_PROMPT = "You do one task for another agent. Work on your own and report back briefly; only your last message is read."


@tool(approval="allow", on_interrupt="rerun")
async def delegate(
    ctx: ToolContext,
    task: Annotated[str, Field(description="What to do, with everything the other agent must know.", min_length=1)],
    preset: Annotated[str | None, Field(description="Which configured kind of agent does it.")] = None,
    background: Annotated[bool, Field(description="Go on at once; the reply follows later.")] = False,
) -> ToolOutput:
    """Gives a task to another agent, which works on its own and reports back."""
    config = AgentConfig(preset=preset, cwd=ctx.cwd, system_prompt=None if preset else _PROMPT)
    if background:
        child = await ctx.start_child(config, task)
        return ToolOutput.pending(f"Started agent {child}. Its reply will follow.")
    reply = await ctx.run_child(config, task)
    return ToolOutput(reply.content) if reply.content else ToolOutput.of("(the agent answered without words)")
