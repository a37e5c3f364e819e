"""Approvals: asked, listed, decided once; what runs is what was approved; silence never approves."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from house import Client, House, ToldTool, call, house, killed_house, pending_tool

from sojourn.core.agent import Caller, Limits
from sojourn.core.approvals import args_sha256
from sojourn.core.errors import AgentBusy, AlreadyDecided, ApprovalNotFound, InvalidParams, NothingToResume
from sojourn.core.messages import TextPart

pytestmark = pytest.mark.anyio


def gated(name: str = "deploy", **options: Any) -> ToldTool:
    return ToldTool(name, lambda args, _ctx: f"deployed {args}", approval="ask", **options)


async def asked(h: House, agent_id: str = "a", **config: Any) -> tuple[asyncio.Task[Any], dict[str, Any]]:
    """A prompt whose call waits; the approval."""
    await h.agent(agent_id, **config)
    running = asyncio.create_task(h.prompt(agent_id=agent_id))
    await h.client.until("approvalRequested")
    return running, (await h.approvals())[0]


async def test_a_gated_call_waits_and_runs_once_when_it_is_approved() -> None:
    """R-DR-14."""
    tool = gated()
    async with house([call("deploy", to="prod")], "done", tools=[tool]) as h:
        running, approval = await asked(h)
        state = await h.state()
        assert (state["state"], state["waitingFor"], state["approvals"]) == ("waiting", "approval", 1)
        assert tool.ran == []
        assert approval["args"] == {"to": "prod"}
        assert approval["argsSha256"] == args_sha256({"to": "prod"})
        answer = await h.decide(approval["approvalId"], by="alice")
        assert answer["approval"]["decision"]["by"] == "alice"
        outcome = await running
        assert (outcome.reason, outcome.output) == ("done", "done")
        assert tool.ran == [{"to": "prod"}]
        assert h.client.types().count("approvalResolved") == 1


async def test_the_second_decider_is_told_who_won() -> None:
    async with house([call("deploy")], "done", tools=[gated()]) as h:
        running, approval = await asked(h)
        results = await asyncio.gather(
            h.decide(approval["approvalId"], by="alice"),
            h.decide(approval["approvalId"], "deny", by="bob"),
            return_exceptions=True,
        )
        (late,) = [r for r in results if isinstance(r, AlreadyDecided)]
        assert late.data["by"] == "alice"
        assert late.data["decision"] == "approve"
        await running


async def test_a_denied_call_has_a_result_that_the_model_reads_and_no_execution() -> None:
    """R-DR-16."""
    tool = gated()
    async with house([call("deploy")], "understood", tools=[tool]) as h:
        running, approval = await asked(h)
        await h.decide(approval["approvalId"], "deny", reason="not on a Friday")
        await running
        result = h.model.requests[-1].messages[-1]
        assert result.role == "toolResult"
        assert result.is_error
        assert "not on a Friday" in result.content[0].text  # type: ignore[union-attr]
        assert tool.ran == []
        assert "toolExecStart" not in h.client.types()


async def test_an_edited_call_runs_with_the_edited_arguments() -> None:
    """R-DR-17."""
    tool = gated(schema={"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]})
    async with house([call("deploy", to="prod")], "done", tools=[tool]) as h:
        running, approval = await asked(h)
        with pytest.raises(InvalidParams) as caught:
            await h.decide(approval["approvalId"], "edit", arguments={"to": 5})
        assert caught.value.data["field"] == "arguments.to"
        await h.decide(approval["approvalId"], "edit", arguments={"to": "staging"})
        await running
        assert tool.ran == [{"to": "staging"}]
        start = next(e for e in h.client.events() if e["type"] == "toolExecStart")
        assert start["args"] == {"to": "staging"}


async def test_an_answer_becomes_the_result_and_nothing_runs() -> None:
    tool = gated()
    async with house([call("deploy")], "fine", tools=[tool]) as h:
        running, approval = await asked(h)
        await h.decide(approval["approvalId"], "answer", content=(TextPart(text="I did it by hand"),))
        await running
        assert tool.ran == []
        assert h.model.requests[-1].messages[-1].content == (TextPart(text="I did it by hand"),)


async def test_abort_stops_the_run() -> None:
    tool = gated()
    async with house([call("deploy")], tools=[tool]) as h:
        running, approval = await asked(h)
        await h.decide(approval["approvalId"], "abort")
        assert (await running).reason == "stopped"
        assert tool.ran == []
        h.model.replies = ["next"]
        assert (await h.prompt("again")).output == "next"


async def test_abort_of_a_paused_run_stops_it_when_it_is_carried_on() -> None:
    tool = gated()
    async with house([call("deploy")], "next", tools=[tool]) as h:
        await h.agent(on_approval="pause")
        assert (await h.prompt()).reason == "paused"
        (approval,) = await h.approvals()
        await h.decide(approval["approvalId"], "abort")
        assert (await h.state())["state"] == "paused"
        assert (await h.resume()).reason == "stopped"
        assert tool.ran == []
        assert (await h.state())["state"] == "idle"
        assert (await h.prompt("again")).output == "next"


async def test_calls_that_need_nobody_run_while_a_gated_one_waits() -> None:
    quick = ToldTool("quick")
    async with house([call("deploy"), call("quick")], "done", tools=[quick, gated()]) as h:
        running, approval = await asked(h)
        await h.client.until("toolExecEnd")
        assert quick.ran == [{}]
        assert (await h.state())["state"] == "waiting"
        await h.decide(approval["approvalId"])
        await running
        results = [m["toolName"] for m in await h.messages() if m["role"] == "toolResult"]
        assert results == ["deploy", "quick"]


@pytest.mark.parametrize(
    ("policies", "runs", "asks"),
    [
        ({"deploy": "allow"}, True, False),
        ({"*": "allow"}, True, False),
        ({"deploy": "deny", "*": "allow"}, False, False),
        ({"*": "deny"}, False, False),
        ({"other": "allow"}, False, True),
    ],
)
async def test_the_agents_policy_goes_over_the_tools_own(policies: dict[str, str], runs: bool, asks: bool) -> None:
    tool = gated()
    async with house([call("deploy")], "done", tools=[tool]) as h:
        await h.agent(approvals=policies)
        running = asyncio.create_task(h.prompt())
        if asks:
            await h.client.until("approvalRequested")
            await h.hub.stop(Caller(), "a")
        await running
        assert bool(tool.ran) is runs


async def test_on_approval_pause_ends_the_pass_and_a_later_decision_is_used_by_resume() -> None:
    tool = gated()
    async with house([call("deploy")], "done", tools=[tool]) as h:
        await h.agent(on_approval="pause")
        outcome = await h.prompt()
        assert outcome.reason == "paused"
        assert len(outcome.approvals) == 1
        assert (await h.state())["state"] == "paused"
        with pytest.raises(NothingToResume):
            await h.resume()
        await h.decide(outcome.approvals[0].approval_id)
        assert tool.ran == []
        assert (await h.resume()).output == "done"
        assert tool.ran == [{}]


async def test_on_approval_deny_asks_nobody() -> None:
    tool = gated()
    async with house([call("deploy")], "ok", tools=[tool]) as h:
        await h.agent(on_approval="deny")
        assert (await h.prompt()).output == "ok"
        assert tool.ran == []
        assert "approvalRequested" not in h.client.types()


async def test_a_prompt_may_say_its_own_on_approval() -> None:
    async with house([call("deploy")], "ok", tools=[gated()]) as h:
        await h.agent()
        assert (await h.prompt(on_approval="deny")).output == "ok"


async def test_the_time_limit_denies() -> None:
    tool = gated()
    async with house([call("deploy")], "ok", tools=[tool]) as h:
        running, approval = await asked(h, limits=Limits(approval_s=0.05))
        assert approval["expiresAt"]
        outcome = await running
        assert outcome.output == "ok"
        assert tool.ran == []
        resolved = next(e for e in h.client.events() if e["type"] == "approvalResolved")
        assert resolved["approval"]["decision"]["by"] == "limit"


async def test_scope_run_allows_the_tool_for_the_rest_of_the_run_only() -> None:
    tool = gated()
    replies = ([call("deploy", n=1)], [call("deploy", n=2)], "done", [call("deploy", n=3)])
    async with house(*replies, tools=[tool]) as h:
        running, approval = await asked(h)
        await h.decide(approval["approvalId"], scope="run")
        await running
        assert tool.ran == [{"n": 1}, {"n": 2}]
        again = asyncio.create_task(h.prompt())
        await h.client.until("approvalRequested", count=2)
        await h.hub.stop(Caller(), "a")
        await again


async def test_scope_agent_allows_the_tool_for_good() -> None:
    tool = gated()
    replies = ([call("deploy", n=1)], "done", [call("deploy", n=2)], "done")
    async with house(*replies, tools=[tool]) as h:
        running, approval = await asked(h)
        await h.decide(approval["approvalId"], scope="agent")
        await running
        await h.prompt()
        assert tool.ran == [{"n": 1}, {"n": 2}]


async def test_a_decision_is_an_entry_of_its_run() -> None:
    """R-DR-30."""
    async with house([call("deploy")], "done", tools=[gated()]) as h:
        running, approval = await asked(h)
        await h.decide(approval["approvalId"], by="alice")
        outcome = await running
        entries = (await h.hub.run_entries(outcome.run_id, "approval"))["entries"]
        assert [(e["value"]["decision"], e["value"]["by"], e["turn"]) for e in entries] == [("approve", "alice", 1)]


async def test_a_prompt_while_an_approval_is_open_is_refused_naming_the_run() -> None:
    async with house([call("deploy")], "done", tools=[gated()]) as h:
        running, approval = await asked(h)
        with pytest.raises(AgentBusy) as caught:
            await h.prompt("more")
        assert caught.value.data["runId"] == approval["runId"]
        await h.decide(approval["approvalId"])
        await running


async def test_a_new_prompt_closes_the_open_approvals_of_a_paused_run() -> None:
    tool = gated()
    async with house([call("deploy"), call("build")], "moving on", tools=[tool, pending_tool()]) as h:
        await h.agent(on_approval="pause")
        await h.prompt()
        outcome = await h.prompt("forget it")
        assert outcome.output == "moving on"
        assert await h.approvals() == []
        assert tool.ran == []
        assert [c["toolName"] for c in await h.pending()] == ["build"]
        resolved = next(e for e in h.client.events() if e["type"] == "approvalResolved")
        assert resolved["approval"]["decision"]["decision"] == "closed"


async def test_clients_that_answer_approvals_are_asked_and_the_first_answer_wins() -> None:
    answered = asyncio.Event()

    async def slow(_params: dict[str, Any]) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            answered.set()

    async with house([call("deploy")], "done", tools=[gated()]) as h:
        quick = Client(
            "quick", answers_approvals=True, answers={"approval/request": lambda _p: {"decision": "approve"}}
        )
        silent = Client("silent", answers_approvals=True, answers={"approval/request": slow})
        refusing = Client("refusing", answers_approvals=True)
        away = Client("away", answers_approvals=True)
        await h.agent()
        for one in (silent, refusing):
            await h.hub.attach(one, "a", after_seq=None, deltas=True)
        running = asyncio.create_task(h.prompt())
        async with asyncio.timeout(5):
            while not silent.asked or not refusing.asked:
                await asyncio.sleep(0)
        await h.hub.attach(quick, "a", after_seq=None, deltas=True)
        outcome = await running
        assert outcome.output == "done"
        assert away.asked == []
        resolved = next(e for e in h.client.events() if e["type"] == "approvalResolved")
        assert resolved["approval"]["decision"]["by"] == "quick"
        async with asyncio.timeout(5):
            await answered.wait()


async def test_nonsense_from_a_client_decides_nothing() -> None:
    for nonsense in ({"decision": "yes"}, {}, None, {"decision": "expired"}, {"decision": "stopped"}, 5):
        async with house([call("deploy")], "done", tools=[gated()]) as h:
            odd = Client("odd", answers_approvals=True, answers={"approval/request": lambda _p, n=nonsense: n})
            await h.agent()
            await h.hub.attach(odd, "a", after_seq=None, deltas=True)
            running = asyncio.create_task(h.prompt())
            await h.client.until("approvalRequested")
            await asyncio.sleep(0.01)
            assert len(await h.approvals()) == 1, nonsense
            await h.hub.stop(Caller(), "a")
            await running


async def test_an_unknown_approval_is_said() -> None:
    async with house() as h:
        with pytest.raises(ApprovalNotFound):
            await h.decide("approval-none")


async def test_after_a_kill_the_same_approval_is_open_and_one_decision_carries_the_run_on(tmp_path: Path) -> None:
    tool = gated()
    replies = ([call("build"), call("deploy", to="prod", n=2**53 + 1)],)
    async with killed_house(*replies, path=tmp_path, tools=[tool, pending_tool()]) as h:
        await h.agent()
        await h.start()
        await h.client.until("approvalRequested")
        await h.client.until("toolExecEnd")
        before = (await h.approvals(), await h.pending(), (await h.state())["seq"])
    async with house("it went on", "late", path=tmp_path, tools=[tool, pending_tool()]) as h:
        assert (await h.approvals(), await h.pending(), (await h.state())["seq"]) == before
        state = await h.state()
        assert (state["state"], state["waitingFor"]) == ("waiting", "approval")
        await h.hub.attach(h.client, "a", after_seq=before[2], deltas=True)
        approval_id = before[0][0]["approvalId"]
        await h.decide(approval_id, by="morning")
        with pytest.raises(AlreadyDecided) as caught:
            await h.decide(approval_id, by="noon")
        assert caught.value.data["by"] == "morning"
        await h.client.until("agentEnd")
        assert tool.ran == [{"to": "prod", "n": 2**53 + 1}]
        outcome = await h.hub.wait("a", None)
        assert (outcome.reason, outcome.output) == ("done", "it went on")
        assert [m["toolName"] for m in await h.messages() if m["role"] == "toolResult"] == ["build", "deploy"]


async def test_a_decision_acknowledged_right_before_a_kill_is_carried_out_after_it(tmp_path: Path) -> None:
    tool = gated()
    async with killed_house([call("deploy")], path=tmp_path, tools=[tool]) as h:
        await h.agent()
        await h.start()
        await h.client.until("approvalRequested")
        h.hub._control.wake = lambda _agent_id: None  # type: ignore[method-assign]  # the kill comes before the loop looks
        await h.decide((await h.approvals())[0]["approvalId"])
        assert tool.ran == []
    async with house("after all", path=tmp_path, tools=[tool]) as h:
        async with asyncio.timeout(5):
            outcome = await h.hub.wait("a", None)
        assert (outcome.reason, outcome.output) == ("done", "after all")
        assert tool.ran == [{}]


async def test_nobody_is_asked_about_a_call_whose_arguments_cannot_run() -> None:
    schema = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
    tool = gated(schema=schema)
    async with house([call("deploy", to=5)], [call("deploy", to="prod")], "done", tools=[tool]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("approvalRequested")
        assert len(h.model.requests) == 2, "the model read why and called again"
        result = h.model.requests[1].messages[-1]
        assert "5 is not of type 'string'" in result.content[0].text  # type: ignore[union-attr]
        await h.decide((await h.approvals())[0]["approvalId"])
        await running
        assert tool.ran == [{"to": "prod"}]


async def test_arguments_that_a_broken_schema_cannot_judge_fail_in_words_and_nobody_is_asked() -> None:
    tool = gated(schema={"type": "object", "properties": {"to": {"$ref": "#/nowhere"}}})
    async with house([call("deploy", to=5)], "done", tools=[tool]) as h:
        await h.agent()
        assert (await h.prompt()).reason == "done"
        result = h.model.requests[1].messages[-1]
        assert "could not be judged by this schema" in result.content[0].text  # type: ignore[union-attr]
        assert "approvalRequested" not in h.client.types()
        assert tool.ran == []


@pytest.mark.parametrize(("hours", "reason"), [(1, "done"), (3, "paused")])
async def test_the_time_of_a_run_goes_on_while_it_waits_and_is_counted_from_its_start(
    monkeypatch: pytest.MonkeyPatch, hours: float, reason: str
) -> None:
    tool = ToldTool("deploy", approval="ask")
    async with house([call("deploy")], "deployed", tools=[tool]) as h:
        running, approval = await asked(h, limits=Limits(wall_clock_s=2 * 3600.0))
        soon = time.time()
        monkeypatch.setattr(time, "time", lambda: soon + hours * 3600)
        await h.decide(approval["approvalId"])
        assert (await running).reason == reason
        assert tool.ran == [{}]
        warnings = [event["data"] for event in await h.stored_events() if event["type"] == "warning"]
        assert [(data["limit"], data["max"]) for data in warnings] == [("wallClockS", 7200.0)] * (reason == "paused")
        assert all(hours * 3600 <= data["value"] < hours * 3600 + 60 for data in warnings)
