"""The one table of JSON-RPC methods, and what a method sees of the connection it serves.

Dispatch, validation, `docs/protocol.md`, `sojourn protocol`, `sojourn call` and the Python client are read from
`METHODS`. A method is one short function from (session, params) to a result that ends in one call of the hub. This
room imports the hub for typing only, so that a client can import it without models, tools, store, pygls or httpx.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from pydantic import ConfigDict, Field

from sojourn.core.agent import Caller
from sojourn.core.values import Value

if TYPE_CHECKING:
    from sojourn.agents.hub import Hub
    from sojourn.agents.subscription import Subscriber
else:

    class Subscriber(Protocol):
        """What the hub uses of a connection; methods hand it on and do not look at it."""


_WHEN_FIRST_ASKED = ConfigDict(defer_build=True)
"""Most methods are not called in the life of a process: what checks their values is built at the first that is."""


class Params(Value):
    """A method's parameters. Unknown fields are refused by name; `_meta` is ignored."""

    model_config = _WHEN_FIRST_ASKED

    MUTATING: ClassVar[bool] = False

    meta: dict[str, Any] | None = Field(default=None, alias="_meta", repr=False)


class Mutating(Params):
    """Parameters of a method that changes something: the same `requestId` with the same body is answered once."""

    MUTATING: ClassVar[bool] = True

    request_id: str | None = Field(default=None, min_length=1, max_length=200)


class Result(Value):
    """A method's result."""

    model_config = _WHEN_FIRST_ASKED


class Session(Subscriber, Protocol):
    """What a method sees of its connection. One object a connection, for its life."""

    hub: Hub
    client_id: str | None
    root_path: str | None
    """The client's workspace directory (`rootUri` of `initialize`), the default `cwd` of agents it creates."""

    def caller(self, params: Params, method: str) -> Caller:
        """Who asks, with the request's id and body hash when it carries a `requestId`."""
        ...

    def cancel_requested(self) -> bool:
        """Whether the request that the current task answers was cancelled by its client (not: the client left)."""
        ...


P = TypeVar("P", bound=Params)
S = TypeVar("S", bound=Session)
"""A method may ask for more of its session than the others see."""
Handler = Callable[[Any, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Method:
    """One method: its wire name, the models of its params and result (None = null), its handler and its doc."""

    name: str
    params: type[Params]
    result: type[Value] | None
    handler: Handler
    doc: str
    ready: bool = True
    """Whether it needs `initialize` first."""
    inline: bool = False
    """Whether its handler never waits and runs before the next message is looked at (the connection's life cycle)."""
    accepted: type[Value] | None = None
    """What it answers instead of `result` when the request says `wait: false`."""
    heavy: bool = False
    """Whether its answers may be large: a connection has only a few of them at work at a time."""
    many: bool = False
    """Whether it answers a list of `result`."""


METHODS: dict[str, Method] = {}

LSP_NAMESPACES = ("textDocument", "window", "workspace")
"""What language clients send by themselves; the Python client has no calls for it."""


def method(
    name: str,
    *,
    params: type[P],
    result: type[Value] | None,
    accepted: type[Value] | None = None,
    ready: bool = True,
    inline: bool = False,
    heavy: bool = False,
    many: bool = False,
) -> Callable[[Callable[[S, P], Awaitable[Any]]], Callable[[S, P], Awaitable[Any]]]:
    """Enters a handler into `METHODS` under its wire name. Its docstring becomes the method's documentation."""

    def enter(handler: Callable[[S, P], Awaitable[Any]]) -> Callable[[S, P], Awaitable[Any]]:
        if name in METHODS:
            raise RuntimeError(f"The method {name!r} is defined twice.")
        doc = handler.__doc__ or ""
        METHODS[name] = Method(
            name, params, result, handler, doc, ready=ready, inline=inline, accepted=accepted, heavy=heavy, many=many
        )
        return handler

    return enter
