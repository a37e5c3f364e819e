"""What `sojourn doctor` finds before it hurts: names in presets, packages that are new, a place that cannot be made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sojourn_client.testing import DaemonProcess

Make = Callable[..., DaemonProcess]
PRESETS = """
[agents.careful]
tools = ["files", "shell", "raed", "web__fetch", "own__*", "git__*"]
approvals = { "*" = "ask", "shel: rm *" = "deny", "shell: ls *" = "allow", "of_an_editor" = "ask", "demo_*" = "deny" }
mcp_servers.own = { command = "true" }
[agents.free]
tools = ["*"]
approvals = { "grep: pattern=x*" = "allow", "delegate: task=x*" = "allow", "delegate: prompt=x*" = "ask" }
[mcp.servers.web]
command = "true"
enabled = false
"""
NO_ARGUMENT = "a pattern for 'delegate' names one of its arguments ('background', 'preset', 'task'), ARGUMENT=PATTERN"


def findings(daemon: DaemonProcess, *options: str, **env: str) -> list[dict[str, object]]:
    """What is not all right."""
    done = daemon.run("doctor", "--json", *options, env=env)
    return [found for found in map(json.loads, done.stdout.splitlines()) if not found["ok"]]


def test_a_preset_that_names_a_tool_wrongly_is_told(make_daemon: Make) -> None:
    assert [(found["check"], found["message"]) for found in findings(make_daemon(config=PRESETS))] == [
        ("presets", "agents.careful.tools: there is no tool 'raed'; did you mean 'read'?"),
        ("presets", "agents.careful.tools: 'git__*' fits no MCP server; there are: own, web"),
        ("presets", "agents.careful.approvals: there is no tool 'shel'; did you mean 'shell'?"),
        ("presets", f"agents.free.approvals: 'delegate: prompt=x*' fits no call: {NO_ARGUMENT}"),
    ]


def install(place: Path, name: str, module: str) -> None:
    """A package NAME-tools with that one module, as an installer leaves it."""
    (place / f"{name}_tools.py").write_text(module)
    about = place / f"{name}_tools-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-tools\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[sojourn.tools]\n{name} = {name}_tools:TOOLS\n")
    (about / "RECORD").write_text(f"{name}_tools.py,,\n{about.name}/RECORD,,\n{about.name}/METADATA,,\n")


def test_a_broken_package_is_told_once_and_nothing_is_logged(make_daemon: Make, tmp_path: Path) -> None:
    install(tmp_path, "broken", "raise RuntimeError('on purpose')\n")
    done = make_daemon().run("doctor", env={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-3:] == [
        "✗ tools   package broken-tools: Its entry point 'broken' cannot be used: RuntimeError: on purpose",
        "          → Repair or uninstall that package, or set tools.packages = false.",
        "1 to put right.",
    ]


def test_a_package_that_was_installed_since_is_told(make_daemon: Make, tmp_path: Path) -> None:
    daemon = make_daemon().start()
    install(tmp_path, "late", "TOOLS = []\n")
    (found,) = findings(daemon, PYTHONPATH=str(tmp_path))
    assert found["message"] == "the package late-tools was installed after the daemon started"
    assert "sojourn shutdown" in str(found["advice"])
    daemon.stop()
    with make_daemon() as anew:
        assert findings(anew, PYTHONPATH=str(tmp_path)) == []


def test_a_state_directory_that_cannot_be_made_is_told(make_daemon: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    daemon = make_daemon()
    (found,) = findings(daemon, "--state-dir", str(tmp_path / "file" / "below"))
    assert (found["check"], found["message"]) == (
        "state",
        f"{tmp_path}/file/below cannot be made: {tmp_path}/file is no directory",
    )
    assert findings(daemon, "--state-dir", str(tmp_path / "a" / "b")) == []


def test_a_place_that_may_not_be_written_to_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sojourn.cli import doctor

    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    found = doctor._unmade(tmp_path / "a" / "b")
    assert (found.ok, f"{tmp_path} cannot be written to" in found.message) == (False, True)


def test_a_key_that_is_missing_says_how_the_daemon_gets_it(make_daemon: Make) -> None:
    config = '[models.m]\nbackend = "openai-chat"\nmodel = "m"\napi_key_env = "NO_SUCH_KEY"\n'
    done = make_daemon(config=config).run("prompt", "hello", "--new", "--model", "m")
    assert done.returncode == 5
    assert "'NO_SUCH_KEY' holds no key" in done.stderr
    assert "`sojourn shutdown`" in done.stderr
