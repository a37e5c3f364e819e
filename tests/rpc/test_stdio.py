"""One client on stdin and stdout: clean frames, and a process that ends when it should."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from wire_fakes import Wire, header_frame, hello, line_frame, notification, request

pytestmark = pytest.mark.anyio

SERVER = [sys.executable, str(Path(__file__).resolve().parent.parent / "wire_fakes.py")]
GONE_S = 2.0

Start = Callable[..., Awaitable["Process"]]


class Process(Wire):
    """A server process and the client on its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        super().__init__(process.stdout, process.stdin)
        self.process = process

    async def end(self, *, within: float = GONE_S) -> int:
        """Its exit code; it must come by itself."""
        async with asyncio.timeout(within):
            return await self.process.wait()

    async def errors(self) -> str:
        assert self.process.stderr
        return (await self.process.stderr.read()).decode()


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[Process] = []

    async def start(*, greet: bool = True, **initialize: Any) -> Process:
        process = await asyncio.create_subprocess_exec(
            *SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, limit=2**26
        )
        wire = Process(process)
        started.append(wire)
        if greet:
            message = hello()
            message["params"].update(initialize)
            wire.send(message)
            assert "result" in await wire.receive()
        return wire

    yield start
    for wire in started:
        if wire.process.returncode is None:
            wire.process.kill()
        await wire.process.communicate()


async def test_nothing_but_frames_reaches_stdout_whoever_prints(start: Start) -> None:
    wire = await start()
    wire.send(request(1, "test/print"), request(2, "test/echo", {"value": "ok"}), request(3, "test/print"))
    answers = [await wire.receive() for _ in range(3)]
    assert {answer["id"]: answer["result"] for answer in answers} == {
        1: {"done": True},
        2: {"value": "ok"},
        3: {"done": True},
    }
    wire.send(request(4, "shutdown"), notification("exit"))
    assert (await wire.receive())["id"] == 4
    assert await wire.end() == 0
    assert await wire.rest() == []
    text = await wire.errors()
    for printed in ("printed by a library", "written by C", "echo by a child".removeprefix("echo ")):
        assert text.count(printed) == 2


ENDS = {
    "exit after shutdown": ([request(1, "shutdown"), notification("exit")], 0),
    "exit alone": ([notification("exit")], 1),
    "exit alone with something under way": ([request(1, "test/wait"), notification("exit")], 1),
    "bytes that are no frames": ([], 1),
}


@pytest.mark.parametrize(("messages", "code"), ENDS.values(), ids=ENDS.keys())
async def test_the_exit_code_tells_how_it_ended(start: Start, messages: list[Any], code: int) -> None:
    wire = await start()
    wire.send(*messages)
    if not messages:
        wire.raw(b"Content-Length: x\r\n\r\n")
    assert await wire.end() == code


async def test_exit_before_initialize_ends_the_process(start: Start) -> None:
    wire = await start(greet=False)
    wire.send(notification("exit"))
    assert await wire.end(within=15) == 1


CUTS = {"nothing": b"", "inside a frame": b'Content-Length: 500\r\n\r\n{"jsonrpc"', "inside a header": b"Content-Le"}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
async def test_it_is_gone_soon_after_the_end_of_stdin_whatever_is_under_way(start: Start, cut: bytes) -> None:
    wire = await start()
    wire.send(request(1, "test/wait"), request(2, "test/echo", {"value": "quick"}))
    wire.raw(cut)
    assert wire.process.stdin
    wire.process.stdin.close()
    assert await wire.end() == 0
    answers = {answer["id"]: answer for answer in await wire.rest()}
    assert answers[2]["result"] == {"value": "quick"}
    assert answers[1]["error"]["code"] == -32800


async def test_it_is_gone_when_nobody_reads_stdout_any_more(start: Start) -> None:
    read, write = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *SERVER, stdin=subprocess.PIPE, stdout=write, stderr=subprocess.DEVNULL
    )
    os.close(write)
    assert process.stdin
    process.stdin.write(header_frame(hello()))
    assert await asyncio.to_thread(os.read, read, 65536)
    os.close(read)
    process.stdin.write(header_frame(request(1, "test/echo")))
    async with asyncio.timeout(GONE_S):
        assert await process.wait() == 0
    process.stdin.close()


@pytest.mark.parametrize("how", ["killed", "dead already", "a zombie"])
async def test_it_is_gone_when_its_clients_process_is(start: Start, how: str) -> None:
    parent = subprocess.Popen(["sleep", "60"])
    if how == "dead already":
        parent.kill()
        parent.wait()
    wire = await start(processId=parent.pid)
    if how != "dead already":
        wire.send(request(1, "test/wait"), request(2, "test/nothing"))
        assert (await wire.receive())["id"] == 2
        parent.send_signal(signal.SIGKILL)
    if how == "killed":
        parent.wait()
    assert await wire.end() == 0
    parent.wait()


async def test_a_living_client_is_left_alone_without_a_busy_loop(start: Start) -> None:
    wire = await start(processId=os.getpid())
    before = _cpu_ticks(wire.process.pid)
    await asyncio.sleep(1.2)
    assert (await wire.call("test/nothing"))["result"] is None
    assert _cpu_ticks(wire.process.pid) - before <= os.sysconf("SC_CLK_TCK") // 5


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def test_a_client_that_does_not_read_gets_a_large_answer_whole_when_it_does(start: Start) -> None:
    wire = await start()
    wire.send(request(1, "test/big", {"size": 5_000_000}), notification("test/echo"), request(2, "test/flood"))
    await asyncio.sleep(0.3)
    sizes = {}
    for _ in range(2):
        answer = await wire.receive()
        sizes[answer["id"]] = len(answer["result"].get("text", ""))
    assert sizes == {1: 5_000_000, 2: 0}


async def test_an_undrained_stderr_holds_nothing_up(start: Start) -> None:
    wire = await start()
    for n in range(100):
        wire.send(request(n, "test/echo", {"value": "x" * 50_000}))
        wire.send(request(f"wrong {n}", "test/prompt", {"nonsense": "x" * 1000}))
        assert {(await wire.receive())["id"], (await wire.receive())["id"]} == {n, f"wrong {n}"}


@pytest.mark.parametrize("frame", [header_frame, line_frame])
async def test_files_work_as_stdin_and_stdout(tmp_path: Path, frame: Callable[[Any], bytes]) -> None:
    script = [hello(), request(1, "test/echo", {"value": "x" * 200_000}), request(2, "shutdown"), notification("exit")]
    (tmp_path / "in").write_bytes(b"".join(frame(message) for message in script))
    with (tmp_path / "in").open("rb") as stdin, (tmp_path / "out").open("wb") as stdout:
        done = subprocess.run(SERVER, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, timeout=20)
    assert done.returncode == 0, done.stderr
    out = (tmp_path / "out").read_bytes()
    assert len(out) > 200_000
    assert out.count(b'"result"') == 3


async def test_an_empty_stdin_and_closed_descriptors_end_at_once(tmp_path: Path) -> None:
    done = subprocess.run(SERVER, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    assert (done.returncode, done.stdout) == (0, b"")
    command = ["sh", "-c", 'exec "$@" 0<&-', "sh", *SERVER]
    done = subprocess.run(command, capture_output=True, timeout=20)
    assert b"CannotListen: --stdio needs an open stdin and stdout." in done.stderr


async def test_a_closed_stderr_is_no_reason_to_fail() -> None:
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *SERVER]
    script = [hello(), request(1, "test/print"), request(2, "shutdown"), notification("exit")]
    stdin = b"".join(header_frame(message) for message in script)
    done = subprocess.run(command, input=stdin, stdout=subprocess.PIPE, timeout=20)
    assert done.returncode == 0
    assert b"printed" not in done.stdout


async def test_a_full_disk_under_stdout_ends_it() -> None:
    stdin = b"".join(header_frame(message) for message in [hello(), request(1, "test/wait")])
    with open("/dev/full", "wb") as stdout:
        begun = time.monotonic()
        done = subprocess.run(SERVER, input=stdin, stdout=stdout, stderr=subprocess.PIPE, timeout=20)
    assert time.monotonic() - begun < 15
    assert b"stdout cannot be written" in done.stderr
