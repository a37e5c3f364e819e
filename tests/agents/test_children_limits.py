"""Kinds of children, and how many there may be: refused in words that the model reads, with nothing left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from house import House, ToldTool, call, house

from sojourn.agents.children import Spent, heir
from sojourn.agents.runtime import HubLimits
from sojourn.core.agent import AgentConfig, Caller, Limits
from sojourn.models.base import ModelRequest
from sojourn.tools.base import ToolContext
from sojourn.tools.delegate import delegate, delegate_to

pytestmark = pytest.mark.anyio


async def results(h: House) -> list[tuple[str, bool]]:
    return [(m["content"][0]["text"], m["isError"]) for m in await h.messages() if m["role"] == "toolResult"]


async def children(h: House, agent_id: str = "a") -> list[dict[str, Any]]:
    found = await h.hub.list_agents(cursor=None, limit=99, state=None, parent_agent_id=agent_id, labels=None)
    return list(found["agents"])


async def test_the_children_of_an_agent_that_are_at_work_have_a_limit_and_ended_ones_do_not_count() -> None:
    go = asyncio.Event()

    async def said(request: ModelRequest) -> Any:
        asked = request.messages[-1]
        if asked.role == "toolResult":
            return "done"
        if asked.content[0].text == "go":  # type: ignore[union-attr]
            return [call("delegate", task="wait") for _ in range(8)]
        await go.wait()
        return "child"

    async with house(extra_tools=[delegate], limits=HubLimits(max_children=3)) as h:
        h.model.replies = [said] * 50
        await h.agent(tools=("delegate",))
        for number in (1, 2):
            running = asyncio.create_task(h.prompt())
            await h.client.until("toolExecEnd", count=number * 8 - 3)
            go.set()
            await running
            go.clear()
            told = (await results(h))[-8:]
            refused = [text for text, is_error in told if is_error]
            assert [text for text, is_error in told if not is_error] == ["child"] * 3
            assert len(refused) == 5
            assert refused[0].startswith("No child agent was started: 3 children of 'a' are at work; the limit is 3")
            assert len(await children(h)) == 3 * number


async def test_a_run_may_have_a_limit_of_children_and_the_next_run_begins_anew() -> None:
    replies = [[call("delegate", task="1"), call("delegate", task="2")], "child", "told"] * 2
    async with house(*replies, extra_tools=[delegate]) as h:
        await h.agent(tools=("delegate",), limits=Limits(children=1))
        for _ in range(2):
            await h.prompt()
            told = (await results(h))[-2:]
            assert sorted(is_error for _, is_error in told) == [False, True]
            (refused,) = [text for text, is_error in told if is_error]
            assert "this run has started 1 already; the limit is 1 (children)" in refused


async def test_children_below_the_deepest_level_are_refused_in_words() -> None:
    replies = ([call("delegate", task="1")], [call("delegate", task="2")], "child", "parent")
    async with house(*replies, extra_tools=[delegate], limits=HubLimits(max_children_depth=1)) as h:
        await h.agent(tools=("delegate",))
        assert (await h.prompt()).output == "parent"
        (child,) = await children(h)
        assert await children(h, child["agentId"]) == []
        told = [m for m in await h.messages(child["agentId"]) if m["role"] == "toolResult"]
        assert "2 levels below the first agent; the limit is 1 (depth)" in told[0]["content"][0]["text"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (AgentConfig(preset="nobody"), "no preset 'nobody'; known: digger"),
        (AgentConfig(model="nothing"), "No model 'nothing'"),
    ],
)
async def test_a_child_that_cannot_be_leaves_nobody_behind(config: AgentConfig, words: str) -> None:
    async def start(_args: dict[str, Any], ctx: ToolContext) -> str:
        return (await ctx.run_child(config, "x")).text

    presets = {"digger": AgentConfig()}
    async with house([call("start")], "I see", tools=[ToldTool("start", start)], presets=presets) as h:
        await h.agent()
        await h.prompt()
        ((text, is_error),) = await results(h)
        assert is_error
        assert words in text
        assert await children(h) == []


@pytest.mark.parametrize("who", ["a", "above"])
async def test_an_agent_is_never_below_itself(who: str) -> None:
    async def start(_args: dict[str, Any], ctx: ToolContext) -> str:
        target = ctx.agent_id if who == "a" else "a"
        return (await ctx.run_child(target, "x")).text

    async def child(_args: dict[str, Any], ctx: ToolContext) -> str:
        return (await ctx.run_child(AgentConfig(tools=("start",)), "x")).text

    replies = ([call("child")], [call("start")], "child", "parent")
    async with house(*replies, tools=[ToldTool("start", start), ToldTool("child", child)]) as h:
        await h.agent()
        assert (await h.prompt()).output == "parent"
        (one,) = await children(h)
        told = [m for m in await h.messages(one["agentId"]) if m["role"] == "toolResult"]
        assert "or above it" in told[0]["content"][0]["text"]
        assert (await h.hub.stop(Caller(), "a"))["stopped"] is False


async def test_the_model_is_told_the_kinds_of_children_and_a_preset_makes_one() -> None:
    kinds = {"digger": "Digs  in\narchives.", "plain": None}
    tool = delegate_to(kinds)
    preset = tool.info.spec.input_schema["properties"]["preset"]
    assert preset["anyOf"][0]["enum"] == ["digger", "plain"]
    assert preset["description"].endswith("The kinds are: digger: Digs in archives.; plain.")
    assert "enum" not in str(delegate.info.spec.input_schema), "the plain one is as it was"
    assert "leave this out" in delegate_to({}).info.spec.input_schema["properties"]["preset"]["description"]

    presets = {"digger": AgentConfig(system_prompt="You dig.", tools=("quick",)), "plain": AgentConfig()}
    quick = ToldTool("quick")
    replies = ([call("delegate", task="dig", preset="digger")], "found", "done")
    async with house(*replies, tools=[quick], extra_tools=[tool], presets=presets) as h:
        await h.agent(system_prompt="You lead.", tools=("delegate",))
        assert (await h.prompt()).output == "done"
        asked = h.model.requests[1]
        assert (asked.system, [one.name for one in asked.tools]) == ("You dig.", ["quick"])


async def test_a_child_without_a_preset_has_its_parents_tools() -> None:
    replies = ([call("delegate", task="look")], [call("quick")], "found", "done")
    quick = ToldTool("quick")
    async with house(*replies, tools=[quick], extra_tools=[delegate]) as h:
        await h.agent(system_prompt="You lead.", tools=("delegate", "quick"), approvals={"*": "allow"})
        assert (await h.prompt()).output == "done"
        assert quick.ran == [{}]
        assert "one task for another agent" in str(h.model.requests[1].system)


async def test_a_limit_of_depth_reaches_all_descendants() -> None:
    replies = ([call("delegate", task="1")], [call("delegate", task="2")], [call("delegate", task="3")], "c", "b", "a")
    async with house(*replies, extra_tools=[delegate]) as h:
        await h.agent(tools=("delegate",), limits=Limits(depth=2))
        assert (await h.prompt()).output == "a"
        (child,) = await children(h)
        (grandchild,) = await children(h, child["agentId"])
        assert await children(h, grandchild["agentId"]) == []
        told = [m for m in await h.messages(grandchild["agentId"]) if m["role"] == "toolResult"]
        assert "the limit is 0 (depth)" in told[0]["content"][0]["text"]


@pytest.mark.parametrize(
    ("parent", "own", "limits"),
    [
        (Limits(tokens=100, cost=2.0, depth=3), None, Limits(tokens=60, cost=1.5, depth=2)),
        (Limits(tokens=100, depth=0), Limits(tokens=10, depth=5, children=1), Limits(tokens=10, depth=0, children=1)),
        (
            Limits(tokens=30, wall_clock_s=15.0),
            Limits(tokens=50, cost=9.0),
            Limits(tokens=1, wall_clock_s=5.0, cost=9.0),
        ),
        (Limits(approval_s=4.0), Limits(depth=1), Limits(approval_s=4.0, depth=1)),
        (None, Limits(tokens=7), Limits(tokens=7)),
    ],
)
def test_a_child_has_at_most_what_its_parent_has_left(
    parent: Limits | None, own: Limits | None, limits: Limits
) -> None:
    config = AgentConfig(limits=own)
    spent = Spent(tokens=40, cost=0.5, seconds=10.0)
    assert heir(config, config, AgentConfig(limits=parent), spent).limits == limits
