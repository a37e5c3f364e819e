"""Where servers that speak the chat completions API differ, as a table. One row per server; no `if` about it elsewhere.

A row is chosen by `dialect` of the model's spec, else by the host (and port) of its base URL; an unknown server gets
`compatible`, which uses nothing that only some servers take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

from sojourn.core.errors import InvalidParams
from sojourn.core.history import DEEPSEEK, MISTRAL, OPENAI_CHAT, Dialect

from ._addresses import base_url_of
from .base import Gauge, ModelSpec

OPENAI_URL = "https://api.openai.com/v1"


_CLOSED = Gauge(reasoning=False)
_OPEN = Gauge(bytes_per_token=3.6, reasoning=False)
"""Open models: their vocabularies are smaller than the large providers' own."""


@dataclass(frozen=True, slots=True)
class ChatDialect:
    """What one kind of server wants. `history` shapes the messages; `hosts` are suffixes, or `:port` on loopback."""

    name: str
    history: Dialect = OPENAI_CHAT
    hosts: tuple[str, ...] = ()
    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    stream_usage: bool = True
    """Takes `stream_options.include_usage`; else it reports usage without being asked."""
    required_choice: str = "required"
    """The word for "call some tool"."""
    named_choice: bool = True
    """One tool can be named in `tool_choice`; else it is offered alone under `required_choice`."""
    output: Literal["json_schema", "json_object", "none"] = "json_schema"
    """The strongest form of structured output that it has."""
    output_beside_tools: bool = True
    gauge: Gauge = _CLOSED
    """How it counts. Reasoning counts where it goes back (`Dialect.reasoning_field`)."""
    call_padding: tuple[tuple[str, object], ...] = ()
    """Fields that the first call of a turn must carry when it is not this provider's own."""


_GEMINI_UNSIGNED = ("extra_content", {"google": {"thought_signature": "skip_thought_signature_validator"}})
"""What Google's reference gives for calls that come from another model, where a signature is demanded."""

CHAT_DIALECTS: dict[str, ChatDialect] = {
    dialect.name: dialect
    for dialect in (
        ChatDialect(
            name="openai",
            hosts=("api.openai.com", "openai.azure.com"),
            max_tokens="max_completion_tokens",
        ),
        ChatDialect(name="compatible", gauge=_OPEN),
        ChatDialect(name="ollama", hosts=("ollama.com", ":11434"), gauge=_OPEN),
        ChatDialect(name="vllm", gauge=_OPEN),
        ChatDialect(name="llama.cpp", named_choice=False, gauge=_OPEN),
        ChatDialect(name="lmstudio", hosts=(":1234",), named_choice=False, gauge=_OPEN),
        ChatDialect(name="openrouter", hosts=("openrouter.ai",)),
        ChatDialect(
            name="deepseek",
            history=DEEPSEEK,
            hosts=("api.deepseek.com",),
            output="json_object",
            gauge=Gauge(bytes_per_token=3.3, image=10),
        ),
        ChatDialect(
            name="mistral",
            history=MISTRAL,
            hosts=("api.mistral.ai",),
            stream_usage=False,
            required_choice="any",
            gauge=Gauge(image=4_096, reasoning=False),
        ),
        ChatDialect(name="groq", hosts=("api.groq.com",), output_beside_tools=False),
        ChatDialect(
            name="gemini",
            hosts=("generativelanguage.googleapis.com",),
            output_beside_tools=False,
            call_padding=(_GEMINI_UNSIGNED,),
        ),
    )
}


def dialect_of(spec: ModelSpec) -> ChatDialect:
    """The row for a model, its history marked with the provider that its parts are from.

    Raises `InvalidParams` for a dialect that does not exist.
    """
    url = urlsplit(base_url_of(spec, OPENAI_URL))
    host, port = url.hostname or "", url.port
    if spec.dialect is not None and spec.dialect not in CHAT_DIALECTS:
        known = ", ".join(sorted(CHAT_DIALECTS))
        raise InvalidParams(
            f"The model {spec.name!r} has the dialect {spec.dialect!r}, which does not exist; there are: {known}.",
            field="dialect",
        )
    name = spec.dialect or _by_host(host, port)
    row = CHAT_DIALECTS[name]
    provider = f"compatible:{host}" if name == "compatible" else name
    return replace(row, history=replace(row.history, provider=provider))


def _by_host(host: str, port: int | None) -> str:
    for dialect in CHAT_DIALECTS.values():
        for known in dialect.hosts:
            if known == f":{port}" or host == known or host.endswith(f".{known}"):
                return dialect.name
    return "compatible"
