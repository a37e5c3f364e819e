"""What a restart finds: interrupted passes get their end, dispatched calls are never run again, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from house import Client, House, ToldTool, call, house, killed_house, pending_tool

from sojourn.agents import clock
from sojourn.agents.control import Control
from sojourn.agents.rounds import INTERRUPTED, NOT_STARTED
from sojourn.agents.runtime import HubLimits
from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.errors import NothingToResume
from sojourn.core.messages import TextPart, ToolCallPart
from sojourn.tools.base import ToolContext, ToolOutput

pytestmark = pytest.mark.anyio


async def for_ever(*_args: Any) -> str:
    await asyncio.Event().wait()
    return "never"


async def test_killed_during_the_model_call_the_pass_is_interrupted_and_resume_asks_again(tmp_path: Path) -> None:
    """R-LW-19, R-LW-20."""
    async with killed_house(for_ever, path=tmp_path) as h:
        await h.agent(max_turns=1)
        await h.start("hello")
        await h.client.until("messageStart", count=2)
    async with house("here I am", path=tmp_path) as h:
        state = await h.state()
        assert (state["state"], state["needsReply"]) == ("interrupted", True)
        kinds = [e["type"] for e in await h.stored_events()][-3:]
        assert kinds == ["messageReset", "warning", "agentEnd"]
        assert (await h.stored_events())[-1]["reason"] == "interrupted"
        outcome = await h.resume()
        assert (outcome.reason, outcome.output) == ("done", "here I am")
        starts = [e["messageId"] for e in await h.stored_events() if e["type"] == "messageStart"]
        assert len(starts) == len(set(starts)), "the second try has a message id of its own"


async def test_a_dispatched_call_is_failed_with_a_warning_and_never_run_again(tmp_path: Path) -> None:
    """R-LW-23, R-LW-24."""
    tool = ToldTool("charge", for_ever)
    quick = ToldTool("quick")
    async with killed_house([call("quick"), call("charge")], path=tmp_path, tools=[tool, quick]) as h:
        await h.agent()
        await h.start()
        await h.client.until("toolExecEnd")
    assert tool.ran == [{}]
    async with house("I see", path=tmp_path, tools=[tool, quick]) as h:
        outcome = await h.resume()
        assert outcome.output == "I see"
        assert (len(tool.ran), len(quick.ran)) == (1, 1)
        results = [(m["toolName"], m["isError"]) for m in await h.messages() if m["role"] == "toolResult"]
        assert results == [("quick", False), ("charge", True)]
        codes = [e["code"] for e in await h.stored_events() if e["type"] == "warning"]
        assert codes == ["runInterrupted", "callInterrupted"]


@pytest.mark.parametrize("asks", [True, False], ids=["with an open approval", "without"])
async def test_a_call_whose_turn_had_not_come_is_not_started_after_a_crash(tmp_path: Path, asks: bool) -> None:
    """D1: the round had begun, so nobody knows any more what its undispatched calls would have been asked after."""
    hung, quick, risky = ToldTool("hung", for_ever), ToldTool("quick"), ToldTool("risky", approval="ask")
    calls = [call("hung"), call("quick"), *([call("risky")] if asks else [])]
    tools, one_by_one = [hung, quick, risky], HubLimits(tool_concurrency=1)
    async with killed_house(calls, path=tmp_path, tools=tools, limits=one_by_one) as h:
        await h.agent()
        await h.start()
        await h.client.until("toolExecStart")
    for _ in range(2):  # a second restart finds what the first has left
        async with killed_house(path=tmp_path, tools=tools, limits=one_by_one) as h:
            assert (await h.state())["state"] == ("waiting" if asks else "interrupted")
    async with house("I see", path=tmp_path, tools=tools, limits=one_by_one) as h:
        if asks:
            (approval,) = await h.approvals()
            await h.decide(approval["approvalId"])
            async with asyncio.timeout(5):
                outcome = await h.hub.wait("a", None)
        else:
            outcome = await h.resume()
        assert outcome.output == "I see"
        told = {m["toolName"]: m["content"][0]["text"] for m in await h.messages() if m["role"] == "toolResult"}
        assert told == {"hung": INTERRUPTED, "quick": NOT_STARTED, **({"risky": "done"} if asks else {})}
        assert [len(tool.ran) for tool in tools] == [1, 0, int(asks)]


async def test_a_new_prompt_after_a_crash_closes_the_old_round_too(tmp_path: Path) -> None:
    tool = ToldTool("charge", for_ever)
    async with killed_house([call("charge")], path=tmp_path, tools=[tool]) as h:
        await h.agent()
        await h.start()
        await h.client.until("toolExecStart")
    async with house("fine", path=tmp_path, tools=[tool]) as h:
        outcome = await h.prompt("forget it")
        assert outcome.output == "fine"
        assert [role for role, _ in await h.said()] == ["user", "assistant", "toolResult", "user", "assistant"]
        assert len(tool.ran) == 1
        with pytest.raises(NothingToResume):
            await h.resume()


async def test_a_tool_that_may_run_again_does(tmp_path: Path) -> None:
    first = ToldTool("fetch", for_ever, on_interrupt="rerun")
    async with killed_house([call("fetch")], path=tmp_path, tools=[first]) as h:
        await h.agent()
        await h.start()
        await h.client.until("toolExecStart")
    again = ToldTool("fetch", on_interrupt="rerun")
    async with house("got it", path=tmp_path, tools=[again]) as h:
        assert (await h.resume()).output == "got it"
        assert again.ran == [{}]


async def test_a_result_that_came_before_the_placeholder_is_used_after_a_crash(tmp_path: Path) -> None:
    async def slow(args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        await ctx.inbox().resolve(ctx.call_id, "the real one")
        await asyncio.Event().wait()
        return ToolOutput.pending("never said")

    async with killed_house([call("build")], path=tmp_path, tools=[ToldTool("build", slow)]) as h:
        await h.agent()
        await h.start()
        await h.client.until("inboxQueued")
    async with house("good", path=tmp_path, tools=[pending_tool()]) as h:
        assert (await h.resume()).output == "good"
        results = [(m["content"][0]["text"], m["isError"]) for m in await h.messages() if m["role"] == "toolResult"]
        assert results == [("the real one", False)]
        assert (await h.state())["inbox"] == 0


async def test_pending_calls_and_inbox_are_what_they_were(tmp_path: Path) -> None:
    async with killed_house([call("build")], "started", path=tmp_path, tools=[pending_tool()]) as h:
        await h.agent()
        await h.prompt()
        await h.resolve("msg-2-call-1", "built")
        before = (await h.pending(), await h.hub.inbox_list("a"), await h.messages(), await h.stored_events())
    async with house("thanks", path=tmp_path, tools=[pending_tool()]) as h:
        after = (await h.pending(), await h.hub.inbox_list("a"), await h.messages(), await h.stored_events())
        assert after == before
        assert (await h.resume()).output == "thanks"


async def test_recovery_twice_changes_nothing_the_second_time(tmp_path: Path) -> None:
    async with killed_house(for_ever, path=tmp_path) as h:
        await h.agent()
        await h.start()
        await h.client.until("messageStart", count=2)
    async with house(path=tmp_path) as h:
        once = await h.stored_events()
    async with house(path=tmp_path) as h:
        assert await h.stored_events() == once


async def begun(h: House) -> None:
    """An agent that is to be resumed by itself, in a model call."""
    await h.agent(on_restart="resume")
    await h.start()
    await h.client.until("messageStart", count=2)


async def resumed_again_and_again(house_of: Callable[..., Any], path: Path, *, times: int) -> None:
    """Lives that end as those of `house_of` do, each when it has asked the model once more."""
    for _ in range(times):
        async with house_of(for_ever, path=path) as h, asyncio.timeout(5):
            while not h.model.requests:
                await asyncio.sleep(0)


async def test_on_restart_resume_carries_on_by_itself_and_gives_up_after_three_crashes(tmp_path: Path) -> None:
    async with killed_house(for_ever, path=tmp_path) as h:
        await begun(h)
    await resumed_again_and_again(killed_house, tmp_path, times=2)
    async with house("never asked", path=tmp_path) as h:
        await asyncio.sleep(0.05)
        assert h.model.requests == []
        end = (await h.stored_events())[-1]
        assert (end["type"], end["reason"], end["error"]["kind"]) == ("agentEnd", "failed", "crashLoop")
        assert (await h.prompt("again")).output == "never asked"


@pytest.fixture
def stillborn(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes hubs that are killed after recovery, before they resume anything."""

    @contextlib.asynccontextmanager
    async def life(path: Path) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(Control, "resume", lambda *_args, **_options: asyncio.get_running_loop().create_future())
            async with killed_house(path=path) as h:
                yield h

    return life


async def test_on_restart_resume_outlives_daemons_that_are_killed_before_they_resume(
    tmp_path: Path, stillborn: Any
) -> None:
    async with killed_house(for_ever, path=tmp_path) as h:
        await h.agent(on_restart="resume")
        await h.agent("waits")
        await h.start()
        await h.start(agent_id="waits")
        async with asyncio.timeout(5):
            while len(h.model.requests) < 2:
                await asyncio.sleep(0)
    for _ in range(5):  # these lives bring nothing down: the run was not at work
        async with stillborn(tmp_path) as h:
            assert (await h.state())["state"] == "interrupted"
    async with house("at last", path=tmp_path) as h:
        async with asyncio.timeout(5):
            while (await h.state())["state"] != "idle":
                await asyncio.sleep(0)
        assert (await h.said())[-1] == ("assistant", "at last")
        assert [e["reason"] for e in await h.stored_events() if e["type"] == "agentEnd"] == ["interrupted", "done"]
        assert (await h.state("waits"))["state"] == "interrupted", "it waits for somebody"


async def test_a_daemon_that_is_told_to_end_resumes_at_its_next_start_and_no_run_is_blamed(tmp_path: Path) -> None:
    async with house(for_ever, path=tmp_path) as h:
        await begun(h)
    await resumed_again_and_again(house, tmp_path, times=4)
    async with house("at last", path=tmp_path) as h:
        async with asyncio.timeout(5):
            while (await h.state())["state"] != "idle":
                await asyncio.sleep(0)
        assert (await h.said())[-1] == ("assistant", "at last")


async def test_what_somebody_wanted_stopped_is_not_resumed_by_itself(tmp_path: Path, stillborn: Any) -> None:
    async with killed_house(for_ever, path=tmp_path) as h:
        await h.agent(on_restart="resume")
        await h.start()
        await h.client.until("messageStart", count=2)
    async with stillborn(tmp_path) as h:
        assert await h.hub.stop(Caller(), "a") == {"stopped": False}
    async with house("by hand", path=tmp_path) as h:
        await asyncio.sleep(0.05)
        assert h.model.requests == []
        assert (await h.resume()).output == "by hand"


async def test_an_interrupted_run_whose_preset_is_gone_keeps_the_daemon_from_nothing(tmp_path: Path) -> None:
    presets = {"steady": AgentConfig(on_restart="resume")}
    async with killed_house(for_ever, path=tmp_path, presets=presets) as h:
        await h.agent(preset="steady")
        await h.start()
        await h.client.until("messageStart", count=2)
    async with house(path=tmp_path) as h:
        assert (await h.state())["state"] == "interrupted"
    async with house("it is back", path=tmp_path, presets=presets) as h:
        async with asyncio.timeout(5):
            while (await h.state())["state"] != "idle":
                await asyncio.sleep(0)
        assert (await h.said())[-1] == ("assistant", "it is back")


async def test_the_turn_budget_is_part_of_the_saved_run(tmp_path: Path) -> None:
    """R-DR-10."""
    tools = [pending_tool()]
    async with killed_house([call("build")], [call("build")], path=tmp_path, tools=tools) as h:
        await h.agent(max_turns=3, pause_on_pending=True)
        await h.prompt()
        await h.resolve("msg-2-call-1")
        assert (await h.resume()).reason == "paused"
    async with house([call("build")], [call("build")], path=tmp_path, tools=tools) as h:
        pending = [c["callId"] for c in await h.pending()]
        await h.resolve(pending[0])
        assert (await h.resume()).reason == "paused"
        for open_call in await h.pending():
            await h.resolve(open_call["callId"])
        outcome = await h.resume()
        assert outcome.reason == "maxTurns"
        assert len(h.model.requests) == 1
        h.model.replies = ["still here"]
        assert (await h.prompt("and now?")).output == "still here"


async def test_the_same_request_after_a_kill_waits_for_the_same_run(tmp_path: Path) -> None:
    caller = Caller(client_id="c", request_id="r1", body_sha256="x")
    tool = ToldTool("deploy", approval="ask")
    async with killed_house([call("deploy")], path=tmp_path, tools=[tool]) as h:
        await h.agent()
        accepted = await h.start(caller=caller)
        await h.client.until("approvalRequested")
    async with house("once", path=tmp_path, tools=[tool]) as h:
        waiting = asyncio.create_task(h.prompt(caller=caller))
        await asyncio.sleep(0.02)
        await h.decide((await h.approvals())[0]["approvalId"])
        outcome = await waiting
        assert outcome.run_id == accepted.run_id
        assert [role for role, _ in await h.said()].count("user") == 1
        assert (await h.prompt(caller=caller)).run_id == accepted.run_id
        assert tool.ran == [{}]


async def asks_through_child(h: House, tools: list[ToldTool]) -> None:
    await h.agent()
    await h.start()
    await h.client.until("nested:approvalRequested")


def delegating(on_interrupt: str) -> ToldTool:
    async def run(args: dict[str, Any], ctx: ToolContext) -> str:
        return (await ctx.run_child(AgentConfig(tools=("deploy",)), "deploy it")).text

    return ToldTool("helper", run, on_interrupt=on_interrupt)  # type: ignore[arg-type]


async def test_a_childs_open_approval_and_its_parents_run_survive_together(tmp_path: Path) -> None:
    deploy = ToldTool("deploy", approval="ask")
    tools = [delegating("rerun"), deploy]
    async with killed_house([call("helper")], [call("deploy")], path=tmp_path, tools=tools) as h:
        await asks_through_child(h, tools)
        before = await h.approvals("a")
        seq = (await h.state())["seq"]
    assert before[0]["path"] == [{"agentId": "a", "callId": "msg-2-call-1"}]
    async with house("child done", "parent done", path=tmp_path, tools=tools) as h:
        assert await h.approvals("a") == before
        assert (await h.state())["state"] == "waiting"
        assert (await h.state())["seq"] == seq, "no event: it only waits again"
        await h.hub.attach(h.client, "a", after_seq=seq, deltas=True)
        await h.decide(before[0]["approvalId"])
        await h.client.until("agentEnd")
        outcome = await h.hub.wait("a", None)
        assert (outcome.reason, outcome.output) == ("done", "parent done")
        assert deploy.ran == [{}]
        children = await h.hub.list_agents(cursor=None, limit=9, state=None, parent_agent_id="a", labels=None)
        assert len(children["agents"]) == 1
        kinds = [kind for kind in h.client.types() if kind.startswith("nested")]
        assert kinds[-1] == "nested:agentEnd"


def deaf(h: House) -> None:
    """Lets nothing more begin, as if the process were killed before it acts on what it commits next."""
    h.hub._reactions.closing = True


async def decided_and_killed(path: Path, tool: ToldTool, **decided: Any) -> None:
    """A life in which a call of `tool` waits, and which ends as soon as the decision about it is committed."""
    async with killed_house([call("deploy")], path=path, tools=[tool]) as h:
        await h.agent()
        await h.start()
        await h.client.until("approvalRequested")
        (approval,) = await h.approvals()
        deaf(h)
        await h.decide(approval["approvalId"], **decided)


async def test_a_decision_to_abort_that_a_kill_caught_stops_the_run(tmp_path: Path) -> None:
    tool = ToldTool("deploy", approval="ask")
    await decided_and_killed(tmp_path, tool, decision="abort")
    async with house("next", path=tmp_path, tools=[tool]) as h:
        async with asyncio.timeout(5):
            assert (await h.hub.wait("a", None)).reason == "stopped"
        assert (await h.state())["state"] == "idle"
        assert [e["type"] for e in await h.stored_events()][-2:] == ["turnEnd", "agentEnd"]
        assert (await h.prompt("again")).output == "next"
        assert tool.ran == []


DECISIONS = [
    pytest.param({"decision": "approve"}, "done", id="approve"),
    pytest.param({"decision": "edit", "arguments": {"where": "here"}}, "done", id="edit"),
    pytest.param({"decision": "deny", "reason": "no"}, "Denied by the reviewer: 'deploy' was not run.", id="deny"),
    pytest.param({"decision": "answer", "content": (TextPart(text="did it"),)}, "did it", id="answer"),
]


@pytest.mark.parametrize(("decided", "result"), DECISIONS)
async def test_a_decision_that_a_kill_caught_is_carried_out_by_itself(
    tmp_path: Path, decided: dict[str, Any], result: str
) -> None:
    tool = ToldTool("deploy", approval="ask")
    await decided_and_killed(tmp_path, tool, **decided)
    async with house("on it goes", path=tmp_path, tools=[tool]) as h:
        async with asyncio.timeout(5):
            assert (await h.hub.wait("a", None)).output == "on it goes"
        kinds = [e["type"] for e in await h.stored_events()]
        assert (kinds.count("agentStart"), kinds.count("agentEnd")) == (1, 1)
        (said,) = [text for role, text in await h.said() if role == "toolResult"]
        assert said.startswith(result)
        assert len(tool.ran) == (decided["decision"] in ("approve", "edit"))


@pytest.mark.parametrize("on_interrupt", ["fail", "rerun"])
@pytest.mark.parametrize(("decided", "result"), DECISIONS)
async def test_a_decision_is_carried_out_after_a_kill_though_an_earlier_life_left_a_call_at_work(
    tmp_path: Path, decided: dict[str, Any], result: str, on_interrupt: str
) -> None:
    deploy, slow = ToldTool("deploy", approval="ask"), ToldTool("slow", for_ever, on_interrupt=on_interrupt)  # type: ignore[arg-type]
    async with killed_house([call("slow"), call("deploy")], path=tmp_path, tools=[deploy, slow]) as h:
        await h.agent()
        await h.start()
        await h.client.until("approvalRequested")
        await h.client.until("toolExecStart")
    async with killed_house(path=tmp_path, tools=[deploy, slow]) as h:
        (approval,) = await h.approvals()
        deaf(h)
        await h.decide(approval["approvalId"], **decided)
        (run,) = (await h.hub.run_list(agent_id="a", state=None, cursor=None, limit=9))["runs"]
        assert "msg-2-call-1" in (await h.hub.run_export(run["runId"]))["run"]["round"]["dispatched"]
    again = ToldTool("slow", on_interrupt=on_interrupt)  # type: ignore[arg-type]
    async with house("on it goes", path=tmp_path, tools=[deploy, again]) as h:
        async with asyncio.timeout(5):
            assert (await h.hub.wait("a", None)).output == "on it goes"
        first, second = [text for role, text in await h.said() if role == "toolResult"]
        assert first.startswith("Interrupted" if on_interrupt == "fail" else "done")
        assert second.startswith(result)
        assert len(again.ran) == (on_interrupt == "rerun")
        codes = [e["code"] for e in await h.stored_events() if e["type"] == "warning"]
        assert codes == (["callInterrupted"] if on_interrupt == "fail" else [])


@pytest.mark.parametrize("on_interrupt", ["fail", "rerun"])
async def test_a_run_whose_tool_was_at_work_is_interrupted_though_it_had_a_decision(
    tmp_path: Path, on_interrupt: str
) -> None:
    deploy, slow = ToldTool("deploy", approval="ask"), ToldTool("slow", for_ever, on_interrupt=on_interrupt)  # type: ignore[arg-type]
    calls = [call("slow"), call("deploy"), ToolCallPart(id="p-2", name="deploy", arguments={"n": 2})]
    async with killed_house(calls, path=tmp_path, tools=[deploy, slow]) as h:
        await h.agent()
        await h.start()
        await h.client.until("approvalRequested", count=2)
        await h.client.until("toolExecStart")
        await h.decide((await h.approvals())[0]["approvalId"], "deny")
    # In this life the decision carries the round on, and a call that may run again is at work when the kill comes.
    async with killed_house(for_ever, path=tmp_path, tools=[deploy, slow]) as h:
        await h.hub.attach(h.client, "a", after_seq=None, deltas=True)
        await h.decide((await h.approvals())[0]["approvalId"], "deny")
        async with asyncio.timeout(5):
            while not (len(slow.ran) == 2 if on_interrupt == "rerun" else h.model.requests):
                await asyncio.sleep(0)
    async with house("by hand", path=tmp_path, tools=[deploy, slow]) as h:
        await asyncio.sleep(0.05)
        assert (await h.state())["state"] == "interrupted"
        assert h.model.requests == []


async def test_a_childs_denial_that_a_kill_caught_carries_child_and_parent_on(tmp_path: Path) -> None:
    deploy = ToldTool("deploy", approval="ask")
    tools = [delegating("rerun"), deploy]
    async with killed_house([call("helper")], [call("deploy")], path=tmp_path, tools=tools) as h:
        await asks_through_child(h, tools)
        (approval,) = await h.approvals("a")
        deaf(h)
        await h.decide(approval["approvalId"], "deny")
    async with house("child done", "parent done", path=tmp_path, tools=tools) as h:
        async with asyncio.timeout(5):
            assert (await h.hub.wait("a", None)).output == "parent done"
        assert ("toolResult", "child done") in await h.said()
        assert deploy.ran == []


@pytest.mark.parametrize("on_restart", ["pause", "resume"])
async def test_a_childs_abort_that_a_kill_caught_stops_the_child_and_its_parent_hears_of_it(
    tmp_path: Path, on_restart: str
) -> None:
    deploy = ToldTool("deploy", approval="ask")
    tools = [delegating("rerun"), deploy]
    async with killed_house([call("helper")], [call("deploy")], path=tmp_path, tools=tools) as h:
        await h.agent(on_restart=on_restart)
        await h.start()
        await h.client.until("nested:approvalRequested")
        (approval,) = await h.approvals("a")
        deaf(h)
        await h.decide(approval["approvalId"], "abort")
    async with house("the child was stopped", path=tmp_path, tools=tools) as h:
        async with asyncio.timeout(5):
            assert (await h.hub.wait(approval["agentId"], None)).reason == "stopped"
            if on_restart == "pause":
                assert (await h.state())["state"] == "interrupted"
                await h.resume()
            assert (await h.hub.wait("a", None)).output == "the child was stopped"
        assert {(await h.state(one))["state"] for one in ("a", approval["agentId"])} == {"idle"}
        assert await h.approvals() == []
        assert deploy.ran == []


async def test_an_abort_that_a_kill_caught_stops_children_in_the_middle_of_their_model_call(tmp_path: Path) -> None:
    deploy = ToldTool("deploy", approval="ask")
    tools = [delegating("rerun"), deploy]
    async with killed_house([call("helper"), call("deploy")], for_ever, path=tmp_path, tools=tools) as h:
        await h.agent()
        await h.start()
        await h.client.until("nested:messageStart", count=2)
        (approval,) = await h.approvals("a")
        deaf(h)
        await h.decide(approval["approvalId"], "abort")
    async with house("next", path=tmp_path, tools=tools) as h:
        below = await h.hub.list_agents(cursor=None, limit=9, state=None, parent_agent_id="a", labels=None)
        child = below["agents"][0]["agentId"]
        async with asyncio.timeout(5):
            assert (await h.hub.wait("a", None)).reason == "stopped"
            assert (await h.hub.wait(child, None)).reason == "stopped"
        assert {(await h.state(one))["state"] for one in ("a", child)} == {"idle"}
        assert (await h.prompt("again")).output == "next"


async def test_the_child_of_a_tool_that_may_not_run_again_is_stopped_with_its_parent(tmp_path: Path) -> None:
    deploy = ToldTool("deploy", approval="ask")
    tools = [delegating("fail"), deploy]
    async with killed_house([call("helper")], [call("deploy")], path=tmp_path, tools=tools) as h:
        await asks_through_child(h, tools)
    async with house("noted", path=tmp_path, tools=tools) as h:
        assert await h.approvals() == []
        assert (await h.state())["state"] == "interrupted"
        ends = [e for e in await h.stored_events() if e["type"] in ("nested", "agentEnd")][-2:]
        assert [e["type"] for e in ends] == ["nested", "agentEnd"]
        assert ends[0]["event"]["reason"] == "interrupted"
        assert (await h.resume()).output == "noted"
        assert deploy.ran == []


async def test_a_queued_prompt_survives_and_starts_its_own_pass(tmp_path: Path) -> None:
    tool = ToldTool("deploy", approval="ask")
    async with killed_house([call("deploy")], path=tmp_path, tools=[tool]) as h:
        await h.agent()
        await h.start()
        await h.client.until("approvalRequested")
        accepted = await h.hub.prompt(
            Caller(),
            "a",
            (TextPart(text="and then this"),),
            if_busy="queue",
            on_approval=None,
            wait=False,
            session=Client(),
        )
        assert accepted.item_id
    async with house("both", path=tmp_path, tools=[tool]) as h:
        await h.decide((await h.approvals())[0]["approvalId"])
        async with asyncio.timeout(5):
            outcome = await h.hub.wait("a", None)
        assert outcome.output == "both"
        assert ("user", "and then this") in await h.said()


async def test_a_run_that_is_given_up_after_three_crashes_in_a_tool_round_leaves_a_whole_conversation(
    tmp_path: Path,
) -> None:
    quick, slow = ToldTool("quick"), ToldTool("slow", for_ever)
    for life in range(3):
        async with killed_house([call("quick"), call("slow")], path=tmp_path, tools=[quick, slow]) as h:
            if life == 0:
                await h.agent(on_restart="resume")
                await h.start()
            else:
                await h.hub.attach(h.client, "a", after_seq=None, deltas=True)
            async with asyncio.timeout(5):
                while len(slow.ran) <= life:
                    await asyncio.sleep(0)
    async with house("fine", path=tmp_path, tools=[quick, slow]) as h:
        end = (await h.stored_events())[-1]
        assert (end["reason"], end["error"]["kind"]) == ("failed", "crashLoop")
        calls = [p["id"] for m in await h.messages() for p in m["content"] if p["type"] == "toolCall"]
        results = [m["callId"] for m in await h.messages() if m["role"] == "toolResult"]
        assert results == calls
        assert (await h.state())["state"] == "idle"
        assert (await h.prompt("again")).output == "fine"
        assert len(slow.ran) == 3


async def test_a_child_whose_question_was_closed_with_its_parent_can_be_carried_on(tmp_path: Path) -> None:
    deploy = ToldTool("deploy", approval="ask")
    tools = [delegating("fail"), deploy]
    async with killed_house([call("helper")], [call("deploy")], path=tmp_path, tools=tools) as h:
        await asks_through_child(h, tools)
    async with house("child goes on", "parent goes on", path=tmp_path, tools=tools) as h:
        below = await h.hub.list_agents(cursor=None, limit=9, state=None, parent_agent_id="a", labels=None)
        child = below["agents"][0]["agentId"]
        head = (await h.state())["seq"]
        outcome = await h.resume(child)
        assert (outcome.reason, outcome.output) == ("done", "child goes on")
        assert deploy.ran == []
        kinds = [event["type"] for event in (await h.stored_events())[head:]]
        assert kinds == ["inboxQueued"], "nothing is nested into a call that has ended; the reply waits in the inbox"
        assert (await h.resume()).output == "parent goes on"
        results = [m["content"][0]["text"] for m in await h.messages() if m["role"] == "toolResult"]
        assert results == ["child goes on"]
        assert (await h.state())["state"] == "idle"


async def test_the_newest_run_is_the_one_begun_last_though_the_clock_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []
    for year in (60, 50, 40):
        monkeypatch.setattr(clock, "_last_run", 0)
        monkeypatch.setattr(time, "time_ns", lambda year=year: year * 31_556_952 * 10**9)
        async with house("one", "two", path=tmp_path) as h:
            if year == 60:
                await h.agent()
            begun += [(await h.prompt()).run_id for _ in range(2)]
            assert (await h.hub.wait("a", None)).run_id == begun[-1]
            listed, cursor = [], None
            while page := await h.hub.run_list(agent_id="a", state=None, cursor=cursor, limit=2):
                listed += [run["runId"] for run in page["runs"]]
                if (cursor := page.get("nextCursor")) is None:
                    break
            assert listed == begun[::-1]


async def test_the_newest_activity_comes_first_though_the_clock_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "b", "c"]
    for life, year in enumerate((60, 50, 40)):
        monkeypatch.setattr(clock, "_last_stamp", 0)
        async with house(*["hello"] * 3, path=tmp_path) as h:
            for name in names if life == 0 else ():
                await h.agent(name)
            for back, name in enumerate(names):
                now = (year * 365 * 24 - back) * 3600 * 10**9
                monkeypatch.setattr(time, "time_ns", lambda now=now: now)
                await h.prompt("go", name)
                page = await h.hub.list_agents(cursor=None, limit=1, state=None, parent_agent_id=None, labels=None)
                assert [one["agentId"] for one in page["agents"]] == [name]
        names.reverse()
