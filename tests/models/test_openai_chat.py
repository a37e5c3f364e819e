"""The chat completions backend against a loopback server: answers, ends of streams, requests."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from models.loopback import (
    ONCE,
    PATIENT,
    Answer,
    Heard,
    answer_json,
    asked,
    body_of,
    call,
    calls_of,
    delta,
    head,
    listen,
    loopback,
    raw,
    spec_for,
    sse,
    text_in,
    texts,
)

from sojourn.core.errors import InvalidParams, ModelError
from sojourn.core.messages import (
    AssistantMessage,
    ImagePart,
    ReasoningPart,
    TextPart,
    ToolChoice,
    ToolSpec,
    Usage,
    tool_result,
    user,
)
from sojourn.models.base import ModelSpec
from sojourn.models.openai_chat import OpenAIChat
from sojourn.models.table import make_model

pytestmark = pytest.mark.anyio

HELLO = (delta(role="assistant", content=""), delta(content="hel"), delta(content="lo"), delta("stop"))
WHOLE = {
    "id": "c-9",
    "model": "m-9",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "so",
                "reasoning": "hm",
                "tool_calls": [call('{"a":1}', id="x", name="t")],
            },
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}


async def heard_of(*answers: Answer, request: Any = None, policy: Any = ONCE, **spec: Any) -> Heard:
    async with loopback(*answers) as server:
        model = OpenAIChat(spec_for(server, **spec), policy=policy)
        try:
            return await listen(model, request)
        finally:
            await model.aclose()


async def failure_of(*answers: Answer, policy: Any = ONCE, **spec: Any) -> tuple[ModelError, Heard]:
    heard = Heard()
    async with loopback(*answers) as server:
        model = OpenAIChat(spec_for(server, **spec), policy=policy)
        with pytest.raises(ModelError) as caught:
            await listen(model, heard=heard)
        await model.aclose()
        async with asyncio.timeout(5):
            await server.closed.wait()
    return caught.value, heard


@pytest.mark.parametrize("split", [None, 1, 2, 3, 7])
async def test_a_stream_is_read_whatever_its_pieces(split: int | None) -> None:
    chunks = [delta(content="naïve — 日本"), delta(content="語 🎉\u2028 done"), delta("stop")]
    heard = await heard_of(sse(*chunks, split=split))
    assert text_in(heard) == "naïve — 日本語 🎉\u2028 done"
    assert heard.answer.finish_reason == "stop"
    assert (heard.answer.model, heard.answer.response_id) == ("m-1", "c-1")


async def test_a_charset_in_the_header_changes_nothing() -> None:
    answer = raw(
        head(kind="text/event-stream; charset=iso-8859-1") + body_of(delta(content="prüfung ✅"), delta("stop"))
    )
    assert text_in(await heard_of(answer)) == "prüfung ✅"


async def test_a_character_cut_into_two_halves_is_put_together() -> None:
    chunks = [
        b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}',
        b'data: {"choices":[{"delta":{"content":"\\ude00b"}}]}',
    ]
    assert text_in(await heard_of(sse(*chunks, delta("stop")))) == "a😀b"


async def test_a_half_character_at_the_end_becomes_a_replacement() -> None:
    heard = await heard_of(sse(b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}', delta("stop")))
    assert text_in(heard) == "a\ufffd"


ENDS: dict[str, tuple[Answer, str]] = {
    "done and the socket stays open": (sse(*HELLO, hold=True), "stop"),
    "a finish reason and no done": (sse(*HELLO, done=False), "stop"),
    "a finish reason, no done, the socket stays open": (sse(*HELLO, done=False, hold=True), "stop"),
    "done and no finish reason": (sse(*HELLO[:3]), "stop"),
    "no blank line after the last event": (raw(head() + body_of(*HELLO).rstrip()), "stop"),
    "broken after the finish reason": (
        raw(head(transfer_encoding="chunked") + b"%x\r\n" % 9999 + body_of(*HELLO, done=False)),
        "stop",
    ),
    "half an event after the finish reason": (raw(head() + body_of(*HELLO, done=False) + b'data: {"us'), "stop"),
    "compressed": (raw(head(content_encoding="gzip") + gzip.compress(body_of(*HELLO))), "stop"),
    "text/plain": (raw(head(kind="text/plain") + body_of(*HELLO)), "stop"),
    "comments and blank lines first": (raw(head() + b"\n\n: busy\n\n" + body_of(*HELLO)), "stop"),
    "an unknown event": (sse(b"event: ping\ndata: {}", *HELLO, b"event: x\ndata: 5"), "stop"),
}


@pytest.mark.parametrize("name", ENDS)
async def test_an_answer_ends_at_its_terminal_mark(name: str) -> None:
    answer, finish = ENDS[name]
    heard = await heard_of(answer)
    assert (text_in(heard), heard.answer.finish_reason) == ("hello", finish)


CUTS: dict[str, Answer] = {
    "in the text": sse(*HELLO[:3], done=False),
    "in a call": sse(delta(tool_calls=[call('{"a": "b', index=0, id="x", name="t")]), done=False),
    "in an event": raw(head() + body_of(*HELLO[:3], done=False) + b'data: {"choi'),
    "in a chunk of the transfer": raw(head(transfer_encoding="chunked") + b"40\r\n" + body_of(HELLO[1])[:30]),
    "by a reset": raw(head(content_length="9999") + body_of(*HELLO[:3], done=False), abort=True),
    "before the first byte": raw(head()),
    "after comments": raw(head() + b": x\n\n"),
    "in a plain answer": raw(head(kind="application/json") + json.dumps(WHOLE).encode()[:-20]),
    "before the answer's head": raw(b""),
}


@pytest.mark.parametrize("name", CUTS)
async def test_an_answer_that_ends_before_its_terminal_mark_is_none(name: str) -> None:
    error, heard = await failure_of(CUTS[name])
    assert error.retryable
    assert error.data["reason"] in ("streamCut", "connectionFailed")
    assert heard.answer is None


@pytest.mark.parametrize("name", CUTS)
async def test_a_cut_answer_is_replaced_by_the_retry_s(name: str) -> None:
    heard = await heard_of(CUTS[name], sse(*HELLO), policy=PATIENT)
    assert text_in(heard) == "hello"
    assert texts(heard.answer.content) == ["text"]
    assert heard.resets == (
        ["retry"] if name in ("in the text", "in a call", "in an event", "by a reset") else heard.resets
    )
    assert [notice.code for notice in heard.notices] == ["modelRetry"]
    assert heard.notices[0].data["attempt"] == 1
    assert heard.notices[0].data["max"] == 2


ERRORS: dict[str, tuple[tuple[Any, ...], str, bool]] = {
    "first": (({"error": {"message": "quota is used up", "type": "insufficient_quota"}},), "quota is used up", False),
    "after text": ((*HELLO[:2], {"error": {"message": "worker died", "code": 502}}), "worker died", True),
    "a string": (({"error": "went away"},), "went away", True),
    "an error event with a string": ((b'event: error\ndata: {"error":"went away"}',), "went away", True),
    "an error event with bare words": ((b'event: error\ndata: "went away"',), "went away", True),
    "an error event with an object": ((b'event: error\ndata: {"message":"went away"}',), "went away", True),
    "beside empty choices": (({"choices": [], "error": {"message": "upstream", "code": 503}},), "upstream", True),
    "inside a choice": (
        ({"choices": [{"error": {"message": "bad", "code": "429"}, "finish_reason": "error"}]},),
        "bad",
        True,
    ),
    "as a finish reason": ((*HELLO[:2], delta("error")), "'error'", True),
    "an object that calls itself one": (({"object": "error", "message": "too long", "code": 400},), "too long", False),
    "overload": (({"error": {"type": "overloaded_error", "message": "Overloaded"}},), "Overloaded", True),
    "the request's fault": (({"error": {"type": "invalid_request_error", "message": "no"}},), "no", False),
    "without words": (({"error": {"code": 500}},), "no reason", True),
    "after the finish reason": ((*HELLO, {"error": {"message": "late", "code": 500}}), "late", True),
}


@pytest.mark.parametrize("name", ERRORS)
async def test_an_error_in_the_stream_is_a_failure_in_the_provider_s_words(name: str) -> None:
    chunks, words, retryable = ERRORS[name]
    error, heard = await failure_of(sse(*chunks))
    assert words in error.message
    assert error.retryable is retryable
    assert heard.answer is None


NOT_ANSWERS: dict[str, tuple[Answer, str]] = {
    "a web page": (raw(head(kind="text/html") + b"<html>sign in</html>"), "text/html"),
    "a web page that says it is a stream": (raw(head() + b"\n <!doctype html>"), "web page"),
    "json of another kind": (answer_json({"hello": 1}), "neither an answer nor an error"),
    "a list": (answer_json([]), "neither"),
    "an error as json": (answer_json({"error": {"message": "no such model", "type": "invalid"}}), "no such model"),
    "a list with an error": (answer_json([{"error": {"message": "no such model", "code": 404}}]), "no such model"),
    "an error under a stream's header": (
        raw(head() + b'{"error":{"message":"no such model","code":404}}'),
        "no such model",
    ),
}


@pytest.mark.parametrize("name", NOT_ANSWERS)
async def test_a_200_that_is_no_answer_is_a_failure(name: str) -> None:
    answer, words = NOT_ANSWERS[name]
    error, _ = await failure_of(answer, policy=PATIENT)
    assert words in error.message
    assert not error.retryable


async def test_a_chunk_that_is_not_json_is_a_failure() -> None:
    error, _ = await failure_of(sse(*HELLO[:2], b'data: {"choices": [nonsense', *HELLO[2:]))
    assert error.data["reason"] == "badChunk"
    assert error.retryable


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "text/plain"])
async def test_a_plain_answer_is_taken_as_the_whole_one(kind: str) -> None:
    heard = await heard_of(answer_json(b"\n" + json.dumps(WHOLE).encode(), kind=kind))
    assert texts(heard.answer.content) == ["reasoning", "text", "toolCall"]
    assert text_in(heard) == "so"
    assert calls_of(heard) == [("t", {"a": 1})]
    assert heard.answer.usage == Usage(input_tokens=3, output_tokens=2)
    assert heard.answer.finish_reason == "toolCalls"


async def test_only_the_first_choice_counts() -> None:
    second = {"index": 1, "message": {"content": "two"}, "finish_reason": "length"}
    first = {"index": 0, "message": {"content": "one"}, "finish_reason": "stop"}
    heard = await heard_of(answer_json({"choices": [second, first]}))
    assert (text_in(heard), heard.answer.finish_reason) == ("one", "stop")


USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
USAGES: dict[str, tuple[tuple[Any, ...], Usage | None]] = {
    "none": (HELLO, None),
    "null": (({**HELLO[1], "usage": None}, delta("stop")), None),
    "last, with empty choices": ((*HELLO, {"choices": [], "usage": USAGE}), Usage(input_tokens=12, output_tokens=5)),
    "last, with null choices": ((*HELLO, {"choices": None, "usage": USAGE}), Usage(input_tokens=12, output_tokens=5)),
    "with the finish reason": ((*HELLO[:3], {**HELLO[3], "usage": USAGE}), Usage(input_tokens=12, output_tokens=5)),
    "growing": (
        ({**HELLO[1], "usage": {"prompt_tokens": 12, "completion_tokens": 1}}, {**HELLO[3], "usage": USAGE}),
        Usage(input_tokens=12, output_tokens=5),
    ),
    "details": (
        (
            *HELLO,
            {
                "choices": [],
                "usage": {
                    **USAGE,
                    "prompt_tokens_details": {"cached_tokens": 8},
                    "completion_tokens_details": {"reasoning_tokens": 3},
                },
            },
        ),
        Usage(input_tokens=12, output_tokens=5, cached_input_tokens=8, reasoning_tokens=3),
    ),
    "cache hits": (
        (*HELLO, {"choices": [], "usage": {**USAGE, "prompt_cache_hit_tokens": 4, "prompt_tokens_details": None}}),
        Usage(input_tokens=12, output_tokens=5, cached_input_tokens=4),
    ),
    "in a field of its own": (
        (*HELLO, {"choices": [], "x_groq": {"usage": USAGE}}),
        Usage(input_tokens=12, output_tokens=5),
    ),
    "nonsense": ((*HELLO, {"choices": [], "usage": {"prompt_tokens": "12", "completion_tokens": -1}}), Usage()),
}


@pytest.mark.parametrize("name", USAGES)
async def test_usage_is_read_wherever_it_stands(name: str) -> None:
    chunks, usage = USAGES[name]
    assert (await heard_of(sse(*chunks))).answer.usage == usage


FINISHES = [
    ("stop", False, "stop"),
    ("eos", False, "stop"),
    ("length", False, "length"),
    ("max_tokens", False, "length"),
    ("content_filter", False, "contentFilter"),
    ("SAFETY", False, "contentFilter"),
    ("tool_calls", True, "toolCalls"),
    ("stop", True, "toolCalls"),
    ("something_new", True, "toolCalls"),
    (None, True, "toolCalls"),
    ("tool_calls", False, "stop"),
    ("something_new", False, "other"),
]


@pytest.mark.parametrize(("said", "with_call", "meant"), FINISHES)
async def test_a_finish_reason_is_what_the_answer_is(said: str | None, with_call: bool, meant: str) -> None:
    calls = [delta(tool_calls=[call("{}", id="x", name="t")])] if with_call else []
    heard = await heard_of(sse(delta(content="a"), *calls, delta(said)))
    assert heard.answer.finish_reason == meant
    assert len(calls_of(heard)) == with_call


@pytest.mark.parametrize(("finish", "meant"), [("length", "length"), ("content_filter", "contentFilter")])
@pytest.mark.parametrize("arguments", ['{"path": "/tmp/x"}', '{"path": "/tm'])
async def test_a_cut_message_with_calls_says_that_it_was_cut(finish: str, meant: str, arguments: str) -> None:
    """A run runs no call of a message with such a finish reason."""
    cut = delta(tool_calls=[call(arguments, index=0, id="x", name="delete")])
    heard = await heard_of(sse(delta(content="I will"), cut, delta(finish)))
    assert heard.answer.finish_reason == meant
    assert texts(heard.answer.content) == ["text", "toolCall"]


async def test_a_refusal_is_a_part_of_its_own() -> None:
    heard = await heard_of(
        sse(delta(content=None, refusal=""), delta(refusal="I can"), delta(refusal="not."), delta("stop"))
    )
    assert [(part.type, part.text) for part in heard.answer.content] == [("refusal", "I cannot.")]
    assert heard.answer.finish_reason == "refusal"
    assert heard.told == {(0, "text"): "I cannot."}


async def test_reasoning_is_read_from_either_field_and_once() -> None:
    chunks = [
        delta(reasoning_content="a"),
        delta(reasoning="b"),
        delta(reasoning="c", reasoning_content="c"),
        delta(content="so"),
        delta("stop"),
    ]
    heard = await heard_of(sse(*chunks))
    assert [(part.type, part.text) for part in heard.answer.content] == [("reasoning", "abc"), ("text", "so")]


async def test_content_in_typed_blocks_is_read() -> None:
    blocks = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "thinking", "thinking": "m"},
        {"type": "text", "text": "so"},
        {"type": "reference", "reference_ids": [1]},
        "!",
    ]
    heard = await heard_of(sse(delta(content=blocks), delta("stop")))
    assert [(part.type, part.text) for part in heard.answer.content] == [("reasoning", "hmm"), ("text", "so!")]


ODD_CHUNKS: list[Any] = [
    {"choices": "x"},
    {"choices": [None, 5]},
    {"choices": [{"index": 0, "delta": None, "finish_reason": 5}]},
    {"choices": [{"index": 0, "delta": {"content": 5, "tool_calls": {"a": 1}, "reasoning_details": 5}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [None, "x"]}}], "model": 5, "id": []},
    {"choices": [{"index": 0, "delta": {"reasoning_details": [None]}}]},
    b"data: 5",
    b"data: [1]",
    b"data: null",
]


@pytest.mark.parametrize("number", range(len(ODD_CHUNKS)))
async def test_chunks_of_odd_form_are_passed_over(number: int) -> None:
    heard = await heard_of(sse(ODD_CHUNKS[number], *HELLO))
    assert text_in(heard) == "hello"
    assert heard.answer.response_id == "c-1"


# --- requests


TOOLS = (
    ToolSpec(
        name="read", description="Reads.", input_schema={"type": "object", "properties": {"p": {"type": "string"}}}
    ),
    ToolSpec(name="files.list", description="Lists."),
)


async def body_sent(request: Any = None, **spec: Any) -> tuple[dict[str, Any], dict[str, str]]:
    async with loopback(sse(*HELLO)) as server:
        model = make_model(spec_for(server, **spec))
        await listen(model, request)
        await model.aclose()
        return server.requests[0].json, server.requests[0].headers


async def test_a_request_carries_the_conversation_and_what_it_may_use() -> None:
    body, headers = await body_sent(asked(user("hi"), system="Be brief.", tools=TOOLS), extra={"top_k": 3})
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert body["model"] == "m"
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["top_k"] == 3
    assert body["tools"][0] == {
        "type": "function",
        "function": {"name": "read", "description": "Reads.", "parameters": TOOLS[0].input_schema},
    }
    assert "tool_choice" not in body
    assert "authorization" not in headers
    assert headers["content-type"] == "application/json"


async def test_a_tool_whose_name_no_provider_takes_is_called_by_its_own_name() -> None:
    body, _ = await body_sent(asked(tools=TOOLS, tool_choice=ToolChoice(mode="tool", name="files.list")))
    sent = body["tools"][1]["function"]["name"]
    assert sent != "files.list"
    assert body["tool_choice"] == {"type": "function", "function": {"name": sent}}
    heard = await heard_of(sse(delta(tool_calls=[call("{}", name=sent)]), delta("stop")), request=asked(tools=TOOLS))
    assert calls_of(heard) == [("files.list", {})]


CHOICES = [
    ("openai", "auto", "auto"),
    ("openai", "none", "none"),
    ("openai", "required", "required"),
    ("mistral", "required", "any"),
    ("llama.cpp", "required", "required"),
    ("llama.cpp", "tool", "required"),
]


@pytest.mark.parametrize(("dialect", "mode", "sent"), CHOICES)
async def test_a_tool_choice_is_told_in_the_dialect_s_words(dialect: str, mode: Any, sent: str) -> None:
    choice = ToolChoice(mode=mode, name="read" if mode == "tool" else None)
    body, _ = await body_sent(asked(tools=TOOLS, tool_choice=choice), dialect=dialect)
    assert body["tool_choice"] == sent
    names = [tool["function"]["name"] for tool in body["tools"]]
    assert names == ["read"] if mode == "tool" else len(names) == 2


async def test_a_tool_choice_without_tools_is_not_sent() -> None:
    body, _ = await body_sent(asked(tool_choice=ToolChoice(mode="none")))
    assert "tool_choice" not in body
    assert "tools" not in body


SAMPLING = [
    ("openai", {"maxOutputTokens": 5}, {"max_completion_tokens": 5}),
    ("compatible", {"max_completion_tokens": 5}, {"max_tokens": 5}),
    ("compatible", {"topP": 0.5, "temperature": 0, "seed": None}, {"top_p": 0.5, "temperature": 0}),
]


@pytest.mark.parametrize(("dialect", "sampling", "sent"), SAMPLING)
async def test_sampling_is_told_in_the_dialect_s_words(dialect: str, sampling: Any, sent: Any) -> None:
    body, _ = await body_sent(asked(sampling=sampling), dialect=dialect)
    assert {key: body.get(key) for key in sent} == sent
    assert "seed" not in body
    assert not {"maxOutputTokens", "topP"} & set(body)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
STRUCTURED = {"type": "json_schema", "json_schema": {"name": "final_result", "schema": SCHEMA}}
OUTPUTS = [
    ("openai", (), STRUCTURED),
    ("openai", TOOLS, STRUCTURED),
    ("deepseek", (), {"type": "json_object"}),
    ("gemini", (), STRUCTURED),
    ("gemini", TOOLS, None),
]


@pytest.mark.parametrize(("dialect", "tools", "sent"), OUTPUTS)
async def test_structured_output_is_asked_for_where_the_dialect_has_it(dialect: str, tools: Any, sent: Any) -> None:
    body, _ = await body_sent(asked(output_schema=SCHEMA, tools=tools), dialect=dialect)
    assert body.get("response_format") == sent


async def test_extra_wins_and_is_merged_one_level_deep() -> None:
    extra = {"model": "other", "stream_options": {"chunk": 1}}
    body, _ = await body_sent(extra=extra)
    assert body["model"] == "other"
    assert body["stream_options"] == {"include_usage": True, "chunk": 1}


async def test_mistral_is_not_asked_for_usage() -> None:
    body, _ = await body_sent(dialect="mistral")
    assert "stream_options" not in body


IMAGES_OUT: list[tuple[Any, list[tuple[str, str | None, str | None]]]] = [
    ("data:image/png;base64,iVBORw0KGgo=", [("image/png", "iVBORw0KGgo=", None)]),
    ("https://example.org/a.png", [("image/*", None, "https://example.org/a.png")]),
    ("data:text/html;base64,aGk=", []),
    ("data:image/png;base64,%%%", []),
    ("file:///etc/passwd", []),
    (7, []),
]


@pytest.mark.parametrize(("url", "found"), IMAGES_OUT)
@pytest.mark.parametrize("form", ["images", "content"])
async def test_images_that_the_model_makes_are_parts_of_its_answer(url: Any, found: Any, form: str) -> None:
    image = {"type": "image_url", "image_url": {"url": url}}
    heard = await heard_of(sse(delta(content="Here: "), delta(**{form: [image]}), delta("stop")))
    assert text_in(heard) == "Here: "
    images = [part for part in heard.answer.content if part.type == "image"]
    assert [(part.mime_type, part.data, part.uri) for part in images] == found


async def test_images_are_sent() -> None:
    data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    body, _ = await body_sent(asked(user((TextPart(text="look"), ImagePart(mime_type="image/png", data=data)))))
    assert body["messages"][0]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{data}"},
    }


async def next_request(*chunks: Any, dialect: str) -> dict[str, Any]:
    """The assistant message that the request after an answer of these chunks holds."""
    async with loopback(sse(*chunks), sse(*HELLO)) as server:
        model = OpenAIChat(spec_for(server, dialect=dialect))
        heard = await listen(model)
        said = AssistantMessage.model_validate_json(AssistantMessage(content=heard.answer.content).model_dump_json())
        results = [tool_result(part, "done") for part in said.calls]
        await listen(model, asked(user("hi"), said, *results, user("and?")))
        await model.aclose()
    return next(message for message in server.requests[1].json["messages"] if message["role"] == "assistant")


async def test_unknown_fields_of_a_call_go_back_to_their_provider() -> None:
    signed = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    chunks = (delta(tool_calls=[{**call("{}", index=0, id="x", name="t"), **signed}]), delta("tool_calls"))
    message = await next_request(*chunks, dialect="gemini")
    assert message["tool_calls"][0]["extra_content"] == signed["extra_content"]


async def test_unknown_fields_of_a_call_go_to_no_other_provider() -> None:
    chunks = (
        delta(tool_calls=[{**call("{}", index=0, id="x", name="t"), "extra_content": {"a": 1}}]),
        delta("tool_calls"),
    )
    heard = await heard_of(sse(*chunks), dialect="gemini")
    said = AssistantMessage(content=heard.answer.content)
    body, _ = await body_sent(asked(user("hi"), said, tool_result(said.calls[0], "ok")), dialect="openai")
    assert "extra_content" not in body["messages"][1]["tool_calls"][0]
    body, _ = await body_sent(asked(user("hi"), said, tool_result(said.calls[0], "ok")), dialect="gemini")
    assert body["messages"][1]["tool_calls"][0]["extra_content"] == {"a": 1}


async def test_a_call_from_elsewhere_is_marked_where_a_signature_is_demanded() -> None:
    heard = await heard_of(
        sse(delta(tool_calls=[call("{}", id="x", name="t"), call("{}", id="y", name="t")]), delta("stop"))
    )
    said = AssistantMessage(content=heard.answer.content)
    results = [tool_result(part, "ok") for part in said.calls]
    body, _ = await body_sent(asked(user("hi"), said, *results), dialect="gemini")
    first, second = body["messages"][1]["tool_calls"]
    assert first["extra_content"]["google"]["thought_signature"] == "skip_thought_signature_validator"
    assert "extra_content" not in second


async def test_reasoning_goes_back_where_the_dialect_wants_it() -> None:
    chunks = (delta(reasoning_content="because"), delta(content="so"), delta("stop"))
    assert (await next_request(*chunks, dialect="deepseek"))["reasoning_content"] == "because"
    assert "reasoning_content" not in await next_request(*chunks, dialect="openai")


async def test_reasoning_details_go_back_put_together() -> None:
    chunks = (
        delta(reasoning="a", reasoning_details=[{"type": "reasoning.text", "text": "a", "index": 0}]),
        delta(reasoning="b", reasoning_details=[{"type": "reasoning.text", "text": "b", "signature": "s", "index": 0}]),
        delta(reasoning_details=[{"type": "reasoning.encrypted", "data": "xyz", "index": 1}]),
        delta(content="so"),
        delta("stop"),
    )
    message = await next_request(*chunks, dialect="openrouter")
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "text": "ab", "signature": "s", "index": 0},
        {"type": "reasoning.encrypted", "data": "xyz", "index": 1},
    ]


HOSTS = [
    (None, None, "openai"),
    ("https://api.openai.com/v1", None, "openai"),
    ("https://x.openai.azure.com/openai/v1", None, "openai"),
    ("http://localhost:11434/v1", None, "ollama"),
    ("http://127.0.0.1:1234/v1", None, "lmstudio"),
    ("https://openrouter.ai/api/v1", None, "openrouter"),
    ("https://api.deepseek.com", None, "deepseek"),
    ("https://api.mistral.ai/v1", None, "mistral"),
    ("https://api.groq.com/openai/v1", None, "groq"),
    ("https://generativelanguage.googleapis.com/v1beta/openai", None, "gemini"),
    ("https://example.org/v1", None, "compatible:example.org"),
    ("https://notopenai.com/v1", None, "compatible:notopenai.com"),
    ("https://example.org/v1", "vllm", "vllm"),
]


@pytest.mark.parametrize(("url", "dialect", "provider"), HOSTS)
async def test_the_dialect_follows_the_config_or_the_host(url: str | None, dialect: str | None, provider: str) -> None:
    from sojourn.models._chat_dialects import dialect_of

    spec = ModelSpec(name="a", backend="openai-chat", base_url=url, dialect=dialect)
    assert dialect_of(spec).history.provider == provider


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dialect": "klingon"}, "there are: compatible"),
        ({"base_url": "example.org/v1"}, "http"),
        ({"base_url": "http://example.org:port/v1"}, "http"),
        ({"base_url": "ftp://example.org"}, "http"),
        ({"backend": "nothing"}, "there are: "),
    ],
)
def test_a_spec_that_cannot_work_is_refused_when_the_model_is_made(fields: Any, words: str) -> None:
    with pytest.raises(InvalidParams, match=words) as caught:
        make_model(spec_for(**fields))
    assert "'tested'" in caught.value.message


async def test_reasoning_from_another_provider_stays_behind() -> None:
    said = AssistantMessage(
        content=(ReasoningPart(text="mine", provider="anthropic", opaque={"s": 1}), TextPart(text="so"))
    )
    body, _ = await body_sent(asked(user("hi"), said, user("and?")), dialect="openrouter")
    assert "mine" not in json.dumps(body)
