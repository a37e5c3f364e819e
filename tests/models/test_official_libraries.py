"""The backends read what the providers' own libraries read from the same bytes: text, reasoning, calls, end and usage.

The libraries are the oracle. Where the two differ and we are right, `DIFFERENT` says why, and the test holds that too.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from models.loopback import ONCE, Answer, Heard, asked, body_of, call, delta, head, listen, loopback, raw, spec_for, sse
from models.test_streamed_calls import CASES
from shared_inputs import Exchange, cassettes, exchange

from sojourn.core.messages import ToolSpec
from sojourn.models.table import make_model

pytestmark = pytest.mark.anyio

TOOLS = tuple(ToolSpec(name=name) for name in ("read", "wait", "jobs"))
Read = dict[str, Any]

anthropic: Any
openai: Any


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imports them once these tests run: each worker collects the tests, and the two cost it seconds."""
    global anthropic, openai
    anthropic, openai = pytest.importorskip("anthropic"), pytest.importorskip("openai")


async def our_reading(answer: Answer, backend: str) -> Read:
    async with loopback(answer) as server:
        model = make_model(spec_for(server, backend=backend))
        model._policy = ONCE
        heard = await listen(model, asked(tools=TOOLS))
        await model.aclose()
    return summary(heard)


def summary(heard: Heard) -> Read:
    answer = heard.answer
    texts = {
        kind: "".join(part.text for part in answer.content if part.type == kind)
        for kind in ("text", "reasoning", "refusal")
    }
    calls = [(part.provider_id, part.name, part.arguments) for part in answer.content if part.type == "toolCall"]
    usage = answer.usage.wire() if answer.usage else None
    return {**texts, "calls": calls, "finish": answer.finish_reason, "usage": usage}


def arguments_of(text: str) -> Any:
    """As the run wants them: an object, or the text that is none."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


# -- chat completions -------------------------------------------------------------------------------------------------


async def chat_reading(answer: Answer) -> Read:
    """What `openai` makes of a stream of chat completions (or of a plain answer)."""
    ask = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    async with loopback(answer) as server:
        client = openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=0)
        try:
            async with client.chat.completions.stream(**ask) as events:
                found = await events.get_final_completion()
        except openai.LengthFinishReasonError as error:
            found = error.completion
        finally:
            await client.close()
    return chat_summary(found)


def chunk(finish: str | None = None, **fields: Any) -> Read:
    """A chunk as the library takes it for one."""
    return {**delta(finish, **fields), "object": "chat.completion.chunk", "created": 1}


def chat_summary(found: Any) -> Read:
    choice = found.choices[0]
    said = choice.message
    calls = [
        (one.id, one.function.name, arguments_of(one.function.arguments) if choice.finish_reason != "length" else None)
        for one in said.tool_calls or ()
    ]
    finish = {"tool_calls": "toolCalls", "content_filter": "contentFilter"}.get(
        choice.finish_reason, choice.finish_reason
    )
    fields = said.to_dict()
    return {
        "text": said.content or "",
        "reasoning": fields.get("reasoning_content") or fields.get("reasoning") or "",
        "refusal": said.refusal or "",
        "calls": calls,
        "finish": "refusal" if said.refusal else finish,
        "usage": chat_usage(found.usage),
    }


def chat_usage(usage: Any) -> Read | None:
    if usage is None:
        return None
    read: Read = {"inputTokens": usage.prompt_tokens, "outputTokens": usage.completion_tokens}
    if usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens is not None:
        read["cachedInputTokens"] = usage.prompt_tokens_details.cached_tokens
    details = usage.completion_tokens_details
    if details is not None and details.reasoning_tokens is not None:
        read["reasoningTokens"] = details.reasoning_tokens
    return read


def without_cut_arguments(read: Read) -> Read:
    """Nobody runs the calls of a message that was cut: what their half arguments are called is no matter."""
    if read["finish"] != "length":
        return read
    return {**read, "calls": [(one[0], one[1], None) for one in read["calls"]]}


USAGE_CHUNK = {
    "id": "c-1",
    "model": "m-1",
    "object": "chat.completion.chunk",
    "choices": [],
    "usage": {
        "prompt_tokens": 20,
        "completion_tokens": 9,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 16},
        "completion_tokens_details": {"reasoning_tokens": 4},
    },
}
ARGS = '{"path":"naïve.txt"}'
CHAT: dict[str, Answer] = {
    "text": sse(chunk(role="assistant", content=""), chunk(content="hel"), chunk(content="lo ✅"), chunk("stop")),
    "text and usage": sse(chunk(role="assistant", content="hi"), chunk("stop"), USAGE_CHUNK),
    "cut text": sse(chunk(role="assistant", content="half of"), chunk("length"), USAGE_CHUNK),
    "refusal": sse(chunk(role="assistant", refusal="I can"), chunk(refusal="not."), chunk("stop"), USAGE_CHUNK),
    "reasoning": sse(
        chunk(role="assistant", reasoning_content="Hm, "),
        chunk(reasoning_content="yes."),
        chunk(content="Yes."),
        chunk("stop"),
        USAGE_CHUNK,
    ),
    "text and calls": sse(
        chunk(role="assistant", content="I look."),
        chunk(tool_calls=[call("", index=0, id="call_1", name="read", type="function")]),
        chunk(tool_calls=[call(ARGS[:7], index=0)]),
        chunk(tool_calls=[call(ARGS[7:], index=0)]),
        chunk(tool_calls=[call("{}", index=1, id="call_2", name="jobs", type="function")]),
        chunk("tool_calls"),
        USAGE_CHUNK,
    ),
    "a call cut short": sse(
        chunk(role="assistant", tool_calls=[call('{"pa', index=0, id="call_1", name="read", type="function")]),
        chunk("length"),
        USAGE_CHUNK,
    ),
    "byte by byte": sse(chunk(role="assistant", content="ü"), chunk(content="日本"), chunk("stop"), split=1),
}


@pytest.mark.parametrize("name", CHAT)
async def test_a_chat_stream_reads_as_the_official_library_reads_it(name: str) -> None:
    ours = without_cut_arguments(await our_reading(CHAT[name], "openai-chat"))
    assert ours == await chat_reading(CHAT[name])


def streamed(name: str) -> Answer:
    chunks, _ = CASES[name]
    typed = [[{**entry, **({"type": "function"} if "id" in entry else {})} for entry in entries] for entries in chunks]
    return sse(*[chunk(tool_calls=entries) for entries in typed], chunk("tool_calls"))


JOINS = "it joins all that stands under one index, so that two calls become one that cannot be run"
NO_INDEX = "it raises at a call without an index, which some servers leave out"
REPEATS = "it appends a name or arguments that are said once more"
FAILS = "it raises at a slip of the server's"
NO_NAME = "its call has no name at all; ours has an empty one, which the model is told of"
DIFFERENT: dict[str, str] = {
    "two under one index, ids differ": JOINS,
    "two under one index in one chunk": JOINS,
    "two under one index, the second in pieces": JOINS,
    "two under one index, no ids, names differ": JOINS,
    "two under one index, no ids, one name": JOINS,
    "two with one id and one index": JOINS,
    "no index": NO_INDEX,
    "no index and no id": NO_INDEX,
    "no index, no id, one chunk": NO_INDEX,
    "no index, no id, name repeated in each piece": NO_INDEX,
    "no index, id repeated in each piece": NO_INDEX,
    "no index, ids tell interleaved pieces apart": NO_INDEX,
    "two bare names": NO_INDEX,
    "name repeated in each piece": REPEATS,
    "name repeated, no id": REPEATS,
    "all of it once more at the end": REPEATS,
    "indexes with a gap, out of order": FAILS,
    "arguments as an object": FAILS,
    "two objects under one index, no ids": FAILS,
    "an object without a name after a whole call": FAILS,
    "no function at all": FAILS,
    "an unknown index without a name": NO_NAME,
}
"""The streams of servers that take liberties, where the library's reading is not what was meant (`CASES` says that)."""


@pytest.mark.parametrize("name", CASES)
async def test_calls_read_as_the_official_library_reads_them_unless_it_is_wrong(name: str) -> None:
    ours = [one[1:] for one in (await our_reading(streamed(name), "openai-chat"))["calls"]]
    try:
        theirs: Any = [one[1:] for one in (await chat_reading(streamed(name)))["calls"]]
    except Exception as error:
        theirs = error
    assert ours == CASES[name][1]
    assert (ours != theirs) == (name in DIFFERENT), theirs


def recorded(suffix: str, provider: str) -> list[tuple[str, int]]:
    def wanted(one: Exchange) -> bool:
        return bool(one["when"]["path"].endswith(suffix) and one["then"]["status"] == 200)

    return cassettes(f"{provider}/*/*.yaml", wanted)


def recording(file: str, number: int) -> tuple[bytes, str, str]:
    """The answer as it came, its type and its body. It is cut into small pieces for us alone."""
    then = exchange(file, number)["then"]
    kind = next(field["value"] for field in then["header"] if field["name"] == "content-type")
    return head(then["status"], kind) + then["body"].encode(), kind, then["body"]


@pytest.mark.parametrize(("file", "number"), recorded("/chat/completions", "*"))
async def test_a_recorded_chat_reads_as_the_official_library_reads_it(file: str, number: int) -> None:
    data, kind, body = recording(file, number)
    if "event-stream" in kind:
        theirs = await chat_reading(raw(data))
    else:
        theirs = chat_summary(openai.types.chat.ChatCompletion.model_validate_json(body))
    assert without_cut_arguments(await our_reading(raw(data, split=13), "openai-chat")) == theirs


# -- responses --------------------------------------------------------------------------------------------------------


async def responses_reading(answer: Answer) -> Read:
    async with loopback(answer) as server:
        client = openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=0)
        found = None
        async for event in await client.responses.create(model="m", input="x", stream=True):
            found = getattr(event, "response", found)
        await client.close()
    assert found is not None
    return responses_summary(found)


def responses_summary(found: Any) -> Read:
    calls = [
        (one.call_id, one.name, arguments_of(one.arguments)) for one in found.output if one.type == "function_call"
    ]
    refusal = "".join(
        part.refusal for one in found.output if one.type == "message" for part in one.content if part.type == "refusal"
    )
    reasoning = "".join(part.text for one in found.output if one.type == "reasoning" for part in one.summary)
    reason = found.incomplete_details.reason if found.incomplete_details else None
    finish = {"max_output_tokens": "length", "content_filter": "contentFilter"}.get(reason or "")
    usage = found.usage
    return {
        "text": found.output_text,
        "reasoning": reasoning,
        "refusal": refusal,
        "calls": calls,
        "finish": finish or ("refusal" if refusal else "toolCalls" if calls else "stop"),
        "usage": {
            "inputTokens": usage.input_tokens,
            "outputTokens": usage.output_tokens,
            "cachedInputTokens": usage.input_tokens_details.cached_tokens,
            "reasoningTokens": usage.output_tokens_details.reasoning_tokens,
        },
    }


R_USAGE = {
    "input_tokens": 30,
    "output_tokens": 11,
    "total_tokens": 41,
    "input_tokens_details": {"cached_tokens": 24},
    "output_tokens_details": {"reasoning_tokens": 5},
}
R_TEXT = {"type": "output_text", "text": "Grüße ✅", "annotations": []}
R_MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [R_TEXT]}
R_REFUSAL = {**R_MESSAGE, "content": [{"type": "refusal", "refusal": "I cannot."}]}
R_THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm, yes."}]}
R_CALLS = [
    {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", "name": name, "arguments": args}
    for n, (name, args) in enumerate([("read", ARGS), ("jobs", "{}")])
]


def response(*output: Read, **fields: Any) -> Read:
    return {"id": "resp_1", "object": "response", "model": "m", "output": list(output), "usage": R_USAGE, **fields}


def responses(*output: Read, status: str = "completed", **fields: Any) -> Answer:
    """Every item added, told in two deltas where it has text or arguments, and done; then the end."""
    events: list[Read] = [{"type": "response.created", "response": response(status="in_progress")}]
    for index, item in enumerate(output):
        events.append({"type": "response.output_item.added", "output_index": index, "item": emptied(item)})
        events += [{"output_index": index, **piece} for piece in pieces_of(item)]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": f"response.{status}", "response": response(*output, status=status, **fields)})
    lines = [f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}".encode() for event in events]
    return raw(head() + body_of(*lines, done=False), split=17)


def emptied(item: Read) -> Read:
    return {**item, **{key: type(item[key])() for key in ("content", "arguments", "summary") if key in item}}


def pieces_of(item: Read) -> list[Read]:
    kinds = {
        "function_call": ("function_call_arguments", item.get("arguments")),
        "reasoning": ("reasoning_summary_text", "".join(part["text"] for part in item.get("summary", ()))),
    }
    part = item["content"][0] if item["type"] == "message" else {}
    kind, text = kinds.get(item["type"]) or (part["type"], part.get("text") or part.get("refusal"))
    more = {"summary_index": 0} if item["type"] == "reasoning" else {"content_index": 0}
    half = len(text) // 2
    return [{"type": f"response.{kind}.delta", "delta": text[a:b], **more} for a, b in ((0, half), (half, None))]


RESPONSES: dict[str, Answer] = {
    "text": responses(R_MESSAGE),
    "refusal": responses(R_REFUSAL),
    "reasoning, text and calls": responses(R_THOUGHT, R_MESSAGE, *R_CALLS),
    "calls": responses(*R_CALLS),
    "cut": responses(R_MESSAGE, status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
    "filtered": responses(R_MESSAGE, status="incomplete", incomplete_details={"reason": "content_filter"}),
}


@pytest.mark.parametrize("name", RESPONSES)
async def test_a_responses_stream_reads_as_the_official_library_reads_it(name: str) -> None:
    assert await our_reading(RESPONSES[name], "openai-responses") == await responses_reading(RESPONSES[name])


@pytest.mark.parametrize(("file", "number"), recorded("/responses", "openai"))
async def test_a_recorded_response_reads_as_the_official_library_reads_it(file: str, number: int) -> None:
    data, kind, body = recording(file, number)
    if "event-stream" in kind:
        theirs = await responses_reading(raw(data))
    else:
        theirs = responses_summary(openai.types.responses.Response.construct(**json.loads(body)))
    assert await our_reading(raw(data, split=13), "openai-responses") == theirs


# -- messages ---------------------------------------------------------------------------------------------------------


async def messages_reading(answer: Answer) -> Read:
    ask = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    async with loopback(answer) as server:
        client = anthropic.AsyncAnthropic(api_key="k", base_url=server.url.removesuffix("/v1"), max_retries=0)
        async with client.messages.stream(**ask) as events:
            found = await events.get_final_message()
        await client.close()
    return messages_summary(found.to_dict())


def messages_summary(found: Read) -> Read:
    blocks, usage = found["content"], found["usage"]
    finishes = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "toolCalls", "max_tokens": "length"}
    cached = usage.get("cache_read_input_tokens")
    total = usage["input_tokens"] + (cached or 0) + (usage.get("cache_creation_input_tokens") or 0)
    read = {"inputTokens": total, "outputTokens": usage["output_tokens"]}
    if (thinking := (usage.get("output_tokens_details") or {}).get("thinking_tokens")) is not None:
        read["reasoningTokens"] = thinking
    return {
        "text": "".join(one["text"] for one in blocks if one["type"] == "text"),
        "reasoning": "".join(one["thinking"] for one in blocks if one["type"] == "thinking"),
        "refusal": "",
        "calls": [(one["id"], one["name"], one["input"]) for one in blocks if one["type"] == "tool_use"],
        "finish": finishes.get(found["stop_reason"], found["stop_reason"]),
        "usage": read if cached is None else {**read, "cachedInputTokens": cached},
    }


def messages(*blocks: tuple[Read, tuple[Read, ...]], stop: str = "end_turn", **cached: int) -> Answer:
    usage = {"input_tokens": 10, "output_tokens": 1, **cached}
    message = {"id": "m-1", "type": "message", "role": "assistant", "model": "c", "content": [], "usage": usage}
    events: list[Read] = [{"type": "message_start", "message": {**message, "stop_reason": None}}, {"type": "ping"}]
    for index, (start, pieces) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces]
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 12}})
    events.append({"type": "message_stop"})
    lines = [f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}".encode() for event in events]
    return raw(head() + body_of(*lines, done=False), split=17)


def block(kind: str, key: str, *texts: str, **more: Any) -> tuple[Read, tuple[Read, ...]]:
    start = {"type": kind, **({} if kind == "tool_use" else {kind: ""}), **more}
    return start, tuple({"type": f"{key}_delta", ("partial_json" if kind == "tool_use" else key): t} for t in texts)


A_TEXT = block("text", "text", "Grüße", " ✅")
A_THOUGHT = block("thinking", "thinking", "Hm, ", "yes.", signature="")
A_SIGNED = (A_THOUGHT[0], (*A_THOUGHT[1], {"type": "signature_delta", "signature": "c2ln"}))
A_CALL = block("tool_use", "input_json", ARGS[:6], ARGS[6:], id="toolu_1", name="read", input={})
A_BARE = block("tool_use", "input_json", id="toolu_2", name="jobs", input={})
MESSAGES: dict[str, Answer] = {
    "text": messages(A_TEXT),
    "thinking, text and calls": messages(A_SIGNED, A_TEXT, A_CALL, A_BARE, stop="tool_use"),
    "cached": messages(A_TEXT, cache_read_input_tokens=400, cache_creation_input_tokens=30),
    "cut": messages(A_TEXT, stop="max_tokens"),
    "nothing": messages(),
}


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_messages_stream_reads_as_the_official_library_reads_it(name: str) -> None:
    assert await our_reading(MESSAGES[name], "anthropic") == await messages_reading(MESSAGES[name])


@pytest.mark.parametrize(("file", "number"), recorded("/messages", "anthropic"))
async def test_a_recorded_message_reads_as_the_official_library_reads_it(file: str, number: int) -> None:
    data, kind, body = recording(file, number)
    theirs = await messages_reading(raw(data)) if "event-stream" in kind else messages_summary(json.loads(body))
    assert await our_reading(raw(data, split=13), "anthropic") == theirs
