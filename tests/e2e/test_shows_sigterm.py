"""SIGTERM at random moments of a busy daemon: gone soon, nothing acknowledged lost, everything to be carried on."""

from __future__ import annotations

import random
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from e2e.stage import Tape, agent, client, conversation, prompt, stored, unwrapped
from wire import WireClosed, WireError

from sojourn_client.testing import DaemonProcess

SCRIPT = """
rules:
  - when: {tool_result: "*"}
    reply: {text: "The tool has answered with {result}, and that is what can be said about it.", delay_ms: 15}
  - when: {user: '^talk'}
    reply: {text: "one two three four five six seven eight nine ten eleven twelve", delay_ms: 30}
  - when: {user: '^use'}
    reply:
      text: "a moment"
      calls: [{name: demo_sleep, arguments: {seconds: 0.4}}, {name: demo_echo, arguments: {text: x}}]
  - when: {user: '^delegate'}
    reply: {calls: [{name: delegate, arguments: {task: "talk"}}]}
  - when: {always: true}
    reply: {text: "Noted."}
"""
AGENTS = {"talks": "talk", "uses": "use a tool", "delegates": "delegate"}


@pytest.mark.parametrize(
    "rounds", [pytest.param(4, id="some times"), pytest.param(40, id="many times", marks=pytest.mark.crash)]
)
def test_sigterm_at_any_moment_leaves_runs_that_can_be_carried_on(
    make_daemon: Callable[..., DaemonProcess], rounds: int
) -> None:
    rng = random.Random(rounds)
    daemon = make_daemon(script=SCRIPT).start()
    pushed: list[str] = []
    interrupted = 0
    with client(daemon) as wire:
        for name in AGENTS:
            agent(wire, name)
        agent(wire, "listens")
    for _ in range(rounds):
        end_while_busy(daemon, rng, pushed)
        daemon.start()
        interrupted += carry_on(daemon)
        check_pushes(daemon, pushed)
    assert interrupted >= rounds // 2, "the signal came when nothing was going on"


def end_while_busy(daemon: DaemonProcess, rng: random.Random, pushed: list[str]) -> None:
    with client(daemon) as wire:
        for name, says in AGENTS.items():
            prompt(wire, name, says, wait=False)
        deadline = time.monotonic() + rng.random() * 0.6
        sent: deque[tuple[int, str]] = deque()
        while time.monotonic() < deadline:
            word = f"push {rng.random()}"
            sent.append((wire.send("inbox/push", {"agentId": "listens", "content": word}), word))
            if len(sent) == 8:
                note(wire, *sent.popleft(), pushed)
        daemon.signal(signal.SIGTERM)
        begun = time.monotonic()
        assert daemon.wait(timeout_s=10) == 0
        assert time.monotonic() - begun < 5
        for request, word in sent:
            note(wire, request, word, pushed)


def note(wire: Tape, request: int, word: str, pushed: list[str]) -> None:
    """Notes a push that was acknowledged. One that was refused, or not answered, may have been taken all the same."""
    try:
        wire.answer(request)
    except WireClosed:
        return
    except WireError as refused:
        if refused.kind not in ("draining", "storageError", "requestCancelled"):
            raise
    else:
        pushed.append(word)


def carry_on(daemon: DaemonProcess) -> int:
    """Every run that was interrupted goes on to its end; how many there were."""
    interrupted = 0
    with client(daemon) as wire:
        for name in AGENTS:
            assert passes(stored(wire, name)) == []
            state = wire.call("agent/get", {"agentId": name})["state"]
            assert state in ("idle", "interrupted")
            if state == "interrupted":
                interrupted += 1
                assert wire.call("agent/resume", {"agentId": name})["reason"] == "done"
            events = stored(wire, name)
            assert passes(events) == []
            assert [params["seq"] for params in events] == list(range(1, len(events) + 1))
            assert conversation(wire, name)[-1][0] == "assistant"
        status = wire.call("server/status")
        assert (status["state"], status["activeRuns"]) == ("ready", 0)
    return interrupted


def passes(events: list[dict[str, Any]]) -> list[str]:
    """Beginnings and ends of passes without those that belong together, innermost first: nothing when all is well."""
    left: list[str] = []
    for params in events:
        path, event = unwrapped(params["event"])
        if event["type"] == "agentStart":
            left.append(f"start {path}")
        elif event["type"] == "agentEnd":
            if left[-1:] == [f"start {path}"]:
                left.pop()
            else:
                left.append(f"end {path}")
    return left


def check_pushes(daemon: DaemonProcess, pushed: list[str]) -> None:
    """What was acknowledged is there, in order and once."""
    with client(daemon) as wire:
        items = wire.call("inbox/list", {"agentId": "listens"})["items"]
        waiting = [item["content"][0]["text"] for item in items]
        known = set(pushed)
        assert [word for word in waiting if word in known] == pushed
        assert len(set(waiting)) == len(waiting)
