"""Tools of other programs: servers of the Model Context Protocol, by the official SDK.

Rule: only this room knows `mcp`, and it is imported when a server is first needed (it takes half a second): `naming`,
`servers`, `offer` and `notes` do without it, `connection`, `process` and `results` are imported by it.
"""

from .servers import McpServers, ServerProblem

__all__ = ["McpServers", "ServerProblem"]
