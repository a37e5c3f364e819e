"""What tests of commands share: marked processes that can be found again, and patience with them."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path


def mark() -> str:
    """A word that no other process has on its command line."""
    return f"mark-{uuid.uuid4().hex}"


def sleeper(mark: str) -> str:
    """A command that sleeps for five minutes and bears a mark."""
    return f"bash -c 'exec -a {mark} sleep 300'"


def marked(mark: str) -> list[int]:
    """The processes with a mark as their name."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].decode(errors="replace") == mark:
                found.append(int(entry.name))
    return found


async def until_marked(mark: str, count: int, within_s: float = 10) -> None:
    """Waits until so many processes bear the mark."""
    async with asyncio.timeout(within_s):
        while len(marked(mark)) != count:
            await asyncio.sleep(0.01)


def wait_marked(mark: str, count: int, within_s: float = 10) -> None:
    """`until_marked` where there is no loop."""
    deadline = time.monotonic() + within_s
    while len(marked(mark)) != count:
        assert time.monotonic() < deadline, f"{marked(mark)} instead of {count} processes of {os.getpid()}"
        time.sleep(0.01)


@asynccontextmanager
async def loop_time() -> AsyncIterator[Callable[[], float]]:
    """How long the block took, in seconds in which this loop had its turns, not a busy machine others.

    For limits of things that happen at once; a machine with the ends of a hundred processes to see to is late itself.
    """
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.02)
            turns += 1

    counting = asyncio.create_task(count())
    try:
        yield lambda: turns * 0.02
    finally:
        counting.cancel()
