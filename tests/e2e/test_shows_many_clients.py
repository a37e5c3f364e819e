"""Many clients at one daemon: who hears what, in which order, over cut connections, beside readers that stand still."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from e2e.stage import Reader, Tape, agent, client, numbered, prompt, stored

from sojourn_client.testing import DaemonProcess

WORDS = " ".join(f"wörd-{number}" for number in range(60))
LONG = 40_000

CONFIG = """
[limits]
max_client_queue_bytes = 262144

[agents.helper]
tools = []
"""

SCRIPT = f"""
rules:
  - when: {{tool_result: delegate}}
    reply: {{text: "And the helper said: {{result}}", chunk_chars: 3, delay_ms: 1}}
  - when: {{tool_result: "*"}}
    reply: {{text: "The tool said {{result}} and {WORDS}", delay_ms: 2}}
  - when: {{user: '^talk'}}
    reply: {{reasoning: "{WORDS}", text: "{WORDS}", delay_ms: 2}}
  - when: {{user: '^use a tool$'}}
    reply: {{text: "{WORDS}", delay_ms: 2, calls: [{{name: demo_sleep, arguments: {{seconds: 0.02}}}}]}}
  - when: {{user: '^delegate$'}}
    reply: {{text: "{WORDS}", calls: [{{name: delegate, arguments: {{task: "talk", preset: helper}}}}]}}
  - when: {{user: '^flood$'}}
    reply: {{text: "{"0123456789" * (LONG // 10)}", chunk_chars: 20}}
  - when: {{always: true}}
    reply: {{text: "You said: {{user}}"}}
"""
names = (f"agent-{number}" for number in count(1))


@pytest.fixture(scope="module")
def house() -> Iterator[DaemonProcess]:
    with DaemonProcess(config=CONFIG, script=SCRIPT) as daemon:
        yield daemon


def attach(wire: Tape, agent_id: str, after: int) -> int:
    return wire.send("agent/attach", {"agentId": agent_id, "afterSeq": after})


def test_answers_go_to_the_asker_and_events_to_both_in_one_order(house: DaemonProcess) -> None:
    with client(house, "one") as one, client(house, "two") as two:
        a = agent(one, next(names))
        two.call("agent/attach", {"agentId": a, "afterSeq": 0})
        talk, push = one.send("agent/prompt", {"agentId": a, "content": "talk"}), None
        two.event("messageDelta", agent_id=a)
        push = two.send("inbox/push", {"agentId": a, "content": "and from me"})
        outcome = one.answer(talk)
        assert "itemId" in two.answer(push)
        two.wait_until(lambda: len(numbered(two, a)) == outcome["lastSeq"], "all events")
        assert numbered(one, a) == numbered(two, a)
        assert [p["seq"] for p in numbered(one, a)] == list(range(1, outcome["lastSeq"] + 1))
        answers = [[m["id"] for m in wire.tape if "method" not in m] for wire in (one, two)]
        assert [len(ids) for ids in answers] == [one.send("server/status") - 1, two.send("server/status") - 1]


def test_a_client_that_leaves_changes_nothing_and_gets_what_it_missed(house: DaemonProcess) -> None:
    with client(house, "stays") as stays:
        a = agent(stays, next(names))
        with client(house, "leaves") as leaves:
            leaves.call("agent/attach", {"agentId": a, "afterSeq": 0})
            leaves.send("agent/prompt", {"agentId": a, "content": "use a tool"})
            leaves.event("messageDelta", agent_id=a)
            seen = numbered(leaves, a)
        assert stays.event("agentEnd", agent_id=a)["event"]["reason"] == "done"
        outcome = stays.call("agent/wait", {"agentId": a})
        everything = stored(stays, a)
        assert everything[-1]["seq"] == outcome["lastSeq"]
        with client(house, "leaves") as back:
            back.call("agent/attach", {"agentId": a, "afterSeq": seen[-1]["seq"]})
            back.wait_until(lambda: len(numbered(back, a)) == len(everything) - len(seen), "what it missed")
            missed = numbered(back, a)
            assert all(params.pop("replayed") for params in missed)
            assert seen + missed == everything


def test_two_hundred_cut_connections_lose_and_repeat_nothing(house: DaemonProcess) -> None:
    rng = random.Random(20)
    prompts = iter(["talk", "use a tool", "delegate"] * 100)
    cut, uncut = Reader(), Reader()
    with client(house, "uncut") as steady:
        a = next(names)
        steady.call("agent/create", {"agentId": a, "config": {"tools": ["*"]}})
        request = attach(steady, a, 0)
        for _ in range(200):
            with client(house, "cut") as wire:
                read_until_cut(wire, cut, a, rng.random() * 0.03)
            if steady.call("agent/get", {"agentId": a})["state"] == "idle":
                prompt(steady, a, next(prompts), wait=False)
        prompt(steady, a, "talk", ifBusy="queue")
        uncut.play(steady, request)
    with client(house, "cut") as wire:
        last = attach(wire, a, cut.seq)
        wire.wait_until(lambda: reads_up_to(wire, cut, last, uncut.seq), "the rest")
    assert cut.events == uncut.events
    assert uncut.deltas > 500
    assert 0 < cut.deltas < uncut.deltas
    assert all(streamed == final for streamed, final in uncut.streamed())
    assert all(final.startswith(streamed) for streamed, final in cut.streamed())
    assert sum(streamed == final for streamed, final in cut.streamed()) >= 3


def read_until_cut(wire: Tape, reader: Reader, agent_id: str, seconds: float) -> None:
    """Attaches where the reader stands and reads for a while; what arrives behind that is lost with the connection."""
    request = attach(wire, agent_id, reader.seq)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        wire.pump()
    reader.play(wire, request)
    reader.leave()


def reads_up_to(wire: Tape, reader: Reader, request: int, seq: int) -> bool:
    reader.play(wire, request)
    return reader.seq >= seq


def test_clients_that_stand_still_slow_nobody_and_catch_up_later(house: DaemonProcess) -> None:
    floods, stalled_clients = 4, 8
    with ExitStack() as open_ones, client(house, "reads") as reads:
        a = agent(reads, next(names), tools=[])
        calm = time_of(reads, a, floods)
        before = resident(house)
        stalled = [open_ones.enter_context(client(house, f"stalled-{n}")) for n in range(stalled_clients)]
        for wire in stalled:
            wire.call("agent/attach", {"agentId": a})
        seen = stalled[0].call("agent/get", {"agentId": a})["seq"]
        disturbed = time_of(reads, a, floods)
        grown = resident(house) - before
        head = reads.call("agent/get", {"agentId": a})["seq"]
        assert disturbed < 4 * calm + 2
        assert grown < 2 * stalled_clients * 262_144 + 16_000_000, f"{grown} bytes more"
        for wire in stalled:
            catch_up(wire, a, seen, head)


def time_of(wire: Tape, agent_id: str, floods: int) -> float:
    begun = time.monotonic()
    for _ in range(floods):
        assert prompt(wire, agent_id, "flood")["reason"] == "done"
        wire.notifications.clear()
        wire.tape.clear()
    return time.monotonic() - begun


def catch_up(wire: Tape, agent_id: str, seen: int, head: int) -> None:
    """The client reads again: what was queued, the notice, and after attaching anew all the rest."""
    assert wire.call("agent/get", {"agentId": agent_id})["seq"] == head
    assert wire.notification("agent/resync")["agentId"] == agent_id
    reader = Reader()
    reader.seq = seen
    reader.play(wire, -1)
    assert seen < reader.seq < head
    request = attach(wire, agent_id, reader.seq)
    wire.wait_until(lambda: reads_up_to(wire, reader, request, head), "the rest")
    assert reader.events == [params["event"] for params in stored(wire, agent_id, seen, limit=3)]
    assert wire.call("server/status")["state"] == "ready"


def resident(daemon: DaemonProcess) -> int:
    """The daemon's resident bytes."""
    pages = Path(f"/proc/{daemon.pid}/statm")
    if not pages.exists():
        pytest.skip("this system has no /proc")
    return int(pages.read_text().split()[1]) * 4096


def test_a_thousand_agents_of_fifty_clients_are_answered_rightly(house: DaemonProcess) -> None:
    with ExitStack() as open_ones:
        clients = [open_ones.enter_context(client(house, f"crowd-{number}")) for number in range(50)]
        crowd = [(clients[number % 50], f"crowd-{number}") for number in range(1000)]
        created = [(wire, wire.send("agent/create", {"agentId": a, "config": {}})) for wire, a in crowd]
        for wire, request in created:
            assert wire.answer(request, timeout=120)["state"] == "idle"
        requests = [(wire, a, wire.send("agent/prompt", {"agentId": a, "content": a})) for wire, a in crowd]
        for wire, agent_id, request in requests:
            outcome = wire.answer(request, timeout=120)
            assert (outcome["agentId"], outcome["reason"]) == (agent_id, "done")
            assert outcome["output"] == f"You said: {agent_id}"
        listed = [one for one in everybody(clients[0]) if one["agentId"].startswith("crowd-")]
        assert {one["agentId"] for one in listed} == {agent_id for _, agent_id in crowd}
        assert {(one["state"], one["messageCount"]) for one in listed} == {("idle", 2)}
        assert clients[0].call("server/status")["activeRuns"] == 0


def everybody(wire: Tape) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    page: dict[str, str | None] = {}
    while True:
        answer = wire.call("agent/list", {"limit": 200, **page})
        found += answer["agents"]
        if "nextCursor" not in answer:
            return found
        page = {"cursor": answer["nextCursor"]}
