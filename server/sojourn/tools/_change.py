"""Exact replacement of text: once, or everywhere, or a reason in words that helps the model to do better."""

from __future__ import annotations

import re

from ._places import FileRefused

_SHOWN = 5


def replaced(shown: str, text: str, old: str, new: str, *, everywhere: bool) -> str:
    """`text` with `old` replaced by `new`. Raises `FileRefused` unless it stands there exactly once, or `everywhere`.

    In a text whose lines end with CRLF, `old` and `new` may be written with LF.
    """
    if not old:
        raise FileRefused("old_text is empty; it says what is replaced. To write a whole file use write.")
    if old == new:
        raise FileRefused("old_text and new_text are the same; nothing was changed.")
    if old not in text and "\r\n" in text and "\r" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    places = _places(text, old)
    if not places:
        raise FileRefused(
            f"old_text does not stand in {shown!r}{_nearly(text, old)}. Read the file and copy it exactly."
        )
    if len(places) > 1 and not everywhere:
        where = ", ".join(str(text.count("\n", 0, place) + 1) for place in places[:_SHOWN])
        more = " and more" if len(places) > _SHOWN else ""
        raise FileRefused(
            f"old_text stands in {shown!r} more than once (lines {where}{more}); "
            "say more of what is around it, or replace_all."
        )
    return text.replace(old, new)


def _places(text: str, old: str) -> list[int]:
    """Where `old` begins, the first few; places that overlap count: of 'aa' there are two in 'aaa'."""
    found: list[int] = []
    place = text.find(old)
    while place >= 0 and len(found) <= _SHOWN:
        found.append(place)
        place = text.find(old, place + 1)
    return found


def _nearly(text: str, old: str) -> str:
    """Where the same words stand with other white space, if they do."""
    words = old.split()
    if not words or len(words) > 2_000:
        return ""
    found = re.search(r"\s+".join(map(re.escape, words)), text)
    return "" if found is None else f" (line {text.count(chr(10), 0, found.start()) + 1} differs in white space only)"
