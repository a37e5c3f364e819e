"""A request to a chat completions server, in the words of its dialect."""

from __future__ import annotations

from typing import Any

from sojourn.core.history import project, wire_name
from sojourn.core.messages import ToolChoice, ToolSpec

from ._chat_dialects import ChatDialect
from ._request import OUTPUT_NAME, encode_body, sampling_fields
from .base import ModelRequest, ModelSpec


def chat_body(request: ModelRequest, spec: ModelSpec, dialect: ChatDialect) -> bytes:
    """The JSON body."""
    body: dict[str, Any] = {"model": spec.model, "messages": _messages(request, dialect), "stream": True}
    if dialect.stream_usage:
        body["stream_options"] = {"include_usage": True}
    body |= _tools(request, dialect)
    body |= _output(request, dialect)
    body |= sampling_fields(request.sampling, {"max_tokens": dialect.max_tokens})
    return encode_body(body, spec.extra)


def _messages(request: ModelRequest, dialect: ChatDialect) -> list[dict[str, Any]]:
    messages = project(request.messages, dialect.history, system=request.system).messages
    for key, value in dialect.call_padding:
        for message in messages:
            for call in message.get("tool_calls", ())[:1]:
                call.setdefault(key, value)
    return messages


def _tools(request: ModelRequest, dialect: ChatDialect) -> dict[str, Any]:
    choice, tools = request.tool_choice, request.tools
    if choice is not None and choice.mode == "tool" and not dialect.named_choice:
        tools = tuple(tool for tool in tools if tool.name == choice.name)
    if not tools:
        return {}
    fields: dict[str, Any] = {"tools": [_tool(tool) for tool in tools]}
    if choice is not None:
        fields["tool_choice"] = _choice(choice, dialect)
    return fields


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": wire_name(tool.name), "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice, dialect: ChatDialect) -> str | dict[str, Any]:
    if choice.mode == "tool" and choice.name is not None and dialect.named_choice:
        return {"type": "function", "function": {"name": wire_name(choice.name)}}
    return dialect.required_choice if choice.mode in ("tool", "required") else choice.mode


def _output(request: ModelRequest, dialect: ChatDialect) -> dict[str, Any]:
    schema = request.output_schema
    if schema is None or dialect.output == "none" or (request.tools and not dialect.output_beside_tools):
        return {}
    if dialect.output == "json_object":
        return {"response_format": {"type": "json_object"}}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": OUTPUT_NAME, "schema": dict(schema)}}}
