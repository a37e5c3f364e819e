"""The signals that end a command: Ctrl-C is a person who wants it stopped, TERM and HUP end this process alone.

What a person stops is stopped at the daemon, too; what `timeout`, a supervisor or a closed terminal ends goes on there.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

_LEFT = "left"
_LEAVING = (signal.SIGTERM, signal.SIGHUP)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Like `asyncio.run`, but a thread that waits for a line on the terminal does not hold up the end.

    Raises `KeyboardInterrupt` after Ctrl-C; after TERM or HUP the answer is the exit code that a shell expects.
    """
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    ending = _Ending(task)
    # Not `loop.add_signal_handler`: with the loop goes its handler, and for a moment the signal would end the process.
    heard = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, *_LEAVING)}
    try:
        for number, before in heard.items():
            if before != signal.SIG_IGN:  # `nohup`, and what a script runs in the background
                signal.signal(number, lambda number, _frame: loop.call_soon_threadsafe(ending.by, number))
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if ending.left is not None:
            return 128 + ending.left
        raise KeyboardInterrupt from None
    finally:
        loop.run_until_complete(_finish(task))
        for number, before in heard.items():  # When this process ends by a signal, the same once more changes nothing.
            left = ending.left is not None and number in _LEAVING
            signal.signal(number, signal.SIG_IGN if left else before)
        loop.close()


def leaves(cancelled: asyncio.CancelledError) -> bool:
    """Whether a command was cancelled by what ends it alone."""
    return _LEFT in cancelled.args


class _Ending:
    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.left: signal.Signals | None = None
        self._task = task

    def by(self, number: int) -> None:
        if self.left is not None:
            return  # A closed terminal says so twice, by the kernel and by the shell; once is enough to leave.
        if number in _LEAVING:
            self.left = signal.Signals(number)
            self._task.cancel(_LEFT)
        else:
            self._task.cancel()


async def _finish(main: asyncio.Task[Any]) -> None:
    left = asyncio.all_tasks() - {main, asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
