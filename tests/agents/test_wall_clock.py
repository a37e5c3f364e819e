"""`limits.wall_clock_s`: at the end of its time a run pauses, whatever is at work, and goes on when it has more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from house import House, ToldTool, call, house

from sojourn.agents.loop import STILL_AT_WORK
from sojourn.agents.rounds import OUT_OF_TIME, TOO_LATE
from sojourn.agents.runtime import HubLimits
from sojourn.core.agent import AgentConfig, Caller, Limits
from sojourn.models.base import ModelDelta, ModelEvent, ModelRequest
from sojourn.tools.hooks import Hook

pytestmark = pytest.mark.anyio


async def for_ever(*_args: Any) -> str:
    await asyncio.Event().wait()
    return "never"


async def give_time(h: House) -> None:
    limits = Limits(wall_clock_s=3600.0)
    await h.hub.update_agent(Caller(), "a", {"config": AgentConfig(limits=limits).wire()})


def limits_reached(events: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return [(e["data"]["limit"], e["data"]["max"]) for e in events if e.get("code") == "limitReached"]


async def some_text(_request: ModelRequest) -> AsyncIterator[ModelEvent]:
    yield ModelDelta(0, "text", "half a sen")
    await for_ever()


async def test_a_model_that_hangs_is_given_up_when_the_time_is_over_and_asked_again_when_there_is_more() -> None:
    """The turn that got no answer is not counted, and what was streamed of it is void."""
    async with house(some_text, "in time") as h:
        await h.agent(limits=Limits(wall_clock_s=0.05), max_turns=1)
        outcome = await h.prompt()
        assert (outcome.reason, outcome.output, outcome.error) == ("paused", "", None)
        kinds = [e["type"] for e in await h.stored_events()]
        assert kinds[-6:] == ["messageStart", "messageReset", "turnEnd", "warning", "paused", "agentEnd"]
        (reset,) = [e for e in await h.stored_events() if e["type"] == "messageReset"]
        assert reset["reason"] == "cut"
        assert limits_reached(await h.stored_events()) == [("wallClockS", 0.05)]
        assert (await h.resume()).reason == "paused", "no time has been added"
        assert len(h.model.requests) == 1
        await give_time(h)
        outcome = await h.resume()
        assert (outcome.reason, outcome.output) == ("done", "in time")
        starts = [e["messageId"] for e in await h.stored_events() if e["type"] == "messageStart"]
        assert len(starts) == len(set(starts)), "the second try has a message id of its own"


async def test_calls_at_work_when_the_time_is_over_are_ended_unless_they_have_a_limit_of_their_own() -> None:
    """Finished results are kept, also of those that were waited for; of others the model reads what became of them."""
    end = asyncio.Event()

    async def slow(*_args: Any) -> str:
        await end.wait()
        return "the result"

    tools = [ToldTool("quick"), ToldTool("slow", slow), ToldTool("hung", for_ever)]
    tools[1].info = replace(tools[1].info, bounded=True)
    async with house([call("quick"), call("slow"), call("hung")], "I see", tools=tools) as h:
        await h.agent(limits=Limits(wall_clock_s=1.0))
        running = asyncio.create_task(h.prompt())
        await h.client.until(lambda e: e["type"] == "toolExecEnd" and e["toolName"] == "hung")
        assert not running.done()
        end.set()
        outcome = await running
        assert (outcome.reason, outcome.pending_calls) == ("paused", ())
        assert limits_reached(await h.stored_events()) == [("wallClockS", 1.0)]
        results = [
            (m["toolName"], m["isError"], m["content"][0]["text"]) for m in await h.messages() if "toolName" in m
        ]
        assert results == [("quick", False, "done"), ("slow", False, "the result"), ("hung", True, OUT_OF_TIME)]
        await give_time(h)
        assert (await h.resume()).output == "I see"
        assert [len(tool.ran) for tool in tools] == [1, 1, 1]


async def test_a_summary_that_hangs_is_given_up_when_the_time_is_over() -> None:
    async with house("x" * 4000, for_ever, "a summary", "at last") as h:
        h.model.spec = replace(h.model.spec, context_window=1000)
        await h.agent(compact_at=0.3)
        await h.prompt()
        await h.hub.update_agent(Caller(), "a", {"config": {"limits": {"wallClockS": 0.05}}})
        outcome = await h.prompt("and now")
        assert (outcome.reason, len(h.model.requests)) == ("paused", 2)
        assert [e["type"] for e in await h.stored_events()][-4:] == ["messageReset", "warning", "paused", "agentEnd"]


async def results(h: House, agent_id: str = "a") -> list[tuple[str, str]]:
    return [(m["toolName"], m["content"][0]["text"]) for m in await h.messages(agent_id) if m["role"] == "toolResult"]


async def test_a_call_whose_turn_comes_after_the_end_is_not_started() -> None:
    hung = ToldTool("hung", for_ever)
    limits = HubLimits(tool_concurrency=1)
    async with house([call("hung", n=1), call("hung", n=2)], "I see", tools=[hung], limits=limits) as h:
        await h.agent(limits=Limits(wall_clock_s=0.2))
        assert (await h.prompt()).reason == "paused"
        assert await results(h) == [("hung", OUT_OF_TIME), ("hung", TOO_LATE)]
        assert hung.ran == [{"n": 1}]


async def test_a_call_that_a_person_lets_through_after_the_end_has_the_time_once_more() -> None:
    hung = ToldTool("hung", for_ever, approval="ask")
    async with house([call("hung")], tools=[hung]) as h:
        await h.agent(limits=Limits(wall_clock_s=0.2))
        running = asyncio.create_task(h.prompt())
        await h.client.until("approvalRequested")
        await asyncio.sleep(0.25)
        (approval,) = await h.approvals()
        await h.decide(approval["approvalId"])
        assert (await running).reason == "paused"
        assert (await results(h), len(hung.ran)) == ([("hung", OUT_OF_TIME)], 1)


async def test_a_tool_that_will_not_end_is_left_behind() -> None:
    gone = asyncio.Event()

    async def stubborn(*_args: Any) -> str:
        while not gone.is_set():
            try:
                await gone.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    async with house([call("stubborn")], "I see", tools=[ToldTool("stubborn", stubborn)]) as h:
        await h.agent(limits=Limits(wall_clock_s=0.1))
        assert (await h.prompt()).reason == "paused"
        assert await results(h) == [("stubborn", f"{OUT_OF_TIME} {STILL_AT_WORK}")]
        gone.set()
        await give_time(h)
        assert (await h.resume()).output == "I see"
        assert await results(h) == [("stubborn", f"{OUT_OF_TIME} {STILL_AT_WORK}")]


async def test_a_call_that_is_past_its_tool_when_the_time_is_over_keeps_its_result() -> None:
    """Here a hook looks at the result for longer than the run has time."""
    looking, go_on = asyncio.Event(), asyncio.Event()

    async def look(*_args: Any) -> None:
        looking.set()
        await go_on.wait()

    async with house(
        [call("quick")], tools=[ToldTool("quick")], hooks=[Hook("looks", SimpleNamespace(after_tool=look))]
    ) as h:
        await h.agent(limits=Limits(wall_clock_s=0.1))
        running = asyncio.create_task(h.prompt())
        await looking.wait()
        await asyncio.sleep(0.2)
        go_on.set()
        assert (await running).reason == "paused"
        assert await results(h) == [("quick", "done")]


@pytest.mark.parametrize("patience_s", [None, 0.1], ids=["the run's time", "the tool's own"])
async def test_a_child_ends_before_the_call_that_gives_it_up(patience_s: float | None) -> None:
    """Nothing nested comes after the call's end, nothing of the child runs on, and the parent can be carried on."""

    async def asks_a_child(_args: dict[str, Any], ctx: Any) -> str:
        try:
            await asyncio.wait_for(ctx.run_child(AgentConfig(tools=("gated",)), "do it"), patience_s)
        except TimeoutError:
            return "gave up"
        return "never"

    gated = ToldTool("gated", approval="ask")
    tools = [ToldTool("asks", asks_a_child), gated]
    limits = Limits(wall_clock_s=0.3) if patience_s is None else None
    async with house([call("asks")], [call("gated")], "I see", "and on", tools=tools) as h:
        await h.agent(limits=limits)
        outcome = await h.prompt()
        assert outcome.reason == ("paused" if patience_s is None else "done")
        (child,) = (await h.hub.list_agents(cursor=None, limit=9, state=None, parent_agent_id="a", labels=None))[
            "agents"
        ]
        assert (child["state"], await h.approvals()) == ("idle", [])
        kinds = h.client.types()
        assert kinds.index("toolExecEnd") > max(n for n, kind in enumerate(kinds) if kind.startswith("nested:"))
        await give_time(h)
        carried_on = await (h.resume() if patience_s is None else h.prompt())
        assert (carried_on.reason, gated.ran) == ("done", [])
