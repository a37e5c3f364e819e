"""The four event sequences of long-running work, exactly as a client sees them."""

from __future__ import annotations

from typing import Any

import pytest
from house import ToldTool, call, house, pending_tool

from sojourn.core.agent import AgentConfig
from sojourn.tools.base import ToolContext

pytestmark = pytest.mark.anyio

LEFT_OUT = ("inboxQueued", "inboxRead", "approvalRequested", "approvalResolved", "agentUpdated")


def story(types: list[str]) -> list[str]:
    """The types without the events that the sequences leave out."""
    return [kind for kind in types if kind.rpartition(":")[2] not in LEFT_OUT]


TURN = ["turnStart", "contextBudget", "messageStart", "generationStats", "messageEnd"]
ROUND = ["toolExecStart", "toolExecEnd", "messageStart", "messageEnd", "turnEnd"]
PROMPT = ["agentStart", "messageStart", "messageEnd"]


async def test_a_pending_call_with_the_model_answering_around_it() -> None:
    """R-LW-03, R-LW-04, R-LW-08, R-LW-25."""
    async with house([call("build")], "I've started it.", tools=[pending_tool()]) as h:
        await h.agent()
        outcome = await h.prompt()
        assert story(h.client.types()) == [*PROMPT, *TURN, *ROUND, *TURN, "turnEnd", "agentEnd"]
        end = next(e for e in h.client.events() if e["type"] == "toolExecEnd")
        assert end["result"] == {
            "content": [{"type": "text", "text": "Started job 7."}],
            "isError": False,
            "pending": True,
        }
        assert outcome.output == "I've started it."
        assert [c.call_id for c in outcome.pending_calls] == ["msg-2-call-1"]


async def test_the_same_with_pause_on_pending_ends_the_pass_and_asks_nobody() -> None:
    """R-LW-09, R-LW-26."""
    async with house([call("build")], tools=[pending_tool()]) as h:
        await h.agent(pause_on_pending=True)
        outcome = await h.prompt()
        assert story(h.client.types()) == [*PROMPT, *TURN, *ROUND, "paused", "agentEnd"]
        assert outcome.reason == "paused"
        paused = next(e for e in h.client.events() if e["type"] == "paused")
        assert [c["callId"] for c in paused["pending"]] == ["msg-2-call-1"]
        assert len(h.model.requests) == 1


async def test_resolve_then_resume_tells_the_late_result_and_answers_it() -> None:
    """R-LW-17, R-LW-27."""
    async with house([call("build")], "started", "It is built.", tools=[pending_tool()]) as h:
        await h.agent()
        await h.prompt()
        before = len(h.client.types())
        await h.resolve("msg-2-call-1", "Report written to out/")
        outcome = await h.resume()
        assert story(h.client.types()[before:]) == [
            "agentStart", "toolResolved", "messageStart", "messageEnd", *TURN, "turnEnd", "agentEnd",
        ]  # fmt: skip
        assert [m.role for m in outcome.messages] == ["lateResult", "assistant"]
        end = h.client.events()[-1]
        assert [m["role"] for m in end["messages"]] == ["lateResult", "assistant"]


async def test_a_child_inside_a_call_has_every_event_wrapped_between_start_and_end() -> None:
    """R-LW-28, R-LW-29, R-LW-30, R-LW-34."""

    async def ask_child(args: dict[str, Any], ctx: ToolContext) -> str:
        return (await ctx.run_child(AgentConfig(), "look it up")).text

    async with house([call("helper")], "found it", "all done", tools=[ToldTool("helper", ask_child)]) as h:
        await h.agent()
        outcome = await h.prompt()
        assert outcome.output == "all done"
        kinds = story(h.client.types())
        inside = [f"nested:{kind}" for kind in [*PROMPT, *TURN, "turnEnd", "agentEnd"]]
        assert kinds == [
            *PROMPT, *TURN, "toolExecStart", *inside, "toolExecEnd", "messageStart", "messageEnd", "turnEnd",
            *TURN, "turnEnd", "agentEnd",
        ]  # fmt: skip
        nested = [e for e in h.client.events(live=True) if e["type"] == "nested"]
        assert {e["toolCallId"] for e in nested} == {"msg-2-call-1"}
        assert any(e["event"]["type"] == "messageDelta" for e in nested)
        result = next(e for e in h.client.events() if e["type"] == "toolExecEnd")["result"]
        assert result["content"] == [{"type": "text", "text": "found it"}]


async def test_a_grandchilds_events_are_wrapped_twice() -> None:
    """R-LW-31."""

    async def go_deeper(args: dict[str, Any], ctx: ToolContext) -> str:
        config = AgentConfig(tools=("helper",)) if args["deep"] else AgentConfig()
        return (await ctx.run_child(config, "look")).text

    replies = ([call("helper", deep=True)], [call("helper", deep=False)], "inner", "middle", "outer")
    async with house(*replies, tools=[ToldTool("helper", go_deeper)]) as h:
        await h.agent()
        assert (await h.prompt()).output == "outer"
        assert "nested:nested:agentEnd" in h.client.types()
        replayed = h.client.events()
        assert await h.stored_events() == replayed
        assert h.client.seqs() == list(range(1, len(replayed) + 1))
