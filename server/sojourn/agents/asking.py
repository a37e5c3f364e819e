"""Asking clients: open approvals go to the attached clients that answer such requests, and expire by their limit.

The first valid answer from anywhere wins, the other questions are withdrawn. A client that refuses, fails or is silent
decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from pydantic import ValidationError

from sojourn.core.agent import Caller
from sojourn.core.errors import ClientRefused, SojournError
from sojourn.core.messages import InputPart, parts
from sojourn.core.values import Value, clean
from sojourn.store.base import ReadTx
from sojourn.store.records import AgentRecord, ApprovalRecord

from . import clock, decisions, stored
from .children import descendants
from .runtime import Runtime
from .subscription import Subscriber

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]


class Answer(Value):
    """What a client may answer to `approval/request`."""

    decision: str
    arguments: dict[str, Any] | None = None
    content: str | tuple[InputPart, ...] | None = None
    reason: str | None = None
    scope: str | None = None
    pattern: str | None = None


class Questions:
    """The questions under way, and the time limits of open approvals."""

    def __init__(self, rt: Runtime, spawn: Spawn) -> None:
        self._rt = rt
        self._spawn = spawn
        self._asked: dict[str, dict[int, asyncio.Task[None]]] = {}
        self._limits: dict[str, asyncio.Task[None]] = {}

    async def recover(self) -> None:
        """Takes up the time limits of the approvals that are open at start."""
        for row in await self._rt.store.read(lambda tx: tx.find(ApprovalRecord, decided=False, damaged={})):
            self._limit(row.approval_id, row.expires_at)

    def opened(self, agent_id: str, approval_id: str) -> None:
        """A new approval: asks the clients attached to the agent or to an ancestor."""
        self._spawn(self._ask_all(agent_id, approval_id), f"ask {approval_id}")

    def closed(self, approval_id: str) -> None:
        """It was decided: the questions are withdrawn."""
        for task in self._asked.pop(approval_id, {}).values():
            if task is not asyncio.current_task():
                task.cancel()
        limit = self._limits.pop(approval_id, None)
        if limit is not None and limit is not asyncio.current_task():
            limit.cancel()

    def attached(self, session: Subscriber, agent_id: str) -> None:
        """A client has attached: it is asked what is open already."""
        if session.answers_approvals:
            self._spawn(self._ask_one(session, agent_id), f"ask on attach {agent_id}")

    def gone(self, session: Subscriber) -> None:
        """A client has left: its questions end."""
        for tasks in self._asked.values():
            task = tasks.pop(id(session), None)
            if task is not None:
                task.cancel()

    async def _ask_all(self, agent_id: str, approval_id: str) -> None:
        def query(tx: ReadTx) -> tuple[ApprovalRecord | None, list[str]]:
            return tx.get(ApprovalRecord, approval_id), _line(tx, agent_id)

        row, line = await self._rt.store.read(query)
        if row is None or row.decided:
            return
        self._limit(approval_id, row.expires_at)
        for session in self._rt.feed.sessions_of(line):
            self._put(session, row)

    async def _ask_one(self, session: Subscriber, agent_id: str) -> None:
        def query(tx: ReadTx) -> list[ApprovalRecord]:
            family = (agent_id, *descendants(tx, agent_id))
            return [
                row for one in family for row in tx.find(ApprovalRecord, agent_id=one, decided=False, order="since")
            ]

        for row in await self._rt.store.read(query):
            self._put(session, row)

    def _put(self, session: Subscriber, row: ApprovalRecord) -> None:
        tasks = self._asked.setdefault(row.approval_id, {})
        if session.answers_approvals and id(session) not in tasks:
            tasks[id(session)] = self._spawn(self._question(session, row), f"question {row.approval_id}")

    async def _question(self, session: Subscriber, row: ApprovalRecord) -> None:
        approval = stored.approval(row)
        try:
            said = await session.request("approval/request", {"approval": approval.wire()})
            answer = Answer.model_validate(clean(said), by_name=False)
            await decisions.decide(
                self._rt,
                Caller(client_id=session.client_id),
                row.approval_id,
                _person_decision(answer.decision),
                arguments=answer.arguments,
                content=parts(answer.content) if answer.content is not None else None,
                reason=answer.reason,
                scope=answer.scope,
                pattern=answer.pattern,
            )
        except (ClientRefused, ConnectionError, ValidationError, ValueError) as error:
            log.info("The client %s decided nothing about %s: %s", session.client_id, row.approval_id, error)
        except SojournError as error:
            log.info("The answer to %s was too late or misfit: %s", row.approval_id, error)

    def _limit(self, approval_id: str, expires_at: str | None) -> None:
        if expires_at is not None and approval_id not in self._limits:
            self._limits[approval_id] = self._spawn(self._expire(approval_id, expires_at), f"limit {approval_id}")

    async def _expire(self, approval_id: str, expires_at: str) -> None:
        await asyncio.sleep(max(0.0, clock.seconds_until(expires_at)))
        await decisions.expire(self._rt, approval_id)


def _person_decision(decision: str) -> str:
    if decision not in ("approve", "deny", "edit", "answer", "abort"):
        raise ValueError(f"{decision!r} is no decision; it is one of approve, deny, edit, answer, abort.")
    return decision


def _line(tx: ReadTx, agent_id: str) -> list[str]:
    """The agent and its ancestors."""
    line: list[str] = []
    current: str | None = agent_id
    while current is not None and current not in line:
        line.append(current)
        agent = tx.get(AgentRecord, current)
        current = agent.parent_agent_id if agent is not None else None
    return line
