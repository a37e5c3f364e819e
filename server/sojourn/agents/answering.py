"""What a client that prompts or resumes is answered, and what becomes of the run when it cancels its request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from sojourn.core.agent import Accepted, RunOutcome
from sojourn.core.errors import SojournError

from .control import Control, Spawn
from .feed import Feed
from .subscription import Subscriber


class Answers:
    """Waits for those who ask; `stop` ends the run of one that cancels, in a task of the hub."""

    def __init__(
        self, control: Control, feed: Feed, spawn: Spawn, stop: Callable[[str], Coroutine[Any, Any, None]]
    ) -> None:
        self._control = control
        self._feed = feed
        self._spawn = spawn
        self._stop = stop

    async def accepted(self, asked: asyncio.Task[Accepted], session: Subscriber) -> Accepted:
        """What a prompt or resume became; cancelled by its client in the middle, the run that it starts is stopped."""
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            if session.cancel_requested():
                with contextlib.suppress(SojournError):
                    accepted = await asked
                    if accepted.run_id is not None and accepted.agent_id is not None:
                        await asyncio.shield(self._spawn(self._stop(accepted.agent_id), "stop a cancelled run"))
            raise

    async def outcome(
        self, accepted: Accepted, agent_id: str, *, wait: bool, session: Subscriber
    ) -> RunOutcome | Accepted:
        """With `wait` what the run came to, as soon as its client has all events of it; else what was accepted."""
        if not wait:
            return accepted
        try:
            if accepted.run_id is not None:
                outcome = await self._control.waiters.until_over(agent_id, accepted.run_id, hasty=True)
            else:
                outcome = await self._control.waiters.for_item(agent_id, accepted.item_id or "")
        except asyncio.CancelledError:
            if session.cancel_requested() and accepted.run_id is not None:
                await asyncio.shield(self._spawn(self._stop(agent_id), f"stop {agent_id}"))
            raise
        await self._feed.settled(session, agent_id)
        return outcome
