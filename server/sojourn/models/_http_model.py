"""What the models behind an HTTP API have in common: one turn as tries of one request, each read to its end.

A backend adds what is its own: the path and headers, the body, and a reader of the answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Protocol

from sojourn.core.errors import InvalidParams

from ._estimate import estimate_tokens
from ._http import Wire
from ._read import Reader, read_answer
from ._request import with_output
from ._wire_errors import Peer
from .base import NEUTRAL, Gauge, ModelEvent, ModelRequest, ModelSpec
from .retry import Attempt, RetryPolicy, stream_with_retries


class AnswerReader(Reader, Protocol):
    """A reader that says in the end what the answer is."""

    def answer(self, request_id: str | None) -> list[ModelEvent]:
        """The last deltas, what there is to tell, and the answer. Raises `ModelError` when there is none."""
        ...


class HttpModel:
    """A model behind an HTTP API. The three methods without a body here are the backend's."""

    def __init__(self, spec: ModelSpec, wire: Wire, policy: RetryPolicy | None) -> None:
        self.spec = spec
        self._wire = wire
        self._policy = policy or RetryPolicy(max_retries=spec.max_retries)

    path: str
    gauge: Gauge = NEUTRAL
    headers: Mapping[str, str] = {}

    def body(self, request: ModelRequest) -> bytes:
        """The request's JSON."""
        raise NotImplementedError

    def reader(self, request: ModelRequest, peer: Peer) -> AnswerReader:
        """A reader for one answer to `request`."""
        raise NotImplementedError

    def takes_output(self, request: ModelRequest) -> bool:
        """Whether the API itself holds the model to `request.output_schema`."""
        return True

    def prepared(self, request: ModelRequest) -> ModelRequest:
        """The request as this API takes it: output by a schema in its own form, else through a tool."""
        wanted = self.spec.structured_output
        native = self.takes_output(request) if wanted is None else wanted == "native"
        return with_output(request, native=native)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Model.stream`."""
        deadline = self._wire.deadline()
        tries = stream_with_retries(
            self._attempts(self.prepared(request), deadline),
            self._policy,
            time_left=lambda: self._wire.time_left(deadline),
        )
        async with aclosing(tries):
            async for event in tries:
                yield event

    def estimate_tokens(self, request: ModelRequest) -> int:
        """See `Model.estimate_tokens`."""
        return estimate_tokens(request, self.gauge)

    async def aclose(self) -> None:
        """See `Model.aclose`."""
        await self._wire.aclose()

    def _attempts(self, request: ModelRequest, deadline: float) -> Attempt:
        """What makes one try of the turn; the request's body is made once for all of them."""
        body = self.body(request)
        return lambda: self._attempt(request, body, deadline)

    async def _attempt(self, request: ModelRequest, body: bytes, deadline: float) -> AsyncGenerator[ModelEvent, None]:
        wire = self._wire
        for notice in wire.open():
            yield notice
        async with wire.post(self.path, body, deadline=deadline, headers=self.headers) as reply:
            reader = self.reader(request, wire.peer)
            try:
                async with aclosing(read_answer(reply, reader, wire)) as deltas:
                    async for delta in deltas:
                        yield delta
                events = reader.answer(reply.request_id)
            except InvalidParams as error:
                text = f"sent something that cannot be kept: {error.message}"
                raise wire.peer.error(text, retryable=False, reason="badAnswer") from None
        for event in events:
            yield event
