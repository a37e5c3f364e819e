"""Tools that only play: for the offline demo, for trying a client, for tests. No file, process or network of yours.

`demo_deploy` is the one with an effect: a JSON line in the file that SOJOURN_DEMO_WORLD names, if it names one, so
that a test can count how often something really happened.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Coroutine
from datetime import UTC, datetime
from itertools import count
from typing import Annotated, Any

from pydantic import Field

from sojourn.core.errors import SojournError

from .author import FunctionTool, tool
from .base import InboxHandle, ToolContext, ToolOutput

logger = logging.getLogger(__name__)

WORLD_VARIABLE = "SOJOURN_DEMO_WORLD"
SECONDS_VARIABLE = "SOJOURN_DEMO_SECONDS"
_Seconds = Annotated[float, Field(ge=0, le=86400)]


class DemoTools:
    """The demo's tools and the builds that they have under way; `aclose` ends those."""

    def __init__(self) -> None:
        self._builds: set[asyncio.Task[None]] = set()
        self._numbers = count(1)

    def tools(self) -> list[FunctionTool[..., Any]]:
        """All of them, `demo_build` sharing this object's tasks."""
        return [self._build_tool(), demo_deploy, demo_time, demo_sleep, demo_fail, demo_echo]

    async def aclose(self) -> None:
        """Ends the builds under way; their calls stay pending, a person can still resolve them."""
        for build in self._builds:
            build.cancel()
        await asyncio.gather(*self._builds, return_exceptions=True)

    def _build_tool(self) -> FunctionTool[..., Any]:
        @tool(approval="allow", close=self.aclose)
        async def demo_build(
            ctx: ToolContext, target: str = "everything", seconds: _Seconds | None = None
        ) -> ToolOutput:
            """Starts a build that takes long. Its result follows later."""
            job = next(self._numbers)
            wait_s = _default_seconds() if seconds is None else seconds
            if wait_s is not None:
                self._spawn(_finish(ctx.inbox(), ctx.call_id, target, wait_s))
            return ToolOutput.pending(f"Started build job {job} of {target}. Its result will follow.")

        return demo_build

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._builds.add(task)
        task.add_done_callback(self._builds.discard)


@tool(approval="ask")
async def demo_deploy(ctx: ToolContext, target: str) -> str:
    """Deploys a build to a target. It cannot be taken back."""
    if world := os.environ.get(WORLD_VARIABLE):
        line = json.dumps({"agentId": ctx.agent_id, "callId": ctx.call_id, "target": target}) + "\n"
        _append(world, line.encode())
    return f"Deployed {target}."


@tool(approval="allow")
def demo_time() -> str:
    """Tells the date and the time (UTC)."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@tool(approval="allow")
async def demo_sleep(ctx: ToolContext, seconds: _Seconds) -> str:
    """Does nothing for a while."""
    ctx.progress(f"Sleeping for {seconds:g} s.", 0.0)
    await asyncio.sleep(seconds)
    return f"Slept for {seconds:g} s."


@tool(approval="allow")
async def demo_fail(reason: str = "It was asked to.") -> str:
    """Always fails."""
    raise RuntimeError(f"The tool failed: {reason}")


@tool(approval="allow")
async def demo_echo(text: str) -> str:
    """Answers what it was given."""
    return text


async def _finish(inbox: InboxHandle, call_id: str, target: str, seconds: float) -> None:
    await asyncio.sleep(seconds)
    try:
        await inbox.resolve(call_id, f"The build of {target} succeeded.")
    except SojournError as error:
        logger.info("The build's result of call %r was dropped: %s", call_id, error)


def _default_seconds() -> float | None:
    text = os.environ.get(SECONDS_VARIABLE)
    return float(text) if text else None


def _append(path: str, line: bytes) -> None:
    """One write to the end of the file: lines of tools that run at once do not mix, a kill leaves all of it or none."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)
