"""The strict checkers themselves: each accepts a plain conversation and names the rule that a bad one breaks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from strict_checkers import (
    check_anthropic,
    check_deepseek,
    check_mistral,
    check_openai_chat,
    check_openai_responses,
)

CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "build", "arguments": "{}"}}
OTHER_CALL = {**CALL, "id": "jklmnopqr"}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "content": "ok"}
OTHER_RESULT = {**RESULT, "tool_call_id": "jklmnopqr"}
SYSTEM = {"role": "system", "content": "be brief"}
USER = {"role": "user", "content": "go"}
TEXT = {"role": "assistant", "content": "done"}


def calling(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def test_a_plain_conversation_passes_every_chat_checker() -> None:
    messages = [SYSTEM, USER, calling(CALL, OTHER_CALL), RESULT, OTHER_RESULT, TEXT, USER]
    check_openai_chat(messages)
    check_mistral(messages)
    for message in (thinking := copy.deepcopy(messages)):
        if message["role"] == "assistant":
            message["reasoning_content"] = "hm"
    check_deepseek(thinking)


@pytest.mark.parametrize(
    ("messages", "rule"),
    [
        ([], "at least one message"),
        ([SYSTEM], "besides the system message"),
        ([SYSTEM, SYSTEM, USER], "first message after the system"),
        ([TEXT, USER], "first message after the system"),
        ([USER, SYSTEM, USER], "may not stand here"),
        ([USER, TEXT], "Expected last role"),
        ([USER, USER], "must alternate"),
        ([USER, TEXT, TEXT, USER], "must alternate"),
        ([USER, calling(CALL)], "Expected last role"),
        ([USER, calling(CALL), USER], "did not have response messages"),
        ([USER, calling(CALL, OTHER_CALL), RESULT], "did not have response messages"),
        ([USER, calling(CALL, OTHER_CALL), OTHER_RESULT, RESULT], "in call order"),
        ([USER, calling(CALL), RESULT, RESULT], "must be a response"),
        ([USER, RESULT], "must be a response"),
        ([USER, calling(CALL, CALL), RESULT, RESULT], "ids are unique"),
        ([USER, calling(CALL), RESULT, calling(CALL), RESULT], "ids are unique"),
        ([USER, calling({**CALL, "id": "x" * 41}), {**RESULT, "tool_call_id": "x" * 41}], "wrong form"),
        ([USER, calling({**CALL, "function": {"name": "a b", "arguments": "{}"}}), RESULT], "match pattern"),
        ([USER, calling({**CALL, "function": {"name": "a", "arguments": "[1]"}}), RESULT], "of an object"),
        ([USER, calling({**CALL, "function": {"name": "a", "arguments": {}}}), RESULT], "must be a string"),
        ([USER, calling(), USER], "empty array"),
        ([USER, calling(CALL), {**RESULT, "content": " "}], "non-empty"),
        ([{**USER, "content": ""}], "non-empty"),
        ([{**USER, "content": []}], "non-empty"),
        ([{**USER, "content": [{"type": "image_url", "image_url": {"url": "file:///a.png"}}]}], "image url"),
        ([{**USER, "content": [{"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}}]}], "media"),
        ([{**USER, "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,/9j/"}}]}], "appears"),
        ([USER, {**TEXT, "content": None}, USER], "non-empty"),
    ],
)
def test_a_bad_chat_request_is_refused_by_rule(messages: list[dict[str, Any]], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_openai_chat(messages)


@pytest.mark.parametrize(
    ("messages", "rule"),
    [
        ([USER, calling(CALL), RESULT, USER], "Unexpected role 'user' after role 'tool'"),
        ([USER, calling(CALL, content="let me see"), RESULT], "but not both"),
        ([USER, calling({**CALL, "id": "call_1"}), {**RESULT, "tool_call_id": "call_1"}], "wrong form"),
        ([USER, TEXT, calling(CALL), RESULT], "must alternate"),
    ],
)
def test_mistral_refuses_more(messages: list[dict[str, Any]], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_mistral(messages)


@pytest.mark.parametrize("reasoning", [{}, {"reasoning_content": ""}, {"reasoning_content": None}])
def test_deepseek_wants_reasoning_in_every_assistant_message(reasoning: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="must be passed back"):
        check_deepseek([USER, {**TEXT, **reasoning}, USER])


ASK = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]}
SAY = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
THINK = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"}
DO = {"type": "function_call", "call_id": "c1", "name": "build", "arguments": "{}"}
DID = {"type": "function_call_output", "call_id": "c1", "output": "ok"}


def test_a_plain_conversation_passes_the_responses_checker() -> None:
    check_openai_responses([ASK, THINK, SAY, DO, {**DO, "call_id": "c2"}, DID, {**DID, "call_id": "c2"}, SAY, ASK])


@pytest.mark.parametrize(
    ("items", "rule"),
    [
        ([], "at least one item"),
        ([{"role": "user"}], "has a type"),
        ([ASK, DO], "No tool output found"),
        ([ASK, DO, ASK, DID], "No tool output found"),
        ([ASK, DID], "No tool call found"),
        ([ASK, DO, DID, DID], "No tool call found"),
        ([ASK, DO, {**DO, "call_id": "c2"}, {**DID, "call_id": "c2"}, DID], "order of their calls"),
        ([ASK, DO, DID, DO, DID], "call ids are unique"),
        ([ASK, {**DO, "call_id": "a.b"}, DID], "plain characters"),
        ([ASK, {**DO, "id": "call_1"}, DID], "begins with 'fc'"),
        ([ASK, {**SAY, "id": "rs_1"}], "begins with 'msg'"),
        ([ASK, THINK], "required following item"),
        ([ASK, THINK, ASK], "required following item"),
        ([ASK, {**THINK, "encrypted_content": ""}, SAY], "not persisted"),
        ([ASK, THINK, SAY, THINK, SAY], "Duplicate item"),
        ([ASK, {**THINK, "id": "x"}, SAY], "begins with 'rs'"),
        ([ASK, {**SAY, "id": 3}], "Invalid type"),
        ([{**ASK, "content": []}], "non-empty"),
        ([{**ASK, "role": "tool"}], "Invalid role"),
        ([ASK, DO, {**DID, "output": ""}], "non-empty"),
        ([{**ASK, "content": [{"type": "input_image", "image_url": "x", "detail": "auto"}]}], "image url"),
        ([{**ASK, "content": [{"type": "output_text", "text": "x", "detail": "auto"}]}], "Invalid value"),
    ],
)
def test_a_bad_responses_request_is_refused_by_rule(items: list[dict[str, Any]], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_openai_responses(items)


def block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def by(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
USE = {"type": "tool_use", "id": "c1", "name": "build", "input": {}}
GOT = {"type": "tool_result", "tool_use_id": "c1", "content": [block("ok")]}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
GO = by("user", block("go"))


def test_a_plain_conversation_passes_the_anthropic_checker() -> None:
    check_anthropic([GO, by("assistant", THOUGHT, USE), by("user", GOT, block("and")), by("assistant", block("x")), GO])


@pytest.mark.parametrize(
    ("messages", "rule"),
    [
        ([], "at least one message"),
        ([GO, by("assistant", block("x"))], "must end with a user"),
        ([by("assistant", block("x")), GO], "first message"),
        ([GO, GO], "must alternate"),
        ([GO, by("assistant", USE), GO], "without `tool_result`"),
        ([GO, by("assistant", block("x")), by("user", GOT)], "unexpected `tool_use_id`"),
        ([GO, by("assistant", USE), by("user", block("x"), GOT)], "come first"),
        ([GO, by("assistant", USE), by("user", GOT, GOT)], "single result"),
        ([GO, by("assistant", USE, USE), by("user", GOT)], "must be unique"),
        ([GO, by("assistant", USE), by("user", GOT), by("assistant", USE), by("user", GOT)], "must be unique"),
        ([GO, by("assistant", {**USE, "id": "a.b"}), by("user", {**GOT, "tool_use_id": "a.b"})], "match pattern"),
        ([GO, by("assistant", {**USE, "name": ""}), by("user", GOT)], "match pattern"),
        ([GO, by("assistant", {**USE, "input": "x"}), by("user", GOT)], "valid dictionary"),
        ([GO, by("assistant", THOUGHT), GO], "final block"),
        ([GO, by("assistant", {**THOUGHT, "signature": ""}, block("x")), GO], "signature"),
        ([GO, by("assistant", {"type": "redacted_thinking"}, block("x")), GO], "redacted_thinking.data"),
        ([GO, by("assistant"), GO], "content must be non-empty"),
        ([GO, by("assistant", block("\n")), GO], "non-empty"),
        ([by("user", block(""))], "non-empty"),
        (
            [GO, by("assistant", USE), by("user", {**GOT, "is_error": True, "content": [PICTURE]})],
            "must be type 'text'",
        ),
        ([GO, by("assistant", PICTURE), GO], "may not stand in an assistant"),
        ([by("user", {**PICTURE, "source": {"type": "url", "url": "http://x/y.png"}})], "HTTPS"),
        ([{**GO, "id": "msg-1"}], "extra inputs"),
    ],
)
def test_a_bad_anthropic_request_is_refused_by_rule(messages: list[dict[str, Any]], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_anthropic(messages)


@pytest.mark.parametrize("text", [float("nan"), "\ud800"])
def test_what_is_not_strict_json_is_refused(text: object) -> None:
    with pytest.raises((ValueError, AssertionError)):
        check_openai_chat([{"role": "user", "content": text}])
