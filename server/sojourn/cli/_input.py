"""What is typed, and at which question: what was typed before a question was on the screen never decides it."""

from __future__ import annotations

import asyncio
import os
import termios
import threading
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

Asked: TypeAlias = Callable[[], str | None]
"""The id of the question that is on the screen."""
Typed: TypeAlias = tuple[str, str | None]
"""A line, and the question that was on the screen when its first key came."""

_SIZE = 4096


def discard_typed() -> None:
    """Forgets what was typed on the terminal and is not read yet. Other input than a terminal's stays."""
    try:
        termios.tcflush(0, termios.TCIFLUSH)
    except termios.error:
        return  # It is no terminal, or not ours any more.


class Answers:
    """The lines of the terminal while a question is open. At other times nothing is read: it is for who comes after."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._read: asyncio.Queue[tuple[bytes, str | None]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._taking = False

    def mind(self) -> None:
        """Reads, or leaves alone, as there is a question or none. To be called whenever that may have changed."""
        if self._asked() is not None and not self._taking:
            self._loop.add_reader(0, self._readable)
        else:
            self._loop.remove_reader(0)

    async def lines(self) -> AsyncIterator[Typed]:
        """One line after the other, until the end of the terminal; the next one is read when this one is dealt with."""
        try:
            while True:
                data, question = await self._read.get()
                if not data:
                    return
                for line in _split(data):
                    yield line, question
                self._taking = False
                self.mind()
        finally:
            self._taking = True
            self.mind()

    def _readable(self) -> None:
        self._taking = True
        self.mind()
        self._read.put_nowait((_read(), self._asked()))


async def typed_lines(asked: Asked) -> AsyncIterator[Typed]:
    """The lines of stdin until its end, as a pipe or the terminal itself gives them."""
    rest, begun = b"", None
    async for data, question in chunks(asked):
        begun = begun if rest else question
        *whole, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            yield line.decode(errors="replace"), begun
            begun = question
    if rest:
        yield rest.decode(errors="replace"), begun


async def chunks(asked: Asked) -> AsyncIterator[tuple[bytes, str | None]]:
    """The bytes of stdin until its end, each with the question at that time."""
    read: asyncio.Queue[tuple[bytes, str | None]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def readable() -> None:
        data = _read()
        if not data:
            loop.remove_reader(0)
        read.put_nowait((data, asked()))

    def arrived(data: bytes) -> None:
        read.put_nowait((data, asked()))

    if os.isatty(0):  # It stays blocking, as others share it; and one thread alone both reads and discards.
        loop.add_reader(0, readable)
    else:  # A file cannot be waited for in any other way.
        threading.Thread(target=_read_on, args=(loop, arrived), daemon=True, name="sojourn-stdin").start()
    try:
        while (chunk := await read.get())[0]:
            yield chunk
    finally:
        loop.remove_reader(0)


def _split(data: bytes) -> list[str]:
    return data.replace(b"\r", b"\n").decode(errors="replace").split("\n")


def _read() -> bytes:
    try:
        return os.read(0, _SIZE)
    except OSError:
        return b""  # The terminal is gone.


def _read_on(loop: asyncio.AbstractEventLoop, arrived: Callable[[bytes], None]) -> None:
    try:
        # Not `sys.stdin`: its lock, held by a thread that waits, makes the interpreter abort at its end.
        while data := os.read(0, _SIZE):
            loop.call_soon_threadsafe(arrived, data)
        loop.call_soon_threadsafe(arrived, b"")
    except (OSError, RuntimeError):
        return  # The pipe, or the loop, is gone.
