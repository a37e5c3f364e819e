"""What a start tidies up: requests that are too old to be repeated, deletions that were not finished, old jobs."""

from __future__ import annotations

from sojourn.store.base import ReadTx
from sojourn.store.records import AgentRecord, RequestRecord

from . import clock, roster
from .control import Spawn
from .ledger import Ledger
from .runtime import Runtime

REQUESTS_KEPT_S = 7 * 24 * 3600
_AT_ONCE = 5_000


async def tidy(rt: Runtime, spawn: Spawn) -> None:
    """Forgets old requests and jobs, and goes on with deletions, in tasks."""
    before = clock.later(-REQUESTS_KEPT_S)

    def old(tx: ReadTx) -> list[RequestRecord]:
        return [row for row in tx.find(RequestRecord, order="at", limit=_AT_ONCE, damaged={}) if row.at < before]

    def forget(ledger: Ledger) -> None:
        for row in stale:
            ledger.tx.delete(RequestRecord, row.client_id, row.request_id)

    stale = await rt.store.read(old)
    if stale:
        await rt.write("tidy", forget)
    for agent_id in await rt.store.read(_half_deleted):
        spawn(roster.sweep(rt, agent_id), f"sweep {agent_id}")
    await rt.jobs.sweep()


def _half_deleted(tx: ReadTx) -> list[str]:
    return [row.agent_id for row in tx.find(AgentRecord, state="deleted", damaged={})]
