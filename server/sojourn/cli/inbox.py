"""`inbox push | resolve | reject | list`: reaching an agent from outside its run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ._app import AgentArgument, JsonFlag, Options, client, command, say
from ._named import agent_named
from ._show import json_line, one_line, table, text_of

CallArgument = Annotated[str, typer.Argument(metavar="CALL", help="The pending call's id.")]


def register(app: typer.Typer) -> None:
    """Enters the commands."""
    group = typer.Typer(help="Reach an agent from outside its run.", no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name="inbox")
    command(group)(push)
    command(group)(resolve)
    command(group)(reject)
    command(group, "list")(list_)


async def push(
    options: Options,
    agent: AgentArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say.")],
    *,
    json: JsonFlag = False,
) -> None:
    """Leaves a message for the agent. It is read at the next look, also in the middle of a run."""
    await _send(options, "inbox/push", {"agentId": agent, "content": text}, json=json)


async def resolve(
    options: Options,
    agent: AgentArgument,
    call: CallArgument,
    text: Annotated[str, typer.Argument(metavar="RESULT", help="The result.")],
    *,
    json: JsonFlag = False,
) -> None:
    """Delivers a pending call's result."""
    await _send(options, "inbox/resolve", {"agentId": agent, "callId": call, "content": text}, json=json)


async def reject(
    options: Options,
    agent: AgentArgument,
    call: CallArgument,
    error: Annotated[str, typer.Argument(metavar="ERROR", help="Why it failed.")],
    *,
    json: JsonFlag = False,
) -> None:
    """Delivers a pending call's failure."""
    await _send(options, "inbox/reject", {"agentId": agent, "callId": call, "error": error}, json=json)


async def list_(options: Options, agent: AgentArgument, *, json: JsonFlag = False) -> None:
    """What the agent has not read yet."""
    async with client(options) as daemon:
        items = (await daemon.call("inbox/list", {"agentId": await agent_named(daemon, agent)}))["items"]
    if json:
        for item in items:
            json_line(item)
        return
    if not items:
        say("Nothing waits in the inbox.")
        return
    rows = [(item["itemId"], item["kind"], item.get("callId", "-"), item["at"], _said(item)) for item in items]
    table(("ITEM", "KIND", "CALL", "AT", "SAYS"), rows, cut_last=True)


async def _send(options: Options, method: str, params: dict[str, Any], *, json: bool) -> None:
    async with client(options) as daemon:
        params["agentId"] = await agent_named(daemon, params["agentId"])
        answer = await daemon.call(method, params)
        agent = await daemon.call("agent/get", {"agentId": params["agentId"]})
    if json:
        json_line(answer)
    else:
        waits = agent["state"] != "running" and agent["inbox"]
        later = f"; it is read at the next prompt, or `sojourn resume {agent['agentId']}`" if waits else ""
        say(f"In the inbox as {answer['itemId']}{later}.")


def _said(item: dict[str, Any]) -> str:
    return one_line(item["error"] if "error" in item else text_of(item.get("content", ())))
