"""What requests to every API have in common: names of tools, sampling settings, what the config adds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from sojourn.core.history import wire_name
from sojourn.core.messages import ToolChoice, ToolSpec

from .base import ModelRequest

OUTPUT_NAME = "final_result"
"""The name of a structured output's schema, where an API wants one."""
_MAX_TOKENS = frozenset(("max_tokens", "max_completion_tokens", "max_output_tokens"))
_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")


def with_output(request: ModelRequest, *, native: bool) -> ModelRequest:
    """The request without `output_schema` where its API has no form for that: a tool takes the output instead.

    What is no object no tool can take: then the model is told the schema in words.
    """
    schema, name = request.output_schema, request.output_tool
    if schema is None or name is None or native:
        return request
    if schema.get("type") != "object":
        told = f"Answer with JSON and nothing else, valid for this JSON Schema: {orjson.dumps(schema).decode()}"
        return replace(request, system=f"{request.system}\n\n{told}" if request.system else told, output_schema=None)
    choice = request.tool_choice
    others = () if choice is not None and choice.mode == "none" else request.tools
    tool = ToolSpec(name=name, description="Gives the final answer: its arguments are it.", input_schema=dict(schema))
    if not others:
        choice = ToolChoice(mode="tool", name=name)
    return replace(request, tools=(*others, tool), tool_choice=choice, output_schema=None)


def advertised(tools: tuple[ToolSpec, ...]) -> dict[str, str]:
    """Each tool's name on the wire and what it stands for."""
    return {wire_name(tool.name): tool.name for tool in tools}


def sampling_fields(sampling: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Sampling settings as an API's fields: `topP` is `top_p`; `renamed` has the API's own words, e.g. `max_tokens`.

    Every way to say the limit of output tokens is looked up as `max_tokens`. A setting that is None is left out.
    """
    fields: dict[str, Any] = {}
    for key, value in sampling.items():
        name = _CAPITAL.sub(r"_\1", key).lower()
        name = "max_tokens" if name in _MAX_TOKENS else name
        if value is not None:
            fields[renamed.get(name, name)] = value
    return fields


def encode_body(body: dict[str, Any], extra: Mapping[str, Any]) -> bytes:
    """The body as JSON. `extra` of the model's config wins over all of it; dicts are merged one level deep."""
    for key, value in extra.items():
        old = body.get(key)
        body[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
    return orjson.dumps(body)
