"""Agents with MCP servers: what the model is offered, what it reads when a server fails, what a restart finds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from house import House, call, house
from mcp_bench import gone, stub

from sojourn.core.agent import Caller
from sojourn.core.errors import AlreadyExists, UnknownTool
from sojourn.tools.mcp import McpServers

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a server takes on a busy machine is no matter, but where it is what a test is about."""
    monkeypatch.setattr("sojourn.tools.mcp.servers.SLOW_S", 600)


def offered(h: House) -> list[list[str]]:
    """What the model was offered, by request."""
    return [[tool.name for tool in request.tools] for request in h.model.requests]


def warnings(h: House) -> list[str]:
    return [event["message"] for event in h.client.events() if event["type"] == "warning"]


async def results(h: House) -> list[tuple[str, bool]]:
    found = [m for m in await h.messages() if m["role"] == "toolResult"]
    return [("".join(p["text"] for p in m["content"]), m["isError"]) for m in found]


async def test_the_first_model_call_is_offered_what_the_servers_have(tmp_path: Path) -> None:
    servers = McpServers({"stub": stub(tmp_path / "world", approval="allow")})
    async with house([call("stub__echo", text="hi")], "done", servers=servers) as h:
        await h.agent(tools=("stub__echo",))
        assert not (tmp_path / "world").exists()
        outcome = await h.prompt()
        assert outcome.output == "done"
        assert offered(h) == [["stub__echo"], ["stub__echo"]]
        assert await results(h) == [("hi", False)]
        assert warnings(h) == []


async def test_a_server_that_fails_is_told_once_and_the_run_goes_on_without_it(tmp_path: Path) -> None:
    servers = McpServers(
        {
            "bad": stub(tmp_path / "world", "--dies"),
            "stub": stub(tmp_path / "world", approval="allow"),
        }
    )
    async with house([call("stub__echo", text="a")], [call("stub__die")], "done", servers=servers) as h:
        await h.agent(tools=("*", "stub__nope"))
        outcome = await h.prompt()
        assert outcome.output == "done"
        assert {name.partition("__")[0] for name in offered(h)[0]} == {"stub"}
        bad, nope = sorted(warnings(h))
        assert "'bad' cannot be used: it ended with exit code 1" in bad
        assert "'stub' has no tool 'stub__nope'" in nope
        (_, (died, is_error)) = await results(h)
        assert is_error
        assert "was lost during the call" in died


async def test_a_server_that_is_slow_to_start_is_told_while_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sojourn.tools.mcp.servers.SLOW_S", 0.2)
    servers = McpServers(
        {
            "slow": stub(tmp_path / "world", "--hangs", start_timeout_s=1.5),
            "stub": stub(tmp_path / "world", approval="allow"),
        }
    )
    await servers.trial("stub")
    async with house("done", "again", servers=servers) as h:
        await h.agent()
        await h.start()
        told = await h.client.until("warning")
        assert h.model.requests == []
        assert (told["code"], told["data"]) == ("toolsStarting", {"server": "slow"})
        assert "'slow' is still starting" in told["message"]
        assert "start_timeout_s (1.5 s)" in told["message"]
        assert (await h.client.until("agentEnd"))["reason"] == "done"
        await h.prompt()  # which does not wait for it again
        codes = [(e["code"], e["data"]["server"]) for e in h.client.events() if e["type"] == "warning"]
        assert codes == [("toolsStarting", "slow"), ("toolsMissing", "slow"), ("toolsMissing", "slow")]
        assert [{name.partition("__")[0] for name in names} for names in offered(h)] == [{"stub"}, {"stub"}]


async def test_tools_that_a_server_adds_are_offered_by_the_next_model_call(tmp_path: Path) -> None:
    servers = McpServers({"stub": stub(tmp_path / "world", approval="allow")})

    async def when_it_is_known(_request: Any) -> Any:
        async with asyncio.timeout(20):
            while not any(tool.info.spec.name == "stub__grown-0" for tool in await servers.listed()):
                await asyncio.sleep(0.01)  # the list is asked for again meanwhile
        return [call("stub__echo", text="x")]

    async with house([call("stub__grow")], when_it_is_known, "done", servers=servers) as h:
        await h.agent()
        await h.prompt()
        first, _between, last = (["stub__grown-0" in names][0] for names in offered(h))
        assert (first, last) == (False, True)  # in between: as soon as the server has answered with its new list


async def test_an_agent_brings_a_server_of_its_own_which_runs_in_its_directory(tmp_path: Path) -> None:
    async with house([call("mine__env")], "done") as h:
        (tmp_path / "here").mkdir()
        mine = stub(tmp_path / "world", approval="allow")
        await h.agent(tools=(), mcp_servers={"mine": mine}, cwd=str(tmp_path / "here"))
        await h.prompt()
        ((text, _),) = await results(h)
        assert f'"CWD":"{tmp_path / "here"}"' in text
        config = (await h.state())["config"]
        assert config["mcpServers"]["mine"]["command"] == mine.command


async def test_a_stop_while_a_server_starts_ends_the_run_at_once(tmp_path: Path) -> None:
    servers = McpServers({"bad": stub(tmp_path / "world", "--hangs")})
    async with house("never", servers=servers) as h:
        await h.agent()
        await h.start()
        await h.client.until("messageStart", count=2)
        async with asyncio.timeout(2):
            await h.hub.stop(Caller(), "a")
            end = await h.client.until("agentEnd")
        assert end["reason"] == "stopped"
        assert h.model.requests == []


async def test_a_call_that_waits_for_a_decision_is_there_after_a_restart_and_runs_when_it_is_made(
    tmp_path: Path,
) -> None:
    def servers() -> McpServers:
        return McpServers({"stub": stub(tmp_path / "world")})

    async with house([call("stub__echo", text="hi")], path=tmp_path / "db", servers=servers()) as h:
        await h.agent()
        await h.start()
        await h.client.until("approvalRequested")
    started = len((tmp_path / "world").read_text().splitlines())
    async with house("done", path=tmp_path / "db", servers=servers()) as h:
        await h.hub.attach(h.client, "a", after_seq=0, deltas=True)
        assert len((tmp_path / "world").read_text().splitlines()) == started, "no server is needed yet"
        (approval,) = await h.approvals()
        await h.decide(approval["approvalId"], "edit", arguments={"text": "edited"})
        await h.client.until("agentEnd")
        assert await results(h) == [("edited", False)]


async def test_the_list_of_tools_shows_servers_tools_with_their_source(tmp_path: Path) -> None:
    servers = McpServers({"stub": stub(tmp_path / "world", approval="deny"), "bad": stub(tmp_path, "--dies")})
    async with house(servers=servers) as h:
        everything = {tool["name"]: tool for tool in (await h.hub.list_tools(None))["tools"]}
        assert everything["stub__echo"]["source"] == "mcp:stub"
        assert everything["stub__echo"]["approval"] == "deny"
        assert everything["stub__echo"]["inputSchema"]["required"] == ["text"]
        await h.agent(tools=("stub__env",))
        assert [tool["name"] for tool in (await h.hub.list_tools("a"))["tools"]] == ["stub__env"]


async def test_a_name_of_no_server_is_refused_and_a_client_cannot_take_a_servers_name(tmp_path: Path) -> None:
    servers = McpServers({"stub": stub(tmp_path / "world")})
    async with house(servers=servers) as h:
        with pytest.raises(UnknownTool, match="other__echo"):
            await h.agent(tools=("other__echo",))
        tool = {"name": "stub__mine", "description": "", "inputSchema": {"type": "object"}}
        with pytest.raises(AlreadyExists, match="belongs to an MCP server"):
            await h.hub.register_tools(Caller(client_id="c"), h.client, [tool], None)


async def test_no_server_process_is_left_when_the_hub_ends_in_the_middle_of_calls(tmp_path: Path) -> None:
    servers = McpServers({"stub": stub(tmp_path / "world", "--stubborn", approval="allow")})
    async with house([call("stub__slow"), call("stub__slow")], servers=servers) as h:
        await h.agent()
        await h.start()
        await h.client.until("toolExecStart", count=2)
    lines = (tmp_path / "world").read_text().splitlines()
    assert all(gone(int(line.split()[1])) for line in lines if line.startswith("start"))
