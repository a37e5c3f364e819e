"""A table as wide as the terminal. Ids are for copying: the first column is never folded or cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_BETWEEN = 2
_LEAST, _WORD = 8, 16
"""Columns are not made narrower than the first, nor than their longest word if that is no longer than the second."""


def draw(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]], *, cut_last: bool) -> None:
    """Prints the rows under their headings, or each as a paragraph where there is no room for columns."""
    widths = _widths(headings, rows, console.width)
    if widths is None:
        _paragraphs(console, headings, rows)
        return
    drawn = Table(box=None, pad_edge=False, padding=(0, _BETWEEN, 0, 0), header_style="bold")
    for index, (heading, width) in enumerate(zip(headings, widths, strict=True)):
        cut = cut_last and index == len(widths) - 1
        drawn.add_column(heading, width=width, no_wrap=cut, overflow="ellipsis" if cut else "fold")
    for row in rows:
        drawn.add_row(*row)
    console.print(drawn)


def beside(console: Console, label: Text, text: Text) -> None:
    """Prints a text beside its label; on a terminal its further lines begin below its first."""
    room = console.width - label.cell_len
    if not console.is_terminal or room < _LEAST:
        console.print(Text.assemble(label, text))
        return
    for number, line in enumerate(text.wrap(console, room)):
        console.print(Text.assemble(Text(" " * label.cell_len) if number else label, line))


def _widths(headings: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """The width of each column, the widest made narrower first; None when even the narrowest do not fit."""
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns]
    words = [max((cell_len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    at_least = [max(_LEAST, word) if word <= _WORD else _LEAST for word in words]
    least = [widths[0], *(min(pair) for pair in zip(widths[1:], at_least[1:], strict=True))]
    room -= _BETWEEN * (len(widths) - 1)
    if sum(least) > room:
        return None
    while sum(widths) > room:
        _, widest = max((width, at) for at, width in enumerate(widths) if width > least[at])
        widths[widest] -= 1
    return widths


def _paragraphs(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for first, *others in rows:
        console.print(Text(first, "bold", overflow="fold"))
        named = zip(headings[1:], others, strict=True)
        told = ", ".join(f"{name.lower()} {cell}" for name, cell in named if cell not in ("", "-"))
        console.print(Padding(Text(told), (0, 0, 0, 2)))
