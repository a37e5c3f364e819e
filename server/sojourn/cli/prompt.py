"""`prompt`: says something to an agent and streams its answer."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Any, Optional

import typer

from sojourn_client import RpcError
from sojourn_client.client import Client
from sojourn_client.events import EventStream

from ._app import OF_REASON, Exit, JsonFlag, Options, client, command, say
from ._desk import Desk
from ._show import json_line
from ._terminal import typed_lines
from ._view import View

_LABEL = "sojourn.prompt"
_STOP_S = 2.0


def register(app: typer.Typer) -> None:
    """Enters the command."""
    command(app)(prompt)


async def prompt(
    options: Options,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say; `-` reads it from stdin.")],
    *,
    agent: Annotated[
        Optional[str],  # noqa: UP045 - typer reads it at run time
        typer.Option("--agent", metavar="ID", help="To this agent, which is made when there is none."),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="To a new agent.")] = False,
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--model", metavar="M", help="The model of a new agent."),
    ] = None,
    preset: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--preset", metavar="NAME", help="The preset of a new agent, from the config."),
    ] = None,
    tools: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--tool", metavar="NAME", help="A tool of a new agent, repeatable; all of them unless said."),
    ] = None,
    on_approval: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--on-approval", metavar="wait|pause|deny", help="What an approval does to this run."),
    ] = None,
    queue: Annotated[bool, typer.Option("--queue", help="Into the inbox when the agent is busy.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once the daemon has taken it.")] = False,
    json: JsonFlag = False,
) -> int:
    """Says something to an agent and streams the answer; starts the daemon when none runs.

    Without --agent it goes to the idle agent that the last `sojourn prompt` in this directory used, or to a new one.
    Ctrl-C stops the run.
    """
    content = sys.stdin.read() if text == "-" else text
    config = {"model": model, "preset": preset, "tools": tools or None}
    config = {key: value for key, value in config.items() if value is not None}
    params = {"content": content, "onApproval": on_approval, "ifBusy": "queue" if queue else None}
    params = {key: value for key, value in params.items() if value is not None}
    async with client(options, start=True) as daemon:
        agent_id = await _agent(daemon, agent, config, new=new)
        params["agentId"] = agent_id
        if not json:
            say(f"agent {agent_id}")
        if no_wait:
            json_line(await daemon.call("agent/prompt", {**params, "wait": False}))
            return Exit.DONE
        outcome = await _Prompt(daemon, params, json=json).run()
    return OF_REASON.get(outcome["reason"], Exit.FAILED)


async def _agent(daemon: Client, agent: str | None, config: dict[str, Any], *, new: bool) -> str:
    if agent is not None:
        try:
            return await _create(daemon, {"agentId": agent}, config)
        except RpcError as error:
            if error.kind != "alreadyExists" or new:
                raise
            return agent
    here = {_LABEL: os.getcwd()}
    if not new and not config:
        page = await daemon.call("agent/list", {"labels": here, "state": "idle", "limit": 1})
        if page["agents"]:
            return str(page["agents"][0]["agentId"])
    made = await _create(daemon, {}, config)
    await daemon.call("agent/update", {"agentId": made, "labels": here})
    return made


async def _create(daemon: Client, params: dict[str, Any], config: dict[str, Any]) -> str:
    """Makes an agent. It has all tools unless an option or a preset says which: what has an effect is asked about."""
    if not {"tools", "preset"} & config.keys():
        config = {**config, "tools": ["*"]}
    made = await daemon.call("agent/create", {**params, "config": config})
    return str(made["agentId"])


class _Prompt:
    """A prompt under way: its events, what is asked about them, its outcome."""

    def __init__(self, daemon: Client, params: dict[str, Any], *, json: bool) -> None:
        self._daemon = daemon
        self._params = params
        self._json = json
        go_on = f"`sojourn resume {params['agentId']}` goes on"
        self._view = View(all_on_stdout=False, own_prompts=False, go_on=go_on)
        self._desk = Desk(daemon, self._view) if sys.stdin.isatty() and not json else None

    async def run(self) -> dict[str, Any]:
        """The outcome, after everything that led to it was shown."""
        async with self._daemon.events(self._params["agentId"]) as events:
            asking = asyncio.create_task(self._daemon.call("agent/prompt", self._params))
            helpers = [asyncio.create_task(self._show(events))]
            if self._desk is not None:
                helpers.append(asyncio.create_task(self._listen(self._desk)))
            try:
                outcome: dict[str, Any] = await asking
                while (events.seq or 0) < outcome["lastSeq"] and not helpers[0].done():
                    await asyncio.wait([helpers[0]], timeout=0.01)
            except asyncio.CancelledError:
                await self._stop()
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
            if self._desk is not None:
                self._desk.see(item)

    async def _listen(self, desk: Desk) -> None:
        async for line in typed_lines():
            if line.strip() and not await desk.take(line):
                self._view.note("The agent is working; `sojourn inbox push` reaches it.", "dim")

    async def _stop(self) -> None:
        self._view.end_line()
        say("Stopping the run …")
        try:
            async with asyncio.timeout(_STOP_S):
                await self._daemon.call("agent/stop", {"agentId": self._params["agentId"]})
        except (TimeoutError, RpcError, ConnectionError) as error:
            say(f"The run may go on: {error}")
