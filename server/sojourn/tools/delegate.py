"""`delegate`: a child agent as a tool. The child does one task in a conversation of its own and reports back.

It is `rerun`: run again with the same call id after a restart, it enters the same child (agents.md, "Tools and
children"), so that a child's open approval and its parent's run survive together. The configured presets are the kinds
of children: the model is told their names and what each is for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from sojourn.core.agent import AgentConfig

from .author import FunctionTool, tool
from .base import ToolContext, ToolOutput

_PROMPT = "You do one task for another agent. Work on your own and report back briefly; only your last message is read."
_MAKE = tool(approval="allow", on_interrupt="rerun", bounded=True, name="delegate")


async def _delegate(
    ctx: ToolContext,
    task: Annotated[str, Field(description="What to do, with everything the other agent must know.", min_length=1)],
    preset: Annotated[
        str | None, Field(description="Which configured kind of agent does it; left out: one like yourself.")
    ] = None,
    background: Annotated[bool, Field(description="Go on at once; the reply follows later.")] = False,
) -> ToolOutput:
    """Gives a task to another agent, which works on its own and reports back."""
    config = AgentConfig(preset=preset, cwd=ctx.cwd) if preset else _like(ctx)
    if background:
        child = await ctx.start_child(config, task)
        return ToolOutput.pending(f"Started agent {child}. Its reply will follow.")
    reply = await ctx.run_child(config, task)
    return ToolOutput(reply.content) if reply.content else ToolOutput.of("(the agent answered without words)")


def _like(ctx: ToolContext) -> AgentConfig:
    """An agent with the tools of the one that delegates."""
    mine = ctx.config or AgentConfig()
    return AgentConfig(cwd=ctx.cwd, system_prompt=_PROMPT, tools=mine.tools, mcp_servers=mine.mcp_servers)


delegate = _MAKE(_delegate)


def delegate_to(kinds: Mapping[str, str | None]) -> FunctionTool[..., Any]:
    """`delegate` that tells the model which kinds of agents there are, by name, with what each is for."""
    made = _MAKE(_delegate)
    schema = dict(made.info.spec.input_schema)
    names = sorted(kinds)
    told = "; ".join(f"{name}: {' '.join(text.split())}" if (text := kinds[name]) else name for name in names)
    preset = {**schema["properties"]["preset"]}
    if names:
        preset["anyOf"] = [{"type": "string", "enum": names}, {"type": "null"}]
        preset["description"] = f"{preset['description']} The kinds are: {told}."
    else:
        preset["description"] = "No kinds of agents are configured; leave this out."
    schema["properties"] = {**schema["properties"], "preset": preset}
    made.info = dataclasses.replace(made.info, spec=made.info.spec.model_copy(update={"input_schema": schema}))
    return made
