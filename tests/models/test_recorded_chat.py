"""The chat completions backend against recorded streams and exchanges, where a checkout has them beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models.loopback import ONCE, PATIENT, Answer, Heard, calls_of, head, listen, loopback, raw, spec_for, text_in
from shared_inputs import Exchange, cassettes, exchange, shared

from sojourn.core.errors import ModelError
from sojourn.models.openai_chat import OpenAIChat

pytestmark = pytest.mark.anyio

Check = Callable[[Heard], bool]


def text(expected: str, **usage: int) -> Check:
    def check(heard: Heard) -> bool:
        used = heard.answer.usage.wire() if usage else {}
        return text_in(heard) == expected and used == usage and heard.answer.finish_reason == "stop"

    return check


def calls(*expected: tuple[str, Any], ids: list[str] | None = None) -> Check:
    def check(heard: Heard) -> bool:
        found = [part.id for part in heard.answer.content if part.type == "toolCall"]
        return calls_of(heard) == list(expected) and len(set(found)) == len(expected) and (ids is None or found == ids)

    return check


def cut(heard: Heard) -> bool:
    """The run runs no call of such a message."""
    return len(calls_of(heard)) == 1 and heard.answer.finish_reason == "length"


READ_A, READ_B = ("read_file", {"path": "a.txt"}), ("read_file", {"path": "b.txt"})
ANSWERS: dict[str, Check] = {
    "s01_utf8_split": text("naïve café — 日本語 🎉 done"),
    "s03_wrong_charset": text("✅ prüfung 完了"),
    "s04_comments": text("hello world"),
    "s05_empty_data": text("ok"),
    "s09_done_but_socket_open": text("finished"),
    "s11_empty_choices": text("hi", inputTokens=12, outputTokens=5),
    "s11b_usage_null_everywhere": text("hi", inputTokens=12, outputTokens=5),
    "s12_cr_only": text("cr"),
    "s12b_crlf": text("crlf"),
    "s13_stall_after_first_token": text("one two"),
    "s14_plain_json_instead": text("not streamed", inputTokens=3, outputTokens=2),
    "s15_bom": text("bom"),
    "s16_multi_data_lines": text("two lines"),
    "s17_last_event_without_blank_line": text("tail"),
    "t01_two_calls_same_index": calls(READ_A, READ_B, ids=["call_a", "call_b"]),
    "t01b_same_index_no_id_second": calls(("get_time", {"tz": "UTC"}), ("get_weather", {"city": "Oslo"})),
    "t02_no_index": calls(("get_weather", {"city": "Paris"}), ("get_time", {"tz": "JST"})),
    "t04_interleaved": calls(READ_A, READ_B, ids=["call_a", "call_b"]),
    "t05_empty_args": calls(("list_jobs", {})),
    "t05b_null_args": calls(("list_jobs", {})),
    "t05c_args_null": calls(("read_file", "null")),
    "t05c_args_number": calls(("read_file", "5")),
    "t05c_args_list": calls(("read_file", "[1,2]")),
    "t05c_args_string": calls(("read_file", '"text"')),
    "t05c_args_python_dict": calls(("read_file", "{'path': 'a.txt'}")),
    "t05c_args_trailing": calls(("read_file", '{"path":"a.txt"} and then')),
    "t05c_args_double": calls(("read_file", '{"path":"a.txt"}{"path":"a.txt"}')),
    "t06_length_in_call": cut,
    "t06b_length_but_parses": cut,
    "t06c_tool_calls_but_cut": calls(("write_file", '{"path":"big.txt","content":"aaaa')),
    "t07_stop_with_calls": calls(READ_A),
    "t07b_finish_null_then_done": calls(READ_A),
    "t08_unknown_tool": calls(("list_sites", {})),
    "t08b_odd_tool_names": calls(("functions.read_file", {}), ("", {}), ("read file\n", {})),
    "t09_args_object": calls(READ_A),
    "t10b_empty_ids": calls(READ_A, READ_B),
    "t12_reasoning_content": lambda heard: (
        calls(READ_A)(heard) and heard.answer.content[0].text == "thinking a thinking b"
    ),
    "t12b_reasoning_only": lambda heard: [part.type for part in heard.answer.content] == ["reasoning"],
    "t13_thought_signature": lambda heard: (
        heard.answer.content[0].opaque == {"extra_content": {"google": {"thought_signature": "c2lnLWRlbW8="}}}
    ),
    "t14_name_repeated": calls(READ_A),
    "t15_content_null_and_text": lambda heard: text_in(heard) == "I will look. " and calls(READ_A)(heard),
}
FAILURES = {
    "s06_cut_mid_text": ("streamCut", ""),
    "s07_cut_mid_call": ("streamCut", ""),
    "s10_error_mid_stream": ("serverError", "worker limit reached"),
    "s10b_error_first": ("serverError", "quota exceeded"),
    "s10c_error_event_string": ("serverError", "backend went away"),
    "s10d_error_with_choices_empty": ("overloaded", "upstream unavailable"),
    "h01_429_retry_after_2": ("rateLimited", "rate limited"),
    "h02_429_retry_after_0": ("rateLimited", "rate limited"),
    "h04_529_overloaded": ("overloaded", "Overloaded"),
    "h05_400_missing_result": ("badRequest", "tool_use ids without tool_result"),
    "h06_200_html": ("badAnswer", "text/html"),
    "h07_bad_chunked": ("streamCut", ""),
}


def recorded(name: str, split: int | None) -> Answer:
    inputs = shared("hazards/inputs")
    entry = next(e for e in json.loads((inputs / "manifest.json").read_text()) if Path(e["file"]).stem == name)
    data = (inputs / entry["file"]).read_bytes()
    if not entry["file"].endswith(".http"):
        fields = {key.replace("-", "_"): value for key, value in entry.get("headers", {}).items()}
        data = head(kind=fields.pop("content_type", "text/event-stream"), **fields) + data
    return raw(data, split=split, hold="hold_open_s" in entry)


@pytest.mark.parametrize("split", [None, 1, 2, 3, 7])
@pytest.mark.parametrize("name", ANSWERS)
async def test_a_recorded_stream_is_the_answer_that_was_meant(name: str, split: int | None) -> None:
    async with loopback(recorded(name, split)) as server:
        model = OpenAIChat(spec_for(server), policy=ONCE)
        heard = await listen(model)
        await model.aclose()
    assert ANSWERS[name](heard), heard.answer


@pytest.mark.parametrize("split", [None, 1, 7])
@pytest.mark.parametrize("name", FAILURES)
async def test_a_recorded_failure_is_one(name: str, split: int | None) -> None:
    reason, words = FAILURES[name]
    async with loopback(recorded(name, split)) as server:
        model = OpenAIChat(spec_for(server), policy=PATIENT)
        with pytest.raises(ModelError) as caught:
            await listen(model)
        await model.aclose()
        assert len(server.requests) == (3 if caught.value.retryable else 1)
    assert caught.value.data["reason"] == reason
    assert words in caught.value.message


def test_no_recorded_stream_is_left_out() -> None:
    inputs = shared("hazards/inputs")
    files = [path.stem for kind in ("sse", "http") for path in (inputs / kind).iterdir()]
    assert sorted(files) == sorted([*ANSWERS, *FAILURES])


def of_chat(exchange: Exchange) -> bool:
    return bool(exchange["when"]["path"].endswith("/chat/completions"))


@pytest.mark.parametrize(("file", "number"), cassettes("*/*/*.yaml", of_chat))
async def test_a_recorded_exchange_reads_as_its_body_says(file: str, number: int) -> None:
    then = exchange(file, number)["then"]
    body = then["body"].encode()
    kind = next(field["value"] for field in then["header"] if field["name"] == "content-type")
    async with loopback(raw(head(then["status"], kind) + body, split=11)) as server:
        model = OpenAIChat(spec_for(server), policy=ONCE)
        if then["status"] != 200:
            with pytest.raises(ModelError) as caught:
                await listen(model)
            assert json.loads(body)["error"]["message"] in caught.value.message
            await model.aclose()
            return
        heard = await listen(model)
        await model.aclose()
    _same(heard, _plainly_read(then["body"]))


def _plainly_read(body: str) -> dict[str, Any]:
    """What a well-formed answer says, read the simplest way."""
    chunks = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")] or [json.loads(body)]
    read: dict[str, Any] = {"content": "", "reasoning": "", "refusal": "", "calls": {}, "usage": None, "finish": None}
    for chunk in chunks:
        read["usage"] = chunk.get("usage") or read["usage"]
        for choice in chunk["choices"][:1]:
            piece = choice.get("delta") or choice.get("message") or {}
            read["content"] += piece.get("content") or ""
            read["refusal"] += piece.get("refusal") or ""
            read["reasoning"] += piece.get("reasoning_content") or piece.get("reasoning") or ""
            read["finish"] = choice.get("finish_reason") or read["finish"]
            for number, entry in enumerate(piece.get("tool_calls") or ()):
                one = read["calls"].setdefault(entry.get("index", number), {"id": "", "name": "", "arguments": ""})
                one["id"] += entry.get("id") or ""
                one["name"] += entry["function"].get("name") or ""
                one["arguments"] += entry["function"].get("arguments") or ""
    return read


def _same(heard: Heard, read: dict[str, Any]) -> None:
    parts = heard.answer.content
    assert text_in(heard) == read["content"]
    assert "".join(part.text for part in parts if part.type == "reasoning") == read["reasoning"]
    assert "".join(part.text for part in parts if part.type == "refusal") == read["refusal"]
    expected = list(read["calls"].values())
    found = [part for part in parts if part.type == "toolCall"]
    assert [(part.provider_id, part.name) for part in found] == [(one["id"], one["name"]) for one in expected]
    whole = read["finish"] != "length"
    arguments = [json.loads(one["arguments"] or "{}") if whole else one["arguments"] for one in expected]
    assert [part.arguments for part in found] == arguments
    usage = heard.answer.usage
    assert (usage.input_tokens, usage.output_tokens) == (
        read["usage"]["prompt_tokens"],
        read["usage"]["completion_tokens"],
    )
    finish = {"tool_calls": "toolCalls", "content_filter": "contentFilter"}.get(read["finish"], read["finish"])
    assert heard.answer.finish_reason == ("refusal" if read["refusal"] else finish)
