"""Tables on terminals of any width: an id can be copied from all of them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from sojourn.cli._table import beside, draw

HEADINGS = ("AGENT", "STATE", "WAITS FOR", "MESSAGES", "UPDATED", "ABOUT")
ROWS = [
    (
        "agent-a48fddd2538d246b",
        "waiting",
        "1 approval",
        "11",
        "1 min ago",
        "Please build the whole website, and quickly",
    ),
    ("nightly", "idle", "-", "2", "just now", ""),
]


def drawn(width: int, *, cut_last: bool) -> list[str]:
    out = io.StringIO()
    draw(Console(file=out, width=width, force_terminal=True, color_system=None), HEADINGS, ROWS, cut_last=cut_last)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("cut_last", [False, True])
@pytest.mark.parametrize("width", [24, 40, 60, 71, 80, 100, 200])
def test_an_id_is_whole_and_no_line_is_wider_than_the_terminal(width: int, *, cut_last: bool) -> None:
    lines = drawn(width, cut_last=cut_last)
    assert any(line.startswith("agent-a48fddd2538d246b") for line in lines)
    assert max(map(len, lines)) <= width


def test_where_there_is_room_a_row_is_a_line() -> None:
    assert drawn(120, cut_last=False)[1].split("  ")[-1] == ROWS[0][-1]
    assert len(drawn(120, cut_last=False)) == 3


def test_words_are_not_broken_where_there_is_room_for_them() -> None:
    row = ("agent-a48fddd2538d246b", "paused", "1 pending call (msg-2-call-1)", "2", "just now", "And?")
    out = io.StringIO()
    draw(Console(file=out, width=80, color_system=None), HEADINGS, [row], cut_last=True)
    assert "(msg-2-call-1)" in out.getvalue()


def test_the_last_column_is_cut_to_what_is_left() -> None:
    lines = drawn(80, cut_last=True)
    assert len(lines) == 3
    assert lines[1].endswith("…")
    assert "Please" in lines[1]
    assert "quickly" in " ".join(drawn(80, cut_last=False))


def test_a_narrow_terminal_shows_a_paragraph_for_each_row() -> None:
    assert drawn(40, cut_last=True) == [
        "agent-a48fddd2538d246b",
        "  state waiting, waits for 1 approval,",
        "  messages 11, updated 1 min ago, about",
        "  Please build the whole website, and",
        "  quickly",
        "nightly",
        "  state idle, messages 2, updated just",
        "  now",
    ]


@pytest.mark.parametrize(
    ("width", "terminal", "lines"),
    [
        (24, True, ["✗ tools   a package that", "          is broken"]),
        (80, True, ["✗ tools   a package that is broken"]),
        (15, True, ["✗ tools   a", "package that is", "broken"]),
        (24, False, ["✗ tools   a package that is broken"]),
    ],
    ids=["narrow", "wide", "no room beside it", "no terminal"],
)
def test_a_text_stands_beside_its_label(width: int, lines: list[str], *, terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    console.soft_wrap = not terminal
    beside(console, Text("✗ tools   "), Text("a package that is broken"))
    assert [line.rstrip() for line in out.getvalue().splitlines()] == lines
