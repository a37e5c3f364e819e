"""`read`, `list`, `glob` and `grep`: what they show, what they refuse, and that neither hangs."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import string
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tool_fakes import FakeHost
from tool_fakes import run_file_tool as run

from sojourn.core.messages import ImagePart
from sojourn.tools import _grep, _text, _tree
from sojourn.tools.files import FileTools

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
RG = shutil.which("rg", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
ENGINES = [
    pytest.param(lambda: None, id="library"),
    pytest.param(lambda: RG, id="ripgrep", marks=pytest.mark.skipif(RG is None, reason="ripgrep is not installed")),
]


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def test_reading_is_allowed_and_writing_asks() -> None:
    policies = {one.info.spec.name: one.info.approval for one in FileTools().tools()}
    assert policies == {
        "read": "allow",
        "write": "ask",
        "edit": "ask",
        "list": "allow",
        "glob": "allow",
        "grep": "allow",
    }


# what is outside stays outside


@pytest.fixture
def fenced(tmp_path: Path) -> Path:
    """A working directory with every way out that there is."""
    (tmp_path / "secret.txt").write_text("the secret")
    (tmp_path / "work-2").mkdir()
    (tmp_path / "work-2" / "secret.txt").write_text("the secret")
    work = write(tmp_path / "work", {"in.txt": "inside", "sub/deep.txt": "deep"})
    (work / "out").symlink_to("../secret.txt")
    (work / "out-dir").symlink_to("..")
    (work / "out-abs").symlink_to(tmp_path / "secret.txt")
    (work / "sub" / "up").symlink_to("../../secret.txt")
    (work / "twice").symlink_to("sub/up")
    (work / "loop").symlink_to("loop")
    (work / "near").symlink_to("sub/deep.txt")
    (work / "near-abs").symlink_to(work / "sub" / "deep.txt")
    (work / "sub" / "back").symlink_to("..")
    return work


OUT = [
    "../secret.txt",
    "sub/../../secret.txt",
    "out",
    "out-dir/secret.txt",
    "out-abs",
    "sub/up",
    "twice",
    "sub/back/../secret.txt",
    "near/../../../secret.txt",
    "/etc/hostname",
    "{root}/../secret.txt",
    "{root}-2/secret.txt",
    "{root}/out",
    "~/secret.txt",
    "OUT",
    "loop",
    "in.txt/../../secret.txt",
    "in.txt\0",
    "..",
    "./.././secret.txt",
]


@pytest.mark.parametrize("path", OUT)
async def test_nothing_outside_is_read_listed_searched_or_written(fenced: Path, path: str) -> None:
    path = path.format(root=fenced)
    for name, args in (
        ("read", {}),
        ("list", {}),
        ("glob", {"pattern": "*"}),
        ("grep", {"pattern": "secret"}),
        ("edit", {"old_text": "the secret", "new_text": "gone"}),
    ):
        answer = await run(fenced, name, path=path, **args)
        assert answer.startswith("error: "), (name, answer)
        assert "the secret" not in answer
    if path != "OUT":
        assert (await run(fenced, "write", path=path, content="gone")).startswith("error: ") or path.startswith("~")
    assert (fenced.parent / "secret.txt").read_text() == "the secret"
    assert (fenced.parent / "work-2" / "secret.txt").read_text() == "the secret"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("in.txt", "inside"),
        ("./sub/../in.txt", "inside"),
        ("{root}/in.txt", "inside"),
        ("sub//deep.txt", "deep"),
        ("near", "deep"),
        ("near-abs", "deep"),
        ("sub/back/sub/back/in.txt", "inside"),
    ],
)
async def test_links_and_dots_that_stay_inside_are_followed(fenced: Path, path: str, text: str) -> None:
    assert await run(fenced, "read", path=path.format(root=fenced)) == text


async def test_a_working_directory_that_is_a_link_is_one_like_any_other(tmp_path: Path) -> None:
    write(tmp_path / "real", {"a.txt": "a"})
    (tmp_path / "link").symlink_to("real")
    assert await run(tmp_path / "link", "read", path=f"{tmp_path}/link/a.txt") == "a"
    assert await run(tmp_path / "link", "read", path=f"{tmp_path}/real/a.txt") == "a"


@pytest.mark.parametrize("cwd", ["", "relative", "/nowhere/at/all"])
async def test_without_a_working_directory_there_are_no_files(cwd: str) -> None:
    assert "working directory" in await run(cwd, "read", path="a.txt")


SWAP = """
import os
while True:
    os.rename("swap", "kept")
    os.rename("evil", "swap")
    os.rename("swap", "evil")
    os.rename("kept", "swap")
"""


async def test_swapping_a_directory_for_a_link_never_lets_anything_out(fenced: Path) -> None:
    """Somebody renames and links as fast as they can while the tools read and write."""
    write(fenced, {"swap/secret.txt": "harmless"})
    (fenced / "evil").symlink_to("..")
    child = subprocess.Popen([sys.executable, "-c", SWAP], cwd=fenced)
    try:
        files = FileTools(rg=lambda: RG)
        answers = set()
        for _ in range(40):
            answers.add(await run(fenced, "read", files, path="swap/secret.txt"))
            answers.add(await run(fenced, "write", files, path="swap/secret.txt", content="harmless"))
        for _ in range(5):
            answers.add(await run(fenced, "grep", files, pattern="secret|harmless"))
    finally:
        child.kill()
        child.wait()
    assert not any("the secret" in answer for answer in answers)
    assert (fenced.parent / "secret.txt").read_text() == "the secret"


async def test_pipes_sockets_and_devices_are_refused_without_hanging(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(os.path.relpath(tmp_path / "sock"))
        for name, kind in (("pipe", "pipe"), ("sock", "socket")):
            assert f"is a {kind}" in await run(tmp_path, "read", path=name)
            assert f"is a {kind}" in await run(tmp_path, "write", path=name, content="x")
        assert "is a device" in await run("/dev", "read", path="null")
        assert await run(tmp_path, "grep", pattern="x") == "Nothing matches."
        assert await run(tmp_path, "glob", pattern="*") == "No file fits."


# read


@pytest.mark.parametrize(
    ("data", "args", "shown"),
    [
        (b"a\nb\nc\n", {}, "a\nb\nc\n"),
        (b"a\nb\nc\n", {"line": 2, "lines": 1}, "b\n[Lines 2 to 2; 1 follow, go on with line=3.]"),
        (b"a\nb\nc", {"line": 3}, "c[Lines 3 to 3, the last one.]"),
        (b"a\nb\nc", {"line": 9}, "[There is no line 9: it has 3 lines.]"),
        (b"", {}, "[The file is empty.]"),
        (b"\n", {}, "\n"),
        (b"a\r\nb\r\n", {}, "a\nb\n[Its lines end with CRLF.]"),
        (b"caf\xe9\n", {}, "caf\ufffd\n[It is not UTF-8; what could not be read is shown as \ufffd.]"),
        (b"\xef\xbb\xbfa\n", {}, "\ufeffa\n"),
    ],
)
async def test_read_shows_lines_and_says_what_it_left_out(
    tmp_path: Path, data: bytes, args: dict[str, int], shown: str
) -> None:
    (tmp_path / "f").write_bytes(data)
    assert await run(tmp_path, "read", path="f", **args) == shown


async def test_read_stops_at_its_limits_and_tells_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"{n}\n" for n in range(1, 5001)))
    answer = await run(tmp_path, "read", path="f")
    assert answer.endswith("2000\n[Lines 1 to 2000; 3000 follow, go on with line=2001.]")
    (tmp_path / "g").write_text(("x" * 999 + "\n") * 1000)
    assert "[Lines 1 to 131; 869 follow, go on with line=132.]" in await run(tmp_path, "read", path="g")


async def test_a_giant_line_is_cut_and_the_next_one_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 3_000_000 + b"\nlast\n")
    answer = await run(tmp_path, "read", path="f")
    assert len(answer) < 2200
    assert "1 follow, go on with line=2" in answer
    assert "Cut after 2000 bytes: line 1" in answer
    assert (await run(tmp_path, "read", path="f", line=2)).startswith("last\n")


async def test_a_huge_file_is_read_in_no_time(tmp_path: Path) -> None:
    with open(tmp_path / "f", "wb") as file:
        file.write(b"first\nsecond\n")
        file.truncate(50 << 30)
        file.seek(50 << 30)
    began = time.monotonic()
    assert "is not text" in await run(tmp_path, "read", path="f")
    assert time.monotonic() - began < 5


async def test_binary_is_refused_kindly_and_images_are_shown(tmp_path: Path) -> None:
    write(tmp_path, {"b": b"\x7fELF\0\0\0", "p.dat": PNG, "big.png": PNG + bytes(5 << 20)})
    assert "'b' is not text (7 bytes)" in await run(tmp_path, "read", path="b")
    assert "an image of" in await run(tmp_path, "read", path="big.png")
    read = next(one for one in FileTools().tools() if one.info.spec.name == "read")
    (part,) = (await read.execute({"path": "p.dat"}, FakeHost().context(cwd=str(tmp_path)))).content
    assert isinstance(part, ImagePart)
    assert part.mime_type == "image/png"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8", "image/webp"),
        (b"RIFF", None),
    ],
)
def test_images_are_known_by_their_first_bytes(head: bytes, kind: str | None) -> None:
    assert _text.image_type(head) == kind


async def test_directories_and_what_is_missing_are_said_in_words(tmp_path: Path) -> None:
    write(tmp_path, {"d/f": "x"})
    assert await run(tmp_path, "read", path="d") == "error: 'd' is a directory, not a file."
    assert await run(tmp_path, "read", path="e") == "error: There is no 'e' in the working directory."
    assert await run(tmp_path, "read", path="e/f") == "error: There is no 'e' in the working directory."
    assert await run(tmp_path, "read", path="d/f/g") == "error: 'd/f' is not a directory."
    assert await run(tmp_path, "list", path="d/f") == "error: 'd/f' is not a directory."


# list and glob


async def test_list_shows_names_with_their_kind(tmp_path: Path) -> None:
    write(tmp_path, {"b.txt": "", "a/x": "", ".hidden": ""})
    (tmp_path / "l").symlink_to("b.txt")
    assert await run(tmp_path, "list") == ".hidden\na/\nb.txt\nl -> b.txt"
    (tmp_path / "empty").mkdir()
    assert await run(tmp_path, "list", path="empty") == "The directory is empty."


async def test_long_lists_end_with_a_word_of_what_is_missing(tmp_path: Path) -> None:
    for number in range(1005):
        (tmp_path / f"f{number:04}").touch()
    assert (await run(tmp_path, "list")).endswith("f0999\n[5 more names are not shown.]")
    assert (await run(tmp_path, "glob", pattern="f*")).endswith(
        "f0999\n[Only the first 1000 are shown; there are more.]"
    )


FILES: dict[str, str | bytes] = {
    "README.md": "",
    "src/a.py": "",
    "src/b.js": "",
    "src/deep/er/c.py": "",
    "src/deep/d.ts": "",
    ".github/w.yml": "",
}


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("*.py", ".", ["src/a.py", "src/deep/er/c.py"]),
        ("**/*.py", ".", ["src/a.py", "src/deep/er/c.py"]),
        ("src/*.py", ".", ["src/a.py"]),
        ("src/**", ".", ["src/a.py", "src/b.js", "src/deep/d.ts", "src/deep/er/c.py"]),
        ("*.{js,ts}", ".", ["src/b.js", "src/deep/d.ts"]),
        ("*.py", "src/deep", ["src/deep/er/c.py"]),
        ("/*.md", ".", ["README.md"]),
        ("?.[jp]*", ".", ["src/a.py", "src/b.js", "src/deep/er/c.py"]),
        ("*.yml", ".", [".github/w.yml"]),
        ("**/er/**", ".", ["src/deep/er/c.py"]),
    ],
)
async def test_glob_finds_files_by_their_names(tmp_path: Path, pattern: str, path: str, found: list[str]) -> None:
    write(tmp_path, FILES)
    assert await run(tmp_path, "glob", pattern=pattern, path=path) == "\n".join(found)


@pytest.mark.parametrize("pattern", ["", "/", "{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}", "a\0b"])
async def test_patterns_that_are_none_are_refused(tmp_path: Path, pattern: str) -> None:
    assert (await run(tmp_path, "glob", pattern=pattern)).startswith("error: ")


async def test_patterns_of_many_stars_cost_nothing(tmp_path: Path) -> None:
    (tmp_path / ("a" * 200)).touch()
    began = time.monotonic()
    await run(tmp_path, "glob", pattern="*a" * 100 + "b")
    await run(tmp_path, "glob", pattern="**/" * 100 + "b")
    assert time.monotonic() - began < 2


async def test_what_git_ignores_is_left_out_unless_asked_for(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".gitignore": "*.log\n/build/\n!keep.log\nbad[\n",
            "a.log": "x",
            "keep.log": "x",
            "build/o": "x",
            "sub/build/o": "x",
            "sub/.gitignore": "!a.log\no2\n",
            "sub/a.log": "x",
            "sub/o2": "x",
            ".git/config": "x",
        },
    )
    kept = ["sub/.gitignore", "sub/a.log", "sub/build/o", ".gitignore", "keep.log"]
    assert (await run(tmp_path, "glob", pattern="**")).split("\n") == sorted(kept)
    every = await run(tmp_path, "glob", pattern="**", ignored=True)
    assert ".git/config" not in every
    assert {"a.log", "build/o", "sub/o2"} < set(every.split("\n"))


async def test_a_walk_says_when_it_ended_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {f"f{n}": "x" for n in range(20)})
    monkeypatch.setattr(_tree, "MAX_ENTRIES", 5)
    assert (await run(tmp_path, "glob", pattern="f*")).endswith(
        "[Only the first 5 names were looked at; name a smaller directory.]"
    )
    monkeypatch.setattr(_tree, "MAX_SECONDS", -1)
    assert "ended after" in await run(tmp_path, "grep", pattern="x")


# grep


@pytest.mark.parametrize("rg", ENGINES)
@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ({"pattern": "beta"}, "a.txt:2: beta\nsub/b.py:1: # beta"),
        ({"pattern": "BETA", "ignore_case": True}, "a.txt:2: beta\nsub/b.py:1: # beta"),
        ({"pattern": "BETA"}, "Nothing matches."),
        ({"pattern": "^beta$"}, "a.txt:2: beta"),
        ({"pattern": "beta", "glob": "*.py"}, "sub/b.py:1: # beta"),
        ({"pattern": "beta", "path": "sub"}, "sub/b.py:1: # beta"),
        ({"pattern": "beta", "path": "a.txt"}, "a.txt:2: beta"),
        ({"pattern": "a.b", "literal": True}, "c.txt:2: a.b"),
        ({"pattern": "-x"}, "c.txt:3: -x"),
        ({"pattern": "end$"}, "crlf.txt:1: the end"),
        ({"pattern": "gamma", "context": 1}, "a.txt-2- beta\na.txt:3: gamma\na.txt-4- delta"),
        (
            {"pattern": "[ab]et", "context": 5, "path": "a.txt"},
            "a.txt-1- alpha\na.txt:2: beta\na.txt-3- gamma\na.txt-4- delta",
        ),
        ({"pattern": "(?<=the )end(?=$)"}, "crlf.txt:1: the end"),
    ],
)
async def test_grep_finds_lines(tmp_path: Path, rg: Any, args: dict[str, Any], shown: str) -> None:
    write(
        tmp_path,
        {
            "a.txt": "alpha\nbeta\ngamma\ndelta\n",
            "sub/b.py": "# beta\n",
            "c.txt": "axb\na.b\n-x",
            "crlf.txt": "the end\r\nthe ending\r\n",
            "bin": b"beta\0beta",
            "latin": b"beta \xe9\n",
        },
    )
    assert await run(tmp_path, "grep", FileTools(rg=rg), **args) == shown


@pytest.mark.parametrize("rg", ENGINES)
async def test_grep_has_limits_and_says_so(tmp_path: Path, rg: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sojourn.tools.files.MAX_FILE", 20_000)
    write(tmp_path, {"a": "hit\n" * 150, "b": "hit\n" * 300, "c": "hit" * 10_000, "d": "hit\n"})
    answer = await run(tmp_path, "grep", FileTools(rg=rg), pattern="hit")
    lines = answer.split("\n")
    assert lines[:2] == ["a:1: hit", "a:2: hit"]
    assert lines[199:] == [
        "b:50: hit",
        "[Only the first 200 matches are shown; there are more.]",
        "[Not searched, more than 20000 bytes: c.]",
    ]
    (tmp_path / "e").write_text("y" * 5000 + "needle")
    assert (await run(tmp_path, "grep", FileTools(rg=rg), pattern="needle")).startswith(
        "e:1: " + "y" * 300 + " [cut: 5006 characters]"
    )


@pytest.mark.parametrize("pattern", ["", "(", "a\nb", "x" * 2000, "[a"])
async def test_what_is_no_pattern_is_refused_in_words(tmp_path: Path, pattern: str) -> None:
    write(tmp_path, {"a": "x"})
    assert (await run(tmp_path, "grep", pattern=pattern)).startswith("error: ")


async def test_a_catastrophic_pattern_ends_in_time_and_lets_the_loop_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_grep, "MAX_SECONDS", 0.5)
    write(tmp_path, {"a": "a" * 5000 + "!"})
    lag = 0.0

    async def tick() -> None:
        nonlocal lag
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            lag = max(lag, time.monotonic() - before)

    ticking = asyncio.create_task(tick())
    began = time.monotonic()
    answer = await run(tmp_path, "grep", FileTools(rg=lambda: None), pattern=r"^(a|a?)+(?=b)$")
    ticking.cancel()
    assert "ended after 0.5 seconds" in answer
    assert time.monotonic() - began < 5
    assert lag < 0.4


async def test_files_that_are_only_looked_at_count_against_the_time_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {f"{number:03}.bin": b"\0" * 8 for number in range(200)})
    read = _grep._text

    def slowly(root: Any, path: str) -> str | None:
        time.sleep(0.01)
        return read(root, path)

    monkeypatch.setattr(_grep, "_text", slowly)
    monkeypatch.setattr(_grep, "MAX_SECONDS", 0.1)
    began = time.monotonic()
    answer = await run(tmp_path, "grep", FileTools(rg=lambda: None), pattern="x")
    assert "ended after 0.1 seconds" in answer
    assert time.monotonic() - began < 1.5


@pytest.mark.skipif(RG is None, reason="ripgrep is not installed")
async def test_ripgrep_and_the_library_answer_alike(tmp_path: Path) -> None:
    """Random patterns over random texts."""
    chance = random.Random(7)
    atoms = [
        "a",
        "b",
        ".",
        r"\w",
        r"\s",
        r"\d",
        "[ab]",
        "[^a]",
        r"\b",
        "^",
        "$",
        r"\.",
        "x",
        "(?:a|b)",
        "(a)",
        "[$]",
        r"\B",
    ]
    more = ["", "", "", "*", "+", "?", "{1,2}", "*?"]
    for number in range(12):
        lines = ["".join(chance.choice("ab x.$1_\té") for _ in range(chance.randrange(12))) for _ in range(9)]
        (tmp_path / f"f{number}").write_text(chance.choice(["\n", "\r\n"]).join(lines) + chance.choice(["", "\n"]))
    for _ in range(120):
        pieces = [chance.choice(atoms) for _ in range(chance.randrange(1, 4))]
        pattern = "".join(
            piece if piece in "^$" or piece[:2] in (r"\b", r"\B") else piece + chance.choice(more) for piece in pieces
        )
        options = {"pattern": pattern, "ignore_case": chance.random() < 0.3}
        both = [await run(tmp_path, "grep", FileTools(rg=rg), **options) for rg in (lambda: RG, lambda: None)]
        assert both[0] == both[1], options


def test_a_literal_matches_itself_only() -> None:
    import regex

    for text in string.punctuation:
        assert regex.fullmatch(_grep.literal(text), text)
