"""`run list | show | step | export | import`: runs as documents, and driving one by hand."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ._app import Failure, JsonFlag, Options, client, command, say
from ._named import agent_named
from ._show import json_line, table

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]


def register(app: typer.Typer) -> None:
    """Enters the commands."""
    group = typer.Typer(
        help="Runs: look at them, drive them by hand, move them.", no_args_is_help=True, rich_markup_mode=None
    )
    app.add_typer(group, name="run")
    command(group, "list")(list_)
    command(group)(show)
    command(group)(step)
    command(group)(export)
    command(group, "import")(import_)


async def list_(
    options: Options,
    *,
    agent: Annotated[
        Optional[str],  # noqa: UP045 - typer reads it at run time
        typer.Option("--agent", metavar="ID", help="Of this agent only."),
    ] = None,
    state: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--state", metavar="STATE", help="In this state only."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """The runs, newest first."""
    runs: list[dict[str, Any]] = []
    params = {key: value for key, value in {"agentId": agent, "state": state}.items() if value is not None}
    async with client(options) as daemon:
        if agent is not None:
            params["agentId"] = await agent_named(daemon, agent)
        cursor: dict[str, Any] = {}
        while True:
            page = await daemon.call("run/list", {**params, **cursor})
            runs += page["runs"]
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
    if json:
        for run in runs:
            json_line(run)
        return
    rows = [(run["runId"], run.get("agentId", "-"), run["state"], f"{run['turn']}/{run['maxTurns']}") for run in runs]
    table(("RUN", "AGENT", "STATE", "TURN"), rows)


async def show(options: Options, run: RunArgument, *, json: JsonFlag = False) -> None:
    """A run as it stands, with what it owes."""
    async with client(options) as daemon:
        _print(await daemon.call("run/get", {"runId": run}), json=json)


async def step(
    options: Options,
    run: RunArgument,
    feed: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="JSON", help='What to feed, e.g. {"modelResponse": {…}}; nothing asks what is owed.'),
    ] = None,
    *,
    revision: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--revision", metavar="N", help="Only if the run still stands here."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Drives a run by hand, one step."""
    params = {"runId": run, **(_object(feed, "The feed") if feed is not None else {})}
    if revision is not None:
        params["revision"] = revision
    async with client(options) as daemon:
        _print(await daemon.call("run/step", params), json=json)


async def export(
    options: Options,
    run: RunArgument,
    *,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--output", "-o", metavar="FILE", help="Into this file; else to stdout."),
    ] = None,
) -> None:
    """The whole run as one document."""
    async with client(options) as daemon:
        document = (await daemon.call("run/export", {"runId": run}))["run"]
    text = jsonlib.dumps(document, ensure_ascii=False)
    if output is None:
        print(text)
    else:
        output.write_text(text + "\n")
        say(f"Run {run} is in {output}.")


async def import_(
    options: Options,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A saved run; `-` reads it from stdin.")],
    *,
    json: JsonFlag = False,
) -> None:
    """Takes a saved run in, under a new id."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except OSError as error:
        raise Failure(f"{str(file)!r} cannot be read: {error.strerror}.") from None
    document = _object(text, f"{str(file)!r}")
    async with client(options) as daemon:
        answer = await daemon.call("run/import", {"run": document})
    if json:
        json_line(answer)
    else:
        print(answer["runId"])


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = jsonlib.loads(text)
    except ValueError as error:
        raise Failure(f"{what} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise Failure(f"{what} must be a JSON object.")
    return value


def _print(value: Any, *, json: bool) -> None:
    if json:
        json_line(value)
    else:
        print(jsonlib.dumps(value, indent=2, ensure_ascii=False))
