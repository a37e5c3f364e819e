"""Starting, carrying on and stopping passes. One at a time per agent; all of them belong to the hub.

A run is on disk before anybody hears that it was accepted. A pass that only waits for a decision has no task and holds
no place: the decision, also one after a restart, brings it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from weakref import WeakValueDictionary

from sojourn.core.agent import Accepted, Caller, Cause, RunOutcome
from sojourn.core.errors import (
    AgentBusy,
    AgentNotFound,
    DamagedRecord,
    NothingToResume,
    SojournError,
    StorageError,
)
from sojourn.core.messages import InputPart
from sojourn.store.base import ReadTx
from sojourn.store.records import AgentRecord, InboxRecord, RunRecord

from . import accepting, children, compaction, handstep, loading, loop, opening, recovery, rounds, stepping, stored
from .ledger import Ledger
from .passes import Moved, Over, Pass, Todo, Wait
from .runtime import Conversation, Repeated, Runtime, former
from .waiting import Waiters

log = logging.getLogger(__name__)

NOBODY = Caller()
STOP_S = 5.0
"""How long a stop waits for a driver; it needs less than one second unless the machine stands still."""
TRIES = 100
"""How often a transition is tried anew because the agent has changed meanwhile; each time somebody else got on."""
Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]


class Control:
    """All passes of the daemon."""

    def __init__(self, rt: Runtime, spawn: Spawn) -> None:
        self._rt = rt
        self._spawn = spawn
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._drivers: dict[str, asyncio.Task[None]] = {}
        self._openings: set[asyncio.Task[Accepted]] = set()
        self.recovering = False
        """Whether recovery is at work: what its commits wake waits until it is done."""
        self._woken: set[str] = set()
        self.waiters = Waiters(rt)
        self._places = asyncio.Semaphore(rt.limits.max_active_runs)

    # -- what others ask for --------------------------------------------------------------------------------------

    def prompt(
        self,
        caller: Caller,
        agent_id: str,
        content: tuple[InputPart, ...],
        *,
        queue: bool = False,
        on_approval: str | None = None,
        wishes: opening.Wishes = opening.NO_WISHES,
    ) -> asyncio.Task[Accepted]:
        """Accepts a prompt: starts a pass, or (with `queue`) puts it into the inbox of a busy agent.

        It goes on when its client leaves. Raises `AgentBusy`. A repeated request gets its first answer.
        """
        change = accepting.prompt(
            self._rt, caller, agent_id, content, queue=queue and not wishes, on_approval=on_approval
        )
        return self._open(agent_id, change, caller=caller, name="accept", wishes=wishes)

    def resume(
        self,
        caller: Caller,
        agent_id: str,
        *,
        cause: Cause = "resume",
        wishes: opening.Wishes = opening.NO_WISHES,
    ) -> asyncio.Task[Accepted]:
        """Carries the agent on. Raises `NothingToResume`, `AgentBusy`; wishes are for a run that begins."""
        change = accepting.resume(self._rt, caller, agent_id, cause=cause, wishes=wishes)
        return self._open(agent_id, change, caller=caller, name="accept", wishes=wishes)

    async def resume_document(self, caller: Caller, agent_id: str, document: dict[str, Any]) -> Accepted:
        """Carries a saved run on, as the first run of a new agent."""

        def change(ledger: Ledger) -> Accepted:
            p = stepping.adopt_document(self._rt, ledger, agent_id, document)
            lost = p.run.fail_dispatched()
            opening.carry_on(self._rt, ledger, p, cause="resume", origin=caller.origin, forced=True, lost=lost)
            made.append(p)
            return Accepted(agent_id=p.agent_id, run_id=p.run_id)

        made: list[Pass] = []
        answer = await self._rt.answer_once(caller, "accept", change)
        for p in made[-1:]:
            self.drive(p)
        return answer if isinstance(answer, Accepted) else Accepted.model_validate(answer)

    async def prompt_child(
        self,
        child_id: str,
        content: tuple[InputPart, ...],
        nest: tuple[str, str] | None,
        *,
        check: Callable[[Ledger], None],
    ) -> str | None:
        """Starts a child's pass inside its parent's call; the id of its run."""
        change = accepting.child_prompt(child_id, content, nest, check)
        return (await asyncio.shield(self._open(child_id, change, caller=Caller(), name="accept"))).run_id

    async def resume_child(
        self, child_id: str, nest: tuple[str, str] | None, *, check: Callable[[Ledger], None]
    ) -> None:
        """Carries an interrupted or paused child on, inside its parent's call."""
        change = accepting.child_resume(self._rt, child_id, nest, check)
        with contextlib.suppress(AgentBusy, NothingToResume):
            await asyncio.shield(self._open(child_id, change, caller=Caller(), name="accept"))

    async def step(
        self, caller: Caller, record: RunRecord, *, revision: int | None, feed: dict[str, Any] | None
    ) -> Any:
        """`run/step` on an agent's run. Raises `AgentBusy` while the daemon drives it."""
        agent_id = record.agent_id or ""
        async with self._lock(agent_id):
            for _ in range(TRIES):
                agent = await self._rt.agent(agent_id)
                if agent.active_run_id != record.run_id:
                    return await stepping.step_alone(self._rt, caller, record, revision=revision, feed=feed)
                conversation = await self._rt.conversations.load(self._rt.store, agent)
                try:
                    p = await loading.unfinished(self._rt, agent, conversation)
                    return await handstep.step(self._rt, caller, loading.needed(p), revision=revision, feed=feed)
                except Moved:
                    self._rt.conversations.forget(conversation.id)
                except DamagedRecord:
                    # Its driver, which does not hold the lock, may have gone on between the reading of the two halves.
                    self._rt.conversations.forget(conversation.id)
                    if agent_id not in self._rt.live and not await self._has_moved(agent):
                        raise
                except BaseException:
                    self._rt.conversations.forget(conversation.id)
                    raise
            raise _restless(agent_id)

    async def _has_moved(self, agent: AgentRecord) -> bool:
        return loading.standing(await self._rt.agent(agent.agent_id)) != loading.standing(agent)

    def wake(self, agent_id: str) -> None:
        """A decision was made, or a child has ended: its driver looks at the round, or the pass is revived."""
        live = self._rt.live.get(agent_id)
        if live is not None:
            live.nudged = True
            live.wake.set()
        elif self.recovering:
            self._woken.add(agent_id)
        else:
            self._spawn(self._revive(agent_id), f"revive {agent_id}")

    def recovered(self) -> None:
        """Recovery is done: what it woke is looked at now."""
        self.recovering = False
        woken, self._woken = self._woken, set()
        for agent_id in woken:
            self.wake(agent_id)

    async def stop(self, agent_id: str, caller: Caller = NOBODY) -> dict[str, Any]:
        """Stops the agent's run and its descendants' (innermost first); answers when they have stopped.

        A request that is repeated stops what it was first made for, and no run that has begun since. Raises
        `StorageError` when that cannot be written; what is at work is ended all the same: it may be what fills the
        disk.
        """

        def ask(ledger: Ledger) -> dict[str, Any]:
            runs = children.ask_to_stop(ledger, agent_id)
            answer: dict[str, Any] = {"stopped": bool(runs)}
            return {**answer, "runId": runs[agent_id]} if agent_id in runs else answer

        try:
            asked = await self._rt.once(caller, "stop", ask)
        except StorageError:
            family = await self._rt.store.read(lambda tx: children.descendants(tx, agent_id))
            await self._halt((*family, agent_id))
            raise
        first: dict[str, Any] = former(asked.record) if isinstance(asked, Repeated) else asked
        if isinstance(asked, Repeated):
            agent = await self._rt.agent(agent_id)
            if agent.active_run_id is None or first.get("runId") != agent.active_run_id:
                return first
        family = await self._rt.store.read(lambda tx: children.descendants(tx, agent_id))
        below = [one for one in family if await self._stop_one(one)]
        stopped = await self._stop_one(agent_id)
        stopped = await compaction.stop(self._rt, agent_id) or stopped
        await self._rt.jobs.agents_stopped((agent_id, *family))
        return {**first, "stopped": stopped or bool(below)}

    async def _halt(self, agent_ids: Sequence[str]) -> None:
        """Ends what passes have at work; their runs stay as they are on disk."""
        passes = [live for one in agent_ids if (live := self._rt.live.get(one)) is not None]
        for live in passes:
            live.ask_to_stop()
        if tasks := {live.task for live in passes if live.task is not None}:
            await asyncio.wait(tasks, timeout=STOP_S)

    def ended(self, agent_id: str, run_id: str, outcome: RunOutcome | None = None) -> None:
        """A pass has ended: nobody drives the agent from here on, whoever waits for it hears what it came to."""
        live = self._rt.live.get(agent_id)
        if live is not None and live.run_id == run_id:
            del self._rt.live[agent_id]
            live.over = True
            live.wake.set()
        self.waiters.ended(agent_id, outcome)

    def arrived(self, agent_id: str) -> None:
        """Something reached the inbox of an agent: it may start a pass (D10)."""
        if agent_id not in self._rt.live:
            self._spawn(self.continue_inbox(agent_id), f"inbox {agent_id}")

    async def continue_inbox(self, agent_id: str) -> None:
        """Starts a pass for what is in the inbox, where the config or a queued prompt asks for it."""

        def wanted(tx: ReadTx) -> Cause | None:
            agent = tx.get(AgentRecord, agent_id)
            if agent is None or agent.deleted or not agent.inbox or agent.state in ("running", "waiting"):
                return None
            unread = tx.find(InboxRecord, agent_id=agent_id, state="unread")
            if any(item.is_prompt for item in unread):
                return "prompt"
            config = self._rt.config_of(stored.config(agent))
            return "inbox" if config.on_inbox_idle == "resume" else None

        try:
            cause = await self._rt.store.read(wanted)
            if cause is not None:
                await asyncio.shield(self.resume(Caller(), agent_id, cause=cause))
        except (NothingToResume, AgentBusy, AgentNotFound):
            return
        except DamagedRecord as error:
            log.error("What reached the inbox of %s waits. %s", agent_id, error)

    # -- how it is done -----------------------------------------------------------------------------------------

    def _lock(self, agent_id: str) -> asyncio.Lock:
        """The agent's lock; it lives as long as somebody holds it or waits for it."""
        lock = self._locks.get(agent_id)
        if lock is None:
            lock = self._locks[agent_id] = asyncio.Lock()
        return lock

    def _open(
        self,
        agent_id: str,
        change: accepting.Opening,
        *,
        caller: Caller,
        name: str,
        wishes: opening.Wishes = opening.NO_WISHES,
    ) -> asyncio.Task[Accepted]:
        """Runs an opening transition on a freshly read agent, and drives what it opened.

        The task is not its asker's: whoever leaves meanwhile, what was committed is driven. Await it shielded.
        """
        opening_task = asyncio.create_task(self._open_now(agent_id, change, wishes, caller=caller, name=name))
        self._openings.add(opening_task)
        opening_task.add_done_callback(self._opened)
        return opening_task

    def _opened(self, task: asyncio.Task[Accepted]) -> None:
        self._openings.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked has it, or has left

    async def settle(self) -> None:
        """Waits for the openings under way; what they opened is being driven then."""
        if self._openings:
            await asyncio.wait(set(self._openings), timeout=1.0)

    async def _open_now(
        self, agent_id: str, change: accepting.Opening, wishes: opening.Wishes, *, caller: Caller, name: str
    ) -> Accepted:
        async with self._lock(agent_id):
            await self._driver_gone(agent_id)
            for _ in range(TRIES):
                try:
                    return await self._try_to_open(agent_id, change, wishes, caller=caller, name=name)
                except Moved:
                    self._rt.agents.forget(agent_id)
            raise _restless(agent_id)

    async def _try_to_open(
        self, agent_id: str, change: accepting.Opening, wishes: opening.Wishes, *, caller: Caller, name: str
    ) -> Accepted:
        agent = self._rt.agents.get(agent_id) or await self._rt.agent(agent_id)
        conversation = Conversation(agent.conversation)
        old = fresh = None
        if not loading.is_busy(agent):
            conversation = await self._rt.conversations.load(self._rt.store, agent)
            old = await loading.unfinished(self._rt, agent, conversation)
            fresh = loading.fresh(self._rt, agent, conversation)
            wishes.tell(fresh)
        seen = loading.standing(agent)

        def judged(ledger: Ledger) -> Accepted:
            if loading.standing(ledger.agent(agent_id)) != seen:
                raise Moved
            if old is not None:
                old.check_current(ledger)
            return change(ledger, fresh, conversation, old)

        try:
            accepted = await self._rt.once(caller, name, judged, agent_id=agent_id)
        except BaseException:
            self._rt.conversations.forget(conversation.id)
            raise
        if isinstance(accepted, Repeated):
            row = accepted.record
            return Accepted(agent_id=row.agent_id, run_id=row.run_id, item_id=row.item_id)
        for p in (old, fresh):
            if p is not None and p.run_id == accepted.run_id:
                self.drive(p)
        return accepted

    def drive(self, p: Pass) -> None:
        """Drives a pass that a transition has opened or brought back."""
        if p.todo is None or isinstance(p.todo, Over):
            return
        self._rt.live[p.agent_id] = p
        self._rt.conversations.keep(p.conversation)
        p.task = self._drivers[p.agent_id] = self._spawn(self._run(p), f"run {p.run_id}")

    async def _driver_gone(self, agent_id: str) -> None:
        """Waits until the driver of a pass that has ended is gone: an agent never has two."""
        driver = self._drivers.get(agent_id)
        if driver is not None and not driver.done() and agent_id not in self._rt.live:
            await asyncio.wait({driver}, timeout=STOP_S)

    async def _run(self, p: Pass) -> None:
        try:
            self._rt.feed.nest(p.agent_id, p.nest)
            # A child takes no place of its own: its parent holds one while it waits for the child.
            async with contextlib.nullcontext() if p.nest else self._places:
                await loop.drive(self._rt, p)
        except Exception as error:  # noqa: BLE001 - a fault of our own ends its run; nobody else would
            await self._give_up(p, error)
        finally:
            if self._rt.live.get(p.agent_id) is p:
                del self._rt.live[p.agent_id]
            if isinstance(p.todo, Over) and p.agent_id not in self._rt.live:
                self._rt.feed.nest(p.agent_id, ())
            if self._drivers.get(p.agent_id) is asyncio.current_task():
                del self._drivers[p.agent_id]
            if isinstance(p.broken, StorageError):
                self.waiters.broke(p, p.broken)
        if isinstance(p.todo, Wait) and p.nudged:
            await self._revive(p.agent_id)

    async def _give_up(self, p: Pass, error: Exception) -> None:
        if isinstance(error, DamagedRecord):
            self._rt.drop(p.agent_id)
            await recovery.leave_damaged(self._rt, p.run_id, error)
            p.todo = Over("interrupted")
            return
        log.critical("The run %s of %s fails by a fault of the daemon's own.", p.run_id, p.agent_id, exc_info=error)
        self._rt.drop(p.agent_id)
        with contextlib.suppress(StorageError):  # logged; then it stays as it is on disk, like after a crash
            await self._rt.write("end", lambda ledger: recovery.give_up(ledger, p.run_id, error))
            p.todo = Over("failed")

    async def _revive(self, agent_id: str) -> None:
        """Brings a waiting pass back from disk and looks at its round."""
        with contextlib.suppress(AgentNotFound):
            async with self._lock(agent_id):
                if agent_id in self._rt.live:
                    self.wake(agent_id)
                    return
                await self._driver_gone(agent_id)
                try:
                    p = await self._change_waiting(agent_id, "advance", lambda ledger, p: _look(ledger, self._rt, p))
                except DamagedRecord as error:
                    await self._leave(agent_id, error)
                    return
                except SojournError:
                    log.exception("The run of %s could not be carried on.", agent_id)
                    return
                if p is not None:
                    self.drive(p)

    async def _leave(self, agent_id: str, error: DamagedRecord) -> bool:
        """Ends the open pass of an agent that a damaged record keeps from going on; whether there was one."""
        with contextlib.suppress(DamagedRecord):
            run_id = (await self._rt.agent(agent_id)).active_run_id
            if run_id is not None:
                return await recovery.leave_damaged(self._rt, run_id, error)
        return False

    async def _change_waiting(
        self, agent_id: str, name: str, change: Callable[[Ledger, Pass], Todo], *, by: Sequence[str] = ("agent",)
    ) -> Pass | None:
        """Runs a transition on a pass that waits on disk, read again when it moved; None when there is none.

        `by`: whose passes are meant, the loop's or those that a client steps.
        """
        for _ in range(TRIES):
            p = await self._load_waiting(agent_id, by)
            if p is None:
                return None
            try:
                p.todo = await self._rt.write(name, lambda ledger, p=p: _checked(ledger, p, change))  # type: ignore[misc]
            except Moved:
                self._rt.conversations.forget(p.conversation.id)
            except BaseException:
                self._rt.conversations.forget(p.conversation.id)
                raise
            else:
                return p
        raise _restless(agent_id)

    async def _load_waiting(self, agent_id: str, by: Sequence[str]) -> Pass | None:
        agent = await self._rt.agent(agent_id)
        if agent.active_run_id is None:
            return None
        run_id = agent.active_run_id
        record = await self._rt.store.read(lambda tx: tx.get(RunRecord, run_id))
        if record is None or not record.pass_open or record.driver not in by:
            return None
        conversation = await self._rt.conversations.load(self._rt.store, agent)
        return await loading.unfinished(self._rt, agent, conversation)

    async def _stop_one(self, agent_id: str) -> bool:
        async with self._lock(agent_id):
            live = self._rt.live.get(agent_id)
            if live is not None:
                live.ask_to_stop()
                assert live.task is not None
                await asyncio.wait({live.task}, timeout=STOP_S)
                if isinstance(live.todo, Over):
                    return True
            try:
                return await self._change_waiting(agent_id, "end", _stop_resting, by=("agent", "step")) is not None
            except DamagedRecord as error:
                if await self._leave(agent_id, error):
                    return True
                raise


def _restless(agent_id: str) -> AgentBusy:
    return AgentBusy(f"The agent {agent_id!r} has changed {TRIES} times while it was looked at. Try again.")


def _checked(ledger: Ledger, p: Pass, change: Callable[[Ledger, Pass], Todo]) -> Todo:
    p.check_current(ledger)
    return change(ledger, p)


def _stop_resting(ledger: Ledger, p: Pass) -> Todo:
    record = p.records(ledger)[1]
    by_hand = record.pass_open and record.driver == "step"
    return handstep.stop(ledger, p) if by_hand else loop.stop(ledger, p)


def _look(ledger: Ledger, rt: Runtime, p: Pass) -> Todo:
    record = p.records(ledger)[1]
    if not record.pass_open or record.driver != "agent" or p.run.state != "executing_tools":
        return Over("done")
    if record.stop_requested:
        return loop.stop(ledger, p)
    p.sync_entries(ledger)
    return rounds.advance(ledger, rt, p)
