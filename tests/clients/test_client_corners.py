"""Corners of the Python client: late answers, cancelled questions, daemons that end while they start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import APPROVAL, Connection, FakeDaemon, Silent

from sojourn_client import ConnectionLost, _launch, connect
from sojourn_client._framing import Splitter, encode
from sojourn_client._launch import Place

pytestmark = pytest.mark.anyio


def reach(fake: FakeDaemon, **options: Any) -> Any:
    return connect(socket=fake.socket, state_dir=fake.root, **{"start": False, "reconnect_s": 5, **options})


async def until(fake: FakeDaemon, there: Callable[[], Any]) -> None:
    async with asyncio.timeout(15):
        while not there():
            fake.news.clear()
            await fake.news.wait()


@pytest.mark.parametrize("framing", ["lines", "headers"])
def test_messages_come_out_whole_however_they_are_cut(framing: Any) -> None:
    bodies = [{"n": number, "text": "ä" * number} for number in range(5)]
    data = b"".join(encode(body, framing) for body in bodies)
    expected = Splitter(framing).feed(data)
    assert len(expected) == 5
    for size in (1, 7, 50):
        splitter = Splitter(framing)
        found = [body for at in range(0, len(data), size) for body in splitter.feed(data[at : at + size])]
        assert found == expected


async def test_an_answer_to_a_call_that_was_given_up_is_dropped_and_the_next_one_is_heard(fake: FakeDaemon) -> None:
    held: list[int] = []

    def hold(_connection: Connection, _params: Any) -> Any:
        held.append(len(held))
        raise Silent

    fake.handlers |= {"agent/get": hold, "agent/list": lambda *_: {"agents": []}}
    async with asyncio.timeout(15), reach(fake) as client:
        calling = asyncio.create_task(client.call("agent/get", {"agentId": "a"}))
        await until(fake, lambda: held)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await until(fake, lambda: any(method == "$/cancelRequest" for method, _ in fake.client.notifications))
        params = dict(fake.client.notifications)["$/cancelRequest"]
        fake.client.write(encode({"jsonrpc": "2.0", "id": params["id"], "result": {"late": True}}, "lines"))
        fake.client.write(encode({"jsonrpc": "2.0", "id": 999, "result": None}, "lines"))
        fake.client.write(encode({"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "odd"}}, "lines"))
        assert await client.call("agent/list") == {"agents": []}


async def test_a_call_on_a_client_that_was_closed_says_so(fake: FakeDaemon) -> None:
    client = await reach(fake)
    async with client:
        async with client as same:
            assert same is client
        await client.aclose()
        with pytest.raises(ConnectionLost, match="This client is closed"):
            await client.call("agent/list")
    assert len(fake.asked("initialize")) == 1


async def test_a_question_that_the_daemon_takes_back_is_ended_and_no_other(fake: FakeDaemon) -> None:
    asked: list[str] = []
    ended: list[str] = []
    go = asyncio.Event()

    async def decide(question: Any) -> Any:
        name = str(question.approval_id)
        asked.append(name)
        try:
            await go.wait()
        except asyncio.CancelledError:
            ended.append(name)
            raise
        return {"decision": "approve"}

    async with asyncio.timeout(15), reach(fake, on_approval=decide) as client:
        first, _ = fake.client.start_asking("approval/request", approval={**APPROVAL, "approvalId": "p1"})
        _, answer = fake.client.start_asking("approval/request", approval={**APPROVAL, "approvalId": "p2"})
        while len(asked) < 2:
            await asyncio.sleep(0)
        fake.client.send("$/cancelRequest", id=first)
        fake.client.send("$/cancelRequest", id=12345)
        while not ended:
            await asyncio.sleep(0)
        go.set()
        assert (await answer)["result"]["decision"] == "approve"
        assert ended == ["p1"]
        assert client.version_mismatch is None


@pytest.mark.parametrize(
    ("code", "stderr", "said"),
    [
        (0, "", None),
        (1, "The state directory is locked.\n", "The state directory is locked."),
        (1, "Traceback (most recent call last):\n  File x\nImportError: no module\n", "ImportError: no module"),
        (3, "", "The daemon ended with exit code 3 and said nothing."),
    ],
    ids=["up", "a sentence", "a traceback", "nothing"],
)
def test_a_daemon_that_does_not_come_up_is_told_in_its_own_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, stderr: str, said: str | None
) -> None:
    script = tmp_path / "serve"
    (tmp_path / "said").write_text(stderr)
    script.write_text(f"#!/bin/sh\ncat '{tmp_path}/said' >&2\nexit {code}\n")
    script.chmod(0o700)
    place = Place(state_dir=tmp_path / "state")
    monkeypatch.setattr(type(place), "serve_command", lambda _place: [str(script)])
    assert _launch.start(place, timeout_s=10) == said
