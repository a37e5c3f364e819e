"""`run/*`: runs that a client drives by hand, step by step, and saved runs."""

from __future__ import annotations

from typing import Any

from pydantic import Field, StrictInt, model_validator

from sojourn.core.messages import Usage
from sojourn.core.values import Json

from ._fields import (
    AgentId,
    Cursor,
    Id,
    InputMessage,
    JsonSchema,
    Limit,
    RunDocument,
    RunPrompt,
    ToolChoiceInput,
    needs,
)
from ._steps import ModelResponse, Resolution, RunState, Step, StepResult
from ._table import Mutating, Params, Result, Session, method


class CreateParams(Mutating):
    """`prompt` is content or a whole message; `history` is what came before it."""

    prompt: RunPrompt
    history: tuple[InputMessage, ...] = ()
    max_turns: StrictInt = Field(default=1, ge=0, le=1_000_000)
    max_invalid_tool_call_retries: StrictInt = Field(default=0, ge=0, le=1_000_000)
    tool_choice: ToolChoiceInput | None = None
    output_schema: JsonSchema | None = None


class RunRevision(Result):
    """A run and where it stands: `revision` grows by one with every change."""

    run_id: str
    revision: int


class StepParams(Mutating):
    """At most one of `modelResponse`, `toolResults` and `resolution`. A stale `revision` changes nothing."""

    run_id: Id
    revision: StrictInt | None = Field(default=None, ge=0)
    model_response: ModelResponse | None = None
    tool_results: tuple[StepResult, ...] | None = None
    resolution: Resolution | None = None

    @model_validator(mode="after")
    def _one_feed(self) -> StepParams:
        feeds = {"modelResponse": self.model_response, "toolResults": self.tool_results, "resolution": self.resolution}
        given = [name for name, value in feeds.items() if value is not None]
        needs(
            len(given) < 2, f"A step is fed with one thing, not with {' and '.join(given)}.", field=(given or [""])[-1]
        )
        return self

    def feed(self) -> dict[str, Any] | None:
        """What the run is fed with, in wire form."""
        feeds = {"model_response", "tool_results", "resolution"}
        return self.model_dump(mode="json", include=feeds, exclude_none=True) or None


class Stepped(Result):
    """What the run owes now."""

    revision: int
    step: Step


class RunParams(Params):
    """Which run."""

    run_id: Id


class RunInfo(Result):
    """A run as it stands; `step` is what it owes, when a client may drive it.

    `damage`: what of its record in the store cannot be read; only `run/list` shows such a run.
    """

    run_id: str
    revision: int
    state: RunState
    turn: int
    max_turns: int
    usage: Usage
    agent_id: str | None = None
    step: Step | None = None
    damage: str | None = None


class ListParams(Params):
    """`agentId` left out: all runs, hand-driven ones included."""

    agent_id: AgentId | None = None
    state: RunState | None = None
    cursor: Cursor | None = None
    limit: Limit = 100


class RunList(Result):
    """Runs, newest first."""

    runs: tuple[RunInfo, ...]
    next_cursor: str | None = None


class Exported(Result):
    """The saved run with its history, messages and entries."""

    run: RunDocument


class ImportParams(Mutating):
    """A saved run."""

    run: RunDocument


class AppendParams(Mutating):
    """A record of the client's own, of any JSON `value`; it is never sent to a model."""

    run_id: Id
    kind: str = Field(min_length=1, max_length=200)
    value: Json


class Appended(Result):
    """The entry's position in the run."""

    index: int


class EntriesParams(Params):
    """`kind` left out: all entries."""

    run_id: Id
    kind: str | None = Field(default=None, min_length=1, max_length=200)


class Entry(Result):
    """A record that a client appended; `turn` is where the run stood."""

    kind: str
    turn: int
    value: Json


class Entries(Result):
    """Entries in the order in which they were appended."""

    entries: tuple[Entry, ...]


class DeleteParams(Mutating):
    """Which run."""

    run_id: Id


@method("run/create", params=CreateParams, result=RunRevision)
async def create(session: Session, params: CreateParams) -> Any:
    """Makes a run that its client drives: the client calls the model and the tools, the daemon keeps the state."""
    return await session.hub.run_create(
        session.caller(params, "run/create"),
        prompt=params.prompt,
        history=list(params.history),
        max_turns=params.max_turns,
        max_invalid_tool_call_retries=params.max_invalid_tool_call_retries,
        tool_choice=params.tool_choice,
        output_schema=params.output_schema,
    )


@method("run/step", params=StepParams, result=Stepped, heavy=True)
async def step(session: Session, params: StepParams) -> Any:
    """Feeds what is given, then says what is owed. With nothing given it says the same again and costs nothing.

    Works on every run that the daemon is not driving right now, an agent's paused or interrupted run included; else
    `agentBusy`. What the run refuses is `protocolViolation` and changes nothing. A run that its agent went on without
    has failed (`cancelled`) and takes nothing more.
    """
    return await session.hub.run_step(
        session.caller(params, "run/step"), session, params.run_id, revision=params.revision, feed=params.feed()
    )


@method("run/get", params=RunParams, result=RunInfo, heavy=True)
async def get(session: Session, params: RunParams) -> Any:
    """A run as it stands."""
    return await session.hub.run_get(params.run_id)


@method("run/list", params=ListParams, result=RunList, heavy=True)
async def list_(session: Session, params: ListParams) -> Any:
    """Runs, newest first."""
    return await session.hub.run_list(
        agent_id=params.agent_id, state=params.state, cursor=params.cursor, limit=params.limit
    )


@method("run/export", params=RunParams, result=Exported, heavy=True)
async def export(session: Session, params: RunParams) -> Any:
    """The whole run as one document that another daemon, or a program of its own, can carry on."""
    return await session.hub.run_export(params.run_id)


@method("run/import", params=ImportParams, result=RunRevision)
async def import_(session: Session, params: ImportParams) -> Any:
    """Takes a saved run in under a new id. Another format or an unknown field is `formatUnsupported`, by name."""
    return await session.hub.run_import(session.caller(params, "run/import"), params.run)


@method("run/appendEntry", params=AppendParams, result=Appended)
async def append_entry(session: Session, params: AppendParams) -> Any:
    """Keeps a record of the client's own inside the run. It is never sent to the model."""
    caller = session.caller(params, "run/appendEntry")
    return await session.hub.run_append_entry(caller, params.run_id, params.kind, params.value)


@method("run/entries", params=EntriesParams, result=Entries, heavy=True)
async def entries(session: Session, params: EntriesParams) -> Any:
    """The records inside a run."""
    return await session.hub.run_entries(params.run_id, params.kind)


@method("run/delete", params=DeleteParams, result=None)
async def delete(session: Session, params: DeleteParams) -> Any:
    """Deletes a run that nobody drives."""
    return await session.hub.run_delete(session.caller(params, "run/delete"), params.run_id)
