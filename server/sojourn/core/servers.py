"""`McpServer`: a server of tools that speaks the Model Context Protocol, and how to start or reach it.

Rule: it holds no secret. What is one is named: an environment variable of the daemon.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool, StrictFloat, field_validator

from .approvals import Policy
from .values import Value

_SECRET = re.compile(r"(^|_)(api_?key|key|token|secret|credentials?)$|passw(or)?d|^bearer|^auth", re.IGNORECASE)
SECRET_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie")

ServerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9](?:[_-]?[A-Za-z0-9])*$", max_length=32)]
"""A server's name. It has no `__`, so that the first `__` of a tool's name ends it."""
TimeLimit = Annotated[StrictFloat, Field(gt=0, le=7 * 24 * 3600, allow_inf_nan=False)]


def looks_secret(name: str) -> bool:
    """Whether something of this name is usually a secret."""
    return _SECRET.search(name) is not None


def _is_variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("it must be the name of an environment variable: letters, digits and '_'")
    return name


def _is_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^/@\s]+(/\S*)?", url):
        raise ValueError("it must be a URL that begins with http:// or https:// and has no user or password in it")
    return url


Variable = Annotated[str, AfterValidator(_is_variable)]
Url = Annotated[str, AfterValidator(_is_url)]


class McpServer(Value):
    """A server of tools, started with `command` (stdio) or reached at `url` (streamable HTTP).

    `passEnv`, `headerEnv` (header -> variable) and `bearerTokenEnv` name variables of the daemon's environment.
    `approval` is the policy of its tools. A call that it runs as a task is pending after `taskWaitS`. Left out,
    `idleTimeoutS` is 900 for a server of an agent, none for others.
    """

    command: Annotated[str, Field(min_length=1)] | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    pass_env: tuple[Variable, ...] = ()
    cwd: str | None = None
    url: Url | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    header_env: dict[str, Variable] = Field(default_factory=dict)
    bearer_token_env: Variable | None = None
    approval: Policy = "ask"
    enabled: StrictBool = True
    start_timeout_s: TimeLimit = 30
    call_timeout_s: TimeLimit = 300
    idle_timeout_s: TimeLimit | None = None
    task_wait_s: Annotated[StrictFloat, Field(ge=0, le=3600, allow_inf_nan=False)] = 5

    @field_validator("env")
    @classmethod
    def _no_key(cls, env: dict[str, str]) -> dict[str, str]:
        if found := sorted(name for name in env if looks_secret(name)):
            raise ValueError(
                f"{found[0]!r} looks like a key; set it in the daemon's environment and name it in pass_env"
            )
        return env

    @field_validator("headers")
    @classmethod
    def _no_secret(cls, headers: dict[str, str]) -> dict[str, str]:
        if found := sorted(name for name in headers if name.lower() in SECRET_HEADERS or looks_secret(name)):
            raise ValueError(f"header {found[0]!r} carries a key; name the variable that holds it in header_env")
        return headers

    def faults(self) -> list[tuple[str, str]]:
        """What does not fit together, as (key, what would be right)."""
        if (self.command is None) == (self.url is None):
            return [("command" if self.command is None else "url", "a server has either a 'command' or a 'url'")]
        stdio, http = ("args", "env", "pass_env", "cwd"), ("headers", "header_env", "bearer_token_env")
        names, other = (stdio, "command") if self.command is None else (http, "url")
        return [(name, f"only a server with a {other!r} takes it") for name in names if getattr(self, name)]
