"""The daemon with MCP servers: nothing is imported or started before its time, nothing is left behind at its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.stage import agent, client, prompt
from mcp_bench import STUB, gone

from sojourn_client.testing import DaemonProcess

Make = Callable[..., DaemonProcess]
SCRIPT = """
rules:
  - when: {tool_result: "*"}
    reply: {text: "It said {result}."}
  - when: {user: '^use'}
    reply: {calls: [{name: stub__echo, arguments: {text: hello}}]}
  - when: {user: '^wait'}
    reply: {calls: [{name: stub__slow, arguments: {}}, {name: stub__echo, arguments: {text: x}}]}
  - when: {user: '^long'}
    reply: {calls: [{name: stub__job, arguments: {seconds: 2}}]}
  - when: {late_result: "*"}
    reply: {text: "At last: {result}."}
  - when: {always: true}
    reply: {text: "Noted."}
"""


def config(world: Path, *flags: str, **env: str) -> str:
    args = json.dumps(["-S", STUB, *flags])
    given = json.dumps({"WORLD": str(world), **env}).replace('": "', '" = "')
    return f"""
[mcp.servers.stub]
command = {json.dumps(sys.executable)}
args = {args}
env = {given}
approval = "allow"
task_wait_s = 0.2
"""


def pids(world: Path) -> list[int]:
    lines = world.read_text().splitlines() if world.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith(("start", "grandchild"))]


def until(test: Callable[[], Any], *, within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not test():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("flags", [(), ("--stubborn", "--grandchild")], ids=["well-behaved", "stubborn"])
def test_a_daemon_that_is_told_to_end_takes_its_servers_with_it(
    make_daemon: Make, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    world = tmp_path / "world"
    daemon = make_daemon(config=config(world, *flags), script=SCRIPT).start()
    with client(daemon) as wire:
        agent(wire, "a")
        assert not world.exists()
        assert prompt(wire, "a", "use it")["output"] == "It said hello."
        prompt(wire, "a", "wait for it", wait=False)
        wire.event("toolExecEnd", agent_id="a")
        assert not any(gone(pid) for pid in pids(world))
        assert daemon.stop() == 0
    assert len(pids(world)) == 1 + ("--grandchild" in flags)
    until(lambda: all(gone(pid) for pid in pids(world)), within_s=1)


def test_a_daemon_that_is_killed_leaves_no_stubborn_server_either(make_daemon: Make, tmp_path: Path) -> None:
    world = tmp_path / "world"
    daemon = make_daemon(config=config(world, "--stubborn", "--grandchild"), script=SCRIPT).start()
    with client(daemon) as wire:
        agent(wire, "a")
        assert prompt(wire, "a", "use it")["output"] == "It said hello."
        assert len(pids(world)) == 2
        assert not any(gone(pid) for pid in pids(world))
        daemon.kill9()
    until(lambda: all(gone(pid) for pid in pids(world)))


def test_a_daemon_that_is_killed_leaves_no_well_behaved_server_and_fails_the_call_in_the_next_life(
    make_daemon: Make, tmp_path: Path
) -> None:
    world = tmp_path / "world"
    daemon = make_daemon(config=config(world), script=SCRIPT).start()
    with client(daemon) as wire:
        agent(wire, "a")
        prompt(wire, "a", "wait for it", wait=False)
        wire.event("toolExecEnd", agent_id="a")
        daemon.kill9()
    until(lambda: all(gone(pid) for pid in pids(world)))
    daemon.start()
    with client(daemon) as wire:
        outcome = wire.call("agent/resume", {"agentId": "a"})
        assert outcome["output"].startswith("It said ")
        results = [m for m in outcome["messages"] if m["role"] == "toolResult"]
        assert [m["isError"] for m in results] == [True, False]
        assert "may have taken effect" in results[0]["content"][0]["text"]
        assert world.read_text().count("call slow") == 1


def test_a_task_outlives_a_kill_of_the_daemon_when_its_server_keeps_it(make_daemon: Make, tmp_path: Path) -> None:
    world, tasks = tmp_path / "world", tmp_path / "tasks"
    tasks.mkdir()
    daemon = make_daemon(config=config(world, TASKS=str(tasks)), script=SCRIPT).start()
    with client(daemon) as wire:
        agent(wire, "a", onInboxIdle="resume")
        outcome = prompt(wire, "a", "long work")
        assert len(outcome["pendingCalls"]) == 1
        daemon.kill9()
    daemon.start()
    with client(daemon) as wire:
        wire.call("agent/attach", {"agentId": "a", "afterSeq": 0})
        wire.event("toolResolved", agent_id="a")
        wire.wait_until(lambda: wire.events("a")[-1]["event"]["type"] == "agentEnd", "the end")
        messages = wire.call("agent/messages", {"agentId": "a"})["messages"]
        assert [m["role"] for m in messages].count("lateResult") == 1
        assert "result of completed" in str(messages[-1])


def test_a_daemon_that_needs_no_server_imports_no_sdk(make_daemon: Make, tmp_path: Path) -> None:
    daemon = make_daemon(config=config(tmp_path / "world"), script=SCRIPT)
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(*sys.modules, sep='\\n', flush=True))\n"
        "sys.argv = ['sojourn', 'serve']\n"
        "from sojourn.__main__ import main\n"
        "sys.exit(main())"
    )
    env = {key: value for key, value in daemon.env.items() if not key.startswith("COVERAGE_")}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            daemon.wait_ready()
            with client(daemon) as wire:
                agent(wire, "a", tools=["demo_echo"])
                assert prompt(wire, "a", "hello")["output"] == "Noted."
            process.send_signal(signal.SIGTERM)
            modules = process.communicate(timeout=10)[0].split()
        finally:
            process.kill()
    assert "sojourn.tools.mcp.servers" in modules
    assert not {"mcp", "mcp_types", "httpx2", "sojourn.tools.mcp.connection"} & set(modules)
    assert not (tmp_path / "world").exists()
