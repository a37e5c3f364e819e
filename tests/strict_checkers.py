"""What the strictest providers check of a request's history, written from their public rules and error texts.

Nothing of the product is used here. Each function raises `AssertionError` naming the rule that is broken; the words
follow the provider's own error where there is one. What only the provider can judge (signatures, encrypted content)
is checked for its form alone.
"""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise
from typing import Any

Wire = list[dict[str, Any]]

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
OPENAI_ID = re.compile(r".{1,40}")
RESPONSES_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
IMAGE_TYPES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
SIGNATURES = {b"\x89PNG\r\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


def check_openai_chat(messages: Wire) -> None:
    """The rules of chat completions, and of the chat templates of open models (users and assistants alternate)."""
    _check_json(messages)
    _check_chat(messages, id_form=OPENAI_ID)


def check_deepseek(messages: Wire) -> None:
    """Chat completions in thinking mode: every assistant message carries its reasoning; text only."""
    check_openai_chat(messages)
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            reasoning = message.get("reasoning_content")
            _rule(isinstance(reasoning, str) and reasoning != "", "reasoning_content must be passed back", at)
        _rule(message["content"] is None or isinstance(message["content"], str), "content must be a string", at)


def check_mistral(messages: Wire) -> None:
    """Chat completions as Mistral's request validator and its chat templates check them."""
    _check_json(messages)
    body = _check_chat(messages, id_form=MISTRAL_ID)
    before = None
    for at, message in enumerate(body):
        role = message["role"]
        if before == "tool":
            _rule(role in ("assistant", "tool"), f"Unexpected role {role!r} after role 'tool'", at)
        if role == "assistant":
            both = bool(message.get("content")) == bool(message.get("tool_calls"))
            _rule(not both, "Assistant message must have either content or tool_calls, but not both", at)
        before = role
    # The templates count user messages and assistant messages without calls: these two must take turns.
    _check_alternation([m["role"] for m in body if m["role"] != "tool" and not m.get("tool_calls")])


def check_openai_responses(items: Wire) -> None:
    """The rules of the responses API for `input`, when nothing is stored at the provider."""
    _check_json(items)
    _rule(bool(items), "input must have at least one item")
    open_calls: list[str] = []
    called: set[str] = set()
    item_ids: set[str] = set()
    for at, item in enumerate(items):
        kind = item.get("type")
        _rule(isinstance(kind, str), "every item has a type", at)
        if "id" in item:
            _rule(isinstance(item["id"], str), "Invalid type for id", at)
            _rule(item["id"] not in item_ids, f"Duplicate item found with id {item['id']}", at)
            item_ids.add(item["id"])
        if kind == "function_call_output":
            _rule(item["call_id"] in open_calls, "No tool call found for function call output", at)
            _rule(open_calls[0] == item["call_id"], "outputs stand in the order of their calls", at)
            open_calls.pop(0)
            _check_output(item["output"], at)
            continue
        if kind == "function_call":
            _check_function(item, at)
            _rule(item.get("id", "fc").startswith("fc"), "Expected an ID that begins with 'fc'", at)
            _rule(RESPONSES_ID.fullmatch(item["call_id"]) is not None, "call_id has 1 to 64 plain characters", at)
            _rule(item["call_id"] not in called, "call ids are unique", at)
            called.add(item["call_id"])
            open_calls.append(item["call_id"])
            continue
        model_made = kind != "message" or item.get("role") == "assistant"
        _rule(not open_calls or model_made, f"No tool output found for function call {open_calls[:1]}", at)
        if kind == "reasoning":
            _check_reasoning(items, at)
        elif kind == "message":
            _check_response_message(item, at)
    _rule(not open_calls, f"No tool output found for function call {open_calls[:1]}")


def check_anthropic(messages: Wire, system: str | None = None) -> None:
    """The rules of the Anthropic messages API, for models with thinking and without prefill."""
    _check_json(messages)
    _rule(system is None or (isinstance(system, str) and system.strip() != ""), "system: text must be non-empty")
    _rule(bool(messages), "messages: at least one message is required")
    _rule(messages[-1]["role"] == "user", "the conversation must end with a user message (no prefill)")
    _check_alternation([message["role"] for message in messages])
    used: set[str] = set()
    owed: list[str] = []
    for at, message in enumerate(messages):
        _rule(set(message) == {"role", "content"}, "messages: extra inputs are not permitted", at)
        content = message["content"]
        _rule(isinstance(content, list) and bool(content), "messages: content must be non-empty", at)
        if message["role"] == "user":
            _check_anthropic_user(content, owed, at)
            owed = []
            continue
        for block in content:
            _check_assistant_block(block, at)
        _rule(
            content[-1]["type"] not in ("thinking", "redacted_thinking"),
            "The final block in an assistant message cannot be `thinking`",
            at,
        )
        owed = [block["id"] for block in content if block["type"] == "tool_use"]
        _rule(len(set(owed)) == len(owed) and not used & set(owed), "`tool_use` ids must be unique", at)
        used |= set(owed)
    _rule(not owed, "`tool_use` ids were found without `tool_result` blocks immediately after")


def _rule(holds: bool, rule: str, at: int | None = None) -> None:
    assert holds, rule if at is None else f"messages[{at}]: {rule}"


def _check_json(messages: Wire) -> None:
    """Strict JSON in UTF-8: no NaN, no lone surrogate."""
    json.dumps(messages, allow_nan=False, ensure_ascii=False).encode()


def _check_alternation(roles: list[str]) -> None:
    """Users and assistants take turns, a user first."""
    _rule(bool(roles) and roles[0] == "user", "first message must use the 'user' role")
    for at, (one, other) in enumerate(pairwise(roles)):
        _rule(one != other, "roles must alternate between 'user' and 'assistant'", at + 1)


def _check_chat(messages: Wire, *, id_form: re.Pattern[str]) -> Wire:
    """What all chat completions have in common; the messages after the system message."""
    _rule(bool(messages), "messages must have at least one message")
    body = messages[1:] if messages[0]["role"] == "system" else messages
    _rule(bool(body), "messages must have at least one message besides the system message")
    if body is not messages:
        _check_text(messages[0]["content"], 0)
    _rule(body[0]["role"] == "user", "the first message after the system message is a user's")
    _rule(body[-1]["role"] in ("user", "tool"), "Expected last role User or Tool")
    ids: set[str] = set()
    owed: list[str] = []
    before = ""
    for at, message in enumerate(body):
        role = message["role"]
        _rule(role == "tool" or role != before, "roles must alternate between 'user' and 'assistant'", at)
        before = role
        if role == "tool":
            _rule(
                bool(owed), "messages with role 'tool' must be a response to a preceding message with 'tool_calls'", at
            )
            _rule(message["tool_call_id"] == owed[0], "each call has one result, in call order", at)
            owed.pop(0)
            _check_text(message["content"], at)
            continue
        _rule(not owed, f"tool_call_ids did not have response messages: {owed}", at)
        _rule(role in ("user", "assistant"), f"the role {role!r} may not stand here", at)
        if role == "user":
            _check_user_content(message["content"], at)
            continue
        owed = _check_chat_assistant(message, ids, id_form, at)
    _rule(not owed, f"tool_call_ids did not have response messages: {owed}")
    return body


def _check_chat_assistant(message: dict[str, Any], ids: set[str], id_form: re.Pattern[str], at: int) -> list[str]:
    calls = message.get("tool_calls")
    _rule("tool_calls" not in message or bool(calls), "tool_calls must not be an empty array", at)
    if not calls or message["content"] is not None:
        _check_text(message["content"], at)
    made: list[str] = []
    for call in calls or []:
        _rule(call["type"] == "function", "a call's type is 'function'", at)
        _rule(id_form.fullmatch(call["id"]) is not None, f"Tool call id was {call['id']}: wrong form", at)
        _rule(call["id"] not in ids, "tool call ids are unique", at)
        ids.add(call["id"])
        made.append(call["id"])
        _check_function(call["function"], at)
    return made


def _check_function(function: dict[str, Any], at: int) -> None:
    _rule(NAME.fullmatch(function["name"]) is not None, "name: string does not match pattern", at)
    _rule(isinstance(function["arguments"], str), "arguments must be a string", at)
    _rule(isinstance(json.loads(function["arguments"]), dict), "arguments must be the JSON text of an object", at)


def _check_text(text: object, at: int) -> None:
    _rule(isinstance(text, str) and text.strip() != "", "text content must be non-empty", at)


def _check_user_content(content: object, at: int) -> None:
    if not isinstance(content, list):
        _check_text(content, at)
        return
    _rule(bool(content), "content must be non-empty", at)
    for part in content:
        if part["type"] == "text":
            _check_text(part["text"], at)
        else:
            _rule(part["type"] == "image_url", "a part is a text or an image_url", at)
            _check_url(part["image_url"]["url"], at)


def _check_url(url: str, at: int) -> None:
    if not url.startswith("data:"):
        _rule(re.fullmatch(r"https?://\S+", url) is not None, "Invalid image url", at)
        return
    match = re.fullmatch(r"data:([a-z]+/[a-z]+);base64,(.+)", url)
    assert match is not None, f"messages[{at}]: Invalid base64 image_url"
    _check_image(match[1], match[2], at)


def _check_image(media_type: str, data: str, at: int) -> None:
    _rule(media_type in IMAGE_TYPES, f"media type {media_type!r} is not supported", at)
    raw = base64.b64decode(data, validate=True)
    _rule(bool(raw), "image cannot be empty", at)
    for signature, real in SIGNATURES.items():
        if raw.startswith(signature):
            _rule(real == media_type, f"the image appears to be {real}, not {media_type}", at)


def _check_output(output: object, at: int) -> None:
    if isinstance(output, str):
        _check_text(output, at)
    else:
        _check_input_parts(output, at)


def _check_input_parts(content: Any, at: int) -> None:
    _rule(isinstance(content, list) and bool(content), "content must be non-empty", at)
    for part in content:
        if part["type"] == "input_text":
            _check_text(part["text"], at)
        else:
            _rule(part["type"] == "input_image" and part["detail"] in ("auto", "low", "high"), "Invalid value", at)
            _check_url(part["image_url"], at)


def _check_response_message(item: dict[str, Any], at: int) -> None:
    _rule(item["role"] in ("user", "assistant", "system", "developer"), "Invalid role", at)
    if item["role"] != "assistant":
        _check_input_parts(item["content"], at)
        return
    if "id" in item:
        _rule(item["id"].startswith("msg"), "Expected an ID that begins with 'msg'", at)
    _rule(bool(item["content"]), "content must be non-empty", at)
    for part in item["content"]:
        _rule(part["type"] in ("output_text", "refusal"), "Invalid value: supported are output_text and refusal", at)
        _check_text(part["text"], at)


def _check_reasoning(items: Wire, at: int) -> None:
    _rule(bool(items[at].get("encrypted_content")), "Item not found: items are not persisted", at)
    _rule(items[at].get("id", "rs").startswith("rs"), "Expected an ID that begins with 'rs'", at)
    following = items[at + 1] if at + 1 < len(items) else {}
    by_model = following.get("type") != "function_call_output" and following.get("role") in (None, "assistant")
    _rule(bool(following) and by_model, "reasoning was provided without its required following item", at)


def _check_anthropic_user(content: Wire, owed: list[str], at: int) -> None:
    results = [block for block in content if block["type"] == "tool_result"]
    _rule(content[: len(results)] == results, "tool_result blocks must come first in the content", at)
    got = [block["tool_use_id"] for block in results]
    _rule(set(got) <= set(owed), "unexpected `tool_use_id` found in `tool_result` blocks", at)
    _rule(len(got) == len(set(got)), "each tool_use must have a single result", at)
    _rule(set(got) == set(owed), "`tool_use` ids were found without `tool_result` blocks immediately after", at)
    _rule(got == owed, "results stand in the order of their calls", at)
    for block in content:
        if block["type"] != "tool_result":
            _check_input_block(block, at)
            continue
        _rule(set(block) <= {"type", "tool_use_id", "content", "is_error"}, "extra inputs are not permitted", at)
        _rule(bool(block["content"]), "a result has content", at)
        for inner in block["content"]:
            _check_input_block(inner, at)
            if block.get("is_error"):
                _rule(inner["type"] == "text", "all content must be type 'text' if 'is_error' is true", at)


def _check_input_block(block: dict[str, Any], at: int) -> None:
    if block["type"] == "text":
        _rule(set(block) == {"type", "text"}, "extra inputs are not permitted", at)
        _check_text(block["text"], at)
        return
    _rule(block["type"] == "image", f"a block of type {block['type']!r} may not stand here", at)
    source = block["source"]
    if source["type"] == "url":
        _rule(re.fullmatch(r"https://\S+", source["url"]) is not None, "Only HTTPS URLs are supported", at)
        return
    _rule(set(source) == {"type", "media_type", "data"} and source["type"] == "base64", "Invalid source", at)
    _check_image(source["media_type"], source["data"], at)


def _check_assistant_block(block: dict[str, Any], at: int) -> None:
    kind = block["type"]
    _rule(kind not in ("tool_result", "image"), f"a block of type {kind!r} may not stand in an assistant message", at)
    if kind == "text":
        _check_text(block["text"], at)
    elif kind == "tool_use":
        _rule(ANTHROPIC_ID.fullmatch(block["id"]) is not None, "tool_use.id: String should match pattern", at)
        _rule(NAME.fullmatch(block["name"]) is not None, "tool_use.name: String should match pattern", at)
        _rule(isinstance(block["input"], dict), "tool_use.input: Input should be a valid dictionary", at)
    elif kind == "thinking":
        good = isinstance(block.get("thinking"), str) and bool(block.get("signature"))
        _rule(good, "thinking.signature: Field required", at)
    elif kind == "redacted_thinking":
        _rule(bool(block.get("data")), "redacted_thinking.data: Field required", at)
