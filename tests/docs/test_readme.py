"""The README's session and its Python lines do what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sojourn_client.testing import DaemonProcess, make_daemon

__all__ = ["make_daemon"]

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def session() -> list[str]:
    """The commands of the ten-line session, without their comments."""
    block = re.search(r"```console\n(\$ pip install.*?)```", README, re.DOTALL)
    assert block
    lines = [line[2:] for line in block[1].splitlines() if line.startswith("$ ")]
    return [re.sub(r"\s+#.*", "", line).strip() for line in lines]


def test_the_ten_line_session_loses_nothing(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon().start()

    def run(command: str) -> str:
        words = re.findall(r'"[^"]*"|\S+', command)
        arguments = [word.strip('"').replace("AGENT", agent) for word in words[1:]]
        done = daemon.run(*arguments)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    env = {**daemon.env, "PATH": f"{Path(sys.executable).parent}:{daemon.env['PATH']}"}
    install, prompt, ps, kill, again, resolve, last = session()
    assert install == "pip install ."
    agent = ""
    assert "Started build job 1 of website" in run(prompt)
    agent = run(ps).split()[0]
    subprocess.run(["sh", "-ec", kill], env=env, timeout=30, check=True)
    assert daemon.wait() == -9
    assert again.startswith("sojourn serve --detach &&")
    daemon.start()
    assert "1 pending call" in run(again.partition(" && ")[2])
    run(resolve)
    assert run(last).strip() == "The build you asked for has finished: built in 42 s"


def test_the_python_lines_run(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon().start()
    program = re.search(r"```python\n(import asyncio\n.*?)```", README, re.DOTALL)
    assert program
    done = subprocess.run(
        [sys.executable, "-c", program[1]], capture_output=True, text=True, timeout=60, env=daemon.env
    )
    assert done.returncode == 0, done.stderr
    assert "Started build job 1 of website" in done.stdout
    library = re.search(r"```python\nfrom sojourn import AgentRun\n.*?```", README, re.DOTALL)
    assert library
    namespace: dict[str, object] = {}
    exec(library[0].removeprefix("```python").removesuffix("```"), namespace)  # the README's own code
    assert '"state":"awaiting_model"' in str(namespace["saved"])


@pytest.mark.skipif(shutil.which("nc") is None, reason="nc is not installed")
def test_the_line_for_a_bare_socket_is_answered(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon().start()
    command = re.search(r"```console\n\$ (echo .*?)```", README, re.DOTALL)
    assert command
    env = {**daemon.env, "PATH": f"{Path(sys.executable).parent}:{daemon.env['PATH']}"}
    done = subprocess.run(["sh", "-ec", command[1]], capture_output=True, text=True, timeout=30, env=env)
    if "usage" in done.stderr.lower() or "invalid option" in done.stderr:
        pytest.skip("this nc knows no -N")
    assert '"agents":[]' in done.stdout.splitlines()[-1].replace(" ", "")
