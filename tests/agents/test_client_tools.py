"""Tools that clients register: whose names they are, which connection runs them, calls for one that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from house import House, ToldTool, call, house
from method_calls import Calls, calls_of

from sojourn.core.errors import AgentNotFound, AlreadyExists, Forbidden
from sojourn.core.servers import McpServer
from sojourn.tools.mcp import McpServers

pytestmark = pytest.mark.anyio


def tool(name: str = "lint", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "", "inputSchema": {"type": "object"}, "approval": "allow", **more}


def runs(answer: Any) -> dict[str, Callable[[dict[str, Any]], Any]]:
    return {"tool/execute": lambda _params: answer}


def owner(h: House, answer: Any = None, client_id: str | None = "vim") -> Calls:
    """A connection that runs its client's tools."""
    return calls_of(h, client_id, runs_tools=True, answers=runs(answer or {"content": "2 warnings"}))


async def names(h: House, **params: Any) -> list[str]:
    return [one["name"] for one in (await calls_of(h).ask("tool/list", **params))["tools"]]


async def results(h: House) -> list[str]:
    return [text for role, text in await h.said() if role in ("toolResult", "lateResult")]


async def test_a_registered_tool_is_run_by_its_clients_newest_connection() -> None:
    async with house([call("lint", path="a.py")], "fine", [call("lint")], "fine too") as h:
        old, new = owner(h, {"content": "old"}), owner(h, {"content": "new"})
        await old.ask("tool/register", tools=[tool()])
        await h.agent()
        await h.prompt()
        assert [params["arguments"] for _, params in new.asked] == [{"path": "a.py"}]
        h.hub.client_gone(new)
        await h.prompt("again")
        assert await results(h) == ["new", "old"]


TAKEN = {
    "a built-in tool": ("quick", "The tool name 'quick' is taken by a built-in tool."),
    "another client's": ("lint", "The tool 'lint' is registered by the client 'vim'."),
}


@pytest.mark.parametrize(("name", "words"), TAKEN.values(), ids=TAKEN.keys())
async def test_a_name_that_is_taken_is_refused_and_nothing_of_the_request_is_kept(name: str, words: str) -> None:
    async with house(tools=[ToldTool("quick")]) as h:
        await owner(h).ask("tool/register", tools=[tool()])
        with pytest.raises(AlreadyExists) as caught:
            await owner(h, client_id="emacs").ask("tool/register", tools=[tool("fresh"), tool(name)])
        assert (caught.value.message, caught.value.data["tool"]) == (words, name)
        assert sorted(await names(h)) == ["lint", "quick"]


async def test_two_clients_may_offer_one_name_to_different_agents_but_not_to_the_same() -> None:
    async with house() as h:
        await h.agent("a")
        await h.agent("b")
        vim, emacs = owner(h), owner(h, client_id="emacs")
        await vim.ask("tool/register", tools=[tool()], agentId="a")
        await emacs.ask("tool/register", tools=[tool()], agentId="b")
        with pytest.raises(AlreadyExists, match="registered by the client 'vim'"):
            await emacs.ask("tool/register", tools=[tool()], agentId="a")
        with pytest.raises(AlreadyExists):
            await vim.ask("tool/register", tools=[tool()])
        with pytest.raises(AgentNotFound, match="There is no agent 'nobody'"):
            await vim.ask("tool/register", tools=[tool("other")], agentId="nobody")
        listed = (await calls_of(h).ask("tool/list"))["tools"]
        assert [(one["source"], one["agentId"]) for one in listed] == [("client:vim", "a"), ("client:emacs", "b")]
        assert await names(h, agentId="b") == ["lint"]


async def test_a_client_withdraws_its_own_tools_and_no_others() -> None:
    async with house() as h:
        await h.agent("a")
        await h.agent("b")
        vim, emacs = owner(h), owner(h, client_id="emacs")
        await vim.ask("tool/register", tools=[tool(), tool("check")], agentId="a")
        await emacs.ask("tool/register", tools=[tool()], agentId="b")
        await vim.ask("tool/unregister", names=["lint", "never-registered"])
        assert (await names(h, agentId="a"), await names(h, agentId="b")) == (["check"], ["lint"])


async def test_a_client_without_a_name_has_no_tools() -> None:
    async with house() as h:
        nameless = owner(h, client_id=None)
        for method, params in (("tool/register", {"tools": [tool()]}), ("tool/unregister", {"names": ["lint"]})):
            with pytest.raises(Forbidden, match="needs a client with a name"):
                await nameless.ask(method, **params)
        assert await names(h) == []
        h.hub.client_gone(nameless)


@pytest.mark.parametrize("registered", ["for all", "for the agent"])
async def test_a_call_that_nobody_was_there_for_is_sent_once_when_its_client_is_back(
    tmp_path: Path, registered: str
) -> None:
    async with house([call("lint")], "waits for it", path=tmp_path / "db") as h:
        away = owner(h)
        await h.agent()
        for_whom = {"agentId": "a"} if registered == "for the agent" else {}
        await away.ask("tool/register", tools=[tool()], **for_whom)
        h.hub.client_gone(away)
        await h.prompt()
        assert [one["callId"] for one in await h.pending()] == ["msg-2-call-1"]
    async with house("thank you", path=tmp_path / "db") as h:
        await h.hub.attach(h.client, "a", after_seq=0, deltas=True)
        stranger, back = owner(h, client_id="emacs"), owner(h)
        await back.ask("tool/register", tools=[tool()], **for_whom)
        await h.client.until("inboxQueued")
        second = owner(h)
        await second.ask("tool/register", tools=[tool()], **for_whom)
        assert (len(back.asked), second.asked, stranger.asked) == (1, [], [])
        await h.prompt("go on")
        assert await h.pending() == []
        assert "2 warnings" in (await results(h))[-1]


async def test_a_waiting_call_whose_tool_was_withdrawn_stays_pending() -> None:
    async with house([call("lint")], "waits") as h:
        away = owner(h)
        await h.agent()
        await away.ask("tool/register", tools=[tool()])
        h.hub.client_gone(away)
        await h.prompt()
        back = owner(h)
        await back.ask("tool/unregister", names=["lint"])
        await back.ask("tool/register", tools=[tool("other")])
        assert back.asked == []
        assert [one["callId"] for one in await h.pending()] == ["msg-2-call-1"]
        assert await h.resolve("msg-2-call-1", "by hand")


async def test_a_client_that_leaves_again_before_a_waiting_call_went_out_gets_it_the_next_time() -> None:
    async with house([call("lint")], "waits", "thank you") as h:
        away = owner(h)
        await h.agent()
        await away.ask("tool/register", tools=[tool()])
        h.hub.client_gone(away)
        await h.prompt()
        flighty = owner(h)
        registering = asyncio.create_task(flighty.ask("tool/register", tools=[tool()]))
        spawn = h.hub._toolset.spawn
        assert spawn is not None

        def leave_first(work: Any, name: str) -> Any:
            h.hub.client_gone(flighty)
            return spawn(work, name)

        h.hub._toolset.spawn = leave_first
        await registering
        h.hub._toolset.spawn = spawn
        for task in [task for task in h.hub._tasks if "waiting call" in task.get_name()]:
            await task
        assert flighty.asked == []
        back = owner(h)
        await back.ask("tool/register", tools=[tool()])
        await h.client.until("inboxQueued")
        assert len(back.asked) == 1


async def test_a_name_of_an_mcp_server_is_not_a_clients(tmp_path: Path) -> None:
    servers = McpServers({"files": McpServer(command="never-started")}, notes=tmp_path)
    async with house(servers=servers) as h:
        with pytest.raises(AlreadyExists, match="The tool name 'files__read' belongs to an MCP server of that name"):
            await owner(h).ask("tool/register", tools=[tool("files__read")])
