"""The daemon as a language server's client meets it: pytest-lsp drives it, over stdio and through `sojourn connect`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest
import pytest_asyncio
from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pytest_lsp import ClientServerConfig, LanguageClient

from sojourn_client.testing import DaemonProcess

pytestmark = pytest.mark.asyncio

SCRIPT = """
rules:
  - when: {late_result: open_file}
    reply: {text: "It came late: {result}"}
  - when: {tool_result: "*"}
    reply: {text: "It answered: {result}"}
  - when: {user: '^deploy'}
    reply: {calls: [{name: demo_deploy, arguments: {target: "höher"}}]}
  - when: {user: '^open'}
    reply: {calls: [{name: open_file, arguments: {path: "a/ä.txt", line: 7}}]}
  - when: {user: '^slowly'}
    reply: {text: "one two three four five six seven eight", delay_ms: 250}
  - when: {always: true}
    reply: {text: "Good day to you."}
"""
OPEN_FILE = {
    "name": "open_file",
    "description": "Opens a file in the editor.",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "integer"}}},
    "approval": "allow",
}
WAIT_S = 20


class Editor:
    """An editor: a client of pytest-lsp, what it heard, and what it does when it is asked something."""

    def __init__(self, client: LanguageClient) -> None:
        self.client = client
        self.events: list[dict[str, Any]] = []
        self.asked: list[tuple[str, Any]] = []
        self.answers: dict[str, Callable[[Any], Awaitable[Any]]] = {}
        self._news = asyncio.Condition()

        @client.feature("agent/event")
        async def on_event(params: Any) -> None:
            await self._note(lambda: self.events.append(plain(params)["event"]))

        @client.feature("tool/execute")
        async def on_execute(params: Any) -> Any:
            return await self._answer("tool/execute", plain(params))

        @client.feature("approval/request")
        async def on_approval(params: Any) -> Any:
            return await self._answer("approval/request", plain(params))

    async def initialize(self, client_id: str) -> dict[str, Any]:
        ours = {
            "protocolVersions": [1],
            "clientId": client_id,
            "approvals": {"request": {}},
            "tools": {"execute": {}},
        }
        capabilities = types.ClientCapabilities(experimental={"sojourn": ours})
        result = await self.client.initialize_session(types.InitializeParams(capabilities=capabilities))
        assert result.server_info is not None
        return {"name": result.server_info.name, **plain(result.capabilities.experimental)["sojourn"]}

    async def ask(self, method: str, **params: Any) -> Any:
        async with asyncio.timeout(WAIT_S):
            return plain(await self.client.protocol.send_request_async(method, params))

    async def agent(self, **config: Any) -> str:
        agent_id = next(names)
        await self.ask("agent/create", agentId=agent_id, config={"tools": ["*"], **config})
        await self.ask("agent/attach", agentId=agent_id)
        return agent_id

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S), self._news:
            await self._news.wait_for(condition)

    async def event(self, type: str) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            return [event for event in self.events if event["type"] == type]

        await self.until(found)
        return found()[0]

    async def _answer(self, method: str, params: Any) -> Any:
        await self._note(lambda: self.asked.append((method, params)))
        return await self.answers[method](params)

    async def _note(self, note: Callable[[], None]) -> None:
        async with self._news:
            note()
            self._news.notify_all()


def plain(value: Any) -> Any:
    """What pygls makes of JSON, as JSON."""
    if hasattr(value, "_asdict"):
        return {key: plain(item) for key, item in value._asdict().items()}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


Open = Callable[..., Awaitable[Editor]]
COMMANDS = {"stdio": ["serve", "--stdio"], "connect": ["connect"]}
names = (f"agent-{number}" for number in count(1))


@pytest.fixture(scope="module", params=list(COMMANDS))
def way(request: pytest.FixtureRequest) -> Iterator[tuple[DaemonProcess, list[str]]]:
    """A place of a daemon, and what an editor starts: the daemon itself, or a bridge to the one that runs there."""
    daemon = DaemonProcess(script=SCRIPT)
    if request.param == "connect":
        daemon.start()
    yield daemon, [sys.executable, "-m", "sojourn", *COMMANDS[request.param]]
    daemon.close()


@pytest_asyncio.fixture
async def opened(way: tuple[DaemonProcess, list[str]]) -> AsyncIterator[Open]:
    """Opens editors."""
    daemon, command = way
    editors: list[Editor] = []

    async def open(client_id: str = "editor") -> Editor:
        editor = Editor(await ClientServerConfig(server_command=command, server_env=daemon.env).start())
        editors.append(editor)
        hello = await editor.initialize(client_id)
        assert (hello["name"], hello["protocolVersion"]) == ("sojourn", 1)
        return editor

    yield open
    for editor in editors:
        await close(editor)


async def close(editor: Editor) -> None:
    if not editor.client.stopped:
        await editor.client.shutdown_session()
        await editor.client.stop()


async def test_a_prompt_is_answered_and_its_events_are_heard(opened: Open) -> None:
    editor = await opened()
    a = await editor.agent()
    outcome = await editor.ask("agent/prompt", agentId=a, content="good day")
    assert (outcome["reason"], outcome["output"]) == ("done", "Good day to you.")
    await editor.event("agentEnd")
    assert [event["type"] for event in editor.events if event["type"] != "messageDelta"] == [
        "agentStart", "messageStart", "messageEnd", "turnStart", "contextBudget", "messageStart", "generationStats",
        "messageEnd", "turnEnd", "agentEnd",
    ]  # fmt: skip
    said = "".join(event["text"] for event in editor.events if event["type"] == "messageDelta")
    assert said == "Good day to you."


async def test_the_editor_is_asked_for_an_approval_and_its_answer_counts(opened: Open) -> None:
    editor = await opened()

    async def edits(params: Any) -> Any:
        assert params["approval"]["args"] == {"target": "höher"}
        return {"decision": "edit", "arguments": {"target": "tiefer"}, "reason": "safer"}

    editor.answers["approval/request"] = edits
    a = await editor.agent()
    outcome = await editor.ask("agent/prompt", agentId=a, content="deploy")
    assert outcome["output"] == "It answered: Deployed tiefer."
    decision = (await editor.event("approvalResolved"))["approval"]["decision"]
    assert (decision["decision"], decision["by"]) == ("edit", "editor")


async def test_a_tool_of_the_editor_is_run_by_it(opened: Open) -> None:
    editor = await opened()

    async def opens(params: Any) -> Any:
        return {"content": f"{params['arguments']['path']} at {params['arguments']['line']}"}

    editor.answers["tool/execute"] = opens
    a = await editor.agent(tools=[])
    assert await editor.ask("tool/register", tools=[OPEN_FILE], agentId=a) is None
    outcome = await editor.ask("agent/prompt", agentId=a, content="open it")
    assert outcome["output"] == "It answered: a/ä.txt at 7"
    ((_, params),) = editor.asked
    assert (params["agentId"], params["name"], params["callId"]) == (a, "open_file", "msg-2-call-1")


async def test_a_call_of_an_editor_that_was_away_is_sent_once_when_it_returns(opened: Open) -> None:
    owner = await opened("owner")
    a = await owner.agent(tools=[])
    await owner.ask("tool/register", tools=[OPEN_FILE], agentId=a)
    await close(owner)
    other = await opened("other")
    outcome = await other.ask("agent/prompt", agentId=a, content="open it")
    assert [call["toolName"] for call in outcome["pendingCalls"]] == ["open_file"]
    await close(other)
    back = await opened("owner")

    async def opens(params: Any) -> Any:
        return {"content": "opened at last"}

    back.answers["tool/execute"] = opens
    assert back.asked == []
    await back.ask("tool/register", tools=[OPEN_FILE], agentId=a)
    await back.until(lambda: back.asked)
    await back.ask("agent/attach", agentId=a, afterSeq=0)
    await back.event("inboxQueued")
    outcome = await back.ask("agent/resume", agentId=a)
    assert outcome["output"] == "It came late: opened at last"
    await back.ask("tool/register", tools=[OPEN_FILE], agentId=a)
    assert [method for method, _ in back.asked] == ["tool/execute"]
    assert await back.ask("agent/pendingCalls", agentId=a) == {"pendingCalls": []}


async def test_a_cancelled_prompt_stops_its_run(opened: Open) -> None:
    editor = await opened()
    a = await editor.agent()
    request = editor.client.protocol.send_request("agent/prompt", {"agentId": a, "content": "slowly"}, msg_id="p-1")
    await editor.event("messageDelta")
    editor.client.protocol.notify("$/cancelRequest", types.CancelParams(id="p-1"))
    with pytest.raises(JsonRpcException) as refused:
        async with asyncio.timeout(WAIT_S):
            await asyncio.wrap_future(request)
    assert refused.value.code == -32800
    assert (await editor.event("agentEnd"))["reason"] == "stopped"
    assert (await editor.ask("agent/get", agentId=a))["state"] == "idle"
    assert (await editor.ask("agent/prompt", agentId=a, content="again"))["reason"] == "done"


async def test_an_error_has_its_kind(opened: Open) -> None:
    editor = await opened()
    with pytest.raises(JsonRpcException) as refused:
        await editor.ask("agent/get", agentId="nobody")
    assert (refused.value.code, plain(refused.value.data)["kind"]) == (-31001, "agentNotFound")
