"""Typing and showing in one terminal: what is shown waits while a line is typed, and an empty line makes way for it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable
from typing import Self, TextIO

from rich.cells import cell_len

from ._input import Asked, Typed, chunks
from ._keys import LEAVE, Line

_PROMPT = "you> "
_COLOURED = "\x1b[1;36myou> \x1b[0m"


def can_compose() -> bool:
    """Whether stdin and stdout are a terminal that can redraw a line."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


class Composer(io.TextIOBase):
    """The line that is typed, below everything that is shown. Write to it what is to be shown.

    Needs a running loop and `can_compose`. The terminal is put back at the end.
    """

    def __init__(self) -> None:
        self._out: TextIO = sys.stdout
        self._line = Line()
        self._held: list[str | Callable[[], None]] = []
        self._drawn = False
        self._at_start = True
        self._broken = False
        self._redrawing = False
        self._over = False
        self._before = termios.tcgetattr(0)
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        tty.setcbreak(0, termios.TCSADRAIN)
        self._loop.add_signal_handler(signal.SIGCONT, self._back)
        self._loop.add_signal_handler(signal.SIGWINCH, self._soon)
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        for number in (signal.SIGCONT, signal.SIGWINCH):
            self._loop.remove_signal_handler(number)
        with contextlib.suppress(OSError, termios.error):  # The terminal may be gone.
            self._erase()
            self._release()
            self._out.flush()
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    async def lines(self, asked: Asked) -> AsyncIterator[Typed]:
        """The lines that are typed, without blank ones, until Ctrl-D; `asked` says which question is on the screen."""
        self._soon()
        begun = None
        async for data, question in chunks(asked):
            finished: list[tuple[str | None, str | None]] = []
            begun = begun if self._line.text else question
            for line in self._line.feed(data):
                finished.append((line, begun))
                begun = question
                if line:
                    self._keep(line)
            self._typed()
            for one, at in finished:
                if one is LEAVE:
                    return
                if one.strip():
                    yield one, at

    def when_free(self, show: Callable[[], None]) -> None:
        """Calls `show` once nothing is being typed, which may be now."""
        if self._line.text:
            self._held.append(show)
        else:
            show()

    def isatty(self) -> bool:
        """It stands for the terminal."""
        return True

    def fileno(self) -> int:
        """The terminal's."""
        return self._out.fileno()

    def write(self, text: str) -> int:
        """Shows `text`, or keeps it until nothing is being typed."""
        if self._line.text:
            self._held.append(text)
        else:
            self._put(text)
        return len(text)

    def _put(self, text: str) -> None:
        if self._broken:  # The line that was streamed to ended when somebody typed into it.
            self._broken = False
            text = text.removeprefix("\n")
        if text:
            self._erase()
            self._out.write(text)
            self._at_start = text.endswith("\n")
            self._soon()

    def _release(self) -> None:
        held, self._held = self._held, []
        for one in held:
            if isinstance(one, str):
                self._put(one)
            elif not self._over:
                one()

    def _keep(self, line: str) -> None:
        self._leave_stream()
        self._erase()
        self._out.write(f"{_prompt()}{line}\n")
        self._at_start = True

    def _typed(self) -> None:
        if self._line.text:
            self._leave_stream()
        else:
            self._erase()
            self._release()
        self._draw()

    def _leave_stream(self) -> None:
        if not self._at_start:
            self._out.write("\n")
            self._at_start = self._broken = True

    def _erase(self) -> None:
        if self._drawn:
            self._drawn = False
            self._out.write("\r\x1b[K")

    def _soon(self) -> None:
        if not self._redrawing:
            self._redrawing = True
            self._loop.call_soon(self._draw)

    def _draw(self) -> None:
        self._redrawing = False
        with contextlib.suppress(OSError):  # Nobody awaits this; that the terminal is gone is said by its input.
            if self._at_start and not self._over:
                self._erase()
                shown, place = _window(self._line, shutil.get_terminal_size().columns - len(_PROMPT) - 1)
                self._out.write(f"{_prompt()}{shown}\r\x1b[{len(_PROMPT) + place}C")
                self._drawn = True
            self._out.flush()

    def _back(self) -> None:
        with contextlib.suppress(termios.error):  # A terminal that is gone wakes whoever it stopped, too.
            tty.setcbreak(0, termios.TCSADRAIN)
            self._soon()


def _prompt() -> str:
    return _PROMPT if os.environ.get("NO_COLOR") else _COLOURED


def _window(line: Line, width: int) -> tuple[str, int]:
    """What of a line is seen, and the column of the cursor in it."""
    begin = 0
    while cell_len(line.text[begin : line.cursor]) > max(width, 1):
        begin += 1
    shown = line.text[begin:]
    while cell_len(shown) > max(width, 1):
        shown = shown[:-1]
    return shown, cell_len(line.text[begin : line.cursor])
