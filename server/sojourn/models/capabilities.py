"""What a configured model's protocol can carry, for `model/list`. Never a secret, and nothing is asked of a server."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ._chat_dialects import OPENAI_URL, dialect_of
from ._local_files import completed, fault_of, shown_name
from .base import ModelSpec

DEFAULT_URLS = {
    "openai-chat": OPENAI_URL,
    "openai-responses": OPENAI_URL,
    "anthropic": "https://api.anthropic.com",
}


def described(spec: ModelSpec) -> dict[str, Any]:
    """A model as `model/list` shows it, in wire form, without its name."""
    shown: dict[str, Any] = {"backend": spec.backend}
    if spec.backend == "local":
        shown |= _local(spec)
    elif spec.model:
        shown["model"] = spec.model
    if spec.backend in DEFAULT_URLS:
        shown["baseUrl"] = _bare(spec.base_url or DEFAULT_URLS[spec.backend])
        shown |= _carried(spec)
    if spec.context_window is not None:
        shown["contextWindow"] = spec.context_window
    if spec.structured_output == "tool" and "structuredOutput" in shown:
        shown["structuredOutput"] = "none"
    return {**shown, "prices": spec.price is not None}


def _local(spec: ModelSpec) -> dict[str, Any]:
    fault = fault_of(spec)
    return {
        "model": shown_name(spec),
        "contextWindow": completed(spec).context_window,
        "dialect": "llama.cpp",
        "images": False,
        "tools": True,
        "reasoning": False,
        "structuredOutput": "json_schema",
        **({} if fault is None else {"fault": f"{fault[0]}: {fault[1]}"}),
    }


def _carried(spec: ModelSpec) -> dict[str, Any]:
    if spec.backend != "openai-chat":
        return {"images": True, "tools": True, "reasoning": True, "structuredOutput": "json_schema"}
    dialect = dialect_of(spec)
    return {
        "dialect": dialect.name,
        "images": bool(dialect.history.image_types),
        "tools": True,
        "reasoning": dialect.history.reasoning_field is not None,
        "structuredOutput": dialect.output,
    }


def _bare(url: str) -> str:
    """The address without what may be a secret: user, password, query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
