"""The Python client against the real daemon: starting it, living through its death, serving it."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from sojourn_client import DaemonStartFailed, RpcError, ToolCall, connect
from sojourn_client.client import Client
from sojourn_client.testing import DaemonProcess

pytestmark = pytest.mark.anyio
Make = Callable[..., DaemonProcess]

STREAM = """
rules:
  - when: {turn: 1}
    reply: {text: "%s", delay_ms: 2, chunk_chars: 3}
  - when: {always: true}
    reply: {text: "again"}
"""
TEXT = " ".join(f"wörd{number}" for number in range(120))
ADDER = """
rules:
  - when: {tool_result: add}
    reply: {text: "The sum is {result}."}
  - when: {always: true}
    reply: {calls: [{name: add, arguments: {x: 19, y: 23}}]}
"""
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}}


@pytest.fixture(autouse=True)
async def _limit() -> Any:
    with anyio.fail_after(60):
        yield


def spoken(events: list[dict[str, Any]]) -> str:
    """What the deltas of the agent's own text parts spell, offset by offset."""
    text = ""
    for event in events:
        if event["type"] == "messageDelta" and event["kind"] == "text":
            assert event["offset"] == len(text)
            text += event["text"]
    return text


async def test_a_client_starts_the_daemon_and_two_at_once_end_with_one(make_daemon: Make) -> None:
    place = make_daemon()
    names = {name: place.env[name] for name in ("SOJOURN_CONFIG", "SOJOURN_STATE_DIR", "SOJOURN_SOCKET")}
    options = {"config": names["SOJOURN_CONFIG"], "state_dir": names["SOJOURN_STATE_DIR"], "socket": place.socket}
    async with connect(**options) as one, connect(**options) as other:
        both = await asyncio.gather(*(client.server.status() for client in (one, other)))
        assert both[0].instance_id == both[1].instance_id == one.instance_id
        await one.server.shutdown(mode="now")
        await other.wait_lost()


async def test_a_daemon_that_cannot_start_says_why(make_daemon: Make) -> None:
    place = make_daemon(config="[nonsense]\n")
    with pytest.raises(DaemonStartFailed, match="nonsense"):
        await connect(config=place.config, state_dir=place.state_dir, socket=place.socket)


async def test_a_stream_cut_again_and_again_is_the_same_as_one_that_was_not(make_daemon: Make) -> None:
    daemon = make_daemon(script=STREAM % TEXT).start()
    dice = random.Random(7)
    async with daemon.connect() as calm, daemon.connect() as shaken:
        await calm.agent.create(agent_id="a")
        whole, pieces, _ = await asyncio.gather(
            _read(calm, lambda _: False), _read(shaken, lambda _: dice.random() < 0.1), _prompt(calm)
        )
    numbered = [[event for seq, event in found if seq is not None] for found in (whole, pieces)]
    assert numbered[0] == numbered[1]
    assert [seq for seq, _ in pieces if seq is not None] == list(range(1, len(numbered[0]) + 1))
    assert spoken([event for _, event in whole]) == TEXT
    # Deltas are for drawing: what was said while the client was away comes whole, in the message's own event.
    assert TEXT.startswith(spoken([event for _, event in pieces]))


async def _read(client: Client, cut: Callable[[Any], bool]) -> list[tuple[int | None, dict[str, Any]]]:
    found = []
    async with client.events("a", after_seq=0) as stream:
        async for item in stream:
            found.append((item.seq, item.event))
            if item.type == "agentEnd":
                return found
            if cut(item) and client._connection is not None:
                client._connection._writer.transport.abort()
    raise AssertionError("the stream ended before the pass")


async def _prompt(client: Client) -> None:
    await client.agent.prompt(agent_id="a", content="go")


async def test_a_prompt_whose_daemon_is_killed_is_answered_after_the_restart(make_daemon: Make) -> None:
    daemon = make_daemon(script=STREAM % TEXT).start()
    async with daemon.connect(client_id="me") as client:
        await client.agent.create(agent_id="a")
        before = client.instance_id
        async with client.events("a", after_seq=0) as stream:
            asking = asyncio.create_task(client.agent.prompt(agent_id="a", content="go", request_id="once"))
            async for item in stream:
                if item.type == "messageDelta":
                    break
            await asyncio.to_thread(daemon.kill9)
            await asyncio.to_thread(daemon.start)
            outcome = await asking
            assert outcome.reason == "interrupted"
            assert client.instance_id != before
            seqs = [stream.seq]
            async for item in stream:
                if item.seq is not None:
                    seqs.append(item.seq)
                if item.type == "agentEnd":
                    break
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
        page = await client.agent.messages(agent_id="a")
        assert [message.role for message in page.messages] == ["user"]
        resumed = await client.agent.resume(agent_id="a")
        assert resumed.reason == "done"


async def test_a_tool_of_the_client_runs_for_an_agent_of_the_daemon(make_daemon: Make) -> None:
    daemon = make_daemon(script=ADDER).start()
    calls: list[ToolCall] = []

    async def add(call: ToolCall) -> str:
        calls.append(call)
        return str(call.arguments["x"] + call.arguments["y"])

    async with daemon.connect(client_id="calculator") as client:
        await client.register_tool("add", add, description="Adds.", input_schema=SCHEMA, approval="allow")
        await client.agent.create(agent_id="a")
        outcome = await client.agent.prompt(agent_id="a", content="add")
        assert outcome.output == "The sum is 42."
        assert [(call.agent_id, call.name) for call in calls] == [("a", "add")]


async def test_an_approval_handler_decides_for_an_agent_it_watches(daemon: DaemonProcess) -> None:
    asked = []

    async def decide(approval: Any) -> str:
        asked.append(approval.args)
        return "approve"

    async with daemon.connect(client_id="boss", on_approval=decide) as client:
        await client.agent.create(agent_id="a", config={"tools": ["demo_deploy"]})
        async with client.events("a"):
            outcome = await client.agent.prompt(agent_id="a", content="deploy the site")
        assert outcome.output == "About the deployment: Deployed site."
    assert asked == [{"target": "site"}]


async def test_cancelling_a_waiting_prompt_stops_its_run(make_daemon: Make) -> None:
    daemon = make_daemon(script=STREAM.replace("delay_ms: 2", "delay_ms: 200") % TEXT).start()
    async with daemon.connect() as client:
        await client.agent.create(agent_id="a")
        async with client.events("a") as stream:
            asking = asyncio.create_task(client.agent.prompt(agent_id="a", content="go"))
            async for item in stream:
                if item.type == "messageDelta":
                    break
            asking.cancel()
            async for item in stream:
                if item.type == "agentEnd":
                    assert item.event["reason"] == "stopped"
                    break
        with pytest.raises(RpcError) as caught:
            await client.agent.resume(agent_id="a")
        assert caught.value.kind == "nothingToResume" or caught.value.code < 0


async def test_tcp_needs_the_token_which_a_local_client_finds(make_daemon: Make) -> None:
    daemon = make_daemon(args=["--tcp", "127.0.0.1:0"]).start()
    address = json.loads((daemon.state_dir / "daemon.json").read_text())["tcp"]
    async with connect(tcp=address, state_dir=daemon.state_dir) as client:
        assert (await client.server.status()).state == "ready"
    with pytest.raises(RpcError) as caught:
        await connect(tcp=address, state_dir=daemon.state_dir, token="x" * 40)
    assert caught.value.kind == "unauthorized"
    with pytest.raises(RpcError):
        await connect(tcp=address, state_dir=daemon.root / "elsewhere")


@pytest.mark.parametrize("address", ["nonsense", "7700", "host:port"])
async def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        connect(tcp=address)


async def test_the_working_directory_of_the_client_is_that_of_its_agents(daemon: DaemonProcess) -> None:
    async with daemon.connect() as client:
        assert (await client.agent.create()).config.cwd == os.getcwd()
