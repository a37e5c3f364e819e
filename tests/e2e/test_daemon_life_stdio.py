"""`serve --stdio`: one client, and an end with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from sojourn_client.testing import DaemonProcess

Make = Callable[..., DaemonProcess]
SLOW = 'rules: [{when: {always: true}, reply: {text: "one two three four five six", delay_ms: 500, chunk_chars: 4}}]'


@contextmanager
def stdio(daemon: DaemonProcess, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    with (daemon.root / "stdio.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sojourn", "serve", "--stdio"],
            env=daemon.env,
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, **options},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def say(process: subprocess.Popen[bytes], method: str, id: int | None = None, **params: Any) -> None:
    assert process.stdin is not None
    numbered = {} if id is None else {"id": id}
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **numbered, "method": method, "params": params}).encode() + b"\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[bytes], id: int) -> Any:
    assert process.stdout is not None
    while line := process.stdout.readline():
        message = json.loads(line)
        if message.get("id") == id:
            return message
    raise AssertionError(f"stdout ended before the answer {id}")


def hello(process: subprocess.Popen[bytes], **params: Any) -> None:
    say(process, "initialize", 1, capabilities={}, **params)
    assert "result" in hear(process, 1)


def start_run(process: subprocess.Popen[bytes]) -> None:
    say(process, "agent/create", 2, agentId="a")
    assert "result" in hear(process, 2)
    say(process, "agent/prompt", 3, agentId="a", content="x", wait=False)
    assert "result" in hear(process, 3)


def leave_by_eof(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def leave_by_exit(process: subprocess.Popen[bytes]) -> None:
    say(process, "exit")


def leave_by_shutdown(process: subprocess.Popen[bytes]) -> None:
    say(process, "shutdown", 9)
    hear(process, 9)
    say(process, "exit")


def leave_by_term(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)


def leave_by_closing_stdout(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    process.stdout.close()
    with suppress(BrokenPipeError):  # a busy daemon may have met the closed pipe before, by an event
        say(process, "server/status", 9)


@pytest.mark.parametrize(
    ("leave", "busy", "code"),
    [
        pytest.param(leave_by_eof, False, 0, id="end of stdin"),
        pytest.param(leave_by_eof, True, 0, id="end of stdin, busy"),
        pytest.param(leave_by_exit, False, 1, id="exit alone"),
        pytest.param(leave_by_shutdown, True, 0, id="shutdown and exit, busy"),
        pytest.param(leave_by_term, True, 0, id="SIGTERM, busy"),
        pytest.param(leave_by_closing_stdout, True, 0, id="stdout closed, busy"),
    ],
)
def test_the_daemon_saves_and_ends_with_its_client(
    make_daemon: Make, leave: Callable[..., None], busy: bool, code: int
) -> None:
    daemon = make_daemon(script=SLOW)
    with stdio(daemon) as process:
        hello(process)
        if busy:
            start_run(process)
        begun = time.monotonic()
        leave(process)
        assert process.wait(5) == code
        assert time.monotonic() - begun < 2.5


def test_the_daemon_ends_with_the_process_of_its_client_though_the_pipe_stays_open(make_daemon: Make) -> None:
    daemon = make_daemon()
    reading, writing = os.pipe()
    parent = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    with stdio(daemon, stdin=reading) as process, os.fdopen(writing, "wb") as pipe:
        os.close(reading)
        process.stdin = pipe
        hello(process, processId=parent.pid)
        parent.kill()
        parent.communicate()
        assert process.wait(4) == 0
        process.stdin = None


def test_nothing_but_frames_is_on_stdout(make_daemon: Make) -> None:
    daemon = make_daemon(config='[daemon]\nlog_level = "debug"\n')
    with stdio(daemon) as process:
        hello(process)
        leave_by_eof(process)
        assert process.stdout is not None
        assert process.stdout.read() == b""
        assert process.wait(5) == 0
