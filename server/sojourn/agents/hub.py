"""The hub: agents by id, and the one owner of every task that works for them.

Methods end in one call of it; each of those is one line here and a function of the module that knows the matter. What
commits publish arrives at `Reactions`, which tells the feed, wakes who must look, and starts what must start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from sojourn.core.agent import Accepted, AgentConfig, Caller, RunOutcome
from sojourn.core.errors import Draining, InvalidParams, SojournError
from sojourn.core.messages import InputPart, Message, ToolChoice
from sojourn.models.base import Model
from sojourn.models.made import Models
from sojourn.store.base import Store
from sojourn.store.records import ClientToolRecord
from sojourn.tools.hooks import Hook
from sojourn.tools.mcp import McpServers
from sojourn.tools.processes import Surroundings
from sojourn.tools.table import Toolbox

from . import asking, compaction, decisions, handstep, inbox, opening, policy, recovery, roster, stepping
from .answering import Answers
from .control import Control
from .ending import agent_view
from .feed import Feed
from .hooks import Chain
from .jobs import Jobs
from .reactions import Reactions
from .replay import events_page
from .runtime import HubLimits, Runtime
from .subscription import Subscriber
from .tidying import tidy
from .toolset import Handle, Toolset

log = logging.getLogger(__name__)

T = TypeVar("T")


class Hub:
    """All agents of one store."""

    def __init__(
        self,
        store: Store,
        *,
        models: Mapping[str, Callable[[], Model]],
        default_model: str,
        toolbox: Toolbox,
        servers: McpServers | None = None,
        limits: HubLimits | None = None,
        presets: Mapping[str, AgentConfig] | None = None,
        jobs_dir: Path | None = None,
        around: Surroundings | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self._store = store
        self._models = Models(models, default_model)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._steppers: dict[int, set[str]] = {}
        self.state: Literal["ready", "draining", "degraded"] = "ready"
        self.on_state: Callable[[str, str | None], None] = lambda _state, _reason: None
        self.on_shutdown: Callable[[str], None] = lambda _mode: None
        self.feed = Feed(store, self.spawn)
        self._toolset = Toolset(toolbox, servers, wait_s=(limits or HubLimits()).client_tool_wait_s)
        self._toolset.spawn = self.spawn
        self.buffers = self._toolset.buffers
        self.rt = Runtime(
            store=store,
            feed=self.feed,
            toolset=self._toolset,
            limits=limits or HubLimits(),
            presets=presets or {},
            model_of=self._models.get,
            model_names=self._models.names,
            default_model=default_model,
            hooks=Chain(hooks, wait_s=(limits or HubLimits()).hook_wait_s),
        )
        self.rt.passes_of = self._control = Control(self.rt, self.spawn)
        self.rt.jobs = Jobs(self.rt, self.spawn, jobs_dir, around or Surroundings())
        self._questions = asking.Questions(self.rt, self.spawn)
        self._reactions = Reactions(
            self.rt, self._control, self._questions, self.spawn, takes_work=lambda: self.state != "draining"
        )
        self._answers = Answers(self._control, self.feed, self.spawn, self._reactions.stop_quietly)

    # -- life -----------------------------------------------------------------------------------------------------

    @property
    def store_id(self) -> str:
        """The store's own id, made when it was."""
        return self._store.store_id

    async def __aenter__(self) -> Self:
        """Recovers before any client is served."""
        self._store.on_commit(self._reactions.committed)
        self._store.on_degraded(self._degraded)
        self._toolset.load(await self._store.read(lambda tx: tx.find(ClientToolRecord, damaged={})))
        await self._reactions.recover()
        await tidy(self.rt, self.spawn)
        self._toolset.servers.resume(lambda agent_id, tool: Handle(self.rt, agent_id, f"tool.{tool}"))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Stops the tools; what they did not finish is recorded as interrupted, background jobs go on."""
        self.state = "draining"
        self._reactions.closing = True
        await self._control.settle()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.5)
        ending = asyncio.create_task(self._toolset.servers.aclose())
        self.rt.live.clear()
        with contextlib.suppress(SojournError):
            await self._store.write(lambda _tx: None)  # behind what the cancelled tasks had given to the store
            self._control.recovering = True
            await self.rt.jobs.settle_calls()
            await recovery.recover(self.rt, in_order=True)
        await self._models.aclose()
        await self._toolset.toolbox.aclose()
        await ending

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task that the hub owns: its failure is logged, its end is waited for."""
        task = self._own(work, name)
        task.add_done_callback(_log_failure)
        return task

    def _own(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- its state --------------------------------------------------------------------------------------------------

    def _degraded(self, reason: str | None) -> None:
        if self.state != "draining":
            self.state = "degraded" if reason else "ready"
        self.on_state(self.state, reason)
        if reason is None:
            self.spawn(self._reactions.recover(), "recover")

    def _refuse_draining(self) -> None:
        if self.state == "draining":
            raise Draining("The daemon is about to end and takes no new work; connect again in a moment.")

    # -- clients ----------------------------------------------------------------------------------------------------

    def client_ready(self, session: Subscriber) -> None:
        """A client has initialized."""
        self._toolset.arrived(session)

    def client_gone(self, session: Subscriber) -> None:
        """A connection has ended. It stops nothing but the runs that it steps by hand."""
        self.feed.gone(session)
        self._toolset.gone(session)
        self.buffers.gone(session)
        self._questions.gone(session)
        for agent_id in self._steppers.pop(id(session), ()):
            self.spawn(self._release(agent_id), f"release {agent_id}")

    async def _release(self, agent_id: str) -> None:
        with contextlib.suppress(SojournError):
            await self.rt.write("end", lambda ledger: handstep.release(ledger, agent_id) and None)

    # -- agents -----------------------------------------------------------------------------------------------------

    async def create_agent(self, caller: Caller, *, agent_id: str | None, config: AgentConfig | None) -> Any:
        """`agent/create`."""
        self._refuse_draining()
        return await roster.create(self.rt, caller, agent_id=agent_id, config=config)

    async def list_agents(
        self,
        *,
        cursor: str | None,
        limit: int,
        state: str | None,
        parent_agent_id: str | None,
        labels: dict[str, str] | None,
    ) -> dict[str, Any]:
        """`agent/list`."""
        return await roster.listed(
            self.rt, cursor=cursor, limit=limit, state=state, parent_agent_id=parent_agent_id, labels=labels
        )

    async def get_agent(self, agent_id: str) -> dict[str, Any]:
        """`agent/get`."""
        return agent_view(await self.rt.agent(agent_id))

    async def update_agent(self, caller: Caller, agent_id: str, changes: dict[str, Any]) -> Any:
        """`agent/update`."""
        return await roster.update(self.rt, caller, agent_id, changes)

    async def fork_agent(self, caller: Caller, agent_id: str, *, after_message: str | None) -> Any:
        """`agent/fork`."""
        return await roster.fork(self.rt, caller, agent_id, after_message=after_message)

    async def delete_agent(self, caller: Caller, agent_id: str, *, force: bool) -> None:
        """`agent/delete`."""
        await roster.delete(self.rt, caller, agent_id, force=force)

    async def messages(
        self, agent_id: str, *, cursor: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> dict[str, Any]:
        """`agent/messages`."""
        return await roster.messages(self.rt, agent_id, cursor=cursor, limit=limit, order=order)

    async def replace_messages(self, caller: Caller, agent_id: str, messages: Sequence[Message]) -> Any:
        """`agent/replaceMessages`."""
        return await roster.replace_messages(self.rt, caller, agent_id, messages)

    async def pending_calls(self, agent_id: str) -> dict[str, Any]:
        """`agent/pendingCalls`."""
        return await roster.pending(self.rt, agent_id)

    # -- passes -----------------------------------------------------------------------------------------------------

    async def prompt(
        self,
        caller: Caller,
        agent_id: str,
        content: tuple[InputPart, ...],
        *,
        if_busy: str,
        on_approval: str | None,
        wait: bool,
        session: Subscriber,
        tool_choice: ToolChoice | None = None,
        output_schema: Mapping[str, Any] | None = None,
    ) -> RunOutcome | Accepted:
        """`agent/prompt`: accepted durably; with `wait` the outcome of the pass."""
        self._refuse_draining()
        wishes = opening.Wishes(tool_choice, output_schema)
        asked = self._control.prompt(
            caller, agent_id, content, queue=if_busy == "queue", on_approval=on_approval, wishes=wishes
        )
        accepted = await self._answers.accepted(asked, session)
        return await self._answers.outcome(accepted, agent_id, wait=wait, session=session)

    async def resume(
        self,
        caller: Caller,
        agent_id: str,
        *,
        run: dict[str, Any] | None,
        wait: bool,
        session: Subscriber,
        tool_choice: ToolChoice | None = None,
        output_schema: Mapping[str, Any] | None = None,
    ) -> RunOutcome | Accepted:
        """`agent/resume`, also of a saved run, which becomes a new agent."""
        self._refuse_draining()
        wishes = opening.Wishes(tool_choice, output_schema)
        if run is not None:
            if wishes:
                raise InvalidParams("A saved run goes on under what it began with.", field="outputSchema")
            asked = asyncio.create_task(self._control.resume_document(caller, agent_id, run))
        else:
            if await handstep.is_stepped(self.rt, agent_id):
                await self.rt.write("end", lambda ledger: handstep.release(ledger, agent_id) and None)
            asked = self._control.resume(caller, agent_id, wishes=wishes)
        accepted = await self._answers.accepted(asked, session)
        return await self._answers.outcome(accepted, accepted.agent_id or agent_id, wait=wait, session=session)

    async def compact(self, caller: Caller, agent_id: str) -> Any:
        """`agent/compact`."""
        self._refuse_draining()
        return await compaction.compact(self.rt, caller, agent_id)

    async def stop(self, caller: Caller, agent_id: str) -> dict[str, Any]:
        """`agent/stop`: answers when it has stopped. It is done also when who asked leaves: half a stop is none."""
        await self.rt.agent(agent_id)
        return await asyncio.shield(self._own(self._control.stop(agent_id, caller), f"stop {agent_id}"))

    async def wait(self, agent_id: str, run_id: str | None) -> RunOutcome:
        """`agent/wait`."""
        return await self._control.waiters.until_over(agent_id, run_id, hasty=True)

    # -- inbox, jobs and approvals ------------------------------------------------------------------------------------

    async def inbox_push(self, caller: Caller, agent_id: str, content: tuple[InputPart, ...]) -> Any:
        """`inbox/push`."""
        return await inbox.push(self.rt, caller, agent_id, content)

    async def inbox_resolve(self, caller: Caller, agent_id: str, call_id: str, content: tuple[InputPart, ...]) -> Any:
        """`inbox/resolve`."""
        return await inbox.answer(self.rt, caller, agent_id, call_id, content=content)

    async def inbox_reject(self, caller: Caller, agent_id: str, call_id: str, error: str) -> Any:
        """`inbox/reject`."""
        return await inbox.answer(self.rt, caller, agent_id, call_id, error=error)

    async def inbox_list(self, agent_id: str) -> dict[str, Any]:
        """`inbox/list`."""
        return await inbox.unread(self.rt, agent_id)

    async def inbox_remove(self, caller: Caller, agent_id: str, item_id: str) -> Any:
        """`inbox/remove`."""
        return await inbox.remove(self.rt, caller, agent_id, item_id)

    async def job_list(self, agent_id: str | None, state: str | None) -> dict[str, Any]:
        """`job/list`."""
        return await self.rt.jobs.listed(agent_id, state)

    async def job_output(self, job_id: str, *, offset: int, limit: int) -> dict[str, Any]:
        """`job/output`."""
        return await self.rt.jobs.output(job_id, offset, limit)

    async def job_stop(self, caller: Caller, job_id: str) -> dict[str, Any]:
        """`job/stop`."""
        return await self.rt.jobs.stop(caller, job_id)

    async def approvals(self, agent_id: str | None) -> dict[str, Any]:
        """`approval/list`."""
        return await decisions.listed(self.rt, agent_id)

    async def decide(
        self,
        caller: Caller,
        approval_id: str,
        decision: str,
        *,
        arguments: dict[str, Any] | None,
        content: tuple[InputPart, ...] | None,
        reason: str | None,
        scope: str | None,
        pattern: str | None = None,
    ) -> Any:
        """`approval/decide`."""
        return await decisions.decide(
            self.rt,
            caller,
            approval_id,
            decision,
            arguments=arguments,
            content=content,
            reason=reason,
            scope=scope,
            pattern=pattern,
        )

    async def approval_rules(self, agent_id: str) -> dict[str, Any]:
        """`approval/rules`."""
        return await policy.listed(self.rt, agent_id)

    async def approval_revoke(self, caller: Caller, agent_id: str, rule: str) -> Any:
        """`approval/revoke`."""
        return await policy.revoke(self.rt, caller, agent_id, rule)

    # -- runs -------------------------------------------------------------------------------------------------------

    async def run_create(
        self,
        caller: Caller,
        *,
        prompt: Message,
        history: list[Message],
        max_turns: int,
        max_invalid_tool_call_retries: int,
        tool_choice: ToolChoice | None,
        output_schema: dict[str, Any] | None,
    ) -> Any:
        """`run/create`."""
        return await stepping.create(
            self.rt,
            caller,
            prompt=prompt,
            history=history,
            max_turns=max_turns,
            max_invalid_tool_call_retries=max_invalid_tool_call_retries,
            tool_choice=tool_choice,
            output_schema=output_schema,
        )

    async def run_step(
        self, caller: Caller, session: Subscriber, run_id: str, *, revision: int | None, feed: dict[str, Any] | None
    ) -> Any:
        """`run/step`."""
        record = await self._store.read(lambda tx: stepping.record_of(tx, run_id))
        if record.agent_id is None:
            return await stepping.step_alone(self.rt, caller, record, revision=revision, feed=feed)
        self._steppers.setdefault(id(session), set()).add(record.agent_id)
        return await self._control.step(caller, record, revision=revision, feed=feed)

    async def run_get(self, run_id: str) -> dict[str, Any]:
        """`run/get`."""
        return await stepping.get(self.rt, run_id)

    async def run_list(
        self, *, agent_id: str | None, state: str | None, cursor: str | None, limit: int
    ) -> dict[str, Any]:
        """`run/list`."""
        return await stepping.listed(self.rt, agent_id=agent_id, state=state, cursor=cursor, limit=limit)

    async def run_export(self, run_id: str) -> dict[str, Any]:
        """`run/export`."""
        return await stepping.export(self.rt, run_id)

    async def run_import(self, caller: Caller, run: dict[str, Any]) -> Any:
        """`run/import`."""
        return await stepping.import_run(self.rt, caller, run)

    async def run_append_entry(self, caller: Caller, run_id: str, kind: str, value: Any) -> Any:
        """`run/appendEntry`."""
        return await stepping.append_entry(self.rt, caller, run_id, kind, value)

    async def run_entries(self, run_id: str, kind: str | None) -> dict[str, Any]:
        """`run/entries`."""
        return await stepping.entries(self.rt, run_id, kind)

    async def run_delete(self, caller: Caller, run_id: str) -> None:
        """`run/delete`."""
        await stepping.delete(self.rt, caller, run_id)

    # -- tools and models -------------------------------------------------------------------------------------------

    async def register_tools(
        self, caller: Caller, session: Subscriber, tools: list[dict[str, Any]], agent_id: str | None
    ) -> None:
        """`tool/register`."""
        await self._toolset.register(self.rt, caller, tools, agent_id)
        if session.client_id is not None:
            await self._toolset.send_waiting(self.rt, session.client_id)

    async def unregister_tools(self, caller: Caller, names: list[str]) -> None:
        """`tool/unregister`."""
        await self._toolset.unregister(self.rt, caller, names)

    async def list_tools(self, agent_id: str | None) -> dict[str, Any]:
        """`tool/list`."""
        return {"tools": await self._toolset.listed(self.rt, agent_id)}

    async def models(self) -> dict[str, Any]:
        """`model/list`."""
        return {"models": self._models.listed()}

    # -- watching ---------------------------------------------------------------------------------------------------

    async def attach(self, session: Subscriber, agent_id: str, *, after_seq: int | None, deltas: bool) -> Any:
        """`agent/attach`."""
        answer = await self.feed.attach(session, agent_id, after_seq=after_seq, deltas=deltas)
        self._questions.attached(session, agent_id)
        return answer

    async def detach(self, session: Subscriber, agent_id: str) -> None:
        """`agent/detach`."""
        self.feed.detach(session, agent_id)

    async def events(self, agent_id: str, *, after_seq: int, limit: int) -> dict[str, Any]:
        """`agent/events`."""
        await self.rt.agent(agent_id)
        return await self._store.read(lambda tx: events_page(tx, agent_id, after_seq, limit))

    async def watch(self, session: Subscriber) -> None:
        """`agent/watch`."""
        self.feed.watch(session)

    async def unwatch(self, session: Subscriber) -> None:
        """`agent/unwatch`."""
        self.feed.unwatch(session)

    # -- the daemon -------------------------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """What `server/status` tells of the hub."""
        agents, runs = await self._store.read(roster.counts)
        stats = self._store.stats()
        return {
            "state": self.state,
            "agents": agents,
            "activeRuns": runs,
            "store": {"path": stats.path, "bytes": stats.bytes},
        }

    async def shutdown(self, mode: Literal["drain", "now"]) -> None:
        """`server/shutdown`: takes no new work; with `drain` it waits until no run is at work."""
        self.state = "draining"
        self.on_state("draining", None)
        self.spawn(self._shut_down(mode), "shutdown")

    async def _shut_down(self, mode: str) -> None:
        while mode == "drain" and (tasks := [p.task for p in self.rt.live.values() if p.task is not None]):
            await asyncio.wait(tasks)
        self.on_shutdown(mode)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("The task %r failed.", task.get_name(), exc_info=error)
