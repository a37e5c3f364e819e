"""Hooks in the real daemon: from a file of the config; a broken one keeps it from starting, a hanging one does not
hold it up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.stage import agent, client, effects, prompt, stored

from sojourn_client.testing import DaemonProcess

GUARD = """
import time

from sojourn.tools.hooks import Replace, Veto


def before_tool(ctx, call):
    ctx.append_entry("seen", {"tool": call.name, "before": len(ctx.entries("seen"))})
    target = call.arguments.get("target")
    if target == "hang":
        time.sleep(30)
    if target == "prod":
        return Veto("Production is off limits.")
    if target == "latest":
        return Replace({"target": "stable"})
"""


SCRIPT = """
rules:
  - when: {tool_result: demo_deploy}
    reply: {text: "It says: {result}"}
  - when: {user: 'deploy ([a-z]+)'}
    reply: {calls: [{name: demo_deploy, arguments: {target: "{1}"}}]}
"""
Make = Callable[..., DaemonProcess]


def test_a_hook_file_guards_the_calls_of_every_agent(make_daemon: Make, tmp_path: Path) -> None:
    world, guard = tmp_path / "world", tmp_path / "guard.py"
    guard.write_text(GUARD)
    config = f"[hooks]\nfiles = ['{guard}']\n[limits]\nhook_wait_s = 0.5\n"
    daemon = make_daemon(config=config, script=SCRIPT, env={"SOJOURN_DEMO_WORLD": str(world)})
    with daemon, client(daemon) as wire:
        agent(wire, "a", approvals={"*": "allow"})
        assert "Production is off limits" in prompt(wire, "a", "deploy prod")["output"]
        assert "Deployed stable" in prompt(wire, "a", "deploy latest")["output"]
        outcome = prompt(wire, "a", "deploy hang")
        assert "took longer than hookWaitS = 0.5 s" in outcome["output"]
        assert [one["target"] for one in effects(world)] == ["stable"]
        warned = [e["event"] for e in stored(wire, "a") if e["event"]["type"] == "warning"]
        assert [one["data"] for one in warned] == [{"hook": "guard", "point": "before_tool"}]
        entries = wire.call("run/entries", {"runId": outcome["runId"], "kind": "seen"})["entries"]
        assert entries == [{"kind": "seen", "turn": 1, "value": {"tool": "demo_deploy", "before": 0}}]
        assert daemon.run("doctor").stdout.count("guard") == 1


def test_a_broken_hook_file_keeps_the_daemon_from_starting_and_doctor_says_so(
    make_daemon: Make, tmp_path: Path
) -> None:
    guard = tmp_path / "guard.py"
    guard.write_text("def before_tool(:\n")
    daemon = make_daemon(config=f"[hooks]\nfiles = ['{guard}']\n")
    with pytest.raises(RuntimeError, match="exit code 1"):
        daemon.start()
    assert str(guard) in daemon.stderr
    assert "Traceback" not in daemon.stderr
    done = daemon.run("doctor")
    assert done.returncode == 1
    assert "SyntaxError" in done.stdout
