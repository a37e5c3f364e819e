"""Corners of the file tools, the shell and servers of tools, each with what a model or a person reads of it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from tool_fakes import FakeHost
from tool_fakes import run_file_tool as run

from sojourn.core.agent import AgentConfig
from sojourn.core.messages import ResourcePart, TextPart
from sojourn.core.servers import McpServer
from sojourn.tools import _grep, _places, _text, _tree
from sojourn.tools._places import FileRefused, Root
from sojourn.tools.base import Document
from sojourn.tools.files import FileTools
from sojourn.tools.hooks import HookContext
from sojourn.tools.mcp import McpServers, listing
from sojourn.tools.mcp.listing import read_listing
from sojourn.tools.mcp.process import _Pace
from sojourn.tools.mcp.results import as_output
from sojourn.tools.processes import Attached, Order, Surroundings
from sojourn.tools.shell import Live

pytestmark = pytest.mark.anyio


# ── places ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_link_to_an_absolute_place_inside_is_followed_from_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "f").write_text("here\n")
    (tmp_path / "a" / "b" / "link").symlink_to(tmp_path / "f")
    (tmp_path / "a" / "b" / "out").symlink_to("/etc/hostname")
    (tmp_path / "a" / "b" / "up").symlink_to("../../f")
    assert await run(tmp_path, "read", path="a/b/link") == "here\n"
    assert await run(tmp_path, "read", path="a/b/up") == "here\n"
    assert "outside" in await run(tmp_path, "read", path="a/b/out")


async def test_a_path_of_too_many_names_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    deep = "/".join("d" * (_places.MAX_NAMES + 2))
    assert await run(tmp_path, "read", path=f"{deep}/f") == "error: There is no 'd' in the working directory."
    os.makedirs(tmp_path / "/".join("d" * _places.MAX_NAMES))
    assert "leads too deep" in await run(tmp_path, "read", path=f"{deep}/f")


async def test_a_file_that_is_larger_than_may_be_edited_is_refused_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 101)
    with Root(str(tmp_path)) as root, root.place("f", missing="refuse") as place:
        with pytest.raises(FileRefused, match="'f' has more than 100 bytes, which is the limit here"):
            place.read(100)
        assert len(place.read(101)) == 101


async def test_a_file_that_is_no_file_any_more_when_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    with Root(str(tmp_path)) as root, root.place("f", missing="refuse") as place:
        as_it_was = place.stat()
        os.rename(tmp_path / "pipe", tmp_path / "f")
        monkeypatch.setattr(type(place), "stat", lambda _place: as_it_was)
        with pytest.raises(FileRefused, match="'f'"):
            place.open()


async def test_a_file_without_attributes_is_replaced_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_text("old\n")
    (tmp_path / "f").chmod(0o640)
    monkeypatch.delattr(_places.os, "listxattr", raising=False)
    assert "error" not in await run(tmp_path, "edit", path="f", old_text="old", new_text="new")
    assert ((tmp_path / "f").read_text(), (tmp_path / "f").stat().st_mode & 0o777) == ("new\n", 0o640)


# ── reading and searching ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_line_too_far_into_a_text_is_not_looked_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_text, "SCAN", 4 << 20)
    asked: list[int] = []

    def endless(size: int, at: int) -> bytes:
        asked.append(at)
        return b"x" * size

    text, notes = _text.read_lines(endless, 5, 10) or ("", [])
    assert (text, notes) == ("", [f"There is no line 5 in the first {_text.SCAN} bytes."])
    assert max(asked) <= _text.SCAN


def test_a_text_that_becomes_binary_is_no_text() -> None:
    lines = _text._WINDOW // 5 + 10
    data = b"line\n" * lines + b"\0\0\0"
    assert _text.read_lines(lambda size, at: data[at : at + size], lines, 10) is None
    shown = _text.read_lines(lambda size, at: data[at : at + size], 1, 1)
    assert shown is not None
    assert shown[0] == "line\n"


async def test_directories_that_are_nested_too_deep_are_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tree, "MAX_DEPTH", 2)
    (tmp_path / "a" / "b" / "c" / "d").mkdir(parents=True)
    for place in ("a/1", "a/b/2", "a/b/c/3", "a/b/c/d/4"):
        (tmp_path / place).write_text("x")
    shown = await run(tmp_path, "glob", pattern="**/*")
    assert "a/b/2" in shown
    assert "d/4" not in shown
    assert "Directories deeper than 2 were left out." in shown


@pytest.mark.parametrize("size", [40, 10**6])
def test_the_files_of_a_search_are_given_in_commands_that_are_not_too_long(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_grep, "_BATCH_BYTES", size)
    names = [f"file-{number}" for number in range(7)]
    batches = list(_grep._batches(names))
    assert [name for batch in batches for name in batch] == names
    assert len(batches) == (4 if size == 40 else 1)
    assert list(_grep._batches([])) == []


def test_lines_of_ripgrep_that_are_no_hits_are_passed_over() -> None:
    assert list(_grep._hits([b"./a b\x003:hit\n", b"--\n", b"\n", b"c\x0012:\n"])) == [("a b", 3), ("c", 12)]


async def test_an_open_document_that_is_no_text_is_refused_as_a_file_would_be(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("saved")

    class Open:
        """What an editor has open."""

        def settle(self) -> None: ...

        def at(self, path: str) -> Document | None:
            return Document(path, "un\0saved", "ed", None, changeable=True)

    read = next(one for one in FileTools().tools() if one.info.spec.name == "read")
    ctx = FakeHost().context("read", cwd=str(tmp_path), documents=Open())
    with pytest.raises(FileRefused, match="'f' is not text"):
        await read.execute({"path": "f"}, ctx)


# ── running commands ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_output_is_told_while_it_comes_until_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sojourn.tools.shell._LIVE_S", 0)
    monkeypatch.setattr("sojourn.tools.shell.LIVE_BYTES", 8)
    monkeypatch.setattr("sojourn.tools.shell._LIVE_PIECE", 4)
    host = FakeHost()
    live = Live(host.context("shell"))
    for piece in (b"\xc3", b"\xa9t", b"0123456789", b"more", b"again"):
        live.add(piece)
        await asyncio.sleep(0.01)
    assert [text for text, _ in host.progress] == [
        "ét",
        "\n[... 6 bytes ...]\n6789",
        "more",
        "\n[what follows is not shown while it runs]\n",
    ]
    live.close()


async def test_a_command_with_a_nul_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for order in (Order(["echo", "a\0b"], cwd=str(tmp_path)), Order(["echo"], cwd="/a\0b")):
        with pytest.raises(ValueError, match="A command cannot hold a NUL character"):
            await Attached(Surroundings(), lambda _data: None).run(order)


# ── hooks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["", None, 7])
def test_an_entry_of_a_hook_has_a_kind(kind: Any) -> None:
    fields = {name: None for name in HookContext.__dataclass_fields__ if name not in ("noted", "fresh")}
    ctx = HookContext(**{**fields, "turn": 1}, noted=())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"The kind of an entry is a text, not {kind!r}"):
        ctx.append_entry(kind, 1)
    with pytest.raises(TypeError, match="The value of the entry 'k' is not JSON"):
        ctx.append_entry("k", object())
    assert ctx.entries() == []


# ── servers of tools ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "structured", "parts"),
    [
        ([], None, [TextPart(text="(no output)")]),
        ([], {"a": 1}, [TextPart(text='{"a":1}')]),
        ([types.TextContent(type="text", text="no JSON")], {"a": 1}, ["no JSON", '{"a":1}']),
        ([types.TextContent(type="text", text='{"a": 1}')], {"a": 1}, ['{"a": 1}']),
        ([types.TextContent(type="text", text="7")], {"result": "7"}, ["7"]),
        ([types.TextContent(type="text", text="15")], {"result": 15}, ["15"]),
        (
            [types.AudioContent(type="audio", data="aGk=", mime_type="audio/wav")],
            None,
            ["[audio, audio/wav, 3 bytes; it cannot be shown here]"],
        ),
        (
            [types.ResourceLink(type="resource_link", name="", uri="file:///a")],
            None,
            [ResourcePart(uri="file:///a")],
        ),
        (
            [
                types.EmbeddedResource(
                    type="resource",
                    resource=types.BlobResourceContents(uri="file:///b", blob="aGk=", mime_type="text/odd"),
                )
            ],
            None,
            [
                ResourcePart(
                    uri="file:///b", mime_type="text/odd", text="[3 bytes that are no text; they cannot be shown here]"
                )
            ],
        ),
    ],
)
def test_what_a_server_answers_is_shown_once_and_whole(content: Any, structured: Any, parts: list[Any]) -> None:
    output = as_output(types.CallToolResult(content=content, structured_content=structured))
    expected = [TextPart(text=part) if isinstance(part, str) else part for part in parts]
    assert list(output.content) == expected


def test_a_server_that_lists_too_many_tools_keeps_the_first_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_TOOLS", 2)
    entries = [{"name": f"t{number}", "inputSchema": {"type": "object"}} for number in range(4)]
    found = read_listing("s", entries, tasks=False)
    assert list(found.tools) == ["s__t0", "s__t1"]
    assert found.problems == ("It lists more than 2 tools; those behind 't2' are left out.",)


def test_a_server_of_an_agent_runs_where_the_agent_works_unless_it_says_otherwise(tmp_path: Path) -> None:
    servers = McpServers({})
    own = {
        "plain": McpServer(command="x"),
        "placed": McpServer(command="x", cwd="/tmp", idle_timeout_s=5),
        "remote": McpServer(url="http://127.0.0.1:1/mcp"),
        "off": McpServer(command="x", enabled=False),
    }
    found = servers._own(AgentConfig(cwd=str(tmp_path), mcp_servers=own))
    assert {name: (one.config.cwd, one.config.idle_timeout_s) for name, one in found.items()} == {
        "plain": (str(tmp_path), 900),
        "placed": ("/tmp", 5),
        "remote": (None, 900),
    }


async def test_more_messages_than_a_server_may_send_wait_for_the_next_span() -> None:
    pace = _Pace(2, 0.05)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(3):
        await pace.wait()
    assert loop.time() - began >= 0.04
    assert pace.take_refused() == 1
    assert pace.take_refused() == 0
