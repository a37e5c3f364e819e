"""A client that does everything at random: prompts, pushes, answers, decides, resumes, stops, until the daemon dies."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from crash.notebook import Intent, Notebook
from wire import Wire, WireClosed, WireError

TOOLS = ["demo_deploy", "demo_build", "demo_sleep", "demo_fail", "delegate"]
AGENTS: dict[str, dict[str, Any]] = {
    "plain": {"approvals": {"demo_deploy": "allow"}},
    "pausing": {"approvals": {"demo_deploy": "allow"}, "pauseOnPending": True},
    "asking": {"approvals": {"demo_deploy": "ask"}},
    "sleeping": {"approvals": {"demo_deploy": "ask"}, "onApproval": "pause"},
    "eager": {"approvals": {"demo_deploy": "allow"}, "onInboxIdle": "resume", "onRestart": "resume"},
}
VERBS = ("deploy", "chain", "several", "several", "build", "timed", "child", "askchild", "backchild", "talk")
DECISIONS = ["approve"] * 5 + ["deny", "edit", "answer", "abort"]
AT_ONCE = 12
"""Unanswered requests at a time, those that wait for a pass left out."""


class Client:
    """One connection of the one client; `notebook` outlives it."""

    def __init__(self, wire: Wire, notebook: Notebook, rng: random.Random, verbs: Sequence[str] = VERBS) -> None:
        self._wire = wire
        self._notebook = notebook
        self._rng = rng
        self._verbs = verbs
        self._open: dict[int, Intent] = {}

    def enter(self) -> None:
        """Makes the agents, hears everything from now on, and asks again what was never answered."""
        known = {agent["agentId"] for agent in self._wire.call("agent/list")["agents"]}
        for agent_id, config in AGENTS.items():
            if agent_id not in known:
                self._wire.call("agent/create", {"agentId": agent_id, "config": {"tools": TOOLS, **config}})
            self._wire.call("agent/attach", {"agentId": agent_id})
        for intent in self._notebook.intents:
            if intent.open:
                self._send(intent)

    def act(self, actions: int) -> None:
        """Does so many things at random, or as many as the daemon lives to see."""
        try:
            for _ in range(actions):
                self._rng.choice(_ACTIONS)(self)
                self._collect()
        except WireClosed:
            self._collect()

    def last_word(self) -> None:
        """Pushes something and waits for its acknowledgement: the moment after which it may never be lost."""
        try:
            self._push()
            pushed = self._notebook.intents[-1]
            self._wire.wait_until(lambda: self._collect() or not pushed.open, "an answer to inbox/push")
        except WireClosed:
            self._collect()

    def settle(self, limit_s: float = 600, *, still_s: float = 60) -> None:
        """Brings everything to its end: decides, answers and resumes until nobody waits for anything any more. It may
        take long where much was begun, but something must happen."""
        began = moved = time.monotonic()
        heard = 0
        while time.monotonic() < min(began + limit_s, moved + still_s):
            if len(self._notebook.heard) > heard:
                heard, moved = len(self._notebook.heard), time.monotonic()
            busy = [self._decide_all(), self._answer_all(), self._resume_all()]
            self._collect()
            if not any(busy) and not self._open:
                return
            self._breathe()
        states = {agent["agentId"]: agent["state"] for agent in all_agents(self._wire)}
        owed = [(intent.method, intent.params) for intent in self._open.values()]
        raise AssertionError(f"The store does not come to rest: {states}; never answered: {owed}")

    # what it does

    def _prompt(self) -> None:
        if not self._verbs:
            return
        token = self._notebook.token()
        params: dict[str, Any] = {
            "agentId": self._rng.choice(list(AGENTS)),
            "content": f"{self._rng.choice(self._verbs)} {token}",
            "wait": self._rng.random() < 0.2,
        }
        if self._rng.random() < 0.5:
            params["ifBusy"] = "queue"
        self._do("agent/prompt", params, token=token)

    def _push(self) -> None:
        token = self._notebook.token()
        self._do("inbox/push", {"agentId": self._rng.choice(list(AGENTS)), "content": f"note {token}"}, token=token)

    def _answer(self) -> None:
        agent_id = self._rng.choice(list(AGENTS))
        calls = self._wire.call("agent/pendingCalls", {"agentId": agent_id})["pendingCalls"]
        if calls:
            call_id = self._rng.choice(calls)["callId"]
            for _ in range(self._rng.choice([1, 1, 1, 2])):  # sometimes twice: the second must be refused
                self._answer_call(agent_id, call_id)

    def _answer_call(self, agent_id: str, call_id: str) -> None:
        token = self._notebook.token()
        params = {"agentId": agent_id, "callId": call_id}
        if self._rng.random() < 0.7:
            self._do("inbox/resolve", {**params, "content": f"built {token}"}, token=token)
        else:
            self._do("inbox/reject", {**params, "error": f"failed {token}"}, token=token)

    def _decide(self) -> None:
        approvals = self._wire.call("approval/list")["approvals"]
        if approvals:
            approval = self._rng.choice(approvals)
            for _ in range(self._rng.choice([1, 1, 2])):
                self._decide_one(approval, self._rng.choice(DECISIONS))

    def _decide_one(self, approval: dict[str, Any], decision: str) -> None:
        params: dict[str, Any] = {"approvalId": approval["approvalId"], "decision": decision}
        token = None
        if decision == "edit":
            params["arguments"] = {"target": f"{self._notebook.token()}-edited"}
        elif decision == "answer":
            token = self._notebook.token()
            params["content"] = f"answered {token}"
        self._do("approval/decide", params, token=token)

    def _resume(self) -> None:
        self._do("agent/resume", {"agentId": self._rng.choice(list(AGENTS)), "wait": self._rng.random() < 0.2})

    def _stop(self) -> None:
        self._do("agent/stop", {"agentId": self._rng.choice(list(AGENTS))})

    def _breathe(self) -> None:
        time.sleep(self._rng.random() * 0.02)
        self._wire.pump()

    # bringing things to an end

    def _decide_all(self) -> bool:
        approvals = self._wire.call("approval/list")["approvals"]
        for approval in approvals:
            self._decide_one(approval, "approve")
        return bool(approvals)

    def _answer_all(self) -> bool:
        found = False
        for agent in all_agents(self._wire):
            for call in self._wire.call("agent/pendingCalls", {"agentId": agent["agentId"]})["pendingCalls"]:
                found = True
                if not call["answered"]:
                    self._answer_call(agent["agentId"], call["callId"])
        return found

    def _resume_all(self) -> bool:
        busy = False
        for agent in all_agents(self._wire):
            if agent["state"] in ("running", "waiting"):
                busy = True
            elif agent["state"] != "idle" or agent["inbox"]:
                busy = True
                intent = self._do("agent/resume", {"agentId": agent["agentId"], "wait": False})
                self._wire.wait_until(lambda i=intent: self._collect() or not i.open, "an answer to agent/resume")
        return busy

    # asking

    def _do(self, method: str, params: dict[str, Any], *, token: str | None = None) -> Intent:
        intent = self._notebook.intend(method, params, token=token)
        self._send(intent)
        return intent

    def _send(self, intent: Intent) -> None:
        self._open[self._wire.send(intent.method, intent.params)] = intent
        if self._at_once() >= AT_ONCE:
            self._wire.wait_until(lambda: self._collect() or self._at_once() < AT_ONCE, "an answer")

    def _at_once(self) -> int:
        return sum(not intent.params.get("wait", intent.method in _WAITING) for intent in self._open.values())

    def _collect(self) -> bool:
        """Notes every answer and event that has arrived. False, so that it can stand in a condition."""
        self._wire.pump()
        for id in [id for id in self._open if self._wire.has_answer(id)]:
            intent = self._open.pop(id)
            try:
                answer = self._wire.answer(id)
                intent.answer = answer if isinstance(answer, dict) else {}
            except WireError as refused:
                intent.refused = refused.code
                if refused.code not in _REFUSALS:
                    raise
        for message in self._wire.notifications:
            if message["method"] == "agent/event":
                self._notebook.hear(message["params"])
        self._wire.notifications.clear()
        return False


def pages(wire: Wire, method: str, params: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    """All items of a paged method."""
    cursor: dict[str, Any] = {}
    while True:
        answer = wire.call(method, {**params, **cursor})
        yield from answer[key]
        if answer.get("nextCursor") is None:
            return
        cursor = {"cursor": answer["nextCursor"]}


def all_agents(wire: Wire) -> list[dict[str, Any]]:
    """All agents, parents before their children."""
    found = list(pages(wire, "agent/list", {}, "agents"))
    for agent in found:
        found += pages(wire, "agent/list", {"parentAgentId": agent["agentId"]}, "agents")
    return found


_WAITING = ("agent/prompt", "agent/resume")
_REFUSALS = {
    -31003: "a call that is not pending any more",
    -31004: "somebody was first",
    -31005: "the agent is busy",
    -31006: "there is nothing to resume",
}
_ACTIONS: list[Callable[[Client], None]] = [
    *[Client._prompt] * 6,
    *[Client._push] * 3,
    *[Client._answer] * 3,
    *[Client._decide] * 4,
    *[Client._resume] * 3,
    Client._stop,
    *[Client._breathe] * 8,
]
