"""Calls of the Python client: answers, errors, cancelling, lost connections."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from fake_daemon import Connection, FakeDaemon, Refuse, Silent

from sojourn_client import ConnectionLost, DaemonNotRunning, RpcError, connect
from sojourn_client._framing import encode

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
async def _limit() -> Any:
    with anyio.fail_after(15):
        yield


def reach(fake: FakeDaemon, **options: Any) -> Any:
    return connect(socket=fake.socket, state_dir=fake.root, **{"start": False, "reconnect_s": 5, **options})


async def test_the_handshake_says_who_the_client_is_and_what_it_can_do(fake: FakeDaemon) -> None:
    async def decide(_: Any) -> None: ...

    async with reach(fake, client_id="me", on_approval=decide, root="/work"):
        hello = fake.asked("initialize")[0]
    ours = hello["capabilities"]["experimental"]["sojourn"]
    assert ours == {"protocolVersions": [1], "clientId": "me", "tools": {"execute": {}}, "approvals": {"request": {}}}
    assert hello["rootUri"] == "file:///work"
    assert hello["processId"] is None


async def test_an_error_answer_is_raised_with_its_kind_and_data(fake: FakeDaemon) -> None:
    def refuse(_: Connection, __: Any) -> None:
        raise Refuse(-31005, "It is busy.", kind="agentBusy", runId="r")

    fake.handlers["agent/get"] = refuse
    async with reach(fake) as client:
        with pytest.raises(RpcError) as caught:
            await client.call("agent/get", {"agentId": "a"})
    assert (caught.value.code, caught.value.kind, caught.value.data["runId"]) == (-31005, "agentBusy", "r")
    assert caught.value.message == "It is busy."


async def test_nobody_listening_is_an_error_of_its_own(fake: FakeDaemon) -> None:
    await fake.close()
    with pytest.raises(DaemonNotRunning, match="sojourn serve"):
        await reach(fake)


async def test_a_call_that_changes_something_is_sent_again_under_the_same_request_id(fake: FakeDaemon) -> None:
    def break_first(connection: Connection, _: Any) -> Any:
        if len(fake.asked("agent/create")) == 1:
            connection.drop()
            raise Silent
        return {"agentId": "a"}

    fake.handlers["agent/create"] = break_first
    async with reach(fake) as client:
        assert await client.call("agent/create", {}) == {"agentId": "a"}
    first, second = fake.asked("agent/create")
    assert first["requestId"]
    assert first == second


async def test_a_call_that_only_reads_carries_no_request_id(fake: FakeDaemon) -> None:
    fake.handlers["agent/list"] = lambda *_: {"agents": []}
    async with reach(fake) as client:
        await client.call("agent/list")
    assert fake.asked("agent/list") == [{}]


async def test_a_request_id_that_was_given_is_kept(fake: FakeDaemon) -> None:
    fake.handlers["inbox/push"] = lambda *_: {"itemId": "i"}
    async with reach(fake) as client:
        await client.call("inbox/push", {"agentId": "a", "content": "x", "requestId": "mine"})
    assert fake.asked("inbox/push")[0]["requestId"] == "mine"


async def test_a_daemon_that_stays_away_ends_the_call(fake: FakeDaemon) -> None:
    def die(*_: Any) -> None:
        fake.connections[-1].drop()
        fake.socket.unlink()
        raise Silent

    fake.handlers["agent/get"] = die
    async with reach(fake, reconnect_s=0.1) as client:
        with pytest.raises(ConnectionLost, match=r"within 0\.1 s"):
            await client.call("agent/get", {"agentId": "a"})


async def test_a_request_that_breaks_every_connection_is_not_sent_for_ever(fake: FakeDaemon) -> None:
    def die(connection: Connection, _: Any) -> None:
        connection.drop()
        raise Silent

    fake.handlers["agent/get"] = die
    async with reach(fake) as client:
        with pytest.raises(ConnectionLost):
            await client.call("agent/get", {"agentId": "a"})
    assert len(fake.asked("agent/get")) == 10


async def test_an_idle_client_is_back_before_it_is_used_again(fake: FakeDaemon) -> None:
    async with reach(fake) as client:
        fake.client.drop()
        await fake.until(lambda: len(fake.asked("initialize")) == 2)
        fake.handlers["agent/list"] = lambda *_: {"agents": []}
        assert await client.call("agent/list") == {"agents": []}


async def test_cancelling_the_task_cancels_the_request(fake: FakeDaemon) -> None:
    def never(*_: Any) -> None:
        raise Silent

    fake.handlers["agent/prompt"] = never
    async with reach(fake) as client:
        waiting = asyncio.create_task(client.call("agent/prompt", {"agentId": "a", "content": "x"}))
        await fake.until(lambda: fake.asked("agent/prompt"))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await fake.until(lambda: fake.client.notifications[1:])
    assert fake.client.notifications[1] == ("$/cancelRequest", {"id": 2})


async def test_a_closed_client_refuses_to_call(fake: FakeDaemon) -> None:
    async with reach(fake) as client:
        pass
    with pytest.raises(ConnectionLost, match="closed"):
        await client.call("agent/list")


async def test_watching_goes_on_over_a_lost_connection_until_it_is_ended(fake: FakeDaemon) -> None:
    fake.handlers["agent/watch"] = fake.handlers["agent/unwatch"] = lambda *_: None
    async with reach(fake) as client:
        await client.agent.watch()
        fake.client.drop()
        await fake.until(lambda: len(fake.asked("agent/watch")) == 2)
        await client.agent.unwatch()
        fake.client.drop()
        await fake.until(lambda: len(fake.asked("initialize")) == 3)
        await client.call("agent/unwatch")
    assert len(fake.asked("agent/watch")) == 2


async def test_another_version_is_said(fake: FakeDaemon) -> None:
    async with reach(fake) as client:
        assert client.version_mismatch is None
        assert client.instance_id == "i"
    fake.version = "9.9"
    async with reach(fake) as client:
        assert "9.9" in client.version_mismatch
        assert "sojourn shutdown" in client.version_mismatch


async def test_notifications_are_handed_on(fake: FakeDaemon) -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()
    async with reach(fake, on_notification=lambda *what: heard.put_nowait(what)):
        fake.client.send("server/state", state="draining")
        assert await heard.get() == ("server/state", {"state": "draining"})


async def test_typed_calls_take_models_and_answer_models(fake: FakeDaemon) -> None:
    from sojourn.core.agent import AgentConfig
    from sojourn.core.messages import TextPart

    agent = {"agentId": "a", "createdAt": "t", "updatedAt": "t"}
    outcome = {"agentId": "a", "runId": "r", "reason": "done", "firstSeq": 1, "lastSeq": 2}
    fake.handlers["agent/create"] = lambda *_: agent
    fake.handlers["agent/update"] = lambda *_: agent
    fake.handlers["agent/delete"] = lambda *_: None
    fake.handlers["agent/prompt"] = lambda _, params: {"runId": "r"} if params.get("wait") is False else outcome
    async with reach(fake) as client:
        made = await client.agent.create(config=AgentConfig(max_turns=3))
        assert made.agent_id == "a"
        assert (await client.agent.prompt(agent_id="a", content=[TextPart(text="x")])).reason == "done"
        assert (await client.agent.prompt(agent_id="a", content="x", wait=False)).run_id == "r"
        await client.agent.update(agent_id="a", title=None)
        assert await client.agent.delete(agent_id="a") is None
    assert fake.asked("agent/create")[0]["config"] == {"maxTurns": 3}
    assert fake.asked("agent/prompt")[0]["content"] == [{"type": "text", "text": "x"}]
    update = fake.asked("agent/update")[0]
    assert (update["title"], "labels" in update) == (None, False)


async def test_header_frames_work_as_well(fake: FakeDaemon) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(header.split(b":")[1]))
        answer = encode({"jsonrpc": "2.0", "id": 1, "result": {"serverInfo": {"version": "0.1.0"}}}, "headers")
        for at in range(len(answer)):
            writer.write(answer[at : at + 1])
            await writer.drain()
        await reader.read()
        writer.close()

    path = fake.root / "h"
    server = await asyncio.start_unix_server(serve, path)
    async with connect(socket=path, start=False, framing="headers") as client:
        assert client.daemon_version == "0.1.0"
    server.close()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"no json\n", id="no JSON"),
        pytest.param(b"[]\n", id="no message"),
    ],
)
async def test_bytes_that_make_no_sense_end_the_connection(fake: FakeDaemon, data: bytes) -> None:
    async with reach(fake):
        fake.client.write(data)
        await fake.until(lambda: len(fake.asked("initialize")) == 2)


async def test_a_complaint_without_an_id_and_a_stray_answer_are_survived(fake: FakeDaemon) -> None:
    fake.handlers["agent/list"] = lambda *_: {"agents": []}
    async with reach(fake) as client:
        fake.client.write(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}\n')
        fake.client.write(b'{"jsonrpc":"2.0","id":99,"result":1}\n')
        assert await client.call("agent/list") == {"agents": []}
    assert len(fake.asked("initialize")) == 1


async def test_lone_surrogates_reach_the_daemon_escaped(fake: FakeDaemon) -> None:
    fake.handlers["inbox/push"] = lambda *_: {"itemId": "i"}
    async with reach(fake) as client:
        await client.call("inbox/push", {"agentId": "a", "content": "\ud800", "requestId": "1"})
    assert fake.asked("inbox/push")[0]["content"] == "\ud800"
