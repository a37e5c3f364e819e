"""`jobs list | output | stop`: processes that outlive the call that started them, and the daemon."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any, Optional

import typer

from ._app import Exit, JsonFlag, Options, client, command, say
from ._named import agent_named, job_named
from ._show import ago, json_line, one_line, printable, table

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, or the beginning of it.")]
_FOLLOW_S = 0.3


def register(app: typer.Typer) -> None:
    """Enters the commands."""
    group = typer.Typer(help="Processes that outlive the daemon.", no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name="jobs")
    command(group, "list")(list_)
    command(group)(output)
    command(group)(stop)


async def list_(
    options: Options,
    *,
    agent: Annotated[
        Optional[str],  # noqa: UP045 - typer reads it at run time
        typer.Option("--agent", metavar="AGENT", help="Of this agent only."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """The jobs that run, and those that ended last."""
    async with client(options) as daemon:
        named = {} if agent is None else {"agentId": await agent_named(daemon, agent)}
        jobs = (await daemon.call("job/list", named))["jobs"]
    if json:
        for job in jobs:
            json_line(job)
    elif jobs:
        table(("JOB", "STATE", "AGENT", "STARTED", "OUTPUT", "COMMAND"), [_row(job) for job in jobs], cut_last=True)
    else:
        say("No jobs; the tool `shell` starts one when it is asked to work in the background.")


async def output(
    options: Options,
    job: JobArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until it has ended.")] = False,
    json: JsonFlag = False,
) -> int | None:
    """What a job has written so far; exit code 5 when it has failed."""
    offset, running = 0, True
    async with client(options) as daemon:
        job = await job_named(daemon, job)
        try:
            while running:
                piece = await daemon.call("job/output", {"jobId": job, "offset": offset})
                _show(piece, offset, json=json)
                offset, found = piece["nextOffset"], piece["job"]
                at_end = not piece["text"]
                running = not at_end or (follow and found["state"] == "running")
                if at_end and running:
                    await asyncio.sleep(_FOLLOW_S)
        except asyncio.CancelledError:
            return Exit.INTERRUPTED
    if found["state"] == "running":
        say(f"{job} is still running; --follow shows what comes.")
        return None
    say(f"{job} has ended: {_how(found)}.")
    return None if found.get("exitCode") == 0 and found["outcome"] == "exited" else Exit.FAILED


async def stop(options: Options, job: JobArgument, *, json: JsonFlag = False) -> None:
    """Ends a job with all its processes. Its agent is told."""
    async with client(options) as daemon:
        answer = await daemon.call("job/stop", {"jobId": (job := await job_named(daemon, job))})
    if json:
        json_line(answer)
    else:
        say(f"{job}: {_how(answer)}.")


def _show(piece: dict[str, Any], asked: int, *, json: bool) -> None:
    if json:
        json_line({key: piece[key] for key in ("offset", "text", "nextOffset")})
        return
    if piece["offset"] > asked and piece["text"]:
        say(f"[{piece['offset'] - asked} bytes were not kept]")
    sys.stdout.write(printable(piece["text"]))
    sys.stdout.flush()


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    size = f"{job['outputBytes']:,} bytes"
    return job["jobId"], _how(job), job["agentId"], ago(job["since"]), size, one_line(job["command"])


def _how(job: dict[str, Any]) -> str:
    if job["state"] == "running":
        return "stopping" if "stoppedBy" in job else "running"
    words = {
        "exited": f"exit code {job['exitCode']}" if "exitCode" in job else f"ended by signal {job.get('signal')}",
        "stopped": f"stopped by {job.get('stoppedBy', 'a signal')}",
        "timedOut": "time limit",
        "notStarted": "not started",
        "lost": "ended without a record",
    }
    return words[job["outcome"]]
