"""Corners of the core's rules that no larger test goes through each time."""

from __future__ import annotations

from typing import Any

import pytest
from run_driving import at_calls, call

from sojourn.core.documents import Lines, Position, Range, difference
from sojourn.core.errors import InvalidParams
from sojourn.core.messages import user
from sojourn.core.rules import Glob
from sojourn.core.run import AgentRun
from sojourn.core.schemas import fault


def span(first: int, before: int, last: int, after: int) -> Range:
    return Range(start=Position(line=first, character=before), end=Position(line=last, character=after))


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (span(0, 1, 0, 3), "ne"),
        (span(0, 2, 2, 1), "e\ntwo\nt"),
        (span(1, 1, 9, 0), "wo\nthree\n"),
        (span(9, 0, 12, 4), ""),
        (span(2, 3, 1, 1), ""),
    ],
    ids=["one line", "three lines", "to beyond the end", "beyond the end", "backwards"],
)
def test_a_part_of_a_text_is_what_lies_in_its_range(place: Range, text: str) -> None:
    assert Lines("one\ntwo\nthree\n").part(place) == text


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("a\rb", "a\r\nb", span(0, 1, 1, 0), "\r\n"),
        ("a\r\nb", "a\rb", span(0, 1, 1, 0), "\r"),
        ("a\nb", "a\r\nb", span(0, 1, 1, 0), "\r\n"),
        ("a\r\nb", "ax\nb", span(0, 1, 1, 0), "x\n"),
    ],
)
def test_a_difference_at_an_end_of_line_takes_all_of_it(old: str, new: str, place: Range, words: str) -> None:
    assert difference(old, new) == (place, words)


@pytest.mark.parametrize(
    ("pattern", "text", "right"),
    [
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c", False),
        ("a*b*c", "x-b-c", False),
        ("a*b*b", "a-b", False),
    ],
)
def test_the_parts_of_a_pattern_stand_in_the_text_one_after_the_other(pattern: str, text: str, right: bool) -> None:
    assert Glob(tuple(pattern.split("*"))).matches(text) == right


@pytest.mark.parametrize("value", ["text", 7, None, [1]])
def test_what_a_schema_says_of_names_is_not_asked_of_anything_but_objects(value: Any) -> None:
    schema = {"patternProperties": {"^a": {"type": "string"}}, "additionalProperties": False}
    assert fault(value, schema) is None
    assert fault({"a": 1}, schema) is not None


def test_a_conversation_is_made_of_messages_of_any_of_our_classes() -> None:
    class Louder(type(user(""))):  # type: ignore[misc]
        """A subclass of somebody who embeds the core."""

    louder = Louder.model_validate(user("hello").model_dump())
    run = AgentRun.new("go").with_history([louder])
    assert [message.content for message in run.history] == [louder.content]
    with pytest.raises(InvalidParams, match="made of messages, not of 7") as caught:
        AgentRun.new("go").with_history([louder, 7])  # type: ignore[list-item]
    assert caught.value.data["field"] == "messages"


def test_a_call_whose_arguments_hold_half_a_character_is_kept_with_a_whole_one() -> None:
    run = at_calls(call(arguments={"a": "x\ud800"}))
    (made,) = run.messages[-1].content
    assert made.arguments == {"a": "x\ufffd"}  # type: ignore[union-attr]
    assert run.model_dump_json()
