"""What a client was told survives `kill -9`: calls that wait, pushes, decisions, requests whose answer was lost."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from e2e.stage import agent, client, conversation, effects, numbered, prompt, stored, story
from wire import Wire

from sojourn_client.testing import DaemonProcess

ODD = {
    "zebra": [9007199254740993, -0.0, 1e-7, 0.1, 1.7976931348623157e308, 18446744073709551615],
    "ångström": {"b": None, "a": True, "": "empty key", "naïve\n\t\"'\\": "\u202e𝕊\u0000…"},
    "1": 1,
    "0": 1.0,
    "alpha": [[], {}, [{}], ""],
}
"""Numbers at the edges of what JSON readers keep, text beyond ASCII, keys in no order."""
ODD_IN_YAML = json.dumps(ODD).replace("1e-07", "1.0e-7")  # YAML reads the short form as text
TARGET = 'the "Größe" – 𝕏 \\ /\u2028'

SCRIPT = f"""
rules:
  - when: {{tool_result: "*", user: '^work'}}
    reply: {{text: "All of it has answered."}}
  - when: {{late_result: "*"}}
    reply: {{text: "Late: {{result}}"}}
  - when: {{user: '^work'}}
    reply:
      calls:
        - {{name: demo_build, arguments: {{target: "a house"}}}}
        - {{name: demo_deploy, arguments: {{target: {json.dumps(TARGET)}}}}}
        - {{name: weigh, arguments: {ODD_IN_YAML}}}
  - when: {{user: '^deploy (.+)$'}}
    reply: {{calls: [{{name: demo_deploy, arguments: {{target: "{{1}}"}}}}]}}
  - when: {{user: '^slowly'}}
    reply: {{text: "one two three four five six seven eight nine ten", delay_ms: 60}}
  - when: {{always: true}}
    reply: {{text: "Heard."}}
"""
WEIGH = {"name": "weigh", "description": "Weighs.", "inputSchema": {"type": "object"}, "approval": "ask"}
names = (f"agent-{number}" for number in count(1))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    world = tmp_path_factory.mktemp("world") / "world"
    with DaemonProcess(script=SCRIPT, env={"SOJOURN_DEMO_WORLD": str(world)}) as daemon:
        yield daemon


def world(daemon: DaemonProcess) -> Path:
    return Path(daemon.env["SOJOURN_DEMO_WORLD"])


def again(daemon: DaemonProcess) -> None:
    daemon.kill9()
    daemon.start()


def text_of(value: Any) -> str:
    """JSON text, in which the order of keys and the kind of numbers show."""
    return json.dumps(value, ensure_ascii=False)


def owed(wire: Wire, agent_id: str) -> tuple[list[Any], list[Any]]:
    calls = wire.call("agent/pendingCalls", {"agentId": agent_id})["pendingCalls"]
    return calls, wire.call("approval/list", {"agentId": agent_id})["approvals"]


def start_work(daemon: DaemonProcess, agent_id: str, on_approval: str) -> tuple[list[Any], list[Any]]:
    """A first client has an agent whose three calls wait: one for its result, two for a decision."""
    with client(daemon, "first", tools={"execute": {}}) as wire:
        agent(wire, agent_id, onApproval=on_approval)
        wire.call("tool/register", {"tools": [WEIGH], "agentId": agent_id})
        prompt(wire, agent_id, "work", wait=False)
        for _ in range(2):
            wire.event("approvalRequested", agent_id=agent_id)
        wire.event("toolExecEnd", agent_id=agent_id, toolName="demo_build")
        if on_approval == "pause":
            wire.event("agentEnd", agent_id=agent_id, reason="paused")
        calls, approvals = owed(wire, agent_id)
    assert [call["toolName"] for call in calls] == ["demo_build"]
    assert [approval["toolName"] for approval in approvals] == ["demo_deploy", "weigh"]
    assert text_of(approvals[1]["args"]) == text_of(ODD)
    return calls, approvals


@pytest.mark.parametrize("on_approval", ["wait", "pause"])
def test_calls_that_wait_outlive_the_daemon_and_run_once(house: DaemonProcess, on_approval: str) -> None:
    a, ran = next(names), len(effects(world(house)))
    calls, approvals = start_work(house, a, on_approval)
    again(house)
    with client(house, "second", tools={"execute": {}}) as wire, client(house, "third") as late:
        assert text_of(owed(wire, a)) == text_of((calls, approvals))
        attached = wire.call("agent/attach", {"agentId": a, "afterSeq": 0})
        assert text_of((attached["pendingCalls"], attached["approvals"])) == text_of((calls, approvals))
        assert attached["agent"]["state"] == ("waiting" if on_approval == "wait" else "paused")
        for approval in approvals:
            decided = wire.call("approval/decide", {"approvalId": approval["approvalId"], "decision": "approve"})
            assert decided["approval"]["decision"]["by"] == "second"
            refused = late.error("approval/decide", {"approvalId": approval["approvalId"], "decision": "deny"})
            assert (refused.code, refused.kind) == (-31004, "alreadyDecided")
            assert {key: refused.data[key] for key in ("decision", "by")} == {"decision": "approve", "by": "second"}
        with client(house, "first", tools={"execute": {}}) as owner:
            weigh = resume_and_weigh(wire, owner, a, on_approval)
        wire.event("agentEnd", agent_id=a, reason="done")
        assert text_of(weigh["arguments"]) == text_of(ODD)
        assert [one["target"] for one in effects(world(house))[ran:]] == [TARGET]
        resolve_the_build(wire, late, a, calls[0]["callId"])
        assert [one["target"] for one in effects(world(house))[ran:]] == [TARGET]


def resume_and_weigh(wire: Wire, owner: Wire, a: str, on_approval: str) -> dict[str, Any]:
    """What the owner of `weigh` is asked to run. Its call may have become pending while it was away."""
    if on_approval == "pause":
        wire.call("agent/resume", {"agentId": a, "wait": False})
    owner.call("tool/register", {"tools": [WEIGH], "agentId": a})
    request = owner.request("tool/execute")
    owner.reply(request, {"content": "heavy"})
    found: dict[str, Any] = request["params"]
    return found


def resolve_the_build(wire: Wire, late: Wire, a: str, call_id: str) -> None:
    wire.call("inbox/resolve", {"agentId": a, "callId": call_id, "content": "It stands."})
    second = late.error("inbox/resolve", {"agentId": a, "callId": call_id, "content": "It fell."})
    assert (second.code, second.data["by"]) == (-31004, "second")
    outcome = wire.call("agent/resume", {"agentId": a})
    assert outcome["reason"] == "done"
    assert ("lateResult", "It stands.") in conversation(wire, a)
    assert "It fell." not in text_of(conversation(wire, a))
    assert wire.call("agent/pendingCalls", {"agentId": a}) == {"pendingCalls": []}
    kinds = [params["event"]["type"] for params in stored(wire, a)]
    assert kinds.count("agentStart") == kinds.count("agentEnd")
    assert numbered(wire, a) is not None


def test_a_pause_tells_both_what_is_pending_and_what_is_undecided(house: DaemonProcess) -> None:
    a = next(names)
    calls, approvals = start_work(house, a, "pause")
    with client(house) as wire:
        (paused,) = [p["event"] for p in stored(wire, a) if p["event"]["type"] == "paused"]
        assert text_of((paused["pending"], paused["approvals"])) == text_of((calls, approvals))
        kinds = story([p["event"] for p in stored(wire, a)])
        assert kinds[-2:] == ["paused", "agentEnd"]


def test_pushes_that_were_acknowledged_are_read_in_order_and_once(house: DaemonProcess) -> None:
    idle, busy = next(names), next(names)
    pushed = ["first", "second", "third"]
    with client(house) as wire:
        agent(wire, idle)
        agent(wire, busy)
        prompt(wire, busy, "slowly", wait=False)
        wire.event("messageDelta", agent_id=busy)
        items = [
            wire.call("inbox/push", {"agentId": a, "content": f"{word} of {a}"})["itemId"]
            for word in pushed
            for a in (idle, busy)
        ]
        house.kill9()
    house.start()
    with client(house, "another") as wire:
        for a, mine in ((idle, items[::2]), (busy, items[1::2])):
            assert [item["itemId"] for item in wire.call("inbox/list", {"agentId": a})["items"]] == mine
            assert wire.call("agent/resume", {"agentId": a})["reason"] == "done"
            users = [said for role, said in conversation(wire, a) if role == "user"]
            assert [said for said in users if said != "slowly"] == [f"{word} of {a}" for word in pushed]
            read = [p["event"] for p in stored(wire, a) if p["event"]["type"] == "inboxRead"]
            assert [(event["itemId"], event["outcome"]) for event in read] == [(item, "delivered") for item in mine]
            assert wire.call("inbox/list", {"agentId": a}) == {"items": []}
        assert wire.error("agent/resume", {"agentId": idle}).code == -31006


def test_a_request_whose_answer_was_lost_is_answered_by_the_same_run(house: DaemonProcess) -> None:
    a = next(names)
    body = {"agentId": a, "content": "slowly", "requestId": "once"}
    with client(house) as wire:
        agent(wire, a)
        wire.send("agent/prompt", body)
        run_id = wire.event("agentStart", agent_id=a)["runId"]
    with client(house) as one, client(house) as two:
        twice = [connection.send("agent/prompt", body) for connection in (one, two)]
        outcomes = [one.answer(twice[0]), two.answer(twice[1])]
        assert outcomes[0] == outcomes[1] == one.call("agent/prompt", body)
        assert (outcomes[0]["runId"], outcomes[0]["reason"]) == (run_id, "done")
        other = one.error("agent/prompt", {**body, "content": "something else"})
        assert (other.code, other.kind) == (-31010, "requestIdReused")
    again(house)
    with client(house) as wire, client(house, "somebody-else") as other_client:
        assert wire.call("agent/prompt", body) == outcomes[0]
        assert wire.error("agent/prompt", {**body, "content": "something else"}).code == -31010
        assert [role for role, _ in conversation(wire, a)] == ["user", "assistant"]
        assert other_client.call("agent/prompt", body)["runId"] != run_id, "request ids belong to a client"


def test_a_request_whose_run_was_killed_is_not_run_again(house: DaemonProcess) -> None:
    a = next(names)
    body = {"agentId": a, "content": "slowly", "requestId": "once, though killed"}
    with client(house) as wire:
        agent(wire, a)
        wire.send("agent/prompt", body)
        run_id = wire.event("messageDelta", agent_id=a)["runId"]
        house.kill9()
    house.start()
    with client(house) as wire:
        outcome = wire.call("agent/prompt", body)
        assert (outcome["runId"], outcome["reason"]) == (run_id, "interrupted")
        finished = wire.call("agent/resume", {"agentId": a})
        assert (finished["runId"], finished["reason"]) == (run_id, "done")
        assert conversation(wire, a) == [
            ("user", "slowly"),
            ("assistant", "one two three four five six seven eight nine ten"),
        ]


def test_every_kind_of_change_is_made_once_for_one_request_id(house: DaemonProcess) -> None:
    a = next(names)
    with client(house) as wire:
        agent(wire, a, onApproval="pause")
        prompt(wire, a, "deploy it")
        (approval,) = wire.call("approval/list", {"agentId": a})["approvals"]
        requests: dict[str, dict[str, Any]] = {
            "agent/create": {"config": {"maxTurns": 3}},
            "agent/update": {"agentId": a, "title": "Titel", "labels": {"x": "y"}},
            "inbox/push": {"agentId": a, "content": "pushed"},
            "approval/decide": {"approvalId": approval["approvalId"], "decision": "approve"},
            "run/create": {"prompt": "by hand"},
        }
        for number, params in enumerate(requests.values()):
            params["requestId"] = f"change-{number}"
        first = {method: wire.call(method, params) for method, params in requests.items()}
        assert {method: wire.call(method, params) for method, params in requests.items()} == first
    again(house)
    with client(house) as wire:
        before = wire.call("server/status")["agents"]
        assert {method: wire.call(method, params) for method, params in requests.items()} == first
        assert wire.call("server/status")["agents"] == before
        assert len(wire.call("inbox/list", {"agentId": a})["items"]) == 1
        assert wire.error("inbox/push", {**requests["inbox/push"], "content": "other"}).code == -31010


@contextlib.contextmanager
def goes_on_without_faults(daemon: DaemonProcess) -> Iterator[Wire]:
    """A client of the next life, when the run of the agent `a` has come to its end by itself."""
    del daemon.env["SOJOURN_FAULT"]
    daemon.start()
    with client(daemon) as wire:
        wire.call("agent/attach", {"agentId": "a", "afterSeq": 0})
        wire.event("agentEnd", agent_id="a", reason="done")
        yield wire


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to end"])
def test_a_run_to_be_resumed_is_though_the_next_daemon_dies_before_it_does(
    make_daemon: Callable[..., DaemonProcess], end: signal.Signals
) -> None:
    daemon = make_daemon(script=SCRIPT).start()
    with client(daemon) as wire:
        agent(wire, "a", onRestart="resume")
        prompt(wire, "a", "slowly", wait=False)
        wire.event("messageStart", agent_id="a", role="assistant")
    daemon.signal(end)
    daemon.wait(timeout_s=10)
    for _ in range(2):
        daemon.env["SOJOURN_FAULT"] = "before:accept"  # the resume is about to be committed
        with contextlib.suppress(RuntimeError):
            daemon.start()
        assert daemon.wait(timeout_s=10) == -signal.SIGKILL
    with goes_on_without_faults(daemon) as wire:
        assert conversation(wire, "a")[-1] == ("assistant", "one two three four five six seven eight nine ten")
        ends = [p["event"]["reason"] for p in stored(wire, "a") if p["event"]["type"] == "agentEnd"]
        assert ends == ["interrupted", "done"]


@pytest.mark.parametrize(
    ("decided", "result"),
    [
        ({"decision": "approve"}, "deployed"),
        ({"decision": "deny"}, "Denied by the reviewer: 'demo_deploy' was not run."),
        ({"decision": "answer", "content": "It stands already."}, "It stands already."),
    ],
    ids=["approve", "deny", "answer"],
)
def test_a_decision_that_nobody_heard_acknowledged_is_carried_out_at_the_next_start(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path, decided: dict[str, Any], result: str
) -> None:
    env = {"SOJOURN_FAULT": "after:decide", "SOJOURN_DEMO_WORLD": str(tmp_path / "world")}
    daemon = make_daemon(script=SCRIPT, env=env).start()
    with client(daemon) as wire:
        agent(wire, "a")
        prompt(wire, "a", "deploy it", wait=False)
        wire.event("approvalRequested", agent_id="a")
        (approval,) = wire.call("approval/list", {"agentId": "a"})["approvals"]
        wire.send("approval/decide", {"approvalId": approval["approvalId"], **decided})
        assert daemon.wait(timeout_s=10) == -signal.SIGKILL
    with goes_on_without_faults(daemon) as wire:
        (said,) = [text for role, text in conversation(wire, "a") if role == "toolResult"]
        assert said.lower().startswith(result.lower())
        assert len(effects(tmp_path / "world")) == (decided["decision"] == "approve")
