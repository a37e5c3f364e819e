"""The chat completions API over HTTP: OpenAI's, and every server that speaks it (see `_chat_dialects`).

One try: the request goes out, the stream is read until its terminal mark, `[DONE]` or a finish reason. What ends
before it is no answer, and nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from ._assemble import AnswerBuilder
from ._chat_dialects import OPENAI_URL, dialect_of
from ._chat_reader import ChatReader
from ._chat_request import advertised, chat_body
from ._estimate import estimate_tokens
from ._http import Wire, base_url_of
from ._read import read_answer
from .base import ModelEvent, ModelRequest, ModelSpec
from .retry import RetryPolicy, stream_with_retries


class OpenAIChat:
    """A model behind a chat completions server. Raises `InvalidParams` for a dialect that does not exist."""

    def __init__(self, spec: ModelSpec, *, policy: RetryPolicy | None = None) -> None:
        self.spec = spec
        self._dialect = dialect_of(spec)
        self._provider = self._dialect.history.provider
        self._policy = policy or RetryPolicy(max_retries=spec.max_retries)
        self._wire = Wire(spec, provider=self._provider, base_url=base_url_of(spec, OPENAI_URL))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Model.stream`."""
        body = chat_body(request, self.spec, self._dialect)
        names = advertised(request.tools)
        deadline = self._wire.deadline()
        tries = stream_with_retries(
            lambda: self._attempt(body, names, deadline), self._policy, time_left=lambda: self._wire.time_left(deadline)
        )
        async with aclosing(tries):
            async for event in tries:
                yield event

    def estimate_tokens(self, request: ModelRequest) -> int:
        """See `Model.estimate_tokens`."""
        return estimate_tokens(request)

    async def aclose(self) -> None:
        """See `Model.aclose`."""
        await self._wire.aclose()

    async def _attempt(self, body: bytes, names: dict[str, str], deadline: float) -> AsyncGenerator[ModelEvent, None]:
        wire = self._wire
        for notice in wire.open():
            yield notice
        async with wire.post("/chat/completions", body, deadline=deadline) as reply:
            reader = ChatReader(AnswerBuilder(self._provider, names), wire.peer)
            async with aclosing(read_answer(reply, reader, wire)) as deltas:
                async for delta in deltas:
                    yield delta
            events = reader.answer(reply.request_id)
        for event in events:
            yield event
