"""From ANY conversation, however broken, every dialect's projection is one that its strictest provider accepts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from strict_checkers import (
    check_anthropic,
    check_deepseek,
    check_mistral,
    check_openai_chat,
    check_openai_responses,
)

from sojourn.core.history import DIALECTS, OPENAI_CHAT, Projection, project, wire_name
from sojourn.core.messages import (
    MESSAGES,
    AssistantMessage,
    ImagePart,
    LateResultMessage,
    Message,
    OtherPart,
    Part,
    ReasoningPart,
    RefusalPart,
    ResourcePart,
    SummaryMessage,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
)

CHECKERS: dict[str, Callable[[Projection], None]] = {
    "openai-chat": lambda p: check_openai_chat(p.messages),
    "deepseek": lambda p: check_deepseek(p.messages),
    "mistral": lambda p: check_mistral(p.messages),
    "openai-responses": lambda p: check_openai_responses(p.messages),
    "anthropic": lambda p: check_anthropic(p.messages, p.system),
}


def every_dialect() -> Iterator[str]:
    """The dialects' names; a failure tells the one it was in."""
    for name in CHECKERS:
        note(name)
        yield name


many = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def made(kind: Any, **fields: Any) -> st.SearchStrategy[Any]:
    """Values of `kind` with these fields alone."""
    return st.fixed_dictionaries(fields).map(lambda given: kind(**given))


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
texts = st.one_of(
    st.sampled_from(["", " ", "\n\t", "\x00", "\u2028", "hello", "[continue]", "日本 🙂", '{"a": 1}', "x  "]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
call_ids = st.just("c1") | st.sampled_from(
    ["", "c1", "c2", "msg-2-call-1", "abcdefghi", "call.with:odd/日本", "y" * 41, "z" * 90, "functions.get:0"]
)
tool_names = st.sampled_from(["build", "", "a.b", "new\nline", "日本語", "n" * 100, "mcp__x-y_z"])
providers = st.sampled_from([None, "somebody", *CHECKERS])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
arguments = st.dictionaries(texts, values, max_size=3) | st.sampled_from(["", "null", "[1]", '{"path": "a', '{"a":1}'])
images = made(
    ImagePart,
    mime_type=st.sampled_from(["image/png", "image/jpeg", "IMAGE/GIF", "image/svg+xml", "", "text/plain"]),
    data=st.sampled_from([None, "", PNG, "/9j/4AAQ", "R0lGODlhAQABAAAA", "not base64!", "AAA"]),
    uri=st.sampled_from(
        [None, "", "https://x.test/a.png", "http://x.test/a b", "file:///a", f"data:image/png;base64,{PNG}"]
    ),
)
resources = made(
    ResourcePart,
    uri=st.sampled_from(["", "file:///a.txt"]),
    mime_type=st.sampled_from([None, "text/x"]),
    text=st.none() | texts,
)
said = st.lists(made(TextPart, text=texts) | images | resources, max_size=3).map(tuple)

junk = st.sampled_from([None, 5, "x", [1], {}, {"type": 7}, {"type": "message"}, {"id": 3}])
reasoning = made(
    ReasoningPart,
    text=texts,
    provider=providers,
    opaque=junk
    | st.sampled_from(
        [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "thinking", "thinking": "unsigned"},
            {"type": "redacted_thinking", "data": "ZGF0YQ=="},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"},
            {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "ZW5j"},
            {"type": "reasoning", "id": "rs_3", "summary": []},
        ]
    ),
)
text_parts = made(
    TextPart,
    text=texts,
    provider=providers,
    opaque=junk
    | st.sampled_from([{"id": "msg_1", "status": "completed"}, {"id": "rs_1"}, {"phase": "x"}, {"citations": []}]),
)
calls = made(
    ToolCallPart,
    id=call_ids,
    name=tool_names,
    arguments=arguments,
    provider=providers,
    provider_id=st.none() | call_ids,
    opaque=junk
    | st.sampled_from([{"id": "fc_1"}, {"extra_content": {"a": [1]}}, {"function": {"x": 1}, "type": "no"}]),
)
others = made(
    OtherPart,
    provider=st.sampled_from(["somebody", *CHECKERS]),
    data=junk
    | st.sampled_from(
        [
            {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}},
            {"type": "web_search_call", "id": "ws_1"},
            {"type": "web_search_call", "id": 7},
            {"type": "tool_use", "id": "c1", "name": "build", "input": {}},
            {"type": "tool_result", "tool_use_id": "c1"},
            {"type": "function_call", "call_id": "c1", "name": "build", "arguments": ""},
            {"tool_calls": [], "content": "", "role": "user", "reasoning_details": [{"a": 1}]},
        ]
    ),
)
own_parts = st.sampled_from(
    [
        ReasoningPart(
            text="hm", provider="anthropic", opaque={"type": "thinking", "thinking": "hm", "signature": "c2"}
        ),
        ReasoningPart(text="", provider="anthropic", opaque={"type": "redacted_thinking", "data": "ZGF0YQ=="}),
        ReasoningPart(text="", provider="openai-responses", opaque={"type": "reasoning", "encrypted_content": "ZW5j"}),
        ReasoningPart(text="hm", provider="deepseek"),
        TextPart(text=" "),
    ]
)
spoken = st.one_of(
    st.lists(calls, min_size=1, max_size=3),
    st.lists(own_parts | text_parts | calls, min_size=1, max_size=3),
    st.lists(text_parts | calls | reasoning | others | made(RefusalPart, text=texts) | images | resources, max_size=5),
).map(tuple)

messages = st.one_of(
    made(UserMessage, content=said),
    made(AssistantMessage, content=spoken),
    made(
        ToolResultMessage,
        call_id=call_ids,
        tool_name=tool_names,
        content=said,
        is_error=st.booleans(),
        pending=st.booleans(),
    ),
    made(LateResultMessage, call_id=call_ids, tool_name=tool_names, content=said, is_error=st.booleans()),
    made(SystemMessage, content=said),
    made(SummaryMessage, content=said),
)


@st.composite
def rounds(draw: st.DrawFn) -> list[Message]:
    """A turn with calls and most of their results, in some order, with something in between."""
    turn = AssistantMessage(content=draw(st.lists(calls, min_size=1, max_size=3).map(tuple) | spoken))
    outputs = said | st.just((TextPart(text="output"),))
    results: list[Message] = [
        ToolResultMessage(call_id=call.id, tool_name=call.name, content=draw(outputs), is_error=draw(st.booleans()))
        for call in turn.calls
        if draw(st.integers(0, 3))
    ]
    return [turn, *draw(st.permutations([*results, *draw(st.lists(messages, max_size=1))]))]


some = st.lists(rounds() | messages.map(lambda one: [one]), max_size=5).map(lambda lists: [*chain(*lists)])


def under_one_id(conversation: list[Message]) -> list[Message]:
    """The conversation with the same id for every call."""
    return [
        message.model_copy(
            update={
                "content": tuple(
                    p.model_copy(update={"id": "c1"}) if p.type == "toolCall" else p for p in message.content
                )
            }
        )
        if isinstance(message, AssistantMessage)
        else message.model_copy(update={"call_id": "c1"})
        if isinstance(message, ToolResultMessage | LateResultMessage)
        else message
        for message in conversation
    ]


conversations = st.one_of(some, some.map(under_one_id), some.map(lambda one: [*one, *one]))


@many
@given(conversation=conversations, system=st.none() | texts)
def test_every_provider_accepts_any_conversation(conversation: list[Message], system: str | None) -> None:
    for name in every_dialect():
        CHECKERS[name](project(conversation, DIALECTS[name], system=system))


@many
@given(conversation=conversations)
def test_the_same_conversation_is_projected_to_the_same_bytes(conversation: list[Message]) -> None:
    before = MESSAGES.dump_json(conversation)
    loaded = MESSAGES.validate_json(before)
    for name in every_dialect():
        first = project(conversation, DIALECTS[name], system="be brief")
        as_sent = json.dumps(first.messages)
        spoil(first.messages)
        again = project(loaded, DIALECTS[name], system="be brief")
        assert json.dumps(again.messages) == as_sent
        assert again.system == first.system
        assert MESSAGES.dump_json(conversation) == before


def spoil(wire: list[dict[str, Any]]) -> None:
    """What a backend may do to a projection: more fields on messages and blocks, more of them."""
    for message in wire:
        for block in message["content"] if isinstance(message.get("content"), list) else ():
            block["cache_control"] = {"type": "ephemeral"}
        message["more"] = 1
    wire.append({})


@many
@given(conversation=conversations, answer=spoken, more=conversations)
def test_what_was_sent_is_sent_again_once_the_model_has_answered(
    conversation: list[Message], answer: tuple[Part, ...], more: list[Message]
) -> None:
    rest = [message for message in more if message.role != "summary"]
    for name in every_dialect():
        sent = project(conversation, DIALECTS[name], system="be brief")
        later = project([*conversation, AssistantMessage(content=answer), *rest], DIALECTS[name], system="be brief")
        assert json.dumps(later.messages[: len(sent.messages)]) == json.dumps(sent.messages)
        assert later.system == sent.system
        assert sent.ids.to_ours.items() <= later.ids.to_ours.items()


MARK = re.compile(r"⟦(\w+)⟧")


def marked(conversation: list[Message]) -> list[Message]:
    """The conversation with a mark of its own in each text that says something."""

    def mark(part: Part, at: str) -> Part:
        if not isinstance(part, TextPart | RefusalPart | ResourcePart) or not (part.text or "").strip():
            return part
        return part.model_copy(update={"text": f"{part.text}⟦{at}⟧"})

    return [
        message.model_copy(update={"content": tuple(mark(p, f"{n}_{i}") for i, p in enumerate(message.content))})
        for n, message in enumerate(conversation)
    ]


def marks_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from MARK.findall(value)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from marks_in(inner)


def marks_said(conversation: list[Message], *, by_model: bool) -> list[str]:
    """The marks that the model must see, in order: an oracle of its own, on the plain message list."""
    return [
        found
        for message in seen_of(conversation)
        if message.role != "toolResult" and (message.role == "assistant") == by_model
        for part in message.content
        if isinstance(part, TextPart | RefusalPart | ResourcePart)
        for found in MARK.findall(part.text or "")
    ]


@many
@given(conversation=conversations)
def test_nothing_that_was_said_is_lost_or_told_twice_or_out_of_order(conversation: list[Message]) -> None:
    conversation = marked(conversation)
    for name in every_dialect():
        projection = project(conversation, DIALECTS[name])
        seen = list(marks_in([projection.system or "", *projection.messages]))
        for by_model in (False, True):
            due = marks_said(conversation, by_model=by_model)
            assert [mark for mark in seen if mark in set(due)] == due
        assert len(set(seen)) == len(seen)


@many
@given(conversation=conversations)
def test_each_result_stands_with_the_call_that_it_answers(conversation: list[Message]) -> None:
    """The pairing of the wire, read back through the id map, is the pairing by position of the conversation."""
    conversation = [m for m in marked(conversation) if m.role != "summary"]
    expected = list(pairs(conversation))
    for name in every_dialect():
        projection = project(conversation, DIALECTS[name])
        answered = [
            (projection.ids.ours(wire_id), next(iter(marks_in(content)), None))
            for wire_id, content in wire_results(projection.messages)
        ]
        assert answered == expected


def pairs(conversation: list[Message]) -> Iterator[tuple[str, str | None]]:
    """Our call id and the first mark in the result's words, for each call in order."""
    for n, message in enumerate(conversation):
        if not isinstance(message, AssistantMessage):
            continue
        ends = (k for k in range(n + 1, len(conversation)) if conversation[k].role == "assistant")
        window = conversation[n + 1 : next(ends, len(conversation))]
        results = [m for m in window if isinstance(m, ToolResultMessage)]
        for call in message.calls:
            result = next((m for m in results if m.call_id == call.id), None)
            if result is not None:
                results = [m for m in results if m is not result]
            yield (
                call.id,
                next(iter(marks_in([getattr(p, "text", "") for p in result.content])), None) if result else None,
            )


def wire_results(wire: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    for message in wire:
        if message.get("role") == "tool":
            yield message["tool_call_id"], message["content"]
        elif message.get("type") == "function_call_output":
            yield message["call_id"], message["output"]
        elif message.get("role") == "user" and isinstance(message["content"], list):
            for block in message["content"]:
                if block["type"] == "tool_result":
                    yield block["tool_use_id"], block["content"]


@many
@given(conversation=conversations)
def test_what_one_provider_sent_never_reaches_another(conversation: list[Message]) -> None:
    conversation = [secret(message, "theirs-alone") for message in conversation]
    for name in every_dialect():
        assert "theirs-alone" not in json.dumps(project(conversation, DIALECTS[name]).messages)
        own = project(conversation, replace(DIALECTS[name], provider="theirs-alone")).messages
        if any(message.role == "assistant" for message in seen_of(conversation)):
            assert "theirs-alone" in json.dumps(own)


def seen_of(conversation: list[Message]) -> list[Message]:
    """What follows the last summary."""
    return conversation[max((n for n, message in enumerate(conversation) if message.role == "summary"), default=0) :]


def secret(message: Message, provider: str) -> Message:
    if not isinstance(message, AssistantMessage):
        return message
    parts = [*message.content, ReasoningPart(text=provider, provider=provider, opaque={"type": "thinking"})]
    parts.append(TextPart(text="x", provider=provider, opaque={"from": provider}))
    parts.append(OtherPart(provider=provider, data={"type": provider}))
    return message.model_copy(update={"content": tuple(parts)})


@given(names=st.lists(texts, unique=True, max_size=6))
def test_tool_names_take_the_form_of_the_wire_and_stay_apart(names: list[str]) -> None:
    wire = [wire_name(name) for name in names]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in wire)
    assert len(set(wire)) == len(names)
    assert [name for name in names if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)] == [
        name for name, other in zip(names, wire, strict=True) if name == other
    ]


def test_a_thousand_calls_under_one_id_are_told_apart() -> None:
    call = ToolCallPart(id="c", name="build", arguments={})
    turn = AssistantMessage(content=(call,) * 1000)
    results = [
        ToolResultMessage(call_id="c", tool_name="build", content=(TextPart(text=f"r{n}"),)) for n in range(1000)
    ]
    projection = project([turn, *results], OPENAI_CHAT)
    check_openai_chat(projection.messages)
    assert [m["content"] for m in projection.messages if m["role"] == "tool"] == [f"r{n}" for n in range(1000)]
