"""Methods called without a wire: their params are checked as on the wire, their handlers see a client of a house."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from house import Client, House

from sojourn.agents.hub import Hub
from sojourn.core.agent import Caller
from sojourn.core.values import Value
from sojourn.methods._table import METHODS

LIMIT_S = 10


@dataclass(eq=False)
class Calls(Client):
    """A client of a house that calls methods."""

    hub: Hub = None  # type: ignore[assignment]

    async def ask(self, method: str, **params: Any) -> Any:
        """The method's result as it would go out."""
        said = METHODS[method]
        given = said.params.model_validate(params, by_name=False)
        async with asyncio.timeout(LIMIT_S):
            answer = await said.handler(self, given)
        return answer.wire() if isinstance(answer, Value) else answer

    def caller(self, params: Any, method: str) -> Caller:
        """Who asks."""
        return Caller(client_id=self.client_id, request_id=getattr(params, "request_id", None))


def calls_of(h: House, client_id: str | None = "script", **more: Any) -> Calls:
    """A client that is connected to the house's hub."""
    client = Calls(client_id, hub=h.hub, **more)
    h.hub.client_ready(client)
    return client
