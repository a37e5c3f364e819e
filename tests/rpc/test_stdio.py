"""One client on two pipes: clean frames, and a process that ends when it should.

What does not need a process of its own runs in this one, on pipes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from wire_fakes import FakeHub, Wire, header_frame, hello, line_frame, notification, request, wire_methods

from sojourn.rpc.host import Host
from sojourn.rpc.stdio import Stdio, serve_stdio

pytestmark = pytest.mark.anyio

SERVER = [sys.executable, str(Path(__file__).resolve().parent.parent / "wire_fakes.py")]
SOON_S = 2.0

Start = Callable[..., Awaitable["Served"]]


class Served(Wire):
    """A client on pipes, and the server at their other ends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, serving: asyncio.Task[int]) -> None:
        super().__init__(reader, writer)
        self.serving = serving

    async def end(self) -> int:
        """The exit code; it must come by itself, and soon."""
        async with asyncio.timeout(SOON_S):
            return await self.serving


async def open_pipes() -> tuple[Stdio, asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    (in_read, in_write), (out_read, out_write) = os.pipe(), os.pipe()
    reader = asyncio.StreamReader(limit=2**26)
    protocol = asyncio.StreamReaderProtocol(reader)
    await loop.connect_read_pipe(lambda: protocol, os.fdopen(out_read, "rb", buffering=0))
    transport, _ = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(in_write, "wb", buffering=0)
    )
    return Stdio(in_read, out_write), reader, asyncio.StreamWriter(transport, protocol, reader, loop)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[Served] = []

    async def start(*, greet: bool = True, **initialize: Any) -> Served:
        ends, reader, writer = await open_pipes()
        serving = asyncio.create_task(serve_stdio(Host(FakeHub()), ends))  # type: ignore[arg-type]
        wire = Served(reader, writer, serving)
        started.append(wire)
        if greet:
            message = hello()
            message["params"].update(initialize)
            wire.send(message)
            assert "result" in await wire.receive()
        return wire

    with wire_methods():
        yield start
        for wire in started:
            wire.close()
            async with asyncio.timeout(10):
                await asyncio.wait([wire.serving])
                await wire.reader.read()


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


async def test_exit_before_initialize_ends_it(start: Start) -> None:
    wire = await start(greet=False)
    wire.send(notification("exit"))
    assert await wire.end() == 1


CUTS = {"nothing": b"", "inside a frame": b'Content-Length: 500\r\n\r\n{"jsonrpc"', "inside a header": b"Content-Le"}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
async def test_it_is_gone_soon_after_the_end_of_stdin_whatever_is_under_way(start: Start, cut: bytes) -> None:
    wire = await start()
    wire.send(request(1, "test/wait"), request(2, "test/echo", {"value": "quick"}))
    wire.raw(cut)
    wire.close()
    assert await wire.end() == 0
    answers = {answer["id"]: answer for answer in await wire.rest()}
    assert answers[2]["result"] == {"value": "quick"}
    assert answers[1]["error"]["code"] == -31017


async def test_it_is_gone_when_nobody_reads_stdout_any_more(start: Start) -> None:
    wire = await start()
    wire.reader._transport.close()  # type: ignore[attr-defined]
    assert await wire.end() == 0


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


@pytest.mark.parametrize("pid", [os.getpid(), 1, 0, -1, 2**62, None], ids=["us", "1", "0", "-1", "huge", "none"])
async def test_a_client_that_is_not_known_to_be_dead_is_left_alone(start: Start, pid: int | None) -> None:
    wire = await start(processId=pid)
    await asyncio.sleep(0.7)
    assert (await wire.call("test/nothing"))["result"] is None


async def test_a_client_that_does_not_read_gets_a_large_answer_whole_when_it_does(start: Start) -> None:
    wire = await start()
    wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
    wire.send(request(1, "test/big", {"size": 5_000_000}), request(2, "test/flood", {"count": 3}))
    await asyncio.sleep(0.2)
    wire.reader._transport.resume_reading()  # type: ignore[attr-defined]
    found = [await wire.receive() for _ in range(5)]
    assert sorted(len(message.get("result", {}).get("text", "")) for message in found) == [0, 0, 0, 0, 5_000_000]


async def test_a_request_that_is_read_slowly_is_read_whole(start: Start) -> None:
    wire = await start()
    wire.send(request(1, "test/echo", {"value": "x" * 3_000_000}))
    assert len((await wire.receive())["result"]["value"]) == 3_000_000


@pytest.mark.parametrize("frame", [header_frame, line_frame])
async def test_files_work_as_stdin_and_stdout(tmp_path: Path, frame: Callable[[Any], bytes]) -> None:
    script = [hello(), request(1, "test/echo", {"value": "x" * 200_000}), request(2, "shutdown"), notification("exit")]
    (tmp_path / "in").write_bytes(b"".join(frame(message) for message in script))
    ends = Stdio(os.open(tmp_path / "in", os.O_RDONLY), os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT))
    with wire_methods():
        async with asyncio.timeout(10):
            assert await serve_stdio(Host(FakeHub()), ends) == 0  # type: ignore[arg-type]
    out = (tmp_path / "out").read_bytes()
    assert len(out) > 200_000
    assert out.count(b'"result"') == 3


async def test_dev_null_as_stdin_is_an_end_at_once(tmp_path: Path) -> None:
    ends = Stdio(os.open(os.devnull, os.O_RDONLY), os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT))
    async with asyncio.timeout(10):
        assert await serve_stdio(Host(FakeHub()), ends) == 0  # type: ignore[arg-type]
    assert (tmp_path / "out").read_bytes() == b""


async def test_a_full_disk_under_stdout_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    ends, reader, writer = await open_pipes()
    os.close(ends.write)
    full = Stdio(ends.read, os.open("/dev/full", os.O_WRONLY))
    with wire_methods():
        serving = asyncio.create_task(serve_stdio(Host(FakeHub()), full))  # type: ignore[arg-type]
        writer.write(header_frame(hello()))
        async with asyncio.timeout(10):
            assert await serving == 0
    assert "stdout cannot be written" in caplog.text
    assert await reader.read() == b""
    writer.close()


async def test_many_answers_to_a_file_hold_reading_up_and_go_on(tmp_path: Path) -> None:
    script = [hello(), *[request(n, "test/big", {"size": 500_000}) for n in range(30)]]
    (tmp_path / "in").write_bytes(b"".join(line_frame(message) for message in script))
    ends = Stdio(os.open(tmp_path / "in", os.O_RDONLY), os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT))
    with wire_methods():
        async with asyncio.timeout(20):
            assert await serve_stdio(Host(FakeHub()), ends) == 0  # type: ignore[arg-type]
    assert (tmp_path / "out").read_bytes().count(b'"result"') == 31


# ── in a process of its own ───────────────────────────────────────────────────────────────────────────────────────────


def run(script: list[Any], *shell: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    stdin = b"".join(header_frame(message) for message in script)
    return subprocess.run([*shell, *SERVER], input=stdin, capture_output=True, timeout=60, **more)


async def test_nothing_but_frames_reaches_stdout_whoever_prints() -> None:
    script = [hello(), request(1, "test/print"), request(2, "test/echo", {"value": "ok"}), request(3, "test/print")]
    done = run([*script, request(4, "shutdown"), notification("exit")])
    assert done.returncode == 0, done.stderr
    reader = asyncio.StreamReader(limit=2**26)
    reader.feed_data(done.stdout)
    reader.feed_eof()
    answers = {answer["id"]: answer["result"] for answer in await Wire(reader, None).rest()}  # type: ignore[arg-type]
    assert answers.keys() == {"hello", 1, 2, 3, 4}
    assert answers[1] == answers[3] == {"done": True}
    for printed in (b"printed by a library", b"written by C", b"by a child"):
        assert done.stderr.count(printed) == 2


async def test_closed_descriptors_are_said_or_lived_with() -> None:
    done = run([], "sh", "-c", 'exec "$@" 0<&-', "sh")
    assert done.returncode == 1
    assert b"CannotListen: --stdio needs an open stdin and stdout." in done.stderr
    script = [hello(), request(1, "test/print"), request(2, "shutdown"), notification("exit")]
    done = run(script, "sh", "-c", 'exec "$@" 2>&-', "sh")
    assert done.returncode == 0
    assert b"printed" not in done.stdout
    assert done.stdout.count(b'"result"') == 3
