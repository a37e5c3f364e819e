"""What all connections of one daemon share: the hub, the limits, who is connected, how writes of a turn are joined."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pydantic.alias_generators import to_camel

from sojourn import __version__
from sojourn.methods._table import METHODS
from sojourn.methods.lifecycle import (
    InitializeResult,
    ServerCapabilities,
    ServerExperimental,
    ServerInfo,
    SojournServer,
)

from .framing import Kind, frame

if TYPE_CHECKING:
    from sojourn.agents.hub import Hub

    from .connection import Connection
    from .outbox import Outbox

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Limits of one connection: bytes of a frame, bytes of unread events and of one answer, unanswered requests."""

    max_frame_bytes: int = 64 * 1024 * 1024
    max_client_queue_bytes: int = 8 * 1024 * 1024
    max_inflight: int = 256


class Host:
    """One start of the daemon, as its connections see it. `announce` adds limits that `initialize` tells clients."""

    def __init__(
        self, hub: Hub, limits: WireLimits | None = None, *, announce: Mapping[str, int | float] | None = None
    ) -> None:
        self.hub = hub
        self.limits = limits or WireLimits()
        self.instance_id = uuid.uuid4().hex
        self.connections: set[Connection] = set()
        self.turns = Turns()
        self._framed: tuple[bytes, Kind | None, bytes] = (b"", None, frame(b"", None))
        self._announced = {**{to_camel(k): v for k, v in asdict(self.limits).items()}, **(announce or {})}
        self._started = time.monotonic()

    def welcome(self) -> InitializeResult:
        """The answer to `initialize`."""
        about = SojournServer(
            protocol_version=PROTOCOL_VERSION,
            instance_id=self.instance_id,
            store_id=self.hub.store_id,
            limits=self._announced,
            methods=tuple(sorted(name for name in METHODS if "/" in name)),
        )
        return InitializeResult(
            capabilities=ServerCapabilities(experimental=ServerExperimental(sojourn=about)),
            server_info=ServerInfo(name="sojourn", version=__version__),
        )

    def frame(self, body: bytes, kind: Kind | None) -> bytes:
        """`body` in a framing. An event for many clients is framed once: the last frame is kept."""
        known, its_kind, framed = self._framed
        if known is not body or its_kind != kind:
            framed = frame(body, kind)
            self._framed = (body, kind, framed)
        return framed

    def status(self) -> dict[str, Any]:
        """The part of `server/status` that the hub does not know."""
        return {
            "version": __version__,
            "instanceId": self.instance_id,
            "uptimeS": round(time.monotonic() - self._started, 3),
            "clients": sum(connection.session.ready for connection in self.connections),
            "memoryBytes": resident_bytes(),
        }


class Turns:
    """Counts the turns of the event loop, and flushes the outboxes that hold frames at the end of one.

    One callback a turn serves all connections: an event for a hundred clients costs one, not a hundred.
    """

    def __init__(self) -> None:
        self.now = 0
        self.armed = False
        """Whether the end of this turn is seen to."""
        self._holding: list[Outbox] = []

    def arm(self) -> None:
        """Makes sure that this turn ends: `now` grows before anything that comes later runs."""
        if not self.armed:
            self.armed = True
            asyncio.get_running_loop().call_soon(self._end)

    def hold(self, outbox: Outbox) -> None:
        """Has `outbox` flushed at the end of this turn."""
        self._holding.append(outbox)
        self.arm()

    def _end(self) -> None:
        self.armed = False
        self.now += 1
        holding, self._holding = self._holding, []
        for outbox in holding:
            outbox.flush()


def resident_bytes() -> int:
    """The resident memory of this process; its peak where the system does not tell the present."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # getrusage(2): macOS counts bytes, Linux KiB
