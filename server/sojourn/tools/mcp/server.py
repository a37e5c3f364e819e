"""One server of a config: not needed yet, starting, up, or down for a while.

Rule: it is started when somebody needs it, once for all of them; when it died it is started again at the next need,
after a pause that doubles with each failure in a row. Its tools stay known meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

from sojourn.core.messages import ToolSpec
from sojourn.core.servers import McpServer
from sojourn.tools.base import ToolContext, ToolInfo, ToolOutput

from .failures import CallRefused, ConnectionLost, NotSent, ServerDown
from .listing import ListedTool, Listing

if TYPE_CHECKING:
    from mcp_types import Task

    from .connection import Connection

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 60.0
"""A connection that lived this long ended a row of failures."""
PROGRESS_S = 0.05
"""Progress is told no more often than this."""
END_S = 1.5


class KeepsTasks(Protocol):
    """Whoever follows a task that a call became."""

    async def follow(self, server: Server, tool: ListedTool, task: Task, ctx: ToolContext) -> ToolOutput:
        """The task's result if it comes soon, else a placeholder."""
        ...


class Server:
    """A server by its name. `listing` is None until it was up once; `failure` says why it is down, if it is."""

    def __init__(self, name: str, config: McpServer, tasks: KeepsTasks) -> None:
        self.name = name
        self.config = config
        self.listing: Listing | None = None
        self.failure: str | None = None
        self._tasks = tasks
        self._connection: Connection | None = None
        self._owner: asyncio.Task[None] | None = None
        self._started: asyncio.Future[Connection] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._closed = False

    @property
    def source(self) -> str:
        """Where its tools say that they come from."""
        return f"mcp:{self.name}"

    # -- its life ---------------------------------------------------------------------------------------------------

    async def up(self) -> Connection:
        """The connection, made if there is none. Raises `ServerDown` when it cannot be made, or was tried just now."""
        if self._connection is not None and self._connection.alive and self._started is None:
            return self._connection
        if self._started is None:
            self._check_may_start()
            self._begin()
        assert self._started is not None
        return await asyncio.shield(self._started)

    def start(self) -> None:
        """Begins to start it, if it is down and may be tried again."""
        if self._started is None and (self._connection is None or not self._connection.alive):
            with contextlib.suppress(ServerDown):
                self._check_may_start()
                self._begin()

    def _begin(self) -> None:
        self._started = asyncio.get_running_loop().create_future()
        self._started.add_done_callback(_seen)
        self._owner = asyncio.create_task(self._own(self._owner, self._started), name=f"mcp server {self.name}")

    def _check_may_start(self) -> None:
        if self._closed:
            raise ServerDown("it was ended with the daemon")
        if (pause := self._not_before - time.monotonic()) > 0:
            raise ServerDown(f"{self.failure or 'it failed'}; it is tried again in {pause:.0f} s")

    async def _own(self, before: asyncio.Task[None] | None, started: asyncio.Future[Connection]) -> None:
        """One life: the task that owns the connection. It first waits for the end of the life before."""
        if before is not None:
            await asyncio.wait({before})
        try:
            self._check_may_start()  # how the life before ended is known only now
        except ServerDown as error:
            self._started = None
            started.set_exception(error)
            return
        began = time.monotonic()
        why: str | None = None
        try:
            kind = await asyncio.to_thread(_import_connection)  # half a second that the loop need not spend
            connection = self._connection = kind(self.name, self.config, lambda: self._listed(connection))
            self._check_may_start()
            await connection.run(lambda: self._is_up(connection, started))
        except ServerDown as error:
            why = str(error)
        except Exception as error:  # the task's own boundary: whatever the SDK raises is told to those who wait
            log.exception("The connection to the MCP server %r failed in an unexpected way.", self.name)
            why = f"{type(error).__name__}: {error}"
        finally:
            self._is_down(why, started, lived_s=time.monotonic() - began)

    def _is_up(self, connection: Connection, started: asyncio.Future[Connection]) -> None:
        self.failure = None
        self._started = None
        self._listed(connection)
        if not started.done():
            started.set_result(connection)
        log.info("The MCP server %r is up with %d tools.", self.name, len(connection.listing.tools))

    def _listed(self, connection: Connection) -> None:
        self.listing = connection.listing
        for problem in connection.listing.problems:
            log.warning("The MCP server %r: %s", self.name, problem)

    def _is_down(self, why: str | None, started: asyncio.Future[Connection], *, lived_s: float) -> None:
        was_up = self._started is not started
        self._connection = None
        if not was_up:
            self._started = None
        if why is None and not self._closed:
            log.info("The MCP server %r was ended, nobody had used it for long.", self.name)
            return
        if why is None or self._closed:
            why = "it was ended with the daemon"
        self._failures = 1 if was_up and lived_s >= STEADY_S else self._failures + 1
        pause = 0.0 if self._failures == 1 and was_up else FIRST_PAUSE_S * 2 ** (self._failures - 1)
        self._not_before = time.monotonic() + min(pause, LONGEST_PAUSE_S)
        self.failure = why
        if not self._closed:
            log.warning("The MCP server %r is down: %s.", self.name, why)
        if not started.done():
            started.set_exception(ServerDown(why))

    async def aclose(self) -> None:
        """Ends it for good. Returns when its process is gone, at the latest after a moment."""
        self._closed = True
        if self._connection is not None:
            self._connection.end()
        if self._owner is not None:
            await asyncio.wait({self._owner}, timeout=END_S)

    # -- its tools --------------------------------------------------------------------------------------------------

    def tool(self, name: str) -> ServerTool:
        """The tool of this name; its schema is empty as long as the server was not asked."""
        listed = self.listing.tools.get(name) if self.listing is not None else None
        return ServerTool(self, ToolSpec(name=name) if listed is None else listed.spec)

    async def run(self, name: str, args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        """Runs a call. Whatever goes wrong is an error that the model reads."""
        limit = self.config.call_timeout_s
        try:
            async with asyncio.timeout(limit) as timer:
                return await self._run(name, args, ctx, timer)
        except TimeoutError:
            if not timer.expired():
                raise
            text = f"did not answer within call_timeout_s ({limit:g} s). It was told to give up"
            return self._error(f"{text}; the call may have taken effect.")
        except ServerDown as error:
            return self._error(f"cannot be used, nothing was called: {error}.")
        except NotSent as error:
            return self._error(f"did not take the call, nothing was done: {error}.")
        except ConnectionLost as error:
            return self._error(f"was lost during the call, which may have taken effect: {error}.")
        except CallRefused as error:
            return self._error(f"answered with an error: {error}.")

    async def _run(self, name: str, args: dict[str, Any], ctx: ToolContext, timer: asyncio.Timeout) -> ToolOutput:
        connection = await self.up()
        listed = connection.listing.tools.get(name)
        if listed is None:
            there = ", ".join(sorted(connection.listing.tools)) or "none"
            return self._error(f"has no tool {name!r}, nothing was called. Its tools: {there}.")
        try:
            answer = await connection.call(listed, args, _progress_of(ctx))
        except NotSent:  # it was started anew, and knows nothing of our session
            answer = await (await self.up()).call(listed, args, _progress_of(ctx))
        if isinstance(answer, ToolOutput):
            return answer
        timer.reschedule(None)  # a task has a time limit of its own, at the server
        return await self._tasks.follow(self, listed, answer, ctx)

    def _error(self, text: str) -> ToolOutput:
        return ToolOutput.error(f"The MCP server {self.name!r} {text}")


class ServerTool:
    """A tool of a server, as the daemon's other tools."""

    def __init__(self, server: Server, spec: ToolSpec) -> None:
        self._server = server
        self.info = ToolInfo(spec, approval=server.config.approval, source=server.source, bounded=True)

    async def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        """Has the server do the work; it is started first if need be."""
        return await self._server.run(self.info.spec.name, args, ctx)


def _import_connection() -> type[Connection]:
    from .connection import Connection

    return Connection


def _seen(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _progress_of(ctx: ToolContext) -> Any:
    last = 0.0

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        nonlocal last
        now = time.monotonic()
        done = total is not None and progress >= total
        if now - last < PROGRESS_S and not done:
            return
        last = now
        fraction = min(1.0, max(0.0, progress / total)) if total else None
        ctx.progress((message or (None if total else f"{progress:g}")), fraction)

    return tell
