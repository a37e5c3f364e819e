"""What commits and starts set in motion: clients are told, drivers look, passes start and stop, questions are asked.

The store hands over what transitions published, on the event loop, after the commit and in its order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from sojourn.core.agent import Caller
from sojourn.core.errors import SojournError

from . import recovery
from ._faults import strike
from .asking import Questions
from .control import Control, Spawn
from .hooks import run_ended
from .ledger import ApprovalClosed, ApprovalOpened, Changed, InboxArrived, PassEnded, StopAsked, Wake
from .runtime import Runtime, Struck


class Reactions:
    """The one listener of a hub's store."""

    def __init__(
        self, rt: Runtime, control: Control, questions: Questions, spawn: Spawn, *, takes_work: Callable[[], bool]
    ) -> None:
        self._rt = rt
        self._control = control
        self._questions = questions
        self._spawn = spawn
        self._takes_work = takes_work
        self.closing = False
        """Nothing may start any more: the next life finds all of it on disk."""

    def committed(self, items: list[Any]) -> None:
        """What commits have published."""
        for item in items:
            if isinstance(item, list):
                self._rt.feed.publish(item)
            elif isinstance(item, Changed):
                self._rt.agents.learn(item.record)
                self._rt.feed.changed(item.record.agent_id)
            elif isinstance(item, Struck):
                strike(f"after:{item.name}")
            else:
                self._react(item)

    def _react(self, item: object) -> None:
        if self.closing and not isinstance(item, PassEnded):
            return
        match item:
            case Wake(agent_id):
                self._control.wake(agent_id)
            case PassEnded(agent_id, run_id, continue_inbox, outcome):
                self._control.ended(agent_id, run_id, outcome)
                if self._rt.hooks.on_run_end and not self.closing:
                    self._spawn(run_ended(self._rt, agent_id, run_id), f"hooks {run_id}")
                if continue_inbox and self._takes_work():
                    self._spawn(self._control.continue_inbox(agent_id), f"inbox {agent_id}")
            case InboxArrived(agent_id):
                self._control.arrived(agent_id)
            case StopAsked(agent_id):
                self._spawn(self.stop_quietly(agent_id), f"stop {agent_id}")
            case ApprovalOpened(agent_id, approval_id):
                self._questions.opened(agent_id, approval_id)
            case ApprovalClosed(approval_id):
                self._questions.closed(approval_id)

    async def stop_quietly(self, agent_id: str) -> None:
        """Stops an agent that nobody waits for: what goes wrong is nobody's answer."""
        with contextlib.suppress(SojournError):
            await self._control.stop(agent_id)

    async def recover(self) -> None:
        """After a start, or when the disk is well again: what was left is found, and goes on by itself where it may."""
        self._control.recovering = True
        try:
            await recovery.after_former_lives(self._rt)
            await self._rt.jobs.recover()
            found = await recovery.recover(self._rt)
        finally:
            self._control.recovered()
        for agent_id in found.look:
            self._control.wake(agent_id)
        for agent_id in found.stop:
            self._spawn(self.stop_quietly(agent_id), f"stop {agent_id}")
        for agent_id in found.resume:
            self._spawn(self._resume_quietly(agent_id), f"resume {agent_id}")
        for agent_id in await recovery.unread_agents(self._rt):
            self._spawn(self._control.continue_inbox(agent_id), f"inbox {agent_id}")
        await self._questions.recover()

    async def _resume_quietly(self, agent_id: str) -> None:
        with contextlib.suppress(SojournError):
            await asyncio.shield(self._control.resume(Caller(), agent_id))
