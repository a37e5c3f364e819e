"""The examples that ask an agent from a shell, from Python and from node do what they say, against a real daemon."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sojourn_client.testing import DaemonProcess, make_daemon

__all__ = ["make_daemon"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(
    daemon: DaemonProcess, *command: str, typed: str = "", path: str | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    bin_dir = str(Path(sys.executable).parent)
    env = {**daemon.env, "PATH": os.pathsep.join([bin_dir, path or daemon.env["PATH"]])}
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60, env=env, cwd=cwd)


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    """One for all: each program makes its own agent."""
    with DaemonProcess() as one:
        yield one


@pytest.fixture
def shell(daemon: DaemonProcess) -> Callable[..., subprocess.CompletedProcess[str]]:
    if not (shutil.which("socat") or shutil.which("nc")):
        pytest.skip("neither socat nor nc is here")
    return lambda *words, cwd=None: run(daemon, "sh", str(EXAMPLES / "ask.sh"), *words, cwd=cwd)


@pytest.fixture
def node(daemon: DaemonProcess) -> Callable[..., subprocess.CompletedProcess[str]]:
    binary, npm = shutil.which("node"), shutil.which("npm")
    if binary is None or npm is None:
        pytest.skip("there is no node here")
    if not (EXAMPLES / "node_modules").exists():
        install = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--prefix", str(EXAMPLES)]
        if subprocess.run(install, capture_output=True, timeout=120).returncode != 0:
            pytest.skip("npm cannot install vscode-jsonrpc here")
    return lambda *words, **how: run(daemon, binary, str(EXAMPLES / "ask.mjs"), *words, **how)


def python(daemon: DaemonProcess, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return run(daemon, sys.executable, str(EXAMPLES / "ask.py"), *words, typed=typed)


def test_the_shell_script_prints_the_answer(shell: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert shell('Is "a\\b" right?').stdout == 'You said: Is "a\\b" right?\n'


def test_the_shell_script_asks_an_agent_there_is(
    daemon: DaemonProcess, shell: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    daemon.run("call", "agent/create", '{"agentId": "known"}')
    assert shell("hello again", "known").returncode == 0
    assert "hello again" in daemon.run("call", "agent/messages", '{"agentId": "known"}').stdout
    refused = shell("hello", "nobody")
    assert (refused.returncode, refused.stderr) == (1, "There is no agent 'nobody'.\n")


def test_the_shell_script_leaves_what_needs_a_person(shell: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert "is paused" in shell("Please deploy the website").stdout


def test_the_shell_script_starts_a_daemon(make_daemon: Callable[..., DaemonProcess]) -> None:
    if not (shutil.which("socat") or shutil.which("nc")):
        pytest.skip("neither socat nor nc is here")
    stopped = make_daemon()
    assert "You said: ping" in run(stopped, "sh", str(EXAMPLES / "ask.sh"), "ping").stdout


def test_the_shell_script_starts_a_daemon_where_one_was_killed(make_daemon: Callable[..., DaemonProcess]) -> None:
    if not (shutil.which("socat") or shutil.which("nc")):
        pytest.skip("neither socat nor nc is here")
    killed = make_daemon()
    killed.start()
    killed.kill9()
    assert killed.socket.is_socket(), "a killed daemon leaves its socket's file behind"
    assert "You said: ping" in run(killed, "sh", str(EXAMPLES / "ask.sh"), "ping").stdout


@pytest.mark.parametrize("program", ["shell", "node"])
def test_the_agents_of_the_examples_work_where_the_person_is(
    program: str, daemon: DaemonProcess, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    here = tmp_path / 'wörk #1 100% a\\b "quoted"?'
    here.mkdir()
    asked = request.getfixturevalue(program)("hello", cwd=here)
    assert asked.returncode == 0, asked.stderr
    agents = json.loads(daemon.run("call", "agent/list").stdout)["agents"]
    assert [agent["config"]["cwd"] for agent in agents].count(str(here)) == 1


@pytest.mark.parametrize(("typed", "said"), [("y\n", "Deployed website."), ("n\n", "was not run"), ("", "was not run")])
def test_the_python_script_decides_with_the_person(daemon: DaemonProcess, typed: str, said: str) -> None:
    done = python(daemon, "Please build and deploy the website", typed=typed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("I will start the build and ask for the deployment.") == 1
    assert said in done.stdout
    assert "(done)\ndemo_build is still at work" in done.stdout


@pytest.mark.parametrize(("typed", "said"), [("y\n", "Deployed website."), ("n\n", "was not run")])
def test_the_node_script_decides_with_the_person(
    node: Callable[..., subprocess.CompletedProcess[str]], typed: str, said: str
) -> None:
    done = node("Please build and deploy the website", typed=typed)
    assert done.returncode == 0, done.stderr
    assert "I will start the build and ask for the deployment.\n" in done.stdout
    assert said in done.stdout
    assert "(done)\ndemo_build is still at work" in done.stdout


def test_the_node_script_says_what_is_wrong(node: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = node("hello", "nobody")
    assert (done.returncode, done.stderr.strip()) == (1, "There is no agent 'nobody'.")
