"""What each provider is sent, rule by rule: the exact messages."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from dataclasses import replace
from typing import Any

import pytest

from sojourn.core.history import (
    ANTHROPIC,
    DEEPSEEK,
    DIALECTS,
    MISTRAL,
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    Dialect,
    project,
    wire_name,
)
from sojourn.core.messages import (
    AssistantMessage,
    ImagePart,
    InputPart,
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
    tool_result,
    user,
)

Wire = list[dict[str, Any]]
C1, C2 = "msg-2-call-1", "msg-2-call-2"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n0000").decode()


def text(words: str) -> TextPart:
    return TextPart(text=words)


def call(call_id: str = C1, name: str = "build", **more: Any) -> ToolCallPart:
    return ToolCallPart(**{"id": call_id, "name": name, "arguments": {"target": "all"}, **more})


def assistant(*parts: Part) -> AssistantMessage:
    return AssistantMessage(content=parts)


def result(words: str | tuple[InputPart, ...], call_id: str = C1, **more: Any) -> ToolResultMessage:
    return tool_result(call(call_id), words, **more)


def late(words: str, *, is_error: bool = False) -> LateResultMessage:
    return LateResultMessage(call_id=C1, tool_name="build", content=(text(words),), is_error=is_error)


def sent(messages: list[Message], dialect: Dialect) -> Wire:
    return project(messages, dialect).messages


def chat_call(
    wire_id: str = C1, name: str = "build", arguments: str = '{"target":"all"}', **more: Any
) -> dict[str, Any]:
    return {"id": wire_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def a_user(*words: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": each} for each in words]}


def a_text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def a_use(wire_id: str = C1, name: str = "build", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": wire_id, "name": name, "input": {"target": "all"}, **more}


def a_result(words: str, wire_id: str = C1, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": wire_id, "content": [a_text(words)], **more}


def r_message(role: str, words: str, **more: Any) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": words}], **more}


def r_call(wire_id: str = C1, name: str = "build", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": wire_id, "name": name, "arguments": '{"target":"all"}', **more}


def r_output(words: str, wire_id: str = C1) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": wire_id, "output": words}


# One conversation in every dialect: text beside a call, a placeholder, an answer around it, its late result.

LONG_WORK: list[Message] = [
    user("Build it."),
    assistant(text("Starting."), call()),
    result("Started job 7.", pending=True),
    assistant(text("It is under way.")),
    user("Thanks."),
    late("Built."),
]
HEADED = f"[result of build ({C1}), started earlier]\nBuilt."


@pytest.mark.parametrize(
    ("dialect", "system", "expected"),
    [
        (
            OPENAI_CHAT,
            None,
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Build it."},
                {"role": "assistant", "content": "Starting.", "tool_calls": [chat_call()]},
                {"role": "tool", "tool_call_id": C1, "content": "Started job 7."},
                {"role": "assistant", "content": "It is under way."},
                {"role": "user", "content": f"Thanks.\n\n{HEADED}"},
            ],
        ),
        (
            DEEPSEEK,
            None,
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Build it."},
                {"role": "assistant", "content": "Starting.", "tool_calls": [chat_call()], "reasoning_content": " "},
                {"role": "tool", "tool_call_id": C1, "content": "Started job 7."},
                {"role": "assistant", "content": "It is under way.", "reasoning_content": " "},
                {"role": "user", "content": f"Thanks.\n\n{HEADED}"},
            ],
        ),
        (
            MISTRAL,
            None,
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Build it."},
                {"role": "assistant", "content": "Starting."},
                {"role": "user", "content": "[continue]"},
                {"role": "assistant", "content": None, "tool_calls": [chat_call("MISTRAL_C1")]},
                {"role": "tool", "tool_call_id": "MISTRAL_C1", "content": "Started job 7."},
                {"role": "assistant", "content": "It is under way."},
                {"role": "user", "content": f"Thanks.\n\n{HEADED}"},
            ],
        ),
        (
            OPENAI_RESPONSES,
            "Be brief.",
            [
                r_message("user", "Build it."),
                r_message("assistant", "Starting."),
                r_call(),
                r_output("Started job 7."),
                r_message("assistant", "It is under way."),
                r_message("user", "Thanks."),
                r_message("user", HEADED),
            ],
        ),
        (
            ANTHROPIC,
            "Be brief.",
            [
                a_user("Build it."),
                {"role": "assistant", "content": [a_text("Starting."), a_use()]},
                {"role": "user", "content": [a_result("Started job 7.")]},
                {"role": "assistant", "content": [a_text("It is under way.")]},
                a_user("Thanks.", HEADED),
            ],
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Dialect) else "",
)
def test_a_conversation_with_long_work_in_every_dialect(dialect: Dialect, system: str | None, expected: Wire) -> None:
    projection = project(LONG_WORK, dialect, system="Be brief.")
    assert projection.messages == named(expected, projection.ids.wire(C1))
    assert projection.system == system


def named(wire: Any, mistral_id: str) -> Any:
    """`wire` with the id that Mistral takes in its place."""
    if isinstance(wire, dict):
        return {key: named(value, mistral_id) for key, value in wire.items()}
    if isinstance(wire, list):
        return [named(value, mistral_id) for value in wire]
    return mistral_id if wire == "MISTRAL_C1" else wire


# The rules, one by one, each in the dialect that shows it best.

OPEN = {"role": "assistant", "content": None, "tool_calls": [chat_call(C1), chat_call(C2)]}
GO = {"role": "user", "content": "go"}
BOTH = assistant(call(C1), call(C2))


def tool(words: str, wire_id: str = C1) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": wire_id, "content": words}


CASES: dict[str, tuple[list[Message], Wire]] = {
    "results stand in call order, whatever their order": (
        [user("go"), BOTH, result("two", C2), result("one", C1)],
        [GO, OPEN, tool("one"), tool("two", C2)],
    ),
    "a call without a result gets an error result": (
        [user("go"), BOTH, result("two", C2)],
        [GO, OPEN, tool("[no result was recorded]"), tool("two", C2)],
    ),
    "what was pushed into a round stands after it": (
        [user("go"), BOTH, result("one", C1), user("also this"), late("earlier"), result("two", C2)],
        [
            GO,
            OPEN,
            tool("one"),
            tool("two", C2),
            {"role": "user", "content": f"also this\n\n[result of build ({C1}), started earlier]\nearlier"},
        ],
    ),
    "a failed late result says so": (
        [user("go"), late("exit 2", is_error=True)],
        [{"role": "user", "content": f"go\n\n[build ({C1}), started earlier, failed]\nexit 2"}],
    ),
    "two late results of one call are two user turns": (
        [user("go"), assistant(call()), result("job 7", pending=True), late("a"), late("b")],
        [
            GO,
            {"role": "assistant", "content": None, "tool_calls": [chat_call()]},
            tool("job 7"),
            {
                "role": "user",
                "content": f"{HEADED.removesuffix('Built.')}a\n\n{HEADED.removesuffix('Built.')}b",
            },
        ],
    ),
    "a result without its call is left out": (
        [result("left over", "c9"), user("go"), result("left over", "c9"), assistant(text("done")), user("next")],
        [GO, {"role": "assistant", "content": "done"}, {"role": "user", "content": "next"}],
    ),
    "a result that comes after the next turn is left out": (
        [user("go"), assistant(call()), assistant(text("done")), result("too late"), user("next")],
        [
            GO,
            {"role": "assistant", "content": None, "tool_calls": [chat_call()]},
            tool("[no result was recorded]"),
            {"role": "assistant", "content": "done"},
            {"role": "user", "content": "next"},
        ],
    ),
    "a second result of a call is left out": (
        [user("go"), assistant(call()), result("first"), result("second")],
        [GO, {"role": "assistant", "content": None, "tool_calls": [chat_call()]}, tool("first")],
    ),
    "no call and no result: a call then a user": (
        [user("go"), assistant(call()), user("are you there?")],
        [
            GO,
            {"role": "assistant", "content": None, "tool_calls": [chat_call()]},
            tool("[no result was recorded]"),
            {"role": "user", "content": "are you there?"},
        ],
    ),
    "a conversation that starts with an assistant": (
        [assistant(text("hello")), user("go")],
        [{"role": "user", "content": "[continue]"}, {"role": "assistant", "content": "hello"}, GO],
    ),
    "a conversation that ends with an assistant": (
        [user("go"), assistant(text("done  \n"))],
        [GO, {"role": "assistant", "content": "done  \n"}, {"role": "user", "content": "[continue]"}],
    ),
    "two assistants in a row": (
        [user("go"), assistant(text("a")), assistant(text("b")), user("go")],
        [
            GO,
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "[continue]"},
            {"role": "assistant", "content": "b"},
            GO,
        ],
    ),
    "nothing at all": ([], [{"role": "user", "content": "[continue]"}]),
    "blank content is padded": (
        [user(" \n"), assistant(text(" ")), user(()), assistant(call()), result("")],
        [
            {"role": "user", "content": "[empty]"},
            {"role": "assistant", "content": "[empty]"},
            {"role": "user", "content": "[empty]"},
            {"role": "assistant", "content": None, "tool_calls": [chat_call()]},
            tool("[empty]"),
        ],
    ),
    "arguments that are no object are wrapped": (
        [user("go"), assistant(call(arguments='{"path": "a')), result("no JSON", is_error=True)],
        [
            GO,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [chat_call(arguments='{"malformed_arguments":"{\\"path\\": \\"a"}')],
            },
            tool("no JSON"),
        ],
    ),
    "pieces of text are one text, a refusal is a paragraph": (
        [user("go"), assistant(text("I "), text("see."), RefusalPart(text="No."), text("Sorry."))],
        [GO, {"role": "assistant", "content": "I see.\n\nNo.\n\nSorry."}, {"role": "user", "content": "[continue]"}],
    ),
    "a resource is told with its address": (
        [
            user((ResourcePart(uri="file:///a.py", mime_type="text/x-python", text="x = 1"), text("look"))),
            assistant(text("ok")),
            user((ResourcePart(uri="file:///b.py"),)),
        ],
        [
            {"role": "user", "content": "[resource file:///a.py (text/x-python)]\nx = 1\n\nlook"},
            {"role": "assistant", "content": "ok"},
            {"role": "user", "content": "[resource file:///b.py]"},
        ],
    ),
    "a system message in the middle is told by the user": (
        [user("go"), SystemMessage(content=(text("be brief"),))],
        [{"role": "user", "content": "go\n\n[system]\nbe brief"}],
    ),
    "a system message at the start is the system prompt": (
        [SystemMessage(content=(text("be brief"), text(" "))), SystemMessage(content=(text("be kind"),)), user("go")],
        [{"role": "system", "content": "be brief\n\nbe kind"}, GO],
    ),
    "an image is a data URL": (
        [user((text("what is it?"), ImagePart(mime_type="image/png", data=PNG)))],
        [
            {
                "role": "user",
                "content": [
                    a_text("what is it?"),
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
                ],
            }
        ],
    ),
    "an image in a result stands after the round": (
        [
            user("go"),
            BOTH,
            result((text("shot"), ImagePart(mime_type="image/png", data=PNG))),
            result("two", C2),
            user("?"),
        ],
        [
            GO,
            OPEN,
            tool("shot\n\n[image: shown below]"),
            tool("two", C2),
            {
                "role": "user",
                "content": [
                    a_text(f"[image in the result of build ({C1})]"),
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
                    a_text("?"),
                ],
            },
        ],
    ),
}


@pytest.mark.parametrize(("messages", "expected"), CASES.values(), ids=CASES)
def test_the_rules_in_chat(messages: list[Message], expected: Wire) -> None:
    assert sent(messages, OPENAI_CHAT) == expected


# Summaries

TOLD = "[summary of the conversation so far]\n"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (
            [user("old"), assistant(text("older")), SummaryMessage(content=(text("S1"),)), user("go")],
            [{"role": "user", "content": f"{TOLD}S1\n\ngo"}],
        ),
        (
            [SummaryMessage(content=(text("S1"),)), user("old"), SummaryMessage(content=(text("S2"),))],
            [{"role": "user", "content": f"{TOLD}S2"}],
        ),
        (  # a round that is over is left out with the rest
            [user("old"), assistant(call()), result("r"), SummaryMessage(content=(text("S"),)), user("go")],
            [{"role": "user", "content": f"{TOLD}S\n\ngo"}],
        ),
        (  # one that was open is kept whole
            [
                user("old"),
                BOTH,
                result("one"),
                user("x"),
                SummaryMessage(content=(text("S"),)),
                result("two", C2),
                user("go"),
            ],
            [{"role": "user", "content": f"{TOLD}S"}, OPEN, tool("one"), tool("two", C2), GO],
        ),
        (  # one that stays open is left out
            [user("old"), BOTH, result("one"), SummaryMessage(content=(text("S"),)), assistant(text("a")), user("go")],
            [{"role": "user", "content": f"{TOLD}S"}, {"role": "assistant", "content": "a"}, GO],
        ),
        (  # a late result of a call before it is still told
            [user("old"), assistant(call()), result("job", pending=True), SummaryMessage(content=()), late("done")],
            [{"role": "user", "content": f"{TOLD}[empty]\n\n[result of build ({C1}), started earlier]\ndone"}],
        ),
    ],
)
def test_the_last_summary_stands_for_everything_before_it(messages: list[Message], expected: Wire) -> None:
    assert sent(messages, OPENAI_CHAT) == expected


# Ids and names


def test_ids_that_fit_stay_and_others_are_made_from_them() -> None:
    turn = assistant(call("abcdefghi"), call("msg-2-call-1"), call("x" * 50), call("a.b"))
    ids = {
        name: [project([turn], dialect).ids.wire(part.id) for part in turn.calls] for name, dialect in DIALECTS.items()
    }
    assert ids["anthropic"][:3] == ids["openai-responses"][:3] == ["abcdefghi", "msg-2-call-1", "x" * 50]
    assert re.fullmatch("toolu_[0-9A-Za-z]{24}", ids["anthropic"][3])
    assert ids["openai-chat"][:2] == ["abcdefghi", "msg-2-call-1"]
    assert all(re.fullmatch("call_[0-9A-Za-z]{24}", made) for made in ids["openai-chat"][2:])
    assert ids["mistral"][0] == "abcdefghi"
    assert all(re.fullmatch("[0-9A-Za-z]{9}", made) for made in ids["mistral"])
    assert all(len(set(each)) == 4 for each in ids.values())


def test_a_made_id_is_the_call_ids_hash_so_that_it_never_changes() -> None:
    alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    number = int.from_bytes(hashlib.sha256(b"msg-2-call-1\x000").digest()[:11])
    expected = "".join(alphabet[number // 62**place % 62] for place in range(9))
    assert project([assistant(call())], MISTRAL).ids.wire(C1) == expected


def test_the_id_map_leads_both_ways_and_passes_what_it_does_not_know() -> None:
    ids = project([assistant(call())], MISTRAL).ids
    assert ids.ours(ids.wire(C1)) == C1
    assert ids.wire("unknown") == ids.ours("unknown") == "unknown"


def test_doubled_ids_in_one_turn_and_in_several_are_told_apart_by_position() -> None:
    turn = assistant(call("c"), call("c"))
    messages = [user("go"), turn, result("1", "c"), result("2", "c"), turn, result("3", "c"), result("4", "c")]
    projection = project(messages, OPENAI_CHAT)
    results = [m for m in projection.messages if m["role"] == "tool"]
    assert [m["content"] for m in results] == ["1", "2", "3", "4"]
    assert results[0]["tool_call_id"] == "c"
    assert len({m["tool_call_id"] for m in results}) == 4
    assert {projection.ids.ours(m["tool_call_id"]) for m in results} == {"c"}


def test_a_made_id_that_a_call_already_has_is_not_given_again() -> None:
    made = project([assistant(call("a.b"))], MISTRAL).ids.wire("a.b")
    projection = project([assistant(call(made), call("a.b"))], MISTRAL)
    assert projection.ids.wire(made) == made
    assert projection.ids.wire("a.b") != made


@pytest.mark.parametrize("name", ["", "a.b", "new\nline", "n" * 65, "日本"])
def test_a_name_that_no_provider_takes_is_changed_in_calls(name: str) -> None:
    (made,) = sent([user("go"), assistant(call(name=name))], OPENAI_CHAT)[1]["tool_calls"]
    assert made["function"]["name"] == wire_name(name) != name
    assert re.fullmatch("[A-Za-z0-9_-]{1,64}", wire_name(name))


def test_names_that_would_become_one_stay_apart() -> None:
    assert len({wire_name(name) for name in ("a.b", "a_b", "a b", "a/b")}) == 4
    assert wire_name("a_b") == "a_b"


# Reasoning and what else goes back to its provider alone

THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "ZGF0YQ=="}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def thought(opaque: Any, provider: str, words: str = "hm") -> ReasoningPart:
    return ReasoningPart(text=words, provider=provider, opaque=opaque)


def anthropic_turn(*parts: Part) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = sent([user("go"), assistant(*parts), user("go")], ANTHROPIC)[1]["content"]
    return content


@pytest.mark.parametrize(
    ("parts", "content"),
    [
        (
            (thought(THINKING, "anthropic"), thought(REDACTED, "anthropic"), text("so"), call()),
            [THINKING, REDACTED, a_text("so"), a_use()],
        ),
        (
            (
                OtherPart(provider="anthropic", data=SEARCH),
                OtherPart(provider="anthropic", data=FOUND),
                TextPart(text="found", provider="anthropic", opaque={"citations": [{"url": "u"}]}),
                call(provider="anthropic", opaque={"caller": {"type": "direct"}}),
            ),
            [SEARCH, FOUND, {**a_text("found"), "citations": [{"url": "u"}]}, a_use(caller={"type": "direct"})],
        ),
        ((thought(THINKING, "anthropic"),), [THINKING, a_text("[empty]")]),
        ((thought(REDACTED, "anthropic"), text(" ")), [REDACTED, a_text("[empty]")]),
        ((thought({"type": "thinking", "thinking": "unsigned"}, "anthropic"), text("so")), [a_text("so")]),
        ((thought({"type": "redacted_thinking"}, "anthropic"), text("so")), [a_text("so")]),
        ((thought(THINKING, "openai-responses"), OtherPart(provider="x", data=SEARCH), text("so")), [a_text("so")]),
        ((thought(THINKING, ""), call(provider="x", opaque={"caller": 1})), [a_use()]),
        ((OtherPart(provider="anthropic", data={"type": "tool_use", "id": "c9"}), text("so")), [a_text("so")]),
        ((OtherPart(provider="anthropic", data=[SEARCH]), text("so")), [a_text("so")]),
        ((call(provider="anthropic", opaque={"id": "x", "name": "y", "input": 1, "more": 2}),), [a_use(more=2)]),
        ((), [a_text("[empty]")]),
    ],
)
def test_anthropic_gets_its_own_blocks_back(parts: tuple[Part, ...], content: list[dict[str, Any]]) -> None:
    found = anthropic_turn(*parts)
    assert found[: len(content)] == content
    assert [block["type"] for block in found] == [block["type"] for block in content]


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"}


@pytest.mark.parametrize(
    ("parts", "items"),
    [
        (
            (
                thought(REASONING, "openai-responses"),
                TextPart(text="so", provider="openai-responses", opaque={"id": "msg_1", "phase": "commentary"}),
                call(provider="openai-responses", opaque={"id": "fc_1", "status": "completed"}),
            ),
            [
                REASONING,
                r_message("assistant", "so", id="msg_1", phase="commentary"),
                r_call(id="fc_1", status="completed"),
                r_output("[no result was recorded]"),
            ],
        ),
        (  # reasoning that led to nothing
            (text("so"), thought(REASONING, "openai-responses")),
            [r_message("assistant", "so")],
        ),
        ((thought(REASONING, "openai-responses"),), [r_message("assistant", "[empty]")]),
        (  # reasoning that could not be read: what it led to no longer names itself
            (
                thought({**REASONING, "encrypted_content": None}, "openai-responses"),
                TextPart(text="so", provider="openai-responses", opaque={"id": "msg_1", "phase": "final"}),
            ),
            [r_message("assistant", "so", phase="final")],
        ),
        (
            (thought(REASONING, "anthropic"), TextPart(text="so", provider="anthropic", opaque={"id": "x"})),
            [r_message("assistant", "so")],
        ),
        (
            (OtherPart(provider="openai-responses", data={"type": "web_search_call", "id": "ws_1"}), text("so")),
            [{"type": "web_search_call", "id": "ws_1"}, r_message("assistant", "so")],
        ),
        (
            (OtherPart(provider="openai-responses", data={"type": "function_call", "call_id": "c9"}), text("so")),
            [r_message("assistant", "so")],
        ),
        ((RefusalPart(text="No."),), [r_message("assistant", "No.")]),
        (  # ids that the provider never gives, or twice
            (TextPart(text="so", provider="openai-responses", opaque={"id": 3}),),
            [r_message("assistant", "so")],
        ),
        (
            (TextPart(text="so", provider="openai-responses", opaque={"id": "fc_1"}),),
            [r_message("assistant", "so")],
        ),
        (
            (TextPart(text="so", provider="openai-responses", opaque={"id": "msg_1"}),) * 2,
            [r_message("assistant", "so"), r_message("assistant", "so")],
        ),
    ],
)
def test_the_responses_api_gets_its_own_items_back(parts: tuple[Part, ...], items: Wire) -> None:
    assert sent([user("go"), assistant(*parts)], OPENAI_RESPONSES) == [r_message("user", "go"), *items]


def test_an_item_that_was_sent_once_is_not_sent_again() -> None:
    own = TextPart(text="so", provider="openai-responses", opaque={"id": "msg_1"})
    turn = assistant(thought(REASONING, "openai-responses"), own)
    assert sent([user("go"), turn, turn], OPENAI_RESPONSES) == [
        r_message("user", "go"),
        REASONING,
        r_message("assistant", "so", id="msg_1"),
        r_message("assistant", "so"),
    ]


@pytest.mark.parametrize(
    ("dialect", "parts", "fields"),
    [
        (
            DEEPSEEK,
            (thought(None, "deepseek", "a"), thought(None, "deepseek", " b"), text("so")),
            {"reasoning_content": "a b"},
        ),
        (DEEPSEEK, (thought(None, "anthropic", "a"), text("so")), {"reasoning_content": " "}),
        (DEEPSEEK, (thought(None, "deepseek", "only"),), {"reasoning_content": "only", "content": "[empty]"}),
        (OPENAI_CHAT, (thought(None, "openai-chat", "a"), text("so")), {}),
        (
            replace(OPENAI_CHAT, provider="local", reasoning_field="reasoning"),
            (thought(None, "local", "a"), text("so")),
            {"reasoning": "a"},
        ),
        (replace(OPENAI_CHAT, provider="local", reasoning_field="reasoning"), (text("so"),), {}),
    ],
)
def test_chat_reasoning_goes_where_the_dialect_says(dialect: Dialect, parts: tuple[Part, ...], fields: Any) -> None:
    expected = {"role": "assistant", "content": "so", **fields}
    assert sent([user("go"), assistant(*parts), user("go")], dialect)[1] == expected


def test_unknown_fields_of_a_call_and_of_a_message_go_back_to_where_they_came_from() -> None:
    signature = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    own = call(provider="openai-chat", opaque={**signature, "function": {"strict": True, "name": "no"}, "id": "no"})
    details = OtherPart(provider="openai-chat", data={"reasoning_details": [1], "role": "no", "tool_calls": "no"})
    foreign = call(C2, provider="mistral", opaque=signature)
    message = sent([user("go"), assistant(own, details, foreign)], OPENAI_CHAT)[1]
    function = {"name": "build", "arguments": '{"target":"all"}', "strict": True}
    assert message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": C1, "type": "function", "function": function, **signature}, chat_call(C2)],
        "reasoning_details": [1],
    }


# Mistral's order


def test_mistral_gets_an_assistant_between_a_result_and_a_user() -> None:
    messages = sent(
        [user("go"), assistant(call("abcdefghi")), result("r", "abcdefghi"), user("and"), late("x")], MISTRAL
    )
    assert messages == [
        GO,
        {"role": "assistant", "content": None, "tool_calls": [chat_call("abcdefghi")]},
        tool("r", "abcdefghi"),
        {"role": "assistant", "content": "[noted]"},
        {"role": "user", "content": f"and\n\n[result of build ({C1}), started earlier]\nx"},
    ]


def test_mistral_gets_a_blank_text_beside_calls_as_none() -> None:
    messages = sent([user("go"), assistant(text(" "), call("abcdefghi"))], MISTRAL)
    assert messages[1] == {"role": "assistant", "content": None, "tool_calls": [chat_call("abcdefghi")]}


# Anthropic's user turns, errors and images


def test_anthropic_results_come_first_and_errors_are_marked() -> None:
    image = ImagePart(mime_type="image/png", data=PNG)
    shown = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    failed = result((text("boom"), image), C2, is_error=True)
    messages = sent([user("go"), BOTH, user("also"), failed, result((image,))], ANTHROPIC)
    assert messages[2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": C1, "content": [shown]},
            {
                "type": "tool_result",
                "tool_use_id": C2,
                "content": [a_text("boom"), a_text("[image: shown below]")],
                "is_error": True,
            },
            a_text(f"[image in the result of build ({C2})]"),
            shown,
            a_text("also"),
        ],
    }


def test_anthropic_gets_an_error_for_a_call_without_a_result() -> None:
    messages = sent([user("go"), assistant(call())], ANTHROPIC)
    assert messages[-1] == {"role": "user", "content": [a_result("[no result was recorded]", is_error=True)]}


def test_marks_that_a_caller_sets_on_blocks_do_not_reach_the_conversation() -> None:
    conversation = [user("go"), assistant(OtherPart(provider="anthropic", data=SEARCH), call()), result("r")]
    before = json.dumps(project(conversation, ANTHROPIC).messages)
    for message in project(conversation, ANTHROPIC).messages:
        for block in message["content"]:
            block["cache_control"] = {"type": "ephemeral"}
    assert json.dumps(project(conversation, ANTHROPIC).messages) == before


def test_anthropic_gets_malformed_arguments_as_an_object() -> None:
    assert anthropic_turn(call(arguments="nonsense"))[0]["input"] == {"malformed_arguments": "nonsense"}


def test_a_responses_result_may_hold_an_image_and_a_system_message_may_stand_anywhere() -> None:
    image = ImagePart(mime_type="image/png", data=PNG)
    shown = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    system = SystemMessage(content=(text("be brief"), image))
    messages: list[Message] = [user("go"), assistant(call()), system, result((text("shot"), image))]
    assert sent(messages, OPENAI_RESPONSES)[2:] == [
        {"type": "function_call_output", "call_id": C1, "output": [{"type": "input_text", "text": "shot"}, shown]},
        {
            "type": "message",
            "role": "system",
            "content": [
                {"type": "input_text", "text": "be brief"},
                {"type": "input_text", "text": "[image: not shown]"},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("image", "dialect", "shown"),
    [
        ({"mime_type": "image/jpeg", "data": PNG}, OPENAI_CHAT, f"data:image/png;base64,{PNG}"),
        ({"mime_type": "IMAGE/PNG", "data": "AAAA"}, OPENAI_CHAT, "data:image/png;base64,AAAA"),
        ({"mime_type": "x", "uri": f"data:image/png;base64,{PNG}"}, OPENAI_CHAT, f"data:image/png;base64,{PNG}"),
        ({"mime_type": "image/png", "uri": "https://x.test/a"}, OPENAI_CHAT, "https://x.test/a"),
        ({"mime_type": "image/png", "uri": "http://x.test/a"}, OPENAI_CHAT, "http://x.test/a"),
        ({"mime_type": "image/svg+xml", "data": "AAAA"}, OPENAI_CHAT, None),
        ({"mime_type": "image/png", "data": "not base64"}, OPENAI_CHAT, None),
        ({"mime_type": "image/png", "data": "日本"}, OPENAI_CHAT, None),
        ({"mime_type": "image/png"}, OPENAI_CHAT, None),
        ({"mime_type": "image/png", "uri": "https://x.test/a b"}, OPENAI_CHAT, None),
        ({"mime_type": "image/png", "uri": "file:///a.png"}, OPENAI_CHAT, None),
        ({"mime_type": "image/png", "data": PNG}, DEEPSEEK, None),
        ({"mime_type": "image/png", "uri": "https://x.test/a"}, DEEPSEEK, None),
    ],
)
def test_an_image_that_would_be_refused_is_told_in_words(image: Any, dialect: Dialect, shown: str | None) -> None:
    content = sent([user((ImagePart(**image),))], dialect)[0]["content"]
    if shown is not None:
        assert content == [{"type": "image_url", "image_url": {"url": shown}}]
        return
    at = f" at {image['uri']}" if "uri" in image else ""
    assert content == f"[image {image['mime_type']}{at}: not shown]"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("https://x.test/a.png", {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}}),
        ("http://x.test/a.png", a_text("[image image/png at http://x.test/a.png: not shown]")),
    ],
)
def test_anthropic_fetches_images_over_https_alone(uri: str, expected: dict[str, Any]) -> None:
    assert sent([user((ImagePart(mime_type="image/png", uri=uri),))], ANTHROPIC)[0]["content"] == [expected]


def test_a_headed_turn_that_starts_with_an_image_keeps_its_heading() -> None:
    arrived = LateResultMessage(call_id=C1, tool_name="build", content=(ImagePart(mime_type="image/png", data=PNG),))
    assert sent([arrived], ANTHROPIC)[0]["content"][0] == a_text(f"[result of build ({C1}), started earlier]")


def test_an_image_that_the_model_made_is_told_in_words() -> None:
    picture = ImagePart(mime_type="image/png", data=PNG)
    assert anthropic_turn(picture) == [a_text("[image image/png: not shown]")]


@pytest.mark.parametrize(("system", "expected"), [(None, None), ("", None), (" \n", None), ("Be brief.", "Be brief.")])
def test_a_blank_system_prompt_is_none(system: str | None, expected: str | None) -> None:
    assert project([user("go")], ANTHROPIC, system=system).system == expected
    roles = [message["role"] for message in project([user("go")], OPENAI_CHAT, system=system).messages]
    assert roles == (["system", "user"] if expected else ["user"])


def test_the_work_of_a_projection_grows_with_the_conversation_and_no_faster() -> None:
    def work(rounds: int) -> int:
        messages: list[Message] = []
        for number in range(rounds):
            made = call(f"msg-{number}-call-1")
            turn = assistant(text("Let me see."), made)
            messages += [user("word"), turn, tool_result(made, "line"), assistant(text("Done."))]
        calls = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            project(messages, MISTRAL)
        finally:
            sys.setprofile(before)
        return calls

    assert work(400) < 2.1 * work(200)
