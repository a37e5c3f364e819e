"""The Anthropic messages backend against a loopback server, recorded streams and the official library."""

from __future__ import annotations

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
    calls_of,
    head,
    listen,
    loopback,
    raw,
    spec_for,
    text_in,
    texts,
)
from shared_inputs import cassettes, exchange, shared

from sojourn.core.errors import ModelError
from sojourn.core.messages import AssistantMessage, TextPart, ToolChoice, ToolSpec, Usage, tool_result, user
from sojourn.models.anthropic import Anthropic
from sojourn.models.table import make_model

pytestmark = pytest.mark.anyio

START = {
    "type": "message_start",
    "message": {
        "id": "msg-1",
        "model": "claude",
        "content": [],
        "usage": {
            "input_tokens": 10,
            "cache_read_input_tokens": 5,
            "cache_creation_input_tokens": 2,
            "output_tokens": 1,
        },
    },
}


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text_block(index: int, *pieces: str) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def tool_block(
    index: int, *pieces: str, id: str = "toolu_1", name: str = "read", **fields: Any
) -> list[dict[str, Any]]:
    start = {"type": "tool_use", "id": id, "name": name, "input": {}, **fields}
    return block(index, start, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def end(reason: str | None, **usage: Any) -> list[dict[str, Any]]:
    delta = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7, **usage}}
    return [delta, {"type": "message_stop"}]


def stream(*events: dict[str, Any], hold: bool = False, split: int | None = None) -> Answer:
    lines = [f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}".encode() for event in events]
    return raw(head(request_id="req-1") + body_of(*lines, done=False), hold=hold, split=split)


HELLO = (START, *text_block(0, "hel", "lo"), *end("end_turn"))


async def heard_of(*answers: Answer, request: Any = None, policy: Any = ONCE, **spec: Any) -> Heard:
    async with loopback(*answers) as server:
        model = Anthropic(spec_for(server, backend="anthropic", **spec), policy=policy)
        try:
            return await listen(model, request)
        finally:
            await model.aclose()


async def failure_of(*answers: Answer, policy: Any = ONCE) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await heard_of(*answers, policy=policy)
    return caught.value


async def bodies_of(*requests: Any, answer: Answer | None = None, **spec: Any) -> list[Any]:
    async with loopback(answer or stream(*HELLO)) as server:
        model = make_model(spec_for(server, backend="anthropic", **spec))
        for request in requests:
            await listen(model, request)
        await model.aclose()
        return [received.json for received in server.requests]


@pytest.mark.parametrize("split", [None, 1, 7])
async def test_an_answer_is_read_to_its_last_event(split: int | None) -> None:
    heard = await heard_of(stream(*HELLO, hold=True, split=split))
    answer = heard.answer
    assert text_in(heard) == "hello"
    assert (answer.finish_reason, answer.model, answer.response_id, answer.request_id) == (
        "stop",
        "claude",
        "msg-1",
        "req-1",
    )
    assert answer.usage == Usage(input_tokens=17, output_tokens=7, cached_input_tokens=5)


async def test_a_stop_reason_without_the_last_event_is_an_end() -> None:
    assert text_in(await heard_of(stream(*HELLO[:-1]))) == "hello"


@pytest.mark.parametrize("kept", range(1, len(HELLO) - 2))
async def test_an_answer_that_ends_before_its_stop_reason_is_none(kept: int) -> None:
    error = await failure_of(stream(*HELLO[:kept]))
    assert error.retryable
    assert error.data["reason"] == "streamCut"


async def test_thinking_is_kept_byte_for_byte() -> None:
    thinking = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "look at "},
        {"type": "thinking_delta", "thinking": "the file\u2028 ü"},
        {"type": "signature_delta", "signature": "U0lH"},
    )
    redacted = block(1, {"type": "redacted_thinking", "data": "UkVE"})
    omitted = block(2, {"type": "thinking", "thinking": "", "signature": "T01JVA=="})
    call = tool_block(3, '{"path":', '"a.txt"}', caller={"type": "direct"})
    answer = stream(START, *thinking, *redacted, *omitted, *call, *end("tool_use"))
    heard = await heard_of(answer)
    assert texts(heard.answer.content) == ["reasoning", "reasoning", "reasoning", "toolCall"]
    assert heard.told == {(0, "reasoning"): "look at the file\u2028 ü", (3, "toolArguments"): '{"path":"a.txt"}'}
    said = AssistantMessage.model_validate_json(AssistantMessage(content=heard.answer.content).model_dump_json())
    request = asked(user("go"), said, tool_result(said.calls[0], "ok"))
    _, body = await bodies_of(asked(), request)
    assert body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "look at the file\u2028 ü", "signature": "U0lH"},
        {"type": "redacted_thinking", "data": "UkVE"},
        {"type": "thinking", "thinking": "", "signature": "T01JVA=="},
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.txt"}, "caller": {"type": "direct"}},
    ]


async def test_thinking_goes_back_to_its_own_provider_only() -> None:
    thinking = block(0, {"type": "thinking", "thinking": "hm", "signature": "U0lH"})
    heard = await heard_of(stream(START, *thinking, *text_block(1, "so"), *end("end_turn")))
    said = AssistantMessage(content=heard.answer.content)
    elsewhere = said.model_copy(
        update={"content": tuple(part.model_copy(update={"provider": "anthropic"}) for part in said.content)}
    )
    (body,) = await bodies_of(asked(user("go"), elsewhere, user("and?")))
    assert "thinking" not in json.dumps(body["messages"])


async def test_blocks_of_the_provider_s_own_tools_are_kept_whole() -> None:
    search = block(
        0,
        {"type": "server_tool_use", "id": "srv-1", "name": "web_search", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"query":'},
        {"type": "input_json_delta", "partial_json": '"x"}'},
    )
    found = block(1, {"type": "web_search_tool_result", "tool_use_id": "srv-1", "content": [{"type": "r", "url": "u"}]})
    cited = block(
        2,
        {"type": "text", "text": "", "citations": None},
        {"type": "text_delta", "text": "so"},
        {"type": "citations_delta", "citation": {"url": "u"}},
        {"type": "citations_delta", "citation": {"url": "v"}},
    )
    heard = await heard_of(stream(START, *search, *found, *cited, *tool_block(3, "{}"), *end("tool_use")))
    said = AssistantMessage(content=heard.answer.content)
    _, body = await bodies_of(asked(), asked(user("go"), said, tool_result(said.calls[0], "ok")))
    assert body["messages"][1]["content"] == [
        {"type": "server_tool_use", "id": "srv-1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srv-1", "content": [{"type": "r", "url": "u"}]},
        {"type": "text", "text": "so", "citations": [{"url": "u"}, {"url": "v"}]},
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}},
    ]


ARGUMENTS: list[tuple[list[dict[str, Any]], Any]] = [
    (tool_block(0), {}),
    (tool_block(0, ""), {}),
    (tool_block(0, "", '{"a":', "1}"), {"a": 1}),
    (tool_block(0, '{"a": "cut'), '{"a": "cut'),
    (tool_block(0, input={"a": 1}), {"a": 1}),
    (tool_block(0, '{"b":2}', input={"a": 1}), {"b": 2}),
    (tool_block(0, input="odd"), {}),
]


@pytest.mark.parametrize("number", range(len(ARGUMENTS)))
async def test_arguments_come_in_pieces_or_whole_or_not_at_all(number: int) -> None:
    events, arguments = ARGUMENTS[number]
    heard = await heard_of(stream(START, *events, *end("tool_use")))
    assert calls_of(heard) == [("read", arguments)]


FINISHES = [
    ("end_turn", False, "stop", 0),
    ("stop_sequence", False, "stop", 0),
    ("tool_use", True, "toolCalls", 1),
    ("end_turn", True, "toolCalls", 1),
    ("max_tokens", True, "length", 1),
    ("model_context_window_exceeded", True, "length", 1),
    ("refusal", True, "contentFilter", 1),
    ("refusal", False, "refusal", 0),
    ("pause_turn", True, "toolCalls", 1),
    ("tool_use", False, "stop", 0),
    ("something_new", False, "other", 0),
]


@pytest.mark.parametrize(("said", "with_call", "meant", "kept"), FINISHES)
async def test_a_stop_reason_is_what_the_answer_is(said: str, with_call: bool, meant: str, kept: int) -> None:
    call = tool_block(1, '{"path":"x"}') if with_call else []
    heard = await heard_of(stream(START, *text_block(0, "a"), *call, *end(said)))
    assert heard.answer.finish_reason == meant
    assert len(calls_of(heard)) == kept
    assert not heard.notices


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tea"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"url": "https://x", "e": "b64"}]}
PAUSED = (START, *text_block(0, "I look."), *block(1, SEARCH), *end("pause_turn"))
REST = (START, *block(0, FOUND), *text_block(1, "Tea ", "is a leaf."), *end("end_turn"))


async def test_a_pause_is_no_end_what_was_said_goes_back_and_the_answer_goes_on() -> None:
    async with loopback(stream(*PAUSED), stream(*REST)) as server:
        model = Anthropic(spec_for(server, backend="anthropic"), policy=ONCE)
        heard = await listen(model, asked(user("What is tea?")))
        await model.aclose()
        second = server.requests[1].json
    assert second["messages"][-1] == {"role": "assistant", "content": [{"type": "text", "text": "I look."}, SEARCH]}
    assert second["messages"][0]["role"] == "user"
    assert texts(heard.answer.content) == ["text", "other", "other", "text"]
    assert heard.told == {(0, "text"): "I look.", (3, "text"): "Tea is a leaf."}
    assert (heard.answer.finish_reason, heard.answer.paused) == ("stop", False)
    assert heard.answer.usage == Usage(input_tokens=34, output_tokens=14, cached_input_tokens=10)


async def test_what_was_said_before_a_pause_outlives_a_failure_after_it() -> None:
    answers = stream(*PAUSED), stream(*REST[:4]), stream(*REST)
    async with loopback(*answers) as server:
        model = Anthropic(spec_for(server, backend="anthropic"), policy=PATIENT)
        heard = await listen(model, asked(user("What is tea?")))
        await model.aclose()
        assert len(server.requests) == 3
        assert server.requests[2].body == server.requests[1].body
    assert heard.resets == ["retry"]
    assert heard.told == {(0, "text"): "I look.", (3, "text"): "Tea is a leaf."}


async def test_a_model_that_only_pauses_comes_to_an_end() -> None:
    async with loopback(stream(*PAUSED)) as server:
        model = Anthropic(spec_for(server, backend="anthropic"), policy=ONCE)
        heard = await listen(model, asked(user("go")))
        await model.aclose()
        assert len(server.requests) == 17
    assert [notice.code for notice in heard.notices] == ["turnPaused"]
    assert (heard.answer.finish_reason, heard.answer.paused) == ("other", True)


async def test_what_is_unknown_is_passed_over() -> None:
    events = [
        {"type": "ping"},
        {"type": "some_future_event", "x": 1, "index": 0},
        {"type": "content_block_delta", "index": 9, "delta": {"type": "future_delta", "z": 1}},
        {"type": "content_block_stop", "index": 9},
        {"type": "content_block_start", "index": 0, "content_block": None},
        {"type": "message_delta", "delta": None},
        *block(0, {"type": "text", "text": ""}, {"type": "future_delta", "z": 2}, {"type": "text_delta", "text": "ok"}),
    ]
    assert text_in(await heard_of(stream(START, *events, *end("end_turn")))) == "ok"
    assert (
        text_in(await heard_of(raw(head() + body_of(b"data: 5", done=False) + body_of(*HELLO, done=False)))) == "hello"
    )


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


@pytest.mark.parametrize("told", [0, 3])
async def test_overload_in_the_stream_is_tried_again(told: int) -> None:
    heard = await heard_of(stream(*HELLO[:told], OVERLOADED), stream(*HELLO), policy=PATIENT)
    assert text_in(heard) == "hello"
    assert heard.resets == (["retry"] if told else [])
    assert heard.notices[0].data["reason"] == "overloaded"


async def test_an_error_without_an_event_name_is_one_too() -> None:
    answer = raw(head() + body_of({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}))
    error = await failure_of(answer, policy=PATIENT)
    assert not error.retryable
    assert "no" in error.message


async def test_a_plain_answer_is_taken_as_the_whole_one() -> None:
    whole = {
        "id": "msg-1",
        "content": [
            {"type": "text", "text": "so"},
            None,
            {"type": "tool_use", "id": "t", "name": "read", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 2, "output_tokens_details": {"thinking_tokens": 1}},
    }
    heard = await heard_of(answer_json(whole))
    assert (text_in(heard), calls_of(heard)) == ("so", [("read", {"a": 1})])
    assert heard.answer.usage == Usage(input_tokens=1, output_tokens=2, reasoning_tokens=1)
    assert "neither" in (await failure_of(answer_json({"content": "x"}))).message


async def test_an_answer_without_usage_has_none() -> None:
    assert (await heard_of(answer_json({"content": []}))).answer.usage is None


# --- requests

TOOLS = (ToolSpec(name="read", description="Reads."), ToolSpec(name="files.list"))


async def test_a_request_says_what_the_api_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "key-0123456789")
    async with loopback(stream(*HELLO)) as server:
        model = make_model(
            spec_for(server, backend="anthropic", api_key_env="A_KEY", extra={"thinking": {"type": "x"}})
        )
        request = asked(
            user("hi"),
            system="Be brief.",
            tools=TOOLS,
            sampling={"topP": 0.5, "stop": ["x"]},
            output_schema={"type": "object"},
        )
        await listen(model, request)
        await model.aclose()
        received = server.requests[0]
    assert received.line.startswith("POST /v1/messages ")
    assert received.headers["x-api-key"] == "key-0123456789"
    assert received.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in received.headers
    body = received.json
    mark = {"type": "ephemeral"}
    assert body["system"] == [{"type": "text", "text": "Be brief.", "cache_control": mark}]
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": mark}]}]
    assert body["tools"][0]["name"] == "read"
    assert body["tools"][1]["cache_control"] == mark
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    assert (body["max_tokens"], body["stream"], body["thinking"]) == (8192, True, {"type": "x"})
    assert (body["top_p"], body["stop_sequences"]) == (0.5, ["x"])


@pytest.mark.parametrize("key", ["maxTokens", "max_tokens", "maxOutputTokens"])
async def test_the_limit_of_tokens_may_be_set(key: str) -> None:
    (body,) = await bodies_of(asked(sampling={key: 5}))
    assert body["max_tokens"] == 5


CHOICES = [
    (ToolChoice(mode="auto"), {"type": "auto"}),
    (ToolChoice(mode="none"), {"type": "none"}),
    (ToolChoice(mode="required"), {"type": "any"}),
    (ToolChoice(mode="tool", name="read"), {"type": "tool", "name": "read"}),
]


@pytest.mark.parametrize(("choice", "sent"), CHOICES)
async def test_a_tool_choice_is_told_in_the_api_s_words(choice: ToolChoice, sent: dict[str, str]) -> None:
    with_tools, without = await bodies_of(asked(tools=TOOLS, tool_choice=choice), asked(tool_choice=choice))
    assert with_tools["tool_choice"] == sent
    assert "tool_choice" not in without


async def test_at_most_four_marks_and_what_was_sent_stays() -> None:
    messages = [user("one"), AssistantMessage(content=(TextPart(text="1"),)), user("two")]
    more = [*messages, AssistantMessage(content=(TextPart(text="2"),)), user("three")]
    first, second = await bodies_of(asked(*messages, tools=TOOLS, system="s"), asked(*more, tools=TOOLS, system="s"))
    assert json.dumps(second).count("cache_control") == 4
    assert _unmarked(second["messages"])[: len(messages)] == _unmarked(first["messages"])


def _unmarked(messages: list[Any]) -> list[Any]:
    return [
        {**m, "content": [{k: v for k, v in b.items() if k != "cache_control"} for b in m["content"]]} for m in messages
    ]


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        (None, "anthropic"),
        ("https://api.anthropic.com/v1", "anthropic"),
        ("https://x.example/api", "anthropic:x.example"),
    ],
)
def test_a_provider_is_known_by_its_host(url: str | None, provider: str) -> None:
    from sojourn.models._assemble import AnswerBuilder

    reader = Anthropic(spec_for(base_url=url)).reader(asked(), None)
    assert isinstance(reader._builder, AnswerBuilder)
    assert reader._builder.provider == provider


# --- recorded

READ_A = [("read_file", {"path": "a.txt"})]
RECORDED: dict[str, Any] = {
    "a02_tool_without_input_delta": lambda heard: calls_of(heard) == [("list_jobs", {})],
    "a02b_empty_partial_json": lambda heard: calls_of(heard) == [("list_jobs", {})],
    "a03_thinking_and_tool": lambda heard: (
        calls_of(heard) == READ_A
        and [part.opaque for part in heard.answer.content[:2]]
        == [
            {"type": "thinking", "thinking": "look at the file", "signature": "U0lHTkFUVVJFLURFTU8="},
            {"type": "redacted_thinking", "data": "UkVEQUNURUQtREVNTw=="},
        ]
    ),
    "a04_ping_and_unknown": lambda heard: text_in(heard) == "ok",
    "a05_max_tokens_in_tool": lambda heard: heard.answer.finish_reason == "length",
    "a08_end_turn_with_tool": lambda heard: calls_of(heard) == READ_A,
}
FAILED = {
    "a01_overloaded_mid_stream": "overloaded",
    "a01b_overloaded_first": "overloaded",
    "a06_cut_before_message_stop": "streamCut",
}


@pytest.mark.parametrize("split", [None, 1, 2, 3, 7])
@pytest.mark.parametrize("name", [*RECORDED, *FAILED])
async def test_a_recorded_stream_is_what_was_meant(name: str, split: int | None) -> None:
    answer = raw(head() + (shared("hazards/inputs/sse_anthropic") / f"{name}.sse").read_bytes(), split=split)
    if name in FAILED:
        error = await failure_of(answer)
        assert (error.retryable, error.data["reason"]) == (True, FAILED[name])
    else:
        heard = await heard_of(answer)
        assert RECORDED[name](heard), heard.answer


@pytest.mark.parametrize(("file", "number"), cassettes("anthropic/*/*.yaml"))
async def test_a_recorded_exchange_reads_as_the_official_library_reads_it(file: str, number: int) -> None:
    then = exchange(file, number)["then"]
    kind = next(field["value"] for field in then["header"] if field["name"] == "content-type")
    data = head(then["status"], kind) + then["body"].encode()
    if then["status"] != 200:
        assert json.loads(then["body"])["error"]["message"] in (await failure_of(raw(data, split=11))).message
        return
    heard = await heard_of(raw(data, split=11))
    library = pytest.importorskip("anthropic")
    async with loopback(raw(data)) as server:
        client = library.AsyncAnthropic(api_key="k", base_url=server.url.removesuffix("/v1"), max_retries=0)
        ask = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
        if "event-stream" in kind:
            async with client.messages.stream(**ask) as events:
                message = await events.get_final_message()
        else:
            message = await client.messages.create(**ask)
        await client.close()
    _same(heard, message.to_dict())


def _same(heard: Heard, message: dict[str, Any]) -> None:
    blocks = message["content"]
    ours = []
    for part in heard.answer.content:
        if part.type == "reasoning":
            ours.append(part.opaque)
        elif part.type == "text":
            ours.append({"type": "text", "text": part.text})
        elif part.type == "toolCall":
            ours.append({"type": "tool_use", "id": part.provider_id, "name": part.name, "input": part.arguments})
    known = ("type", "text", "id", "name", "input", "thinking", "signature", "data")
    assert ours == [{key: value for key, value in block.items() if key in known} for block in blocks]
    usage = message["usage"]
    cached = usage["cache_read_input_tokens"]
    total = usage["input_tokens"] + cached + usage["cache_creation_input_tokens"]
    assert (heard.answer.usage.input_tokens, heard.answer.usage.output_tokens) == (total, usage["output_tokens"])
    finish = {"end_turn": "stop", "tool_use": "toolCalls", "max_tokens": "length"}[message["stop_reason"]]
    assert heard.answer.finish_reason == finish
