"""Bytes to bodies: whatever may be accepted is, and what may not ends the stream with a reason."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.rpc.framing import MAX_HEADER_BLOCK, MAX_HEADER_LINE, Framer, FramingError, frame

H = b"Content-Length: %d\r\n\r\n%b"


def bodies(*chunks: bytes, limit: int = 1000) -> list[bytes]:
    framer, found = Framer(limit), []
    for chunk in chunks:
        framer.feed(chunk)
        while (body := framer.next()) is not None:
            found.append(body)
    return found


ACCEPTED = {
    "plain": b"Content-Length: 2\r\n\r\n{}",
    "lower case": b"content-length: 2\r\n\r\n{}",
    "upper case": b"CONTENT-LENGTH: 2\r\n\r\n{}",
    "no blank": b"Content-Length:2\r\n\r\n{}",
    "two blanks": b"Content-Length:  2\r\n\r\n{}",
    "blank at the end": b"Content-Length: 2 \t\r\n\r\n{}",
    "blank before the colon": b"Content-Length : 2\r\n\r\n{}",
    "leading zeros": b"Content-Length: 002\r\n\r\n{}",
    "type after": b"Content-Length: 2\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n{}",
    "type before": b"Content-Type: application/vscode-jsonrpc; charset=utf8\r\nContent-Length: 2\r\n\r\n{}",
    "unknown header": b"X-Trace: a:b\r\nContent-Length: 2\r\n\r\n{}",
    "said twice alike": b"Content-Length: 2\r\ncontent-length: 2\r\n\r\n{}",
    "lone LF": b"Content-Length: 2\n\n{}",
    "LF and CRLF": b"Content-Length: 2\n\r\n{}",
    "blank lines before": b"\r\n\r\n Content-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_headers_are_understood_in_any_case_and_spacing_also_byte_by_byte(data: bytes) -> None:
    assert bodies(data + data + b"\r\n" + data) == [b"{}"] * 3
    assert bodies(*[bytes([byte]) for byte in data + data]) == [b"{}"] * 2


REFUSED = {
    "negative": (b"Content-Length: -1\r\n\r\n", "plain number"),
    "text": (b"Content-Length: abc\r\n\r\n", "plain number"),
    "plus": (b"Content-Length: +10\r\n\r\n", "plain number"),
    "hex": (b"Content-Length: 0x10\r\n\r\n", "plain number"),
    "float": (b"Content-Length: 10.0\r\n\r\n", "plain number"),
    "empty": (b"Content-Length: \r\n\r\n", "plain number"),
    "digits of another script": ("Content-Length: ２\r\n\r\n".encode(), "plain number"),
    "huge": (b"Content-Length: 99999999999999\r\n\r\n", "longer than 1000"),
    "beyond 64 bits": (b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", "plain number"),
    "two lengths": (b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n", "two different"),
    "none": (b"Content-Type: text/plain\r\n\r\n{}", "no Content-Length"),
    "banner": (b"Welcome to the shell\r\nContent-Length: 2\r\n\r\n{}", "not one"),
    "folded": (b"X-Long: a\r\n b\r\nContent-Length: 2\r\n\r\n{}", "not one"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP"),
    "HTTP with a colon": (b"POST http://localhost:1/ HTTP/1.1\r\n\r\n", "HTTP"),
    "endless header": (b"X" * (MAX_HEADER_LINE + 2), "longer than"),
    "endless block": (b"X-A: " + b"a" * 8000 + b"\r\n", "header block"),
    "long line": (b'{"a": "' + b"x" * 1000, "longer than 1000"),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_read_ends_the_stream_with_a_reason_after_what_came_before(data: bytes, reason: str) -> None:
    framer = Framer(1000)
    good = b"" if data[:1] in (b"{", b"G", b"P") else H % (2, b"[]")
    framer.feed(good + data * (MAX_HEADER_BLOCK // 8000 + 1 if reason == "header block" else 1))
    if good:
        assert framer.next() == b"[]"
    with pytest.raises(FramingError, match=reason) as refused:
        framer.next()
    assert refused.value.http is (reason == "HTTP")
    assert (refused.value.too_long is not None) is ("longer than" in reason)


def test_an_announced_length_reserves_nothing() -> None:
    framer = Framer(2**40)
    framer.feed(b"Content-Length: 999999999999\r\n\r\n{}")
    assert framer.next() is None


def test_the_first_byte_after_blanks_decides_for_lines() -> None:
    assert bodies(b"  \r\n\t", b'{"a":1}\n\n[2]\r\n{"b"', b":3}\n") == [b'{"a":1}', b"[2]\r", b'{"b":3}']
    assert frame(b"{}", "lines") == b"{}\n"


def test_a_last_line_needs_no_newline_and_a_cut_frame_is_said() -> None:
    framer = Framer(100)
    framer.feed(b"{}\n{1}")
    assert framer.next() == b"{}"
    assert framer.next() is None
    assert framer.end() == b"{1}"
    assert framer.end() is None

    for cut in (b"Content-Le", b"Content-Length: 5\r\n", b"Content-Length: 5\r\n\r\n{}", b"Content-Length: 5\r\n\r\n"):
        framer = Framer(100)
        framer.feed(H % (2, b"{}") + cut)
        assert framer.next() == b"{}"
        assert framer.next() is None
        with pytest.raises(FramingError, match="middle of a frame"):
            framer.end()


def test_a_length_of_zero_is_an_empty_body() -> None:
    assert bodies(H % (0, b"") + H % (2, b"{}")) == [b"", b"{}"]


def test_a_body_may_quote_headers_and_hold_any_bytes() -> None:
    body = "Content-Length: 5\r\n\r\n{} 你好 🚀\n".encode()
    assert bodies(*[bytes([byte]) for byte in H % (len(body), body) * 2]) == [body, body]


@given(
    st.lists(st.binary(max_size=40), max_size=6),
    st.lists(st.integers(min_value=0, max_value=400), max_size=8),
)
def test_bodies_do_not_depend_on_how_the_stream_is_cut(sent: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(body, "headers") for body in sent)
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    assert bodies(*[stream[a:b] for a, b in pairwise(edges)]) == sent
