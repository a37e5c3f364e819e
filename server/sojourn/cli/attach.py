"""`attach`: an agent live in the terminal. Leaving stops nothing."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Annotated, TextIO, cast

import typer

from sojourn_client import RpcError
from sojourn_client.client import Client
from sojourn_client.events import AgentEvent, EventStream

from ._app import AgentArgument, Options, client, command, say
from ._desk import Desk
from ._input import typed_lines
from ._named import agent_named
from ._show import clock, text_of
from ._terminal import Composer, can_compose
from ._view import View

_HELP = (
    "Lines typed are messages to the agent. /stop stops its run, /resume goes on, /say TEXT speaks while a decision is "
    "asked for, //… is a message that begins with a slash, /quit or Ctrl-D leaves."
)


def register(app: typer.Typer) -> None:
    """Enters the command."""
    command(app)(attach)


async def attach(
    options: Options,
    agent: AgentArgument,
    *,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Show events after this number.")] = 0,
) -> None:
    """An agent live in the terminal.

    What was said and what happens is shown, approvals are asked about, and what is typed is said to the agent. Ctrl-D
    or Ctrl-C leaves; what runs goes on.
    """
    try:
        async with client(options, start=True) as daemon:
            agent = await agent_named(daemon, agent)
            async with daemon.events(agent, after_seq=after) as events:
                with Composer() if can_compose() else nullcontext() as composer:
                    await _Attached(daemon, events, composer).run()
    except asyncio.CancelledError:
        say("Left; what runs goes on.")


class _Attached:
    def __init__(self, daemon: Client, events: EventStream, composer: Composer | None) -> None:
        self._daemon = daemon
        self._events = events
        self._composer = composer
        self._view = View(
            all_on_stdout=True, file=cast(TextIO | None, composer), go_on="type /resume, or say something"
        )
        place = {} if composer is None else {"when_free": composer.when_free}
        self._desk = Desk(daemon, self._view, open_before=events.attachment["approvals"], **place)
        self._agent = events.agent_id
        self._caught_up = asyncio.Event()
        self._typed: list[str] = []
        """What was typed and is on the screen, but has not come back as an event."""

    async def run(self) -> None:
        head = self._events.attachment["seq"]
        if (self._events.seq or 0) >= head:
            self._catch_up()
        minding = asyncio.create_task(self._mind())
        showing = asyncio.create_task(self._show(head))
        typing = asyncio.create_task(self._type())
        try:
            done, _ = await asyncio.wait([showing, typing], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (minding, showing, typing):
                task.cancel()
            await asyncio.gather(minding, showing, typing, return_exceptions=True)
            self._view.end_line()

    async def _mind(self) -> None:
        while True:
            await self._daemon.wait_lost()
            self._view.note("(connection lost; reconnecting…)", "yellow")
            await self._daemon.wait_connected()
            self._view.note("(back)", "yellow")

    async def _show(self, head: int) -> None:
        async for item in self._events:
            if not self._on_screen(item) and not self._desk.asks(item):
                self._view.show(item)
            self._desk.see(item)
            if not self._caught_up.is_set() and (self._events.seq or 0) >= head:
                self._catch_up()

    def _on_screen(self, item: AgentEvent) -> bool:
        message = item.event.get("message", {}) if item.type == "messageEnd" else {}
        if message.get("role") != "user" or (text := text_of(message["content"])) not in self._typed:
            return False
        self._typed.remove(text)
        return True

    def _catch_up(self) -> None:
        self._caught_up.set()
        for call in self._events.attachment["pendingCalls"]:
            self._view.note(f"pending: {call['callId']} {call['toolName']} since {clock(call['since'])}", "yellow")
        self._view.note(_HELP)
        for approval in self._events.attachment["approvals"]:
            self._desk.add(approval)

    async def _type(self) -> None:
        await self._caught_up.wait()
        lines = typed_lines if self._composer is None else self._composer.lines
        async for line, question in lines(self._desk.asked):
            if line.strip() == "/quit":
                return
            if line.strip():
                await self._take(line.strip(), question)

    async def _take(self, line: str, question: str | None) -> None:
        word, _, rest = line.partition(" ")
        try:
            if word == "/stop":
                answer = await self._daemon.call("agent/stop", {"agentId": self._agent})
                if not answer["stopped"]:
                    self._view.note("Nothing was running.")
            elif word == "/resume":
                await self._daemon.call("agent/resume", {"agentId": self._agent, "wait": False})
            elif word == "/say" and rest.strip():
                await self._say(rest.strip())
            elif word.startswith("/") and not word.startswith("//"):
                self._view.note(_HELP if word == "/help" else f"There is no {word}. {_HELP}", "yellow")
            elif not await self._desk.take(line, question):
                await self._say(line.removeprefix("/") if word.startswith("//") else line)
        except RpcError as error:
            self._view.note(error.message, "red")

    async def _say(self, text: str) -> None:
        if self._composer is not None:
            self._typed.append(text)
        try:
            params = {"agentId": self._agent, "content": text, "ifBusy": "queue", "wait": False}
            await self._daemon.call("agent/prompt", params)
        except BaseException:
            if text in self._typed:
                self._typed.remove(text)
            raise
