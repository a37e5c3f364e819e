"""What an editor without a plugin can do by commands, over a socket of this process: what it is shown and asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from house import House, ToldTool, call, house
from wire_fakes import LIMIT_S, Wire, notification, request, until

from sojourn.core.agent import AgentConfig
from sojourn.models.base import ModelRequest
from sojourn.rpc.host import Host
from sojourn.rpc.listen import serve_unix
from sojourn.tools.base import ToolContext

pytestmark = pytest.mark.anyio

ABLE = {"workspace": {"applyEdit": True}, "window": {"workDoneProgress": True}}
CANNOT = {"code": -32601, "message": "Method not found"}


class Editor:
    """A language client: its windows, and a person who answers by `chooses` (a title, None, or an error)."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.messages: list[str] = []
        self.kinds: list[int] = []
        self.progress: list[tuple[str, str]] = []
        self.token: str | None = None
        self.asked: list[dict[str, Any]] = []
        self.chooses: Any = None
        self.makes_room = True
        """Whether it makes a place for progress."""
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def send(self, method: str, params: dict[str, Any]) -> Any:
        """The whole answer."""
        id = len(self._answers)
        self._answers[id] = asyncio.get_running_loop().create_future()
        self.wire.send(request(id, method, params))
        async with asyncio.timeout(LIMIT_S):
            return await self._answers[id]

    async def do(self, command: str, *arguments: Any) -> Any:
        answer = await self.send("workspace/executeCommand", {"command": command, "arguments": list(arguments)})
        assert "error" not in answer, answer
        return answer["result"]

    async def refused(self, command: str, *arguments: Any) -> str:
        answer = await self.send("workspace/executeCommand", {"command": command, "arguments": list(arguments)})
        return str(answer["error"]["message"])

    async def offered(self, uri: str, span: dict[str, Any], *problems: str, **context: Any) -> list[dict[str, Any]]:
        context |= {"diagnostics": [{"range": span, "message": problem} for problem in problems]}
        params = {"textDocument": {"uri": uri}, "range": span, "context": context}
        return list((await self.send("textDocument/codeAction", params))["result"])

    async def until(self, there: Callable[[], Any]) -> Any:
        async with asyncio.timeout(LIMIT_S):
            while not (found := there()):
                self._news.clear()
                await self._news.wait()
        return found

    async def said(self, words: str) -> str:
        return str(await self.until(lambda: next((text for text in self.messages if words in text), "")))

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self.wire.close()

    async def _read(self) -> None:
        while True:
            self._take(await self.wire.receive())
            self._news.set()

    def _take(self, message: Any) -> None:
        method, params = message.get("method"), message.get("params")
        if method is None:
            self._answers[message["id"]].set_result(message)
        elif method == "window/showMessage":
            self.messages.append(params["message"])
            self.kinds.append(params["type"])
        elif method == "$/progress":
            self.progress.append((params["value"]["kind"], params["value"]["message"]))
        else:
            self.wire.send({"jsonrpc": "2.0", "id": message["id"], **self._answer(method, params)})

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "window/workDoneProgress/create":
            self.token = params["token"]
            return {"result": None} if self.makes_room else {"error": CANNOT}
        assert method == "window/showMessageRequest", method
        self.asked.append(params)
        if isinstance(self.chooses, dict):
            return {"error": self.chooses}
        return {"result": None if self.chooses is None else {"title": self.chooses}}


class Desk:
    """A hub on a socket, and the editors at it."""

    def __init__(self, h: House, path: Path, folder: Path) -> None:
        self.h = h
        self.folder = folder
        self.editors: list[Editor] = []
        self._path = path

    async def editor(self, capabilities: dict[str, Any] | None = None, **sojourn: Any) -> Editor:
        reader, writer = await asyncio.open_unix_connection(self._path)
        editor = Editor(Wire(reader, writer))
        self.editors.append(editor)
        able = {**(ABLE if capabilities is None else capabilities), "experimental": {"sojourn": sojourn}}
        info = {"name": "Plain Ed"}
        greeting = {"capabilities": able, "rootUri": self.folder.as_uri(), "clientInfo": info}
        assert "result" in await editor.send("initialize", greeting)
        editor.wire.send(notification("initialized", {}))
        return editor

    def open(self, editor: Editor, text: str) -> str:
        uri = (self.folder / "f.txt").as_uri()
        item = {"uri": uri, "languageId": "text", "version": 1, "text": text}
        editor.wire.send(notification("textDocument/didOpen", {"textDocument": item}))
        return uri


@asynccontextmanager
async def desk(folder: Path, *replies: Any, **options: Any) -> AsyncIterator[Desk]:
    async with house(*replies, **options) as h, serve_unix(Host(h.hub), folder / "d" / "s.sock") as path:
        running = Desk(h, path, folder)
        try:
            yield running
        finally:
            for editor in running.editors:
                await editor.close()


def gated(name: str = "deploy") -> ToldTool:
    return ToldTool(name, lambda args, _ctx: f"deployed {args}", approval="ask")


async def never(_request: ModelRequest) -> Any:
    """A model that does not answer."""
    await asyncio.Event().wait()


class OnceShown:
    """A model's first answer, which comes when the run's progress is shown: before that there is nothing to report."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self._shown = asyncio.Event()

    async def __call__(self, _request: ModelRequest) -> Any:
        await self._shown.wait()
        return self._answer

    async def by(self, editor: Editor) -> None:
        await editor.until(lambda: editor.progress)
        self._shown.set()


def span(start: int, end: int) -> dict[str, Any]:
    return {"start": {"line": 0, "character": start}, "end": {"line": 0, "character": end}}


async def test_an_answer_is_a_message_and_a_run_is_progress_from_its_begin_to_its_end(tmp_path: Path) -> None:
    tool, calls = ToldTool("look"), OnceShown([call("look", path="a.txt")])
    async with desk(tmp_path, calls, "found it", "new words", tools=[tool]) as d:
        editor = await d.editor()
        assert (await editor.refused("sojourn.show")) == ("This directory has no agent yet; sojourn.prompt makes one.")
        agent_id = (await editor.do("sojourn.prompt", "go"))["agentId"]
        await calls.by(editor)
        await editor.said("found it")
        await editor.until(lambda: editor.progress[-1:] == [("end", "done")])
        assert editor.progress[0] == ("begin", "thinking")
        assert ("report", "look a.txt") in editor.progress
        assert (await editor.do("sojourn.show"))["message"] == "found it"
        new = await editor.do("sojourn.new")
        assert new["agentId"] != agent_id
        assert (await editor.do("sojourn.show", ""))["message"] == "There is no answer yet."
        again = await editor.do("sojourn.prompt", {"text": "go on", "agentId": agent_id})
        assert again["message"] == f"{agent_id} is at work."
        await editor.said("new words")
        another = await d.editor()
        assert (await another.do("sojourn.status"))["message"] == f"{agent_id} is idle."
        await another.said(f"{agent_id} is idle.")


async def test_a_client_that_shows_no_progress_or_makes_no_place_for_it_is_sent_none(tmp_path: Path) -> None:
    async with desk(tmp_path, "one", "two") as d:
        plain = await d.editor(capabilities={})
        await plain.do("sojourn.prompt", "go")
        await plain.said("one")
        unwilling = await d.editor()
        unwilling.makes_room = False
        await unwilling.do("sojourn.new", "go")
        await unwilling.said("two")
        assert unwilling.token is not None
        await unwilling.do("sojourn.status")
        assert (plain.progress, plain.token, unwilling.progress) == ([], None, [])


async def test_a_prompt_to_an_agent_at_work_is_queued_and_a_stop_ends_it_once(tmp_path: Path) -> None:
    async with desk(tmp_path, never, never) as d:
        editor = await d.editor()
        agent_id = (await editor.do("sojourn.prompt", "go"))["agentId"]
        await until(lambda: editor.progress and d.h.model.requests)
        queued = await editor.do("sojourn.prompt", {"text": "and then", "agentId": agent_id})
        assert queued == {"message": f"{agent_id} is at work and reads it next.", "agentId": agent_id}
        assert (await editor.do("sojourn.status"))["message"] == f"{agent_id} is running, waits for model, 1 unread."
        assert [one["title"] for one in await editor.offered("file:///f", span(0, 0))] == ["Sojourn: stop"]
        assert (await editor.do("sojourn.stop"))["message"] == "Stopped."
        await editor.said("The run has ended (stopped)")
        await until(lambda: len(d.h.model.requests) == 2)  # what was queued is read now
        assert (await editor.do("sojourn.stop", agent_id))["message"] == "Stopped."
        assert (await editor.do("sojourn.stop", agent_id))["message"] == "Nothing was at work."


async def test_cancelling_the_progress_stops_its_run_and_no_other(tmp_path: Path) -> None:
    async with desk(tmp_path, never) as d:
        editor = await d.editor()
        editor.wire.send(notification("window/workDoneProgress/cancel", {"token": "before any command"}))
        agent_id = (await editor.do("sojourn.prompt", "go"))["agentId"]
        await until(lambda: editor.progress and d.h.model.requests)
        editor.wire.send(notification("window/workDoneProgress/cancel", {"token": "another"}))
        assert (await editor.do("sojourn.status"))["message"] == f"{agent_id} is running, waits for model."
        editor.wire.send(notification("window/workDoneProgress/cancel", {"token": editor.token}))
        await editor.said("The run has ended (stopped)")
        await editor.until(lambda: editor.progress[-1] == ("end", "stopped"))


@pytest.mark.parametrize(
    ("chosen", "words", "ran"),
    [("Approve", "done", True), ("Approve deploy for this run", "done", True), ("Deny", "done", False)],
)
async def test_an_approval_is_asked_as_a_question_whose_answer_decides(
    tmp_path: Path, chosen: str, words: str, ran: bool
) -> None:
    tool, calls = gated(), OnceShown([call("deploy", to="prod")])
    async with desk(tmp_path, calls, words, tools=[tool]) as d:
        editor = await d.editor()
        editor.chooses = chosen
        await editor.do("sojourn.prompt", "go")
        await calls.by(editor)
        await editor.said(words)
        (question,) = editor.asked
        assert question["message"].endswith('asks: deploy {"to": "prod"}')
        assert ("report", "waits for your decision about deploy") in editor.progress
        assert bool(tool.ran) == ran


async def test_a_question_that_is_too_long_is_cut_and_says_by_how_much(tmp_path: Path) -> None:
    async with desk(tmp_path, [call("deploy", text="x" * 5000)], "done", tools=[gated()]) as d:
        editor = await d.editor()
        editor.chooses = "Deny"
        agent_id = (await editor.do("sojourn.prompt", "go"))["agentId"]
        await editor.said("done")
        whole = len(f'{agent_id} asks: deploy {{"text": "{"x" * 5000}"}}')
        assert editor.asked[0]["message"].endswith(f"x\n[cut: {whole - 4000} more characters]")


@pytest.mark.parametrize(
    ("chooses", "said"),
    [
        (None, "It stays open: sojourn.approve and sojourn.deny decide."),
        (CANNOT, "Decide with sojourn.approve or sojourn.deny."),
        ({"code": -32603, "message": "the window broke"}, ""),
        ("Whatever", ""),
    ],
    ids=["closed", "cannot ask", "failed", "no such title"],
)
async def test_a_question_without_an_answer_leaves_the_call_open_for_a_command(
    tmp_path: Path, chooses: Any, said: str
) -> None:
    tool = gated()
    async with desk(tmp_path, [call("deploy")], "done", tools=[tool]) as d:
        editor = await d.editor()
        editor.chooses = chooses
        agent_id = (await editor.do("sojourn.prompt", "go"))["agentId"]
        await editor.until(lambda: editor.asked)
        if said:
            await editor.said(said)
        state = (await editor.do("sojourn.status"))["message"]
        assert state == f"{agent_id} is waiting, waits for approval, 1 open approvals."
        assert tool.ran == []
        assert (await editor.do("sojourn.approve", {"scope": "run"}))["message"].startswith("Approved: ")
        await editor.said("done")
        assert tool.ran == [{}]
        assert await editor.refused("sojourn.deny") == "Nothing of this editor's agent waits for a decision."


async def test_an_editor_that_cannot_ask_is_told_of_each_call_and_asked_no_more(tmp_path: Path) -> None:
    calls = [call("deploy", to="a"), call("deploy", to="b")]
    async with desk(tmp_path, calls, "done", tools=[gated()]) as d:
        editor = await d.editor()
        editor.chooses = CANNOT
        agent_id = (await editor.do("sojourn.prompt", "go"))["agentId"]
        await editor.until(lambda: len([text for text in editor.messages if "Decide with" in text]) == 2)
        assert len(editor.asked) == 1
        assert editor.kinds.count(2) == 2
        ids = [one["approvalId"] for one in await d.h.approvals(agent_id)]
        later = await d.editor()
        several = await later.refused("sojourn.approve")
        assert several == "Nothing of this editor's agent waits for a decision."
        await editor.do("sojourn.deny")  # the one that was shown last
        assert [one["approvalId"] for one in await d.h.approvals(agent_id)] == ids[:1]
        await editor.do("sojourn.deny", {"approvalId": ids[0], "reason": "not today"})
        await editor.said("done")


async def test_of_several_open_calls_one_must_be_named(tmp_path: Path) -> None:
    calls = OnceShown([call("deploy", to="a"), call("deploy", to="b")])
    async with desk(tmp_path, calls, "done", tools=[gated()]) as d:
        asks = await d.editor(approvals={"request": {}})
        agent_id = (await asks.do("sojourn.prompt", "go"))["agentId"]
        await calls.by(asks)
        await asks.until(lambda: ("report", "waits for your decision about deploy") in asks.progress)
        ids = [one["approvalId"] for one in await d.h.approvals(agent_id)]
        assert await asks.refused("sojourn.approve") == f"Several calls wait; name one: {', '.join(ids)}."
        assert asks.asked == [], "a client that answers approvals itself is not shown a question"
        for one in ids:
            await asks.do("sojourn.deny", one)
        await asks.said("done")


async def test_a_client_that_answers_approvals_itself_may_decide_the_only_one_without_its_id(tmp_path: Path) -> None:
    calls = OnceShown([call("deploy")])
    async with desk(tmp_path, calls, "done", tools=[gated()]) as d:
        asks = await d.editor(approvals={"request": {}})
        await asks.do("sojourn.prompt", "go")
        await calls.by(asks)
        await asks.until(lambda: ("report", "waits for your decision about deploy") in asks.progress)
        (waiting,) = await d.h.approvals()
        assert (await asks.do("sojourn.approve"))["message"] == f"Approved: {waiting['approvalId']}."
        await asks.said("done")


async def test_what_a_child_does_is_progress_too(tmp_path: Path) -> None:
    async def helper(_args: dict[str, Any], ctx: ToolContext) -> str:
        return (await ctx.run_child(AgentConfig(tools=("look",)), "look")).text

    tools, calls = [ToldTool("helper", helper), ToldTool("look")], OnceShown([call("helper")])
    async with desk(tmp_path, calls, [call("look", path="b.txt")], "seen", "done", tools=tools) as d:
        editor = await d.editor()
        await editor.do("sojourn.prompt", "go")
        await calls.by(editor)
        await editor.said("done")
        await editor.until(lambda: editor.progress[-1:] == [("end", "done")])
        assert ("report", "look b.txt") in editor.progress
        assert "seen" not in editor.messages


async def test_the_commands_offered_at_a_place_are_those_that_make_sense_there(tmp_path: Path) -> None:
    async with desk(tmp_path, [call("deploy", to="prod")], "done", "about it", tools=[gated()]) as d:
        editor = await d.editor()
        uri = d.open(editor, "say this:   good day")
        assert await editor.offered(uri, span(0, 0)) == []
        assert await editor.offered(uri, span(9, 12)) == [], "only blanks are selected"
        assert await editor.offered(uri, span(12, 20), only=["source.organizeImports"]) == []
        both = await editor.offered(uri, span(12, 20))
        assert [one["command"] for one in both] == ["sojourn.prompt", "sojourn.new"]
        await editor.do("sojourn.prompt", "go")
        await editor.until(lambda: editor.asked)
        waiting = {one["title"]: one for one in await editor.offered(uri, span(0, 0), "odd\n" + "x" * 100)}
        assert list(waiting) == [
            f"Sojourn: mend “odd {'x' * 75}…”",
            'Sojourn: approve deploy {"to": "prod"}',
            'Sojourn: deny deploy {"to": "prod"}',
            "Sojourn: stop",
        ]
        await editor.do("sojourn.deny", *waiting['Sojourn: deny deploy {"to": "prod"}']["arguments"])
        await editor.said("done")
        await editor.do("sojourn.prompt", *both[0]["arguments"])
        await editor.said("about it")
        assert d.h.model.requests[-1].messages[-1].content[0].text == "good day"  # type: ignore[union-attr]
        assert "Sojourn: stop" not in [one["title"] for one in await editor.offered(uri, span(0, 0))]


async def test_a_prompt_about_an_open_file_carries_what_it_points_at(tmp_path: Path) -> None:
    async with desk(tmp_path, "read") as d:
        editor = await d.editor()
        uri = d.open(editor, "unsaved words")
        await editor.do("sojourn.new", {"text": "what is it", "uri": uri, "range": span(0, 7)})
        await editor.said("read")
        (prompt,) = d.h.model.requests[0].messages
        assert "unsaved" in str(prompt.content)
        assert "unsaved words" not in str(prompt.content)


async def test_runs_that_end_badly_or_pause_say_so(tmp_path: Path) -> None:
    async with desk(tmp_path, RuntimeError("boom"), [call("deploy")], tools=[gated()]) as d:
        editor = await d.editor()
        agent_id = (await editor.do("sojourn.prompt", "go"))["agentId"]
        await editor.said("The run has ended (failed): ")
        assert editor.kinds[-1] == 1
        await d.h.hub.update_agent(d.h.client.caller(None, ""), agent_id, {"config": {"onApproval": "pause"}})
        await editor.do("sojourn.prompt", "go on")
        await editor.said("Paused: a decision or a result is waited for.")
        assert editor.kinds[-1] == 3


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("sojourn.dance", [], "There is no command 'sojourn.dance'; there are: sojourn.prompt, "),
        ("sojourn.prompt", [], "There is nothing to say: 'text' is missing."),
        ("sojourn.prompt", [None], "There is nothing to say"),
        ("sojourn.prompt", [{"uri": "file:///never/opened"}], "There is nothing to say"),
        ("sojourn.prompt", [7], "sojourn.prompt takes a string or an object, not int."),
        ("sojourn.prompt", [{"txet": "x"}], "txet"),
        ("sojourn.approve", ["approval-none"], "There is no approval 'approval-none'"),
        ("sojourn.stop", ["nobody"], "There is no agent 'nobody'"),
        ("sojourn.prompt", [{"text": "x", "agentId": "nobody"}], "There is no agent 'nobody'"),
    ],
)
async def test_a_command_that_cannot_be_done_says_why_and_makes_no_agent(
    tmp_path: Path, command: str, arguments: list[Any], words: str
) -> None:
    async with desk(tmp_path) as d:
        editor = await d.editor()
        assert words in await editor.refused(command, *arguments)
        page = await d.h.hub.list_agents(cursor=None, limit=10, state=None, parent_agent_id=None, labels={})
        assert page["agents"] == []
        assert (editor.messages, editor.progress) == ([], [])
