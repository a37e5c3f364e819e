"""Jobs: real processes that outlive their call and the daemon, and whose result reaches the agent once."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from house import House, ToldTool, call, house, killed_house
from process_tools import mark, marked, sleeper, until_marked

from sojourn.agents.runtime import HubLimits
from sojourn.core.agent import Caller
from sojourn.core.errors import Aborted, AgentNotFound, JobNotFound
from sojourn.store.base import Tx
from sojourn.store.records import JobRecord
from sojourn.tools import jobs as processes
from sojourn.tools.base import ToolContext, ToolOutput
from sojourn.tools.processes import Surroundings
from sojourn.tools.shell import shell_tool

pytestmark = pytest.mark.anyio

SHELL = shell_tool(Surroundings())
FREE = {"approvals": {"shell": "allow"}, "cwd": "/"}


def background(command: str, **more: Any) -> list[Any]:
    """A reply that starts a job."""
    return [call("shell", command=command, background=True, **more)]


async def jobs(h: House, agent_id: str | None = None, state: str | None = None) -> list[dict[str, Any]]:
    return list((await h.hub.job_list(agent_id, state))["jobs"])


async def until(test: Callable[[], Awaitable[Any]], within_s: float = 10) -> Any:
    """Waits until the answer of `test` is something, and answers that."""
    async with asyncio.timeout(within_s):
        while not (found := await test()):
            await asyncio.sleep(0.02)
        return found


async def ended(h: House) -> list[dict[str, Any]]:
    """The jobs, once none of them runs."""

    async def all_ended() -> Any:
        found = await jobs(h)
        return found if found and all(job["state"] == "ended" for job in found) else None

    return list(await until(all_ended))


def late(said: list[tuple[str, str]]) -> list[str]:
    return [text for role, text in said if role == "lateResult"]


async def test_a_jobs_output_and_exit_code_become_the_result_of_its_call(tmp_path: Path) -> None:
    async with house(
        background("echo one; echo two"), "It runs.", "Thanks.", extra_tools=[SHELL], jobs_dir=tmp_path
    ) as h:
        await h.agent(**FREE | {"cwd": str(tmp_path)})
        outcome = await h.prompt()
        assert outcome.reason == "done"
        (pending,) = await h.pending()
        (job,) = await ended(h)
        assert f"Started job {job['jobId']}: echo one; echo two" in pending["placeholder"][0]["text"]
        assert job["callId"] == pending["callId"]
        expected = {"agentId": "a", "toolName": "shell", "command": "echo one; echo two", "cwd": str(tmp_path)}
        expected |= {"state": "ended", "outcome": "exited", "exitCode": 0, "delivered": "result", "outputBytes": 8}
        assert expected.items() <= job.items()
        assert (await h.resume()).reason == "done"
        (result,) = late(await h.said())
        assert result.startswith("one\ntwo\n[exit code 0 after ")
        (resolved,) = [event for event in await h.stored_events() if event["type"] == "toolResolved"]
        assert not resolved["result"].get("isError")


async def test_an_agent_that_wants_it_answers_when_its_job_has_ended(tmp_path: Path) -> None:
    replies = background("exit 2"), "It runs.", "It failed."
    async with house(*replies, extra_tools=[SHELL], jobs_dir=tmp_path) as h:
        await h.agent(**FREE, on_inbox_idle="resume")
        await h.prompt()
        await h.client.until("agentEnd", count=2)
        assert (await h.said())[-1] == ("assistant", "It failed.")
        (resolved,) = [event for event in await h.stored_events() if event["type"] == "toolResolved"]
        assert resolved["result"]["isError"]
        assert "[exit code 2 after" in resolved["result"]["content"][0]["text"]


async def test_output_is_read_piece_by_piece_while_it_comes(tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = f"echo zwölf; until test -e {go}; do sleep 0.01; done; echo ende"
    async with house(background(command), extra_tools=[SHELL], jobs_dir=tmp_path / "jobs") as h:
        await h.agent(**FREE)
        await h.prompt()
        (job,) = await jobs(h)

        async def output(offset: int, limit: int = 1000) -> dict[str, Any]:
            return dict(await h.hub.job_output(job["jobId"], offset=offset, limit=limit))

        async def first() -> Any:
            return (await output(0))["text"]

        assert await until(first) == "zwölf\n"
        cut = await output(0, limit=3)
        assert (cut["text"], cut["nextOffset"]) == ("zw", 2), "not in the middle of a character"
        rest = await output(2)
        assert (rest["text"], rest["offset"], rest["nextOffset"], rest["job"]["state"]) == ("ölf\n", 2, 7, "running")
        assert rest["job"]["outputBytes"] == 7
        go.touch()
        await ended(h)
        rest = await output(7)
        assert (rest["text"], rest["nextOffset"], rest["job"]["state"]) == ("ende\n", 12, "ended")
        assert (await output(12))["text"] == (await output(99))["text"] == ""


async def test_much_output_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    limits = HubLimits(max_job_output_bytes=400_000)
    command = "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last"
    async with house(background(command), "", extra_tools=[SHELL], jobs_dir=tmp_path, limits=limits) as h:
        await h.agent(**FREE)
        await h.prompt()
        (job,) = await ended(h)
        assert job["outputBytes"] == 3_000_012
        place = tmp_path / job["jobId"]
        assert sum(path.stat().st_size for path in place.glob("out-*")) <= 400_000
        head = await h.hub.job_output(job["jobId"], offset=0, limit=200_000)
        assert head["text"].startswith("first\nxxx")
        assert head["nextOffset"] == 100_000
        tail = await h.hub.job_output(job["jobId"], offset=100_000, limit=500_000)
        assert tail["offset"] > 2_500_000
        await h.resume()
        (result,) = late(await h.said())
        assert result.startswith("first\nxx")
        assert "\nlast\n[exit code 0" in result
        assert "bytes left out, 3000012 in all" in result


async def test_a_job_is_stopped_with_all_its_processes_and_its_agent_is_told(tmp_path: Path) -> None:
    name = mark()
    command = f"trap '' TERM; echo working; setsid {sleeper(name)} & {sleeper(name)} & wait"
    async with house(background(command), "", extra_tools=[SHELL], jobs_dir=tmp_path) as h:
        await h.agent(**FREE)
        await h.prompt()
        await until_marked(name, 2)
        (job,) = await jobs(h, "a", "running")
        stopped = await h.hub.job_stop(Caller(client_id="tester"), job["jobId"])
        assert (stopped["state"], stopped["outcome"], stopped["stoppedBy"]) == ("ended", "stopped", "tester")
        assert marked(name) == []
        again = await h.hub.job_stop(Caller(client_id="other"), job["jobId"])
        assert again == stopped
        await h.resume()
        assert late(await h.said()) == ["working\n[stopped by 'tester']"]


@pytest.mark.parametrize(
    ("command", "more", "outcome", "text"),
    [
        ("sleep 300", {"timeout_s": 0.2}, "timedOut", "(no output)\n[its time limit was reached after"),
        (
            "echo x; sleep 0.3; kill -9 $PPID; sleep 1",
            {},
            "lost",
            "x\n[it ended without a record: the process that watched",
        ),
        ("kill -KILL $$", {}, "exited", "(no output)\n[ended by SIGKILL after"),
        ("cat; echo over", {}, "exited", "over\n[exit code 0 after"),
        ("kill -STOP $PPID; exit 3", {}, "exited", "(no output)\n[exit code 3 after"),
    ],
)
async def test_every_end_of_a_job_is_told(
    command: str, more: dict[str, Any], outcome: str, text: str, tmp_path: Path
) -> None:
    async with house(background(command, **more), "", extra_tools=[SHELL], jobs_dir=tmp_path) as h:
        await h.agent(**FREE)
        await h.prompt()
        (job,) = await ended(h)
        assert (job["outcome"], job["delivered"]) == (outcome, "result")
        await h.resume()
        assert late(await h.said())[0].startswith(text)


async def test_a_killed_supervisors_command_is_ended(tmp_path: Path) -> None:
    name = mark()
    async with house(background(f"{sleeper(name)}; true"), "", extra_tools=[SHELL], jobs_dir=tmp_path) as h:
        await h.agent(**FREE)
        await h.prompt()
        await until_marked(name, 1)
        (job,) = await jobs(h)
        started = dict(line.split("=") for line in (tmp_path / job["jobId"] / "started").read_text().splitlines())
        os.kill(int(started["pid"]), signal.SIGKILL)
        (job,) = await ended(h)
        assert job["outcome"] == "lost"
        await until_marked(name, 0)


async def test_a_job_whose_files_are_removed_is_over_and_leaves_no_process(tmp_path: Path) -> None:
    name = mark()
    async with house(background(f"{sleeper(name)}; true"), "", extra_tools=[SHELL], jobs_dir=tmp_path) as h:
        await h.agent(**FREE)
        await h.prompt()
        await until_marked(name, 1)
        shutil.rmtree(tmp_path / (await jobs(h))[0]["jobId"])
        (job,) = await ended(h)
        assert (job["outcome"], job["delivered"]) == ("lost", "result")
        await h.resume()
        assert late(await h.said()) == ["(no output)\n[its files were removed while it ran]"]
        await until_marked(name, 0)


async def test_a_job_that_cannot_start_is_an_error_of_its_call(tmp_path: Path) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("not a directory")
    async with house(background("true"), extra_tools=[SHELL], jobs_dir=nowhere) as h:
        await h.agent(**FREE)
        await h.prompt()
        assert await jobs(h) == []
        assert await h.pending() == []
        assert "Not a directory" in (await h.said())[2][1]
    async with house(background("true"), extra_tools=[SHELL]) as h:
        await h.agent(**FREE)
        await h.prompt()
        assert (await h.said())[2] == ("toolResult", "This daemon has no place for jobs.")


async def test_a_run_that_is_being_stopped_starts_no_job(tmp_path: Path) -> None:
    refused: list[type[BaseException]] = []

    async def late_starter(_args: dict[str, Any], ctx: ToolContext) -> str:
        try:
            await asyncio.sleep(300)
        except asyncio.CancelledError:
            try:
                await ctx.start_job("true")
            except Aborted as error:
                refused.append(type(error))
            raise
        return "never"

    async with house([call("late")], tools=[ToldTool("late", late_starter)], jobs_dir=tmp_path) as h:
        await h.agent()
        await h.start()
        await h.client.until("toolExecStart")
        await h.hub.stop(Caller(), "a")
        assert refused == [Aborted]
        assert await jobs(h) == []


async def test_a_job_that_cannot_be_looked_at_now_is_looked_at_again_and_that_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, looked, look = tmp_path / "go", [], processes.look
    monkeypatch.setattr(processes, "look", lambda directory: (looked.append(directory), look(directory))[1])
    command = f"until test -e {go}; do sleep 0.01; done"
    async with house(background(command), "", extra_tools=[SHELL], jobs_dir=tmp_path / "jobs") as h:
        await h.agent(**FREE)
        await h.prompt()
        (job,) = await jobs(h)
        lock = tmp_path / "jobs" / job["jobId"] / "lock"
        lock.rename(lock.with_name("kept"))
        lock.mkdir()

        looked.clear()

        async def is_tried_again() -> bool:
            return len(looked) > 2

        await until(is_tried_again)
        assert caplog.text.count("could not be recorded") == 1
        lock.rmdir()
        lock.with_name("kept").rename(lock)
        go.touch()
        (job,) = await ended(h)
        assert (job["outcome"], job["exitCode"]) == ("exited", 0)


async def test_the_number_of_jobs_has_a_limit_with_a_name(tmp_path: Path) -> None:
    two = [*background("sleep 300"), *background("sleep 300")]
    async with house(two, "", extra_tools=[SHELL], jobs_dir=tmp_path, limits=HubLimits(max_jobs=1)) as h:
        await h.agent(**FREE)
        await h.prompt()
        (job,) = await jobs(h)
        results = [text for role, text in await h.said() if role == "toolResult"]
        assert sum("1 jobs are running, the limit maxJobs" in text for text in results) == 1
        await h.hub.job_stop(Caller(), job["jobId"])


async def test_the_oldest_ended_jobs_are_forgotten_with_their_output(tmp_path: Path) -> None:
    replies = [reply for n in range(3) for reply in (background(f"echo {n}"), "ok", "late")]
    async with house(*replies, extra_tools=[SHELL], jobs_dir=tmp_path, limits=HubLimits(max_kept_jobs=2)) as h:
        await h.agent(**FREE)
        for _ in range(3):
            await h.prompt()
            await ended(h)
            await h.resume()

        async def two_left() -> bool:
            return len(list(tmp_path.iterdir())) == 2

        await until(two_left)
        assert [job["command"] for job in await jobs(h)] == ["echo 2", "echo 1"]
        with pytest.raises(JobNotFound, match="'job-gone'"):
            await h.hub.job_output("job-gone", offset=0, limit=100)
        with pytest.raises(JobNotFound):
            await h.hub.job_stop(Caller(), "job-gone")
        with pytest.raises(AgentNotFound):
            await jobs(h, "nobody")


# -- agents that are stopped or deleted ------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["keep", "stop", None])
async def test_stopping_an_agent_does_with_its_jobs_what_its_config_says(config: str | None, tmp_path: Path) -> None:
    name = mark()
    replies = background(sleeper(name)), [call("wait")]
    waiting = ToldTool("wait", lambda _a, _c: asyncio.sleep(300))
    async with house(*replies, tools=[waiting], extra_tools=[SHELL], jobs_dir=tmp_path) as h:
        await h.agent(**FREE, jobs_on_stop=config, on_inbox_idle="resume")
        await h.start()
        await until_marked(name, 1)
        await h.client.until(lambda event: event.get("toolName") == "wait")
        await h.hub.stop(Caller(), "a")
        if config == "stop":
            (job,) = await ended(h)
            assert (job["stoppedBy"], job["delivered"]) == ("stop", "result")
            await until_marked(name, 0)
            assert (await h.state())["state"] == "idle", "what was stopped does not start again by that"
            assert (await h.state())["inbox"] == 1
            await h.resume()
            assert late(await h.said()) == ["(no output)\n[stopped by the user]"]
        else:
            assert len(marked(name)) == 1
            (job,) = await jobs(h, state="running")
            await h.hub.job_stop(Caller(), job["jobId"])


@pytest.mark.parametrize("config", ["keep", "stop"])
async def test_deleting_an_agent_does_with_its_jobs_what_its_config_says(config: str, tmp_path: Path) -> None:
    name = mark()
    go = tmp_path / "go"
    command = f"{sleeper(name)} & until test -e {go}; do sleep 0.01; done"
    async with house(background(command), "", extra_tools=[SHELL], jobs_dir=tmp_path / "jobs") as h:
        await h.agent(**FREE, jobs_on_stop=config)
        await h.prompt()
        await until_marked(name, 1)
        await h.hub.delete_agent(Caller(), "a", force=False)
        if config == "keep":
            assert [job["state"] for job in await jobs(h)] == ["running"]
            await h.agent("a", attach=False)
            go.touch()
        (job,) = await ended(h)
        assert (job["outcome"], job["delivered"]) == ("stopped" if config == "stop" else "exited", "nowhere")
        await until_marked(name, 0)
        if config == "keep":
            assert (await h.state())["inbox"] == 0, "an agent of the same name has nothing to do with it"


async def test_a_result_that_its_call_cannot_take_any_more_arrives_as_a_message_or_is_told_to_be_dropped(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    waits = f"until test -e {go}; do sleep 0.01; done; echo late"

    async def answers_itself(_args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        await ctx.start_job(waits)
        return ToolOutput.of("I said it myself.")

    tool = ToldTool("own", answers_itself)
    both = [call("own"), *background(waits)]
    async with house(both, "", "", tools=[tool], extra_tools=[SHELL], jobs_dir=tmp_path / "jobs") as h:
        await h.agent(**FREE)
        await h.prompt()
        (pending,) = await h.pending()
        await h.resolve(pending["callId"], "a person knew it")
        go.touch()
        assert sorted(job["delivered"] for job in await ended(h)) == ["message", "nowhere"]
        await h.resume()
        said = await h.said()
        assert late(said) == ["a person knew it"]
        (message,) = [text for role, text in said if role == "user" and "late" in text]
        assert message.startswith("[job-")
        assert "late\n[exit code 0" in message
        warnings = [event for event in await h.stored_events() if event["type"] == "warning"]
        assert [event["code"] for event in warnings] == ["resultDropped"]


async def test_a_tool_may_start_a_program_with_arguments_somewhere_else_once(tmp_path: Path) -> None:
    ids: list[str] = []

    async def work(_args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        ids.append(await ctx.start_job(["printf", "%s|", "a b", "$HOME"], cwd=str(tmp_path), limit_s=60))
        ids.append(await ctx.start_job("echo another"))
        return ToolOutput.pending("Started.")

    async with house([call("t")], "", tools=[ToldTool("t", work)], jobs_dir=tmp_path / "jobs") as h:
        await h.agent()
        await h.prompt()
        (job,) = await ended(h)
        assert ids == [job["jobId"], job["jobId"]], "one job a call"
        assert (job["command"], job["cwd"]) == ("printf %s| a b $HOME", str(tmp_path))
        await h.resume()
        assert late(await h.said())[0].startswith("a b|$HOME|\n[exit code 0")


async def test_a_sync_tool_that_goes_on_after_a_stop_is_told_as_a_warning(tmp_path: Path) -> None:
    import threading

    from sojourn.tools import tool

    go, begun = threading.Event(), threading.Event()

    @tool(approval="allow")
    def stubborn() -> str:
        begun.set()
        go.wait(10)
        return "too late"

    async with house([call("stubborn")], extra_tools=[stubborn]) as h:
        await h.agent()
        await h.start()
        await asyncio.to_thread(begun.wait, 10)
        await h.hub.stop(Caller(), "a")
        go.set()
        (warning,) = [event for event in await h.stored_events() if event["type"] == "warning"]
        assert warning["code"] == "toolGoesOn"
        assert "cannot be ended and may still take effect" in warning["message"]
        assert warning["data"]["toolName"] == "stubborn"


# -- a daemon that dies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["while nobody lives", "after the restart"])
async def test_a_job_outlives_a_killed_daemon_and_its_result_comes_once(ends: str, tmp_path: Path) -> None:
    go, count = tmp_path / "go", tmp_path / "count"
    command = f"echo run >> {count}; until test -e {go}; do sleep 0.01; done; echo built"
    place = tmp_path / "jobs"
    async with killed_house(background(command), "It runs.", path=tmp_path, tools=[SHELL], jobs_dir=place) as h:
        await h.agent(**FREE)
        await h.prompt()
        (before,) = await jobs(h)
    for life in range(3):
        if ends == "while nobody lives" and life == 1:
            go.touch()
        async with killed_house(path=tmp_path, tools=[SHELL], jobs_dir=place) as h:
            if ends == "after the restart" and life == 1:
                (running,) = await jobs(h)
                assert (running["jobId"], running["state"]) == (before["jobId"], "running")
                go.touch()
            if life >= 1:
                await ended(h)
    async with house(path=tmp_path, extra_tools=[SHELL], jobs_dir=place) as h:
        assert (await h.state())["inbox"] == 1
        assert (await h.resume()).reason == "done"
        assert len(late(await h.said())) == 1
        assert count.read_text() == "run\n"


async def test_a_call_whose_daemon_died_before_it_told_of_its_job_is_pending(tmp_path: Path) -> None:
    started, never = asyncio.Event(), asyncio.Event()

    async def work(_args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        await ctx.start_job("echo built")
        started.set()
        await never.wait()
        return ToolOutput.pending("Started.")

    tool, place = ToldTool("t", work), tmp_path / "jobs"
    async with killed_house([call("t")], path=tmp_path, tools=[tool], jobs_dir=place) as h:
        await h.agent()
        await h.start()
        await started.wait()
    async with house("done", path=tmp_path, tools=[tool], jobs_dir=place) as h:
        await ended(h)
        assert [call["toolName"] for call in await h.pending()] == ["t"]
        assert (await h.resume()).reason == "done"
        said = await h.said()
        assert said[2][1].endswith("echo built\nIts result will follow.")
        assert late(said)[0].startswith("built\n[exit code 0")
        assert len(tool.ran) == 1


async def test_a_daemon_that_ends_in_good_order_leaves_its_jobs_alone(tmp_path: Path) -> None:
    name = mark()
    async with house(background(sleeper(name)), "", path=tmp_path, extra_tools=[SHELL], jobs_dir=tmp_path / "j") as h:
        await h.agent(**FREE)
        await h.prompt()
        await until_marked(name, 1)
    assert len(marked(name)) == 1
    async with house(path=tmp_path, extra_tools=[SHELL], jobs_dir=tmp_path / "j") as h:
        (job,) = await jobs(h)
        await h.hub.job_stop(Caller(), job["jobId"])
        assert marked(name) == []


@pytest.mark.parametrize("trace", ["row", "stop"])
async def test_what_a_daemon_had_only_begun_is_finished_by_the_next(trace: str, tmp_path: Path) -> None:
    """A row whose supervisor never started; a stop that was noted and not carried out."""
    name, place = mark(), tmp_path / "jobs"
    command = sleeper(name)
    async with killed_house(background(command), "", path=tmp_path, tools=[SHELL], jobs_dir=place) as h:
        await h.agent(**FREE)
        await h.prompt()
        await until_marked(name, 1)
        (job,) = await jobs(h)

        def change(tx: Tx) -> None:
            row = tx.get(JobRecord, job["jobId"])
            assert row is not None
            if trace == "row":
                tx.delete(JobRecord, row.job_id)
                row.job_id = "job-never"
                tx.put(row)
            else:
                row.body = row.body.replace("{", '{"stoppedBy":"somebody",', 1)
                tx.update(row, "body")

        await h.store.write(change)
    stranger = place / job["jobId"]
    if trace == "row":
        pid = dict(line.split("=") for line in (stranger / "started").read_text().splitlines())["pid"]
        os.kill(int(pid), signal.SIGTERM)

        async def is_over() -> bool:
            return processes.look(stranger).ended is not None

        await until(is_over)
    async with house(path=tmp_path, extra_tools=[SHELL], jobs_dir=place) as h:
        (found,) = await ended(h)
        assert found["outcome"] == ("notStarted" if trace == "row" else "stopped")
        assert stranger.exists() is (trace == "stop"), "a directory without a row is removed"
        await h.resume()
        assert ("it could not be started" in late(await h.said())[0]) is (trace == "row")
        await until_marked(name, 0)


async def test_a_result_arrives_though_the_clock_went_back_after_the_agent_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(background("echo here"), "", extra_tools=[SHELL], jobs_dir=tmp_path) as h:
        await h.agent(**FREE)
        monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000_000_000_000)
        await h.prompt()
        assert [job["delivered"] for job in await ended(h)] == ["result"]


async def test_a_damaged_record_does_not_hold_the_results_of_other_jobs(tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"until test -e {go}; do sleep 0.01; done"
    both = [*background(waits), *background(f"{waits}; echo fine")]
    async with house(both, "", extra_tools=[SHELL], jobs_dir=tmp_path / "jobs") as h:
        await h.agent(**FREE)
        await h.prompt()
        first = min(await jobs(h), key=lambda job: len(job["command"]))["jobId"]
        (tmp_path / "jobs" / first / "result").write_text("outcome=exited\ncode=?\n")
        await until(lambda: jobs(h, state="ended"))
        go.touch()
        assert {job["jobId"] == first: job["outcome"] for job in await ended(h)} == {True: "lost", False: "exited"}
        await h.resume()
        told = late(await h.said())
        assert sum("ended without a readable record" in text for text in told) == 1
        assert sum("fine" in text for text in told) == 1
