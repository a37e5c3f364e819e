"""Editing a line, and breaking streamed text, without a terminal."""

from __future__ import annotations

import pytest

from sojourn.cli._keys import LEAVE, Line
from sojourn.cli._terminal import _window
from sojourn.cli._wrap import Wrap

UP, DOWN, RIGHT, LEFT, DELETE = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1b[3~"


@pytest.mark.parametrize(
    ("keys", "lines", "left"),
    [
        pytest.param("hello\n", ["hello"], "", id="a line"),
        pytest.param("one\rtwo\rthr", ["one", "two"], "thr", id="two lines and a beginning"),
        pytest.param("helo\x7f\x7fllo", [], "hello", id="rubbing out"),
        pytest.param(f"bd{LEFT}{LEFT}a{RIGHT}c", [], "abcd", id="moving"),
        pytest.param("one two \x17three", [], "one three", id="a word rubbed out"),
        pytest.param("one\x15two", [], "two", id="the whole line rubbed out"),
        pytest.param(f"abc{LEFT}{LEFT}\x0b", [], "a", id="the rest rubbed out"),
        pytest.param(f"abc\x01{DELETE}\x04\x05d", [], "cd", id="deleting, begin and end"),
        pytest.param("\x1b[Hx\x1b[Fy", [], "xy", id="home and end"),
        pytest.param(f"a\nb\n{UP}{UP}{UP}", ["a", "b"], "a", id="what was typed before"),
        pytest.param(f"a\n{UP}{DOWN}", ["a"], "", id="and back"),
        pytest.param("\x04", [LEAVE], "", id="the end"),
        pytest.param("\n", [""], "", id="nothing"),
        pytest.param("a\x1b[5;3~\x1bOP\tb\x00", [], "ab", id="keys that mean nothing here"),
        pytest.param("häß 日本", [], "häß 日本", id="other scripts"),
    ],
)
def test_keys_edit_a_line(keys: str, lines: list[str | None], left: str) -> None:
    whole, bitwise = Line(), Line()
    assert (list(whole.feed(keys.encode())), whole.text) == (lines, left)
    assert ([line for byte in keys.encode() for line in bitwise.feed(bytes([byte]))], bitwise.text) == (lines, left)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("a bc def ghij", "a bc def \nghij", id="at words"),
        pytest.param("abcdefghijklmno p", "abcdefghij\nklmno p", id="a word longer than a line"),
        pytest.param("a\nbc defghijkl", "a\nbc \ndefghijkl", id="its own line ends stay"),
        pytest.param("日本語日本語", "日本語日本\n語", id="wide characters"),
        pytest.param("abcdefghij k", "abcdefghij\nk", id="a blank beyond the end"),
    ],
)
def test_streamed_text_is_broken_at_words(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    wrap = Wrap()
    assert "".join(map(wrap.feed, text)) + wrap.end() == shown


def test_a_line_that_is_too_long_is_seen_around_the_cursor() -> None:
    line = Line()
    list(line.feed(b"0123456789"))
    assert _window(line, 5) == ("56789", 5)
    list(line.feed(b"\x01"))
    assert _window(line, 5) == ("01234", 0)
