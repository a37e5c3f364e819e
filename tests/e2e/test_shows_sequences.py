"""The four event sequences of long-running work, as a client at a socket sees them, and that an answer comes last."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from e2e.stage import Tape, agent, client, numbered, prompt, shape, stored, story, text
from wire import Wire

from sojourn_client.testing import DaemonProcess

CONFIG = """
[agents.middle]
tools = ["delegate"]

[agents.inner]
tools = []
"""

SCRIPT = """
rules:
  - when: {late_result: demo_build}
    reply: {text: "It is built, as it says: {result}", chunk_chars: 7}
  - when: {tool_result: demo_build}
    reply: {text: "I've started it.", chunk_chars: 4}
  - when: {tool_result: delegate}
    reply: {text: "They said <{result}>.", chunk_chars: 5}
  - when: {user: '^build'}
    reply: {text: "One moment.", calls: [{name: demo_build, arguments: {target: "the çatalogue"}}]}
  - when: {user: '^ask a helper$'}
    reply: {calls: [{name: delegate, arguments: {task: "look it up", preset: inner}}]}
  - when: {user: '^ask a helper to ask another$'}
    reply: {calls: [{name: delegate, arguments: {task: "ask a helper", preset: middle}}]}
  - when: {user: '^look it up$'}
    reply: {text: "found in the third drawer"}
  - when: {always: true}
    reply: {text: "Many words come here, one after the other, until the last of them."}
"""

PROMPT = ["agentStart", "messageStart", "messageEnd"]
MODEL = ["turnStart", "contextBudget", "messageDelta", "generationStats", "messageEnd"]
ROUND = ["toolExecStart", "toolExecEnd", "messageStart", "messageEnd", "turnEnd"]
ANSWER = [*MODEL, "turnEnd"]
END = ["agentEnd"]
names = (f"agent-{number}" for number in count(1))


@pytest.fixture(scope="module")
def house() -> Iterator[DaemonProcess]:
    with DaemonProcess(config=CONFIG, script=SCRIPT) as daemon:
        yield daemon


@pytest.fixture
def wire(house: DaemonProcess) -> Iterator[Tape]:
    with client(house) as connection:
        yield connection


def heard(wire: Wire, agent_id: str) -> list[dict[str, Any]]:
    return [params["event"] for params in wire.events(agent_id)]


def one(events: list[dict[str, Any]], type: str) -> dict[str, Any]:
    (found,) = [event for event in events if event["type"] == type]
    return found


def inside(kinds: list[str]) -> list[str]:
    return [f"nested:{kind}" for kind in kinds]


def test_a_pending_call_with_the_model_answering_around_it(wire: Wire) -> None:
    a = agent(wire, next(names))
    outcome = prompt(wire, a, "build it")
    events = heard(wire, a)
    assert story(events) == [*PROMPT, *MODEL, *ROUND, *ANSWER, *END]
    start, end = one(events, "toolExecStart"), one(events, "toolExecEnd")
    assert start == {
        "type": "toolExecStart",
        "toolCallId": "msg-2-call-1",
        "toolName": "demo_build",
        "args": {"target": "the çatalogue"},
    }
    assert end["result"]["pending"] is True
    assert end["result"]["isError"] is False
    placeholder = text(end["result"]["content"])
    assert "the çatalogue" in placeholder
    results = [e["message"] for e in events if e["type"] == "messageEnd" and e["message"]["role"] == "toolResult"]
    assert [(m["callId"], m["pending"], text(m["content"])) for m in results] == [("msg-2-call-1", True, placeholder)]
    assert outcome["output"] == "I've started it."
    assert [call["callId"] for call in outcome["pendingCalls"]] == ["msg-2-call-1"]
    assert one(events, "agentEnd")["reason"] == "done"


def test_the_same_with_pause_on_pending(wire: Wire) -> None:
    a = agent(wire, next(names), pauseOnPending=True)
    outcome = prompt(wire, a, "build it")
    events = heard(wire, a)
    assert story(events) == [*PROMPT, *MODEL, *ROUND, "paused", *END]
    paused = one(events, "paused")
    assert [(call["callId"], call["toolName"], call["args"]) for call in paused["pending"]] == [
        ("msg-2-call-1", "demo_build", {"target": "the çatalogue"})
    ]
    assert (outcome["reason"], one(events, "agentEnd")["reason"]) == ("paused", "paused")
    assert wire.call("agent/get", {"agentId": a})["state"] == "paused"


@pytest.mark.parametrize("pauses", [False, True], ids=["after an answer", "after a pause"])
def test_resolve_then_resume(wire: Wire, pauses: bool) -> None:
    a = agent(wire, next(names), pauseOnPending=pauses)
    prompt(wire, a, "build it")
    before = len(heard(wire, a))
    wire.call("inbox/resolve", {"agentId": a, "callId": "msg-2-call-1", "content": "Written to out/ночь.csv"})
    outcome = wire.call("agent/resume", {"agentId": a})
    events = heard(wire, a)[before:]
    assert story(events) == ["agentStart", "toolResolved", "messageStart", "messageEnd", *ANSWER, *END]
    assert one(events, "agentStart")["cause"] == "resume"
    resolved = one(events, "toolResolved")
    assert (resolved["toolCallId"], resolved["toolName"]) == ("msg-2-call-1", "demo_build")
    assert text(resolved["result"]["content"]) == "Written to out/ночь.csv"
    said = one(events, "agentEnd")["messages"]
    assert [message["role"] for message in said] == ["lateResult", "assistant"]
    assert outcome["output"] == "It is built, as it says: Written to out/ночь.csv"
    assert outcome["messages"] == said
    assert wire.call("agent/pendingCalls", {"agentId": a}) == {"pendingCalls": []}


def test_a_child_inside_a_tool_call(wire: Wire) -> None:
    a = agent(wire, next(names))
    outcome = prompt(wire, a, "ask a helper")
    events = heard(wire, a)
    child = inside([*PROMPT, *ANSWER, *END])
    assert story(events) == [
        *PROMPT, *MODEL, "toolExecStart", *child, "toolExecEnd", "messageStart", "messageEnd", "turnEnd", *ANSWER, *END,
    ]  # fmt: skip
    assert {event["toolCallId"] for event in events if event["type"] == "nested"} == {"msg-2-call-1"}
    assert text(one(events, "toolExecEnd")["result"]["content"]) == "found in the third drawer"
    assert outcome["output"] == "They said <found in the third drawer>."


def test_a_grandchild_is_wrapped_twice_and_a_replay_tells_the_same(wire: Wire, house: DaemonProcess) -> None:
    a = agent(wire, next(names))
    assert (
        prompt(wire, a, "ask a helper to ask another")["output"]
        == "They said <They said <found in the third drawer>.>."
    )
    events = heard(wire, a)
    grandchild = inside(inside([*PROMPT, *ANSWER, *END]))
    child = inside([*PROMPT, *MODEL, "toolExecStart"]) + grandchild
    child += inside(["toolExecEnd", "messageStart", "messageEnd", "turnEnd", *ANSWER, *END])
    assert story(events) == [
        *PROMPT, *MODEL, "toolExecStart", *child, "toolExecEnd", "messageStart", "messageEnd", "turnEnd", *ANSWER, *END,
    ]  # fmt: skip
    live = numbered(wire, a)
    assert [params["seq"] for params in live] == list(range(1, len(live) + 1))
    assert stored(wire, a) == live
    with client(house, "another") as later:
        head = later.call("agent/attach", {"agentId": a, "afterSeq": 0})["seq"]
        later.wait_until(lambda: len(numbered(later, a)) == head, "the replay")
        replayed = numbered(later, a)
    assert all(params.pop("replayed") for params in replayed)
    assert replayed == live


def test_two_hundred_answers_come_after_all_events_of_their_runs(wire: Wire) -> None:
    agents = [agent(wire, next(names), tools=[]) for _ in range(10)]
    for number in range(200):
        a = agents[number % len(agents)]
        wire.notifications.clear()
        request = wire.send("agent/prompt", {"agentId": a, "content": f"prompt {number}"})
        wire.wait_until(lambda request=request: wire.has_answer(request), "the answer")  # type: ignore[misc]
        here = [note["params"]["event"] for note in wire.notifications if note["method"] == "agent/event"]
        outcome = wire.answer(request)
        assert story(here) == [*PROMPT, *ANSWER, *END]
        assert here[-1] == {"type": "agentEnd", **one(here, "agentEnd"), "reason": "done"}
        numbers = [note["params"]["seq"] for note in wire.notifications if "seq" in note["params"]]
        assert (numbers[0], numbers[-1]) == (outcome["firstSeq"], outcome["lastSeq"])
    wire.notifications.clear()
    wire.call("server/status")
    assert wire.notifications == []


def test_pipelined_prompts_get_their_events_before_their_answers(wire: Tape) -> None:
    agents = [agent(wire, next(names), tools=[]) for _ in range(20)]
    begin = len(wire.tape)
    requests = {wire.send("agent/prompt", {"agentId": a, "content": "go"}): a for a in agents}
    for request, a in requests.items():
        assert wire.answer(request)["agentId"] == a
    wire.call("server/status")
    order = [told(message) for message in wire.tape[begin:]]
    for request, a in requests.items():
        answered = order.index(("answer", str(request)))
        assert order.index(("agentEnd", a)) < answered
        assert a not in [agent_id for _, agent_id in order[answered:]]


def told(message: dict[str, Any]) -> tuple[str, str]:
    if "method" not in message:
        return "answer", str(message["id"])
    return message["params"]["event"]["type"], message["params"]["agentId"]


def test_a_watcher_hears_of_every_agent_that_changes_and_not_once_a_step(house: DaemonProcess) -> None:
    with client(house, "watcher") as watcher, client(house, "worker") as worker:
        assert watcher.call("agent/watch") is None
        a = agent(worker, next(names), tools=[])
        outcome = prompt(worker, a, "go on")
        assert watcher.notification("agent/changed", lambda p: p.get("agent", {}).get("agentId") == a)
        done = watcher.notification(
            "agent/changed",
            lambda p: p["agent"]["agentId"] == a and p["agent"]["seq"] == outcome["lastSeq"],
        )
        assert done["agent"] == worker.call("agent/get", {"agentId": a})
        assert done["agent"]["state"] == "idle"
        heard = [note["params"] for note in watcher.notifications if note["method"] == "agent/changed"]
        assert len(heard) < outcome["lastSeq"]
        worker.call("agent/delete", {"agentId": a})
        watcher.notification("agent/changed", lambda p: p == {"agentId": a, "deleted": True})
        watcher.call("agent/unwatch")
        watcher.notifications.clear()
        prompt(worker, agent(worker, next(names)), "go on")
        watcher.call("server/status")
        assert watcher.notifications == []


def test_shapes_are_told_apart() -> None:
    """The reader of this file itself: what it leaves out, and what not."""
    delta = {"type": "messageDelta"}
    assert story([delta, delta, {"type": "inboxRead"}, {"type": "messageStart", "role": "assistant"}, delta]) == [
        "messageDelta"
    ]
    assert shape({"type": "nested", "event": {"type": "nested", "event": delta}}) == "nested:nested:messageDelta"
