"""`prompt`, `resume`, `create`: an agent, what is said to it, and its answer as it streams."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, Any, Optional

import typer

from sojourn_client import RpcError
from sojourn_client.client import Client

from ._app import OF_REASON, AgentArgument, Exit, JsonFlag, Options, client, command, say
from ._named import agent_meant, agent_named, exists
from ._pass import Pass
from ._show import PROMPT_LABEL, json_line

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ON_APPROVAL = ("wait", "pause", "deny")

ModelOption = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time
    typer.Option("--model", metavar="M", help="The model of a new agent."),
]
PresetOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--preset", metavar="NAME", help="The preset of a new agent, from the config."),
]
ToolsOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--tool",
        metavar="NAME",
        help="A tool of a new agent, repeatable; all of them unless said, with a preset those that it names.",
    ),
]
NoWaitFlag = Annotated[bool, typer.Option("--no-wait", help="Return once the daemon has taken it.")]


def register(app: typer.Typer) -> None:
    """Enters the commands."""
    command(app)(prompt)
    command(app)(resume)
    command(app)(create)


async def prompt(
    options: Options,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say; `-` reads it from stdin.")],
    *,
    agent: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--agent", metavar="ID", help="To this agent, which is made when there is none."),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="To a new agent.")] = False,
    model: ModelOption = None,
    preset: PresetOption = None,
    tools: ToolsOption = None,
    on_approval: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--on-approval", metavar="|".join(_ON_APPROVAL), help="What an approval does to this run."),
    ] = None,
    queue: Annotated[bool, typer.Option("--queue", help="Into the inbox when the agent is busy.")] = False,
    no_wait: NoWaitFlag = False,
    json: JsonFlag = False,
) -> int:
    """Says something to an agent and streams the answer.

    Starts the daemon when none runs. Without --agent it goes to the idle agent that the last `sojourn prompt` in this
    directory used, or to a new one. Ctrl-C stops the run. A closed terminal, `timeout` and SIGTERM end this command
    alone: the run goes on, and `sojourn attach` shows it.
    """
    content = sys.stdin.read() if text == "-" else text
    if not content.strip():
        raise typer.BadParameter("There is nothing to say: the text is empty.")
    if on_approval is not None and on_approval not in _ON_APPROVAL:
        raise typer.BadParameter(f"--on-approval is one of {', '.join(_ON_APPROVAL)}, not {on_approval!r}.")
    _check_id(agent)
    params = _given(content=content, onApproval=on_approval, ifBusy="queue" if queue else None)
    async with client(options, start=True) as daemon:
        agent_id, made = await _agent(daemon, agent, _given(model=model, preset=preset, tools=tools or None), new=new)
        if not json:
            say(f"new agent {agent_id}" if made else f"agent {agent_id}")
        try:
            return await _run(daemon, "agent/prompt", {**params, "agentId": agent_id}, json=json, no_wait=no_wait)
        except RpcError:
            if made:
                await _unmake(daemon, agent_id)
            raise


async def resume(options: Options, agent: AgentArgument, *, no_wait: NoWaitFlag = False, json: JsonFlag = False) -> int:
    """Goes on with an agent and streams the answer.

    An interrupted, stopped or paused run goes on, and what waits in the inbox is read. Ctrl-C stops the run; a closed
    terminal, `timeout` and SIGTERM end this command alone.
    """
    async with client(options, start=True) as daemon:
        return await _run(
            daemon, "agent/resume", {"agentId": await agent_named(daemon, agent)}, json=json, no_wait=no_wait
        )


async def create(
    options: Options,
    agent: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="AGENT", help="The new agent's id; one is made unless said."),
    ] = None,
    *,
    model: ModelOption = None,
    preset: PresetOption = None,
    tools: ToolsOption = None,
    json: JsonFlag = False,
) -> None:
    """Makes an agent and prints its id. Starts the daemon when none runs."""
    _check_id(agent)
    async with client(options, start=True) as daemon:
        made = await _create(daemon, _given(agentId=agent), _given(model=model, preset=preset, tools=tools or None))
    if json:
        json_line(made)
    else:
        print(made["agentId"])


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _check_id(agent: str | None) -> None:
    if agent is not None and not _ID.fullmatch(agent):
        raise typer.BadParameter(
            f"{agent!r} cannot be an agent's id: letters, digits, '.', '_' and '-' make one, at most 128 of them, "
            "and a letter or digit is the first."
        )


async def _run(daemon: Client, method: str, params: dict[str, Any], *, json: bool, no_wait: bool) -> int:
    if no_wait:
        taken = await daemon.call(method, {**params, "wait": False})
        if json or not sys.stdout.isatty():
            json_line(taken)
        else:
            say(f"Taken; `sojourn attach {params['agentId']}` shows how it goes on.")
        return Exit.DONE
    outcome = await Pass(daemon, method, params, json=json).run()
    if not json and outcome["reason"] == "failed" and outcome.get("error", {}).get("kind") == "modelError":
        say("`sojourn doctor --models` tries the models, and says what to do.")
    return OF_REASON.get(outcome["reason"], Exit.FAILED)


async def _agent(daemon: Client, agent: str | None, config: dict[str, Any], *, new: bool) -> tuple[str, bool]:
    """The agent that is meant, and whether it was made for this."""
    if agent is not None:
        return await _named(daemon, await agent_meant(daemon, agent), config, new=new)
    here = {PROMPT_LABEL: os.getcwd()}
    if not new and not config:
        page = await daemon.call("agent/list", {"labels": here, "state": "idle", "limit": 1})
        if page["agents"]:
            return str(page["agents"][0]["agentId"]), False
    made = str((await _create(daemon, {}, config))["agentId"])
    await daemon.call("agent/update", {"agentId": made, "labels": here})
    return made, True


async def _named(daemon: Client, agent: str, config: dict[str, Any], *, new: bool) -> tuple[str, bool]:
    if config and not new and await exists(daemon, agent):
        raise typer.BadParameter(
            f"The agent {agent!r} is there already; --model, --preset and --tool are for a new one."
        )
    try:
        return str((await _create(daemon, {"agentId": agent}, config))["agentId"]), True
    except RpcError as error:
        if error.kind != "alreadyExists" or new:
            raise
    return agent, False


async def _create(daemon: Client, params: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Makes an agent. It has all tools unless an option or a preset says which: what has an effect is asked about."""
    if not {"tools", "preset"} & config.keys():
        config = {**config, "tools": ["*"]}
    made: dict[str, Any] = await daemon.call("agent/create", {**params, "config": config})
    return made


async def _unmake(daemon: Client, agent_id: str) -> None:
    """Takes an agent back that was made for a prompt which was refused."""
    if (await daemon.call("agent/get", {"agentId": agent_id}))["messageCount"] == 0:
        await daemon.call("agent/delete", {"agentId": agent_id})
