"""What a server's tools are called: `server__tool`, in the form that every provider takes.

Rule: a name depends on the server's and the tool's own name alone, never on what else there is, so that it is the same
after a restart, in every agent, in whatever order a server lists its tools.
"""

from __future__ import annotations

import hashlib
import re

BETWEEN = "__"
EVERY = "*"
_MOST = 64
_MARK = 8


def tool_name(server: str, tool: str) -> str:
    """The name of a server's tool. One that is too long, or has other characters, ends in a hash of the real name."""
    name = server + BETWEEN + re.sub(r"[^A-Za-z0-9_-]", "_", tool)
    if tool and len(name) <= _MOST and name == server + BETWEEN + tool:
        return name
    mark = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK]
    return f"{name[: _MOST - _MARK - 1]}_{mark}"


def server_of(name: str) -> str | None:
    """The server that a tool's name belongs to, if it has the form of one."""
    server, between, tool = name.partition(BETWEEN)
    return server if between and tool else None
