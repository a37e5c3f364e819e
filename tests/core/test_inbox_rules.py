"""How reading the inbox changes a conversation, what a conversation owes, and what the door lets in."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.core.agent import InboxItem, PendingCall
from sojourn.core.inbox import (
    Dropped,
    close_open_calls,
    needs_reply,
    pending_calls_of,
    read_item,
    repair,
    unanswered_calls,
)
from sojourn.core.messages import (
    AssistantMessage,
    LateResultMessage,
    Message,
    SummaryMessage,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    parts,
    user,
)

WHEN = "2030-01-01T00:00:00Z"


def call(call_id: str, name: str = "build", arguments: Any = None) -> ToolCallPart:
    return ToolCallPart(id=call_id, name=name, arguments={"x": 1} if arguments is None else arguments)


def turn(*calls: str | ToolCallPart, message_id: str | None = None) -> AssistantMessage:
    made = tuple(call(each) if isinstance(each, str) else each for each in calls)
    return AssistantMessage(content=(TextPart(text="so"), *made), message_id=message_id)


def answer(words: str = "done") -> AssistantMessage:
    return AssistantMessage(content=(TextPart(text=words),))


def result(call_id: str, words: str = "r", *, pending: bool = False, **more: Any) -> ToolResultMessage:
    return ToolResultMessage(call_id=call_id, tool_name="build", content=parts(words), pending=pending, **more)


def started(call_id: str, words: str = "job", **more: Any) -> ToolResultMessage:
    return result(call_id, words, pending=True, **more)


def late(call_id: str, words: str = "late", **more: Any) -> LateResultMessage:
    return LateResultMessage(call_id=call_id, tool_name="build", content=parts(words), **more)


SYSTEM = SystemMessage(content=parts("s"))
SUMMARY = SummaryMessage(content=parts("s"))


# Reading an item

PENDING = PendingCall(call_id="c1", tool_name="build", args={}, since=WHEN, placeholder=parts("job"))


@pytest.mark.parametrize(
    ("item", "pending", "expected"),
    [
        ({"kind": "message", "content": parts("hi")}, None, user("hi")),
        ({"kind": "message"}, None, UserMessage(content=())),
        ({"kind": "result", "call_id": "c1", "content": parts("out/")}, PENDING, late("c1", "out/")),
        ({"kind": "rejection", "call_id": "c1", "error": "exit 2"}, PENDING, late("c1", "exit 2", is_error=True)),
        (
            {"kind": "rejection", "call_id": "c1"},
            PENDING,
            LateResultMessage(call_id="c1", tool_name="build", content=(), is_error=True),
        ),
    ],
)
def test_an_item_becomes_a_message(item: dict[str, Any], pending: PendingCall | None, expected: Message) -> None:
    assert read_item(InboxItem(item_id="i1", at=WHEN, **item), pending) == expected


@pytest.mark.parametrize("kind", ["result", "rejection"])
def test_a_result_for_a_call_that_is_not_pending_is_dropped_and_named(kind: Any) -> None:
    dropped = read_item(InboxItem(item_id="i1", at=WHEN, kind=kind, call_id="c9", content=parts("x")), None)
    assert isinstance(dropped, Dropped)
    assert dropped.code == "resultDropped"
    assert "'c9'" in dropped.reason


# What a conversation owes


@pytest.mark.parametrize(
    ("messages", "pending"),
    [
        ([], []),
        ([turn("c1"), result("c1")], []),
        ([turn("c1"), started("c1")], ["c1"]),
        ([turn("c1"), started("c1"), answer(), late("c1")], []),
        ([turn("c1", "c2"), started("c1"), started("c2"), late("c2")], ["c1"]),
        ([turn("c1", "c2"), started("c2"), result("c1")], ["c2"]),
        ([turn("c1"), started("c1"), turn("c2"), started("c2"), SUMMARY], ["c1", "c2"]),
        ([turn("c1"), late("c1"), started("c1")], []),  # the order inside a round does not matter
        ([started("c1")], []),  # no call, nothing pending
        ([turn("c1"), started("c1"), late("c9")], ["c1"]),
        ([turn("c", "c"), started("c"), started("c"), late("c")], ["c"]),
    ],
)
def test_pending_calls_are_worked_out_from_the_messages(messages: list[Message], pending: list[str]) -> None:
    assert [each.call_id for each in pending_calls_of(messages)] == pending


def test_a_pending_call_shows_what_was_asked_and_answered() -> None:
    made = call("c1", arguments={"target": "all"})
    (pending,) = pending_calls_of([turn(made), started("c1", "Started job 7.", at=WHEN)])
    assert pending == PendingCall(
        call_id="c1", tool_name="build", args={"target": "all"}, since=WHEN, placeholder=parts("Started job 7.")
    )
    (timeless,) = pending_calls_of([turn(call("c1", arguments="nonsense")), started("c1")])
    assert (timeless.args, timeless.since) == ({}, "")


@pytest.mark.parametrize(
    ("messages", "unanswered"),
    [
        ([], []),
        ([turn("c1", "c2"), result("c2")], ["c1"]),
        ([turn("c1"), started("c1")], []),
        ([turn("c1"), user("hm"), result("c1")], []),
        ([turn("c1"), answer(), result("c1")], ["c1"]),
        ([turn("c", "c"), result("c"), turn("c")], ["c", "c"]),
    ],
)
def test_unanswered_calls_have_no_result_at_all(messages: list[Message], unanswered: list[str]) -> None:
    assert [each.id for each in unanswered_calls(messages)] == unanswered


@pytest.mark.parametrize(
    ("messages", "owed"),
    [
        ([], False),
        ([SYSTEM], False),
        ([user("hi")], True),
        ([user("hi"), answer()], False),
        ([user("hi"), answer(), SUMMARY], False),
        ([user("hi"), SUMMARY], True),
        ([user("hi"), turn("c1")], True),
        ([user("hi"), turn("c1"), result("c1")], True),
        ([user("hi"), turn("c1"), started("c1")], True),
        ([user("hi"), turn("c1"), started("c1"), answer()], False),
        ([user("hi"), turn("c1"), started("c1"), answer(), late("c1")], True),
        ([user("hi"), turn("c1"), started("c1"), answer(), late("c1"), answer()], False),
    ],
)
def test_a_reply_is_owed_until_the_model_has_had_the_last_word(messages: list[Message], owed: bool) -> None:
    assert needs_reply(messages) is owed


def test_open_calls_are_closed_in_call_order_and_everything_else_stays() -> None:
    first, last = turn("c1", "c2", "c3"), turn("c4")
    pushed, arrived = user("also"), late("c0")
    messages = [user("go"), first, result("c2"), pushed, arrived, result("c9"), last]
    closed = close_open_calls(messages, "not executed")
    failed = [message for message in closed if isinstance(message, ToolResultMessage) and message.is_error]
    assert [(message.call_id, message.content) for message in failed] == [
        ("c1", parts("not executed")),
        ("c3", parts("not executed")),
        ("c4", parts("not executed")),
    ]
    assert closed == [user("go"), first, failed[0], result("c2"), failed[1], pushed, arrived, last, failed[2]]
    assert close_open_calls(closed, "again") == closed


# The door


def summary_of(messages: list[Message]) -> list[str]:
    """Each message as `role` or `role call-id words`."""
    told = []
    for message in messages:
        if isinstance(message, ToolResultMessage | LateResultMessage):
            first = message.content[0]
            assert isinstance(first, TextPart)
            told.append(f"{message.role} {message.call_id} {first.text}")
        elif isinstance(message, AssistantMessage):
            told.append(" ".join(["assistant", *(each.id for each in message.calls)]))
        else:
            told.append(message.role)
    return told


@pytest.mark.parametrize(
    ("messages", "kept", "warned", "pending", "unanswered"),
    [
        (  # nothing to mend
            [user("go"), turn("c1"), started("c1"), answer(), late("c1")],
            ["user", "assistant c1", "toolResult c1 job", "assistant", "lateResult c1 late"],
            [],
            [],
            [],
        ),
        (  # an orphan
            [user("go"), result("c9"), answer(), user("next")],
            ["user", "assistant", "user"],
            [("resultDropped", "c9")],
            [],
            [],
        ),
        (  # doubled results, and one that comes too late to be one
            [turn("c1"), result("c1", "first"), result("c1", "second"), answer(), result("c1", "third")],
            ["assistant c1", "toolResult c1 first", "assistant"],
            [("resultDropped", "c1"), ("resultDropped", "c1")],
            [],
            [],
        ),
        (  # a call without a result stays open
            [user("go"), turn("c1", "c2"), result("c1"), user("hello?")],
            ["user", "assistant c1 c2", "toolResult c1 r", "user"],
            [],
            [],
            ["c2"],
        ),
        (  # results directly after their turn, in call order
            [turn("c1", "c2"), result("c2"), user("also"), started("c1")],
            ["assistant c1 c2", "toolResult c1 job", "toolResult c2 r", "user"],
            [],
            ["c1"],
            [],
        ),
        (  # a second result of a pending call is its late result
            [turn("c1"), started("c1"), answer(), user("2+2?"), answer(), result("c1", "written")],
            ["assistant c1", "toolResult c1 job", "assistant", "user", "assistant", "lateResult c1 written"],
            [],
            [],
            [],
        ),
        (  # but a second placeholder is not
            [turn("c1"), started("c1"), started("c1", "again")],
            ["assistant c1", "toolResult c1 job"],
            [("resultDropped", "c1")],
            ["c1"],
            [],
        ),
        (  # late results of calls that never were pending, that are unknown, that are resolved
            [
                turn("c1"),
                result("c1"),
                late("c1"),
                late("c9"),
                turn("c2"),
                started("c2"),
                late("c2"),
                late("c2", "more"),
            ],
            ["assistant c1", "toolResult c1 r", "assistant c2", "toolResult c2 job", "lateResult c2 late"],
            [("resultDropped", "c1"), ("resultDropped", "c9"), ("resultDropped", "c2")],
            [],
            [],
        ),
        (  # doubled call ids, with their results and late results by position
            [
                turn("c", "c", message_id="m"),
                started("c", "job 1"),
                started("c", "job 2"),
                turn("c", message_id="n"),
                result("c", "r"),
                late("c", "late 1"),
                user("and?"),
                late("c", "late 2"),
            ],
            [
                "assistant c m-call-2",
                "toolResult c job 1",
                "toolResult m-call-2 job 2",
                "assistant n-call-1",
                "toolResult n-call-1 r",
                "lateResult c late 1",
                "user",
                "lateResult m-call-2 late 2",
            ],
            [("callRenamed", "m-call-2"), ("callRenamed", "n-call-1")],
            [],
            [],
        ),
        (  # an empty id, and a made one that is taken
            [turn("", "m-call-1", message_id="m"), result(""), result("m-call-1", "other")],
            ["assistant m-call-2 m-call-1", "toolResult m-call-2 r", "toolResult m-call-1 other"],
            [("callRenamed", "m-call-2")],
            [],
            [],
        ),
    ],
)
def test_the_door_mends_what_it_can_and_says_what_it_left_out(
    messages: list[Message], kept: list[str], warned: list[tuple[str, str]], pending: list[str], unanswered: list[str]
) -> None:
    repaired = repair(messages)
    assert summary_of(repaired.messages) == kept
    assert [(warning.code, warning.data["callId"]) for warning in repaired.warnings] == warned
    assert all(repr(warning.data["callId"]) in warning.message for warning in repaired.warnings)
    assert [each.call_id for each in repaired.pending] == pending
    assert [each.id for each in repaired.unanswered] == unanswered


@pytest.mark.parametrize(
    ("given_ids", "first", "expected"),
    [
        ([None, None, None], 1, ["msg-1", "msg-2", "msg-3"]),
        ([None, "msg-1", None], 1, ["msg-2", "msg-1", "msg-3"]),
        (["a", "a", ""], 7, ["a", "msg-7", "msg-8"]),
        (["msg-8", None, None], 7, ["msg-8", "msg-7", "msg-9"]),
    ],
)
def test_message_ids_are_unique_behind_the_door(given_ids: list[str | None], first: int, expected: list[str]) -> None:
    messages: list[Message] = [user("x", message_id=each) for each in given_ids]
    assert [message.message_id for message in repair(messages, first=first).messages] == expected


def test_a_late_result_keeps_its_time_and_id_when_it_came_as_a_second_result() -> None:
    second = result("c1", "written", message_id="msg-9", at=WHEN, is_error=True)
    repaired = repair([turn("c1"), started("c1"), second])
    assert repaired.messages[-1] == late("c1", "written", message_id="msg-9", at=WHEN, is_error=True)


ids = st.sampled_from(["", "c1", "c2", "m-call-1"])
message_ids = st.sampled_from([None, "", "m", "msg-1", "msg-2"])
anything = st.one_of(
    st.builds(lambda made, mid: turn(*made, message_id=mid), st.lists(ids, max_size=3), message_ids),
    st.builds(lambda each, held, mid: result(each, pending=held, message_id=mid), ids, st.booleans(), message_ids),
    st.builds(lambda each, mid: late(each, message_id=mid), ids, message_ids),
    st.builds(lambda mid: user("u", message_id=mid), message_ids),
    st.sampled_from([SYSTEM, SUMMARY]),
)


@settings(max_examples=300, deadline=None)
@given(messages=st.lists(anything, max_size=12))
def test_whatever_comes_in_the_loop_gets_a_conversation_that_it_could_have_made(messages: list[Message]) -> None:
    repaired = repair(messages)
    message_ids = [message.message_id for message in repaired.messages]
    assert all(message_ids)
    assert len(set(message_ids)) == len(message_ids)
    made = [each.id for message in repaired.messages if isinstance(message, AssistantMessage) for each in message.calls]
    assert all(made)
    assert len(set(made)) == len(made)
    assert_results_stand_right(repaired.messages)
    again = repair(repaired.messages)
    assert again.messages == repaired.messages
    assert again.warnings == []
    assert len(again.messages) + len([w for w in repaired.warnings if w.code == "resultDropped"]) == len(messages)


def assert_results_stand_right(messages: list[Message]) -> None:
    """Results directly after their turn in call order; a late result once, after a placeholder."""
    held: set[str] = set()
    due: list[str] = []
    for message in messages:
        if message.role == "assistant":
            due = [each.id for each in message.calls]
        elif message.role == "toolResult":
            assert message.call_id in due
            due = due[due.index(message.call_id) + 1 :]
            held |= {message.call_id} if message.pending else set()
        else:
            due = []
        if message.role == "lateResult":
            assert message.call_id in held
            held.remove(message.call_id)
    assert held == {each.call_id for each in pending_calls_of(messages)}


@settings(max_examples=200, deadline=None)
@given(messages=st.lists(anything, max_size=12))
def test_a_closed_conversation_has_one_result_for_each_call_directly_after_it(messages: list[Message]) -> None:
    closed = close_open_calls(messages, "not executed")
    told = [("call", each.id) if isinstance(each, ToolCallPart) else ("result", each.call_id) for each in flat(closed)]
    expected = [
        pair
        for message in messages
        if isinstance(message, AssistantMessage)
        for pair in chain(
            (("call", each.id) for each in message.calls), (("result", each.id) for each in message.calls)
        )
    ]
    assert told == expected
    assert unanswered_calls(closed) == []
    others = [message for message in messages if message.role != "toolResult"]
    assert [message for message in closed if message.role != "toolResult"] == others


def flat(messages: list[Message]) -> list[ToolCallPart | ToolResultMessage]:
    return [
        each
        for message in messages
        for each in (
            message.calls
            if isinstance(message, AssistantMessage)
            else [message]
            if isinstance(message, ToolResultMessage)
            else []
        )
    ]
