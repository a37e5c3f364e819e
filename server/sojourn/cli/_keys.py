"""A line that is being typed, in a terminal that hands over every key: editing it, and what was typed before."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

LEAVE = None
"""Ctrl-D on an empty line."""

_TOKEN = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO.|\x1b[^\[O]|[^\x1b]", re.DOTALL)


class Line:
    """The text, the place of the cursor in it, and the lines before."""

    def __init__(self) -> None:
        self.text = ""
        self.cursor = 0
        self._before: list[str] = []
        self._looking = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._keys = {
            "\x7f": self._rub_out,
            "\x08": self._rub_out,
            "\x15": lambda: self._set(self.text[self.cursor :], 0),
            "\x17": self._rub_out_word,
            "\x0b": lambda: self._set(self.text[: self.cursor]),
            "\x01": lambda: self._move(0),
            "\x05": lambda: self._move(len(self.text)),
            "\x04": self._delete,
            "\x1b[D": lambda: self._move(self.cursor - 1),
            "\x1b[C": lambda: self._move(self.cursor + 1),
            "\x1b[A": lambda: self._look(-1),
            "\x1b[B": lambda: self._look(1),
            "\x1b[H": lambda: self._move(0),
            "\x1b[F": lambda: self._move(len(self.text)),
            "\x1b[3~": self._delete,
        }

    def feed(self, data: bytes) -> Iterator[str | None]:
        """Takes in keys; the lines that were finished by them, `LEAVE` for the end."""
        text = self._rest + self._decoder.decode(data)
        at = 0
        while found := _TOKEN.match(text, at):
            at = found.end()
            key = found[0]
            if key in "\r\n":
                yield self._finish()
            elif key == "\x04" and not self.text:
                yield LEAVE
            elif key in self._keys:
                self._keys[key]()
            elif key.isprintable():
                self._set(self.text[: self.cursor] + key + self.text[self.cursor :], self.cursor + 1)
        self._rest = text[at:]

    def _finish(self) -> str:
        text = self.text
        if text.strip():
            self._before.append(text)
        self._looking = len(self._before)
        self._set("")
        return text

    def _set(self, text: str, cursor: int | None = None) -> None:
        self.text = text
        self._move(len(text) if cursor is None else cursor)

    def _move(self, cursor: int) -> None:
        self.cursor = max(0, min(cursor, len(self.text)))

    def _rub_out(self) -> None:
        if self.cursor:
            self._set(self.text[: self.cursor - 1] + self.text[self.cursor :], self.cursor - 1)

    def _rub_out_word(self) -> None:
        kept = re.sub(r"\S*\s*$", "", self.text[: self.cursor])
        self._set(kept + self.text[self.cursor :], len(kept))

    def _delete(self) -> None:
        self._set(self.text[: self.cursor] + self.text[self.cursor + 1 :], self.cursor)

    def _look(self, step: int) -> None:
        self._looking = max(0, min(self._looking + step, len(self._before)))
        self._set(self._before[self._looking] if self._looking < len(self._before) else "")
