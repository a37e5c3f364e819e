"""How output by a schema is asked for: in the API's own form where there is one, else through a tool."""

from __future__ import annotations

import json
from typing import Any

import pytest
from models.loopback import asked, spec_for

from sojourn.core.messages import ToolChoice, ToolSpec, user
from sojourn.models.base import ModelRequest
from sojourn.models.table import make_model

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
LIST = {"type": "array", "items": {"type": "integer"}}
LOOK = ToolSpec(name="look", description="Looks.", input_schema={"type": "object"})
CLAUDE = "https://api.anthropic.com"
NATIVE = {"openai-chat": "response_format", "openai-responses": "text", "anthropic": "output_config"}

FORMS: list[tuple[str, dict[str, Any], tuple[ToolSpec, ...], bool]] = [
    ("openai-chat", {}, (), True),
    ("openai-chat", {}, (LOOK,), True),
    ("openai-chat", {"dialect": "groq"}, (), True),
    ("openai-chat", {"dialect": "groq"}, (LOOK,), False),
    ("openai-chat", {"dialect": "gemini"}, (LOOK,), False),
    ("openai-chat", {"dialect": "deepseek"}, (), False),
    ("openai-chat", {"dialect": "llama.cpp"}, (LOOK,), True),
    ("openai-chat", {"structured_output": "tool"}, (), False),
    ("openai-chat", {"dialect": "groq", "structured_output": "native"}, (), True),
    ("openai-responses", {}, (LOOK,), True),
    ("openai-responses", {"structured_output": "tool"}, (LOOK,), False),
    ("anthropic", {"base_url": CLAUDE, "model": "claude-sonnet-4-5"}, (LOOK,), True),
    ("anthropic", {"base_url": CLAUDE, "model": "claude-opus-4-1-20250805"}, (), True),
    ("anthropic", {"base_url": CLAUDE, "model": "claude-sonnet-4-20250514"}, (), False),
    ("anthropic", {"base_url": CLAUDE, "model": "claude-3-7-sonnet-latest"}, (LOOK,), False),
    ("anthropic", {"base_url": "http://127.0.0.1:1"}, (LOOK,), False),
]


def body_of(backend: str, request: ModelRequest, **fields: Any) -> dict[str, Any]:
    """What would be sent."""
    model = make_model(spec_for(backend=backend, **fields))
    return dict(json.loads(model.body(model.prepared(request))))


def names_in(body: dict[str, Any]) -> list[str]:
    return [(tool.get("function") or tool)["name"] for tool in body.get("tools", ())]


@pytest.mark.parametrize(("backend", "fields", "tools", "native"), FORMS)
def test_output_is_asked_for_in_the_strongest_form_there_is(
    backend: str, fields: dict[str, Any], tools: tuple[ToolSpec, ...], native: bool
) -> None:
    request = asked(user("go"), tools=tools, output_schema=SCHEMA, output_tool="final_result")
    body = body_of(backend, request, **fields)
    assert (NATIVE[backend] in body) == native
    expected = [tool.name for tool in tools] + ([] if native else ["final_result"])
    assert names_in(body) == expected
    assert ("tool_choice" in body) == (expected == ["final_result"]), "a single tool must be called, others may be"


def test_with_no_tools_allowed_only_the_output_s_may_be_called() -> None:
    request = asked(tools=(LOOK,), tool_choice=ToolChoice(mode="none"), output_schema=SCHEMA, output_tool="out")
    body = body_of("openai-chat", request, structured_output="tool")
    assert names_in(body) == ["out"]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "out"}}


def test_what_is_no_object_is_told_in_words() -> None:
    request = asked(system="Be brief.", output_schema=LIST, output_tool="out")
    body = body_of("openai-chat", request, structured_output="tool")
    assert "tools" not in body
    assert body["messages"][0]["content"].startswith("Be brief.\n\nAnswer with JSON and nothing else")
    assert '{"type":"array","items":{"type":"integer"}}' in body["messages"][0]["content"]


@pytest.mark.parametrize("where", ["sampling", "extra"])
def test_a_model_that_thinks_is_not_made_to_call(where: str) -> None:
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    request = asked(output_schema=SCHEMA, output_tool="out", sampling=thinking if where == "sampling" else {})
    extra = thinking if where == "extra" else {}
    body = body_of("anthropic", request, extra=extra, structured_output="tool")
    assert body["tool_choice"] == {"type": "auto"}
    assert names_in(body) == ["out"]
    assert body["thinking"] == thinking["thinking"]
