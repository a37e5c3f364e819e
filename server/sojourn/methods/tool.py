"""`tool/*`: tools that a client runs, and what tools there are."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from sojourn.core.approvals import Policy
from sojourn.core.errors import Forbidden
from sojourn.core.values import Value

from ._fields import AgentId, ObjectSchema, ToolName
from ._table import Mutating, Params, Result, Session, method


class ClientTool(Value):
    """A tool that this client runs when it is asked with `tool/execute`.

    `approval` is its own policy, over which an agent's `approvals` go. `onInterrupt: "rerun"` promises that running
    a call again after a crash is harmless.
    """

    name: ToolName
    description: str = Field(max_length=20_000)
    input_schema: ObjectSchema
    approval: Policy = "ask"
    on_interrupt: Literal["fail", "rerun"] = "fail"


class RegisterParams(Mutating):
    """`agentId` left out: the tools are offered to all agents."""

    tools: tuple[ClientTool, ...] = Field(min_length=1, max_length=1000)
    agent_id: AgentId | None = None


class UnregisterParams(Mutating):
    """Which of the client's tools."""

    names: tuple[ToolName, ...] = Field(min_length=1, max_length=1000)


class ListParams(Params):
    """`agentId` left out: every tool that an agent's config may name, and every client's."""

    agent_id: AgentId | None = None


class ToolEntry(Result):
    """A tool and where it comes from: `builtin`, `python`, `mcp:NAME` or `client:CLIENTID`."""

    name: str
    description: str = ""
    input_schema: dict[str, Any]
    approval: Policy
    on_interrupt: Literal["fail", "rerun"] = "fail"
    source: str
    agent_id: str | None = None


class Tools(Result):
    """Tools by name."""

    tools: tuple[ToolEntry, ...]


@method("tool/register", params=RegisterParams, result=None)
async def register(session: Session, params: RegisterParams) -> Any:
    """Offers tools that this client runs. The same name again under the same `clientId` replaces.

    A name of another client's is `alreadyExists`.
    """
    _require_client_id(session, "tool/register")
    caller = session.caller(params, "tool/register")
    tools = [tool.wire() for tool in params.tools]
    return await session.hub.register_tools(caller, session, tools, params.agent_id)


@method("tool/unregister", params=UnregisterParams, result=None)
async def unregister(session: Session, params: UnregisterParams) -> Any:
    """Withdraws tools of this client."""
    _require_client_id(session, "tool/unregister")
    return await session.hub.unregister_tools(session.caller(params, "tool/unregister"), list(params.names))


@method("tool/list", params=ListParams, result=Tools)
async def list_(session: Session, params: ListParams) -> Any:
    """Tools, with where each comes from."""
    return await session.hub.list_tools(params.agent_id)


def _require_client_id(session: Session, name: str) -> None:
    if session.client_id is None:
        raise Forbidden(
            f"{name!r} needs a client with a name; give 'clientId' in 'initialize' "
            "(capabilities.experimental.sojourn.clientId).",
            field="clientId",
        )
