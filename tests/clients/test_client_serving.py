"""What the client does for the daemon: tools and approvals."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from fake_daemon import APPROVAL, Connection, FakeDaemon, Refuse

from sojourn_client import RpcError, ToolCall, ToolReply, connect

pytestmark = pytest.mark.anyio

CALL = {"agentId": "a", "runId": "r", "callId": "c", "name": "add", "arguments": {"x": 1, "y": 2}}
SCHEMA = {"type": "object", "properties": {}}


@pytest.fixture(autouse=True)
async def _limit() -> Any:
    with anyio.fail_after(15):
        yield


@pytest.fixture
def tools(fake: FakeDaemon) -> FakeDaemon:
    fake.handlers["tool/register"] = lambda *_: None
    fake.handlers["tool/unregister"] = lambda *_: None
    return fake


def reach(fake: FakeDaemon, **options: Any) -> Any:
    return connect(socket=fake.socket, state_dir=fake.root, client_id="me", start=False, **options)


async def add(call: ToolCall) -> str:
    return str(call.arguments["x"] + call.arguments["y"])


async def fail(call: ToolCall) -> str:
    raise RuntimeError("no disk")


async def start_job(call: ToolCall) -> ToolReply:
    return ToolReply("started", pending=True)


@pytest.mark.parametrize(
    ("handler", "result"),
    [
        pytest.param(add, {"content": "3"}, id="a result"),
        pytest.param(fail, {"content": "RuntimeError: no disk", "isError": True}, id="an exception"),
        pytest.param(start_job, {"content": "started", "pending": True}, id="a placeholder"),
    ],
)
async def test_a_registered_tool_is_run_for_the_daemon(tools: FakeDaemon, handler: Any, result: Any) -> None:
    async with reach(tools) as client:
        await client.register_tool("add", handler, description="Adds.", input_schema=SCHEMA, approval="allow")
        assert (await tools.client.ask("tool/execute", **CALL))["result"] == result
    spec = {"name": "add", "description": "Adds.", "inputSchema": SCHEMA, "approval": "allow"}
    assert tools.asked("tool/register")[0]["tools"] == [spec]


async def test_tools_are_registered_again_on_a_new_connection(tools: FakeDaemon) -> None:
    async with reach(tools) as client:
        await client.register_tool("add", add, description="", input_schema=SCHEMA, on_interrupt="rerun", agent_id="a")
        tools.client.drop()
        await tools.until(lambda: len(tools.asked("tool/register")) == 2)
    again = tools.asked("tool/register")[1]
    assert (again["agentId"], again["tools"][0]["onInterrupt"]) == ("a", "rerun")


async def test_a_name_that_is_taken_is_not_kept(fake: FakeDaemon) -> None:
    def refuse(*_: Any) -> None:
        raise Refuse(-31024, "Another client has it.", kind="alreadyExists")

    fake.handlers["tool/register"] = refuse
    async with reach(fake) as client:
        with pytest.raises(RpcError):
            await client.register_tool("add", add, description="", input_schema=SCHEMA)
        assert (await fake.client.ask("tool/execute", **CALL))["error"]["code"] == -32601


async def test_a_tool_that_was_taken_back_is_refused(tools: FakeDaemon) -> None:
    async with reach(tools) as client:
        await client.register_tool("add", add, description="", input_schema=SCHEMA)
        await client.unregister_tool("add")
        assert "error" in await tools.client.ask("tool/execute", **CALL)
    assert tools.asked("tool/unregister")[0]["names"] == ["add"]


async def test_a_cancelled_call_stops_the_handler(tools: FakeDaemon) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def slow(_: ToolCall) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    async with reach(tools) as client:
        await client.register_tool("add", slow, description="", input_schema=SCHEMA)
        id, answer = tools.client.start_asking("tool/execute", **CALL)
        await started.wait()
        tools.client.send("$/cancelRequest", id=id)
        assert (await answer)["error"]["code"] == -32800
        assert stopped.is_set()


@pytest.mark.parametrize(
    ("reply", "method", "said"),
    [
        pytest.param(ToolReply("late"), "inbox/resolve", {"content": "late"}, id="a result"),
        pytest.param(ToolReply("bad", is_error=True), "inbox/reject", {"error": "bad"}, id="a failure"),
        pytest.param(
            ToolReply([{"type": "text", "text": "worse"}], is_error=True),
            "inbox/reject",
            {"error": "worse"},
            id="a failure in parts",
        ),
    ],
)
async def test_a_result_that_outlived_its_connection_goes_through_the_inbox(
    tools: FakeDaemon, reply: ToolReply, method: str, said: dict[str, Any]
) -> None:
    started, goon = asyncio.Event(), asyncio.Event()

    async def slow(_: ToolCall) -> ToolReply:
        started.set()
        await goon.wait()
        return reply

    tools.handlers[method] = lambda *_: {"itemId": "i"}
    async with reach(tools) as client:
        await client.register_tool("add", slow, description="", input_schema=SCHEMA)
        tools.client.start_asking("tool/execute", **CALL)
        await started.wait()
        tools.client.drop()
        await tools.until(lambda: len(tools.asked("initialize")) == 2)
        goon.set()
        await tools.until(lambda: tools.asked(method))
    params = tools.asked(method)[0]
    assert {key: params[key] for key in ("agentId", "callId", *said)} == {"agentId": "a", "callId": "c", **said}


async def test_a_placeholder_and_a_result_that_nobody_wants_are_dropped(tools: FakeDaemon) -> None:
    started, goon = [asyncio.Event(), asyncio.Event()], asyncio.Event()
    replies = [ToolReply("x", pending=True), ToolReply("y")]

    async def slow(call: ToolCall) -> ToolReply:
        number = call.arguments["x"]
        started[number].set()
        await goon.wait()
        return replies[number]

    def refuse(*_: Any) -> None:
        raise Refuse(-31003, "no such call", kind="callNotFound")

    tools.handlers["inbox/resolve"] = refuse
    async with reach(tools) as client:
        await client.register_tool("add", slow, description="", input_schema=SCHEMA)
        for number in (0, 1):
            tools.client.start_asking("tool/execute", **{**CALL, "arguments": {"x": number}})
            await started[number].wait()
        tools.client.drop()
        await tools.until(lambda: len(tools.asked("initialize")) == 2)
        goon.set()
        await tools.until(lambda: tools.asked("inbox/resolve"))
    assert [params["content"] for params in tools.asked("inbox/resolve")] == ["y"]


@pytest.mark.parametrize(
    ("verdict", "answer"),
    [
        pytest.param("approve", {"decision": "approve"}, id="a bare name"),
        pytest.param({"decision": "deny", "reason": "no"}, {"decision": "deny", "reason": "no"}, id="a decision"),
    ],
)
async def test_an_approval_handler_decides(fake: FakeDaemon, verdict: Any, answer: Any) -> None:
    asked = []

    async def decide(approval: Any) -> Any:
        asked.append((approval.tool_name, approval.args))
        return verdict

    async with reach(fake, on_approval=decide):
        assert (await fake.client.ask("approval/request", approval=APPROVAL))["result"] == answer
    assert asked == [("rm", {"path": "/"})]


async def test_a_handler_that_fails_or_does_not_know_decides_nothing(fake: FakeDaemon) -> None:
    answers: list[Any] = [RuntimeError("oops"), None]

    async def decide(_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with reach(fake, on_approval=decide):
        for _ in range(2):
            assert "error" in await fake.client.ask("approval/request", approval=APPROVAL)


async def test_a_handler_is_cancelled_when_somebody_else_decided(fake: FakeDaemon) -> None:
    started = asyncio.Event()

    async def decide(_: Any) -> Any:
        started.set()
        await asyncio.Event().wait()

    async with reach(fake, on_approval=decide):
        id, answer = fake.client.start_asking("approval/request", approval=APPROVAL)
        await started.wait()
        fake.client.send("$/cancelRequest", id=id)
        assert (await answer)["error"]["code"] == -32800


async def test_what_a_client_does_not_answer_is_method_not_found(fake: FakeDaemon) -> None:
    async with reach(fake):
        client: Connection = fake.client
        assert (await client.ask("approval/request", approval=APPROVAL))["error"]["code"] == -32601
        assert (await client.ask("window/other"))["error"]["code"] == -32601
