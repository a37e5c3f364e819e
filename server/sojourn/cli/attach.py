"""`attach`: an agent live in the terminal. Leaving stops nothing."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from sojourn_client import RpcError
from sojourn_client.client import Client
from sojourn_client.events import EventStream

from ._app import AgentArgument, Options, client, command, say
from ._desk import Desk, typed_lines
from ._view import View

_HELP = "Lines typed are messages to the agent. /stop stops its run, /resume goes on, /quit or Ctrl-D leaves."


def register(app: typer.Typer) -> None:
    """Enters the command."""
    command(app)(attach)


async def attach(
    options: Options,
    agent: AgentArgument,
    *,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Show events after this number.")] = 0,
) -> None:
    """An agent live: what was said, what happens, approvals asked about here, messages typed in.

    Ctrl-D or Ctrl-C leaves; what runs goes on.
    """
    try:
        async with client(options, start=True) as daemon, daemon.events(agent, after_seq=after) as events:
            await _Attached(daemon, events).run()
    except asyncio.CancelledError:
        say("Left; what runs goes on.")


class _Attached:
    def __init__(self, daemon: Client, events: EventStream) -> None:
        self._daemon = daemon
        self._events = events
        self._view = View(all_on_stdout=True)
        self._desk = Desk(daemon, self._view)
        self._agent = events.agent_id
        self._caught_up = asyncio.Event()

    async def run(self) -> None:
        head = self._events.attachment["seq"]
        if (self._events.seq or 0) >= head:
            self._catch_up()
        showing = asyncio.create_task(self._show(head))
        typing = asyncio.create_task(self._type())
        try:
            done, _ = await asyncio.wait([showing, typing], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (showing, typing):
                task.cancel()
            await asyncio.gather(showing, typing, return_exceptions=True)
            self._view.end_line()

    async def _show(self, head: int) -> None:
        async for item in self._events:
            self._view.show(item)
            self._desk.see(item)
            if not self._caught_up.is_set() and (self._events.seq or 0) >= head:
                self._catch_up()

    def _catch_up(self) -> None:
        self._caught_up.set()
        self._view.note(_HELP)
        for approval in self._events.attachment["approvals"]:
            self._desk.add(approval)

    async def _type(self) -> None:
        await self._caught_up.wait()
        async for line in typed_lines():
            if line.strip() == "/quit":
                return
            if line.strip():
                await self._say(line.strip())

    async def _say(self, line: str) -> None:
        try:
            if line == "/stop":
                await self._daemon.call("agent/stop", {"agentId": self._agent})
            elif line == "/resume":
                await self._daemon.call("agent/resume", {"agentId": self._agent, "wait": False})
            elif not await self._desk.take(line):
                params = {"agentId": self._agent, "content": line, "ifBusy": "queue", "wait": False}
                await self._daemon.call("agent/prompt", params)
        except RpcError as error:
            self._view.note(error.message, "red")
