"""The Python client of Sojourn: calls, events that survive a lost connection, tools and approvals.

    async with connect() as client:
        agent = await client.agent.create()
        outcome = await client.agent.prompt(agent_id=agent.agent_id, content="Hello")

Importing this package loads nothing heavy; pydantic comes with the first typed call.
"""

from __future__ import annotations

from ._launch import DaemonNotRunning, DaemonStartFailed
from .errors import ConnectionLost, EventsGone, RpcError

TYPE_CHECKING = False  # As typing has it, whose import takes longer than `sojourn connect` can wait.
if TYPE_CHECKING:
    from typing import Any

    from .client import Client as Client
    from .client import connect as connect
    from .events import AgentEvent as AgentEvent
    from .events import EventStream as EventStream
    from .serving import ToolCall as ToolCall
    from .serving import ToolReply as ToolReply

_LAZY = {
    "AgentEvent": "events",
    "Client": "client",
    "EventStream": "events",
    "ToolCall": "serving",
    "ToolReply": "serving",
    "connect": "client",
}

__all__ = [
    "AgentEvent",
    "Client",
    "ConnectionLost",
    "DaemonNotRunning",
    "DaemonStartFailed",
    "EventStream",
    "EventsGone",
    "RpcError",
    "ToolCall",
    "ToolReply",
    "connect",
]


def __getattr__(name: str) -> Any:
    # asyncio alone takes 50 ms to import; `sojourn connect` uses this package's launcher and must not pay for it.
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'sojourn_client' has no attribute {name!r}")
