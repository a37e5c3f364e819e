"""The example package in a real daemon, found as an installed one is: a tool, a pending tool, a child agent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.stage import agent, client, prompt, shape
from shared_inputs import ROOT

from sojourn_client.testing import DaemonProcess

PACKAGE = ROOT / "examples/tool_package"
SCRIPT = """
rules:
  - when: {late_result: measure}
    reply: {text: "Measured: {result}"}
  - when: {tool_result: "*"}
    reply: {text: "I see: {result}"}
  - when: {user: '^how warm'}
    reply: {calls: [{name: temperature, arguments: {city: Oslo}}]}
  - when: {user: '^wrong'}
    reply: {calls: [{name: temperature, arguments: {town: Oslo}}]}
  - when: {user: '^measure'}
    reply: {calls: [{name: measure, arguments: {city: Lisbon, seconds: 0.05}}]}
  - when: {user: '^compare'}
    reply: {calls: [{name: compare, arguments: {cities: [Oslo, Lisbon]}}]}
  - when: {user: '^Which of these'}
    reply: {calls: [{name: temperature, arguments: {city: Lisbon}}]}
  - when: {always: true}
    reply: {text: "Noted."}
"""


@pytest.fixture
def installed(tmp_path: Path) -> str:
    """A PYTHONPATH on which the package is installed: its modules, and what pip writes beside them."""
    info = tmp_path / "weather_station-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weather-station\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sojourn.tools]\nweather_station = weather_station:TOOLS\n")
    return os.pathsep.join([str(tmp_path), str(PACKAGE / "src")])


def test_the_example_package_works_in_a_daemon_as_its_readme_says(
    make_daemon: Callable[..., DaemonProcess], installed: str
) -> None:
    daemon = make_daemon(script=SCRIPT, env={"PYTHONPATH": installed}).start()
    with client(daemon) as wire:
        agent(wire, "a", tools=["temperature", "measure", "compare"], onInboxIdle="resume")
        listed = {tool["name"]: tool["source"] for tool in wire.call("tool/list", {"agentId": "a"})["tools"]}
        assert set(listed.values()) == {"package weather-station"}
        assert prompt(wire, "a", "how warm is it?")["output"] == 'I see: {"celsius":7.5}'
        assert "'town'" in prompt(wire, "a", "wrong argument")["output"]
        assert prompt(wire, "a", "measure there")["pendingCalls"][0]["toolName"] == "measure"
        result = wire.event("toolResolved", agent_id="a")["event"]["result"]
        assert result["content"][0]["text"] == "Mean of 0.05 s in Lisbon: 21.0 °C."
        wire.wait_until(
            lambda: wire.call("agent/get", {"agentId": "a"})["state"] == "idle", "the answer to the measurement"
        )
        compared = prompt(wire, "a", "compare them")
        assert compared["output"] == 'I see: I see: {"celsius":21.0}'
        assert "nested:toolExecEnd" in [shape(params["event"]) for params in wire.events("a")]
