"""An MCP server over streamable HTTP, by the SDK, in a process of its own: `mcp_http_stub.py PORT`."""

from __future__ import annotations

import sys

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("http-stub")


@server.tool()
async def echo(text: str) -> str:
    """Echoes."""
    return text


@server.tool()
async def header(which: str, ctx: Context) -> str:
    """Answers a header of the request."""
    return str(ctx.request_context.request.headers.get(which))


@server.tool()
async def count(upto: int, ctx: Context) -> str:
    """Counts, telling so."""
    for step in range(1, upto + 1):
        await ctx.report_progress(step, upto, f"at {step}")
        await anyio.sleep(0.06)
    return "counted"


@server.tool()
async def forget() -> str:
    """Forgets every session, as a restart would."""
    server.session_manager._server_instances.clear()
    return "who are you?"


@server.tool()
async def wait() -> str:
    """Waits until it is told to give up, and says so."""
    try:
        await anyio.sleep_forever()
    finally:
        print("gave up", flush=True)
    return ""


if __name__ == "__main__":
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
