"""How things look: JSON lines for scripts, short coloured text for people. Nothing that a model said moves a cursor."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

PROMPT_LABEL = "sojourn.prompt"
"""The label of an agent that `sojourn prompt` made: the directory it was made for."""
_DECIDED = {
    "approve": "approved",
    "edit": "approved with other arguments",
    "answer": "answered",
    "deny": "denied",
    "abort": "stopped",
}
_UNDECIDED = {
    "stopped": "not decided, the run was stopped",
    "closed": "not decided, it is needed no more",
    "expired": "not decided in time",
}


def json_line(value: Any) -> None:
    """One JSON value on a line of stdout."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def console(*, stderr: bool = False, file: TextIO | None = None) -> Console:
    """Where people read; coloured, and long lines broken at words, when it is a terminal. `file` stands for stdout."""
    from rich.console import Console

    class Patient(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Whoever reads has enough, which is no failure; `_app` answers it.

    made = Patient(stderr=stderr, file=None if stderr else file, highlight=False, markup=False)
    made.soft_wrap = not made.is_terminal
    return made


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, cut_last: bool = False) -> None:
    """A table on stdout: a drawn one on a terminal, tab-separated lines elsewhere.

    Of a drawn one the first column is whole, others are folded, and the last may be cut instead.
    """
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(one_line(cell, 10_000) for cell in row))
        return
    from ._table import draw

    draw(console(), headings, [[printable(cell) for cell in row] for row in rows], cut_last=cut_last)


def printable(text: str) -> str:
    """`text` without control characters other than line ends and tabs: it comes from models, tools and clients."""
    return "".join(char for char in text if char in "\n\t" or not (ord(char) < 32 or 127 <= ord(char) < 160))


def one_line(text: str, limit: int = 100) -> str:
    """`text` as one printable line of at most `limit` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def clock(at: str) -> str:
    """A time of the wire (UTC) as a person's clock has it; with the date when it is of another day."""
    there = datetime.fromisoformat(at).astimezone()
    return there.strftime("%H:%M" if there.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M")


def ago(at: str) -> str:
    """How long a time of the wire is past."""
    seconds = max(0, int((datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()))
    for size, word in ((86400, "day"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {word}{'s' if word == 'day' and seconds >= 2 * size else ''} ago"
    return "just now"


def count(number: int, word: str) -> str:
    """`1 agent`, `2 agents`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def decided(decision: dict[str, Any]) -> str:
    """What became of an approval, in words; one of a newer daemon by its own name."""
    kind = str(decision["decision"])
    return _UNDECIDED.get(kind) or f"{_DECIDED.get(kind, printable(kind))} by {decision['by']}"


def arguments(args: Any, limit: int = 200) -> str:
    """A call's arguments on one line."""
    return one_line(json.dumps(args, ensure_ascii=False), limit)


def asked_for(approval: dict[str, Any], limit: int = 200) -> str:
    """What an approval is about, on one line: the call, or its tool and file when the change is shown as well."""
    if preview := approval.get("preview"):
        return f"{approval['toolName']} {one_line(preview['path'], limit)}"
    return f"{approval['toolName']} {arguments(approval['args'], limit)}"


def text_of(content: Iterable[dict[str, Any]]) -> str:
    """The text of parts in wire form; what is no text by its type."""
    return "".join(part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in _spoken(content))


def _spoken(content: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    return (part for part in content if part["type"] not in ("reasoning", "toolCall"))
