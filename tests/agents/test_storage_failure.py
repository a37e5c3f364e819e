"""When the disk says no: nothing is acknowledged, nothing is lost, and the run goes on when there is room again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from house import ToldTool, call, house
from process_tools import mark, sleeper, until_marked

from sojourn.agents.runtime import HubLimits
from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.errors import StorageError
from sojourn.store.sqlite import SqliteStore
from sojourn.tools.base import ToolContext
from sojourn.tools.processes import Surroundings
from sojourn.tools.shell import shell_tool

pytestmark = pytest.mark.anyio


class Disk:
    """Makes commits fail on demand, below everything that is ours: SQLite itself finds the disk full."""

    def __init__(self, store: SqliteStore) -> None:
        self._connection = store._writer._connection

    def full(self) -> None:
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        self._connection.execute(f"PRAGMA max_page_count = {pages}")

    def refuse(self) -> None:
        """No write at all succeeds, not even one that needs no new page."""
        self._connection.execute("PRAGMA query_only = 1")

    def free(self) -> None:
        self._connection.execute("PRAGMA query_only = 0")
        self._connection.execute(f"PRAGMA max_page_count = {2**31}")


async def test_a_full_disk_in_a_tool_round_interrupts_the_pass_and_resume_goes_on(tmp_path: Path) -> None:
    async with house([call("work")], "after all", path=tmp_path) as h:
        assert isinstance(h.store, SqliteStore)
        disk = Disk(h.store)

        async def fill(args: dict[str, object], ctx: ToolContext) -> str:
            disk.full()
            return "x" * 200_000

        tool = ToldTool("work", fill)
        h.hub.rt.toolset.toolbox.add(tool)
        await h.agent()
        await h.start()
        async with asyncio.timeout(5):
            while h.hub.state != "degraded":
                await asyncio.sleep(0.01)
        with pytest.raises(StorageError):
            await h.push("y" * 200_000)
        assert (await h.state())["inbox"] == 0, "reads work, and nothing was acknowledged"
        disk.free()
        async with asyncio.timeout(8):
            while (await h.state())["state"] != "interrupted":
                await asyncio.sleep(0.01)
        assert h.hub.state == "ready"
        assert (await h.resume()).output == "after all"
        assert len(tool.ran) == 1


async def test_a_prompt_that_a_full_disk_caught_is_answered_and_a_stop_ends_what_is_at_work(tmp_path: Path) -> None:
    """Also when the stop itself cannot be written: what is at work may be what fills the disk."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def fill(_args: dict[str, object], _ctx: ToolContext) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    async with house([call("work")], "after all", path=tmp_path, tools=[ToldTool("work", fill)]) as h:
        assert isinstance(h.store, SqliteStore)
        disk = Disk(h.store)
        await h.agent()
        running = asyncio.create_task(h.prompt())
        async with asyncio.timeout(10):
            await begun.wait()
            disk.refuse()
            with pytest.raises(StorageError, match="could not write"):
                await h.hub.stop(Caller(), "a")
            await ended.wait()
            with pytest.raises(StorageError, match=r"has come to a halt\..*'agent/resume' carries the run on"):
                await running
            disk.free()
            while (await h.state())["state"] != "interrupted":
                await asyncio.sleep(0.01)
            assert (await h.resume()).output == "after all"


async def test_a_job_is_ended_though_its_stop_cannot_be_written(tmp_path: Path) -> None:
    name = mark()
    jobs_dir = tmp_path / "jobs"
    command = call("shell", command=sleeper(name), background=True)
    async with house(
        [command], "", "", path=tmp_path, extra_tools=[shell_tool(Surroundings())], jobs_dir=jobs_dir
    ) as h:
        assert isinstance(h.store, SqliteStore)
        disk = Disk(h.store)
        await h.agent(cwd="/", approvals={"shell": "allow"})
        await h.prompt()
        await until_marked(name, 1)
        (job,) = (await h.hub.job_list(None, None))["jobs"]
        disk.refuse()
        async with asyncio.timeout(20):
            with pytest.raises(StorageError):
                await h.hub.job_stop(Caller(), job["jobId"])
            await until_marked(name, 0)
            disk.free()
            while (await h.hub.job_list(None, None))["jobs"][0]["state"] != "ended":
                await asyncio.sleep(0.02)
        (job,) = (await h.hub.job_list(None, None))["jobs"]
        assert (job["outcome"], job["delivered"]) == ("stopped", "result")


async def test_a_child_takes_no_place_of_its_own_so_that_a_full_house_is_no_deadlock() -> None:
    async def ask_child(args: dict[str, object], ctx: ToolContext) -> str:
        return (await ctx.run_child(AgentConfig(), "look")).text

    limits = HubLimits(max_active_runs=1)
    async with house([call("helper")], "found", "done", tools=[ToldTool("helper", ask_child)], limits=limits) as h:
        await h.agent()
        assert (await h.prompt()).output == "done"
