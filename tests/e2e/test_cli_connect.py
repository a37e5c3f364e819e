"""`sojourn connect`: bytes both ways, a daemon when there is none, an end when either side ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sojourn_client.testing import DaemonProcess

Make = Callable[..., DaemonProcess]
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"capabilities": {}}}


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    """One for all that leave it as it was."""
    with DaemonProcess() as one:
        yield one


@contextmanager
def bridge(daemon: DaemonProcess, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "sojourn", "connect", *arguments],
        env=daemon.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
        process.wait()


def talk(process: subprocess.Popen[bytes], *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Sends header frames and answers the bodies of as many answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    answers = []
    for message in messages:
        body = json.dumps(message).encode()
        process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        process.stdin.flush()
        header = process.stdout.readline()
        while (line := process.stdout.readline()).strip():
            header = line
        answers.append(json.loads(process.stdout.read(int(header.split(b":")[1]))))
    return answers


def test_frames_pass_both_ways_whatever_their_size(daemon: DaemonProcess) -> None:
    create = {"jsonrpc": "2.0", "id": 2, "method": "agent/create", "params": {"agentId": "a"}}
    text = "x" * 3_000_000
    push = {"jsonrpc": "2.0", "id": 3, "method": "inbox/push", "params": {"agentId": "a", "content": text}}
    items = {"jsonrpc": "2.0", "id": 4, "method": "inbox/list", "params": {"agentId": "a"}}
    with bridge(daemon) as process:
        *_, listed = talk(process, HELLO, create, push, items)
        assert listed["result"]["items"][0]["content"][0]["text"] == text


def test_the_end_of_stdin_ends_the_bridge_after_the_last_answer(daemon: DaemonProcess) -> None:
    with bridge(daemon) as process:
        out, err = process.communicate(json.dumps(HELLO).encode() + b"\n", timeout=5)
    assert json.loads(out)["id"] == 1
    assert (process.returncode, err) == (0, b"")


def test_the_end_of_the_daemon_ends_the_bridge(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    with bridge(daemon) as process:
        talk(process, HELLO)
        daemon.kill9()
        assert process.wait(5) == 0


def test_an_editor_that_is_gone_ends_the_bridge(daemon: DaemonProcess) -> None:
    with bridge(daemon) as process:
        talk(process, HELLO)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(5) == 0


def test_two_bridges_at_once_start_one_daemon(make_daemon: Make) -> None:
    daemon = make_daemon()
    with bridge(daemon) as one, bridge(daemon) as other:
        instances = [talk(process, HELLO)[0] for process in (one, other)]
        pid = daemon.detached_pid()
    found = {answer["result"]["capabilities"]["experimental"]["sojourn"]["instanceId"] for answer in instances}
    assert len(found) == 1
    assert pid is not None
    assert (daemon.state_dir / "daemon.log").read_text().count("listens on") == 1


def test_a_stopped_daemon_is_waited_for_not_replaced(daemon: DaemonProcess) -> None:
    daemon.signal(signal.SIGSTOP)
    with bridge(daemon) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(HELLO).encode() + b"\n")
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        daemon.signal(signal.SIGCONT)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["id"] == 1


def test_a_daemon_of_another_version_is_said(daemon: DaemonProcess) -> None:
    about = daemon.state_dir / "daemon.json"
    before = about.read_text()
    about.write_text(json.dumps({**json.loads(before), "version": "0.0.1"}))
    with bridge(daemon) as process:
        _, err = process.communicate(b"", timeout=5)
    about.write_text(before)
    assert b"0.0.1" in err
    assert b"sojourn shutdown" in err


def test_a_daemon_that_cannot_start_is_said(make_daemon: Make) -> None:
    with bridge(make_daemon(config="[nonsense]\n")) as process:
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, b"")
    assert b"nonsense" in err


def test_help_and_the_long_form_of_options(daemon: DaemonProcess) -> None:
    assert "Usage: sojourn connect" in daemon.run("connect", "--help").stdout
    with bridge(daemon, f"--state-dir={daemon.state_dir}", "--socket", str(daemon.socket)) as process:
        assert "result" in talk(process, HELLO)[0]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_the_bridge_is_small(daemon: DaemonProcess) -> None:
    bare = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with bridge(daemon) as process:
        talk(process, HELLO)
        time.sleep(0.2)
        extra = _resident_kib(process.pid) - _resident_kib(bare.pid)
    bare.communicate(b"\n")
    assert extra < 8 * 1024


def _resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
