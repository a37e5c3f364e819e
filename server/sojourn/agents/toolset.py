"""Which tools an agent has, and running one: built-in, Python and MCP tools by its config, client tools always.

Client tools are durable by name; who runs them is a connection. A call whose owner is away is pending, and is sent once
when the owner registers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.errors import AlreadyExists, DamagedRecord
from sojourn.core.messages import Content, ToolSpec, parts
from sojourn.store.records import CallRecord, ClientToolRecord
from sojourn.tools.author import GOES_ON
from sojourn.tools.base import InboxHandle, Tool, ToolContext, ToolInfo, ToolOutput
from sojourn.tools.client import ClientTool, OwnerAway, through_inbox
from sojourn.tools.mcp import McpServers, ServerProblem
from sojourn.tools.table import Toolbox

from . import children, inbox, policy, previews, stored
from .buffers import Buffers
from .passes import Pass
from .runtime import Runtime
from .subscription import Subscriber

if TYPE_CHECKING:
    from .ledger import Ledger

log = logging.getLogger(__name__)

EVERYBODY = "*"


class Toolset:
    """The tools of all agents."""

    def __init__(self, toolbox: Toolbox, servers: McpServers | None = None, *, wait_s: float) -> None:
        self.toolbox = toolbox
        self.buffers = Buffers()
        self.servers = servers or McpServers()
        self._wait_s = wait_s
        self._owners: dict[str, list[Subscriber]] = {}
        self._client_tools: dict[tuple[str, str], ClientTool] = {}
        self.spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]] | None = None

    # -- who is there -------------------------------------------------------------------------------------------

    def arrived(self, session: Subscriber) -> None:
        """A client is connected; calls of its tools go to its newest connection."""
        if session.client_id is not None and session.runs_tools:
            self._owners.setdefault(session.client_id, []).append(session)

    def gone(self, session: Subscriber) -> None:
        """A connection has ended."""
        if session.client_id is not None:
            sessions = self._owners.get(session.client_id, [])
            if session in sessions:
                sessions.remove(session)
            if not sessions:
                self._owners.pop(session.client_id, None)

    async def send(self, client_id: str, params: dict[str, Any]) -> Any:
        """Asks the newest connection of a client to run a call. Raises `OwnerAway`."""
        sessions = self._owners.get(client_id)
        if not sessions:
            raise OwnerAway
        return await sessions[-1].request("tool/execute", params)

    # -- what there is ------------------------------------------------------------------------------------------

    def load(self, rows: list[ClientToolRecord]) -> None:
        """Takes in the stored client tools at start."""
        for row in rows:
            try:
                self._client_tools[row.scope, row.name] = self._client_tool(row)
            except DamagedRecord as error:
                log.error(
                    "The tool %r of the client %r is missing until it registers it again. %s",
                    row.name,
                    row.client_id,
                    error,
                )

    def _client_tool(self, row: ClientToolRecord) -> ClientTool:
        info = stored.read(row, "body", partial(_info, row.name, row.client_id))
        client_id = row.client_id

        async def send(params: dict[str, Any]) -> Any:
            return await self.send(client_id, params)

        def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            assert self.spawn is not None
            return self.spawn(work, f"late answer of {client_id}")

        return ClientTool(info, client_id, send, wait_s=self._wait_s, spawn=spawn)

    def tools_for(self, agent_id: str, config: AgentConfig, also: Collection[str] = ()) -> dict[str, Tool]:
        """The tools of an agent by name. Raises `UnknownTool` when the config names one that is not there.

        Those of MCP servers as far as they are known; `also` names some that it has called (after a restart no server
        was asked yet).
        """
        names, servers = self.servers.split(config)
        tools: dict[str, Tool] = dict(self.toolbox.select(names))
        if servers:
            for name, offered in self.servers.tools_of(servers, config, also).items():
                tools.setdefault(name, offered)
        for scope in (EVERYBODY, agent_id):
            for (of, name), tool in self._client_tools.items():
                if of == scope:
                    tools[name] = tool
        return tools

    async def ready(self, rt: Runtime, p: Pass) -> None:
        """Before a model call: waits for MCP servers that were not asked yet, and takes in what all of them offer now.

        What is missing is told, once a pass; so is what is waited for, when that takes long.
        """
        servers = self.servers.split(p.config)[1]
        if not servers:
            return

        async def tell(code: str, problems: list[ServerProblem]) -> None:
            fresh = [problem for problem in problems if problem.message not in p.told]
            if fresh:
                p.told.update(problem.message for problem in fresh)
                await rt.write("tell", lambda ledger: _tell(ledger, p, code, fresh))

        problems = await self.servers.ready(servers, p.config, partial(tell, "toolsStarting"))
        p.tools = self.tools_for(p.agent_id, p.config)
        await tell("toolsMissing", problems)

    async def listed(self, rt: Runtime, agent_id: str | None) -> list[dict[str, Any]]:
        """The tools as `tool/list` shows them, an agent's or all; MCP servers are started for it."""
        if agent_id is not None:
            config = rt.config_of(stored.config(await rt.agent(agent_id)))
            await self.servers.ready(self.servers.split(config)[1], config)
            return [_entry(tool.info, None) for tool in self.tools_for(agent_id, config).values()]
        entries = [_entry(tool.info, None) for tool in (*self.toolbox, *await self.servers.listed())]
        for (scope, _), client_tool in self._client_tools.items():
            entries.append(_entry(client_tool.info, None if scope == EVERYBODY else scope))
        return entries

    # -- registering --------------------------------------------------------------------------------------------

    async def register(self, rt: Runtime, caller: Caller, tools: list[dict[str, Any]], agent_id: str | None) -> None:
        """Offers a client's tools to an agent or to all. Raises `AlreadyExists` for another client's name."""
        scope = agent_id or EVERYBODY
        client_id = caller.client_id or ""

        def change(ledger: Ledger) -> None:
            if agent_id is not None:
                ledger.agent(agent_id)
            for tool in tools:
                self._claim(ledger, scope, tool["name"], client_id)
                row = ClientToolRecord(scope, tool["name"], client_id, orjson.dumps(tool).decode())
                ledger.tx.put(row)

        await rt.answer_once(caller, "tools", change)
        for tool in tools:
            row = ClientToolRecord(scope, tool["name"], client_id, orjson.dumps(tool).decode())
            self._client_tools[scope, tool["name"]] = self._client_tool(row)

    def _claim(self, ledger: Ledger, scope: str, name: str, client_id: str) -> None:
        if name in self.toolbox:
            raise AlreadyExists(f"The tool name {name!r} is taken by a built-in tool.", tool=name)
        if self.servers.claims(name):
            raise AlreadyExists(f"The tool name {name!r} belongs to an MCP server of that name.", tool=name)
        for row in ledger.tx.find(ClientToolRecord, name=name):
            overlaps = EVERYBODY in (row.scope, scope) or row.scope == scope
            if row.client_id != client_id and overlaps:
                raise AlreadyExists(f"The tool {name!r} is registered by the client {row.client_id!r}.", tool=name)

    async def unregister(self, rt: Runtime, caller: Caller, names: list[str]) -> None:
        """Withdraws a client's tools, wherever they are offered."""
        client_id = caller.client_id or ""

        def change(ledger: Ledger) -> list[tuple[str, str]]:
            gone: list[tuple[str, str]] = []
            for name in names:
                for row in ledger.tx.find(ClientToolRecord, name=name):
                    if row.client_id == client_id:
                        ledger.tx.delete(ClientToolRecord, row.scope, row.name)
                        gone.append((row.scope, row.name))
            return gone

        for key in await rt.write("tools", change):
            self._client_tools.pop(key, None)

    # -- calls that were never sent -----------------------------------------------------------------------------

    async def send_waiting(self, rt: Runtime, client_id: str) -> None:
        """Sends the owner's pending calls that it never got, each once: marked as sent before it goes out."""

        def claim(ledger: Ledger) -> list[CallRecord]:
            rows = ledger.tx.find(CallRecord, client_id=client_id, state="pending")
            waiting = [row for row in rows if not row.sent and row.answered_at is None]
            for row in waiting:
                row.sent = True
                ledger.tx.update(row, "sent")
            return waiting

        if client_id not in self._owners or not await self._any_waiting(rt, client_id):
            return
        for row in await rt.write("tools", claim):
            assert self.spawn is not None
            self.spawn(self._send_late(rt, row), f"waiting call {row.call_id}")

    async def _any_waiting(self, rt: Runtime, client_id: str) -> bool:
        rows = await rt.store.read(lambda tx: tx.find(CallRecord, client_id=client_id, state="pending"))
        return any(not row.sent and row.answered_at is None for row in rows)

    async def _send_late(self, rt: Runtime, row: CallRecord) -> None:
        scopes = (self._client_tools.get((scope, row.tool_name)) for scope in (row.owner, EVERYBODY))
        tool = next((tool for tool in scopes if tool is not None and tool.client_id == row.client_id), None)
        if tool is None:
            return
        ctx = bare_context(rt, row)
        output = await tool.execute(stored.args(row), ctx)
        if not output.is_pending:
            await through_inbox(ctx, output)
        elif output.sent is False:  # the owner left again before anything went out
            await rt.write("tools", lambda ledger: _unsent(ledger, row))


def _tell(ledger: Ledger, p: Pass, code: str, problems: list[ServerProblem]) -> None:
    agent, record = p.records(ledger)
    for problem in problems:
        ledger.warning(agent, code, problem.message, run=record, data={"server": problem.server})


def _unsent(ledger: Ledger, row: CallRecord) -> None:
    row.sent = False
    ledger.tx.update(row, "sent")


def _entry(info: ToolInfo, agent_id: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": info.spec.name,
        "description": info.spec.description,
        "inputSchema": info.spec.input_schema,
        "approval": info.approval,
        "onInterrupt": info.on_interrupt,
        "source": info.source,
    }
    return entry if agent_id is None else {**entry, "agentId": agent_id}


class Handle(InboxHandle):
    """A handle on an agent's inbox; outlives the call that it was given to, and an agent that is deleted meanwhile."""

    def __init__(self, rt: Runtime, agent_id: str, origin: str, *, own: CallRecord | None = None) -> None:
        self._rt = rt
        self._agent_id = agent_id
        self._own = {} if own is None else {own.call_id: own.run_id}
        self._caller = Caller(client_id=origin)

    async def push(self, content: Content) -> str:
        """A user message."""
        answer = await inbox.push(self._rt, self._caller, self._agent_id, parts(content))
        return str(answer["itemId"])

    async def resolve(self, call_id: str, content: Content) -> str:
        """A pending call's result."""
        return await self._answer(call_id, content=parts(content))

    async def reject(self, call_id: str, error: str) -> str:
        """A pending call's failure."""
        return await self._answer(call_id, error=error)

    async def _answer(self, call_id: str, **result: Any) -> str:
        run_id = self._own.get(call_id)  # an agent of the same name may have a call of the same name
        answer = await inbox.answer(self._rt, self._caller, self._agent_id, call_id, of_run=run_id, **result)
        return str(answer["itemId"])


def bare_context(rt: Runtime, row: CallRecord) -> ToolContext:
    """The context of a call outside of any pass (a client tool's call that is sent late)."""

    async def no_child(_config: object, _prompt: str) -> Any:
        raise RuntimeError(f"The call {row.call_id!r} is not part of a pass; it cannot run a child.")

    return ToolContext(
        agent_id=row.owner,
        run_id=row.run_id,
        call_id=row.call_id,
        tool_name=row.tool_name,
        cwd=None,
        inbox=lambda: Handle(rt, row.owner, f"tool.{row.tool_name}", own=row),
        run_child=no_child,
        start_child=no_child,
        on_progress=lambda _text, _fraction: None,
        stopped=lambda: False,
    )


async def run_tool(rt: Runtime, p: Pass, call: CallRecord, tool: Tool) -> ToolOutput:
    """Runs one dispatched call with everything that a tool may use."""
    family = children.Family(rt, p, call)
    ctx = ToolContext(
        agent_id=p.agent_id,
        run_id=p.run_id,
        call_id=call.call_id,
        tool_name=call.tool_name,
        cwd=p.config.cwd,
        inbox=lambda: Handle(rt, p.agent_id, f"tool.{call.tool_name}", own=call),
        run_child=family.run_child,
        start_child=family.start_child,
        on_progress=lambda text, fraction: rt.feed.progress(p.agent_id, p.run_id, call.call_id, text, fraction),
        stopped=lambda: p.stop_asked,
        documents=rt.toolset.buffers,
        approved=await previews.approved(rt, p, tool, call),
        start_job=partial(_start_job, rt, p, call),
        config=p.config,
        led_to=await policy.led_to(rt, p, call),
    )
    try:
        return await tool.execute(stored.args(call), ctx)
    except asyncio.CancelledError:
        if GOES_ON in ctx.extra:
            p.goes_on[call.call_id] = ctx.extra[GOES_ON]
        raise


async def _start_job(
    rt: Runtime,
    p: Pass,
    call: CallRecord,
    command: str | Sequence[str],
    *,
    cwd: str | None = None,
    limit_s: float | None = None,
) -> str:
    return await rt.jobs.start(p, call, command, cwd=cwd, limit_s=limit_s)


def _info(name: str, client_id: str, body: str) -> ToolInfo:
    """What is known of a client's tool, out of its row."""
    said = orjson.loads(body)
    if not isinstance(said.get("inputSchema", {}), dict):
        raise TypeError("its inputSchema is no object")
    return ToolInfo(
        spec=ToolSpec(name=name, description=said.get("description", ""), input_schema=said.get("inputSchema", {})),
        approval=said.get("approval", "ask"),
        on_interrupt=said.get("onInterrupt", "fail"),
        source=f"client:{client_id}",
        bounded=True,
    )
