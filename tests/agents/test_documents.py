"""Saved runs under an agent: the document decides, the agent brings model, tools and settings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from house import Client, House, ToldTool, call, house, pending_tool

from sojourn.agents.runtime import Conversation, Conversations, Runtime
from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.errors import AgentBusy, FormatUnsupported
from sojourn.core.messages import ToolCallPart, user
from sojourn.core.run import AgentRun, CallTools, ModelTurn
from sojourn.tools.base import ToolContext

pytestmark = pytest.mark.anyio


def saved_at_its_calls(*names: str, max_turns: int = 2, dispatched: bool = False) -> dict[str, Any]:
    """A run document whose calls wait."""
    run = AgentRun.new("transfer").with_history([user("earlier")]).max_turns(max_turns)
    run.next_step()
    run.model_response(ModelTurn.calls(*[ToolCallPart(id=n, name=n, arguments={"n": n}) for n in names], tools=names))
    step = run.next_step()
    assert isinstance(step, CallTools)
    run.append_entry("ticket", "T-noted-by-hand")
    if dispatched:
        run.mark_dispatched([names[0]])
    return run.document()


async def resume(h: House, document: dict[str, Any]) -> Any:
    return await h.resume(run=document)


async def test_an_agent_carries_a_saved_run_on_with_its_own_model_and_tools_pending_calls_first() -> None:
    """R-DR-20, R-DR-23, R-DR-24, R-DR-25, R-DR-27, R-DR-33."""
    tool = ToldTool("pay")
    async with house("paid", tools=[tool]) as h:
        await h.agent(system_prompt="Be brief.")
        await h.push("for the named agent only")
        outcome = await resume(h, saved_at_its_calls("pay"))
        assert (outcome.reason, outcome.output) == ("done", "paid")
        assert outcome.agent_id != "a"
        assert tool.ran == [{"n": "pay"}]
        assert h.model.requests[0].system == "Be brief."
        assert [m.role for m in h.model.requests[0].messages] == ["user", "user", "assistant", "toolResult"]
        assert [m.role for m in outcome.messages] == ["toolResult", "assistant"]
        assert await h.messages("a") == []
        assert (await h.state("a"))["inbox"] == 1, "the named agent's conversation and inbox are untouched"
        kinds = [event["type"] for event in await h.stored_events(outcome.agent_id)]
        assert (kinds[0], kinds[-1]) == ("agentStart", "agentEnd")


async def test_what_was_saved_decides_about_the_budget() -> None:
    """R-DR-26."""
    async with house("never asked", tools=[ToldTool("pay")]) as h:
        await h.agent(max_turns=50)
        outcome = await resume(h, saved_at_its_calls("pay", max_turns=1))
        assert outcome.reason == "maxTurns"
        assert h.model.requests == []
        run = await h.hub.run_get(outcome.run_id)
        assert (run["turn"], run["maxTurns"], run["state"]) == (1, 1, "failed")


async def test_calls_that_were_dispatched_before_the_save_are_failed_and_never_run() -> None:
    pay, check = ToldTool("pay"), ToldTool("check")
    async with house("told", tools=[pay, check]) as h:
        await h.agent()
        outcome = await resume(h, saved_at_its_calls("pay", "check", dispatched=True))
        assert outcome.reason == "done"
        assert (pay.ran, check.ran) == ([], [{"n": "check"}])
        results = [
            (m["toolName"], m["isError"]) for m in await h.messages(outcome.agent_id) if m["role"] == "toolResult"
        ]
        assert results == [("pay", True), ("check", False)]
        codes = [e["code"] for e in await h.stored_events(outcome.agent_id) if e["type"] == "warning"]
        assert codes == ["callInterrupted"]


async def test_entries_survive_export_import_and_resume_and_never_reach_the_model() -> None:
    """R-DR-30, R-DR-31."""
    async with house("paid", tools=[ToldTool("pay")]) as h:
        await h.agent()
        outcome = await resume(h, saved_at_its_calls("pay"))
        entries = (await h.hub.run_entries(outcome.run_id, "ticket"))["entries"]
        assert entries == [{"kind": "ticket", "turn": 1, "value": "T-noted-by-hand"}]
        assert "T-noted-by-hand" not in str(h.model.requests[0].messages)
        exported = (await h.hub.run_export(outcome.run_id))["run"]
        again = await h.hub.run_import(Caller(), exported)
        assert (await h.hub.run_entries(again["runId"], None))["entries"] == entries


async def test_an_exported_run_of_an_agent_has_no_secret_model_or_tool_in_it() -> None:
    """R-DR-33, R-DR-34."""
    tool = ToldTool("pay", approval="ask")
    async with house([call("pay")], tools=[tool]) as h:
        await h.agent(system_prompt="a secret of the config")
        accepted = await h.start()
        await h.client.until("approvalRequested")
        document = (await h.hub.run_export(accepted.run_id))["run"]
        text = str(document)
        assert "a secret of the config" not in text
        assert "said-1" in text, "which model said it stands with the message"
        assert document["state"] == "executing_tools"
        await h.hub.stop(Caller(), "a")


async def test_a_pending_placeholder_of_the_documents_history_is_owed_to_the_new_agent() -> None:
    async with house([call("build")], "started", "thanks", tools=[pending_tool()]) as h:
        await h.agent()
        first = await h.prompt()
        document = (await h.hub.run_export(first.run_id))["run"]
        document["state"], document["ending"] = "done", document["ending"]
        outcome = await h.hub.run_import(Caller(), document)
        assert (await h.hub.run_get(outcome["runId"]))["state"] == "done"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format": 99}, "99"),
        ({"format": 0}, "0"),
        ({"extra": 1}, "extra"),
        ({"turn": None}, "turn"),
    ],
)
async def test_a_document_of_another_form_is_refused_by_name_and_makes_no_agent(
    change: dict[str, Any], named: str
) -> None:
    """R-DR-28, R-DR-29."""
    async with house() as h:
        await h.agent()
        document = {**saved_at_its_calls("pay"), **change}
        with pytest.raises(FormatUnsupported) as caught:
            await resume(h, document)
        assert named in caught.value.message
        roots = await h.hub.list_agents(cursor=None, limit=9, state=None, parent_agent_id=None, labels=None)
        assert len(roots["agents"]) == 1


async def test_a_tool_call_holds_its_run_until_the_tool_returns() -> None:
    """R-LW-02."""
    go = asyncio.Event()

    async def slow(_args: dict[str, Any], _ctx: ToolContext) -> str:
        await go.wait()
        return "done"

    async with house([call("slow")], "after", tools=[ToldTool("slow", slow)]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("toolExecStart")
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(h.model.requests) == 1
        go.set()
        assert (await running).output == "after"


async def test_the_tool_that_waits_for_a_stopped_child_learns_that_it_was_aborted() -> None:
    """R-LW-32."""
    from sojourn.core.errors import Aborted

    learned: list[str] = []

    async def helper(_args: dict[str, Any], ctx: ToolContext) -> str:
        try:
            await ctx.run_child(AgentConfig(tools=("slow",)), "work")
        except Aborted:
            learned.append("aborted")
            raise
        return "unreachable"

    async def for_ever(*_: Any) -> str:
        await asyncio.Event().wait()
        return ""

    tools = [ToldTool("helper", helper), ToldTool("slow", for_ever)]
    async with house([call("helper")], [call("slow")], "parent goes on", tools=tools) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("nested:toolExecStart")
        below = await h.hub.list_agents(cursor=None, limit=9, state=None, parent_agent_id="a", labels=None)
        await h.hub.stop(Caller(), below["agents"][0]["agentId"])
        await running
        assert learned == ["aborted"]


async def test_prompting_steps_the_same_run_that_can_be_read_and_exported() -> None:
    """R-DR-03, R-DR-08."""
    async with house([call("pay")], "paid", tools=[ToldTool("pay")]) as h:
        await h.agent()
        outcome = await h.prompt()
        run = await h.hub.run_get(outcome.run_id)
        assert (run["state"], run["turn"], run["agentId"]) == ("done", 2, "a")
        result = run["step"]["result"]
        assert result["output"] == outcome.output
        loaded = AgentRun.load((await h.hub.run_export(outcome.run_id))["run"])
        assert [m.role for m in loaded.messages] == [m.role for m in outcome.messages]


async def test_a_client_that_watches_a_resumed_document_sees_it_like_any_run() -> None:
    """R-DR-25."""
    tool = ToldTool("pay", approval="ask")
    async with house("paid", tools=[tool]) as h:
        await h.agent()
        accepted = await h.resume(run=saved_at_its_calls("pay"), wait=False)
        watcher = Client("watcher")
        await h.hub.attach(watcher, accepted.agent_id or "", after_seq=0, deltas=True)
        await watcher.until("approvalRequested")
        await h.decide((await h.approvals())[0]["approvalId"])
        await watcher.until("agentEnd")
        assert "messageDelta" in [e["type"] for e in watcher.events(live=True)]


async def test_a_step_reads_again_what_its_driver_moved_on_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    torn: list[Any] = []

    async def quick(_args: dict[str, Any], _ctx: ToolContext) -> str:
        row = await h.hub.rt.agent("a")
        conversation = await h.hub.rt.conversations.load(h.hub.rt.store, row)
        torn.append((row, Conversation(conversation.id, list(conversation.messages))))
        return "done"

    tools = [ToldTool("quick", quick), ToldTool("deploy", approval="ask")]
    async with house([call("quick")], [call("deploy")], tools=tools) as h:
        await h.agent()
        accepted = await h.start()
        await h.client.until("approvalRequested")
        row, conversation = torn[0]
        agent_of, load = Runtime.agent, Conversations.load
        rows, conversations = [row], [conversation]

        async def first_the_old_row(rt: Runtime, agent_id: str) -> Any:
            return rows.pop() if rows else await agent_of(rt, agent_id)

        async def first_the_old_messages(kept: Conversations, store: Any, agent: Any) -> Any:
            return conversations.pop() if conversations else await load(kept, store, agent)

        monkeypatch.setattr(Runtime, "agent", first_the_old_row)
        monkeypatch.setattr(Conversations, "load", first_the_old_messages)
        with pytest.raises(AgentBusy):
            await h.hub.run_step(Caller(client_id="other"), h.client, accepted.run_id, revision=None, feed=None)
        assert (rows, conversations) == ([], [])
