"""The chat completions API over HTTP: OpenAI's, and every server that speaks it (see `_chat_dialects`).

One try: the request goes out, the stream is read until its terminal mark, `[DONE]` or a finish reason. What ends
before it is no answer, and nothing of it is kept.
"""

from __future__ import annotations

from ._addresses import base_url_of
from ._assemble import AnswerBuilder
from ._chat_dialects import OPENAI_URL, dialect_of
from ._chat_reader import ChatReader
from ._chat_request import chat_body
from ._http import Wire
from ._http_model import HttpModel
from ._request import advertised
from ._wire_errors import Peer
from .base import ModelRequest, ModelSpec
from .retry import RetryPolicy


class OpenAIChat(HttpModel):
    """A model behind a chat completions server. Raises `InvalidParams` for a dialect that does not exist."""

    path = "/chat/completions"

    def __init__(self, spec: ModelSpec, *, policy: RetryPolicy | None = None) -> None:
        self._dialect = dialect_of(spec)
        self.gauge = self._dialect.gauge
        self._provider = self._dialect.history.provider
        super().__init__(spec, Wire(spec, provider=self._provider, base_url=base_url_of(spec, OPENAI_URL)), policy)

    def body(self, request: ModelRequest) -> bytes:
        """See `HttpModel.body`."""
        return chat_body(request, self.spec, self._dialect)

    def takes_output(self, request: ModelRequest) -> bool:
        """See `HttpModel.takes_output`."""
        dialect = self._dialect
        return dialect.output == "json_schema" and (not request.tools or dialect.output_beside_tools)

    def reader(self, request: ModelRequest, peer: Peer) -> ChatReader:
        """See `HttpModel.reader`."""
        return ChatReader(AnswerBuilder(self._provider, advertised(request.tools)), peer)
