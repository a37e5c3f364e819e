"""`shell`: runs a command line in the agent's directory, and waits for it or lets it go on as a job.

An agent without a directory runs nothing: the daemon's own is nobody's project. The command has no stdin and no
terminal; what it starts ends with it. Its output is told while it comes, as far as `LIVE_BYTES`; the result holds its
beginning and its end.
"""

from __future__ import annotations

import asyncio
import codecs
from typing import Annotated, Any

from pydantic import Field

from ._places import NO_DIRECTORY, is_directory_name
from .author import FunctionTool, tool
from .base import ToolContext, ToolOutput
from .clip import Clip
from .processes import Attached, Order, Surroundings, gone, words

LIVE_BYTES = 256 * 1024
"""How much output of one call is told while it runs."""
_LIVE_PIECE = 4096
_LIVE_S = 0.1
_LIMIT_S = 120.0
_END_S = 0.5
_Command = Annotated[str, Field(description="The command line, for bash or sh.", min_length=1, max_length=30_000)]
_Limit = Annotated[
    float | None,
    Field(description=f"Seconds it may take; {_LIMIT_S:g} when left out, none in the background.", gt=0, le=86_400),
]
_Background = Annotated[
    bool, Field(description="Go on at once; it runs as a job, its result follows. For builds, servers, long tests.")
]


def shell_tool(around: Surroundings) -> FunctionTool[..., Any]:
    """The tool, whose commands get `around` of the daemon's own."""

    @tool(approval="ask", bounded=True, close=_all_gone)
    async def shell(
        ctx: ToolContext, command: _Command, timeout_s: _Limit = None, background: _Background = False
    ) -> ToolOutput:
        """Runs a command in the working directory; answers its output and exit code. It has no stdin, no terminal."""
        if "\0" in command:
            return ToolOutput.error("Not run: a command cannot hold a NUL character.")
        if not is_directory_name(ctx.cwd):
            return ToolOutput.error(f"{NO_DIRECTORY}, so no command can be run.")
        if background:
            job = await ctx.start_job(command, limit_s=timeout_s)
            return ToolOutput.pending(f"Started job {job}: {command}\nIts result will follow.")
        clip, live = Clip(), Live(ctx)

        def take(data: bytes) -> None:
            clip.add(data)
            live.add(data)

        try:
            order = Order(words(command), cwd=ctx.cwd, limit_s=timeout_s or _LIMIT_S)
            ended = await Attached(around, take).run(order)
        finally:
            live.close()
        text = clip.text().rstrip("\n") or "(no output)"
        return (
            ToolOutput.of(f"{text}\n{ended.text}") if not ended.is_error else ToolOutput.error(f"{text}\n{ended.text}")
        )

    return shell


class Live:
    """Tells a call's output as progress, joined to a few pieces a second and bounded."""

    def __init__(self, ctx: ToolContext) -> None:
        self._ctx = ctx
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._fresh = bytearray()
        self._left = LIVE_BYTES
        self._cut = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, data: bytes) -> None:
        """Takes output; it is told soon."""
        if self._left <= 0:
            return
        self._fresh += data
        if (over := len(self._fresh) - _LIVE_PIECE) > 0:
            del self._fresh[:over]
            self._cut += over
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LIVE_S, self._tell)

    def _tell(self) -> None:
        self._timer = None
        piece, cut = bytes(self._fresh), self._cut
        self._fresh.clear()
        self._cut = 0
        self._left -= len(piece)
        if text := self._decoder.decode(piece):
            self._ctx.progress(f"\n[... {cut} bytes ...]\n{text}" if cut else text)
        if self._left <= 0:
            self._ctx.progress("\n[what follows is not shown while it runs]\n")

    def close(self) -> None:
        """Tells nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._left = 0


async def _all_gone() -> None:
    await gone(_END_S)
