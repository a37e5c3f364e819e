"""Every program of the scripting guide runs against a real daemon."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sojourn_client.testing import DaemonProcess, daemon, make_daemon

__all__ = ["daemon", "make_daemon"]

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "scripting.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
SHELL = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize(
    ("program", "prints"),
    [
        (PYTHON[0], ["paused ['msg-2-call-1']", "The build you asked for has finished: built in 42 s"]),
        (PYTHON[1], ["client:disks"]),
        (PYTHON[2], ["Transferred."]),
    ],
)
def test_the_python_programs_run(daemon: DaemonProcess, program: str, prints: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=daemon.env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == prints


def test_the_shell_commands_run(daemon: DaemonProcess) -> None:
    env = {**daemon.env, "PATH": f"{Path(sys.executable).parent}:{daemon.env['PATH']}"}

    def run(commands: str) -> str:
        done = subprocess.run(["sh", "-ec", commands], capture_output=True, text=True, timeout=90, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    commands = SHELL[0].splitlines()
    assert '"agentEnd"' in run(commands[0]) or "output" in run(commands[0])
    agent = re.search(r'"agentId":\s*"([^"]+)"', run(commands[1]))
    assert agent
    assert "agentStart" in run(commands[2].replace("AGENT", agent[1]))
    assert "build job" in run(SHELL[1])
    listing, push = SHELL[2].splitlines()
    assert agent[1] in run(listing)
    assert "itemId" in run(push.replace("AGENT", agent[1]))


def test_the_bare_socket_answers_lines(daemon: DaemonProcess) -> None:
    where = daemon.run("socket").stdout.strip()
    lines = [line.strip(" \\'") for line in SHELL[3].splitlines()[1:4]]
    with socket.socket(socket.AF_UNIX) as plain:
        plain.settimeout(30)
        plain.connect(where)
        plain.sendall("".join(f"{line}\n" for line in lines).encode())
        plain.shutdown(socket.SHUT_WR)
        with plain.makefile() as answers:
            found = {message.get("id"): message for message in map(json.loads, answers)}
    assert found[3]["result"]["reason"] == "done", found
    assert found[3]["result"]["output"]


@pytest.mark.skipif(shutil.which("socat") is None, reason="socat is not installed")
def test_the_line_for_a_bare_socket_works_in_a_shell(daemon: DaemonProcess) -> None:
    env = {**daemon.env, "PATH": f"{Path(sys.executable).parent}:{daemon.env['PATH']}"}
    done = subprocess.run(["sh", "-ec", SHELL[3]], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    assert "result" in json.loads(done.stdout.splitlines()[-1])
