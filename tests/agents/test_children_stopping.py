"""Stopping a tree of agents while it grows: whatever is about to start then does not, and nothing is left at work."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from house import House, ToldTool, call, house, killed_house

from sojourn.core.agent import AgentConfig, Caller
from sojourn.models.base import ModelRequest
from sojourn.store.records import AgentRecord, RunRecord
from sojourn.tools.base import ToolContext, ToolOutput

pytestmark = pytest.mark.anyio

ROUNDS = 40
CHANCE = random.Random(7)


def spawn(name: str, level: int, tools: tuple[str, ...], *, background: bool = False) -> ToldTool:
    """A tool that starts a child of the next level."""

    async def run(_args: dict[str, Any], ctx: ToolContext) -> ToolOutput | str:
        config = AgentConfig(system_prompt=str(level), tools=tools)
        for _ in range(CHANCE.randrange(40)):  # so that not all of them start in one commit
            await asyncio.sleep(0)
        if background:
            return ToolOutput.pending(await ctx.start_child(config, "go"))
        return (await ctx.run_child(config, "go")).text

    return ToldTool(name, run)


def tree() -> list[ToldTool]:
    """Three levels: foreground and background children that each start some of their own."""
    below = ("grandchild", "grandchild_later")
    return [
        spawn("child", 1, below),
        spawn("child_later", 1, below, background=True),
        spawn("grandchild", 2, ()),
        spawn("grandchild_later", 2, (), background=True),
    ]


async def growing(request: ModelRequest) -> Any:
    """What the model says by the level of who asks: the lowest never answers."""
    if request.system == "2":
        await asyncio.Event().wait()
    if any(message.role == "toolResult" for message in request.messages):
        await asyncio.Event().wait()
    first, later = ("grandchild", "grandchild_later") if request.system == "1" else ("child", "child_later")
    return [call(first), call(later), call(first), call(later)]


async def rows(h: House, kind: Any) -> list[Any]:
    return await h.store.read(lambda tx: list(tx.find(kind)))


async def nothing_is_at_work(h: House) -> int:
    """Checks the whole tree; how many agents it has."""
    agents = await rows(h, AgentRecord)
    assert {agent.state for agent in agents} == {"idle"}, [(a.agent_id, a.state) for a in agents]
    assert not [run.run_id for run in await rows(h, RunRecord) if run.pass_open or run.stop_requested]
    assert not h.hub.rt.live
    for agent in agents:
        types = [event["type"] for event in await h.stored_events(agent.agent_id)]
        assert types.count("agentStart") == types.count("agentEnd"), (agent.agent_id, types)
        if types:
            assert types[-1] == "agentEnd", (agent.agent_id, types)
    return len(agents)


async def test_no_child_outlives_a_stop_however_the_two_meet() -> None:
    """Kinds C and X: the stop comes at every moment of the tree's growth."""
    sizes: set[int] = set()
    for number in range(ROUNDS):
        async with house(tools=tree()) as h:
            h.model.replies = [growing] * 200
            await h.agent(tools=("child", "child_later"))
            running = asyncio.create_task(h.prompt())
            for _ in range(number * 9 + CHANCE.randrange(9)):
                await asyncio.sleep(0)
            async with asyncio.timeout(5):
                stopped = await h.hub.stop(Caller(), "a")
                if stopped["stopped"]:
                    assert (await running).reason == "stopped"
                else:  # the stop came before the prompt was accepted
                    await h.client.until("agentStart")
                    await h.hub.stop(Caller(), "a")
                    await running
            for _ in range(20):
                await asyncio.sleep(0)
            sizes.add(await nothing_is_at_work(h))
            h.model.replies = ["next"]
            assert (await h.prompt("again")).output == "next"
    assert len(sizes) >= 8, "the stop came at few different moments"


async def test_two_stops_and_a_stop_of_a_child_at_the_same_time_end_all(tmp_path: Path) -> None:
    async with house(tools=tree(), path=tmp_path) as h:
        h.model.replies = [growing] * 200
        await h.agent(tools=("child", "child_later"))
        running = asyncio.create_task(h.prompt())
        await h.client.until("nested:nested:agentStart")
        below = [agent.agent_id for agent in await rows(h, AgentRecord) if agent.parent_agent_id == "a"]
        async with asyncio.timeout(10):
            await asyncio.gather(*(h.hub.stop(Caller(), one) for one in ("a", *below, "a")))
            await running
        assert await nothing_is_at_work(h) > 4


async def test_a_child_that_a_restart_brings_back_does_not_start_under_a_stop(tmp_path: Path) -> None:
    def again() -> ToldTool:
        async def run(_args: dict[str, Any], ctx: ToolContext) -> str:
            await entered.wait()
            return (await ctx.run_child(AgentConfig(system_prompt="2"), "go")).text

        return ToldTool("child", run, on_interrupt="rerun")

    entered = asyncio.Event()
    entered.set()
    async with killed_house(path=tmp_path, tools=[again()]) as h:
        h.model.replies = [[call("child")], growing]
        await h.agent(tools=("child",))
        await h.start()
        await h.client.until("nested:turnStart")
    entered = asyncio.Event()
    async with house(path=tmp_path, tools=[again()]) as h:
        h.model.replies = [growing] * 9
        await h.hub.attach(h.client, "a", after_seq=None, deltas=True)
        running = asyncio.create_task(h.resume())
        await h.client.until("agentStart")
        stopping = asyncio.create_task(h.hub.stop(Caller(), "a"))
        entered.set()
        async with asyncio.timeout(5):
            await stopping
            await running
        (child,) = [agent for agent in await rows(h, AgentRecord) if agent.parent_agent_id == "a"]
        assert child.state in ("idle", "interrupted")
        assert not [run for run in await rows(h, RunRecord) if run.pass_open]
