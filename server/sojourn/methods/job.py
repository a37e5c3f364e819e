"""`job/*`: processes that outlive the call that started them, and the daemon. Each one's result reaches its agent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt

from sojourn.core.agent import Job

from ._fields import AgentId, Id
from ._table import Mutating, Params, Result, Session, method


class ListParams(Params):
    """`agentId` left out: of all agents. `state` left out: running or not."""

    agent_id: AgentId | None = None
    state: Literal["running", "ended"] | None = None


class Jobs(Result):
    """The jobs, the newest first."""

    jobs: tuple[Job, ...]


class OutputParams(Params):
    """Which job, and from which byte of its output on; at most `limit` bytes are answered."""

    job_id: Id
    offset: Annotated[StrictInt, Field(ge=0, le=2**53)] = 0
    limit: Annotated[StrictInt, Field(ge=16, le=1024 * 1024)] = 64 * 1024


class JobOutput(Result):
    """A piece of output: where it begins, its text, and the offset to go on with.

    `offset` is behind the one that was asked for where output was not kept (`limits.maxJobOutputBytes`: the beginning
    and the end are). No text: there is nothing behind it now; nothing more will come once the job has ended.
    """

    job: Job
    offset: int
    text: str
    next_offset: int


class StopParams(Mutating):
    """Which job."""

    job_id: Id


@method("job/list", params=ListParams, result=Jobs)
async def list_(session: Session, params: ListParams) -> Any:
    """The jobs that run, and those that ended last."""
    return await session.hub.job_list(params.agent_id, params.state)


@method("job/output", params=OutputParams, result=JobOutput)
async def output(session: Session, params: OutputParams) -> Any:
    """What a job has written to stdout and stderr, also while it runs and after a restart."""
    return await session.hub.job_output(params.job_id, offset=params.offset, limit=params.limit)


@method("job/stop", params=StopParams, result=Job)
async def stop(session: Session, params: StopParams) -> Any:
    """Ends a job with all its processes and answers it when it has ended. One that has ended stays as it is."""
    return await session.hub.job_stop(session.caller(params, "job/stop"), params.job_id)
