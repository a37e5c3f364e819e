"""All servers: those of the config and those of single agents, and what they offer to an agent.

Rule: a server is started when the first model call, call or listing needs it, and is shared by all agents that describe
it alike. One that does not start costs its own tools.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from sojourn.core.agent import AgentConfig
from sojourn.core.servers import McpServer
from sojourn.tools.base import Tool

from .failures import ServerDown
from .naming import BETWEEN, EVERY, server_of
from .server import Server
from .tasks import OpenInbox, Tasks

AGENT_IDLE_S = 900.0
"""A server that only an agent names is ended when nobody has called it for so long, if its config says nothing else."""

SLOW_S = 2.0
"""How long servers may take to start before whoever waits for them is told so."""


@dataclass(frozen=True, slots=True)
class ServerProblem:
    """What is wrong with a server or with one of its tools, in one sentence."""

    server: str
    message: str


class McpServers:
    """The servers by name. `notes` is the directory for what must outlive the daemon (tasks under way)."""

    def __init__(self, configured: Mapping[str, McpServer] | None = None, *, notes: Path | None = None) -> None:
        self._tasks = Tasks(notes, self._known)
        self._servers: dict[tuple[str, str], Server] = {}
        self._configured = {
            name: self._known(name, config) for name, config in (configured or {}).items() if config.enabled
        }

    def _known(self, name: str, config: McpServer) -> Server:
        key = name, config.model_dump_json()
        if key not in self._servers:
            self._servers[key] = Server(name, config, self._tasks)
        return self._servers[key]

    # -- which ------------------------------------------------------------------------------------------------------

    def split(self, config: AgentConfig) -> tuple[tuple[str, ...] | None, dict[str, Server]]:
        """The names in `config.tools` that are no servers' tools, and the servers that the agent uses by name."""
        own = self._own(config)
        if not self._configured and not own:
            return config.tools, {}
        there = {**self._configured, **own}
        rest = tuple(name for name in config.tools or () if server_of(name) not in there)
        wanted = {server_of(name) for name in config.tools or ()}
        everything = EVERY in rest
        used = {name: server for name, server in there.items() if everything or name in own or name in wanted}
        return None if config.tools is None else rest, used

    def _own(self, config: AgentConfig) -> dict[str, Server]:
        found = {}
        for name, server in (config.mcp_servers or {}).items():
            if server.enabled:
                change: dict[str, object] = {}
                if server.idle_timeout_s is None:
                    change["idle_timeout_s"] = AGENT_IDLE_S
                if server.command is not None and server.cwd is None:
                    change["cwd"] = config.cwd
                found[name] = self._known(name, server.model_copy(update=change))
        return found

    def claims(self, name: str) -> bool:
        """Whether a tool of this name would be one of a configured server."""
        return server_of(name) in self._configured

    # -- what -------------------------------------------------------------------------------------------------------

    def tools_of(
        self, servers: Mapping[str, Server], config: AgentConfig, also: Collection[str] = ()
    ) -> dict[str, Tool]:
        """What the servers offer to an agent, as far as it is known.

        `also` names tools that the agent has called: they are there even if their server was not asked yet.
        """
        names = config.tools or ()
        tools: dict[str, Tool] = {}
        for name, server in servers.items():
            own = name in (config.mcp_servers or {})
            whole = own or EVERY in names or name + BETWEEN + EVERY in names
            if server.listing is not None:
                for tool in server.listing.tools:
                    if whole or tool in names:
                        tools[tool] = server.tool(tool)
        for tool in also:
            asked = servers.get(server_of(tool) or "")
            if asked is not None and asked.listing is None:
                tools[tool] = asked.tool(tool)
        return tools

    async def ready(
        self,
        servers: Mapping[str, Server],
        config: AgentConfig,
        on_slow: Callable[[list[ServerProblem]], Awaitable[None]] | None = None,
    ) -> list[ServerProblem]:
        """Waits until each of the servers has said what it offers, or has failed; answers what is missing.

        `on_slow` is told once which of them are waited for, when that takes long.
        """
        new = [server for server in servers.values() if server.listing is None]
        if new:
            asking = asyncio.gather(*(_asked(server) for server in new))
            try:
                done, _ = await asyncio.wait({asking}, timeout=SLOW_S)
                if not done and on_slow is not None:
                    await on_slow([_slow(server) for server in new if server.listing is None and not server.failure])
                await asking
            finally:
                asking.cancel()
        problems = [
            ServerProblem(server.name, f"The MCP server {server.name!r} cannot be used: {server.failure}.")
            for server in new
            if server.listing is None and server.failure is not None
        ]
        for name in config.tools or ():
            asked = servers.get(server_of(name) or "")
            if asked is None or asked.listing is None or name == asked.name + BETWEEN + EVERY:
                continue
            if name not in asked.listing.tools:
                there = ", ".join(sorted(asked.listing.tools)) or "none"
                text = f"The MCP server {asked.name!r} has no tool {name!r}; it has: {there}."
                problems.append(ServerProblem(asked.name, text))
        return problems

    async def listed(self) -> list[Tool]:
        """The tools of the configured servers; those that can be reached are started for it."""
        await self.ready(self._configured, AgentConfig())
        everything = AgentConfig(tools=(EVERY,))
        return list(self.tools_of(self._configured, everything).values())

    async def trial(self, name: str) -> tuple[list[str], list[ServerProblem]]:
        """Starts a configured server, and answers its tools' names and what is wrong with it."""
        server = self._configured[name]
        problems = await self.ready({name: server}, AgentConfig())
        listing = server.listing
        if listing is None:
            return [], problems
        return list(listing.tools), [ServerProblem(name, problem) for problem in listing.problems]

    # -- life -------------------------------------------------------------------------------------------------------

    def resume(self, open_inbox: OpenInbox) -> None:
        """Goes on with the tasks that an earlier life of the daemon left under way."""
        self._tasks.resume(open_inbox)

    async def aclose(self) -> None:
        """Ends every server; their processes are gone when this returns, or are killed."""
        await self._tasks.aclose()
        await asyncio.gather(*(server.aclose() for server in self._servers.values()))
        self._servers.clear()


def _slow(server: Server) -> ServerProblem:
    limit = f"start_timeout_s ({server.config.start_timeout_s:g} s)"
    text = (
        f"The MCP server {server.name!r} is still starting. The model is asked when it is up, or after {limit} without"
    )
    return ServerProblem(server.name, f"{text} its tools.")


async def _asked(server: Server) -> None:
    """Starts the server, and waits for that unless it failed before: nobody waits for it at every turn."""
    if server.failure is not None:
        server.start()
        return
    with contextlib.suppress(ServerDown):
        await server.up()
