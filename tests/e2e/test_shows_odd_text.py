"""Text that encoders trip over comes in by every door, and is stored, reloaded and shown."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from e2e.stage import agent, client, conversation, prompt, stored
from shared_inputs import shared
from wire import Wire

from sojourn_client.testing import DaemonProcess

ODD = "nul \x00, bell \x07, lines \u2028\u2029\x85, half \udc9d, no character \uffff, mark \ufeff, 𝕏 \u202e"
SCRIPT = """
rules:
  - when: {tool_result: weigh, user: "^work"}
    reply: {text: "Heard."}
  - when: {user: "^work"}
    reply:
      calls:
        - {name: demo_build, arguments: {target: "a house"}}
        - {name: weigh, arguments: {}}
  - when: {always: true}
    reply: {text: "Heard."}
"""
WEIGH = {"name": "weigh", "description": "Weighs.", "inputSchema": {"type": "object"}, "approval": "allow"}
names = (f"agent-{number}" for number in count(1))


def recorded() -> str:
    found: str = json.loads(shared("hazards/inputs/store/st11_entry_with_odd_text.json").read_text())["text"]
    return found


@pytest.mark.parametrize("make", [lambda: ODD, recorded], ids=["our own", "recorded"])
def test_odd_text_by_every_door_is_kept_over_a_kill_and_shown(make: Any) -> None:
    odd = make()
    kept = odd.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    a = next(names)
    with DaemonProcess(script=SCRIPT) as daemon:
        with client(daemon, "odd", tools={"execute": {}}) as wire:
            agent(wire, a)
            wire.call("tool/register", {"tools": [WEIGH], "agentId": a})
            asked = wire.send("agent/prompt", {"agentId": a, "content": f"work {odd}"})
            wire.reply(wire.request("tool/execute"), {"content": odd})
            assert wire.answer(asked)["reason"] == "done"
            push_and_resolve(wire, a, odd)
            daemon.kill9()
        daemon.start()
        with client(daemon, "later") as wire:
            assert wire.call("agent/resume", {"agentId": a})["reason"] == "done"
            said = conversation(wire, a)
            assert [text for role, text in said if role == "toolResult"][1] == kept
            assert ("user", f"work {kept}") in said
            assert ("user", kept) in said
            assert ("lateResult", kept) in said
            assert json.dumps(kept)[1:-1] in json.dumps(stored(wire, a))
            assert prompt(wire, a, "and?")["output"] == "Heard."


def push_and_resolve(wire: Wire, a: str, odd: str) -> None:
    (pending,) = wire.call("agent/pendingCalls", {"agentId": a})["pendingCalls"]
    wire.call("inbox/push", {"agentId": a, "content": odd})
    wire.call("inbox/resolve", {"agentId": a, "callId": pending["callId"], "content": odd})
