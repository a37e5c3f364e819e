"""What can go wrong between a client and its daemon.

RpcError            the daemon answered a request with an error
ConnectionLost      the connection ended, and could not be made again in time
EventsGone          the events asked for are no longer kept; read the messages instead
DaemonNotRunning    nobody listens, and starting a daemon was not asked for      (in `_launch`)
DaemonStartFailed   the daemon did not come up; the message carries its own words (in `_launch`)
"""

from __future__ import annotations

TYPE_CHECKING = False  # As typing has it, whose import takes longer than `sojourn connect` can wait.
if TYPE_CHECKING:
    from typing import Any


class RpcError(Exception):
    """The daemon's error answer: its JSON-RPC `code`, its `message`, and `data` with the machine-readable part."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}

    @property
    def kind(self) -> str:
        """The error's stable name (`agentNotFound`); empty for JSON-RPC's own errors that carry none."""
        return str(self.data.get("kind", ""))


class ConnectionLost(ConnectionError):
    """The connection to the daemon is gone."""


class EventsGone(Exception):
    """Events before `oldest_seq` are no longer kept; `seq` is the newest. Read `agent/messages`, then go on from it."""

    def __init__(self, agent_id: str, oldest_seq: int, seq: int) -> None:
        super().__init__(
            f"The events of agent {agent_id!r} before {oldest_seq} are no longer kept; "
            f"read its messages, then its events after {seq}."
        )
        self.agent_id = agent_id
        self.oldest_seq = oldest_seq
        self.seq = seq
