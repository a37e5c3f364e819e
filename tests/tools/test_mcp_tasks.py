"""Calls that a server runs as tasks: soon done they are results, else pending calls that outlive the daemon."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from house import call, house
from mcp_bench import Bench, bench, stub

from sojourn.core.errors import CallNotFound, StorageError
from sojourn.core.messages import text_of
from sojourn.tools.mcp import McpServers
from sojourn.tools.mcp import tasks as mcp_tasks

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tasks, "RETRY_S", 0.05)


@pytest.fixture
def kept(tmp_path: Path) -> dict[str, str]:
    """A stub that keeps its tasks on disk, so that its next process knows them."""
    (tmp_path / "tasks").mkdir()
    return {"TASKS": str(tmp_path / "tasks")}


async def delivered(b: Bench) -> tuple[str, ...]:
    return (await b.until(lambda: b.host.inbox.items))[0]


async def test_a_task_that_is_soon_done_is_an_ordinary_result(tmp_path: Path, kept: dict[str, str]) -> None:
    async with bench(tmp_path / "world", env=kept, task_wait_s=0.2) as b:
        output = await b.call("stub__job", seconds=0)
        assert (text_of(output.content), output.is_pending) == ("result of completed", False)


async def test_a_task_that_takes_longer_is_pending_and_its_result_follows(tmp_path: Path, kept: dict[str, str]) -> None:
    async with bench(tmp_path / "world", env=kept, task_wait_s=0.2) as b:
        output = await b.call("stub__job", seconds=0.5)
        assert output.is_pending
        assert text_of(output.content) == "The MCP server 'stub' has started 'job'. Its result will follow."
        assert await delivered(b) == ("resolve", "msg-2-call-1", "result of completed")
        assert ("working on it", None) in b.host.progress


ENDS = [
    ("failed", "result of failed"),
    ("cancelled", "The MCP server 'stub' gave the task up: cancelled on it"),
    ("input_required", "wants to be told something by a person"),
]


@pytest.mark.parametrize(("ends", "said"), ENDS, ids=[case[0] for case in ENDS])
async def test_a_task_that_ends_badly_is_an_error_at_once_or_later(
    tmp_path: Path, kept: dict[str, str], ends: str, said: str
) -> None:
    async with bench(tmp_path / "world", env=kept, task_wait_s=0.2) as b:
        output = await b.call("stub__job", ends=ends)
        assert output.is_error
        assert said in text_of(output.content)
        assert (await b.call("stub__job", ends=ends, seconds=0.5)).is_pending
        kind, _, text = await delivered(b)
        assert kind == "reject"
        assert said in text


async def test_a_call_that_is_stopped_gives_its_task_up(tmp_path: Path, kept: dict[str, str]) -> None:
    async with bench(tmp_path / "world", env=kept, task_wait_s=20) as b:
        tools = await b.tools()
        running = asyncio.create_task(tools["stub__job"].execute({"seconds": 60}, b.host.context()))
        await b.until(lambda: b.happened("task "))
        await b.until(lambda: b.host.progress)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await b.until(lambda: b.happened("cancel task"))


async def test_a_task_of_a_server_that_forgot_it_is_rejected(tmp_path: Path, kept: dict[str, str]) -> None:
    async with bench(tmp_path / "world", env=kept, task_wait_s=0.2) as b:
        assert (await b.call("stub__job", seconds=60)).is_pending
        for file in (tmp_path / "tasks").iterdir():
            file.unlink()
        kind, _, text = await delivered(b)
        assert kind == "reject"
        assert "does not know how the task stands: no such task (-32602)" in text


async def test_a_task_goes_on_while_its_server_dies_and_is_given_up_when_its_time_is_over(
    tmp_path: Path, kept: dict[str, str]
) -> None:
    async with bench(tmp_path / "world", env=kept, task_wait_s=0.2) as b:
        assert (await b.call("stub__job", seconds=0.6)).is_pending
        assert (await b.call("stub__die")).is_error
        assert await delivered(b) == ("resolve", "msg-2-call-1", "result of completed")
    b.host.inbox.items.clear()
    async with bench(tmp_path / "world", env=kept, task_wait_s=0.2) as b:
        assert (await b.call("stub__job", seconds=60, ttl=700)).is_pending
        kind, _, text = await delivered(b)
        assert (kind, text) == ("reject", "The MCP server 'stub' did not finish the task in time.")


async def test_a_result_that_cannot_be_stored_now_is_tried_again_and_one_that_nobody_wants_is_dropped(
    tmp_path: Path, kept: dict[str, str]
) -> None:
    notes = tmp_path / "notes"
    servers = McpServers({"stub": stub(tmp_path / "world", env=kept, task_wait_s=0.2)}, notes=notes)
    b = Bench(servers, tmp_path / "world")
    try:
        b.host.inbox.refuse = StorageError("The disk is full.")
        assert (await b.call("stub__job", seconds=0.3)).is_pending
        await asyncio.sleep(0.5)
        assert len(list(notes.iterdir())) == 1
        b.host.inbox.refuse = None
        assert (await delivered(b))[0] == "resolve"
        await b.until(lambda: not list(notes.iterdir()))
        b.host.inbox.refuse = CallNotFound("No such call.")
        assert (await b.call("stub__job", seconds=0.3)).is_pending
        await b.until(lambda: not list(notes.iterdir()))
    finally:
        await servers.aclose()


async def test_a_restarted_daemon_asks_on_and_the_agent_gets_the_result_once(
    tmp_path: Path, kept: dict[str, str]
) -> None:
    def servers() -> McpServers:
        return McpServers(
            {"stub": stub(tmp_path / "world", env=kept, task_wait_s=0.2, approval="allow")},
            notes=tmp_path / "state" / "mcp-tasks",
        )

    notes = tmp_path / "state" / "mcp-tasks"
    async with house([call("stub__job", seconds=1)], "waiting", path=tmp_path / "db", servers=servers()) as h:
        await h.agent()
        outcome = await h.prompt()
        assert (outcome.output, len(await h.pending())) == ("waiting", 1)
        assert len(list(notes.iterdir())) == 1
    (notes / "broken.json").write_text("{")
    async with house("thank you", path=tmp_path / "db", servers=servers()) as h:
        began = time.monotonic()
        while (state := await h.state())["inbox"] == 0:
            assert time.monotonic() - began < 20, state
            await asyncio.sleep(0.02)
        assert (await h.resume()).output == "thank you"
        results = [m for m in await h.messages() if m["role"] == "lateResult"]
        assert [_text(m) for m in results] == ["result of completed"]
        assert [file.name for file in notes.iterdir()] == ["broken.json"]


def _text(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["content"])
