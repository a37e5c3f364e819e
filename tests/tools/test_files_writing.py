"""`write` and `edit`: exact, atomic, kept inside, and shown as a diff to which an approval is bound."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tool_fakes import FakeHost, file_tool
from tool_fakes import run_file_tool as run

from sojourn.core.approvals import Preview
from sojourn.tools import _text
from sojourn.tools import files as files_module
from sojourn.tools._places import Place
from sojourn.tools.files import FileTools

pytestmark = pytest.mark.anyio


async def preview(cwd: Path, name: str, ahead: dict[str, Any] | None = None, **args: Any) -> Preview:
    """What whoever approves the call is shown."""
    found = await file_tool(name).preview(args, FakeHost().context(name, cwd=str(cwd), extra={"ahead": ahead or {}}))
    assert isinstance(found, Preview)
    return found


# write


async def test_write_makes_files_and_their_directories_as_open_as_where_they_are(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(0o077)
    try:
        assert await run(tmp_path, "write", path="a/b/c.txt", content="one\ntwo") == "Made 'a/b/c.txt': 2 lines."
    finally:
        os.umask(before)
    assert (tmp_path / "a/b/c.txt").read_text() == "one\ntwo"
    assert [(tmp_path / path).stat().st_mode & 0o777 for path in ("a", "a/b", "a/b/c.txt")] == [0o755, 0o755, 0o644]


async def test_write_keeps_the_mode_and_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    assert await run(tmp_path, "write", path="run.sh", content="new\n") == "Wrote 'run.sh': 1 line."
    assert (script.read_text(), script.stat().st_mode & 0o777) == ("new\n", 0o750)
    assert os.listdir(tmp_path) == ["run.sh"]


async def test_write_keeps_the_access_list_the_attributes_and_the_group_bit_and_no_setuid(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("old")
    script.chmod(0o6770)
    try:
        os.setxattr(script, "user.origin", b"a form")
    except OSError:
        pytest.skip("the temporary directory's file system keeps no attributes")
    await run(tmp_path, "write", path="run.sh", content="new\n")
    assert os.getxattr(script, "user.origin") == b"a form"
    assert script.stat().st_mode & 0o7777 == 0o2770


async def test_a_hard_link_to_a_file_elsewhere_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("old")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/f").hardlink_to(tmp_path / "elsewhere")
    await run(tmp_path / "work", "write", path="f", content="new")
    assert (tmp_path / "elsewhere").read_text() == "old"
    assert (tmp_path / "work/f").read_text() == "new"


async def test_a_link_inside_is_written_through_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    await run(tmp_path, "write", path="link", content="new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


async def test_a_write_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_text("old")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert await run(tmp_path, "write", path="f", content="new") == (
        "error: 'f' cannot be written: No space left on device."
    )
    assert ((tmp_path / "f").read_text(), os.listdir(tmp_path)) == ("old", ["f"])


async def test_what_must_not_be_written_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "bin").write_bytes(b"\0\1")
    (tmp_path / "ro").write_text("x")
    (tmp_path / "ro").chmod(0o444)
    cases = {
        "dir": "a directory",
        "new/": "a directory",
        ".": "a directory",
        "bin": "not UTF-8 text",
        "ro": "read-only",
        "bin/x": "not a directory",
        "missing/../x": "There is no 'missing'",
    }
    for path, words in cases.items():
        answer = await run(tmp_path, "write", path=path, content="new")
        assert answer.startswith("error: "), path
        assert words in answer, path
    assert "NUL" in await run(tmp_path, "write", path="n", content="a\0")


async def test_writing_what_is_there_already_is_no_change(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("same")
    assert "has that text already" in await run(tmp_path, "write", path="f", content="same")


async def test_two_writers_of_a_new_file_do_not_overwrite_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else makes the file at the last moment."""
    put = Place.put

    def late(self: Place, data: bytes, *, still: Any) -> None:
        put(self, data, still=lambda: (tmp_path / "f").write_text("theirs"))

    monkeypatch.setattr(Place, "put", late)
    assert "made by somebody else" in await run(tmp_path, "write", path="f", content="ours")
    assert ((tmp_path / "f").read_text(), os.listdir(tmp_path)) == ("theirs", ["f"])


# edit


@pytest.mark.parametrize(
    ("before", "args", "after"),
    [
        ("a b c", {"old_text": "b", "new_text": "B"}, "a B c"),
        ("a b\nc b", {"old_text": "b", "new_text": "", "replace_all": True}, "a \nc "),
        ("x\r\ny\r\n", {"old_text": "x\ny", "new_text": "x\nz"}, "x\r\nz\r\n"),
        ("x\r\ny\n", {"old_text": "y\n", "new_text": "z\n"}, "x\r\nz\n"),
        ("\ufeffé 😀", {"old_text": "é 😀", "new_text": "e"}, "\ufeffe"),
        (r"a\1(b)", {"old_text": r"\1(b)", "new_text": r"\g<0>"}, r"a\g<0>"),
    ],
)
async def test_edit_replaces_exactly(tmp_path: Path, before: str, args: dict[str, Any], after: str) -> None:
    (tmp_path / "f").write_bytes(before.encode())
    assert await run(tmp_path, "edit", path="f", **args) == "Edited 'f'."
    assert (tmp_path / "f").read_bytes() == after.encode()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"old_text": "nowhere", "new_text": "x"}, "old_text does not stand in 'f'. Read"),
        ({"old_text": "one  two", "new_text": "x"}, "(line 1 differs in white space only)"),
        ({"old_text": "aa", "new_text": "x"}, "more than once (lines 2, 2)"),
        ({"old_text": "o", "new_text": "x"}, "more than once (lines 1, 1, 3, 3, 3 and more)"),
        ({"old_text": "", "new_text": "x"}, "old_text is empty"),
        ({"old_text": "one", "new_text": "one"}, "are the same"),
        ({"old_text": "one"}, "'new_text': Field required"),
    ],
)
async def test_edit_says_why_it_did_not(tmp_path: Path, args: dict[str, Any], words: str) -> None:
    (tmp_path / "f").write_text("one two\naaa\nooooo\n")
    answer = await run(tmp_path, "edit", path="f", **args)
    assert answer.startswith("error: ")
    assert words in answer
    assert (tmp_path / "f").read_text() == "one two\naaa\nooooo\n"


async def test_edit_makes_no_file_and_touches_no_binary(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"caf\xe9 x")
    assert "write makes new files" in await run(tmp_path, "edit", path="new", old_text="a", new_text="b")
    assert "not UTF-8 text" in await run(tmp_path, "edit", path="b", old_text="x", new_text="y")


async def test_edits_of_one_file_at_once_are_all_done(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(" ".join(f"<{n}>" for n in range(8)))
    files = FileTools()
    edits = [run(tmp_path, "edit", files=files, path="f", old_text=f"<{n}>", new_text=str(n)) for n in range(8)]
    assert set(await asyncio.gather(*edits)) == {"Edited 'f'."}
    assert (tmp_path / "f").read_text() == "0 1 2 3 4 5 6 7"


async def test_changes_of_one_file_wait_in_line_in_the_order_of_their_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locate, put, fourth, found, done = files_module._locate, Place.put, threading.Event(), [], []

    def slow_at_first(ctx: Any, path: str) -> tuple[str, str]:
        found.append(path)
        if len(found) == 1:
            fourth.wait(0.3)  # the next ones come first, if they can
        elif len(found) == 4:
            fourth.set()
        return locate(ctx, path)

    def noted(self: Place, data: bytes, *, still: Any) -> None:
        put(self, data, still=still)
        done.append(data)

    monkeypatch.setattr(files_module, "_locate", slow_at_first)
    monkeypatch.setattr(Place, "put", noted)
    files = FileTools()
    await asyncio.gather(*(run(tmp_path, "write", files=files, path="f", content=f"{n}") for n in range(4)))
    assert done == [b"0", b"1", b"2", b"3"]


async def test_a_change_that_is_stopped_in_line_lets_the_next_one_come_after_the_one_before() -> None:
    first = files_module._Turn(None)
    second = files_module._Turn(first)
    third = files_module._Turn(second)
    async with asyncio.timeout(10):
        async with first:
            stopped, next_one = asyncio.create_task(second.__aenter__()), asyncio.create_task(third.__aenter__())
            await asyncio.sleep(0)
            stopped.cancel()
            assert isinstance((await asyncio.gather(stopped, return_exceptions=True))[0], asyncio.CancelledError)
            await asyncio.sleep(0)
            assert not next_one.done()
        await next_one


# what is approved is what is done


async def test_a_preview_is_a_diff_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"line {n}\n" for n in range(1, 100)))
    shown = await preview(tmp_path, "edit", path="./f", old_text="line 50\n", new_text="line fifty\n")
    assert shown.path == "f"
    assert shown.text.splitlines()[:3] == ["--- a/f", "+++ b/f", "@@ -47,7 +47,7 @@"]
    assert shown.text.splitlines()[5:8] == [" line 49", "-line 50", "+line fifty"]
    assert shown.base_sha256 == _text.sha256((tmp_path / "f").read_text())
    new = await preview(tmp_path, "write", path="a/b", content="x")
    assert (new.text, new.base_sha256) == (
        "--- /dev/null\n+++ b/a/b\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n",
        None,
    )
    assert os.listdir(tmp_path) == ["f"]


async def test_a_file_that_changed_after_the_approval_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one two")
    args = {"path": "f", "old_text": "two", "new_text": "2"}
    shown = await preview(tmp_path, "edit", **args)
    (tmp_path / "f").write_text("ONE two")
    answer = await run(tmp_path, "edit", approved=shown, **args)
    assert "has changed since" in answer
    assert (tmp_path / "f").read_text() == "ONE two"
    (tmp_path / "f").write_text("one two")
    assert await run(tmp_path, "edit", approved=shown, **args) == "Edited 'f'."


async def test_a_new_file_that_somebody_made_after_the_approval_is_left_alone(tmp_path: Path) -> None:
    shown = await preview(tmp_path, "write", path="f", content="ours")
    (tmp_path / "f").write_text("theirs")
    assert "has changed since" in await run(tmp_path, "write", approved=shown, path="f", content="ours")
    assert (tmp_path / "f").read_text() == "theirs"


async def test_the_file_is_looked_at_again_at_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_text("one")
    put = Place.put

    def late(self: Place, data: bytes, *, still: Any) -> None:
        (tmp_path / "f").write_text("theirs")
        put(self, data, still=still)

    monkeypatch.setattr(Place, "put", late)
    assert "has changed since" in await run(tmp_path, "edit", path="f", old_text="one", new_text="1")
    assert ((tmp_path / "f").read_text(), os.listdir(tmp_path)) == ("theirs", ["f"])


async def test_previews_of_one_turn_build_on_one_another(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a\nb\n")
    ahead: dict[str, Any] = {"": ""}
    first = await preview(tmp_path, "edit", ahead, path="f", old_text="a", new_text="A")
    second = await preview(tmp_path, "edit", ahead, path="f", old_text="b", new_text="B")
    assert second.base_sha256 == _text.sha256("A\nb\n")
    assert "has changed" in await run(tmp_path, "edit", approved=second, path="f", old_text="b", new_text="B")
    for shown, old in ((first, "a"), (second, "b")):
        await run(tmp_path, "edit", approved=shown, path="f", old_text=old, new_text=old.upper())
    assert (tmp_path / "f").read_text() == "A\nB\n"


async def test_a_large_change_is_cut_in_the_preview_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"{n}\n" for n in range(20_000)))
    shown = await preview(tmp_path, "write", path="f", content="".join(f"{n}!\n" for n in range(20_000)))
    assert shown.truncated
    assert len(shown.text) < 41_000
    assert shown.text.splitlines()[-1].endswith("more lines of this change are not shown]")
    assert shown.text.splitlines()[2] == "@@ -1,20000 +1,20000 @@"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\n", ""),
        ("", "a"),
        ("a", "a\n"),
        ("a\nb\nc\n", "c\nb\na\n"),
        ("x\n" * 20, "x\n" * 21),
        ("a\n" * 9 + "b", "b"),
    ],
)
def test_a_diff_can_be_applied(tmp_path: Path, before: str, after: str) -> None:
    """By patch(1)'s rules: a reader of our own puts the new text together again."""
    assert patched(before, _text.unified_diff("f", before, after)) == after


def patched(before: str, diff: str) -> str:
    """The text that a unified diff makes of `before`."""
    old = before.splitlines(keepends=True)
    new: list[str] = []
    place = 0
    lines = diff.splitlines(keepends=True)[2:]
    for number, line in enumerate(lines):
        bare = number + 1 < len(lines) and lines[number + 1].startswith("\\")
        text = line[1:].rstrip("\n") if bare else line[1:]
        if line.startswith("@@"):
            start, _, count = line.split()[1][1:].partition(",")
            begin = int(start) - (count != "0")
            new += old[place:begin]
            place = begin
        elif line[0] in " -":
            assert old[place] == text
            place += 1
            new += [text] if line[0] == " " else []
        elif line[0] == "+":
            new.append(text)
    return "".join([*new, *old[place:]])
