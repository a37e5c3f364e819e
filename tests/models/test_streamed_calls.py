"""Tool calls as servers really stream them: what belongs together, what does not."""

from __future__ import annotations

from typing import Any

import pytest
from models.loopback import ONCE, asked, call, calls_of, delta, listen, loopback, spec_for, sse

from sojourn.core.messages import ToolSpec
from sojourn.models.openai_chat import OpenAIChat

pytestmark = pytest.mark.anyio

A, B = '{"path":"a.txt"}', '{"path":"b.txt"}'
READ_A, READ_B = ("read", {"path": "a.txt"}), ("read", {"path": "b.txt"})

# Each chunk is the list of its `tool_calls`.
CASES: dict[str, tuple[list[list[Any]], list[Any]]] = {
    "whole in one chunk": ([[call(A, index=0, id="x", name="read")]], [READ_A]),
    "in pieces": ([[call("", index=0, id="x", name="read")], [call(A[:6], index=0)], [call(A[6:], index=0)]], [READ_A]),
    "two with their own index": (
        [[call(A, index=0, id="x", name="read")], [call(B, index=1, id="y", name="read")]],
        [READ_A, READ_B],
    ),
    "two under one index, ids differ": (
        [[call(A, index=0, id="x", name="read")], [call(B, index=0, id="y", name="read")]],
        [READ_A, READ_B],
    ),
    "two under one index in one chunk": (
        [[call(A, index=0, id="x", name="read"), call(B, index=0, id="y", name="read")]],
        [READ_A, READ_B],
    ),
    "two under one index, the second in pieces": (
        [[call(A, index=0, id="x", name="read")], [call("", index=0, id="y", name="read")], [call(B, index=0)]],
        [READ_A, READ_B],
    ),
    "two under one index, no ids, names differ": (
        [[call(A, index=0, id="", name="read")], [call('{"n":1}', index=0, id="", name="wait")]],
        [READ_A, ("wait", {"n": 1})],
    ),
    "two under one index, no ids, one name": (
        [[call(A, index=0, name="read")], [call(B, index=0, name="read")]],
        [READ_A, READ_B],
    ),
    "two with one id, indexes differ": (
        [[call(A, index=0, id="x", name="read"), call(B, index=1, id="x", name="read")]],
        [READ_A, READ_B],
    ),
    "two with one id and one index": (
        [[call(A, index=0, id="x", name="read")], [call(B, index=0, id="x", name="read")]],
        [READ_A, READ_B],
    ),
    "no index": (
        [[call(A[:6], id="x", name="read")], [call(A[6:])], [call(B, id="y", name="read")]],
        [READ_A, READ_B],
    ),
    "no index and no id": ([[call(A, name="read")], [call(B, name="read")]], [READ_A, READ_B]),
    "no index, no id, one chunk": ([[call(A, name="read"), call(B, name="read")]], [READ_A, READ_B]),
    "no index, no id, name repeated in each piece": (
        [[call(A[:6], name="read")], [call(A[6:], name="read")]],
        [READ_A],
    ),
    "no index, id repeated in each piece": ([[call(A[:6], id="x", name="read")], [call(A[6:], id="x")]], [READ_A]),
    "no index, ids tell interleaved pieces apart": (
        [
            [call("", id="x", name="read"), call("", id="y", name="read")],
            [call(A[:6], id="x")],
            [call(B, id="y")],
            [call(A[6:], id="x")],
        ],
        [READ_A, READ_B],
    ),
    "interleaved by index": (
        [
            [call("", index=0, id="x", name="read"), call("", index=1, id="y", name="read")],
            [call(A[:6], index=0)],
            [call(B[:6], index=1)],
            [call(B[6:], index=1)],
            [call(A[6:], index=0)],
        ],
        [READ_A, READ_B],
    ),
    "name repeated in each piece": (
        [[call(A[:6], index=0, id="x", name="read")], [call(A[6:], index=0, id="x", name="read")]],
        [READ_A],
    ),
    "name repeated, no id": (
        [[call("", index=0, name="read")], [call(A[:6], index=0, name="read")], [call(A[6:], index=0, name="read")]],
        [READ_A],
    ),
    "all of it once more at the end": (
        [[call(A[:6], index=0, id="x", name="read")], [call(A[6:], index=0)], [call(A, index=0, id="x", name="read")]],
        [READ_A],
    ),
    "the id comes later": ([[call("", index=0, name="read")], [call(A, index=0, id="x")]], [READ_A]),
    "the name comes later": ([[call("", index=0, id="x")], [call(A, index=0, name="read")]], [READ_A]),
    "the name comes last": ([[call(A, index=0, id="x")], [call("", index=0, name="read")]], [READ_A]),
    "a name that is cut": ([[call("", index=0, id="x", name="re")], [call(A, index=0, name="ad")]], [READ_A]),
    "indexes with a gap, out of order": (
        [[call(A, index=7, id="x", name="read")], [call(B, index=3, id="y", name="read")]],
        [READ_A, READ_B],
    ),
    "an index that is no number": (
        [[call(A, index="0", id="x", name="read")], [call(B, index=True, id="y", name="read")]],
        [READ_A, READ_B],
    ),
    "two without arguments": (
        [[call("", index=0, id="x", name="jobs")], [call("", index=1, id="y", name="jobs")]],
        [("jobs", {}), ("jobs", {})],
    ),
    "two bare names": ([[call("", name="jobs")], [call("", name="jobs")]], [("jobs", {}), ("jobs", {})]),
    "arguments as an object": ([[call({"path": "a.txt"}, index=0, id="x", name="read")]], [READ_A]),
    "two objects under one index, no ids": (
        [[call({"path": "a.txt"}, index=0, name="read")], [call({"path": "b.txt"}, index=0, name="read")]],
        [READ_A, READ_B],
    ),
    "an object without a name after a whole call": (
        [[call(A, index=0, id="x", name="read")], [call({"path": "b.txt"}, index=0)]],
        [READ_A, ("", {"path": "b.txt"})],
    ),
    "an unknown index without a name": (
        [[call(A, index=0, id="x", name="read")], [call(B, index=1)]],
        [READ_A, ("", {"path": "b.txt"})],
    ),
    "no function at all": ([[{"index": 0, "id": "x"}]], [("", {})]),
    "odd names": (
        [[call("{}", index=0, id="x", name="functions.read"), call("{}", index=1, id="y", name="read it\n")]],
        [("functions.read", {}), ("read it\n", {})],
    ),
}


async def answer_to(chunks: list[list[Any]]) -> Any:
    tools = (ToolSpec(name="read"), ToolSpec(name="wait"), ToolSpec(name="jobs"))
    async with loopback(sse(*[delta(tool_calls=entries) for entries in chunks], delta("tool_calls"))) as server:
        model = OpenAIChat(spec_for(server), policy=ONCE)
        try:
            return await listen(model, asked(tools=tools))
        finally:
            await model.aclose()


@pytest.mark.parametrize("name", CASES)
async def test_pieces_become_the_calls_that_were_meant(name: str) -> None:
    chunks, calls = CASES[name]
    heard = await answer_to(chunks)
    assert calls_of(heard) == calls
    assert len({part.id for part in heard.answer.content}) == len(calls)
    assert all(part.id for part in heard.answer.content)


ARGUMENTS: list[tuple[Any, Any]] = [
    ("", {}),
    (None, {}),
    ("  \n", {}),
    ("{}", {}),
    (' {"a": 1} ', {"a": 1}),
    ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
    ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
    ('{"a": 18446744073709551615}', {"a": 18446744073709551615}),
    ("null", "null"),
    ("5", "5"),
    ("[1]", "[1]"),
    ('"text"', '"text"'),
    ("{'a': 1}", "{'a': 1}"),
    ('{"a": 1} and', '{"a": 1} and'),
    ('{"a": 1}{"a": 1}', '{"a": 1}{"a": 1}'),
    ('{"a": "cut', '{"a": "cut'),
    ('{"a": NaN}', '{"a": NaN}'),
    ('{"a": 1e999}', '{"a": 1e999}'),
    ('{"a": ' + "[" * 100_000, '{"a": ' + "[" * 100_000),
    (5, "5"),
    ([1], "[1]"),
]


@pytest.mark.parametrize(("sent", "kept"), ARGUMENTS, ids=range(len(ARGUMENTS)))
async def test_arguments_are_an_object_or_kept_as_they_came(sent: Any, kept: Any) -> None:
    heard = await answer_to([[call(sent, index=0, id="x", name="read")]])
    assert calls_of(heard) == [("read", kept)]


async def test_a_provider_s_ids_are_kept_and_missing_or_doubled_ones_are_made() -> None:
    ids = ["x", "", "x", "y"]
    entries = [call("{}", index=n, id=id, name="read") for n, id in enumerate(ids)]
    parts = (await answer_to([entries])).answer.content
    assert [part.provider_id for part in parts] == ["x", None, None, "y"]
    assert [parts[0].id, parts[3].id] == ["x", "y"]
    assert len({part.id for part in parts}) == 4


async def test_a_made_id_takes_no_provider_s_id() -> None:
    entries = [call("{}", index=0, name="read"), call("{}", index=1, id="call-0", name="read")]
    parts = (await answer_to([entries])).answer.content
    assert len({part.id for part in parts}) == 2


async def test_arguments_stream_under_the_place_of_their_call() -> None:
    chunks = [
        delta(reasoning="hm"),
        delta(content="I read."),
        delta(tool_calls=[call("", index=0, id="x", name="read"), call("", index=1, id="y", name="read")]),
        delta(tool_calls=[call(B, index=1)]),
        delta(tool_calls=[call(A[:6], index=0)]),
        delta(tool_calls=[call(A[6:], index=0)]),
        delta(content="Done."),
        delta("stop"),
    ]
    async with loopback(sse(*chunks)) as server:
        model = OpenAIChat(spec_for(server), policy=ONCE)
        heard = await listen(model)
        await model.aclose()
    assert heard.told == {
        (0, "reasoning"): "hm",
        (1, "text"): "I read.",
        (2, "toolArguments"): A,
        (3, "toolArguments"): B,
        (4, "text"): "Done.",
    }
    assert [part.type for part in heard.answer.content] == ["reasoning", "text", "toolCall", "toolCall", "text"]


async def test_the_old_form_of_a_call_is_read() -> None:
    chunks = [delta(function_call={"name": "read", "arguments": A[:5]}), delta(function_call={"arguments": A[5:]})]
    async with loopback(sse(*chunks, delta("function_call"))) as server:
        model = OpenAIChat(spec_for(server), policy=ONCE)
        heard = await listen(model)
        await model.aclose()
    assert calls_of(heard) == [READ_A]
