"""The process that serves a local model: started when it is first needed, again when it has died, ended with us.

It holds the reading end of a pipe whose writing end only this process has: when this one is gone, however it went,
the pipe ends and so does the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sojourn.core.errors import ModelError

from ._local_files import INSTALL, fault_of, model_file, shown_name
from ._wire_errors import Peer
from .base import ModelSpec

START_S = 120.0
END_S = 1.0
SETTLE_S = 0.5
PROGRAM = (sys.executable, "-P", "-m", "sojourn.models._local_server")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens, and the key without which it answers nobody on this machine."""

    url: str
    key: str


class LocalProcess:
    """At most one server process for one model. `address` is the way in."""

    def __init__(self, spec: ModelSpec, *, program: Sequence[str] = PROGRAM) -> None:
        self._spec = spec
        self._program = program
        self._peer = Peer("local", spec.name)
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._address: Address | None = None

    @property
    def pid(self) -> int | None:
        """The server's process id, while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def address(self) -> Address:
        """The address of a server that runs; starts one if there is none. Raises `ModelError` when it cannot."""
        async with self._lock:
            if self._address is None or self.pid is None:
                await self._end()
                self._address = await self._start()
            return self._address

    async def settle(self) -> None:
        """After a connection that broke: a process that is about to end is given a moment to be known as ended."""
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await self._process.wait()

    async def aclose(self) -> None:
        """Ends the process if there is one."""
        async with self._lock:
            await self._end()

    async def _start(self) -> Address:
        if (fault := fault_of(self._spec)) is not None:
            advice = f"{INSTALL} installs it" if fault[1] == INSTALL else fault[1].rstrip(".")
            raise self._peer.error(f"cannot run here: {fault[0]}; {advice}.", retryable=False, reason="notInstalled")
        key = secrets.token_urlsafe(24)
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = self._process = await asyncio.create_subprocess_exec(
            *self._program, stdin=pipe, stdout=pipe, stderr=null, start_new_session=True
        )
        try:
            said = await self._told(process, key)
        except BaseException:
            await self._end()
            raise
        _log.info("The model %r is served by process %d.", self._spec.name, process.pid)
        return Address(str(said["url"]), key)

    async def _told(self, process: asyncio.subprocess.Process, key: str) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        spec = self._spec
        told = {"file": str(model_file(spec)), "window": spec.context_window, "name": shown_name(spec), "key": key}
        try:
            async with asyncio.timeout(START_S):
                with contextlib.suppress(ConnectionError):
                    process.stdin.write(json.dumps(told).encode() + b"\n")
                    await process.stdin.drain()
                line = await process.stdout.readline()
                said = json.loads(line) if line else {"error": _ended(await process.wait())}
        except TimeoutError:
            raise self._failed(f"it was not ready within {START_S:g} s") from None
        if not said.get("url"):
            raise self._failed(str(said.get("error")))
        return dict(said)

    def _failed(self, why: str) -> ModelError:
        return self._peer.error(
            f"could not be started on this machine: {why.rstrip('.')}.", retryable=False, reason="notStarted"
        )

    async def _end(self) -> None:
        process, self._process, self._address = self._process, None, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()  # it keeps nothing that could be lost
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()
        process._transport.close()  # type: ignore[attr-defined] # asyncio closes its pipes only when all are read


def _ended(code: int) -> str:
    return f"its process ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with code {code}"
