"""Texts changed by ranges of lines and UTF-16 columns: against a whole string, counted out unit by unit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.documents import Lines, Position, Range, difference, path_of

TEXT = st.text(alphabet="ab é😀\r\n\u2028\t", max_size=30)
NUMBER = st.integers(0, 12)


def place(line: int, character: int) -> Position:
    return Position(line=line, character=character)


def offset_of(text: str, at: Position) -> int:
    """Where a position is in a text, by the protocol's words: lines end with LF, CRLF or CR, columns are UTF-16."""
    starts = [0, *(end.end() for end in re.finditer(r"\r\n|\r|\n", text))]
    if at.line >= len(starts):
        return len(text)
    start = starts[at.line]
    rest = re.match(r"[^\r\n]*", text[start:])
    assert rest
    units = 0
    for number, char in enumerate(rest[0]):
        units += len(char.encode("utf-16-le")) // 2
        if units > at.character:
            return start + number
    return start + len(rest[0])


@given(TEXT, st.lists(st.tuples(NUMBER, NUMBER, NUMBER, NUMBER, TEXT), max_size=6))
def test_changes_do_what_they_do_to_a_string(text: str, changes: list[tuple[int, int, int, int, str]]) -> None:
    lines = Lines(text)
    for first, before, last, after, new in changes:
        span = Range(start=place(first, before), end=place(last, after))
        start, end = offset_of(text, span.start), offset_of(text, span.end)
        if start > end:
            with pytest.raises(ValueError, match="ends before"):
                lines.replace(span, new)
        else:
            text = text[:start] + new + text[end:]
            lines.replace(span, new)
        assert (lines.text, lines.length) == (text, len(text))


@given(TEXT, TEXT)
def test_a_difference_makes_the_new_text_of_the_old_one_and_tears_no_end_of_line(old: str, new: str) -> None:
    span, words = difference(old, new)
    lines = Lines(old)
    lines.replace(span, words)
    assert lines.text == new
    start, end = offset_of(old, span.start), offset_of(old, span.end)
    assert old[:start] + words + old[end:] == new
    for at in (start, end):
        assert old[at - 1 : at + 1] != "\r\n" or at == 0


def test_a_difference_is_small() -> None:
    span, words = difference("one\ntwo 😀 x\nthree\n", "one\ntwo 😀 y\nthree\n")
    assert (span, words) == (Range(start=place(1, 7), end=place(1, 8)), "y")


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a/b%20c", "/a/b c"),
        ("file://localhost/a", "/a"),
        ("file://elsewhere/a", None),
        ("untitled:a", None),
        ("file:///a%00b", None),
        ("file:a", None),
        ("http://[", None),
    ],
)
def test_only_files_of_this_machine_have_a_path(uri: str, path: str | None) -> None:
    assert path_of(uri) == path
