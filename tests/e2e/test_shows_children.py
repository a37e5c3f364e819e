"""Parallel children of one agent in the real daemon, each with approvals; two clients answer them at the same time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.stage import agent, client, effects, prompt, stored, unwrapped

from sojourn_client.testing import DaemonProcess

CONFIG = """
[agents.north]
description = "Deploys in the north."
tools = ["demo_deploy"]
[agents.south]
description = "Deploys in the south."
tools = ["demo_deploy"]
"""
PLACES = ("north", "south")
CHILDREN, EACH = 6, 3


def script() -> str:
    """The leader starts six children at once; each deploys three things and reports what it read."""
    tasks = [(PLACES[number % 2], f"{PLACES[number % 2]}{number}") for number in range(CHILDREN)]
    calls = ", ".join(f"{{name: delegate, arguments: {{task: 'do {name}', preset: {place}}}}}" for place, name in tasks)
    deploys = ", ".join(f"{{name: demo_deploy, arguments: {{target: '{{1}}-{n}'}}}}" for n in range(EACH))
    return f"""
rules:
  - when: {{tool_result: delegate}}
    reply: {{text: "all done"}}
  - when: {{tool_result: demo_deploy, user: 'do ([a-z]+[0-9])'}}
    reply: {{text: "{{1}} is done"}}
  - when: {{user: 'do ([a-z]+[0-9])'}}
    reply: {{calls: [{deploys}]}}
  - when: {{user: 'go'}}
    reply: {{calls: [{calls}]}}
"""


class Approver:
    """A client that decides what concerns its own place, in an order and at a pace of its own; the rest is not its
    business."""

    def __init__(self, daemon: DaemonProcess, place: str, agent_id: str) -> None:
        self.place = place
        self.seen: list[dict[str, Any]] = []
        self.decided: list[str] = []
        self._wire = client(daemon, place, approvals={"request": {}})
        self._wire.call("agent/attach", {"agentId": agent_id})
        self._chance = random.Random(place)
        self.thread = threading.Thread(target=self._run)

    def close(self) -> None:
        """Leaves."""
        self._wire.close()

    def _run(self) -> None:
        own: list[dict[str, Any]] = []
        share = CHILDREN * EACH // 2
        while len(self.decided) < share:
            more = len(self.decided) + len(own) < share
            if more and (not own or self._chance.random() < 0.5):
                asked = self._wire.request("approval/request")
                self.seen.append(asked["params"]["approval"])
                if self.seen[-1]["args"]["target"].startswith(self.place):
                    own.append(asked)
                continue
            asked = own.pop(self._chance.randrange(len(own)))
            target = asked["params"]["approval"]["args"]["target"]
            self._wire.reply(asked, {"decision": "edit", "arguments": {"target": f"{target} by {self.place}"}})
            self.decided.append(target)


def test_parallel_children_with_approvals_answered_by_two_clients_are_never_mixed(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    world = tmp_path / "world"
    daemon = make_daemon(config=CONFIG, script=script(), env={"SOJOURN_DEMO_WORLD": str(world)})
    with daemon, client(daemon, "watcher") as wire:
        agent(wire, "lead", tools=["delegate"])
        approvers = [Approver(daemon, place, "lead") for place in PLACES]
        for one in approvers:
            one.thread.start()
        outcome = prompt(wire, "lead", "go")
        for one in approvers:
            one.thread.join(30)
            assert not one.thread.is_alive()
            one.close()
        assert (outcome["reason"], outcome["output"]) == ("done", "all done")

        wanted = {f"{PLACES[c % 2]}{c}-{n} by {PLACES[c % 2]}" for c in range(CHILDREN) for n in range(EACH)}
        done = effects(world)
        assert {one["target"] for one in done} == wanted
        assert len(done) == len(wanted), "each ran once"

        results = [m for m in outcome["messages"] if m["role"] == "toolResult"]
        names = [f"{PLACES[c % 2]}{c}" for c in range(CHILDREN)]
        assert [m["content"][0]["text"] for m in results] == [f"{name} is done" for name in names]
        call_of = {m["callId"]: name for m, name in zip(results, names, strict=True)}

        spans: dict[str, list[str]] = {}
        for params in stored(wire, "lead"):
            path, event = unwrapped(params["event"])
            if event["type"] in ("approvalRequested", "approvalResolved"):
                approval = event["approval"]
                name = call_of[path[0]]
                assert approval["args"]["target"].startswith(f"{name}-")
                assert approval["path"] == [{"agentId": "lead", "callId": path[0]}]
                if event["type"] == "approvalResolved":
                    assert approval["decision"]["by"] == name[:5], "whose place it is decided"
            top = params["event"]
            if top["type"] in ("toolExecStart", "toolExecEnd", "nested"):
                spans.setdefault(top["toolCallId"], []).append(top["type"])
        for kinds in spans.values():
            assert (kinds[0], kinds[-1]) == ("toolExecStart", "toolExecEnd")
            assert set(kinds[1:-1]) == {"nested"}

        for one in approvers:
            assert len({approval["approvalId"] for approval in one.seen}) == len(one.seen)
        below = wire.call("agent/list", {"parentAgentId": "lead"})["agents"]
        assert sorted(child["config"]["preset"] for child in below) == ["north"] * 3 + ["south"] * 3
        assert {child["state"] for child in below} == {"idle"}
