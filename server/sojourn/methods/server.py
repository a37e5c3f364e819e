"""`server/*`: the daemon itself."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from sojourn.core.values import Value

from ._table import Mutating, Params, Result, Session, method


class StatusParams(Params):
    """No parameters."""


class StoreStatus(Value):
    """Where everything is kept, and how much it is."""

    path: str
    bytes: int


class Status(Result):
    """How the daemon is. `uptimeS` in seconds; `memoryBytes` is its resident memory."""

    version: str
    instance_id: str
    uptime_s: float
    state: Literal["ready", "draining", "degraded"]
    agents: int
    active_runs: int
    clients: int
    store: StoreStatus
    memory_bytes: int


class ShutdownParams(Mutating):
    """`drain` lets active passes come to a point where nothing is lost first; `now` does not wait for them."""

    mode: Literal["drain", "now"] = "drain"


class HostSession(Session, Protocol):
    """A session that knows the process it is served by."""

    def host_status(self) -> dict[str, Any]:
        """The part of `Status` that is about the process and its connections."""
        ...


@method("server/status", params=StatusParams, result=Status)
async def status(session: HostSession, params: StatusParams) -> dict[str, Any]:
    """How the daemon is: version, state, what runs, what it holds."""
    return {**session.host_status(), **await session.hub.status()}


@method("server/shutdown", params=ShutdownParams, result=None)
async def shutdown(session: Session, params: ShutdownParams) -> None:
    """Ends the daemon: everything is saved first, other clients are told by `server/state`."""
    await session.hub.shutdown(params.mode)
