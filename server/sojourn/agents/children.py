"""Child agents: a child is an agent of its own whose run answers to its parent's call.

A foreground child's events are shown inside the call (`nested`), its id follows from the call, so that a call that is
run again after a restart enters the same child. Stopping a parent stops its children first, also those that are about
to start: both look at the same row in one transaction each.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, NamedTuple

from sojourn.core.agent import AgentConfig, Limits, RunOutcome
from sojourn.core.errors import Aborted, InvalidParams, LimitReached, SojournError
from sojourn.core.messages import TextPart, parts, text_of
from sojourn.store.base import ReadTx
from sojourn.store.records import AgentRecord, CallRecord, RunRecord
from sojourn.tools.base import ChildReply

from . import clock, ending
from .ledger import Ledger

if TYPE_CHECKING:
    from .passes import Pass
    from .runtime import Runtime


_LEAST = 1e-6
"""What is left when nothing is: a limit is more than 0."""
_INHERITED = ("cwd", "on_approval", "on_approval_unattended", "approvals")


class Family:
    """The children of one call."""

    def __init__(self, rt: Runtime, p: Pass, call: CallRecord) -> None:
        self._rt = rt
        self._p = p
        self._call = call
        self._made = 0
        self._used: dict[str, int] = {}
        """How often this call has prompted each child, in this life."""

    def _next_id(self) -> str:
        self._made += 1
        key = f"{self._p.agent_id}/{self._call.call_id}/{self._made}"
        return f"child-{hashlib.sha256(key.encode()).hexdigest()[:20]}"

    async def run_child(self, config: AgentConfig | str, prompt: str) -> ChildReply:
        """Runs a child inside this call and answers its reply. Raises `Aborted` when stopped.

        A child that the call gives up waiting for is stopped; when the daemon ends, it waits to be carried on.
        """
        child_id = config if isinstance(config, str) else self._next_id()
        try:
            run_id = await self._started(child_id, config, prompt, foreground=True)
            return _reply(child_id, await self._rt.passes_of.waiters.until_over(child_id, run_id))
        except asyncio.CancelledError:
            if not self._p.leaving:
                with contextlib.suppress(SojournError):
                    await self._rt.passes_of.stop(child_id)
            raise

    async def start_child(self, config: AgentConfig | str, prompt: str) -> str:
        """Starts a child in the background; its reply becomes the result of this call through the inbox."""
        child_id = config if isinstance(config, str) else self._next_id()
        await self._started(child_id, config, prompt, foreground=False)
        return child_id

    async def _started(self, child_id: str, config: AgentConfig | str, prompt: str, *, foreground: bool) -> str | None:
        try:
            return await self._begin(child_id, config, prompt, foreground=foreground)
        finally:
            self._p.starting.discard(child_id)

    async def _begin(self, child_id: str, config: AgentConfig | str, prompt: str, *, foreground: bool) -> str | None:
        """Prompts the child, or finds the run that a former life of this call began; the id of the run."""
        rt = self._rt
        self._used[child_id] = number = self._used.get(child_id, 0) + 1
        child, runs = await rt.store.read(lambda tx: self._known(tx, child_id, foreground=foreground))
        if len(runs) >= number:
            await self._enter_again(runs[number - 1], foreground=foreground)
            return runs[number - 1].run_id
        if child is None:
            wanted = config if isinstance(config, AgentConfig) else AgentConfig()
            rt.model_name(rt.config_of(wanted))  # what cannot work is refused before there is a child
            await rt.write("child", lambda ledger: self._create(ledger, child_id, wanted))
        else:
            await rt.write("child", lambda ledger: self._link(ledger, child_id))
        nest = self._nest() if foreground else None
        return await rt.passes_of.prompt_child(child_id, parts(prompt), nest, check=self._check)

    def _known(self, tx: ReadTx, child_id: str, *, foreground: bool) -> tuple[AgentRecord | None, list[RunRecord]]:
        """The child, if it is there, and the runs that this call has begun in it, oldest first."""
        child = tx.get(AgentRecord, child_id)
        if child is None:
            return None, []
        runs = tx.find(RunRecord, agent_id=child_id, order=("run_id",))
        own = child.parent_agent_id == self._p.agent_id and child.parent_call_id == self._call.call_id
        wanted = self._call.call_id if foreground else None
        return child, [run for run in runs if own and run.nested_call_id == wanted]

    async def _enter_again(self, run: RunRecord, *, foreground: bool) -> None:
        """After a restart: the child's pass goes on, is resumed, or has ended already."""
        child_id = run.agent_id or ""
        if run.pass_open:
            self._rt.passes_of.wake(child_id)
        elif run.active:
            nest = self._nest() if foreground else None
            await self._rt.passes_of.resume_child(child_id, nest, check=self._check)

    def _nest(self) -> tuple[str, str]:
        return self._p.agent_id, self._call.call_id

    def _check(self, ledger: Ledger) -> None:
        """Refuses to start a child under a parent that is being stopped or has ended."""
        agent, record = self._p.records(ledger)
        if record.stop_requested or not record.pass_open or agent.active_run_id != record.run_id:
            raise Aborted

    def _create(self, ledger: Ledger, child_id: str, config: AgentConfig) -> None:
        self._check(ledger)
        parent = ledger.agent(self._p.agent_id)
        self._within_limits(ledger, parent, child_id)
        usage, seconds = self._p.run.usage, clock.seconds_since(self._p.records(ledger)[1].created_at)
        spent = Spent(usage.input_tokens + usage.output_tokens, usage.cost or 0.0, seconds)
        merged = heir(config, self._rt.config_of(config), self._p.config, spent)
        ledger.adopt(
            AgentRecord(
                agent_id=child_id,
                created_at=ledger.now,
                updated_at=ledger.now,
                activity=clock.stamp(),
                conversation=child_id,
                config=merged.json_bytes().decode(),
                parent_agent_id=parent.agent_id,
                parent_call_id=self._call.call_id,
            )
        )
        self._set_child(ledger, child_id)

    def _link(self, ledger: Ledger, child_id: str) -> None:
        self._check(ledger)
        if child_id in _line(ledger, self._p.agent_id):
            raise InvalidParams(
                f"The agent {child_id!r} cannot be a child of {self._p.agent_id!r}: it is that agent, or above it.",
                field="agentId",
            )
        self._at_work(ledger, child_id)
        child = ledger.agent(child_id)
        child.parent_agent_id, child.parent_call_id = self._p.agent_id, self._call.call_id
        self._set_child(ledger, child_id)

    def _set_child(self, ledger: Ledger, child_id: str) -> None:
        row = ledger.call(self._p.agent_id, self._call.call_id)
        if row is not None:
            row.child_agent_id = child_id
            ledger.tx.update(row, "child_agent_id")

    def _within_limits(self, ledger: Ledger, parent: AgentRecord, child_id: str) -> None:
        """Refuses a child too many, in words that the model reads."""
        limits = self._p.config.limits
        depth = len(_line(ledger, parent.agent_id))
        most = self._rt.limits.max_children_depth
        if depth > most:
            raise _too_many(f"it would be {depth} levels below the first agent", "depth", depth, most)
        if limits and limits.depth == 0:
            raise _too_many("as many levels of children as there may be are above it", "depth", 1, 0)
        if limits and limits.children is not None:
            begun = ledger.tx.find(AgentRecord, parent_agent_id=parent.agent_id, deleted=False)
            calls = (ledger.call(parent.agent_id, row.parent_call_id or "") for row in begun)
            count = sum(call is not None and call.run_id == self._p.run_id for call in calls)
            if count >= limits.children:
                raise _too_many(f"this run has started {count} already", "children", count, limits.children)
        self._at_work(ledger, child_id)

    def _at_work(self, ledger: Ledger, child_id: str) -> None:
        """Refuses a child while as many as may be are at work, or about to be."""
        parent, most = self._p.agent_id, self._rt.limits.max_children
        busy = {
            row.agent_id
            for state in ("running", "waiting")
            for row in ledger.tx.find(AgentRecord, parent_agent_id=parent, deleted=False, state=state)
        }
        count = len((busy | self._p.starting) - {child_id})
        if count >= most:
            raise _too_many(f"{count} children of {parent!r} are at work", "max_children", count, most)
        self._p.starting.add(child_id)


def _too_many(why: str, limit: str, value: int, most: int) -> LimitReached:
    text = f"No child agent was started: {why}; the limit is {most} ({limit}). Do it yourself, or later."
    return LimitReached(text, limit=limit, value=value, max=most)


def _line(ledger: Ledger, agent_id: str) -> list[str]:
    """The agent and its ancestors."""
    line = [agent_id]
    while (above := ledger.agent(line[-1]).parent_agent_id) is not None and above not in line:
        line.append(above)
    return line


class Spent(NamedTuple):
    """What a run has used so far."""

    tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0


def heir(config: AgentConfig, whole: AgentConfig, parent: AgentConfig, spent: Spent) -> AgentConfig:
    """A child's config, with its parent's settings where it (`whole`: with its preset) has none of its own.

    Its limits are at most what its parent, which has `spent` some of its own, has left.
    """
    taken = {name: getattr(parent, name) for name in _INHERITED if getattr(whole, name) is None}
    if config.preset is None and config.model is None:
        taken["model"] = parent.model
    if parent.limits is not None:
        taken["limits"] = _left_of(parent.limits, whole.limits or Limits(), spent)
    return config.model_copy(update={name: value for name, value in taken.items() if value is not None})


def _left_of(parent: Limits, own: Limits, spent: Spent) -> Limits:
    """The limits of a child: its `own`, and never more than what is left of its parent's."""
    left: dict[str, float | None] = {
        "depth": None if parent.depth is None else max(0, parent.depth - 1),
        "tokens": None if parent.tokens is None else max(1, parent.tokens - spent.tokens),
        "cost": None if parent.cost is None else max(_LEAST, parent.cost - spent.cost),
        "wall_clock_s": None if parent.wall_clock_s is None else max(_LEAST, parent.wall_clock_s - spent.seconds),
    }
    bounds = {key: [value for value in (left[key], getattr(own, key)) if value is not None] for key in left}
    seconds = parent.approval_s if own.approval_s is None else own.approval_s
    return own.model_copy(
        update={"approval_s": seconds, **{key: min(values) for key, values in bounds.items() if values}}
    )


def _reply(child_id: str, outcome: RunOutcome) -> ChildReply:
    if outcome.reason in ("stopped", "interrupted"):
        raise Aborted
    if outcome.reason in ("failed", "maxTurns"):
        said = outcome.error.message if outcome.error else "without a reason"
        raise RuntimeError(f"The child agent {child_id!r} ended {outcome.reason}: {said}")
    if outcome.reason == "paused":
        names = ", ".join(call.tool_name for call in outcome.pending_calls) or (
            "an approval" if outcome.approvals else ""
        )
        why = f"it waits for {names}" if names else "its run has reached a limit"
        note = TextPart(text=f"The child agent {child_id!r} is paused; {why}.")
        return ChildReply(child_id, (note,), note.text)
    content = tuple(part for part in outcome.content if part.type in ("text", "image", "resource"))
    return ChildReply(child_id, content, text_of(content))


def descendants(tx: ReadTx, agent_id: str) -> list[str]:
    """The agents below an agent, deepest first."""
    found: list[str] = []
    for child in tx.find(AgentRecord, parent_agent_id=agent_id, deleted=False):
        found.extend(descendants(tx, child.agent_id))
        found.append(child.agent_id)
    return found


def ask_to_stop(ledger: Ledger, agent_id: str) -> dict[str, str]:
    """Marks the agent's and its descendants' runs: no child starts under them from now on, and a restart stops them.

    The runs that are to stop, by their agents.
    """
    found: dict[str, str] = {}
    for one in (agent_id, *descendants(ledger.tx, agent_id)):
        agent = ledger.agent(one)
        record = ledger.active_run(agent)
        if record is not None and record.pass_open:
            record.stop_requested = True
            ledger.save_run(record)
            found[one] = record.run_id
        elif record is not None and ending.let_be(record):
            ledger.save_run(record)
    return found


def nest_of(tx: ReadTx, record: RunRecord) -> tuple[tuple[str, str], ...]:
    """Inside which calls a run is shown, innermost first."""
    chain: list[tuple[str, str]] = []
    inner: RunRecord | None = record
    while inner is not None and inner.nested_agent_id and inner.nested_call_id:
        chain.append((inner.nested_agent_id, inner.nested_call_id))
        parent = tx.get(AgentRecord, inner.nested_agent_id)
        inner = tx.get(RunRecord, parent.active_run_id) if parent and parent.active_run_id else None
    return tuple(chain)
