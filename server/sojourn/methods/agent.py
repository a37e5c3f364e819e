"""`agent/*`: agents, their passes, their events and their conversations."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, StrictBool

from sojourn.core.agent import (
    Accepted,
    Agent,
    AgentConfig,
    AgentState,
    OnApproval,
    PendingCall,
    RunOutcome,
)
from sojourn.core.approvals import Approval, PathStep
from sojourn.core.events import DeltaKind
from sojourn.core.messages import Message

from ._fields import (
    AgentId,
    Cursor,
    Id,
    InputMessage,
    JsonSchema,
    Labels,
    Limit,
    PromptContent,
    RunDocument,
    Seq,
    ToolChoiceInput,
)
from ._table import Mutating, Params, Result, Session, method
from ._wire import EventParams


class CreateParams(Mutating):
    """`agentId` left out: the daemon makes one."""

    agent_id: AgentId | None = None
    config: AgentConfig | None = None


class ListParams(Params):
    """Roots only, unless `parentAgentId` names whose children are meant. `labels` must all be there."""

    cursor: Cursor | None = None
    limit: Limit = 100
    state: AgentState | None = None
    parent_agent_id: AgentId | None = None
    labels: Labels | None = None


class AgentList(Result):
    """Agents, newest activity first."""

    agents: tuple[Agent, ...]
    next_cursor: str | None = None


class WatchParams(Params):
    """Nothing to say."""


class AgentParams(Params):
    """Which agent."""

    agent_id: AgentId


class UpdateParams(Mutating):
    """What to change. Left out = unchanged, null = cleared; inside `config` as well."""

    agent_id: AgentId
    config: AgentConfig | None = None
    title: str | None = Field(default=None, min_length=1, max_length=1000)
    labels: Labels | None = None

    def changes(self) -> dict[str, Any]:
        """What was given, in wire form; None stands for `cleared`."""
        given: dict[str, Any] = {
            name: getattr(self, name) for name in ("config", "title", "labels") if name in self.model_fields_set
        }
        if self.config is not None:
            given["config"] = self.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return given


class ForkParams(Mutating):
    """`afterMessage` is the last message that the fork keeps; left out = all of them."""

    agent_id: AgentId
    after_message: Id | None = None


class DeleteParams(Mutating):
    """`force` stops an active pass first."""

    agent_id: AgentId
    force: StrictBool = False


class PromptParams(Mutating):
    """`wait: false` answers as soon as the prompt is committed.

    `outputSchema`: the outcome's `output` is JSON that is valid for it, or the outcome has `bestEffort`. `toolChoice`
    `required`, or a tool's name, holds until the model has made a call; `auto` and `none` for the whole run. A prompt
    with either of them is not queued: it needs a run of its own.
    """

    agent_id: AgentId
    content: PromptContent
    if_busy: Literal["reject", "queue"] = "reject"
    on_approval: OnApproval | None = None
    tool_choice: ToolChoiceInput | None = None
    output_schema: JsonSchema | None = None
    wait: StrictBool = True


class ResumeParams(Mutating):
    """`run` is a saved run that continues as a new agent with the named agent's config.

    `toolChoice` and `outputSchema` are for a run that begins here; an unfinished or a saved one keeps its own.
    """

    agent_id: AgentId
    run: RunDocument | None = None
    tool_choice: ToolChoiceInput | None = None
    output_schema: JsonSchema | None = None
    wait: StrictBool = True


class CompactParams(Mutating):
    """Which agent."""

    agent_id: AgentId


class Compacted(Result):
    """About how much the model has to read before and after; no `messageId` when there was nothing to sum up."""

    message_id: str | None = None
    tokens_before: int
    tokens_after: int


class StopParams(Mutating):
    """Which agent."""

    agent_id: AgentId


class Stopped(Result):
    """`stopped` is false when nothing was running."""

    stopped: bool
    run_id: str | None = None


class WaitParams(Params):
    """`runId` left out: the agent's newest run."""

    agent_id: AgentId
    run_id: Id | None = None


class AttachParams(Params):
    """`afterSeq` is the last event that the client knows; left out = live from now, 0 = everything."""

    agent_id: AgentId
    after_seq: Seq | None = None
    deltas: StrictBool = True


class Streaming(Result):
    """What was streamed of one part of an unfinished message; later deltas continue at its length.

    `path` leads to a child, when the message is a child's.
    """

    path: tuple[PathStep, ...] | None = None
    message_id: str
    part: int
    kind: DeltaKind
    text: str


class Attached(Result):
    """Where the replay ends (`seq`) and what is open there.

    `mode`: `live` (nothing to replay), `replay` (the events up to `seq` follow), or `snapshot` (what the client
    asked for is older than `oldestSeq`: read `agent/messages`).
    """

    seq: int
    oldest_seq: int
    mode: Literal["live", "replay", "snapshot"]
    agent: Agent
    pending_calls: tuple[PendingCall, ...]
    approvals: tuple[Approval, ...]
    streaming: tuple[Streaming, ...]


class EventsParams(Params):
    """A page of stored events."""

    agent_id: AgentId
    after_seq: Seq = 0
    limit: Limit = 100


class EventsPage(Result):
    """`nextSeq` is the `afterSeq` of the next page."""

    events: tuple[EventParams, ...]
    next_seq: int


class MessagesParams(Params):
    """A page of the conversation."""

    agent_id: AgentId
    cursor: Cursor | None = None
    limit: Limit = 100
    order: Literal["asc", "desc"] = "asc"


class MessagesPage(Result):
    """Messages in the order that was asked for."""

    messages: tuple[Message, ...]
    next_cursor: str | None = None


class ReplaceParams(Mutating):
    """The whole new conversation."""

    agent_id: AgentId
    messages: tuple[InputMessage, ...]


class Replaced(Result):
    """How many messages were kept, and the calls whose results are still owed."""

    messages: int
    pending_calls: tuple[PendingCall, ...]


class PendingCalls(Result):
    """The calls whose real results the agent has not read yet."""

    pending_calls: tuple[PendingCall, ...]


@method("agent/create", params=CreateParams, result=Agent)
async def create(session: Session, params: CreateParams) -> Any:
    """Makes an agent. Its `cwd` is the client's workspace unless `config` says otherwise."""
    caller = session.caller(params, "agent/create")
    return await session.hub.create_agent(caller, agent_id=params.agent_id, config=params.config)


@method("agent/list", params=ListParams, result=AgentList, heavy=True)
async def list_(session: Session, params: ListParams) -> Any:
    """Agents, newest activity first."""
    return await session.hub.list_agents(
        cursor=params.cursor,
        limit=params.limit,
        state=params.state,
        parent_agent_id=params.parent_agent_id,
        labels=params.labels,
    )


@method("agent/watch", params=WatchParams, result=None)
async def watch(session: Session, params: WatchParams) -> Any:
    """From now on this connection gets `agent/changed` for every agent that changes."""
    return await session.hub.watch(session)


@method("agent/unwatch", params=WatchParams, result=None)
async def unwatch(session: Session, params: WatchParams) -> Any:
    """Ends `agent/watch`."""
    return await session.hub.unwatch(session)


@method("agent/get", params=AgentParams, result=Agent)
async def get(session: Session, params: AgentParams) -> Any:
    """An agent as it is now."""
    return await session.hub.get_agent(params.agent_id)


@method("agent/update", params=UpdateParams, result=Agent)
async def update(session: Session, params: UpdateParams) -> Any:
    """Changes an agent's config, title or labels. A run that is under way keeps the config it began with."""
    caller = session.caller(params, "agent/update")
    return await session.hub.update_agent(caller, params.agent_id, params.changes())


@method("agent/fork", params=ForkParams, result=Agent)
async def fork(session: Session, params: ForkParams) -> Any:
    """A new agent with a copy of the conversation. Placeholders become final in it; inbox and approvals stay behind."""
    caller = session.caller(params, "agent/fork")
    return await session.hub.fork_agent(caller, params.agent_id, after_message=params.after_message)


@method("agent/delete", params=DeleteParams, result=None)
async def delete(session: Session, params: DeleteParams) -> Any:
    """Deletes an agent and everything of it. With an active pass `agentBusy`, unless `force`."""
    caller = session.caller(params, "agent/delete")
    return await session.hub.delete_agent(caller, params.agent_id, force=params.force)


@method("agent/prompt", params=PromptParams, result=RunOutcome, accepted=Accepted)
async def prompt(session: Session, params: PromptParams) -> Any:
    """Says something to an agent; the answer is the outcome of the pass, at its end.

    A client that leaves stops nothing; `$/cancelRequest` of a waiting prompt that started the pass stops the run.
    An agent with an active pass answers `agentBusy`, or takes the prompt into its inbox with `ifBusy: "queue"`.
    """
    return await session.hub.prompt(
        session.caller(params, "agent/prompt"),
        params.agent_id,
        params.content,
        if_busy=params.if_busy,
        on_approval=params.on_approval,
        tool_choice=params.tool_choice,
        output_schema=params.output_schema,
        wait=params.wait,
        session=session,
    )


@method("agent/resume", params=ResumeParams, result=RunOutcome, accepted=Accepted)
async def resume(session: Session, params: ResumeParams) -> Any:
    """Carries on from where the conversation stands, with no new text; nothing to do is `nothingToResume`."""
    return await session.hub.resume(
        session.caller(params, "agent/resume"),
        params.agent_id,
        run=params.run,
        tool_choice=params.tool_choice,
        output_schema=params.output_schema,
        wait=params.wait,
        session=session,
    )


@method("agent/compact", params=CompactParams, result=Compacted)
async def compact(session: Session, params: CompactParams) -> Any:
    """Has the model sum up the conversation, which then stands for it in what the model sees; nothing is deleted.

    Only between rounds: with an active pass, or in the middle of a tool round, `agentBusy`. A run does it by itself
    when the model's window fills (`compactAt`).
    """
    return await session.hub.compact(session.caller(params, "agent/compact"), params.agent_id)


@method("agent/stop", params=StopParams, result=Stopped)
async def stop(session: Session, params: StopParams) -> Any:
    """Stops the active run, its tools and its children, or an `agent/compact`; answers when it has stopped."""
    return await session.hub.stop(session.caller(params, "agent/stop"), params.agent_id)


@method("agent/wait", params=WaitParams, result=RunOutcome)
async def wait(session: Session, params: WaitParams) -> Any:
    """The outcome of a run, as soon as no pass is active. Cancelling it stops the waiting only."""
    return await session.hub.wait(params.agent_id, params.run_id)


@method("agent/attach", params=AttachParams, result=Attached, heavy=True)
async def attach(session: Session, params: AttachParams) -> Any:
    """From now on this connection gets the agent's `agent/event`s: the replay up to `seq`, then live ones.

    Nothing comes twice and nothing is missing. An `afterSeq` beyond the newest event is `seqAhead`. Of a connection's
    `agent/attach` and `agent/detach` the one that was sent last holds.
    """
    return await session.hub.attach(session, params.agent_id, after_seq=params.after_seq, deltas=params.deltas)


@method("agent/detach", params=AgentParams, result=None, heavy=True)  # stays in line with `agent/attach`
async def detach(session: Session, params: AgentParams) -> Any:
    """Ends `agent/attach`."""
    return await session.hub.detach(session, params.agent_id)


@method("agent/events", params=EventsParams, result=EventsPage, heavy=True)
async def events(session: Session, params: EventsParams) -> Any:
    """Stored events, page by page, for scripts."""
    return await session.hub.events(params.agent_id, after_seq=params.after_seq, limit=params.limit)


@method("agent/messages", params=MessagesParams, result=MessagesPage, heavy=True)
async def messages(session: Session, params: MessagesParams) -> Any:
    """The conversation, page by page."""
    return await session.hub.messages(params.agent_id, cursor=params.cursor, limit=params.limit, order=params.order)


@method("agent/replaceMessages", params=ReplaceParams, result=Replaced, heavy=True)
async def replace_messages(session: Session, params: ReplaceParams) -> Any:
    """Puts another conversation in the place of the agent's; the old one is kept aside.

    Pending calls are worked out from the messages; results without a call are dropped with a warning; calls without
    a result are failed when the next run starts. With an active pass `agentBusy`.
    """
    caller = session.caller(params, "agent/replaceMessages")
    return await session.hub.replace_messages(caller, params.agent_id, list(params.messages))


@method("agent/pendingCalls", params=AgentParams, result=PendingCalls)
async def pending_calls(session: Session, params: AgentParams) -> Any:
    """The calls that a tool answered with a placeholder and whose real result the agent has not read yet."""
    return await session.hub.pending_calls(params.agent_id)
