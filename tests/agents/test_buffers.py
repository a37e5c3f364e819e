"""Files that are open in an editor: read as they stand there, changed there, forgotten with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from house import Client, House, call, house

from sojourn.agents import buffers as room
from sojourn.core.documents import Position, Range
from sojourn.core.errors import ClientRefused
from sojourn.tools.files import FileTools

pytestmark = pytest.mark.anyio


@dataclass(eq=False)
class Editor(Client):
    """A connection with files open. `hub` hears of every change that it makes when it is asked to."""

    editor_name: str = "Ed"
    applies_edits: bool = True
    versioned_edits: bool = True


def whole(text: str) -> list[tuple[Range | None, str]]:
    return [(None, text)]


def at(line: int, start: int, end: int) -> Range:
    return Range(start=Position(line=line, character=start), end=Position(line=line, character=end))


def follows(h: House, editor: Editor, uri: str, text: str, version: int = 2) -> Callable[[Any], Any]:
    """An editor that applies what it is asked to and tells of the new text."""

    def apply(_params: dict[str, Any]) -> Any:
        h.hub.buffers.changed(editor, uri, version, whole(text))
        return {"applied": True}

    return apply


async def result(h: House) -> str:
    """What the tool of the run answered."""
    return next(text for role, text in await h.said() if role == "toolResult")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "f.txt").write_text("saved\n")
    return tmp_path / "work" / "f.txt"


READ = (call("read", path="f.txt"),)
EDIT = (call("edit", path="f.txt", old_text="unsaved", new_text="edited"),)
FREE = {"*": "allow"}


async def test_read_sees_the_buffer_until_it_is_closed(file: Path) -> None:
    async with house(READ, "1", READ, "2", READ, "3", extra_tools=FileTools().tools()) as h:
        editor, uri = Editor(), file.as_uri()
        await h.agent(cwd=str(file.parent))
        h.hub.buffers.opened(editor, uri, 1, "unsaved é\n")
        await h.prompt()
        h.hub.buffers.changed(editor, uri, 2, [(at(0, 0, 2), "UN"), (at(0, 8, 9), "e")])
        await h.prompt()
        h.hub.buffers.closed(editor, uri)
        await h.prompt()
        read = [text for role, text in await h.said() if role == "toolResult"]
    note = "[As it stands in 'Ed', where it is open.]"
    assert read == [f"unsaved é\n{note}", f"UNsaved e\n{note}", "saved\n"]


async def test_buffers_are_found_through_links_and_the_last_touched_counts(file: Path) -> None:
    (file.parent.parent / "alias").symlink_to(file.parent)
    (file.parent / "link.txt").symlink_to("f.txt")
    async with house((call("read", path="link.txt"),), "x", extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(file.parent))
        h.hub.buffers.opened(Editor(), (file.parent.parent / "alias" / "f.txt").as_uri(), 1, "newest\n")
        older = Editor(editor_name="Old")
        h.hub.buffers.opened(older, file.as_uri(), 1, "older\n")
        h.hub.buffers.closed(older, file.as_uri())
        await h.prompt()
        assert (await result(h)).startswith("newest\n")


async def test_an_edit_of_an_open_file_is_made_by_its_editor_against_its_version(file: Path) -> None:
    async with house(EDIT, READ, "done", extra_tools=FileTools().tools()) as h:
        editor, uri = Editor(), file.as_uri()
        editor.answers["workspace/applyEdit"] = follows(h, editor, uri, "😀 edited\n", 8)
        await h.agent(cwd=str(file.parent), approvals=FREE)
        h.hub.buffers.opened(editor, uri, 7, "😀 unsaved\n")
        await h.prompt()
        assert await result(h) == "Edited 'f.txt'. It is open in 'Ed' and was changed there, unsaved."
        ((method, params),) = editor.asked
        assert method == "workspace/applyEdit"
        (change,) = params["edit"]["documentChanges"]
        assert change == {
            "textDocument": {"uri": uri, "version": 7},
            "edits": [
                {
                    "range": {"start": {"line": 0, "character": 3}, "end": {"line": 0, "character": 8}},
                    "newText": "edit",
                }
            ],
        }
        assert (await h.said())[-2][1].startswith("😀 edited\n")
    assert file.read_text() == "saved\n"


async def test_an_editor_that_knows_no_versions_gets_plain_changes(file: Path) -> None:
    async with house(EDIT, "done", extra_tools=FileTools().tools()) as h:
        editor = Editor(versioned_edits=False)
        editor.answers["workspace/applyEdit"] = follows(h, editor, file.as_uri(), "edited\n")
        await h.agent(cwd=str(file.parent), approvals=FREE)
        h.hub.buffers.opened(editor, file.as_uri(), 7, "unsaved\n")
        await h.prompt()
        assert list(editor.asked[0][1]["edit"]) == ["changes"]


async def test_a_new_file_that_is_only_a_buffer_yet_is_written_there(tmp_path: Path) -> None:
    write = (call("write", path="new.txt", content="text"),)
    async with house(write, "done", extra_tools=FileTools().tools()) as h:
        editor, uri = Editor(), (tmp_path / "new.txt").as_uri()
        editor.answers["workspace/applyEdit"] = follows(h, editor, uri, "text")
        await h.agent(cwd=str(tmp_path), approvals=FREE)
        h.hub.buffers.opened(editor, uri, 1, "")
        await h.prompt()
        assert "was changed there" in await result(h)
    assert not (tmp_path / "new.txt").exists()


def says(answer: Any) -> Callable[[Any], Any]:
    def reply(_params: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return reply


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            {"applied": False, "failureReason": "version mismatch"},
            "did not make the change of 'f.txt': version mismatch",
        ),
        ({"applied": False}, "it may have been changed there meanwhile"),
        (None, "did not make the change"),
        ("yes", "did not make the change"),
        (ClientRefused(-32601, "unknown"), "'Ed' refused to change 'f.txt': unknown"),
        (ConnectionError("gone"), "'Ed' has left; whether 'f.txt' was changed is not known"),
    ],
)
async def test_what_an_editor_does_not_do_is_an_error_that_the_model_reads(file: Path, answer: Any, words: str) -> None:
    async with house(EDIT, "sorry", extra_tools=FileTools().tools()) as h:
        editor = Editor(answers={"workspace/applyEdit": says(answer)})
        await h.agent(cwd=str(file.parent), approvals=FREE)
        h.hub.buffers.opened(editor, file.as_uri(), 1, "unsaved\n")
        await h.prompt()
        assert words in await result(h)
    assert file.read_text() == "saved\n"


async def test_an_editor_that_does_not_answer_is_given_up(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "ANSWER_S", 0.05)
    async with house(EDIT, "sorry", extra_tools=FileTools().tools()) as h:
        editor = Editor(answers={"workspace/applyEdit": lambda _params: asyncio.Event().wait()})
        await h.agent(cwd=str(file.parent), approvals=FREE)
        h.hub.buffers.opened(editor, file.as_uri(), 1, "unsaved\n")
        await h.prompt()
        assert "has not answered" in await result(h)


async def test_an_editor_that_never_tells_of_its_change_holds_nothing_up(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "FOLLOW_S", 0.05)
    async with house(EDIT, "done", extra_tools=FileTools().tools()) as h:
        editor = Editor(answers={"workspace/applyEdit": says({"applied": True})})
        await h.agent(cwd=str(file.parent), approvals=FREE)
        h.hub.buffers.opened(editor, file.as_uri(), 1, "unsaved\n")
        await h.prompt()
        assert "was changed there" in await result(h)


async def test_a_buffer_that_changed_after_the_approval_is_left_alone(file: Path) -> None:
    async with house(EDIT, "sorry", extra_tools=FileTools().tools()) as h:
        editor = Editor(answers={"workspace/applyEdit": says({"applied": True})})
        await h.agent(cwd=str(file.parent))
        h.hub.buffers.opened(editor, file.as_uri(), 1, "unsaved\n")
        await h.start()
        await h.client.until("approvalRequested")
        (approval,) = await h.approvals()
        assert "-unsaved\n+edited\n" in approval["preview"]["text"]
        h.hub.buffers.changed(editor, file.as_uri(), 2, whole("unsaved, typed on\n"))
        await h.decide(approval["approvalId"])
        await h.client.until("agentEnd")
        assert "has changed since" in await result(h)
        assert editor.asked == []


async def test_a_buffer_that_changes_at_the_last_moment_is_left_alone(file: Path) -> None:
    async with house(extra_tools=FileTools().tools()) as h:
        editor = Editor()
        h.hub.buffers.opened(editor, file.as_uri(), 1, "unsaved\n")
        h.hub.buffers.settle()
        document = h.hub.buffers.at(str(file))
        assert document is not None
        h.hub.buffers.changed(editor, file.as_uri(), 2, whole("other\n"))
        with pytest.raises(room.NotChanged, match="was changed in 'Ed' meanwhile"):
            await h.hub.buffers.change(document, "edited\n")


@pytest.mark.parametrize(("buffer", "words"), [("unsaved\n", "takes no edits"), ("saved\n", "does not stand")])
async def test_an_editor_that_takes_no_edits_keeps_what_is_unsaved(file: Path, buffer: str, words: str) -> None:
    async with house(EDIT, "sorry", extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(file.parent), approvals=FREE)
        h.hub.buffers.opened(Editor(applies_edits=False), file.as_uri(), 1, buffer)
        await h.prompt()
        assert words in await result(h)


async def test_what_is_saved_is_edited_on_the_disk_when_its_editor_takes_no_edits(file: Path) -> None:
    edit = (call("edit", path="f.txt", old_text="saved", new_text="edited"),)
    async with house(edit, "done", extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(file.parent), approvals=FREE)
        h.hub.buffers.opened(Editor(applies_edits=False), file.as_uri(), 1, "saved\n")
        await h.prompt()
    assert file.read_text() == "edited\n"


async def test_buffers_go_with_their_editor(file: Path) -> None:
    async with house(READ, "x", extra_tools=FileTools().tools()) as h:
        editor = Editor()
        await h.agent(cwd=str(file.parent))
        h.hub.buffers.opened(editor, file.as_uri(), 1, "unsaved\n")
        h.hub.client_gone(editor)
        h.hub.buffers.changed(editor, file.as_uri(), 2, whole("late"))
        await h.prompt()
        assert await result(h) == "saved\n"


async def test_buffers_have_bounds_and_a_text_that_is_not_known_is_never_overwritten(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_TEXT", 20)
    monkeypatch.setattr(room, "MAX_ALL", 30)
    monkeypatch.setattr(room, "MAX_BUFFERS", 3)
    write = (call("write", path="f.txt", content="x"),)
    async with house((*READ, *write), "x", extra_tools=FileTools().tools()) as h:
        editor = Editor()
        await h.agent(cwd=str(file.parent), approvals=FREE)
        h.hub.buffers.opened(editor, file.as_uri(), 1, "x" * 21)
        await h.prompt()
        read, written = [text for role, text in await h.said() if role == "toolResult"]
        assert read == "saved\n[It is open in 'Ed', whose unsaved text is not known.]"
        assert "is not changed" in written
        uris = [file.with_name(f"{n}").as_uri() for n in range(4)]
        h.hub.buffers.changed(editor, file.as_uri(), 2, [(at(0, 0, 0), "lost"), (None, "y" * 15)])
        for uri in uris:
            h.hub.buffers.opened(editor, uri, 1, "z" * 14)
        known = [h.hub.buffers.at(str(file.with_name(name))) for name in ("f.txt", "0", "1", "2")]
        assert [one.text is not None if one else None for one in known] == [True, True, False, None]
    assert file.read_text() == "saved\n"


async def test_changes_that_make_no_sense_lose_the_text_until_the_whole_is_sent(file: Path) -> None:
    async with house(extra_tools=FileTools().tools()) as h:
        editor, uri, buffers = Editor(), file.as_uri(), h.hub.buffers
        buffers.opened(editor, "untitled:1", 1, "no file")
        buffers.changed(editor, "untitled:1", 2, whole("still none"))
        buffers.opened(editor, uri, 1, "abc")
        buffers.changed(editor, uri, 2, [(at(0, 2, 1), "x")])
        document = buffers.at(str(file))
        assert document is not None
        assert document.text is None
        buffers.changed(editor, uri, 3, [(at(0, 0, 1), "x"), (None, "new"), (at(0, 3, 99), "er")])
        document = buffers.at(str(file))
        assert document is not None
        assert document.text == "newer"
