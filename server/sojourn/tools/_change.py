"""Exact replacement of text: once, or everywhere, or a reason in words that helps the model to do better."""

from __future__ import annotations

import itertools
import re

from ._places import FileRefused

MAX_COMPARED = 1_000_000
"""Characters of a text in which is looked for what was nearly meant."""
_SHOWN = 5
_WORD = re.compile(r"\S+")


def replaced(shown: str, text: str, old: str, new: str, *, everywhere: bool, limit: int) -> str:
    """`text` with `old` replaced by `new`. Raises `FileRefused` unless it stands there exactly once, or `everywhere`;
    or when what comes out would have more than `limit` characters: that is known before it is made.

    In a text whose lines end with CRLF, `old` and `new` may be written with LF.
    """
    if not old:
        raise FileRefused("old_text is empty; it says what is replaced. To write a whole file use write.")
    if old == new:
        raise FileRefused("old_text and new_text are the same; nothing was changed.")
    old, new = _with_ends_of(text, old, new)
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
    if len(text) + text.count(old) * (len(new) - len(old)) > limit:
        raise FileRefused(f"The new text of {shown!r} would be too long: more than {limit} characters.")
    return text.replace(old, new)


def _with_ends_of(text: str, old: str, new: str) -> tuple[str, str]:
    """Both with the line ends of the text, where they were written with LF and its lines end with CRLF."""
    ends = text.count("\r\n")
    if not ends:
        return old, new
    if "\n" in old:
        if "\r" in old or old in text:
            return old, new
        return old.replace("\n", "\r\n"), _crlf(new)
    return old, _crlf(new) if "\r" not in new and ends * 2 > text.count("\n") else new


def _crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _places(text: str, old: str) -> list[int]:
    """Where `old` begins, the first few; places that overlap count: of 'aa' there are two in 'aaa'."""
    found: list[int] = []
    place = text.find(old)
    while place >= 0 and len(found) <= _SHOWN:
        found.append(place)
        place = text.find(old, place + 1)
    return found


def _nearly(text: str, old: str) -> str:
    """Where the same words stand with other white space, if they do: looked for in both without their white space."""
    words = old.split()
    if not words or len(old) > MAX_COMPARED or len(text) > MAX_COMPARED:
        return ""
    plain = " ".join(text.split())
    found = plain.find(" ".join(words))
    if found < 0:
        return ""
    word = next(itertools.islice(_WORD.finditer(text), plain.count(" ", 0, found), None))
    return f" (line {text.count(chr(10), 0, word.start()) + 1} differs in white space only)"
