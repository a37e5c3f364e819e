"""What the hub refuses, in which words, and that nothing changes by it; what is too much, late or taken back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from house import Client, ToldTool, call, house, killed_house
from method_calls import calls_of

from sojourn.agents import control, roster
from sojourn.agents.passes import Moved, Pass
from sojourn.agents.runtime import HubLimits
from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.errors import AgentBusy, AgentNotFound, InvalidParams, LimitReached, RunNotFound, SojournError
from sojourn.models.base import ModelRequest
from sojourn.tools.base import ToolContext

pytestmark = pytest.mark.anyio


def gated(name: str = "deploy", **options: Any) -> ToldTool:
    return ToldTool(name, lambda args, _ctx: f"deployed {args}", approval="ask", **options)


async def never(_request: ModelRequest) -> Any:
    await asyncio.Event().wait()


async def test_an_agent_at_work_is_neither_resumed_nor_prompted_nor_given_another_conversation() -> None:
    async with house([call("deploy")], "done", tools=[gated()]) as h:
        await h.agent()
        run_id = (await h.start()).run_id
        await h.client.until("approvalRequested")
        seq = (await h.state())["seq"]
        with pytest.raises(AgentBusy, match="The agent 'a' is waiting already"):
            await h.resume()
        with pytest.raises(AgentBusy, match="wait for it, stop it, push to its inbox, or prompt with ifBusy 'queue'"):
            await h.prompt("more")
        script = calls_of(h)
        with pytest.raises(AgentBusy, match="its messages are replaced only while no pass is open") as caught:
            await script.ask("agent/replaceMessages", agentId="a", messages=[])
        assert caught.value.data["runId"] == run_id
        with pytest.raises(AgentBusy, match=r"it can be deleted \(or with 'force'\) only while no pass is open"):
            await script.ask("agent/delete", agentId="a")
        assert (await h.state())["seq"] == seq


@pytest.mark.parametrize(
    ("method", "params", "on_approval"),
    [
        ("agent/prompt", {"agentId": "a", "content": "more"}, "pause"),
        ("agent/resume", {"agentId": "a"}, "pause"),
        ("agent/stop", {"agentId": "a"}, "wait"),
        ("run/step", {}, "pause"),
    ],
)
async def test_an_agent_that_never_stands_still_is_not_looked_at_for_ever(
    method: str, params: dict[str, Any], on_approval: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def moved(p: Pass, _ledger: Any) -> None:
        tries.append(p.agent_id)
        raise Moved

    async with house([call("deploy")], tools=[gated()]) as h:
        await h.agent(onApproval=on_approval)
        run_id = (await h.start()).run_id
        await h.client.until("agentEnd" if on_approval == "pause" else "approvalRequested")
        with monkeypatch.context() as patch:
            patch.setattr(control, "TRIES", 3)
            patch.setattr(Pass, "check_current", moved)
            with pytest.raises(AgentBusy, match=r"The agent 'a' has changed 3 times while it was looked at\."):
                await calls_of(h).ask(method, **(params or {"runId": run_id}))
        assert tries == ["a"] * 3


async def test_a_full_inbox_takes_nothing_more_until_it_is_read() -> None:
    async with house(never, limits=HubLimits(max_inbox_items=1)) as h:
        await h.agent()
        await h.push("one")
        with pytest.raises(LimitReached, match="holds 1 unread items, the limit maxInboxItems; let it read") as caught:
            await h.push("two")
        assert (caught.value.data["limit"], caught.value.data["max"]) == ("maxInboxItems", 1)
        assert (await h.state())["inbox"] == 1


async def test_an_item_is_taken_back_once_and_only_from_the_inbox_that_holds_it() -> None:
    async with house("done") as h:
        script = calls_of(h)
        await h.agent("a")
        await h.agent("b")
        item = await h.push("one")
        for agent_id, item_id in (("b", item), ("a", "a-item-99")):
            with pytest.raises(InvalidParams, match=f"The inbox of '{agent_id}' never held an item '{item_id}'"):
                await script.ask("inbox/remove", agentId=agent_id, itemId=item_id)
        assert await script.ask("inbox/remove", agentId="a", itemId=item) == {"outcome": "removed"}
        assert await script.ask("inbox/remove", agentId="a", itemId=item) == {"outcome": "removed"}
        read = await h.push("two")
        await h.prompt()
        assert await script.ask("inbox/remove", agentId="a", itemId=read) == {"outcome": "alreadyRead"}
        assert {text for role, text in await h.said() if role == "user"} == {"two", "go"}


async def test_who_waits_for_a_queued_prompt_hears_that_it_was_taken_back() -> None:
    async with house(never) as h:
        await h.agent()
        await h.start()
        waiting = asyncio.create_task(h.prompt("and then", if_busy="queue"))
        queued = await h.client.until("inboxQueued")
        item_id = queued["item"]["itemId"]
        await calls_of(h).ask("inbox/remove", agentId="a", itemId=item_id)
        await h.hub.stop(Caller(), "a")
        with pytest.raises(RunNotFound, match=f"The queued prompt '{item_id}' was removed before a run read it"):
            await waiting


async def test_a_request_that_is_cancelled_while_it_waits_stops_its_run_but_not_what_it_queued() -> None:
    async with house(never, "next") as h:
        await h.agent()
        waiting = asyncio.create_task(h.prompt(session=(mine := Client("mine"))))
        await h.client.until("turnStart")
        other = asyncio.create_task(h.prompt("and then", if_busy="queue", session=(theirs := Client("theirs"))))
        await h.client.until("inboxQueued")
        theirs.cancelled = True
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        assert (await h.state())["state"] == "running"
        mine.cancelled = True
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        end = await h.client.until("agentEnd")
        assert end["reason"] == "stopped"
        await h.client.until("agentEnd", count=2)
        assert (await h.said())[-1] == ("assistant", "next")


async def test_a_decision_that_edits_needs_arguments_and_one_with_a_scope_a_rule_that_covers_the_call() -> None:
    tool = gated()
    async with house([call("deploy", to="x" * 5000)], "done", tools=[tool]) as h:
        await h.agent(approvals={"deploy: *x*": "ask"})
        running = asyncio.create_task(h.prompt())
        await h.client.until("approvalRequested")
        (approval,) = await h.approvals()
        with pytest.raises(InvalidParams, match="'edit' needs 'arguments', which the call then runs with") as caught:
            await h.decide(approval["approvalId"], "edit")
        assert caught.value.data["field"] == "arguments"
        with pytest.raises(InvalidParams, match="No lasting approval can cover this call of 'deploy'") as caught:
            await h.decide(approval["approvalId"], "approve", scope="agent")
        assert caught.value.data["field"] == "scope"
        assert tool.ran == []
        assert len(await h.approvals()) == 1
        await h.decide(approval["approvalId"])
        await running


async def test_a_result_that_is_too_large_is_left_out_with_its_size() -> None:
    tool = ToldTool("big", lambda _args, _ctx: "x" * 2000)
    async with house([call("big")], "sorry", tools=[tool], limits=HubLimits(max_result_bytes=1000)) as h:
        await h.agent()
        assert (await h.prompt()).output == "sorry"
        (result,) = [message for message in await h.messages() if message["role"] == "toolResult"]
        assert result["isError"]
        assert "the limit maxResultBytes is 1000" in result["content"][0]["text"]
        assert "xxx" not in str(await h.messages())


async def test_a_child_that_is_paused_says_what_it_waits_for() -> None:
    async def helper(_args: dict[str, Any], ctx: ToolContext) -> str:
        config = AgentConfig(tools=("deploy",), on_approval="pause")
        return (await ctx.run_child(config, "deploy it")).text

    tools = [ToldTool("helper", helper), gated()]
    async with house([call("helper")], [call("deploy")], "then later", tools=tools) as h:
        await h.agent()
        assert (await h.prompt()).output == "then later"
        (result,) = [text for role, text in await h.said() if role == "toolResult"]
        assert result.endswith("is paused; it waits for an approval.")


async def test_another_conversation_ends_the_paused_run_of_the_old_one() -> None:
    async with house([call("deploy")], "hello again", tools=[gated()]) as h:
        await h.agent(on_approval="pause")
        await h.prompt()
        script = calls_of(h)
        await script.ask("agent/replaceMessages", agentId="a", messages=[{"role": "user", "content": "hello"}])
        assert ((await h.state())["state"], await h.approvals()) == ("idle", [])
        assert await h.said() == [("user", "hello")]
        assert (await h.resume()).output == "hello again"


async def test_an_update_of_nothing_is_no_news() -> None:
    async with house() as h:
        await h.agent()
        seq = (await h.state())["seq"]
        script = calls_of(h)
        assert (await script.ask("agent/update", agentId="a"))["seq"] == seq
        assert (await script.ask("agent/update", agentId="a", title="T"))["title"] == "T"
        assert "title" not in await script.ask("agent/update", agentId="a", title=None)


async def test_a_deletion_by_force_ends_the_run_and_its_questions_and_frees_the_name() -> None:
    tool = gated()
    async with house([call("deploy")], "new life", tools=[tool]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("approvalRequested")
        await calls_of(h).ask("agent/delete", agentId="a", force=True)
        await asyncio.gather(running, return_exceptions=True)
        assert await h.approvals() == []
        with pytest.raises(AgentNotFound):
            await h.state()
        await h.agent()
        assert (await h.prompt()).output == "new life"
        assert tool.ran == []


async def test_a_deletion_that_a_kill_cut_off_is_finished_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut_off(*_: Any) -> None: ...

    async with killed_house("one", path=tmp_path / "db") as h:
        await h.agent()
        await h.prompt()
        with monkeypatch.context() as patch:
            patch.setattr(roster, "sweep", cut_off)
            await calls_of(h).ask("agent/delete", agentId="a")
    async with house("two", path=tmp_path / "db") as h:
        with pytest.raises(AgentNotFound):
            await h.state()
        async with asyncio.timeout(10):
            while True:
                try:
                    await h.agent()
                    break
                except SojournError:
                    await asyncio.sleep(0)
        assert await h.messages() == []
        assert (await h.prompt()).output == "two"


async def test_a_request_that_is_remembered_no_more_is_carried_out_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house("one", path=tmp_path / "db") as h:
        script = calls_of(h)
        await h.agent()
        first = await script.ask("inbox/push", agentId="a", content="hello", requestId="r")
        assert await script.ask("inbox/push", agentId="a", content="hello", requestId="r") == first
    with monkeypatch.context() as patch:
        patch.setattr("sojourn.agents.tidying.REQUESTS_KEPT_S", -60)
        async with house(path=tmp_path / "db") as h:
            script = calls_of(h)
            async with asyncio.timeout(10):
                while await script.ask("inbox/push", agentId="a", content="hello", requestId="r") == first:
                    await asyncio.sleep(0)
            items = (await script.ask("inbox/list", agentId="a"))["items"]
            assert [item["content"][0]["text"] for item in items] == ["hello", "hello"]


async def test_a_client_that_leaves_while_it_is_asked_leaves_the_question_to_the_others() -> None:
    answered = asyncio.Event()

    async def think(_params: dict[str, Any]) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            answered.set()

    async with house([call("deploy")], "done", tools=[gated()]) as h:
        await h.agent()
        asked = Client("asked", answers_approvals=True, answers={"approval/request": think})
        await h.hub.attach(asked, "a", after_seq=0, deltas=False)
        running = asyncio.create_task(h.prompt())
        await h.client.until("approvalRequested")
        while not asked.asked:
            await asyncio.sleep(0)
        h.hub.client_gone(asked)
        async with asyncio.timeout(10):
            await answered.wait()
        (approval,) = await h.approvals()
        await h.decide(approval["approvalId"])
        assert (await running).output == "done"


async def test_a_run_that_is_not_the_agents_is_not_waited_for() -> None:
    async with house("done", "done") as h:
        script = calls_of(h)
        await h.agent("a")
        await h.agent("b")
        with pytest.raises(RunNotFound, match="not run yet"):
            await script.ask("agent/wait", agentId="a")
        other = (await h.prompt(agent_id="b")).run_id
        with pytest.raises(RunNotFound, match=f"no run '{other}'"):
            await script.ask("agent/wait", agentId="a", runId=other)
        with pytest.raises(AgentNotFound, match="There is no agent 'nobody'"):
            await script.ask("agent/wait", agentId="nobody")
