"""Calls that a server runs as tasks: what takes longer than a moment becomes a pending call.

Rule: a note about each such task is on disk before its call is pending, so that the next life of the daemon goes on
asking for it. The note goes when the result is in the agent's inbox, which takes it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sojourn.core.errors import AgentNotFound, AlreadyDecided, CallNotFound, SojournError
from sojourn.core.messages import text_of
from sojourn.core.servers import McpServer
from sojourn.core.values import Value
from sojourn.tools.base import InboxHandle, ToolContext, ToolOutput

from .failures import CallRefused, ConnectionLost, NotSent, ServerDown
from .listing import ListedTool

if TYPE_CHECKING:
    from mcp_types import Task

    from .connection import Connection
    from .server import Server

log = logging.getLogger(__name__)

KEEP_S = 24 * 3600.0
SHORTEST_POLL_S, LONGEST_POLL_S = 0.1, 30.0
RETRY_S = 5.0
CANCEL_S = 2.0

OpenInbox = Callable[[str, str], InboxHandle]
"""The inbox of an agent (by id), for a tool (by name)."""


class Note(Value):
    """A task that a pending call waits for. `until`: when we give up asking (seconds since 1970)."""

    agent_id: str
    call_id: str
    tool_name: str
    server_name: str
    server: McpServer
    task_id: str
    until: float


class Tasks:
    """The tasks under way. `directory` None: they are forgotten when the daemon ends."""

    def __init__(self, directory: Path | None, server_of: Callable[[str, McpServer], Server]) -> None:
        self._directory = directory
        self._server_of = server_of
        self._following: set[asyncio.Task[None]] = set()

    async def follow(self, server: Server, tool: ListedTool, task: Task, ctx: ToolContext) -> ToolOutput:
        """The task's result if it comes soon; else the call is pending, and its result goes to the inbox."""
        try:
            async with asyncio.timeout(server.config.task_wait_s):
                return await _outcome(server, task.task_id, ctx.progress, first=task)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self._spawn(_give_up(server, task.task_id))
            raise
        note = Note(
            agent_id=ctx.agent_id,
            call_id=ctx.call_id,
            tool_name=tool.spec.name,
            server_name=server.name,
            server=server.config,
            task_id=task.task_id,
            until=time.time() + (KEEP_S if task.ttl is None else task.ttl / 1000),
        )
        await asyncio.to_thread(self._keep, note)
        self._spawn(self._see_through(server, note, ctx.inbox()))
        return ToolOutput.pending(f"The MCP server {server.name!r} has started {tool.raw!r}. Its result will follow.")

    def resume(self, open_inbox: OpenInbox) -> None:
        """Goes on with what an earlier life left under way."""
        for file in sorted(self._directory.glob("*.json")) if self._directory is not None else ():
            try:
                note = Note.model_validate_json(file.read_bytes())
            except (OSError, ValidationError) as error:
                log.warning("The note of an MCP task in %s cannot be read and is left there: %s", file, error)
                continue
            server = self._server_of(note.server_name, note.server)
            self._spawn(self._see_through(server, note, open_inbox(note.agent_id, note.tool_name)))

    async def aclose(self) -> None:
        """Stops asking. The notes stay."""
        for one in tuple(self._following):
            one.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _see_through(self, server: Server, note: Note, inbox: InboxHandle) -> None:
        try:
            output = await _last(server, note)
            while not await _deliver(inbox, note, output):  # noqa: ASYNC110 (a store that is full tells nobody)
                await asyncio.sleep(RETRY_S)
            await asyncio.to_thread(self._drop, note)
        except Exception:  # the task's own boundary; the note stays for the next life, a person can resolve the call
            log.exception("The task of call %r of %r cannot be followed.", note.call_id, note.agent_id)

    # -- the notes --------------------------------------------------------------------------------------------------

    def _file(self, note: Note) -> Path | None:
        name = hashlib.sha256(f"{note.agent_id} {note.call_id}".encode()).hexdigest()[:32]
        return None if self._directory is None else self._directory / f"{name}.json"

    def _keep(self, note: Note) -> None:
        if (file := self._file(note)) is None:
            return
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = file.with_suffix(".new")
        with fresh.open("wb") as out:
            out.write(note.json_bytes())
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
        directory = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _drop(self, note: Note) -> None:
        if (file := self._file(note)) is not None:
            file.unlink(missing_ok=True)


async def _last(server: Server, note: Note) -> ToolOutput:
    """What the task came to, however long it takes; a server that is away is waited for."""
    while True:
        left = note.until - time.time()
        if left <= 0:
            return ToolOutput.error(f"The MCP server {server.name!r} did not finish the task in time.")
        try:
            async with asyncio.timeout(left):
                return await _outcome(server, note.task_id, lambda _text, _fraction: None)
        except TimeoutError:
            continue
        except (ServerDown, ConnectionLost, NotSent) as error:
            log.info("The task of call %r of %r waits for the server: %s", note.call_id, note.agent_id, error)
            await asyncio.sleep(min(RETRY_S, max(left, 0)))


async def _outcome(
    server: Server, task_id: str, tell: Callable[[str | None, float | None], None], first: Task | None = None
) -> ToolOutput:
    """Asks until the task has ended. Raises `ServerDown`, `ConnectionLost` or `NotSent` when it cannot be asked."""
    said: str | None = None
    while True:
        connection = await server.up()
        try:
            task = first or await connection.task(task_id)
            first = None
            if task.status_message and task.status_message != said:
                said = task.status_message
                tell(said, None)
            if (output := await _ended(connection, server, task)) is not None:
                return output
        except CallRefused as error:
            return ToolOutput.error(f"The MCP server {server.name!r} does not know how the task stands: {error}.")
        poll_s = 1.0 if task.poll_interval is None else task.poll_interval / 1000
        await asyncio.sleep(min(max(poll_s, SHORTEST_POLL_S), LONGEST_POLL_S))


async def _ended(connection: Connection, server: Server, task: Task) -> ToolOutput | None:
    said = f": {task.status_message}" if task.status_message else "."
    match task.status:
        case "completed":
            return await connection.task_result(task.task_id)
        case "failed":
            return await _failure(connection, server, task, said)
        case "cancelled":
            return ToolOutput.error(f"The MCP server {server.name!r} gave the task up{said}")
        case "input_required":
            with contextlib.suppress(CallRefused):
                await connection.cancel_task(task.task_id)
            text = "wants to be told something by a person, which Sojourn does not offer to servers; the task was ended"
            return ToolOutput.error(f"The MCP server {server.name!r} {text}{said}")
        case _:
            return None


async def _failure(connection: Connection, server: Server, task: Task, said: str) -> ToolOutput:
    try:
        output = await connection.task_result(task.task_id)
    except CallRefused as error:
        return ToolOutput.error(f"The task failed at the MCP server {server.name!r}: {error}.")
    return output if output.is_error else ToolOutput.error(f"The task failed at the MCP server {server.name!r}{said}")


async def _give_up(server: Server, task_id: str) -> None:
    with contextlib.suppress(ServerDown, ConnectionLost, NotSent, CallRefused, TimeoutError):
        async with asyncio.timeout(CANCEL_S):
            await (await server.up()).cancel_task(task_id)


async def _deliver(inbox: InboxHandle, note: Note, output: ToolOutput) -> bool:
    """Puts the result into the inbox; False when that has to be tried again."""
    try:
        if output.is_error:
            await inbox.reject(note.call_id, text_of(output.content) or "The task failed.")
        else:
            await inbox.resolve(note.call_id, output.content)
    except (AlreadyDecided, CallNotFound, AgentNotFound) as error:
        log.info("The result of call %r of %r was dropped: %s", note.call_id, note.agent_id, error)
    except SojournError as error:
        log.warning("The result of call %r of %r is tried again: %s", note.call_id, note.agent_id, error)
        return False
    return True
