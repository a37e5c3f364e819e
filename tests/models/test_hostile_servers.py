"""Servers that mean no good, or no longer know what they say: an answer is whole or none, in bounded time and memory.

Costs are measured in CPU seconds of this process, with limits far above what is needed and far below what a cost that
grows with the square of the answer would be.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from house import ToldTool, house
from hypothesis import given
from hypothesis import strategies as st
from models.loopback import (
    ONCE,
    Peer,
    answer_json,
    asked,
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
)
from models.stubs import SPECS, Said, events_of

from sojourn.core.errors import InvalidParams, ModelError
from sojourn.core.messages import MOST_TOKENS, OtherPart, TextPart, ToolSpec, Usage
from sojourn.models import _http, _read
from sojourn.models._assemble import MAX_CALLS, AnswerBuilder, CallSlot
from sojourn.models._calls import CallAssembler
from sojourn.models.anthropic import Anthropic
from sojourn.models.base import ModelAnswer
from sojourn.models.openai_chat import OpenAIChat
from sojourn.models.sse import SseDecoder
from sojourn.models.table import make_model
from sojourn.tools.base import ToolOutput

pytestmark = pytest.mark.anyio

LOOK = ToolSpec(name="look", input_schema={"type": "object"})
TEXT = {"type": "text", "text": ""}
USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
END = (
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    {"type": "message_stop"},
)


@contextmanager
def cpu_within(seconds: float) -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


def piece(**fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "delta": fields}


def streamed(*events: dict[str, Any]) -> Any:
    return raw(head() + b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events))


async def heard_from(answer: Any, api: str = "anthropic", **fields: Any) -> Any:
    async with loopback(answer) as server:
        model = make_model(spec_for(server, **{**SPECS[api], "max_retries": 0, **fields}))
        heard = await listen(model, asked(tools=(LOOK,)))
        await model.aclose()
        return heard


# -- places of blocks -------------------------------------------------------------------------------------------------

PLACES: dict[str, Any] = {
    "missing": [{}, {}, {}],
    "null": [{"index": None}] * 3,
    "strings": [{"index": "0"}, {"index": "1"}, {"index": "2"}],
    "all the same": [{"index": 0}] * 3,
    "jumping": [{"index": 7}, {"index": -2}, {"index": 4000}],
    "booleans": [{"index": False}, {"index": True}, {"index": True}],
}


@pytest.mark.parametrize("name", PLACES)
async def test_no_block_is_dropped_or_joined_for_its_index(name: str) -> None:
    thought, said, used = PLACES[name]
    events = [
        {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": ""}, **thought},
        {**piece(type="thinking_delta", thinking="hm"), **thought},
        {**piece(type="signature_delta", signature="SIGNED"), **thought},
        {"type": "content_block_stop", **thought},
        {"type": "content_block_start", "content_block": TEXT, **said},
        {**piece(type="text_delta", text="hello"), **said},
        {"type": "content_block_stop", **said},
        {"type": "content_block_start", "content_block": USE, **used},
        {**piece(type="input_json_delta", partial_json='{"a":'), **used},
        {**piece(type="input_json_delta", partial_json="1}"), **used},
        {"type": "content_block_stop", **used},
    ]
    heard = await heard_from(streamed(*events, *END))
    assert [part.type for part in heard.answer.content] == ["reasoning", "text", "toolCall"]
    assert heard.answer.content[0].opaque["signature"] == "SIGNED"
    assert (text_in(heard), calls_of(heard)) == ("hello", [("look", {"a": 1})])


async def test_text_whose_block_was_never_begun_is_not_lost() -> None:
    heard = await heard_from(streamed({**piece(type="text_delta", text="kept"), "index": 3}, *END))
    assert text_in(heard) == "kept"


async def test_arguments_of_a_call_that_was_never_begun_are_a_torn_answer() -> None:
    with pytest.raises(ModelError, match="never began") as caught:
        await heard_from(streamed({**piece(type="input_json_delta", partial_json='{"a":1}'), "index": 3}, *END))
    assert caught.value.retryable


# -- what cannot be kept ----------------------------------------------------------------------------------------------


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"d": value}
    return value


def strange(api: str, value: bytes) -> Any:
    """An answer that holds `value` where the API's own blocks and items are kept whole."""
    if api == "chat":
        chunk = b'{"choices":[{"delta":{"content":"x","reasoning_details":[{"n":%s}]},"finish_reason":"stop"}]}' % value
        return raw(head() + b"data: " + chunk + b"\n\ndata: [DONE]\n\n")
    if api == "responses":
        item = b'{"type":"response.completed","response":{"status":"completed","output":[{"type":"w","n":%s}]}}' % value
        return raw(head() + b"data: " + item + b"\n\n")
    block = b'data: {"type":"content_block_start","index":0,"content_block":{"type":"w","n":%s}}\n\n' % value
    return raw(head() + block + b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in END))


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("value", [b"1e999", b'{"d":' * 400 + b"1" + b"}" * 400], ids=["infinite", "deep"])
async def test_what_cannot_be_stored_fails_the_turn_in_words_about_the_model(api: str, value: bytes) -> None:
    with pytest.raises(ModelError, match=r"The model 'tested' .* sent something that cannot be kept") as caught:
        await heard_from(strange(api, value), api)
    assert caught.value.data["reason"] == "badAnswer"
    assert not caught.value.retryable


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
async def test_what_is_nested_less_is_kept(api: str) -> None:
    heard = await heard_from(strange(api, orjson.dumps(nested(150))), api)
    assert any(part.type == "other" for part in heard.answer.content)


async def test_more_calls_than_anybody_means_fail_the_turn() -> None:
    entries = [call("{}", index=number, id=f"c{number}", name="look") for number in range(MAX_CALLS + 1)]
    with pytest.raises(ModelError, match=f"over {MAX_CALLS} tools") as caught:
        await heard_from(sse(delta(tool_calls=entries), delta("tool_calls")), "chat")
    assert not caught.value.retryable
    heard = await heard_from(sse(delta(tool_calls=entries[:MAX_CALLS]), delta("tool_calls")), "chat")
    assert len(calls_of(heard)) == MAX_CALLS


async def test_made_up_counts_of_tokens_do_not_break_an_agent() -> None:
    said = ModelAnswer((TextPart(text="hi"),), "stop", Usage(input_tokens=MOST_TOKENS, output_tokens=MOST_TOKENS))
    async with house(said, said, said) as h:
        await h.agent()
        for _ in range(3):
            assert (await h.prompt()).reason == "done"
        assert (await h.state())["usage"] == {"inputTokens": MOST_TOKENS, "outputTokens": MOST_TOKENS}


@pytest.mark.parametrize("count", [10**12 + 1, 2**63 - 1, -1, "5", True, 1.5])
async def test_a_count_that_cannot_be_right_counts_nothing(count: Any) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 3}
    heard = await heard_from(sse({**delta("stop", content="x"), "usage": usage}), "chat")
    assert heard.answer.usage == Usage(input_tokens=0, output_tokens=3)


ODD: list[Any] = [None, True, -1, 2**70, 1e308, "", "\ud800", [], {}, [[]], {"a": None}, [{"type": "text", "text": 3}]]


def twisted(value: Any, rng: random.Random) -> Any:
    """`value` with some of it left out, doubled or put in the place of something of another type."""
    if rng.random() < 0.06:
        return rng.choice(ODD)
    if isinstance(value, dict):
        return {key: twisted(item, rng) for key, item in value.items() if rng.random() > 0.03}
    if isinstance(value, list):
        kept = [twisted(item, rng) for item in value if rng.random() > 0.03]
        return kept * 2 if rng.random() < 0.05 else kept
    return value


class Body:
    """A reply that is there at once."""

    headers: dict[str, str] = {}  # noqa: RUF012 - read only

    def __init__(self, body: bytes) -> None:
        self.pieces = [body]

    async def read(self, *, within_s: float | None = None) -> bytes:
        return self.pieces.pop() if self.pieces else b""

    async def drain(self) -> None: ...


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
async def test_a_twisted_stream_is_an_answer_that_can_be_kept_or_a_failure_of_the_model(api: str) -> None:
    said = Said("mark", text="hello ü", reasoning="hm", calls=[("look", {"a": 1}), ("look", {"b": "ü"})])
    spec = spec_for(base_url="http://127.0.0.1:9/v1", **SPECS[api])
    model = make_model(spec)
    wire = model._wire  # type: ignore[attr-defined]
    events = [event.split(b"data: ") for event in events_of(api, said)]
    for seed in range(400):
        rng = random.Random(seed)
        torn = [
            name
            + b"data: "
            + (json.dumps(twisted(json.loads(data), rng)).encode() if data[:1] == b"{" else data)
            + b"\n\n"
            for name, data in events
        ]
        reader = model.reader(asked(tools=(LOOK,)), wire.peer)  # type: ignore[attr-defined]
        try:
            async for _ in _read.read_answer(Body(b"".join(torn)), reader, wire):  # type: ignore[arg-type]
                pass
            answer = reader.answer(None)[-1]
        except (ModelError, InvalidParams):
            continue
        for part in answer.content:
            assert part.json_bytes()


# -- faults of our own ------------------------------------------------------------------------------------------------


async def test_an_answer_that_cannot_be_written_ends_its_run_and_the_agent_goes_on() -> None:
    torn = ModelAnswer((OtherPart(provider="x", data=nested(400)),), "stop")
    async with house(torn, "better") as h:
        await h.agent()
        outcome = await h.prompt()
        assert outcome.reason == "failed"
        assert outcome.error is not None
        assert outcome.error.kind == "internal"
        assert h.client.types()[-1] == "agentEnd"
        assert (await h.prompt()).output == "better"


async def test_a_result_that_cannot_be_written_ends_its_run_and_the_agent_goes_on() -> None:
    odd = ToldTool("odd", lambda _args, _ctx: ToolOutput(content=(TextPart(text="\ud800"),)))
    from house import call as calling

    async with house([calling("odd")], "better", tools=[odd]) as h:
        await h.agent()
        outcome = await h.prompt()
        assert outcome.reason == "failed"
        assert (await h.prompt()).output == "better"
        assert [role for role, _ in await h.said()] == ["user", "assistant", "toolResult", "user", "assistant"]


# -- cost -------------------------------------------------------------------------------------------------------------


def test_an_event_in_very_many_pieces_costs_no_more_than_its_size() -> None:
    decoder = SseDecoder()
    with cpu_within(2):
        for _ in range(60_000):
            assert decoder.feed(b"data: " + b"x" * 93 + b"\n") == []
        assert len(decoder.feed(b"\n")[0][1]) == 60_000 * 94 - 1


async def test_blank_lines_before_an_answer_are_not_kept() -> None:
    class Blank:
        headers: dict[str, str] = {}  # noqa: RUF012 - read only
        left = 4_000

        async def read(self) -> bytes:
            self.left -= 1
            return b"\r\n" * 2_048 if self.left else b"data: 1\n\n"

    with cpu_within(2):
        assert await _read._head(Blank()) == b"data: 1\n\n"  # type: ignore[arg-type]


def test_a_server_that_names_its_call_with_every_piece_costs_no_more_than_its_pieces() -> None:
    builder = AnswerBuilder("p", {"look": "look"})
    assembler = CallAssembler(builder)
    with cpu_within(4):
        assembler.add([call('{"x":"', index=0, id="c", name="look")])
        for _ in range(30_000):
            assembler.add([call("}" * 8, index=0, id="c", name="look")])
        assembler.add([call('"}', index=0, id="c", name="look")])
        assembler.add([call('{"y":1}', index=0, id="c", name="look")])
    assert [part.arguments for part in builder.content()] == [{"x": "}" * 240_000}, {"y": 1}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(alphabet='"\\{}[]:,a\n ü'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='"\\{}a'), inner, max_size=3),
    max_leaves=8,
)


@given(value=st.dictionaries(st.text(alphabet='"\\{}a'), JSON, max_size=3), size=st.integers(1, 7))
def test_arguments_are_complete_when_their_json_is_and_not_before(value: Any, size: int) -> None:
    text = orjson.dumps(value).decode()
    slot = CallSlot(0)
    for at in range(0, len(text), size):
        assert not slot.complete
        slot.stream.add(text[at : at + size])
    assert slot.complete


async def test_what_is_packed_twice_is_not_unpacked() -> None:
    body = gzip.compress(gzip.compress(b"data: [DONE]\n\n"))
    async with loopback(raw(head(content_encoding="gzip, gzip") + body)) as server:
        model = OpenAIChat(spec_for(server), policy=ONCE)
        with pytest.raises(ModelError, match="content encoding 'gzip, gzip'"):
            await listen(model)
        await model.aclose()
    assert server.requests[0].headers["accept-encoding"] == "identity"


async def test_what_is_packed_though_nobody_asked_is_read() -> None:
    body = b"data: " + orjson.dumps(delta("stop", content="packed")) + b"\n\ndata: [DONE]\n\n"
    heard = await heard_from(raw(head(content_encoding="gzip") + gzip.compress(body)), "chat")
    assert text_in(heard) == "packed"


# -- ends -------------------------------------------------------------------------------------------------------------


async def test_a_finished_answer_does_not_wait_while_its_server_only_keeps_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_read, "REST_LIMIT_S", 0.2)

    async def alive(peer: Peer) -> None:
        await peer.send(head() + b"data: " + orjson.dumps(delta("stop", content="whole")) + b"\n\n")
        while True:
            await peer.send(b": ping\n\n")
            await asyncio.sleep(0.01)

    async with asyncio.timeout(4):
        heard = await heard_from(alive, "chat", total_timeout_s=60.0)
    assert text_in(heard) == "whole"


async def test_an_answer_that_says_in_every_piece_that_it_is_finished_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_read, "REST_LIMIT_S", 0.5)

    async def eager(peer: Peer) -> None:
        await peer.send(head())
        for word in ("one ", "two ", "three ", "four ", "five ", "six"):
            await peer.send(b"data: " + orjson.dumps(delta("stop", content=word)) + b"\n\n")
            await asyncio.sleep(0.15)
        await peer.send(b"data: [DONE]\n\n")

    assert text_in(await heard_from(eager, "chat")) == "one two three four five six"


async def test_the_words_of_a_refusal_are_not_waited_for_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "ERROR_BODY_S", 0.1)
    refusal = raw(head(400) + b'{"error": {"message": "no such model"}}', hold=True)
    async with asyncio.timeout(4):
        with pytest.raises(ModelError, match="status 400: no such model"):
            await heard_from(refusal, "chat", idle_timeout_s=60.0)


async def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_read, "MAX_STREAM_BYTES", 100_000)

    async def endless(peer: Peer) -> None:
        await peer.send(head())
        while True:
            await peer.send(b"data: " + orjson.dumps(delta(content="again and again ")) + b"\n\n")

    with pytest.raises(ModelError, match="over 100000 bytes of one answer"):
        await heard_from(endless, "chat")


async def test_a_plain_answer_after_blank_lines_is_one() -> None:
    whole = {"choices": [{"message": {"content": "plain"}, "finish_reason": "stop"}]}
    assert text_in(await heard_from(answer_json(b"\r\n\n" + orjson.dumps(whole)), "chat")) == "plain"


def test_a_block_that_takes_anothers_place_tells_what_that_held_back() -> None:
    model = Anthropic(spec_for(backend="anthropic", base_url="http://127.0.0.1:9"), policy=ONCE)
    reader = model.reader(asked(tools=(LOOK,)), model._wire.peer)
    begun = {**USE, "input": {"a": 1}}
    reader.event("x", orjson.dumps({"type": "content_block_start", "index": 0, "content_block": begun}))
    told = reader.event("x", orjson.dumps({"type": "content_block_start", "index": 0, "content_block": TEXT}))
    assert [(one.part, one.kind, one.text) for one in told] == [(0, "toolArguments", '{"a":1}')]
