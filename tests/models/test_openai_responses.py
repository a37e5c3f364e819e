"""The OpenAI responses backend against a loopback server, recorded exchanges and the official library."""

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
from shared_inputs import Exchange, cassettes, exchange

from sojourn.core.errors import ModelError
from sojourn.core.messages import (
    AssistantMessage,
    LateResultMessage,
    ToolChoice,
    ToolSpec,
    Usage,
    parts,
    tool_result,
    user,
)
from sojourn.models.openai_responses import OpenAIResponses
from sojourn.models.table import make_model

pytestmark = pytest.mark.anyio

USAGE = {
    "input_tokens": 12,
    "output_tokens": 5,
    "input_tokens_details": {"cached_tokens": 8},
    "output_tokens_details": {"reasoning_tokens": 3},
}


def message(*content: dict[str, Any], id: str = "msg_1", status: str = "completed") -> dict[str, Any]:
    return {"type": "message", "id": id, "role": "assistant", "status": status, "content": list(content)}


def said(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def function_call(arguments: str, *, call_id: str = "call_1", name: str = "read", id: str = "fc_1") -> dict[str, Any]:
    fields = {"call_id": call_id, "name": name, "arguments": arguments, "status": "completed"}
    return {"type": "function_call", "id": id, **fields}


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "b64=="}


def added(index: int, item: dict[str, Any], **void: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": {**item, **void}}


def done(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def delta(index: int, kind: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "output_index": index, "delta": text, **fields}


def ended(*output: dict[str, Any], status: str = "completed", **fields: Any) -> dict[str, Any]:
    response = {"id": "resp_1", "model": "gpt", "status": status, "output": list(output), "usage": USAGE, **fields}
    return {"type": f"response.{status}", "response": response}


def stream(*events: dict[str, Any], hold: bool = False, split: int | None = None) -> Answer:
    lines = [f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}".encode() for event in events]
    return raw(head(x_request_id="req-1") + body_of(*lines, done=False), hold=hold, split=split)


HELLO_ITEM = message(said("hello"))
HELLO = (
    {"type": "response.created", "response": {"status": "in_progress", "output": []}},
    added(0, HELLO_ITEM, content=[], status="in_progress"),
    {"type": "response.content_part.added", "output_index": 0, "content_index": 0, "part": said("")},
    delta(0, "output_text", "hel", content_index=0),
    delta(0, "output_text", "lo", content_index=0),
    done(0, HELLO_ITEM),
    ended(HELLO_ITEM),
)


async def heard_of(*answers: Answer, request: Any = None, policy: Any = ONCE, **spec: Any) -> Heard:
    async with loopback(*answers) as server:
        model = OpenAIResponses(spec_for(server, backend="openai-responses", **spec), policy=policy)
        try:
            return await listen(model, request)
        finally:
            await model.aclose()


async def failure_of(*answers: Answer, policy: Any = ONCE) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await heard_of(*answers, policy=policy)
    return caught.value


async def bodies_of(*requests: Any, **spec: Any) -> list[Any]:
    async with loopback(stream(*HELLO)) as server:
        model = make_model(spec_for(server, backend="openai-responses", **spec))
        for request in requests:
            await listen(model, request)
        await model.aclose()
        assert all(received.line.startswith("POST /v1/responses ") for received in server.requests)
        return [received.json for received in server.requests]


async def sent_back(*events: dict[str, Any]) -> list[Any]:
    """The input items that stand for an answer of these events in the next request, after save and reload."""
    heard = await heard_of(stream(*events))
    turn = AssistantMessage.model_validate_json(AssistantMessage(content=heard.answer.content).model_dump_json())
    results = [tool_result(call, "ok") for call in turn.calls]
    (body,) = await bodies_of(asked(user("go"), turn, *results, user("and?")))
    return [item for item in body["input"] if item.get("role") != "user" and item["type"] != "function_call_output"]


@pytest.mark.parametrize("split", [None, 1, 7])
async def test_an_answer_is_read_to_its_last_event(split: int | None) -> None:
    heard = await heard_of(stream(*HELLO, hold=True, split=split))
    answer = heard.answer
    assert text_in(heard) == "hello"
    assert heard.told == {(0, "text"): "hello"}
    assert (answer.finish_reason, answer.model, answer.response_id, answer.request_id) == (
        "stop",
        "gpt",
        "resp_1",
        "req-1",
    )
    assert answer.usage == Usage(input_tokens=12, output_tokens=5, cached_input_tokens=8, reasoning_tokens=3)


@pytest.mark.parametrize("kept", range(1, len(HELLO)))
async def test_an_answer_that_ends_before_its_end_is_told_is_none(kept: int) -> None:
    for events in (stream(*HELLO[:kept]), raw(head() + body_of(*HELLO[:kept]))):
        error = await failure_of(events)
        assert error.retryable
        assert error.data["reason"] == "streamCut"


FORMS: dict[str, tuple[dict[str, Any], ...]] = {
    "items that were never added": HELLO[3:],
    "no item is done": (*HELLO[:5], HELLO[6]),
    "items that are only done": (HELLO[5], HELLO[6]),
    "all of it in the end": (HELLO[0], HELLO[6]),
    "an end without output": (*HELLO[:6], ended()),
    "an output that counts from one": ({**HELLO[5], "output_index": 1}, HELLO[6]),
    "an item with another id in each event": (*HELLO[:6], ended({**HELLO_ITEM, "id": "msg_2"})),
    "unknown events": ({"type": "response.future", "output_index": 0, "delta": "x"}, {"type": "x"}, *HELLO),
    "a null response": (*HELLO[:6], {"type": "response.completed", "response": None}),
}


@pytest.mark.parametrize("name", FORMS)
async def test_a_text_is_there_once_however_it_was_told(name: str) -> None:
    heard = await heard_of(stream(*FORMS[name]))
    assert text_in(heard) == "hello"
    assert heard.told == {(0, "text"): "hello"}


CALL = function_call('{"path":"ü"}')
CALL_FORMS: dict[str, tuple[dict[str, Any], ...]] = {
    "streamed": (
        added(0, CALL, arguments=""),
        delta(0, "function_call_arguments", '{"path"'),
        delta(0, "function_call_arguments", ':"ü"}'),
        done(0, CALL),
        ended(CALL),
    ),
    "added and done": (added(0, CALL, arguments=""), done(0, CALL), ended(CALL)),
    "all of it in the end": (ended(CALL),),
    "not done": (added(0, CALL, arguments=""), delta(0, "function_call_arguments", '{"path":"ü"}'), ended(CALL)),
    "an object": (ended({**CALL, "arguments": {"path": "ü"}}),),
    "named late": (added(0, {"type": "function_call"}), done(0, CALL), ended(CALL)),
    "counted from one beside another": (done(1, CALL), ended(CALL, {"type": "message", "content": None})),
}


@pytest.mark.parametrize("name", CALL_FORMS)
async def test_a_call_is_there_once_however_it_was_told(name: str) -> None:
    heard = await heard_of(stream(*CALL_FORMS[name]))
    assert calls_of(heard) == [("read", {"path": "ü"})]
    assert heard.answer.content[0].provider_id == "call_1"
    assert heard.answer.finish_reason == "toolCalls"
    assert [json.loads(text) for text in heard.told.values()] == [{"path": "ü"}]


def without_places(*events: Any) -> tuple[Any, ...]:
    """What a llama.cpp server says: no `output_index` anywhere, items are told apart by their ids."""
    calls = {event["output_index"]: event["item"] for event in events if "item" in event}
    bare = []
    for event in events:
        index = event.get("output_index")
        named = {} if "item" in event or index is None else {"item_id": calls[index].get("id")}
        bare.append({key: value for key, value in {**event, **named}.items() if key != "output_index"})
    return tuple(bare)


async def test_items_without_places_are_told_apart_by_their_ids() -> None:
    first, second = function_call('{"n":1}'), function_call('{"n":2}', call_id="call_2", id="fc_2")
    greeting = message(said("Hello"))
    events = without_places(
        added(0, greeting, content=[]),
        delta(0, "output_text", "Hel"),
        delta(0, "output_text", "lo"),
        done(0, greeting),
        added(1, first, arguments=""),
        added(2, second, arguments=""),
        delta(2, "function_call_arguments", '{"n":2}'),
        delta(1, "function_call_arguments", '{"n":'),
        delta(1, "function_call_arguments", "1}"),
        done(1, first),
        done(2, second),
        ended(greeting, first, second),
    )
    heard = await heard_of(stream(*events))
    assert heard.told[0, "text"] == "Hello"
    assert len([event for event in heard.events if getattr(event, "kind", "") == "text"]) == 2
    assert calls_of(heard) == [("read", {"n": 1}), ("read", {"n": 2})]


async def test_parallel_calls_and_one_without_arguments() -> None:
    other = function_call("", call_id="call_2", id="fc_2", name="jobs")
    events = [
        added(0, CALL, arguments=""),
        added(1, other),
        delta(0, "function_call_arguments", '{"path":'),
        done(1, other),
    ]
    events += [delta(0, "function_call_arguments", '"x"}'), done(0, CALL), ended(CALL, other)]
    assert calls_of(await heard_of(stream(*events))) == [("read", {"path": "x"}), ("jobs", {})]


async def test_reasoning_goes_back_as_the_item_that_it_was() -> None:
    summary = {**REASONING, "summary": [{"type": "summary_text", "text": "hm"}, {"type": "summary_text", "text": "so"}]}
    events = (
        added(0, REASONING),
        delta(0, "reasoning_summary_text", "h", summary_index=0),
        delta(0, "reasoning_summary_text", "m", summary_index=0),
        delta(0, "reasoning_summary_text", "so", summary_index=1),
        done(0, summary),
        added(1, CALL, arguments=""),
        done(1, CALL),
        ended(summary, CALL),
    )
    heard = await heard_of(stream(*events))
    assert heard.told[0, "reasoning"] == "hm\n\nso"
    assert await sent_back(*events) == [summary, CALL]


async def test_reasoning_without_words_goes_back_too() -> None:
    assert await sent_back(done(0, REASONING), done(1, CALL), ended()) == [REASONING, CALL]


async def test_reasoning_that_is_only_in_the_done_item_is_told() -> None:
    item = {"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "hm"}]}
    heard = await heard_of(stream(done(0, item), done(1, HELLO_ITEM), ended()))
    assert heard.told == {(0, "reasoning"): "hm", (1, "text"): "hello"}


async def test_items_of_the_provider_s_own_tools_go_back_whole() -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    }
    assert await sent_back(added(0, search), done(0, search), done(1, HELLO_ITEM), ended()) == [
        search,
        {**HELLO_ITEM, "content": [{"type": "output_text", "text": "hello"}]},
    ]


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {
    "type": "image_generation_call",
    "id": "ig_1",
    "status": "completed",
    "result": PIXEL,
    "revised_prompt": "a dot",
}


async def test_an_image_of_the_provider_s_own_tool_is_an_image_and_goes_back_as_it_came() -> None:
    events = (
        added(0, IMAGE, result=None, status="in_progress"),
        {"type": "response.image_generation_call.partial_image", "output_index": 0, "partial_image_b64": PIXEL},
        done(0, IMAGE),
        added(1, HELLO_ITEM, content=[]),
        done(1, HELLO_ITEM),
        ended(IMAGE, HELLO_ITEM),
    )
    heard = await heard_of(stream(*events))
    assert texts(heard.answer.content) == ["image", "text"]
    image = heard.answer.content[0]
    assert (image.mime_type, image.data) == ("image/png", PIXEL)
    assert PIXEL not in json.dumps(image.opaque), "the picture is kept once"
    assert (await sent_back(*events))[0] == IMAGE


async def test_the_type_of_an_image_is_the_one_that_its_item_tells() -> None:
    item = {**IMAGE, "output_format": "webp"}
    heard = await heard_of(answer_json(ended(item)["response"]))
    assert heard.answer.content[0].mime_type == "image/webp"


async def test_an_image_that_did_not_come_about_goes_back_whole() -> None:
    item = {**IMAGE, "status": "failed", "result": None}
    heard = await heard_of(stream(added(0, item), done(0, item), ended(item)))
    assert texts(heard.answer.content) == ["other"]


async def test_another_provider_is_told_of_an_image_in_words() -> None:
    heard = await heard_of(stream(done(0, IMAGE), ended(IMAGE)))
    turn = AssistantMessage(content=heard.answer.content)
    async with loopback(stream(*HELLO)) as server:
        elsewhere = spec_for(server, backend="openai-responses", base_url=server.url.replace("127.0.0.1", "localhost"))
        model = make_model(elsewhere)
        await listen(model, asked(user("go"), turn, user("and?")))
        await model.aclose()
        (item,) = [one for one in server.requests[0].json["input"] if one["role"] == "assistant"]
    assert item["content"] == [{"type": "output_text", "text": "[image image/png: not shown]"}]


async def test_several_parts_of_one_message_are_parts_of_their_own() -> None:
    item = message(said("one"), {"type": "refusal", "refusal": "no"}, said("two"))
    heard = await heard_of(
        stream(added(0, item), delta(0, "output_text", "one", content_index=0), done(0, item), ended(item))
    )
    assert [(part.type, part.text) for part in heard.answer.content] == [
        ("text", "one"),
        ("refusal", "no"),
        ("text", "two"),
    ]
    assert heard.answer.finish_reason == "refusal"


ENDS = [
    ({"reason": "max_output_tokens"}, "length"),
    ({"reason": "content_filter"}, "contentFilter"),
    (None, "length"),
]


@pytest.mark.parametrize(("details", "finish"), ENDS)
async def test_an_incomplete_answer_says_why_beside_its_calls(details: Any, finish: str) -> None:
    call = {**CALL, "status": "incomplete"}
    end = ended(HELLO_ITEM, call, status="incomplete", incomplete_details=details)
    heard = await heard_of(stream(done(0, HELLO_ITEM), done(1, call), end))
    assert (text_in(heard), len(calls_of(heard))) == ("hello", 1)
    assert heard.answer.finish_reason == finish


FAILURES: list[tuple[Answer, str, bool]] = [
    (stream(ended(status="failed", error={"code": "server_error", "message": "boom"})), "boom", True),
    (stream(ended(status="failed", error={"code": "rate_limit_exceeded", "message": "slow"})), "slow", True),
    (stream(ended(status="failed", error={"code": "invalid_prompt", "message": "bad"})), "bad", False),
    (stream(ended(status="failed", error=None)), "failed or was cancelled", True),
    (stream(ended(status="cancelled")), "failed or was cancelled", True),
    (
        stream({"type": "response.completed", "response": {"status": "failed", "error": {"message": "odd"}}}),
        "odd",
        True,
    ),
    (stream({"type": "error", "code": "server_error", "message": "boom", "param": None}), "boom", True),
    (raw(head() + body_of({"type": "error", "code": "server_error", "message": "boom"})), "boom", True),
    (answer_json({"output": [], "status": "failed", "error": None}), "failed or was cancelled", True),
    (answer_json({"output": [], "error": {"message": "boom"}}), "boom", True),
    (answer_json({"output": 5}), "neither an answer nor an error", False),
]


@pytest.mark.parametrize("number", range(len(FAILURES)))
async def test_a_failed_response_is_a_failure_in_its_own_words(number: int) -> None:
    answer, words, retryable = FAILURES[number]
    error = await failure_of(answer)
    assert words in error.message
    assert error.retryable is retryable


async def test_a_failure_after_text_is_tried_again() -> None:
    failed = ended(status="failed", error={"code": "server_error", "message": "boom"})
    heard = await heard_of(stream(*HELLO[:4], failed), stream(*HELLO), policy=PATIENT)
    assert text_in(heard) == "hello"
    assert heard.resets == ["retry"]


async def test_a_plain_answer_is_taken_as_the_whole_one() -> None:
    heard = await heard_of(answer_json(ended(REASONING, HELLO_ITEM, CALL)["response"]))
    assert texts(heard.answer.content) == ["reasoning", "text", "toolCall"]
    assert heard.answer.finish_reason == "toolCalls"
    assert (await heard_of(answer_json({"output": []}))).answer.usage is None


async def test_what_is_no_object_is_passed_over() -> None:
    answer = raw(head() + body_of(b"data: 5", done=False) + body_of(*HELLO, done=False))
    assert text_in(await heard_of(answer)) == "hello"


# --- requests

TOOLS = (ToolSpec(name="read", description="Reads."),)


async def test_a_request_says_what_the_api_wants() -> None:
    request = asked(
        user("hi"),
        system="Be brief.",
        tools=TOOLS,
        sampling={"maxTokens": 5, "topP": 0.5},
        output_schema={"type": "object"},
    )
    (body,) = await bodies_of(request, model="gpt-5.5")
    assert body == {
        "model": "gpt-5.5",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "instructions": "Be brief.",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "tools": [
            {
                "type": "function",
                "name": "read",
                "description": "Reads.",
                "parameters": {"type": "object", "properties": {}},
                "strict": False,
            }
        ],
        "text": {"format": {"type": "json_schema", "name": "final_result", "schema": {"type": "object"}}},
        "max_output_tokens": 5,
        "top_p": 0.5,
    }


@pytest.mark.parametrize(
    ("model", "asks"),
    [
        ("gpt-4o", False),
        ("gpt-5", True),
        ("gpt-5.2-mini", True),
        ("gpt-5-chat-latest", False),
        ("o4-mini", True),
        ("x", False),
    ],
)
async def test_only_models_that_reason_are_asked_for_their_reasoning(model: str, asks: bool) -> None:
    (body,) = await bodies_of(asked(), model=model)
    assert ("include" in body) is asks


CHOICES = [
    (ToolChoice(mode="auto"), "auto"),
    (ToolChoice(mode="none"), "none"),
    (ToolChoice(mode="required"), "required"),
    (ToolChoice(mode="tool", name="read"), {"type": "function", "name": "read"}),
]


@pytest.mark.parametrize(("choice", "sent"), CHOICES)
async def test_a_tool_choice_is_told_in_the_api_s_words(choice: ToolChoice, sent: Any) -> None:
    with_tools, without = await bodies_of(asked(tools=TOOLS, tool_choice=choice), asked(tool_choice=choice))
    assert with_tools["tool_choice"] == sent
    assert "tool_choice" not in without


async def test_a_late_result_is_no_second_output_of_its_call() -> None:
    heard = await heard_of(stream(*CALL_FORMS["streamed"]))
    turn = AssistantMessage(content=heard.answer.content)
    call = turn.calls[0]
    late = LateResultMessage(call_id=call.id, tool_name=call.name, content=parts("done"))
    (body,) = await bodies_of(asked(user("go"), turn, tool_result(call, "started", pending=True), late))
    assert [item["type"] for item in body["input"]] == ["message", "function_call", "function_call_output", "message"]


# --- recorded


def of_responses(exchange: Exchange) -> bool:
    return bool(exchange["when"]["path"].endswith("/responses"))


@pytest.mark.parametrize(("file", "number"), cassettes("openai/*/*.yaml", of_responses))
async def test_a_recorded_exchange_reads_as_the_official_library_reads_it(file: str, number: int) -> None:
    then = exchange(file, number)["then"]
    kind = next(field["value"] for field in then["header"] if field["name"] == "content-type")
    data = head(then["status"], kind) + then["body"].encode()
    heard = await heard_of(raw(data, split=11))
    library = pytest.importorskip("openai")
    async with loopback(raw(data)) as server:
        client = library.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=0)
        if "event-stream" in kind:
            response = None
            async for event in await client.responses.create(model="m", input="x", stream=True):
                response = getattr(event, "response", response)
        else:
            response = await client.responses.create(model="m", input="x")
        await client.close()
    _same(heard, response)


def _same(heard: Heard, response: Any) -> None:
    assert text_in(heard) == response.output_text
    calls = [item for item in response.output if item.type == "function_call"]
    found = [part for part in heard.answer.content if part.type == "toolCall"]
    assert [(part.provider_id, part.name) for part in found] == [(item.call_id, item.name) for item in calls]
    assert [part.arguments for part in found] == [json.loads(item.arguments or "{}") for item in calls]
    reasoning = [part.opaque["id"] for part in heard.answer.content if part.type == "reasoning"]
    assert reasoning == [item.id for item in response.output if item.type == "reasoning"]
    refusals = [
        part.refusal
        for item in response.output
        if item.type == "message"
        for part in item.content
        if part.type == "refusal"
    ]
    assert [part.text for part in heard.answer.content if part.type == "refusal"] == refusals
    usage = response.usage
    assert (heard.answer.usage.input_tokens, heard.answer.usage.output_tokens) == (
        usage.input_tokens,
        usage.output_tokens,
    )
    assert heard.answer.usage.reasoning_tokens == usage.output_tokens_details.reasoning_tokens
    assert heard.answer.response_id == response.id
    assert (heard.answer.finish_reason == "length") == (response.status == "incomplete")
