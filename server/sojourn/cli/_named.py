"""Ids as people type them: an id, or the beginning of just one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from typing import Any

from sojourn_client import RpcError
from sojourn_client.client import Client

from ._app import Failure

_MADE = re.compile(r"agent-[0-9a-f]{4,15}")
"""The beginning of an id that the daemon makes for an agent, and hardly of one that a person makes up."""
_FEW = 5


async def agent_named(daemon: Client, given: str) -> str:
    """The id of the agent that is meant; `given` itself where none is, so that the daemon says what is wrong.

    Agents of their own come before children. Raises `Failure` when several begin like this.
    """
    if await exists(daemon, given):
        return given
    found = [agent["agentId"] async for agent in agents(daemon) if agent["agentId"].startswith(given)]
    if not found:
        everybody = agents(daemon, children=True)
        found = [agent["agentId"] async for agent in everybody if agent["agentId"].startswith(given)]
    return _only(given, found, "agents")


async def agent_meant(daemon: Client, given: str) -> str:
    """As `agent_named`, for an agent that is made when there is none: only the beginning of a made id counts as one."""
    return await agent_named(daemon, given) if _MADE.fullmatch(given) else given


async def approval_named(daemon: Client, given: str) -> str:
    """The id of the open approval that is meant."""
    page = await daemon.call("approval/list", {})
    return one_of(given, (approval["approvalId"] for approval in page["approvals"]), "approvals")


async def job_named(daemon: Client, given: str) -> str:
    """The id of the job that is meant."""
    page = await daemon.call("job/list", {})
    return one_of(given, (job["jobId"] for job in page["jobs"]), "jobs")


def one_of(given: str, ids: Iterable[str], what: str) -> str:
    """That of `ids` which is `given` or alone begins like it, else `given`. Raises `Failure` when several do."""
    found = [one for one in ids if one.startswith(given)]
    return given if given in found else _only(given, found, what)


async def exists(daemon: Client, agent: str) -> bool:
    """Whether there is an agent of this very id."""
    try:
        await daemon.call("agent/get", {"agentId": agent})
    except RpcError as error:
        if error.kind == "agentNotFound":
            return False
        raise
    return True


async def agents(daemon: Client, *, children: bool = False, parent: str | None = None) -> AsyncIterator[dict[str, Any]]:
    """All agents, newest activity first; with `children` each is followed by its own."""
    cursor = None
    while True:
        params = {"cursor": cursor, "parentAgentId": parent}
        page = await daemon.call("agent/list", {key: value for key, value in params.items() if value is not None})
        for agent in page["agents"]:
            yield agent
            if children:
                async for child in agents(daemon, children=True, parent=agent["agentId"]):
                    yield child
        if (cursor := page.get("nextCursor")) is None:
            return


def _only(given: str, found: list[str], what: str) -> str:
    if len(found) > 1:
        shown = ", ".join(found[:_FEW]) + (f" and {len(found) - _FEW} more" if len(found) > _FEW else "")
        raise Failure(
            f"{given!r} is the beginning of {len(found)} {what}: {shown}. Type more of the one that is meant."
        )
    return found[0] if found else given
