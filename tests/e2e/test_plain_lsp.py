"""A language client without a plugin: what pytest-lsp's client, which knows nothing of Sojourn, can do here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pytest_lsp import ClientServerConfig, LanguageClient
from wire import Wire

from sojourn_client.testing import DaemonProcess

pytestmark = pytest.mark.asyncio

SCRIPT = """
rules:
  - when: {tool_result: read}
    reply: {text: "It says: {result}"}
  - when: {tool_result: "*"}
    reply: {text: "{result}"}
  - when: {user: '^write it'}
    reply: {calls: [{name: write, arguments: {path: new.txt, content: "hello\\n"}}]}
  - when: {user: '^read it'}
    reply: {calls: [{name: read, arguments: {path: f.txt}}]}
  - when: {user: '^edit it'}
    reply: {calls: [{name: edit, arguments: {path: f.txt, old_text: unsaved, new_text: edited}}]}
  - when: {user: '^slowly'}
    reply: {text: "one two three four five six seven eight", delay_ms: 400}
  - when: {user: '^soon'}
    reply: {text: "one two three", delay_ms: 300}
  - when: {user: '^(what is it)'}
    reply: {text: "You said: {1}"}
  - when: {user: 'this problem: (what is it)'}
    reply: {text: "Mended: {1}"}
  - when: {user: '^good day'}
    reply: {text: "Good day to you."}
"""
WAIT_S = 30
FULL = types.ClientCapabilities(
    workspace=types.WorkspaceClientCapabilities(
        apply_edit=True, workspace_edit=types.WorkspaceEditClientCapabilities(document_changes=True)
    ),
    window=types.WindowClientCapabilities(work_done_progress=True),
)


class Editor:
    """What an editor does with its language client: windows to look at, a person who chooses, open files."""

    def __init__(self, client: LanguageClient, *, asks: bool) -> None:
        self.client = client
        self.choice: Callable[[types.ShowMessageRequestParams], str | None] = lambda _params: None
        self.questions: list[types.ShowMessageRequestParams] = []
        self.edits: list[types.ApplyWorkspaceEditParams] = []
        self.applies = True
        self.texts: dict[str, tuple[int, str]] = {}
        if asks:

            @client.feature(types.WINDOW_SHOW_MESSAGE_REQUEST)
            def on_question(params: types.ShowMessageRequestParams) -> types.MessageActionItem | None:
                self.questions.append(params)
                title = self.choice(params)
                return None if title is None else types.MessageActionItem(title)

        @client.feature(types.WORKSPACE_APPLY_EDIT)
        def on_edit(params: types.ApplyWorkspaceEditParams) -> types.ApplyWorkspaceEditResult:
            self.edits.append(params)
            if not self.applies:
                return types.ApplyWorkspaceEditResult(applied=False, failure_reason="the buffer has changed")
            self._apply(params)
            return types.ApplyWorkspaceEditResult(applied=True)

    def open(self, path: Path, text: str) -> None:
        self.texts[path.as_uri()] = 1, text
        item = types.TextDocumentItem(path.as_uri(), "text", 1, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def _apply(self, params: types.ApplyWorkspaceEditParams) -> None:
        """Of single-line ASCII texts, which is what these tests have."""
        for change in params.edit.document_changes or ():
            assert isinstance(change, types.TextDocumentEdit)
            uri = change.text_document.uri
            version, text = self.texts[uri]
            assert change.text_document.version == version
            for edit in change.edits:
                assert isinstance(edit, types.TextEdit)
                text = text[: edit.range.start.character] + edit.new_text + text[edit.range.end.character :]
                self.client.text_document_did_change(
                    types.DidChangeTextDocumentParams(
                        types.VersionedTextDocumentIdentifier(version + 1, uri),
                        [types.TextDocumentContentChangePartial(edit.range, edit.new_text)],
                    )
                )
            self.texts[uri] = version + 1, text

    async def do(self, command: str, *arguments: Any) -> Any:
        async with asyncio.timeout(WAIT_S):
            params = types.ExecuteCommandParams(command, list(arguments) or None)
            answer = await self.client.workspace_execute_command_async(params)
        return answer._asdict() if hasattr(answer, "_asdict") else answer

    async def until(self, found: Callable[[], Any]) -> Any:
        async with asyncio.timeout(WAIT_S):
            while not (value := found()):
                await asyncio.sleep(0.02)
        return value

    async def said(self, words: str) -> types.ShowMessageParams:
        """The message with these words, when it is there."""
        found = await self.until(lambda: [one for one in self.client.messages if words in one.message])
        return found[0]  # type: ignore[no-any-return]

    def progress(self) -> list[str]:
        """What was shown as progress, in order."""
        shown = [value for values in self.client.progress_reports.values() for value in values]
        return [f"{value.kind} {value.message}" for value in shown]


@pytest.fixture(scope="module")
def daemon() -> Any:
    with DaemonProcess(script=SCRIPT) as running:
        yield running
        assert running.stop() == 0


@pytest_asyncio.fixture
async def opened(daemon: DaemonProcess, tmp_path: Path) -> AsyncIterator[Any]:
    editors: list[Editor] = []

    async def open(capabilities: types.ClientCapabilities = FULL, *, asks: bool = True) -> Editor:
        command = [sys.executable, "-m", "sojourn", "connect"]
        client = await ClientServerConfig(server_command=command, server_env=daemon.env).start()
        editor = Editor(client, asks=asks)
        editors.append(editor)
        params = types.InitializeParams(
            capabilities, root_uri=tmp_path.as_uri(), client_info=types.ClientInfo("Plain Ed")
        )
        result = await client.initialize_session(params)
        assert result.capabilities.execute_command_provider is not None
        assert "sojourn.prompt" in result.capabilities.execute_command_provider.commands
        return editor

    yield open
    for editor in editors:
        if not editor.client.stopped:
            await editor.client.shutdown_session()
            await editor.client.stop()


async def test_a_prompt_is_answered_in_a_message_and_shown_as_progress(opened: Any) -> None:
    editor = await opened()
    answer = await editor.do("sojourn.prompt", "soon")
    assert answer["agentId"]
    assert answer["runId"]
    message = await editor.said("one two three")
    assert message.type == types.MessageType.Info
    await editor.until(lambda: editor.progress()[-1:] == ["end done"])
    assert editor.progress()[0] == "begin thinking"
    assert (await editor.do("sojourn.show"))["message"] == "one two three"
    again = await editor.do("sojourn.prompt", {"text": "good day"})
    assert again["agentId"] == answer["agentId"]
    await editor.until(lambda: len(editor.client.messages) >= 3)
    new = await editor.do("sojourn.new")
    assert new["agentId"] != answer["agentId"]


async def test_an_editor_finds_its_directorys_agent_again(opened: Any) -> None:
    first = await opened()
    agent_id = (await first.do("sojourn.prompt", "good day"))["agentId"]
    await first.said("Good day")
    second = await opened()
    assert (await second.do("sojourn.status"))["message"] == f"{agent_id} is idle."
    assert (await second.do("sojourn.prompt", "good day"))["agentId"] == agent_id


@pytest.mark.parametrize(
    ("title", "words", "made"),
    [("Approve", "Made 'new.txt'", True), ("Approve write for this run", "Made", True), ("Deny", "Denied", False)],
)
async def test_an_approval_is_a_question_with_the_diff_in_it(
    opened: Any, tmp_path: Path, title: str, words: str, made: bool
) -> None:
    editor = await opened()
    editor.choice = lambda _params: title
    await editor.do("sojourn.prompt", "write it")
    await editor.said(words)
    (question,) = editor.questions
    assert "write new.txt" in question.message
    assert "+hello" in question.message
    titles = [action.title for action in question.actions or ()]
    assert titles[0] == "Approve"
    assert titles[-1] == "Deny"
    assert title in titles
    assert (tmp_path / "new.txt").exists() == made


async def test_a_question_that_is_closed_leaves_the_call_open_until_a_command_decides(
    opened: Any, tmp_path: Path
) -> None:
    editor = await opened()
    await editor.do("sojourn.prompt", "write it")
    await editor.said("It stays open")
    assert (await editor.do("sojourn.status"))["message"].endswith("waits for approval, 1 open approvals.")
    assert (await editor.do("sojourn.approve"))["message"].startswith("Approved: ")
    await editor.said("Made 'new.txt'")
    assert (tmp_path / "new.txt").read_text() == "hello\n"
    with pytest.raises(JsonRpcException, match="Nothing of this editor's agent waits"):
        await editor.do("sojourn.deny")


async def test_an_editor_that_cannot_be_asked_is_told_and_decides_by_command(opened: Any, tmp_path: Path) -> None:
    editor = await opened(types.ClientCapabilities(), asks=False)
    await editor.do("sojourn.prompt", "write it")
    message = await editor.said("Decide with sojourn.approve or sojourn.deny")
    assert "+hello" in message.message
    await editor.do("sojourn.deny", {"reason": "not today"})
    await editor.said("Denied")
    assert not (tmp_path / "new.txt").exists()
    assert editor.progress() == []


async def test_an_open_approval_is_asked_again_in_the_next_session(opened: Any) -> None:
    editor = await opened()
    await editor.do("sojourn.prompt", "write it")
    await editor.said("It stays open")
    await editor.client.shutdown_session()
    await editor.client.stop()
    later = await opened()
    later.choice = lambda _params: "Approve"
    await later.do("sojourn.status")
    await later.said("Made 'new.txt'")


async def test_an_open_file_is_read_and_changed_in_the_editor(opened: Any, tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("saved")
    editor = await opened()
    editor.choice = lambda _params: "Approve"
    editor.open(tmp_path / "f.txt", "unsaved")
    await editor.do("sojourn.prompt", "read it")
    await editor.said("It says: unsaved")
    await editor.do("sojourn.prompt", "edit it")
    await editor.said("was changed there, unsaved")
    assert editor.texts[(tmp_path / "f.txt").as_uri()] == (2, "edited")
    await editor.do("sojourn.prompt", "read it")
    await editor.said("It says: edited")
    assert (tmp_path / "f.txt").read_text() == "saved"


async def test_an_edit_that_the_editor_refuses_is_an_error_that_the_model_reads(opened: Any, tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("saved")
    editor = await opened()
    editor.choice = lambda _params: "Approve"
    editor.applies = False
    editor.open(tmp_path / "f.txt", "unsaved")
    await editor.do("sojourn.prompt", "edit it")
    await editor.said("'Plain Ed' did not make the change of 'f.txt': the buffer has changed")


async def test_a_prompt_can_be_what_is_selected_in_an_open_file(opened: Any, tmp_path: Path) -> None:
    editor = await opened()
    editor.open(tmp_path / "f.txt", "say this: good day")
    span = {"start": {"line": 0, "character": 10}, "end": {"line": 0, "character": 18}}
    await editor.do("sojourn.prompt", {"uri": (tmp_path / "f.txt").as_uri(), "range": span})
    await editor.said("Good day to you.")
    await editor.do("sojourn.new", {"text": "what is it", "uri": (tmp_path / "f.txt").as_uri()})
    await editor.said("You said: what is it")


async def test_code_actions_offer_what_makes_sense_at_a_place(opened: Any, tmp_path: Path) -> None:
    editor = await opened()
    file = tmp_path / "f.txt"
    editor.open(file, "say this: good day")

    async def offered(start: int, end: int, *problems: str, only: list[str] | None = None) -> dict[str, types.Command]:
        span = types.Range(types.Position(0, start), types.Position(0, end))
        found = [types.Diagnostic(span, message) for message in problems]
        where = types.TextDocumentIdentifier(file.as_uri())
        params = types.CodeActionParams(where, span, types.CodeActionContext(found, only))
        return {one.title: one for one in await editor.client.text_document_code_action_async(params)}

    async def choose(action: types.Command) -> None:
        await editor.do(action.command, *(action.arguments or ()))

    assert await offered(0, 0) == {}
    assert await offered(10, 18, "odd", only=["source.organizeImports"]) == {}, "nothing is run on saving"
    selected = await offered(10, 18)
    assert list(selected) == ["Sojourn: prompt with the selection", "Sojourn: prompt a new agent with the selection"]
    await choose(selected["Sojourn: prompt with the selection"])
    await editor.said("Good day to you.")

    await editor.do("sojourn.prompt", "write it")
    await editor.said("It stays open")
    waiting = await offered(0, 0)
    assert list(waiting) == ["Sojourn: approve write new.txt", "Sojourn: deny write new.txt", "Sojourn: stop"]
    await choose(waiting["Sojourn: approve write new.txt"])
    await editor.said("Made 'new.txt'")

    mending = await offered(0, 0, "what is it\n" + "x" * 100)
    (title,) = mending
    assert title == f"Sojourn: mend “what is it {'x' * 68}…”"
    await choose(mending[title])
    await editor.said("Mended: what is it")


async def test_a_run_is_stopped_by_a_command_or_by_cancelling_its_progress(opened: Any) -> None:
    editor = await opened()
    await editor.do("sojourn.prompt", "slowly")
    await editor.until(editor.progress)
    (token,) = editor.client.progress_reports
    editor.client.window_work_done_progress_cancel(types.WorkDoneProgressCancelParams(token))
    await editor.said("The run has ended (stopped)")
    editor.client.messages.clear()
    await editor.do("sojourn.prompt", "slowly")
    assert (await editor.do("sojourn.stop"))["message"] == "Stopped."
    await editor.said("The run has ended (stopped)")
    assert (await editor.do("sojourn.stop"))["message"] == "Nothing was at work."


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("sojourn.dance", [], "There is no command 'sojourn.dance'"),
        ("sojourn.prompt", [], "There is nothing to say"),
        ("sojourn.prompt", [7], "takes a string or an object"),
        ("sojourn.prompt", [{"txet": "x"}], "txet"),
        ("sojourn.stop", [], "has no agent yet"),
        ("sojourn.approve", ["approval-none"], "There is no approval"),
        ("sojourn.prompt", [{"text": "x", "agentId": "nobody"}], "There is no agent 'nobody'"),
    ],
)
async def test_commands_that_cannot_be_done_say_why(
    opened: Any, command: str, arguments: list[Any], words: str
) -> None:
    editor = await opened()
    with pytest.raises(JsonRpcException, match=words):
        await editor.do(command, *arguments)


async def test_the_daemons_own_requests_have_ids_that_no_client_uses(daemon: DaemonProcess, tmp_path: Path) -> None:
    with Wire.unix(daemon.socket) as wire:
        wire.initialize(root_uri=tmp_path.as_uri())
        wire.call("workspace/executeCommand", {"command": "sojourn.prompt", "arguments": ["write it"]})
        asked = wire.request("window/showMessageRequest")
        assert asked["id"] >= 2**30
        assert wire.notifications == []  # nothing of ours that a language client does not know
        wire.reply(asked, {"title": "Deny"})
        assert "Denied" in wire.notification("window/showMessage")["message"]
