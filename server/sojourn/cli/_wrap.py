"""Streamed text broken at words: a word is held back until it is known on which line it stands."""

from __future__ import annotations

import shutil

from rich.cells import cell_len


class Wrap:
    """Text in, text with line ends out. Lines are as wide as the terminal at that moment."""

    def __init__(self) -> None:
        self._column = 0
        self._word = ""

    def feed(self, text: str) -> str:
        """What can be shown of all text so far."""
        width = shutil.get_terminal_size().columns
        return "".join(self._char(char, width) for char in text)

    def end(self) -> str:
        """What was held back; the next text begins a line."""
        rest, self._word, self._column = self._word, "", 0
        return rest

    def _char(self, char: str, width: int) -> str:
        if char == "\n":
            return self.end() + "\n"
        if char == " ":
            word = self._take()
            if self._column >= width:
                self._column = 0
                return f"{word}\n"
            self._column += 1
            return f"{word} "
        self._word += char
        broken = self._break(width)
        if cell_len(char) > 1 or (not self._column and cell_len(self._word) >= width):
            return broken + self._take()  # Scripts without blanks break anywhere, and so do endless words.
        return broken

    def _break(self, width: int) -> str:
        if self._column and self._column + cell_len(self._word) > width:
            self._column = 0
            return "\n"
        return ""

    def _take(self) -> str:
        word, self._word = self._word, ""
        self._column += cell_len(word)
        return word
