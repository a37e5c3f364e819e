"""The tests' own client: it must not lose, mix up or wait for ever for what it is there to see."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest
from wire import Wire, WireClosed, WireError, WireTimeout


@pytest.fixture
def ends() -> Iterator[tuple[Wire, socket.socket]]:
    ours, theirs = socket.socketpair()
    with theirs, Wire(ours, timeout=2) as wire:
        yield wire, theirs


def say(sock: socket.socket, *messages: object) -> None:
    sock.sendall(b"".join(json.dumps(m).encode() + b"\n" for m in messages))


def test_answers_find_their_requests_in_any_order(ends: tuple[Wire, socket.socket]) -> None:
    wire, daemon = ends
    one, two = wire.send("a"), wire.send("b", {"x": 1})
    say(daemon, {"id": two, "result": 2}, {"id": one, "error": {"code": -31001, "message": "m", "data": {"kind": "k"}}})
    assert wire.answer(two) == 2
    with pytest.raises(WireError) as refused:
        wire.answer(one)
    assert (refused.value.code, refused.value.kind) == (-31001, "k")
    sent = [json.loads(line) for line in daemon.recv(1000).splitlines()]
    assert sent == [
        {"jsonrpc": "2.0", "id": 1, "method": "a"},
        {"jsonrpc": "2.0", "id": 2, "method": "b", "params": {"x": 1}},
    ]


def test_what_was_not_asked_for_is_kept_until_it_is(ends: tuple[Wire, socket.socket]) -> None:
    wire, daemon = ends
    for type in ("turnStart", "agentEnd"):
        event = {"agentId": "a", "event": {"type": type, "turn": 1}}
        say(daemon, {"method": "agent/event", "params": event})
    say(daemon, {"id": 2**30, "method": "tool/execute", "params": {"name": "t"}})
    assert wire.event("agentEnd")["agentId"] == "a"
    assert [p["event"]["type"] for p in wire.events("a")] == ["turnStart"]
    assert wire.event("turnStart", agent_id="a", turn=1)
    wire.reply(wire.request("tool/execute"), {"content": "done"})
    assert json.loads(daemon.recv(1000)) == {"jsonrpc": "2.0", "id": 2**30, "result": {"content": "done"}}


def test_a_wait_ends_with_what_did_come_and_a_dead_daemon_ends_it_at_once(ends: tuple[Wire, socket.socket]) -> None:
    wire, daemon = ends
    say(daemon, {"method": "agent/changed", "params": {}})
    with pytest.raises(WireTimeout, match="agent/changed"):
        wire.event("agentEnd", timeout=0.05)
    daemon.close()
    with pytest.raises(WireClosed):
        wire.call("server/status")
    assert wire.closed


def test_a_large_request_passes_while_the_daemon_writes_too(ends: tuple[Wire, socket.socket]) -> None:
    wire, daemon = ends
    got: list[int] = []

    def peer() -> None:
        daemon.sendall(json.dumps({"method": "m", "params": {"x": "y" * 3_000_000}}).encode() + b"\n")
        while sum(got) < 3_000_000:
            got.append(len(daemon.recv(1 << 16)))

    thread = threading.Thread(target=peer)
    thread.start()
    wire.notify("big", {"x": "z" * 3_000_000})
    thread.join(5)
    assert not thread.is_alive()
    assert len(wire.notification("m")["x"]) == 3_000_000
