"""From the start of the daemon to its first answer, and its memory then: with 10,000 stored agents against none.

Both are real daemons with a state directory of their own, started in turns; the client asks for one agent. The agents
are made by writing rows through the store, each with a conversation, a finished run and some events.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from _report import Report

from sojourn.store.records import AgentRecord, EventRecord, MessageRecord, RunRecord
from sojourn.store.sqlite import SqliteStore
from sojourn_client._process import DaemonProcess

AGENTS = 10_000
ROUNDS = 5
TIME_AT_MOST = 1.5
MEMORY_AT_MOST_MB = 30
AT = "2026-01-01T00:00:00.000Z"


async def filled(folder: Path) -> None:
    """A store with the agents."""
    store = await SqliteStore.open(folder)
    for first in range(0, AGENTS, 500):
        await store.write(lambda tx, first=first: [_agent(tx, n) for n in range(first, first + 500)])  # type: ignore[misc]
    await store.aclose()


def _agent(tx: Any, number: int) -> None:
    agent, run = f"agent-{number:06d}", f"run-{number:019d}"
    said = {"role": "user", "messageId": "msg-1", "at": AT, "content": [{"type": "text", "text": "word " * 100}]}
    tx.insert(AgentRecord(agent, AT, AT, number, agent, last_seq=8, message_count=4, next_message=5))
    tx.insert(RunRecord(run, agent, agent, 0, AT, AT, "done", max_turns=25))
    tx.insert_all(
        [
            MessageRecord(agent, n, f"msg-{n}", "user", orjson.dumps({**said, "messageId": f"msg-{n}"}).decode())
            for n in range(1, 5)
        ]
    )
    event = orjson.dumps({"type": "messageEnd", "message": said}).decode()
    tx.insert_all([EventRecord(agent, n, AT, event, run) for n in range(1, 9)])


@contextlib.contextmanager
def daemon_on(state: Path) -> Iterator[DaemonProcess]:
    """A daemon that is not started yet, on this state."""
    daemon = DaemonProcess()
    try:
        if state.exists():
            shutil.copytree(state, daemon.state_dir, dirs_exist_ok=True)
        yield daemon
    finally:
        daemon.close()


async def first_answer(daemon: DaemonProcess) -> tuple[float, float]:
    """Seconds from the start to the first answered request, and the daemon's memory then in MB."""
    start = time.perf_counter()
    daemon.start(wait=False)
    while not daemon.socket.exists() or not daemon.answers():
        if daemon.process is not None and daemon.process.poll() is not None:
            raise RuntimeError(daemon.stderr)
        await asyncio.sleep(0.002)
    reader, writer = await asyncio.open_unix_connection(str(daemon.socket))
    info = {"protocolVersion": 1, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    await _asked(reader, writer, {"id": 1, "method": "initialize", "params": info})
    answer = await _asked(reader, writer, {"id": 2, "method": "agent/list", "params": {"limit": 1}})
    seconds = time.perf_counter() - start
    assert "result" in answer, answer
    memory = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{daemon.pid}/status").read_text())
    assert memory is not None
    writer.close()
    return seconds, int(memory[1]) / 1024


async def _asked(reader: Any, writer: Any, request: dict[str, Any]) -> dict[str, Any]:
    body = orjson.dumps({"jsonrpc": "2.0", **request})
    writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    async with asyncio.timeout(20):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"Content-Length: (\d+)", head)
            assert length is not None
            message: dict[str, Any] = orjson.loads(await reader.readexactly(int(length[1])))
            if message.get("id") == request["id"]:
                return message


async def main() -> int:
    report = Report()
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        full = Path(folder, "full")
        await filled(full)
        times: list[tuple[float, float]] = []
        memories: list[tuple[float, float]] = []
        with daemon_on(Path(folder, "none")) as empty, daemon_on(full) as many:
            for round_ in range(ROUNDS + 1):
                results = []
                for daemon in (empty, many):
                    results.append(await first_answer(daemon))
                    daemon.stop()
                if round_:  # the first one makes the store and fills the disk's caches
                    times.append((results[0][0], results[1][0]))
                    memories.append((results[0][1], results[1][1]))
    report.line(
        "start.first_answer_with_10000_agents",
        statistics.median(many for _, many in times),
        "s",
        baseline="with no agents",
        baseline_value=statistics.median(none for none, _ in times),
        ratio=statistics.median(many / none for none, many in times),
        at_most=TIME_AT_MOST,
    )
    report.line(
        "start.more_memory_with_10000_agents",
        statistics.median(many - none for none, many in memories),
        "MB",
        at_most=MEMORY_AT_MOST_MB,
        with_none=round(statistics.median(none for none, _ in memories), 1),
    )
    return report.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
