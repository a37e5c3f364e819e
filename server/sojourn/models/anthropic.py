"""The Anthropic messages API over HTTP, and servers that speak it.

Every block comes back as it was: thinking with its signature, redacted thinking, and blocks of the provider's own
tools. The end of the prompt is marked for caching, so that the next turn pays for what is new only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from sojourn.core.history import ANTHROPIC, Dialect, project, wire_name
from sojourn.core.messages import AssistantMessage, ToolChoice

from ._addresses import base_url_of
from ._anthropic_reader import AnthropicReader
from ._assemble import AnswerBuilder
from ._http import Auth, Wire
from ._http_model import HttpModel
from ._pauses import PausingTurn
from ._request import advertised, encode_body, sampling_fields
from ._wire_errors import Peer
from .base import Gauge, ModelRequest, ModelSpec
from .retry import Attempt, RetryPolicy

URL = "https://api.anthropic.com"
VERSION = "2023-06-01"
MAX_TOKENS = 8192
"""The API demands a limit; `sampling.maxTokens` or `extra.max_tokens` set another."""
_FREE = re.compile(r"claude-([123]|instant|(sonnet|opus)-4(-0|-20|$))")
"""Models that cannot be held to a schema; a tool takes their output."""
_CACHED = {"type": "ephemeral"}
_RENAMED = {"stop": "stop_sequences"}


class Anthropic(HttpModel):
    """A model behind a messages API."""

    path = "/v1/messages"
    gauge = Gauge(bytes_per_token=3.5, image=1_600, tools=350)
    """As the provider's pages on tokens, images and tool use have it."""
    headers = {"anthropic-version": VERSION}  # noqa: RUF012 - read only, declared a Mapping

    def __init__(self, spec: ModelSpec, *, policy: RetryPolicy | None = None) -> None:
        url = base_url_of(spec, URL).removesuffix("/v1")
        host = urlsplit(url).hostname or ""
        provider = "anthropic" if host == "api.anthropic.com" else f"anthropic:{host}"
        self._history: Dialect = replace(ANTHROPIC, provider=provider)
        wire = Wire(spec, provider=provider, base_url=url, auth=Auth("x-api-key", ""))
        super().__init__(spec, wire, policy)

    def body(self, request: ModelRequest) -> bytes:
        """See `HttpModel.body`."""
        said = [AssistantMessage(content=request.said)] if request.said else []
        seen = project([*request.messages, *said], self._history, system=request.system)
        if said:
            seen.messages.pop()  # The user's word to go on: a paused model goes on from its own.
        body: dict[str, Any] = {
            "model": self.spec.model,
            "max_tokens": MAX_TOKENS,
            "messages": _marked(seen.messages),
            "stream": True,
        }
        if seen.system is not None:
            body["system"] = [{"type": "text", "text": seen.system, "cache_control": _CACHED}]
        body |= _tools(request)
        if request.output_schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": dict(request.output_schema)}}
        body |= sampling_fields(request.sampling, _RENAMED)
        if _thinks(body) or _thinks(self.spec.extra):
            body |= _unforced(body)
        return encode_body(body, self.spec.extra)

    def _attempts(self, request: ModelRequest, deadline: float) -> Attempt:
        return PausingTurn(request, lambda so_far: self._attempt(so_far, self.body(so_far), deadline)).attempt

    def takes_output(self, request: ModelRequest) -> bool:
        """See `HttpModel.takes_output`."""
        return self._history.provider == "anthropic" and not _FREE.match(self.spec.model)

    def reader(self, request: ModelRequest, peer: Peer) -> AnthropicReader:
        """See `HttpModel.reader`."""
        return AnthropicReader(AnswerBuilder(self._history.provider, advertised(request.tools)), peer)


def _marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last two user turns end in a mark: where this request's cache ends, and where the last one's did."""
    for message in [message for message in messages if message["role"] == "user"][-2:]:
        message["content"][-1]["cache_control"] = _CACHED
    return messages


def _tools(request: ModelRequest) -> dict[str, Any]:
    if not request.tools:
        return {}
    tools = [
        {"name": wire_name(tool.name), "description": tool.description, "input_schema": tool.input_schema}
        for tool in request.tools
    ]
    tools[-1]["cache_control"] = _CACHED
    choice = request.tool_choice
    return {"tools": tools} if choice is None else {"tools": tools, "tool_choice": _choice(choice)}


def _thinks(fields: Mapping[str, Any]) -> bool:
    thinking = fields.get("thinking")
    return isinstance(thinking, Mapping) and thinking.get("type") not in (None, "disabled")


def _unforced(body: dict[str, Any]) -> dict[str, Any]:
    """A model that thinks cannot be made to call a tool: the API refuses such a request."""
    forced = body.get("tool_choice", {}).get("type") in ("any", "tool")
    return {"tool_choice": {"type": "auto"}} if forced else {}


def _choice(choice: ToolChoice) -> dict[str, str]:
    if choice.mode == "tool" and choice.name is not None:
        return {"type": "tool", "name": wire_name(choice.name)}
    return {"type": "any" if choice.mode in ("required", "tool") else choice.mode}
