"""The daemon's log: one line an event, on stderr or in `daemon.log`; payloads never above DEBUG, secrets never.

Writing happens in a thread of its own with a bounded queue: a stderr that nobody reads, or a slow disk, costs lines,
never time of the event loop.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import queue
import threading
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_QUEUE = 10_000
_FILE_BYTES, _FILES = 2_000_000, 3
_STOP_S = 0.5


class Log:
    """The log of this process, from here on. `file` None: stderr."""

    def __init__(self, level: str, file: Path | None) -> None:
        self._lines: queue.Queue[logging.LogRecord | None] = queue.Queue(_QUEUE)
        self._handler: logging.Handler = logging.StreamHandler() if file is None else _RotatingLog(file)
        self._handler.setFormatter(logging.Formatter(_FORMAT))
        self._queued = _Dropping(self._lines)
        self._thread = threading.Thread(target=self._write, name="sojourn-log", daemon=True)
        root = logging.getLogger()
        root.handlers[:] = [self._queued]
        root.setLevel(level.upper())
        for noisy in ("httpx", "httpcore", "httpx2", "pygls", "client", "asyncio"):
            logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))  # They log whole messages at INFO.
        if root.level > logging.DEBUG:
            logging.getLogger("mcp").setLevel(logging.CRITICAL)  # tools.mcp says itself what is wrong with a server.
        self._thread.start()

    def close(self) -> None:
        """Writes what is queued, for a moment at most: whoever does not read must not hold the end up."""
        logging.getLogger().removeHandler(self._queued)
        try:
            self._lines.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(_STOP_S)
        if not self._thread.is_alive():
            self._handler.close()

    def _write(self) -> None:
        while (record := self._lines.get()) is not None:
            self._handler.handle(record)


class _Dropping(logging.handlers.QueueHandler):
    """Drops lines when the queue is full, and says how many once it is not."""

    def __init__(self, lines: queue.Queue[logging.LogRecord | None]) -> None:
        super().__init__(lines)
        self._dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped:
                record.msg = f"({self._dropped} lines were dropped before this one) {record.msg}"
            self.queue.put_nowait(record)
            self._dropped = 0
        except queue.Full:
            self._dropped += 1


class _RotatingLog(logging.handlers.RotatingFileHandler):
    """`daemon.log`, rotated; stdout and stderr follow it, so that stray prints do not end in a deleted file."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, maxBytes=_FILE_BYTES, backupCount=_FILES, encoding="utf-8")

    def doRollover(self) -> None:  # noqa: N802 - the name is logging's
        super().doRollover()
        assert self.stream is not None
        for fd in (1, 2):
            os.dup2(self.stream.fileno(), fd)
