"""Waiting until a pass is over: whoever waits hears what it came to, from the pass itself or out of the store."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from sojourn.core.agent import RunOutcome
from sojourn.core.errors import AgentNotFound, RunNotFound, StorageError
from sojourn.store.base import ReadTx
from sojourn.store.records import AgentRecord, InboxRecord, RunRecord

from . import ending
from .passes import Pass
from .runtime import Runtime


class Waiters:
    """Those who wait for agents' passes."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._waiters: defaultdict[str, list[asyncio.Future[RunOutcome | None]]] = defaultdict(list)
        self._hasty: set[asyncio.Future[RunOutcome | None]] = set()
        """Those that want to hear when a pass is left as it is, since the disk said no."""

    async def until_over(self, agent_id: str, run_id: str | None = None, *, hasty: bool = False) -> RunOutcome:
        """The outcome of a run's last pass, as soon as no pass of it is open.

        Raises `RunNotFound`, and with `hasty` `StorageError` when the pass is left as it is, since the disk said no.
        """
        while True:
            future: asyncio.Future[RunOutcome | None] = asyncio.get_running_loop().create_future()
            self._waiters[agent_id].append(future)
            if hasty:
                self._hasty.add(future)
            try:
                live = self._rt.live.get(agent_id)
                if live is None or live.run_id != run_id:  # else it is known to be under way
                    outcome = await self._rt.store.read(lambda tx: _outcome(tx, agent_id, run_id))
                    if outcome is not None:
                        return outcome
                told = await future
                if told is not None and told.run_id == run_id:
                    return told
            finally:
                self._hasty.discard(future)
                waiting = self._waiters.get(agent_id, [])
                if future in waiting:
                    waiting.remove(future)
                if not waiting:
                    self._waiters.pop(agent_id, None)

    async def for_item(self, agent_id: str, item_id: str) -> RunOutcome:
        """The outcome of the run that reads a queued prompt."""
        while True:
            future = asyncio.get_running_loop().create_future()
            self._waiters[agent_id].append(future)
            rows = await self._rt.store.read(lambda tx: tx.find(InboxRecord, item_id=item_id))
            if rows and rows[0].run_id is not None:
                return await self.until_over(agent_id, rows[0].run_id)
            if not rows or rows[0].state != "unread":
                raise RunNotFound(f"The queued prompt {item_id!r} was removed before a run read it.")
            await future

    def ended(self, agent_id: str, outcome: RunOutcome | None) -> None:
        """A pass has ended; what it came to, where whoever ended it had that at hand."""
        for future in self._waiters.pop(agent_id, []):
            if not future.done():
                future.set_result(outcome)

    def broke(self, p: Pass, error: StorageError) -> None:
        """A pass is left as it is on disk: whoever cannot wait until the disk has room again hears of it."""
        text = (
            f"The run {p.run_id!r} has come to a halt. {error.message} When it can, 'agent/resume' carries the run on."
        )
        for future in self._waiters.get(p.agent_id, []):
            if future in self._hasty and not future.done():
                future.set_exception(StorageError(text))


def _outcome(tx: ReadTx, agent_id: str, run_id: str | None) -> RunOutcome | None:
    agent = tx.get(AgentRecord, agent_id)
    if agent is None or agent.deleted:
        raise AgentNotFound(f"There is no agent {agent_id!r}.", agentId=agent_id)
    if run_id is not None:
        record = tx.get(RunRecord, run_id)
    else:
        newest = tx.find(RunRecord, agent_id=agent_id, order=("run_id",), desc=True, limit=1)
        record = newest[0] if newest else None
    if record is None or record.agent_id != agent_id:
        which = f"no run {run_id!r}" if run_id else "not run yet"
        raise RunNotFound(f"The agent {agent_id!r} has {which}.", runId=run_id)
    return None if record.pass_open or record.outcome is None else ending.outcome_of(tx, record, agent)
