"""What the tests of MCP servers share: the stub's config, and a bench that holds servers and knows what happened."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tool_fakes import FakeHost

from sojourn.core.agent import AgentConfig
from sojourn.core.servers import McpServer
from sojourn.tools.base import Tool, ToolOutput
from sojourn.tools.mcp import McpServers, ServerProblem

STUB = str(Path(__file__).parent / "mcp_stub.py")
EVERYTHING = AgentConfig(tools=("*",))
WAIT_S = 20


@dataclass
class Bench:
    """Servers, and short words for what tests do with them."""

    servers: McpServers
    world: Path
    host: FakeHost = field(default_factory=FakeHost)

    async def tools(self, config: AgentConfig = EVERYTHING) -> dict[str, Tool]:
        async with asyncio.timeout(WAIT_S):
            used = self.servers.split(config)[1]
            await self.servers.ready(used, config)
            return self.servers.tools_of(used, config)

    async def problems(self, config: AgentConfig = EVERYTHING) -> list[ServerProblem]:
        async with asyncio.timeout(WAIT_S):
            return await self.servers.ready(self.servers.split(config)[1], config)

    async def call(self, name: str, **args: Any) -> ToolOutput:
        tools = await self.tools()
        async with asyncio.timeout(WAIT_S):
            return await tools[name].execute(args, self.host.context(name))

    def happened(self, what: str) -> list[str]:
        lines = self.world.read_text().splitlines() if self.world.exists() else []
        return [line for line in lines if line.startswith(what)]

    async def until(self, test: Callable[[], Any]) -> Any:
        async with asyncio.timeout(WAIT_S):
            while not (found := test()):
                await asyncio.sleep(0.01)
            return found


def stub(world: Path, *flags: str, env: dict[str, str] | None = None, **more: Any) -> McpServer:
    return McpServer(
        command=sys.executable, args=("-S", STUB, *flags), env={"WORLD": str(world), **(env or {})}, **more
    )


@asynccontextmanager
async def bench(world: Path, *flags: str, name: str = "stub", **more: Any) -> AsyncIterator[Bench]:
    servers = McpServers({name: stub(world, *flags, **more)})
    try:
        yield Bench(servers, world)
    finally:
        async with asyncio.timeout(WAIT_S):
            await servers.aclose()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
