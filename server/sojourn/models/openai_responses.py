"""The OpenAI responses API over HTTP, and servers that speak it.

Nothing is stored at the provider: every request holds the whole conversation, and reasoning goes back as the encrypted
items that it came as. Items of the provider's own tools are kept whole and sent back too.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from sojourn.core.history import OPENAI_RESPONSES, Dialect, project, wire_name
from sojourn.core.messages import ToolChoice

from ._addresses import base_url_of
from ._assemble import AnswerBuilder
from ._http import Wire
from ._http_model import HttpModel
from ._request import OUTPUT_NAME, advertised, encode_body, sampling_fields
from ._responses_reader import ResponsesReader
from ._wire_errors import Peer
from .base import ModelRequest, ModelSpec
from .retry import RetryPolicy

URL = "https://api.openai.com/v1"
_RENAMED = {"max_tokens": "max_output_tokens"}
_REASONS = re.compile(r"(o\d|gpt-[5-9]|codex)(?!.*chat)")
"""Models that reason. The others refuse to be asked for encrypted reasoning (`extra.include` says otherwise)."""


class OpenAIResponses(HttpModel):
    """A model behind a responses API."""

    path = "/responses"

    def __init__(self, spec: ModelSpec, *, policy: RetryPolicy | None = None) -> None:
        url = base_url_of(spec, URL)
        host = urlsplit(url).hostname or ""
        provider = "openai-responses" if host == "api.openai.com" else f"openai-responses:{host}"
        self._history: Dialect = replace(OPENAI_RESPONSES, provider=provider)
        super().__init__(spec, Wire(spec, provider=provider, base_url=url), policy)

    def body(self, request: ModelRequest) -> bytes:
        """See `HttpModel.body`."""
        seen = project(request.messages, self._history, system=request.system)
        body: dict[str, Any] = {"model": self.spec.model, "input": seen.messages, "stream": True, "store": False}
        if _REASONS.match(self.spec.model):
            body["include"] = ["reasoning.encrypted_content"]
        if seen.system is not None:
            body["instructions"] = seen.system
        body |= _tools(request)
        if request.output_schema is not None:
            shape = {"type": "json_schema", "name": OUTPUT_NAME, "schema": dict(request.output_schema)}
            body["text"] = {"format": shape}
        body |= sampling_fields(request.sampling, _RENAMED)
        return encode_body(body, self.spec.extra)

    def reader(self, request: ModelRequest, peer: Peer) -> ResponsesReader:
        """See `HttpModel.reader`."""
        return ResponsesReader(AnswerBuilder(self._history.provider, advertised(request.tools)), peer)


def _tools(request: ModelRequest) -> dict[str, Any]:
    if not request.tools:
        return {}
    tools = [
        {
            "type": "function",
            "name": wire_name(tool.name),
            "description": tool.description,
            "parameters": tool.input_schema,
            "strict": False,
        }
        for tool in request.tools
    ]
    choice = request.tool_choice
    return {"tools": tools} if choice is None else {"tools": tools, "tool_choice": _choice(choice)}


def _choice(choice: ToolChoice) -> str | dict[str, str]:
    if choice.mode == "tool" and choice.name is not None:
        return {"type": "function", "name": wire_name(choice.name)}
    return "required" if choice.mode == "tool" else choice.mode
