"""A pass under way, watched from the terminal: its events, what is asked about them, its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

from sojourn_client import RpcError
from sojourn_client.client import Client
from sojourn_client.events import EventStream

from ._app import say
from ._desk import Desk
from ._input import Answers
from ._show import json_line
from ._signals import leaves
from ._view import View

_STOP_S = 2.0


class Pass:
    """`method` is `agent/prompt` or `agent/resume`; Ctrl-C stops the run, whatever ends this process alone does not."""

    def __init__(self, daemon: Client, method: str, params: dict[str, Any], *, json: bool) -> None:
        self._daemon = daemon
        self._method = method
        self._params = params
        self._json = json
        go_on = f"`sojourn resume {params['agentId']}` goes on"
        self._view = View(all_on_stdout=False, own_prompts=False, go_on=go_on)
        self._desk = Desk(daemon, self._view) if sys.stdin.isatty() and not json else None
        self._answers = None if self._desk is None else Answers(self._desk.asked)

    async def run(self) -> dict[str, Any]:
        """The outcome, after everything that led to it was shown."""
        async with self._daemon.events(self._params["agentId"]) as events:
            asking = asyncio.create_task(self._daemon.call(self._method, self._params))
            helpers = [asyncio.create_task(self._show(events))]
            if self._desk is not None and self._answers is not None:
                helpers.append(asyncio.create_task(self._listen(self._desk, self._answers)))
            try:
                outcome = await _first(asking, helpers)
                while (events.seq or 0) < outcome["lastSeq"] and not helpers[0].done():
                    await asyncio.wait([helpers[0]], timeout=0.01)
                for task in helpers:
                    if task.done():
                        task.result()
            except asyncio.CancelledError as cancelled:
                await (self._leave() if leaves(cancelled) else self._stop())
                raise
            finally:
                for task in (asking, *helpers):
                    task.cancel()
                await asyncio.gather(asking, *helpers, return_exceptions=True)
        self._view.end_line()
        if self._json:
            json_line(outcome)
        return outcome

    async def _show(self, events: EventStream) -> None:
        async for item in events:
            if self._json:
                json_line(item.wire())
                continue
            if self._desk is None or not self._desk.asks(item):
                self._view.show(item)
            if self._desk is not None and self._answers is not None:
                self._desk.see(item)
                self._answers.mind()

    async def _listen(self, desk: Desk, answers: Answers) -> None:
        async for line, question in answers.lines():
            word, _, rest = line.strip().partition(" ")
            if word == "/say" and rest.strip():
                await self._push(rest.strip())
            elif word:
                await desk.take(line, question)

    async def _push(self, text: str) -> None:
        try:
            await self._daemon.call("inbox/push", {"agentId": self._params["agentId"], "content": text})
        except RpcError as error:
            self._view.note(error.message, "red")

    async def _leave(self) -> None:
        # First of all: a request that is given up while there is a connection is cancelled at the daemon.
        await self._daemon.aclose()
        with contextlib.suppress(OSError):  # The terminal may be gone.
            self._view.end_line()
        agent = self._params["agentId"]
        say(f"Left; what runs goes on. `sojourn attach {agent}` shows it, `sojourn stop {agent}` stops it.")

    async def _stop(self) -> None:
        self._view.end_line()
        say("Stopping the run …")
        try:
            async with asyncio.timeout(_STOP_S):
                await self._daemon.call("agent/stop", {"agentId": self._params["agentId"]})
        except (TimeoutError, RpcError, ConnectionError) as error:
            say(f"The run may go on: {error}")


async def _first(asking: asyncio.Task[dict[str, Any]], helpers: list[asyncio.Task[None]]) -> dict[str, Any]:
    """The outcome. An error of those who show and ask is raised at once: unseen, nobody would answer a question."""
    at_work = set(helpers)
    while not asking.done():
        done, _ = await asyncio.wait({asking, *at_work}, return_when=asyncio.FIRST_COMPLETED)
        at_work -= done
        if not asking.done():
            for task in done:
                task.result()
    return asking.result()
