"""`ps`, `stop`, `delete`, `events`: what agents there are, ending a run or an agent, and what happened."""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import Annotated, Any, Optional

import typer

from sojourn_client.client import Client

from ._app import AgentArgument, JsonFlag, Options, client, command, say
from ._named import agent_named, agents
from ._show import PROMPT_LABEL, ago, count, json_line, one_line, table, text_of
from ._view import View

_PAGE = 1000
_FEW, _ASKED, _LATEST = 3, 20, 20
_ROOMY = 100
"""On a narrower terminal `ps` leaves the count of messages out, so that something is read of what an agent is about."""


def register(app: typer.Typer) -> None:
    """Enters the commands."""
    command(app)(ps)
    command(app)(stop)
    command(app)(delete)
    command(app)(events)


async def ps(
    options: Options,
    *,
    all: Annotated[bool, typer.Option("--all", "-a", help="Children, too.")] = False,
    json: JsonFlag = False,
) -> None:
    """The agents, newest activity first.

    Each with what it waits for, and its title or what was last said to it. Of one whose record is damaged it says what
    cannot be read.
    """
    async with client(options) as daemon:
        found = [agent async for agent in agents(daemon, children=all)]
        calls = {} if json else await _calls(daemon, found)
        said = {} if json else await _said(daemon, found)
    if json:
        for agent in found:
            json_line(agent)
        return
    if not found:
        say("No agents yet; `sojourn prompt TEXT` makes one.")
        return
    rows = [_row(agent, calls, said) for agent in found]
    headings: tuple[str, ...] = ("AGENT", "STATE", "WAITS FOR", "MESSAGES", "UPDATED", "ABOUT")
    if sys.stdout.isatty() and shutil.get_terminal_size().columns < _ROOMY:
        headings, rows = _without(3, headings), [_without(3, row) for row in rows]
    table(headings, rows, cut_last=True)


async def stop(options: Options, agent: AgentArgument, *, json: JsonFlag = False) -> None:
    """Stops an agent's run, its tools and its children. What is finished is kept."""
    async with client(options) as daemon:
        answer = await daemon.call("agent/stop", {"agentId": await agent_named(daemon, agent)})
    if json:
        json_line(answer)
    else:
        say("Stopped." if answer["stopped"] else "Nothing was running.")


async def delete(
    options: Options,
    agent: AgentArgument,
    *,
    force: Annotated[bool, typer.Option("--force", help="Also one that is at work; its run is stopped.")] = False,
    json: JsonFlag = False,
) -> None:
    """Deletes an agent and everything of it.

    That is what was said, its events and its inbox. It cannot be undone.
    """
    async with client(options) as daemon:
        agent = await agent_named(daemon, agent)
        answer = await daemon.call("agent/delete", {"agentId": agent, "force": force})
    if json:
        json_line(answer)
    else:
        say(f"{agent} is deleted.")


async def events(
    options: Options,
    agent: AgentArgument,
    *,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Events after this number.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until interrupted.")] = False,
    limit: Annotated[
        Optional[int],  # noqa: UP045 - typer reads it at run time
        typer.Option("--limit", metavar="N", min=1, help="At most so many."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """The events of an agent. They come from the store; with --follow live ones, too."""
    show = json_line if json else View(all_on_stdout=True).show_wire
    async with client(options) as daemon:
        agent = await agent_named(daemon, agent)
        if not follow:
            await _stored(daemon, agent, after, limit, show)
            return
        async with daemon.events(agent, after_seq=after, deltas=not json) as stream:
            async for count, event in _counted(stream):
                show(event.wire())
                if count == limit:
                    return


async def _stored(daemon: Any, agent: str, after: int, limit: int | None, show: Any) -> None:
    left = limit
    while left is None or left > 0:
        size = _PAGE if left is None else min(left, _PAGE)
        page = await daemon.call("agent/events", {"agentId": agent, "afterSeq": after, "limit": size})
        for event in page["events"]:
            show(event)
        after = page["nextSeq"]
        left = None if left is None else left - len(page["events"])
        if len(page["events"]) < size:
            return


async def _counted(stream: Any) -> Any:
    count = 0
    async for event in stream:
        count += 1
        yield count, event


async def _calls(daemon: Client, agents: list[dict[str, Any]]) -> dict[str, str]:
    """The ids of the pending calls of agents that have few."""
    few = [agent["agentId"] for agent in agents if 0 < agent["pendingCalls"] <= _FEW][:_ASKED]
    answers = await asyncio.gather(*(daemon.call("agent/pendingCalls", {"agentId": one}) for one in few))
    return {
        one: f" ({', '.join(call['callId'] for call in answer['pendingCalls'])})"
        for one, answer in zip(few, answers, strict=True)
        if answer["pendingCalls"]
    }


async def _said(daemon: Client, agents: list[dict[str, Any]]) -> dict[str, str]:
    """What was last said to the newest of the agents without a title."""
    untitled = [agent["agentId"] for agent in agents if agent["messageCount"] and not agent.get("title")][:_ASKED]
    params = {"order": "desc", "limit": _LATEST}
    pages = await asyncio.gather(*(daemon.call("agent/messages", {"agentId": one, **params}) for one in untitled))
    prompts = {
        one: next((text_of(message["content"]) for message in page["messages"] if message["role"] == "user"), "")
        for one, page in zip(untitled, pages, strict=True)
    }
    return {one: text for one, text in prompts.items() if text.strip()}


def _without(index: int, row: tuple[str, ...]) -> tuple[str, ...]:
    return (*row[:index], *row[index + 1 :])


def _row(agent: dict[str, Any], calls: dict[str, str], said: dict[str, str]) -> tuple[str, ...]:
    owed = [
        count(agent[key], word) + (calls.get(agent["agentId"], "") if key == "pendingCalls" else "")
        for key, word in (("approvals", "approval"), ("pendingCalls", "pending call"), ("inbox", "unread item"))
        if agent[key]
    ]
    if not owed and "waitingFor" in agent:
        owed = [agent["waitingFor"]]
    place = agent.get("labels", {}).get(PROMPT_LABEL, "")
    return (
        agent["agentId"],
        agent["state"],
        ", ".join(owed) or "-",
        str(agent["messageCount"]),
        ago(agent["updatedAt"]) if sys.stdout.isatty() else agent["updatedAt"],
        one_line(agent.get("damage") or agent.get("title") or said.get(agent["agentId"]) or place, 200),
    )
