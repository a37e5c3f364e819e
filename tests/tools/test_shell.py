"""`shell`: real commands, what the model reads of them, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from house import call, house
from process_tools import loop_time, mark, marked, sleeper, until_marked
from tool_fakes import FakeHost

from sojourn.agents.runtime import HubLimits
from sojourn.core.messages import text_of
from sojourn.tools.base import ToolOutput
from sojourn.tools.clip import Clip
from sojourn.tools.processes import Surroundings
from sojourn.tools.shell import LIVE_BYTES, shell_tool

pytestmark = pytest.mark.anyio


async def run(command: str, *, host: FakeHost | None = None, around: Surroundings | None = None, **more: Any) -> Any:
    """The output of a command, within ten seconds."""
    cwd = more.pop("cwd", "/")
    tool = shell_tool(around or Surroundings())
    async with asyncio.timeout(10):
        ctx = (host or FakeHost()).context("shell", cwd=cwd)
        return await tool.execute({"command": command, **more}, ctx)


def said(output: ToolOutput) -> str:
    return text_of(output.content)


@pytest.mark.parametrize(
    ("command", "is_error", "lines"),
    [
        ("echo out; echo err >&2", False, ["out", "err", "[exit code 0 after"]),
        ("true", False, ["(no output)", "[exit code 0 after"]),
        ("echo broken; exit 3", True, ["broken", "[exit code 3 after"]),
        ("kill -SEGV $$", True, ["(no output)", "[ended by SIGSEGV after"]),
        ("no-such-command", True, ["no-such-command: command not found", "[exit code 127 after"]),
        ("cat", False, ["(no output)", "[exit code 0 after"]),
        ("read line || echo end of file at once", False, ["end of file at once", "[exit code 0 after"]),
        ("printf 'zw\\xc3\\xb6lf\\xff'", False, ["zwölf�", "[exit code 0 after"]),
        ("test -t 0 || test -t 1 || : < /dev/tty || echo no terminal", False, ["no terminal"]),
    ],
)
async def test_the_model_reads_output_and_exit_code(command: str, is_error: bool, lines: list[str]) -> None:
    output = await run(command)
    assert output.is_error is is_error
    for line in lines:
        assert line in said(output)


async def test_a_command_runs_in_the_agents_directory(tmp_path: Path) -> None:
    assert said(await run("pwd", cwd=str(tmp_path))).startswith(f"{tmp_path}\n")
    output = await run("pwd", cwd=str(tmp_path / "gone"))
    assert output.is_error
    assert "[it could not be started: No such file or directory: " in said(output)


@pytest.mark.parametrize("cwd", [None, "", "here", "/a\0b"])
@pytest.mark.parametrize("background", [False, True])
async def test_an_agent_without_a_directory_runs_nothing(cwd: str | None, background: bool, tmp_path: Path) -> None:
    output = await run(f"touch {tmp_path}/ran", cwd=cwd, background=background)
    assert output == ToolOutput.error(
        "This agent has no working directory ('cwd' in its config), so no command can be run."
    )
    assert not (tmp_path / "ran").exists()


async def test_a_command_gets_no_descriptor_no_secret_and_the_persons_umask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_MODELS_KEY", "sk-1")
    monkeypatch.setenv("SOJOURN_TOKEN", "t")
    monkeypatch.setenv("HARMLESS", "shown")
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        around = Surroundings(frozenset({"A_MODELS_KEY"}), umask=0o027)
        listing = "for fd in /proc/self/fd/*; do echo $fd; done; env; umask; ps -o sid=,pgid=,pid= -p $$"
        text = said(await run(listing, around=around))
    finally:
        os.close(reading)
        os.close(writing)
    lines = text.splitlines()
    open_ones = {int(line.rpartition("/")[2]) for line in lines if line.startswith("/proc/self/fd/")}
    assert open_ones <= {0, 1, 2, 3, 255}, "3 is the listing itself, 255 bash's own script"
    assert f"/proc/self/fd/{writing}" not in text
    assert "sk-1" not in text
    assert "SOJOURN_" not in text
    assert "HARMLESS=shown" in lines
    assert "0027" in lines
    session, group, pid = lines[-2].split()
    assert session == group == pid


async def test_output_beyond_the_bound_keeps_both_ends_and_says_so() -> None:
    text = said(await run("echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last"))
    assert text.startswith("first\nxxx")
    assert "\nlast\n[exit code 0 after" in text
    assert "bytes left out, 5000012 in all ...]" in text
    assert len(text) < 30_000


async def test_output_is_told_while_it_comes_and_a_flood_is_not() -> None:
    host = FakeHost()
    began = time.monotonic()
    output = await run("echo one; sleep 0.4; echo two; sleep 0.4", host=host)
    assert [text for text, _ in host.progress] == ["one\n", "two\n"]
    assert not output.is_error
    host = FakeHost()
    await run("head -c 20000000 /dev/zero | tr '\\0' y", host=host)
    told = "".join(text or "" for text, _ in host.progress)
    assert 0 < len(told) < LIVE_BYTES + 10_000
    assert "[... " in told
    assert time.monotonic() - began < 10


async def test_a_flood_leaves_the_loop_to_others() -> None:
    worst = 0.0
    flood = asyncio.create_task(run("yes", timeout_s=1))
    while not flood.done():
        before = time.monotonic()
        await asyncio.sleep(0.005)
        worst = max(worst, time.monotonic() - before)
    assert "[its time limit was reached" in said(flood.result())
    assert worst < 0.5


@pytest.mark.parametrize(
    "start",
    [
        "{sleeper} & {sleeper} & wait",
        "trap '' TERM; {sleeper} & {sleeper}; wait",
        "setsid {sleeper} & {sleeper}",
        "bash -c 'setsid {quoted} & disown' ; {sleeper}",
    ],
)
@pytest.mark.parametrize("how", ["stop", "limit"])
async def test_whatever_a_command_started_is_gone_after_a_stop_or_its_time(start: str, how: str) -> None:
    name = mark()
    command = start.format(sleeper=sleeper(name), quoted=sleeper(name).replace("'", "'\\''"))
    work = asyncio.create_task(run(command, timeout_s=60 if how == "stop" else 1.5))
    await until_marked(name, 2)
    if how == "stop":
        async with loop_time() as took:
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
        assert took() < 0.5
    else:
        assert "[its time limit was reached after" in said(await work)
    await until_marked(name, 0)


async def test_what_a_command_leaves_behind_is_ended_and_told() -> None:
    name = mark()
    output = await run(f"{sleeper(name)} & echo started; while ! pgrep -f '^{name}'; do sleep 0.01; done")
    assert "started\n" in said(output)
    assert "[exit code 0 after" in said(output)
    assert "processes that it left behind were ended" in said(output)
    assert marked(name) == []


async def test_a_detached_grandchild_that_keeps_the_pipe_open_holds_nothing() -> None:
    name = mark()
    began = time.monotonic()
    output = await run(f"setsid {sleeper(name)} & while ! pgrep -f '^{name}'; do sleep 0.01; done; echo done")
    assert time.monotonic() - began < 5
    assert "done\n[exit code 0" in said(output)
    (own_way,) = marked(name)
    os.kill(own_way, 9)


async def test_a_supervisor_that_is_killed_is_told() -> None:
    output = await run("kill -9 $PPID; sleep 0.1")
    assert output.is_error
    assert "[it ended without a record: the process that watched over it was killed]" in said(output)


@pytest.mark.parametrize(
    ("first", "ended"),
    [
        ("kill -9 $PPID", ["the process that watched over it was killed"]),
        # Whether it still says so itself is up to the moment at which it is stopped the next time.
        (
            "while sleep 0.01; do kill -STOP $PPID; done &",
            ["the process that watched over it was killed", "its time limit was reached"],
        ),
    ],
)
async def test_a_command_that_does_away_with_its_supervisor_does_not_outlive_its_call(
    first: str, ended: list[str]
) -> None:
    name = mark()
    told = said(await run(f"{first}\n{sleeper(name)}; true", timeout_s=1))
    assert any(words in told for words in ended), told
    await until_marked(name, 0)


async def test_a_command_that_stops_its_supervisor_is_answered_when_it_ends() -> None:
    began = time.monotonic()
    assert "[exit code 3 after" in said(await run("kill -STOP $PPID; exit 3", timeout_s=60))
    assert time.monotonic() - began < 5


async def test_a_stop_ends_a_command_whose_supervisor_was_stopped() -> None:
    name = mark()
    work = asyncio.create_task(run(f"kill -STOP $PPID; {sleeper(name)}; true"))
    await until_marked(name, 1)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await until_marked(name, 0)


async def test_a_command_with_a_nul_or_too_long_is_refused() -> None:
    assert "NUL" in said(await run("echo \0"))
    assert "The tool 'shell' was not run" in said(await run("x" * 30_001))
    assert "hello" in said(await run("echo hello #" + "ö" * 29_000))


async def test_fifty_commands_at_once_leave_nothing_when_their_agent_is_stopped() -> None:
    name = mark()
    calls = [call("shell", command=f"trap '' TERM; {sleeper(name)} & {sleeper(name)}") for _ in range(50)]
    limits = HubLimits(tool_concurrency=50)
    async with house(calls, "next", extra_tools=[shell_tool(Surroundings())], limits=limits) as h:
        await h.agent(approvals={"shell": "allow"}, cwd="/")
        await h.start()
        await until_marked(name, 100, within_s=60)
        async with asyncio.timeout(20), loop_time() as took:
            await h.hub.stop(h.client.caller(None, ""), "a")
        assert took() < 2.5
        assert (await h.state())["state"] == "idle"
        assert (await h.prompt("and now")).reason == "done"
        await until_marked(name, 0, within_s=30)


async def test_the_shell_asks_before_it_runs() -> None:
    assert shell_tool(Surroundings()).info.approval == "ask"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b"abc"], "abc"),
        ([b"abc", b"defgh"], "abcdefgh"),
        ([b"abcd", b"efgh", b"ijkl"], "abcd\n[... 4 bytes left out, 12 in all ...]\nijkl"),
        (["aaaö".encode(), b"x" * 20, "öbbb".encode()], "aaa\n[... 24 bytes left out, 30 in all ...]\nbbb"),
        (["aaö".encode(), b"x" * 20, "öbb".encode()], "aaö\n[... 20 bytes left out, 28 in all ...]\nöbb"),
        ([b"abcd", None, b"wxyz"], "abcd\n[... 5 bytes left out, 13 in all ...]\nwxyz"),
        ([None, b"wxyz"], "\n[... 5 bytes left out, 9 in all ...]\nwxyz"),
    ],
)
async def test_long_output_in_short(pieces: list[bytes | None], text: str) -> None:
    clip = Clip(4, 4)
    for piece in pieces:
        if piece is None:
            clip.skip(5)
        else:
            clip.add(piece)
    assert clip.text() == text
