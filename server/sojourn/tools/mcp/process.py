"""The process of a stdio server, as a transport of the SDK: one line a message, whatever else the process does.

Rule: nothing that a server does costs the daemon more than that server. Lines that are no messages are counted and
dropped, a flood is slowed down by not reading, a message has a size limit, stderr goes to the log at a bounded rate,
and at the end the whole process group is gone. The process is in a session of its own and gets no variable that was
not meant for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from sojourn.core.errors import InvalidParams
from sojourn.core.servers import McpServer
from sojourn.core.values import clean
from sojourn.tools._watch import Watch

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MESSAGES_PER_S = 2_000
GARBAGE_LINES = 10_000
"""So many lines in a row that are no messages end a server."""
LOG_LINES, LOG_SPAN_S, LOG_CHARS = 100, 10.0, 500
_LOOK_S = 0.01
GRACE_S = 0.4
"""How long a process may take to end by itself, and again after TERM; then it is killed."""
INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""The variables that every server gets; `env` and `pass_env` add to them."""

_groups = Watch(grace_s=GRACE_S)


def kill_groups() -> None:
    """Kills every process group that is still there. The last word of a process that cannot end in order."""
    for group in _groups.pids():
        _signal(group, signal.SIGKILL)


class ServerProcess:
    """One life of a server. As a context manager it starts the process and ends it with all of its group.

    `reads` and `writes` are what a session is made of; `on_end` is called once, when nothing more will come.
    """

    def __init__(self, name: str, server: McpServer, on_end: Callable[[], None]) -> None:
        self._name = name
        self._server = server
        self._on_end = on_end
        self._flaw: str | None = None
        self._last_words: deque[str] = deque(maxlen=4)
        self._pace = _Pace(MESSAGES_PER_S, 1.0)
        self._log_pace = _Pace(LOG_LINES, LOG_SPAN_S)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        assert self._server.command is not None
        self._child = await asyncio.create_subprocess_exec(
            self._server.command,
            *self._server.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._server.cwd,
            env=environment(self._server),
            start_new_session=True,
            limit=MAX_MESSAGE_BYTES,
        )
        _groups.add(self._child.pid)
        self._incoming, self.reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.writes, self._outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        for work in (self._read(), self._write(), self._read_errors()):
            self._tasks.append(asyncio.create_task(work, name=f"mcp {self._name}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._end()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for stream in (self._incoming, self.reads, self.writes, self._outgoing):
                stream.close()

    def epitaph(self) -> str:
        """How the process ended, as the end of a sentence, with what it said last."""
        words = self.words()
        if self._flaw is not None:
            return f"it was ended, because {self._flaw}{words}"
        code = self._child.returncode
        if code is None:
            return f"it closed its stdout{words}"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"it {how}{words}"

    def words(self) -> str:
        """What it said last on its stderr, to be added to a sentence; empty when it said nothing."""
        said = " | ".join(self._last_words)
        return f"; its last words: {said!r}" if said else ""

    # -- what it says ---------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        assert self._child.stdout is not None
        garbage = 0
        try:
            while line := await self._child.stdout.readline():
                await self._pace.wait()
                message = self._parse(line, garbage)
                garbage = 0 if message is not None else garbage + bool(line.strip())
                if garbage > GARBAGE_LINES:
                    self._flaw = f"{GARBAGE_LINES} lines in a row on its stdout were no messages"
                    break
                if message is not None:
                    await self._incoming.send(message)
        except ValueError:
            self._flaw = f"it sent a message of more than {MAX_MESSAGE_BYTES} bytes"
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the session is over
        finally:
            with contextlib.suppress(TimeoutError):  # for the exit code; the pipe is closed a moment before the end
                await asyncio.wait_for(self._child.wait(), GRACE_S / 4)
            self._incoming.close()
            self._on_end()

    def _parse(self, line: bytes, garbage: int) -> SessionMessage | None:
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            if line.startswith(b"{") and (message := _mended(line)) is not None:
                return message
        if line.strip() and garbage == 0:
            log.warning("The MCP server %r wrote to its stdout what is no message: %s", self._name, _shown(line))
        return None

    async def _read_errors(self) -> None:
        assert self._child.stderr is not None
        rest = b""
        while chunk := await self._child.stderr.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-4096:]
            for line in lines:
                self._note(line)
            await asyncio.sleep(0)
        if rest:
            self._note(rest)

    def _note(self, line: bytes) -> None:
        if not (text := _shown(line)):
            return
        self._last_words.append(text[:200])
        if self._log_pace.allows():
            left_out = self._log_pace.take_refused()
            more = f" ({left_out} lines before it were left out)" if left_out else ""
            log.info("MCP server %r: %s%s", self._name, text, more)

    async def _write(self) -> None:
        assert self._child.stdin is not None
        try:
            async for outgoing in self._outgoing:
                self._child.stdin.write(outgoing.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
                self._child.stdin.write(b"\n")
                await self._child.stdin.drain()
        except (OSError, anyio.ClosedResourceError):
            self._incoming.close()  # it cannot be spoken to any more: its requests fail now, not at their time limit

    # -- its end --------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """End of its stdin, then TERM, then KILL, for the whole group."""
        child = self._child
        if child.stdin is not None:
            child.stdin.close()
        if not await self._ended():
            _signal(child.pid, signal.SIGTERM)
            if not await self._ended():
                _signal(child.pid, signal.SIGKILL)
                await self._ended()
        _signal(child.pid, signal.SIGKILL)  # what it started and left behind
        _groups.discard(child.pid)
        transport = getattr(child, "_transport", None)  # the one way to close pipes that somebody else holds open
        if transport is not None:
            transport.close()

    async def _ended(self) -> bool:
        # Not `wait()`: that waits for the end of the pipes too, which a grandchild may hold open.
        for _ in range(int(GRACE_S / _LOOK_S)):
            if self._child.returncode is not None:
                return True
            await asyncio.sleep(_LOOK_S)
        return self._child.returncode is not None


def environment(server: McpServer) -> dict[str, str]:
    """What a server's process gets to see of ours, and what the config gives it."""
    named = (*INHERITED, *server.pass_env)
    return {name: os.environ[name] for name in named if name in os.environ} | dict(server.env)


class _Pace:
    """So many things in so many seconds: what is more waits for the next span (`wait`) or is refused (`allows`)."""

    def __init__(self, most: int, span_s: float) -> None:
        self._most, self._span_s = most, span_s
        self._since, self._count, self._refused = 0.0, 0, 0

    def allows(self) -> bool:
        """Whether one more may be now."""
        now = time.monotonic()
        if now - self._since >= self._span_s:
            self._since, self._count = now, 0
        self._count += 1
        self._refused += self._count > self._most
        return self._count <= self._most

    def take_refused(self) -> int:
        """How many were refused since this was last asked."""
        refused, self._refused = self._refused, 0
        return refused

    async def wait(self) -> None:
        """Returns when one more may be."""
        if not self.allows():
            await asyncio.sleep(max(0.0, self._since + self._span_s - time.monotonic()))


_ANSWER_HEAD = re.compile(
    rb'\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,[^{}\[\]]{0,40}"result"\s*:'
)
_ANSWER_END = re.compile(rb'[}\]]\s*,\s*"id"\s*:\s*(\d{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


def _mended(line: bytes) -> SessionMessage | None:
    """The message in a line that Python reads and the SDK does not: half characters, which JavaScript lets through."""
    try:
        data = clean(json.loads(line.decode("utf-8", "replace")))
        return SessionMessage(jsonrpc_message_adapter.validate_python(data, by_name=False))
    except (ValueError, RecursionError, InvalidParams):
        return unreadable(line)


def unreadable(line: bytes) -> SessionMessage | None:
    """An answer that cannot be read (it is nested too deeply), as an error: its call must not wait for another one."""
    found = _ANSWER_HEAD.match(line) or _ANSWER_END.search(line)
    if found is None:
        return None
    error = {"code": -32700, "message": "its answer cannot be read: it is no JSON, or nested too deeply"}
    return SessionMessage(
        jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", "id": int(found[1]), "error": error}, by_name=False)
    )


def _shown(line: bytes) -> str:
    text = line[: LOG_CHARS * 4].decode("utf-8", "replace").strip()
    return "".join(char if char.isprintable() else " " for char in text)[:LOG_CHARS]


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
