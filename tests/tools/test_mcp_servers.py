"""MCP servers by a stub that misbehaves as told: a process, the SDK's session, the daemon's tools."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp_bench import EVERYTHING, STUB, Bench, bench, gone, stub
from tool_fakes import FakeHost

from sojourn.core.agent import AgentConfig
from sojourn.core.messages import ImagePart, ResourcePart, text_of
from sojourn.core.servers import McpServer
from sojourn.tools.mcp import McpServers
from sojourn.tools.mcp import process as mcp_process
from sojourn.tools.mcp import server as mcp_server

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return tmp_path / "world"


async def test_a_server_is_started_by_its_first_need_once_for_all_and_ended_with_the_rest(world: Path) -> None:
    async with bench(world) as b:
        assert b.happened("start") == []
        tools = await asyncio.gather(b.tools(), b.tools(), b.tools())
        assert "stub__echo" in tools[0]
        assert text_of((await b.call("stub__echo", text="hi")).content) == "hi"
        (started,) = b.happened("start")
    assert gone(int(started.split()[1]))


async def test_every_page_of_a_list_is_read(world: Path) -> None:
    async with bench(world, "--pages") as b:
        tools = await b.tools()
        assert len(tools) == 15
        assert len(b.happened("list")) == 5


BAD = {
    "long" * 200: "has more than 500 characters",
    "wordy": "its description is no text",
    "task-only": "it runs as a task only",
    "no-object": "is no object",
    "array": "does not have the type 'object'",
    "not-a-schema": "is no JSON Schema",
    "bad-pattern": "is no JSON Schema",
    "elsewhere": "outside of it",
    "huge": "has more than 262144 bytes",
    "echo": "listed twice",
}


async def test_a_tool_with_a_schema_that_cannot_be_used_costs_only_itself(world: Path) -> None:
    async with bench(world, "--bad-schemas") as b:
        names, problems = await b.servers.trial("stub")
        for tool, why in BAD.items():
            assert any(repr(tool[:100]) in problem.message and why in problem.message for problem in problems), tool
        assert "One of its tools is left out: it has no name." in [problem.message for problem in problems]
        assert {"stub__echo", "stub__untyped"} <= set(names)
        assert not {f"stub__{name}" for name in BAD} - {"stub__echo"} & set(names)
        assert text_of((await b.call("stub__echo", text="still")).content) == "still"


async def test_parts_of_every_kind_arrive_and_what_no_model_takes_is_named(world: Path) -> None:
    async with bench(world) as b:
        output = await b.call("stub__parts")
    assert output.is_error
    texts = [part.text for part in output.content if part.type == "text"]
    assert texts == ["a \ufffd b", "[audio, audio/wav, 6 bytes; it cannot be shown here]", "x - the x", '{"n":1}']
    assert [part for part in output.content if isinstance(part, ImagePart)] == [
        ImagePart(mime_type="image/png", data="AAAA"),
        ImagePart(mime_type="image/png", data="BBBB"),
    ]
    assert [part for part in output.content if isinstance(part, ResourcePart)] == [
        ResourcePart(uri="file:///x"),
        ResourcePart(uri="a:b", mime_type="text/plain", text="inside"),
        ResourcePart(uri="a:d", mime_type="a/b", text="[3 bytes that are no text; they cannot be shown here]"),
    ]


async def test_progress_is_told(world: Path) -> None:
    async with bench(world) as b:
        assert text_of((await b.call("stub__progress")).content) == "stepped"
        assert b.host.progress == [("step 1", 0.5), ("step 2", 1.0)]


async def test_a_server_that_dies_in_a_call_says_so_and_is_started_anew_by_the_next(world: Path) -> None:
    async with bench(world) as b:
        died = text_of((await b.call("stub__die")).content)
        assert died == (
            "The MCP server 'stub' was lost during the call, which may have taken effect: "
            "it ended with exit code 3; its last words: 'my last words'."
        )
        assert text_of((await b.call("stub__echo", text="again")).content) == "again"
        assert len(b.happened("start")) == 2


async def test_a_server_that_keeps_dying_is_given_a_pause(world: Path) -> None:
    async with bench(world) as b:
        await b.call("stub__die")
        await b.call("stub__die")
        refused = await b.call("stub__echo", text="x")
        assert "nothing was called: it ended with exit code 3" in text_of(refused.content)
        assert "it is tried again in 2 s" in text_of(refused.content)
        assert len(b.happened("start")) == 2


async def test_a_call_that_is_cancelled_is_cancelled_at_the_server(world: Path) -> None:
    async with bench(world) as b:
        tools = await b.tools()
        call = asyncio.create_task(tools["stub__slow"].execute({}, b.host.context()))
        await b.until(lambda: b.happened("call slow"))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await b.until(lambda: b.happened("cancelled"))
        assert text_of((await b.call("stub__echo", text="fine")).content) == "fine"


async def test_a_call_over_its_time_limit_is_an_error_and_its_late_answer_is_dropped(world: Path) -> None:
    async with bench(world, call_timeout_s=0.5) as b:
        await b.tools()
        output = await b.call("stub__late", seconds=0.8)
        assert output.is_error
        assert "did not answer within call_timeout_s (0.5 s)" in text_of(output.content)
        await b.until(lambda: b.happened("cancelled"))
        await asyncio.sleep(0.4)  # the late answer comes
        assert text_of((await b.call("stub__echo", text="fine")).content) == "fine"


async def test_what_is_no_message_on_stdout_is_skipped(world: Path) -> None:
    async with bench(world, "--banner") as b:
        assert text_of((await b.call("stub__garbage")).content) == "after garbage"


ANSWERS = [
    ("refuse", "answered with an error: I will not (-32099)."),
    ("malformed", "its answer is malformed (content: Input should be a valid list); the call may have taken effect."),
]


@pytest.mark.parametrize(("tool", "said"), ANSWERS, ids=[case[0] for case in ANSWERS])
async def test_an_answer_that_is_no_result_is_an_error_that_the_model_reads(world: Path, tool: str, said: str) -> None:
    async with bench(world) as b:
        output = await b.call(f"stub__{tool}")
        assert output.is_error
        assert said in text_of(output.content)


async def test_a_flood_of_notifications_is_slowed_down_and_the_loop_stays_free(world: Path) -> None:
    async with bench(world) as b:
        await b.tools()
        loop = asyncio.get_running_loop()
        call = asyncio.create_task(b.call("stub__flood", count=4_000))
        lags = []
        while not call.done():
            before = loop.time()
            await asyncio.sleep(0.01)
            lags.append(loop.time() - before - 0.01)
        assert text_of((await call).content) == "after the flood"
        assert max(lags) < 0.5
        assert len(b.host.progress) <= 100


async def test_a_flood_of_garbage_ends_the_server(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_process, "GARBAGE_LINES", 1_000)
    async with bench(world) as b:
        output = await b.call("stub__flood", count=3_000, garbage=True)
        assert "1000 lines in a row on its stdout were no messages" in text_of(output.content)


async def test_a_message_over_the_limit_ends_the_connection_with_its_size(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_process, "MAX_MESSAGE_BYTES", 100_000)
    async with bench(world) as b:
        assert len(text_of((await b.call("stub__big", bytes=90_000)).content)) == 90_000
        output = await b.call("stub__big", bytes=200_000)
        assert "it sent a message of more than 100000 bytes" in text_of(output.content)
        assert text_of((await b.call("stub__echo", text="again")).content) == "again"


async def test_a_flood_on_stderr_blocks_nothing_and_fills_no_log(world: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with bench(world) as b:
        assert text_of((await b.call("stub__shout", lines=20_000)).content) == "shouted"
        said = [record.getMessage() for record in caplog.records if "red" in record.getMessage()]
        assert 0 < len(said) <= 2 * mcp_process.LOG_LINES
        assert not any("\x1b" in line for line in said)


async def test_a_server_sees_no_variable_that_was_not_meant_for_it(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("FOR_IT", "given")
    async with bench(world, env={"OWN": "1"}, pass_env=("FOR_IT", "NOT_SET")) as b:
        said = text_of((await b.call("stub__env")).content)
    assert "sk-secret" not in said
    assert '"FOR_IT":"given"' in said
    assert '"OWN":"1"' in said
    assert "NOT_SET" not in said


async def test_tools_that_a_server_adds_are_there_at_the_next_look(world: Path) -> None:
    async with bench(world) as b:
        assert "stub__grown-0" not in await b.tools()
        await b.call("stub__grow", times=500)
        while "stub__grown-0" not in await b.tools():
            await asyncio.sleep(0.01)
        assert (await b.call("stub__grown-0")).is_error
        assert len(b.happened("list")) <= 4


async def test_a_server_that_asks_for_something_is_told_that_there_is_nobody(world: Path) -> None:
    async with bench(world) as b:
        assert text_of((await b.call("stub__ask")).content) == "asked"


async def test_a_server_that_knows_only_the_newer_protocol_is_asked_in_that(world: Path) -> None:
    async with bench(world, "--modern") as b:
        assert text_of((await b.call("stub__echo", text="new")).content) == "new"
        output = await b.call("stub__ask")
        assert output.is_error
        assert "wants to be told something by a person first" in text_of(output.content)


STARTS: list[tuple[str, McpServer, str]] = [
    ("missing", McpServer(command="/nowhere/x"), "'/nowhere/x' cannot be started: No such file or directory"),
    ("cwd", McpServer(command=sys.executable, cwd="/nowhere"), "No such file or directory ('/nowhere')"),
    ("dies", McpServer(command=sys.executable, args=("-S", STUB, "--dies")), "exit code 1; its last words: 'I cannot"),
    ("true", McpServer(command="true"), "it ended with exit code 0"),
    ("cat", McpServer(command="cat"), "it answered with an error: Method not found"),
    (
        "hangs",
        McpServer(command=sys.executable, args=("-S", STUB, "--hangs"), start_timeout_s=0.3),
        "was not ready within start_timeout_s (0.3 s)",
    ),
    ("list", McpServer(command=sys.executable, args=("-S", STUB, "--no-list")), "has no list of tools"),
    ("no-http", McpServer(url="http://127.0.0.1:9/mcp", start_timeout_s=3), "cannot be used"),
    ("token", McpServer(url="http://127.0.0.1:9/mcp", bearer_token_env="NOT_SET_"), "'NOT_SET_' is not set"),
]


@pytest.mark.parametrize(("config", "said"), [case[1:] for case in STARTS], ids=[case[0] for case in STARTS])
async def test_a_server_that_does_not_start_says_why_and_costs_only_its_tools(
    world: Path, config: McpServer, said: str
) -> None:
    servers = McpServers({"bad": config, "stub": stub(world)})
    b = Bench(servers, world)
    try:
        problems = await b.problems()
        assert [problem.server for problem in problems] == ["bad"]
        assert said in problems[0].message
        assert {name.partition("__")[0] for name in await b.tools()} == {"stub"}
        used = servers.split(EVERYTHING)[1]
        stubbed = servers.tools_of(used, EVERYTHING, also=("bad__thing",))["bad__thing"]
        output = await stubbed.execute({}, b.host.context())
        assert output.is_error
        assert "cannot be used, nothing was called" in text_of(output.content)
    finally:
        await servers.aclose()


async def test_a_server_that_failed_holds_nobody_up_a_second_time(world: Path) -> None:
    servers = McpServers({"bad": stub(world, "--hangs", start_timeout_s=0.3)})
    b = Bench(servers, world)
    await b.problems()
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(5):
        (problem,) = await b.problems()
        assert "was not ready" in problem.message
    assert loop.time() - began < 0.2
    await servers.aclose()


async def test_a_stubborn_server_and_what_it_started_are_gone_after_the_end(world: Path) -> None:
    async with bench(world, "--stubborn", "--grandchild") as b:
        await b.tools()
        pids = [int(line.split()[1]) for line in b.happened("start") + b.happened("grandchild")]
        assert len(pids) == 2
        assert not any(gone(pid) for pid in pids)
    await b.until(lambda: all(gone(pid) for pid in pids))


async def test_the_end_comes_also_while_a_server_starts_and_refuses_what_comes_after(world: Path) -> None:
    servers = McpServers({"bad": stub(world, "--hangs")})
    used = servers.split(EVERYTHING)[1]
    waiting = asyncio.create_task(servers.ready(used, EVERYTHING))
    await asyncio.sleep(0.3)
    async with asyncio.timeout(3):
        await servers.aclose()
        (problem,) = await waiting
    assert "ended with the daemon" in problem.message
    output = await used["bad"].tool("bad__x").execute({}, FakeHost().context())
    assert "ended with the daemon" in text_of(output.content)


async def test_an_idle_server_is_ended_and_comes_back_when_needed(world: Path) -> None:
    async with bench(world, idle_timeout_s=0.2) as b:
        await b.tools()
        pid = int(b.happened("start")[0].split()[1])
        await b.until(lambda: gone(pid))
        assert "stub__echo" in await b.tools()
        assert text_of((await b.call("stub__echo", text="back")).content) == "back"
        assert len(b.happened("start")) == 2


async def test_a_tool_that_went_away_is_an_error_that_names_the_others(world: Path) -> None:
    async with bench(world) as b:
        await b.tools()
        tool = b.servers.split(EVERYTHING)[1]["stub"].tool("stub__nothing")
        output = await tool.execute({}, b.host.context())
        assert "has no tool 'stub__nothing', nothing was called. Its tools: stub__ask" in text_of(output.content)


SELECTIONS: list[tuple[AgentConfig, tuple[str, ...] | None, set[str], set[str]]] = [
    (AgentConfig(), None, set(), set()),
    (AgentConfig(tools=("read",)), ("read",), set(), set()),
    (AgentConfig(tools=("a__echo", "read")), ("read",), {"a"}, {"a__echo"}),
    (AgentConfig(tools=("a__env", "b__echo")), (), {"a", "b"}, {"a__env", "b__echo"}),
    (AgentConfig(tools=("c__x",)), ("c__x",), set(), set()),
]


@pytest.mark.parametrize(("config", "rest", "used", "offered"), SELECTIONS)
async def test_only_the_servers_whose_tools_an_agent_names_are_started(
    world: Path, config: AgentConfig, rest: Any, used: set[str], offered: set[str]
) -> None:
    servers = McpServers({"a": stub(world), "b": stub(world), "off": stub(world, enabled=False)})
    b = Bench(servers, world)
    try:
        assert servers.split(config)[0] == rest
        assert set(servers.split(config)[1]) == used
        assert set(await b.tools(config)) == offered
        assert len(b.happened("start")) == len(used)
    finally:
        await servers.aclose()


async def test_all_of_one_server_and_a_name_that_it_does_not_have(world: Path) -> None:
    async with bench(world) as b:
        whole = AgentConfig(tools=("stub__*",))
        assert len(await b.tools(whole)) == 15
        assert await b.problems(whole) == []
        (problem,) = await b.problems(AgentConfig(tools=("stub__nope",)))
        assert problem.message.startswith("The MCP server 'stub' has no tool 'stub__nope'; it has: stub__ask,")


async def test_agents_share_a_server_that_they_describe_alike(world: Path, tmp_path: Path) -> None:
    servers = McpServers()
    b = Bench(servers, world)
    mine = AgentConfig(mcp_servers={"mine": stub(world)}, cwd=str(tmp_path))
    also = AgentConfig(mcp_servers={"mine": stub(world)}, cwd=str(tmp_path), system_prompt="another")
    other = AgentConfig(mcp_servers={"mine": stub(world)}, cwd="/")
    off = AgentConfig(mcp_servers={"mine": stub(world, enabled=False)})
    try:
        assert "mine__echo" in await b.tools(mine)
        assert "mine__echo" in await b.tools(also)
        assert len(b.happened("start")) == 1
        assert "mine__echo" in await b.tools(other)
        assert len(b.happened("start")) == 2
        assert await b.tools(off) == {}
    finally:
        await servers.aclose()


async def test_what_is_left_at_the_last_moment_is_killed(world: Path) -> None:
    async with bench(world, "--stubborn") as b:
        await b.tools()
        pid = int(b.happened("start")[0].split()[1])
        mcp_process.kill_groups()
        await b.until(lambda: gone(pid))
        assert os.path.exists(f"/proc/{os.getpid()}")


async def test_a_connection_that_fails_in_an_unknown_way_is_told(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, *_: Any) -> None:
            raise OverflowError("what is this")

    monkeypatch.setattr(mcp_server, "_import_connection", lambda: Broken)
    async with bench(world) as b:
        (problem,) = await b.problems()
        assert "OverflowError: what is this" in problem.message
