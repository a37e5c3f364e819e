"""Raw frames to a daemon, one line a case: what is answered, and that the connection lives."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from wire_fakes import Daemon, header_frame, hello, notification, request, strict

from sojourn.rpc.protocol import MAX_BATCH, MAX_UNREADABLE

pytestmark = pytest.mark.anyio


def error(id: Any, code: int) -> tuple[Any, int]:
    return (id, code)


BODIES: dict[str, tuple[bytes, list[Any]]] = {
    # unreadable
    "cut JSON": (b'{"jsonrpc":"2.0","id":1,"method":', [error(None, -32700)]),
    "not UTF-8": (b"\xff\xfe{}", [error(None, -32700)]),
    "not UTF-8 in a string": (b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"\xff"}}', [error(None, -32700)]),
    "empty body": (b"", [error(None, -32700)]),
    "two texts": (b"{}{}", [error(None, -32700)]),
    "NUL": (b"\0", [error(None, -32700)]),
    "deep beyond reading": (b"[" * 100_000, [error(None, -32700)]),
    # no envelope
    "number": (b"42", [error(None, -32600)]),
    "string": (b'"text"', [error(None, -32600)]),
    "null": (b"null", [error(None, -32600)]),
    "empty object": (b"{}", [error(None, -32600)]),
    "no jsonrpc": (b'{"id":1,"method":"test/echo","params":{}}', [error(1, -32600)]),
    "old jsonrpc": (b'{"jsonrpc":"1.0","id":2,"method":"test/echo"}', [error(2, -32600)]),
    "jsonrpc a number": (b'{"jsonrpc":2.0,"id":2,"method":"test/echo"}', [error(2, -32600)]),
    "method a number": (b'{"jsonrpc":"2.0","id":3,"method":5}', [error(3, -32600)]),
    "method null": (b'{"jsonrpc":"2.0","id":3,"method":null}', [error(3, -32600)]),
    "neither method nor result": (b'{"jsonrpc":"2.0","id":4}', [error(4, -32600)]),
    "params a string": (b'{"jsonrpc":"2.0","id":5,"method":"test/echo","params":"x"}', [error(5, -32600)]),
    "params a number": (b'{"jsonrpc":"2.0","id":5,"method":"test/echo","params":0}', [error(5, -32600)]),
    "nothing but a version": (b'{"jsonrpc":"2.0"}', []),
    "deep params": (
        b'{"jsonrpc":"2.0","id":6,"method":"test/echo","params":{"value":' + b"[" * 300 + b"]" * 300 + b"}}",
        [error(6, -32600)],
    ),
    # ids
    "id null": (b'{"jsonrpc":"2.0","id":null,"method":"test/echo"}', [error(None, -32600)]),
    "id object": (b'{"jsonrpc":"2.0","id":{"a":1},"method":"test/echo"}', [error(None, -32600)]),
    "id array": (b'{"jsonrpc":"2.0","id":[1],"method":"test/echo"}', [error(None, -32600)]),
    "id true": (b'{"jsonrpc":"2.0","id":true,"method":"test/echo"}', [error(None, -32600)]),
    "id infinite": (b'{"jsonrpc":"2.0","id":1e999,"method":"test/echo"}', [error(None, -32600)]),
    "id NaN": (b'{"jsonrpc":"2.0","id":NaN,"method":"test/echo"}', [error(None, -32600)]),
    # methods
    "unknown request": (b'{"jsonrpc":"2.0","id":1,"method":"nope/one"}', [error(1, -32601)]),
    "unknown $/ request": (b'{"jsonrpc":"2.0","id":1,"method":"$/nope","params":{}}', [error(1, -32601)]),
    "LSP request": (b'{"jsonrpc":"2.0","id":1,"method":"textDocument/hover","params":{}}', [error(1, -32601)]),
    "empty method": (b'{"jsonrpc":"2.0","id":1,"method":""}', [error(1, -32601)]),
    "unknown notification": (b'{"jsonrpc":"2.0","method":"nope/two"}', []),
    "unknown $/ notification": (b'{"jsonrpc":"2.0","method":"$/setTrace","params":{"value":"off"}}', []),
    "LSP notification": (b'{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{"x":1}}', []),
    "notification of a request": (b'{"jsonrpc":"2.0","method":"test/prompt","params":{}}', []),
    "notification that fails": (b'{"jsonrpc":"2.0","method":"test/fail","params":{"value":"ours"}}', []),
    "initialize as notification": (b'{"jsonrpc":"2.0","method":"initialize","params":{}}', []),
    "second initialize": (b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}', [error(1, -32600)]),
    # params
    "positional": (b'{"jsonrpc":"2.0","id":1,"method":"test/echo","params":[1]}', [error(1, -32602)]),
    "empty positional": (b'{"jsonrpc":"2.0","id":1,"method":"test/echo","params":[]}', [error(1, -32602)]),
    "NaN": (b'{"jsonrpc":"2.0","id":1,"method":"test/echo","params":{"value":NaN}}', [error(1, -32602)]),
    "infinite": (b'{"jsonrpc":"2.0","id":1,"method":"test/echo","params":{"value":[1e999]}}', [error(1, -32602)]),
    "beyond 64 bits": (
        b'{"jsonrpc":"2.0","id":1,"method":"test/echo","params":{"value":99999999999999999999}}',
        [error(1, -32602)],
    ),
    # answers to nothing
    "stray result": (b'{"jsonrpc":"2.0","id":777,"result":{"x":1}}', []),
    "stray error": (b'{"jsonrpc":"2.0","id":"gone","error":{"code":-32601,"message":"no"}}', []),
    "error for null": (b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse"}}', []),
    "result and error": (b'{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":"both"}}', []),
    "error a string": (b'{"jsonrpc":"2.0","id":1,"error":"no"}', []),
    # cancels of nothing
    "cancel unknown": (b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":12345}}', []),
    "cancel without id": (b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{}}', []),
    "cancel without params": (b'{"jsonrpc":"2.0","method":"$/cancelRequest"}', []),
    "cancel with odd params": (b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":[1]}', []),
    "cancel with odd id": (b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":{}}}', []),
    # batches
    "empty batch": (b"[]", [error(None, -32600)]),
    "batch of notifications": (b'[{"jsonrpc":"2.0","method":"nope/y"},{"jsonrpc":"2.0","method":"test/echo"}]', []),
}


def judged(answer: dict[str, Any]) -> tuple[Any, int]:
    """(id, code) of an error answer, whose shape is checked."""
    assert answer.keys() == {"jsonrpc", "id", "error"}
    assert answer["jsonrpc"] == "2.0"
    wrong = answer["error"]
    assert wrong.keys() == {"code", "message", "data"}
    assert isinstance(wrong["code"], int)
    assert isinstance(wrong["message"], str)
    assert wrong["message"]
    assert isinstance(wrong["data"]["kind"], str)
    text = json.dumps(answer)
    assert "Traceback" not in text
    assert ".py" not in text
    return answer["id"], wrong["code"]


@pytest.mark.parametrize(("body", "expected"), BODIES.values(), ids=BODIES.keys())
async def test_a_message_costs_at_most_itself(served: Daemon, body: bytes, expected: list[Any]) -> None:
    wire = await served.connect()
    wire.raw(header_frame(body))
    assert [judged(answer) for answer in await wire.barrier()] == expected


IDS = [0, "", "7", 7, -1, 1.5, -0.25, 2**53 + 1, 2**80, -(2**70), "a b/ü", "\N{ROCKET}", "x" * 5000, '"\n']


async def test_an_id_comes_back_as_it_was_of_the_same_type(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(*[request(id, "test/nothing") for id in IDS], *[request(id, "nope") for id in IDS])
    answers = await wire.barrier()
    for kind in ("result", "error"):
        found = [answer["id"] for answer in answers if kind in answer]
        assert sorted(map(repr, found)) == sorted(map(repr, IDS))


async def test_an_id_with_a_lone_surrogate_comes_back_as_it_was(served: Daemon) -> None:
    wire = await served.connect()
    wire.raw(header_frame(b'{"jsonrpc":"2.0","id":"\\ud800","method":"test/nothing"}'))
    assert await wire.barrier() == [{"jsonrpc": "2.0", "id": "\ud800", "result": None}]


async def test_left_out_params_null_and_an_empty_object_are_the_same(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(request(1, "test/echo"), request(2, "test/echo", None), request(3, "test/echo", {}))
    answers = sorted(await wire.barrier(), key=lambda answer: answer["id"])
    assert [answer["result"] for answer in answers] == [{"value": None}] * 3


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({}, "agentId"),
    "missing second": ({"agentId": "a"}, "content"),
    "snake case": ({"agent_id": "a", "agentId": "a", "content": "x"}, "agent_id"),
    "unknown": ({"agentId": "a", "content": "x", "nonsense": 1}, "nonsense"),
    "wrong type": ({"agentId": 5, "content": "x"}, "agentId"),
    "wrong inside": ({"agentId": "a", "content": "x", "parts": [{"text": "a"}, {"text": 5}]}, "parts[1].text"),
    "below its limit": ({"agentId": "a", "content": "x", "maxTurns": -1}, "maxTurns"),
    "odd _meta": ({"agentId": "a", "content": "x", "_meta": 1}, "_meta"),
}


@pytest.mark.parametrize(("params", "field"), INVALID.values(), ids=INVALID.keys())
async def test_wrong_params_are_refused_naming_the_field_as_written(
    served: Daemon, params: dict[str, Any], field: str
) -> None:
    wire = await served.connect()
    wire.send(request(1, "test/prompt", params))
    (answer,) = await wire.barrier()
    assert judged(answer) == (1, -32602)
    assert answer["error"]["data"] == {"kind": "invalidParams", "field": field}
    assert field in answer["error"]["message"]


async def test_meta_is_ignored_and_nothing_inside_of_params_is_an_envelope(served: Daemon) -> None:
    wire = await served.connect()
    value = {"jsonrpc": "2.0", "id": 9, "method": "shutdown", "my-key": {"class": [None]}, "result": {}}
    wire.send(request(1, "test/echo", {"value": value, "_meta": {"progressToken": {"a": 1}}}))
    assert await wire.barrier() == [{"jsonrpc": "2.0", "id": 1, "result": {"value": value}}]


async def test_lone_surrogates_in_params_become_replacement_characters(served: Daemon) -> None:
    wire = await served.connect()
    wire.raw(header_frame(b'{"jsonrpc":"2.0","id":1,"method":"test/echo","params":{"value":{"\\ud800":"a\\udfff"}}}'))
    assert await wire.barrier() == [{"jsonrpc": "2.0", "id": 1, "result": {"value": {"\ufffd": "a\ufffd"}}}]


async def test_extra_members_of_the_envelope_are_ignored(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(request(1, "test/nothing", {}, trace="x", result=None))
    assert await wire.barrier() == [{"jsonrpc": "2.0", "id": 1, "result": None}]


async def test_text_of_any_script_keeps_the_byte_counts_right_both_ways(served: Daemon) -> None:
    wire = await served.connect()
    value = "你好 π \N{ROCKET} \r\nContent-Length: 5\r\n\r\n{}"
    wire.raw(header_frame(json.dumps(request(1, "test/echo", {"value": value}), ensure_ascii=False).encode()))
    wire.send(request(2, "test/odd", {"value": "emoji"}), request(3, "nope/π"))
    answers = {answer["id"]: answer for answer in await wire.barrier()}
    assert answers[1]["result"]["value"] == value
    assert "\N{ROCKET}" in answers[2]["result"]["t"]
    assert "nope/π" in answers[3]["error"]["message"]


async def test_a_frame_cut_at_any_byte_is_the_same_frame(served: Daemon) -> None:
    wire = await served.connect()
    frame = header_frame(request(1, "test/echo", {"value": "ü\r\n"}))
    for cut in range(1, len(frame)):
        wire.raw(frame[:cut])
        await wire.writer.drain()
        await asyncio.sleep(0)  # the daemon may see the first part alone
        wire.raw(frame[cut:])
        assert await wire.receive() == {"jsonrpc": "2.0", "id": 1, "result": {"value": "ü\r\n"}}


BATCHES: dict[str, tuple[Any, list[Any]]] = {
    "two requests and a notification": (
        [request(1, "test/nothing"), notification("nope/y"), request("b", "nope/x")],
        [(1, None), ("b", -32601)],
    ),
    "nonsense": ([1, "x", [], {}, {"jsonrpc": "2.0"}], [(None, -32600)] * 5),
    "nonsense beside a request": ([{"foo": "boo"}, request(2, "test/nothing")], [(None, -32600), (2, None)]),
    "the same id twice": ([request(1, "test/nothing"), request(1, "test/nothing")], [(1, None), (1, None)]),
}


@pytest.mark.parametrize(("batch", "expected"), BATCHES.values(), ids=BATCHES.keys())
async def test_a_batch_gets_one_array_with_an_entry_for_each_request(
    served: Daemon, batch: Any, expected: list[Any]
) -> None:
    wire = await served.connect()
    wire.send(batch)
    (answers,) = await wire.barrier()
    found = [(answer["id"], answer.get("error", {}).get("code")) for answer in answers]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


async def test_a_batch_waits_for_its_slowest_request_and_holds_nobody_else_up(served: Daemon) -> None:
    wire = await served.connect()
    wire.send([request(1, "test/wait"), request(2, "test/nothing")])
    assert await wire.barrier() == []
    served.hub.gate.set()
    assert sorted(answer["id"] for answer in await wire.receive()) == [1, 2]


async def test_a_batch_over_the_limit_is_answered_once_and_nothing_of_it_is_done(served: Daemon) -> None:
    wire = await served.connect()
    wire.send([request(n, "test/nothing") for n in range(MAX_BATCH + 1)])
    wire.send([request(n, "test/nothing") for n in range(3)])
    refused, done = await wire.barrier()
    assert (refused["id"], refused["error"]["code"]) == (None, -31015)
    assert refused["error"]["data"] == {
        "kind": "limitReached",
        "limit": "batchMessages",
        "value": MAX_BATCH + 1,
        "max": MAX_BATCH,
    }
    assert [answer["id"] for answer in done] == [0, 1, 2]


@pytest.mark.parametrize("junk", [b"1", b"{", b'{"jsonrpc":"2.0","id":7}'], ids=["scalar", "no JSON", "no method"])
async def test_a_peer_that_sends_no_messages_at_all_is_disconnected(served: Daemon, junk: bytes) -> None:
    other, wire = await served.connect(), await served.connect()
    most = MAX_UNREADABLE - 1
    wire.raw(header_frame(request(1, "test/nothing")) + (b"Content-Length: %d\r\n\r\n%b" % (len(junk), junk)) * most)
    assert len(await wire.barrier()) == most + 1
    wire.raw((b"Content-Length: %d\r\n\r\n%b" % (len(junk), junk)) * (MAX_UNREADABLE + 100))
    assert len(await wire.rest()) == MAX_UNREADABLE
    assert await other.barrier() == []


ENDING: dict[str, tuple[bytes, list[int]]] = {
    "negative length": (b"Content-Length: -1\r\n\r\n", [-32700]),
    "text length": (b"Content-Length: abc\r\n\r\n", [-32700]),
    "no length": (b"Content-Length: \r\n\r\n", [-32700]),
    "huge length": (b"Content-Length: 99999999999999\r\n\r\n{}", [-31015]),
    "banner": (b"Welcome to the shell\r\n" + header_frame(request("live", "test/nothing")), [-32700]),
}


@pytest.mark.parametrize(("data", "codes"), ENDING.values(), ids=ENDING.keys())
async def test_bytes_that_are_no_frames_end_that_connection_only_with_a_logged_reason(
    served: Daemon, data: bytes, codes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    other, wire = await served.connect(), await served.connect()
    wire.raw(header_frame(request(1, "test/echo", {"value": "before"})) + data)
    answers = await wire.rest()
    assert {answer["id"]: answer.get("result") for answer in answers} == {1: {"value": "before"}, None: None}
    assert [judged(answer)[1] for answer in answers if "error" in answer] == codes
    assert "cannot be understood" in caplog.text
    assert await other.barrier() == []


async def test_an_http_request_is_disconnected_without_an_answer(served: Daemon) -> None:
    wire = await served.connect(greet=False)
    wire.raw(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
    assert await wire.reader.read() == b""


async def test_lines_are_answered_in_lines(served: Daemon) -> None:
    wire = await served.connect(lines=True)
    wire.raw(b'\n {"jsonrpc":"2.0","id":1,"method":"nope"}\r\n{broken\n')
    wire.send(request(2, "test/echo", {"value": "a\nb"}))
    answers = await wire.barrier()
    assert [(answer["id"], answer.get("error", {}).get("code")) for answer in answers] == [
        (1, -32601),
        (None, -32700),
        (2, None),
    ]


async def test_a_script_may_pipeline_everything_and_close_its_side(served: Daemon) -> None:
    wire = await served.connect(greet=False, lines=True)
    script = [hello(), notification("initialized", {}), request(1, "test/wait"), request(2, "test/nothing")]
    wire.send(*script)
    wire.raw(b'{"jsonrpc":"2.0","id":3,"method":"test/nothing"}')  # no newline at the end
    wire.writer.write_eof()
    assert [(await wire.receive())["id"] for _ in range(3)] == ["hello", 2, 3]
    served.hub.gate.set()
    assert [answer["id"] for answer in await wire.rest()] == [1]


async def test_three_megabytes_are_an_ordinary_request(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(request(1, "test/echo", {"value": "x" * 3_000_000}))
    (answer,) = await wire.barrier()
    assert len(answer["result"]["value"]) == 3_000_000


def test_the_tests_reader_refuses_nan() -> None:
    with pytest.raises(ValueError, match="NaN"):
        strict(b"[NaN]")
