"""What tools are given in tests: a `ToolContext` whose callables remember what was asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sojourn.core.agent import AgentConfig
from sojourn.core.approvals import Preview
from sojourn.core.messages import Content, parts, text_of
from sojourn.tools._places import FileRefused
from sojourn.tools.base import ChildReply, ToolContext
from sojourn.tools.files import FileTools


@dataclass
class FakeInbox:
    """Keeps what was delivered; `refuse` is raised instead when set."""

    items: list[tuple[str, ...]] = field(default_factory=list)
    refuse: Exception | None = None

    async def push(self, content: Content) -> str:
        return self._keep("push", text_of(parts(content)))

    async def resolve(self, call_id: str, content: Content) -> str:
        return self._keep("resolve", call_id, text_of(parts(content)))

    async def reject(self, call_id: str, error: str) -> str:
        return self._keep("reject", call_id, error)

    def _keep(self, *item: str) -> str:
        if self.refuse is not None:
            raise self.refuse
        self.items.append(item)
        return f"item-{len(self.items)}"


@dataclass
class FakeHost:
    """Stands for the hub behind a context."""

    inbox: FakeInbox = field(default_factory=FakeInbox)
    progress: list[tuple[str | None, float | None]] = field(default_factory=list)
    children: list[tuple[str, AgentConfig | str, str]] = field(default_factory=list)
    child: Callable[[str], Awaitable[ChildReply]] | None = None
    stop: bool = False

    def context(
        self, tool_name: str = "t", *, call_id: str = "msg-2-call-1", cwd: str | None = None, **more: Any
    ) -> ToolContext:
        return ToolContext(
            agent_id="agent-1",
            run_id="run-1",
            call_id=call_id,
            tool_name=tool_name,
            cwd=cwd,
            inbox=lambda: self.inbox,
            run_child=self._run_child,
            start_child=self._start_child,
            on_progress=lambda text, fraction: self.progress.append((text, fraction)),
            stopped=lambda: self.stop,
            **more,
        )

    async def _run_child(self, config: AgentConfig | str, prompt: str) -> ChildReply:
        self.children.append(("run", config, prompt))
        if self.child is not None:
            return await self.child(prompt)
        return ChildReply(agent_id="child-1", content=parts(f"did: {prompt}"), text=f"did: {prompt}")

    async def _start_child(self, config: AgentConfig | str, prompt: str) -> str:
        self.children.append(("start", config, prompt))
        return "child-1"


def file_tool(name: str, files: FileTools | None = None) -> Any:
    """The file tool of this name."""
    return next(one for one in (files or FileTools()).tools() if one.info.spec.name == name)


async def run_file_tool(
    cwd: Path | str,
    name: str,
    files: FileTools | None = None,
    *,
    host: FakeHost | None = None,
    approved: Preview | None = None,
    **args: Any,
) -> str:
    """What the tool answers, as text; an error as `error: …`, as the loop would record it."""
    context = (host or FakeHost()).context(name, cwd=str(cwd), approved=approved)
    async with asyncio.timeout(30):
        try:
            output = await file_tool(name, files).execute(args, context)
        except FileRefused as error:
            return f"error: {error}"
    return f"{'error: ' if output.is_error else ''}{text_of(output.content)}"
