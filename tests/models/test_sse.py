"""Bytes of an event stream to events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.core.errors import ModelError
from sojourn.models.sse import SseDecoder

CASES = {
    "one line": (b"data: a\n\n", [("message", "a")]),
    "no blank after the colon": (b"data:a\n\n", [("message", "a")]),
    "only the first blank goes": (b"data:  a \n\n", [("message", " a ")]),
    "two events": (b"data: a\n\ndata: b\n\n", [("message", "a"), ("message", "b")]),
    "cr": (b"data: a\r\rdata: b\r\r", [("message", "a"), ("message", "b")]),
    "crlf": (b"data: a\r\n\r\ndata: b\r\n\r\n", [("message", "a"), ("message", "b")]),
    "mixed line ends": (b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", [("message", x) for x in "abc"]),
    "a name": (b"event: error\ndata: a\n\ndata: b\n\n", [("error", "a"), ("message", "b")]),
    "an empty name": (b"event:\ndata: a\n\n", [("message", "a")]),
    "a name after the data": (b"data: a\nevent: x\n\n", [("x", "a")]),
    "several data lines": (b"data: a\ndata:\ndata: b\n\n", [("message", "a\n\nb")]),
    "comments": (b": hello\n\n:\n\n: x\ndata: a\n: y\n\n", [("message", "a")]),
    "id and retry": (b"id: 1\nretry: 5\ndata: a\n\n", [("message", "a")]),
    "unknown and bare fields": (b"foo: x\nbar\ndata: a\n\n", [("message", "a")]),
    "blank data": (b"data:\n\ndata: \n\ndata:   \n\ndata\n\ndata: a\n\n", [("message", "a")]),
    "many blank lines": (b"\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [("message", "a"), ("message", "b")]),
    "bom": (b"\xef\xbb\xbfdata: a\n\n", [("message", "a")]),
    "bom and nothing else": (b"\xef\xbb\xbf", []),
    "a bom in the middle is data": (b"data: \xef\xbb\xbfa\n\n", [("message", "\ufeffa")]),
    "unterminated": (b"data: a\n\ndata: b", [("message", "a"), ("message", "b")]),
    "one line end only": (b"data: a\n", [("message", "a")]),
    "unterminated with cr": (b"data: a\r", [("message", "a")]),
    "line separators of other kinds": (
        "data: a\u2028b\u2029c\x85d\x0be\x0cf\n\n".encode(),
        [("message", "a\u2028b\u2029c\x85d\x0be\x0cf")],
    ),
    "utf-8": ("data: naïve — 日本 🎉\n\n".encode(), [("message", "naïve — 日本 🎉")]),
    "the prefix inside of data": (b"data: x data: y\n\n", [("message", "x data: y")]),
    "a name that is not utf-8": (b"event: \xff\ndata: a\n\n", [("\ufffd", "a")]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 10_000])
def test_a_stream_reads_the_same_in_pieces_of_any_size(name: str, size: int) -> None:
    stream, expected = CASES[name]
    assert read(stream, size) == expected


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["", "x", "error"]), st.text("ab: {}é日🎉\t\x85\u2028\ufeff", max_size=12)),
        max_size=8,
    ),
    st.sampled_from(["\n", "\r", "\r\n"]),
    st.integers(1, 9),
)
def test_what_was_written_is_read(events: list[tuple[str, str]], end: str, size: int) -> None:
    lines = [
        f"event: {name}{end}data: {data}{end}{end}" if name else f"data: {data}{end}{end}" for name, data in events
    ]
    expected = [(name or "message", data) for name, data in events if data.encode().strip()]
    assert read("".join(lines).encode(), size) == expected


def test_an_event_over_the_limit_is_refused_before_it_is_whole() -> None:
    decoder = SseDecoder(max_event_bytes=100)
    assert decoder.feed(b"data: " + b"x" * 80 + b"\n\n") != []
    decoder.feed(b"data: " + b"x" * 80)
    with pytest.raises(ModelError, match="100 bytes") as caught:
        decoder.feed(b"x" * 80)
    assert caught.value.data["reason"] == "eventTooLong"
    assert not caught.value.retryable


def read(stream: bytes, size: int) -> list[tuple[str, str]]:
    decoder = SseDecoder()
    events = [e for at in range(0, len(stream), size) for e in decoder.feed(stream[at : at + size])]
    return [(name, data.decode()) for name, data in [*events, *decoder.close()]]
