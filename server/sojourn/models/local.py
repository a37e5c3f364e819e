"""A real model on this machine, without keys and without network: see `_local_files.INSTALL`.

It runs in a process of its own, which speaks the chat completions API on loopback; this backend starts that process
when a model is first asked, starts it again when it has died, and speaks to it like to any other server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from sojourn.core.errors import ModelError

from ._chat_request import chat_body
from ._local_files import completed, shown_name
from ._local_process import PROGRAM, LocalProcess
from .base import ModelEvent, ModelRequest, ModelSpec
from .openai_chat import OpenAIChat
from .retry import RetryPolicy


class Local(OpenAIChat):
    """A model that this machine runs. All agents that use it share one process, which answers one after the other."""

    def __init__(self, spec: ModelSpec, *, policy: RetryPolicy | None = None, program: Sequence[str] = PROGRAM) -> None:
        super().__init__(completed(spec), policy=policy)
        self.server = LocalProcess(self.spec, program=program)
        self._wire.base_url = "http://127.0.0.1"
        self.headers: Mapping[str, str] = {}

    def body(self, request: ModelRequest) -> bytes:
        """See `HttpModel.body`."""
        return chat_body(request, replace(self.spec, model=shown_name(self.spec)), self._dialect)

    async def aclose(self) -> None:
        """See `Model.aclose`. The model can be used again; its process is started anew then."""
        await super().aclose()
        await self.server.aclose()

    async def _attempt(self, request: ModelRequest, body: bytes, deadline: float) -> AsyncGenerator[ModelEvent, None]:
        address = await self.server.address()
        self._wire.base_url = f"{address.url}/v1"
        self.headers = {"authorization": f"Bearer {address.key}"}
        try:
            async with aclosing(super()._attempt(request, body, deadline)) as events:
                async for event in events:
                    yield event
        except ModelError as error:
            if error.data.get("status") is None:  # no answer, or half of one: its process may just have died
                await self.server.settle()
            raise
