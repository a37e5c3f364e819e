"""The file tools against what is made to hold the daemon up, and `.gitignore` against git itself."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tool_fakes import FakeHost, run_file_tool

from sojourn.tools import _ignore, _tree
from sojourn.tools.files import FileTools

pytestmark = pytest.mark.anyio


async def run(cwd: Path, name: str, host: FakeHost | None = None, **args: Any) -> str:
    """What the tool answers where no ripgrep is at hand."""
    return await run_file_tool(cwd, name, FileTools(rg=lambda: None), host=host, **args)


async def longest_pause(work: Any) -> tuple[Any, float]:
    """What `work` answers, and how long the loop could not do anything else meanwhile, at most."""
    task, worst = asyncio.ensure_future(work), 0.0
    while not task.done():
        before = time.monotonic()
        await asyncio.sleep(0)
        worst = max(worst, time.monotonic() - before)
    return task.result(), worst


# .gitignore


@pytest.mark.parametrize(
    "line",
    ["*a*a*a*a*a*a*a*a*a*a*a*a*b", "**/*a*a*a*a*a*a*a*a*a*b", "x/**/**/**/**/**/**/**/**/b", "*[a]*[a]*[a]*[a]*[a]b"],
)
async def test_a_line_of_many_stars_holds_nothing_up(tmp_path: Path, line: str) -> None:
    (tmp_path / ".gitignore").write_text(f"{line}\n")
    deep = tmp_path / "/".join(["x"] * 30)
    deep.mkdir(parents=True)
    (deep / ("a" * 200)).write_text("x")
    answer, worst = await longest_pause(run(tmp_path, "glob", pattern="aaa*"))
    assert answer == f"{deep.relative_to(tmp_path)}/{'a' * 200}"
    assert worst < 2


async def test_of_very_many_lines_the_first_are_used_and_that_is_said(tmp_path: Path) -> None:
    lines = [f"*{n}.o" for n in range(_ignore.MAX_PATTERNS)]
    (tmp_path / ".gitignore").write_text("\n".join([*lines, "*.late", *(f"name{n}" for n in range(5_000)), "x" * 1001]))
    for name in ("7.o", "x.late", "name4999", "kept"):
        (tmp_path / name).write_text("x")
    kept, note = (await run(tmp_path, "glob", pattern="*")).split("\n[")
    assert kept.split("\n") == [".gitignore", "kept", "x.late"]
    assert note == "Only the first 1000 patterns of .gitignore were used.]"


async def test_the_time_limit_holds_among_the_files_of_one_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitignore").write_text("*.o\n")
    for n in range(20):
        (tmp_path / f"f{n}").write_text("x")
    ticks = itertools.count()
    monkeypatch.setattr(_tree.time, "monotonic", lambda: float(next(ticks)))
    answer = await run(tmp_path, "glob", pattern="*")
    assert "The search ended after 10 seconds" in answer
    assert "f19" not in answer


@pytest.mark.parametrize(("name", "pattern"), [("glob", "*"), ("grep", "x")])
async def test_a_walk_ends_when_the_run_is_stopped(tmp_path: Path, name: str, pattern: str) -> None:
    (tmp_path / "f").write_text("x")
    host = FakeHost()
    host.stop = True
    assert "The search was stopped." in await run(tmp_path, name, host, pattern=pattern)


LINES = [
    *("*.log", "/build/", "!keep.log", "bad[", "sub/b", "a/**/b", "**/c", "a/**", "!a/x", "#x", r"\#x", r"\!x", "x\\"),
    *(
        "[a-c]",
        "[!a-c]",
        "[^a-c]",
        "[]x]",
        "[[:digit:]]",
        r"[\]]",
        "a?",
        r"a\?",
        "**",
        "/*",
        "!/sub",
        "sub/",
        "x ",
        r"x\ ",
    ),
    *("a**b", "**/sub/b", "/**/b", "sub/**/", "[z-a]", "", " ", "/", "!"),
]
NAMES = ["a.log", "keep.log", "bad[", "b", "c", "x", "#x", "!x", "x ", "]", "7", "a?", "ab", "acb", "d"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize(
    "lines",
    [[line] for line in LINES]
    + [[one, other, third] for one, other, third in zip(LINES, LINES[5:], LINES[9:], strict=False)],
)
async def test_a_gitignore_is_read_as_git_reads_it(tmp_path: Path, lines: list[str]) -> None:
    for directory in ("", "sub", "a", "a/sub", "build"):
        (tmp_path / directory).mkdir(exist_ok=True)
        for name in NAMES:
            if not (tmp_path / directory / name).exists():
                (tmp_path / directory / name).write_text("x")
    (tmp_path / ".gitignore").write_text("\n".join(lines) + "\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    command = ["git", "-c", "core.excludesFile=/dev/null", "ls-files", "-z", "-o", "--exclude-standard"]
    shown = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    expected = sorted(filter(None, shown.split("\0")), key=lambda path: path.split("/"))
    assert await run(tmp_path, "glob", pattern="**") == ("\n".join(expected) or "No file fits.")


# edit


async def test_a_large_text_that_nearly_fits_holds_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a " * 4_000_000)
    words = "a " * 1_500 + "b"
    answer, worst = await longest_pause(run(tmp_path, "edit", path="f", old_text=words, new_text="x"))
    assert answer == "error: old_text does not stand in 'f'. Read the file and copy it exactly."
    assert worst < 2


async def test_the_line_of_a_text_that_differs_in_white_space_is_said(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a b\n\n  if x:\n\t\treturn  1\n")
    answer = await run(tmp_path, "edit", path="f", old_text="x:\n    return 1", new_text="x")
    assert "(line 3 differs in white space only)" in answer


async def test_replacing_everywhere_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a" * 1_000_000)
    args = {"path": "f", "old_text": "a", "new_text": "b" * 1_000_000, "replace_all": True}
    assert "would be too long: more than 10485760 characters" in await run(tmp_path, "edit", **args)


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"one\r\ntwo\r\n", "one", "1\n2", b"1\r\n2\r\ntwo\r\n"),
        (b"one\r\ntwo\r\n", "one", "1\r\n2", b"1\r\n2\r\ntwo\r\n"),
        (b"one\r\ntwo\r\n", "one\ntwo", "1\n2", b"1\r\n2\r\n"),
        (b"one\ntwo\n", "one", "1\n2", b"1\n2\ntwo\n"),
        (b"one\ntwo\n", "one", "1\r\n2", b"1\r\n2\ntwo\n"),
        (b"a\r\none\ntwo\n", "one", "1\n2", b"a\r\n1\n2\ntwo\n"),
        (b"a\r\none\ntwo\n", "one\ntwo", "1\n2", b"a\r\n1\n2\n"),
    ],
)
async def test_an_edit_keeps_to_the_line_ends_of_the_file(
    tmp_path: Path, before: bytes, old: str, new: str, after: bytes
) -> None:
    (tmp_path / "f").write_bytes(before)
    assert await run(tmp_path, "edit", path="f", old_text=old, new_text=new) == "Edited 'f'."
    assert (tmp_path / "f").read_bytes() == after


# grep


async def test_a_pattern_that_takes_too_much_memory_is_said_and_what_was_found_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("found\n")
    (tmp_path / "b").write_text("aaab\n")
    answer = await run(tmp_path, "grep", pattern="found|(?R)")
    assert answer.split("\n") == [
        "a:1: found",
        "[The search was ended: the pattern takes too much memory here; a simpler one does not.]",
    ]


ODD = "two\nlines:1: needle\x1b[31m"


@pytest.mark.parametrize(
    ("name", "args", "lines"),
    [
        ("list", {}, [repr(ODD), "link -> 'a\\nb'", repr("sub\r/")]),
        ("glob", {"pattern": "**"}, [repr("sub\r/f"), repr(ODD)]),
        ("grep", {"pattern": "needle"}, [f"{'sub' + chr(13) + '/f'!r}:1: a needle", f"{ODD!r}:1: needle"]),
    ],
)
async def test_a_name_of_several_lines_is_told_as_one(
    tmp_path: Path, name: str, args: dict[str, Any], lines: list[str]
) -> None:
    (tmp_path / ODD).write_text("needle\n")
    (tmp_path / "link").symlink_to("a\nb")
    (tmp_path / "sub\r").mkdir()
    (tmp_path / "sub\r/f").write_text("a needle\n")
    assert sorted((await run(tmp_path, name, **args)).split("\n")) == sorted(lines)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
async def test_a_gitignore_that_is_no_file_is_none(tmp_path: Path, make: Any) -> None:
    make(tmp_path / ".gitignore")
    (tmp_path / "f").write_text("needle\n")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(10):
        assert await run(tmp_path, "grep", pattern="needle") == "f:1: needle"
        assert await run(tmp_path, "glob", pattern="f") == "f"
    if before:
        assert len(os.listdir("/proc/self/fd")) < before + 10, "descriptors are left open"


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs a file that opens and cannot be read")
async def test_a_file_that_cannot_be_read_costs_itself_only(tmp_path: Path) -> None:
    place = Path(f"/proc/{os.getpid()}")
    assert await run(place, "read", path="mem") == "error: 'mem' cannot be read: Input/output error."
    assert await run(place, "grep", pattern=f"^PPid:\t{os.getppid()}$", glob="{mem,status}") != "Nothing matches."
    assert await run(place, "edit", path="mem", old_text="a", new_text="b") == (
        "error: 'mem' cannot be read: Input/output error."
    )


async def test_a_huge_file_of_nothing_is_told_from_text_by_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: (asked.append(at), pread(fd, size, at))[1])
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10 * 2**30)
    assert "is not text (10737418240 bytes)" in await run(tmp_path, "read", path="sparse", line=2**31)
    assert max(asked) == 0
