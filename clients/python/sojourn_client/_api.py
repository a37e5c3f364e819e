"""The protocol's methods as typed calls. Written by `scripts/generate_client.py`; do not edit.

A parameter that is left out is not sent. Values may be given as models or as plain JSON in wire form.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, overload

from ._calls import UNSET, Caller, Namespace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from sojourn.core.agent import Accepted, Agent, AgentConfig, Job, RunOutcome
    from sojourn.core.messages import Message, ToolChoice
    from sojourn.methods._steps import ModelResponse, Resolution, StepResult
    from sojourn.methods.agent import (
        AgentList,
        Attached,
        Compacted,
        EventsPage,
        MessagesPage,
        PendingCalls,
        Replaced,
        Stopped,
    )
    from sojourn.methods.approval import Approvals, Decided, Rules
    from sojourn.methods.inbox import InboxItems, Queued, Removed
    from sojourn.methods.job import JobOutput, Jobs
    from sojourn.methods.model import Models
    from sojourn.methods.run import Appended, Entries, Exported, RunInfo, RunList, RunRevision, Stepped
    from sojourn.methods.server import Status
    from sojourn.methods.tool import ClientTool, Tools

    from ._calls import Content, Fields, Unset


class AgentMethods(Namespace):
    """`agent/*`."""

    async def create(
        self,
        *,
        request_id: str | Unset | None = UNSET,
        agent_id: str | Unset | None = UNSET,
        config: AgentConfig | Fields | Unset | None = UNSET,
    ) -> Agent:
        """Makes an agent. Its `cwd` is the client's workspace unless `config` says otherwise."""
        result: Agent = await self._call(
            "agent/create", {"requestId": request_id, "agentId": agent_id, "config": config}
        )
        return result

    async def list(
        self,
        *,
        cursor: str | Unset | None = UNSET,
        limit: int | Unset = UNSET,
        state: Literal["idle", "running", "waiting", "paused", "interrupted"] | Unset | None = UNSET,
        parent_agent_id: str | Unset | None = UNSET,
        labels: dict[str, str] | Unset | None = UNSET,
    ) -> AgentList:
        """Agents, newest activity first."""
        result: AgentList = await self._call(
            "agent/list",
            {"cursor": cursor, "limit": limit, "state": state, "parentAgentId": parent_agent_id, "labels": labels},
        )
        return result

    async def watch(self) -> None:
        """From now on this connection gets `agent/changed` for every agent that changes."""
        await self._call("agent/watch", {})

    async def unwatch(self) -> None:
        """Ends `agent/watch`."""
        await self._call("agent/unwatch", {})

    async def get(self, *, agent_id: str) -> Agent:
        """An agent as it is now."""
        result: Agent = await self._call("agent/get", {"agentId": agent_id})
        return result

    async def update(
        self,
        *,
        agent_id: str,
        request_id: str | Unset | None = UNSET,
        config: AgentConfig | Fields | Unset | None = UNSET,
        title: str | Unset | None = UNSET,
        labels: dict[str, str] | Unset | None = UNSET,
    ) -> Agent:
        """Changes an agent's config, title or labels. A run that is under way keeps the config it began with."""
        result: Agent = await self._call(
            "agent/update",
            {"agentId": agent_id, "requestId": request_id, "config": config, "title": title, "labels": labels},
        )
        return result

    async def fork(
        self, *, agent_id: str, request_id: str | Unset | None = UNSET, after_message: str | Unset | None = UNSET
    ) -> Agent:
        """A new agent with a copy of the conversation. Placeholders become final in it; inbox and approvals stay
        behind.
        """
        result: Agent = await self._call(
            "agent/fork", {"agentId": agent_id, "requestId": request_id, "afterMessage": after_message}
        )
        return result

    async def delete(
        self, *, agent_id: str, request_id: str | Unset | None = UNSET, force: bool | Unset = UNSET
    ) -> None:
        """Deletes an agent and everything of it. With an active pass `agentBusy`, unless `force`."""
        await self._call("agent/delete", {"agentId": agent_id, "requestId": request_id, "force": force})

    @overload
    async def prompt(
        self,
        *,
        agent_id: str,
        content: Content,
        request_id: str | Unset | None = UNSET,
        if_busy: Literal["reject", "queue"] | Unset = UNSET,
        on_approval: Literal["wait", "pause", "deny"] | Unset | None = UNSET,
        tool_choice: ToolChoice | Fields | str | Unset | None = UNSET,
        output_schema: dict[str, Any] | Unset | None = UNSET,
        wait: Literal[True] | Unset = UNSET,
    ) -> RunOutcome: ...
    @overload
    async def prompt(
        self,
        *,
        agent_id: str,
        content: Content,
        request_id: str | Unset | None = UNSET,
        if_busy: Literal["reject", "queue"] | Unset = UNSET,
        on_approval: Literal["wait", "pause", "deny"] | Unset | None = UNSET,
        tool_choice: ToolChoice | Fields | str | Unset | None = UNSET,
        output_schema: dict[str, Any] | Unset | None = UNSET,
        wait: Literal[False],
    ) -> Accepted: ...
    async def prompt(
        self,
        *,
        agent_id: str,
        content: Content,
        request_id: str | Unset | None = UNSET,
        if_busy: Literal["reject", "queue"] | Unset = UNSET,
        on_approval: Literal["wait", "pause", "deny"] | Unset | None = UNSET,
        tool_choice: ToolChoice | Fields | str | Unset | None = UNSET,
        output_schema: dict[str, Any] | Unset | None = UNSET,
        wait: bool | Unset = UNSET,
    ) -> RunOutcome | Accepted:
        """Says something to an agent; the answer is the outcome of the pass, at its end.

        A client that leaves stops nothing; `$/cancelRequest` of a waiting prompt that started the pass stops the
        run. An agent with an active pass answers `agentBusy`, or takes the prompt into its inbox with `ifBusy:
        "queue"`.
        """
        result: RunOutcome | Accepted = await self._call(
            "agent/prompt",
            {
                "agentId": agent_id,
                "content": content,
                "requestId": request_id,
                "ifBusy": if_busy,
                "onApproval": on_approval,
                "toolChoice": tool_choice,
                "outputSchema": output_schema,
                "wait": wait,
            },
        )
        return result

    @overload
    async def resume(
        self,
        *,
        agent_id: str,
        request_id: str | Unset | None = UNSET,
        run: dict[str, Any] | Unset | None = UNSET,
        tool_choice: ToolChoice | Fields | str | Unset | None = UNSET,
        output_schema: dict[str, Any] | Unset | None = UNSET,
        wait: Literal[True] | Unset = UNSET,
    ) -> RunOutcome: ...
    @overload
    async def resume(
        self,
        *,
        agent_id: str,
        request_id: str | Unset | None = UNSET,
        run: dict[str, Any] | Unset | None = UNSET,
        tool_choice: ToolChoice | Fields | str | Unset | None = UNSET,
        output_schema: dict[str, Any] | Unset | None = UNSET,
        wait: Literal[False],
    ) -> Accepted: ...
    async def resume(
        self,
        *,
        agent_id: str,
        request_id: str | Unset | None = UNSET,
        run: dict[str, Any] | Unset | None = UNSET,
        tool_choice: ToolChoice | Fields | str | Unset | None = UNSET,
        output_schema: dict[str, Any] | Unset | None = UNSET,
        wait: bool | Unset = UNSET,
    ) -> RunOutcome | Accepted:
        """Carries on from where the conversation stands, with no new text; nothing to do is `nothingToResume`."""
        result: RunOutcome | Accepted = await self._call(
            "agent/resume",
            {
                "agentId": agent_id,
                "requestId": request_id,
                "run": run,
                "toolChoice": tool_choice,
                "outputSchema": output_schema,
                "wait": wait,
            },
        )
        return result

    async def compact(self, *, agent_id: str, request_id: str | Unset | None = UNSET) -> Compacted:
        """Has the model sum up the conversation, which then stands for it in what the model sees; nothing is deleted.

        Only between rounds: with an active pass, or in the middle of a tool round, `agentBusy`. A run does it by
        itself when the model's window fills (`compactAt`).
        """
        result: Compacted = await self._call("agent/compact", {"agentId": agent_id, "requestId": request_id})
        return result

    async def stop(self, *, agent_id: str, request_id: str | Unset | None = UNSET) -> Stopped:
        """Stops the active run, its tools and its children, or an `agent/compact`; answers when it has stopped."""
        result: Stopped = await self._call("agent/stop", {"agentId": agent_id, "requestId": request_id})
        return result

    async def wait(self, *, agent_id: str, run_id: str | Unset | None = UNSET) -> RunOutcome:
        """The outcome of a run, as soon as no pass is active. Cancelling it stops the waiting only."""
        result: RunOutcome = await self._call("agent/wait", {"agentId": agent_id, "runId": run_id})
        return result

    async def attach(
        self, *, agent_id: str, after_seq: int | Unset | None = UNSET, deltas: bool | Unset = UNSET
    ) -> Attached:
        """From now on this connection gets the agent's `agent/event`s: the replay up to `seq`, then live ones.

        Nothing comes twice and nothing is missing. An `afterSeq` beyond the newest event is `seqAhead`. Of a
        connection's `agent/attach` and `agent/detach` the one that was sent last holds.
        """
        result: Attached = await self._call(
            "agent/attach", {"agentId": agent_id, "afterSeq": after_seq, "deltas": deltas}
        )
        return result

    async def detach(self, *, agent_id: str) -> None:
        """Ends `agent/attach`."""
        await self._call("agent/detach", {"agentId": agent_id})

    async def events(self, *, agent_id: str, after_seq: int | Unset = UNSET, limit: int | Unset = UNSET) -> EventsPage:
        """Stored events, page by page, for scripts."""
        result: EventsPage = await self._call(
            "agent/events", {"agentId": agent_id, "afterSeq": after_seq, "limit": limit}
        )
        return result

    async def messages(
        self,
        *,
        agent_id: str,
        cursor: str | Unset | None = UNSET,
        limit: int | Unset = UNSET,
        order: Literal["asc", "desc"] | Unset = UNSET,
    ) -> MessagesPage:
        """The conversation, page by page."""
        result: MessagesPage = await self._call(
            "agent/messages", {"agentId": agent_id, "cursor": cursor, "limit": limit, "order": order}
        )
        return result

    async def replace_messages(
        self, *, agent_id: str, messages: Sequence[Message | Fields], request_id: str | Unset | None = UNSET
    ) -> Replaced:
        """Puts another conversation in the place of the agent's; the old one is kept aside.

        Pending calls are worked out from the messages; results without a call are dropped with a warning; calls
        without a result are failed when the next run starts. With an active pass `agentBusy`.
        """
        result: Replaced = await self._call(
            "agent/replaceMessages", {"agentId": agent_id, "messages": messages, "requestId": request_id}
        )
        return result

    async def pending_calls(self, *, agent_id: str) -> PendingCalls:
        """The calls that a tool answered with a placeholder and whose real result the agent has not read yet."""
        result: PendingCalls = await self._call("agent/pendingCalls", {"agentId": agent_id})
        return result


class ApprovalMethods(Namespace):
    """`approval/*`."""

    async def list(self, *, agent_id: str | Unset | None = UNSET) -> Approvals:
        """Open approvals of one agent and its children, or of all."""
        result: Approvals = await self._call("approval/list", {"agentId": agent_id})
        return result

    async def decide(
        self,
        *,
        decision: Literal["approve", "deny", "edit", "answer", "abort"],
        approval_id: str,
        request_id: str | Unset | None = UNSET,
        arguments: dict[str, Any] | Unset | None = UNSET,
        content: Content | Unset | None = UNSET,
        reason: str | Unset | None = UNSET,
        scope: Literal["once", "run", "agent"] | Unset | None = UNSET,
        pattern: str | Unset | None = UNSET,
    ) -> Decided:
        """Decides. The first decision wins; a later one is `alreadyDecided` and says who was first."""
        result: Decided = await self._call(
            "approval/decide",
            {
                "decision": decision,
                "approvalId": approval_id,
                "requestId": request_id,
                "arguments": arguments,
                "content": content,
                "reason": reason,
                "scope": scope,
                "pattern": pattern,
            },
        )
        return result

    async def rules(self, *, agent_id: str) -> Rules:
        """The approval rules of an agent, lasting decisions among them."""
        result: Rules = await self._call("approval/rules", {"agentId": agent_id})
        return result

    async def revoke(self, *, agent_id: str, rule: str, request_id: str | Unset | None = UNSET) -> Rules:
        """Takes a rule back, also for the rest of an unfinished run. Answers the rules that the agent still has
        itself.
        """
        result: Rules = await self._call(
            "approval/revoke", {"agentId": agent_id, "rule": rule, "requestId": request_id}
        )
        return result


class InboxMethods(Namespace):
    """`inbox/*`."""

    async def push(self, *, agent_id: str, content: Content, request_id: str | Unset | None = UNSET) -> Queued:
        """Leaves a message that the agent reads at its next look into the inbox, also in the middle of a run."""
        result: Queued = await self._call(
            "inbox/push", {"agentId": agent_id, "content": content, "requestId": request_id}
        )
        return result

    async def resolve(
        self, *, agent_id: str, call_id: str, content: Content, request_id: str | Unset | None = UNSET
    ) -> Queued:
        """Delivers a pending call's result. A second result is `alreadyDecided`, an unknown call `callNotFound`."""
        result: Queued = await self._call(
            "inbox/resolve", {"agentId": agent_id, "callId": call_id, "content": content, "requestId": request_id}
        )
        return result

    async def reject(
        self, *, agent_id: str, call_id: str, error: str, request_id: str | Unset | None = UNSET
    ) -> Queued:
        """Delivers a pending call's failure; otherwise as `inbox/resolve`."""
        result: Queued = await self._call(
            "inbox/reject", {"agentId": agent_id, "callId": call_id, "error": error, "requestId": request_id}
        )
        return result

    async def list(self, *, agent_id: str) -> InboxItems:
        """What is unread, in order."""
        result: InboxItems = await self._call("inbox/list", {"agentId": agent_id})
        return result

    async def remove(self, *, agent_id: str, item_id: str, request_id: str | Unset | None = UNSET) -> Removed:
        """Takes an unread item back."""
        result: Removed = await self._call(
            "inbox/remove", {"agentId": agent_id, "itemId": item_id, "requestId": request_id}
        )
        return result


class JobMethods(Namespace):
    """`job/*`."""

    async def list(
        self, *, agent_id: str | Unset | None = UNSET, state: Literal["running", "ended"] | Unset | None = UNSET
    ) -> Jobs:
        """The jobs that run, and those that ended last."""
        result: Jobs = await self._call("job/list", {"agentId": agent_id, "state": state})
        return result

    async def output(self, *, job_id: str, offset: int | Unset = UNSET, limit: int | Unset = UNSET) -> JobOutput:
        """What a job has written to stdout and stderr, also while it runs and after a restart."""
        result: JobOutput = await self._call("job/output", {"jobId": job_id, "offset": offset, "limit": limit})
        return result

    async def stop(self, *, job_id: str, request_id: str | Unset | None = UNSET) -> Job:
        """Ends a job with all its processes and answers it when it has ended. One that has ended stays as it is."""
        result: Job = await self._call("job/stop", {"jobId": job_id, "requestId": request_id})
        return result


class ModelMethods(Namespace):
    """`model/*`."""

    async def list(self) -> Models:
        """The models that an agent's config may name."""
        result: Models = await self._call("model/list", {})
        return result


class RunMethods(Namespace):
    """`run/*`."""

    async def create(
        self,
        *,
        prompt: Content | Message | Fields,
        request_id: str | Unset | None = UNSET,
        history: Sequence[Message | Fields] | Unset = UNSET,
        max_turns: int | Unset = UNSET,
        max_invalid_tool_call_retries: int | Unset = UNSET,
        tool_choice: ToolChoice | Fields | str | Unset | None = UNSET,
        output_schema: dict[str, Any] | Unset | None = UNSET,
    ) -> RunRevision:
        """Makes a run that its client drives: the client calls the model and the tools, the daemon keeps the state."""
        result: RunRevision = await self._call(
            "run/create",
            {
                "prompt": prompt,
                "requestId": request_id,
                "history": history,
                "maxTurns": max_turns,
                "maxInvalidToolCallRetries": max_invalid_tool_call_retries,
                "toolChoice": tool_choice,
                "outputSchema": output_schema,
            },
        )
        return result

    async def step(
        self,
        *,
        run_id: str,
        request_id: str | Unset | None = UNSET,
        revision: int | Unset | None = UNSET,
        model_response: ModelResponse | Fields | Unset | None = UNSET,
        tool_results: Sequence[StepResult | Fields] | Unset | None = UNSET,
        resolution: Resolution | Fields | Unset | None = UNSET,
    ) -> Stepped:
        """Feeds what is given, then says what is owed. With nothing given it says the same again and costs nothing.

        Works on every run that the daemon is not driving right now, an agent's paused or interrupted run included;
        else `agentBusy`. What the run refuses is `protocolViolation` and changes nothing. A run that its agent went
        on without has failed (`cancelled`) and takes nothing more.
        """
        result: Stepped = await self._call(
            "run/step",
            {
                "runId": run_id,
                "requestId": request_id,
                "revision": revision,
                "modelResponse": model_response,
                "toolResults": tool_results,
                "resolution": resolution,
            },
        )
        return result

    async def get(self, *, run_id: str) -> RunInfo:
        """A run as it stands."""
        result: RunInfo = await self._call("run/get", {"runId": run_id})
        return result

    async def list(
        self,
        *,
        agent_id: str | Unset | None = UNSET,
        state: Literal[
            "preparing", "awaiting_model", "resolving_calls", "awaiting_advance", "executing_tools", "done", "failed"
        ]
        | Unset
        | None = UNSET,
        cursor: str | Unset | None = UNSET,
        limit: int | Unset = UNSET,
    ) -> RunList:
        """Runs, newest first."""
        result: RunList = await self._call(
            "run/list", {"agentId": agent_id, "state": state, "cursor": cursor, "limit": limit}
        )
        return result

    async def export(self, *, run_id: str) -> Exported:
        """The whole run as one document that another daemon, or a program of its own, can carry on."""
        result: Exported = await self._call("run/export", {"runId": run_id})
        return result

    async def import_(self, *, run: dict[str, Any], request_id: str | Unset | None = UNSET) -> RunRevision:
        """Takes a saved run in under a new id. Another format or an unknown field is `formatUnsupported`, by name."""
        result: RunRevision = await self._call("run/import", {"run": run, "requestId": request_id})
        return result

    async def append_entry(
        self, *, run_id: str, kind: str, value: Any, request_id: str | Unset | None = UNSET
    ) -> Appended:
        """Keeps a record of the client's own inside the run. It is never sent to the model."""
        result: Appended = await self._call(
            "run/appendEntry", {"runId": run_id, "kind": kind, "value": value, "requestId": request_id}
        )
        return result

    async def entries(self, *, run_id: str, kind: str | Unset | None = UNSET) -> Entries:
        """The records inside a run."""
        result: Entries = await self._call("run/entries", {"runId": run_id, "kind": kind})
        return result

    async def delete(self, *, run_id: str, request_id: str | Unset | None = UNSET) -> None:
        """Deletes a run that nobody drives."""
        await self._call("run/delete", {"runId": run_id, "requestId": request_id})


class ServerMethods(Namespace):
    """`server/*`."""

    async def status(self) -> Status:
        """How the daemon is: version, state, what runs, what it holds."""
        result: Status = await self._call("server/status", {})
        return result

    async def shutdown(
        self, *, request_id: str | Unset | None = UNSET, mode: Literal["drain", "now"] | Unset = UNSET
    ) -> None:
        """Ends the daemon: everything is saved first, other clients are told by `server/state`."""
        await self._call("server/shutdown", {"requestId": request_id, "mode": mode})


class ToolMethods(Namespace):
    """`tool/*`."""

    async def register(
        self,
        *,
        tools: Sequence[ClientTool | Fields],
        request_id: str | Unset | None = UNSET,
        agent_id: str | Unset | None = UNSET,
    ) -> None:
        """Offers tools that this client runs. The same name again under the same `clientId` replaces.

        A name of another client's is `alreadyExists`.
        """
        await self._call("tool/register", {"tools": tools, "requestId": request_id, "agentId": agent_id})

    async def unregister(self, *, names: Sequence[str], request_id: str | Unset | None = UNSET) -> None:
        """Withdraws tools of this client."""
        await self._call("tool/unregister", {"names": names, "requestId": request_id})

    async def list(self, *, agent_id: str | Unset | None = UNSET) -> Tools:
        """Tools, with where each comes from."""
        result: Tools = await self._call("tool/list", {"agentId": agent_id})
        return result


class Api(Caller):
    """Every namespace of the protocol. `MUTATING` names the methods that take a `requestId`."""

    MUTATING: ClassVar[frozenset[str]] = frozenset(
        {
            "agent/compact",
            "agent/create",
            "agent/delete",
            "agent/fork",
            "agent/prompt",
            "agent/replaceMessages",
            "agent/resume",
            "agent/stop",
            "agent/update",
            "approval/decide",
            "approval/revoke",
            "inbox/push",
            "inbox/reject",
            "inbox/remove",
            "inbox/resolve",
            "job/stop",
            "run/appendEntry",
            "run/create",
            "run/delete",
            "run/import",
            "run/step",
            "server/shutdown",
            "tool/register",
            "tool/unregister",
        }
    )

    @cached_property
    def agent(self) -> AgentMethods:
        """`agent/*`."""
        return AgentMethods(self)

    @cached_property
    def approval(self) -> ApprovalMethods:
        """`approval/*`."""
        return ApprovalMethods(self)

    @cached_property
    def inbox(self) -> InboxMethods:
        """`inbox/*`."""
        return InboxMethods(self)

    @cached_property
    def job(self) -> JobMethods:
        """`job/*`."""
        return JobMethods(self)

    @cached_property
    def model(self) -> ModelMethods:
        """`model/*`."""
        return ModelMethods(self)

    @cached_property
    def run(self) -> RunMethods:
        """`run/*`."""
        return RunMethods(self)

    @cached_property
    def server(self) -> ServerMethods:
        """`server/*`."""
        return ServerMethods(self)

    @cached_property
    def tool(self) -> ToolMethods:
        """`tool/*`."""
        return ToolMethods(self)
