"""A client that leaves or cancels at any moment: what was committed is driven, what was cancelled has stopped."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from house import Client, ToldTool, call, house, killed_house

from sojourn.core.agent import AgentConfig
from sojourn.tools.base import ToolContext

pytestmark = pytest.mark.anyio


async def cancelled_after(turns: int, prompt: Any) -> None:
    """Starts the prompt and cancels it after so many turns of the event loop (and, from 30 on, some real time)."""
    asking = asyncio.create_task(prompt)
    for _ in range(turns):
        await asyncio.sleep(0 if turns < 30 else 0.001)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking


@pytest.mark.parametrize("wait", [True, False])
async def test_a_prompt_whose_client_leaves_while_it_is_committed_is_answered_all_the_same(
    tmp_path: Path, wait: bool
) -> None:
    async with house(path=tmp_path) as h:
        for turns in (0, 1, 2, 3, 4, 5, 6, 8, 10, 14, 20, 30, 40):
            agent_id = await h.agent(f"a{turns}", attach=False)
            await cancelled_after(turns, h.prompt("hello", agent_id, wait=wait))
            async with asyncio.timeout(5):
                await h.hub._control.settle()
                while (await h.state(agent_id))["state"] != "idle":
                    await asyncio.sleep(0.001)
            count = (await h.state(agent_id))["messageCount"]
            assert count in (0, 2), "it was never there, or it was answered"
            assert (await h.prompt("again", agent_id)).reason == "done"


async def test_a_prompt_that_is_cancelled_while_it_is_committed_has_stopped_when_that_is_answered(
    tmp_path: Path,
) -> None:
    async def slow(_args: dict[str, Any], _ctx: ToolContext) -> str:
        await asyncio.sleep(5)
        return "late"

    async with house(path=tmp_path, tools=[ToldTool("slow", slow)]) as h:
        canceller = Client("canceller", cancelled=True)
        for turns in (0, 1, 2, 3, 5, 8, 12, 20, 30, 40):
            agent_id = await h.agent(f"a{turns}", attach=False)
            h.model.replies = [[call("slow")]]
            async with asyncio.timeout(3):
                await cancelled_after(turns, h.prompt("hello", agent_id, session=canceller))
            assert (await h.state(agent_id))["state"] == "idle"
            h.model.replies = ["fine"]
            assert (await h.prompt("again", agent_id)).output == "fine"


async def test_recovering_parents_that_resume_by_themselves_never_have_two_drivers(tmp_path: Path) -> None:
    async def run(_args: dict[str, Any], ctx: ToolContext) -> str:
        return (await ctx.run_child(AgentConfig(tools=("slow",), on_restart="resume"), "work")).text

    async def for_ever(*_: Any) -> str:
        await asyncio.Event().wait()
        return ""

    helper = ToldTool("helper", run, on_interrupt="rerun")
    async with killed_house(
        [call("helper")], [call("slow")], path=tmp_path, tools=[helper, ToldTool("slow", for_ever)]
    ) as h:
        await h.agent(on_restart="resume")
        await h.start()
        await h.client.until("nested:toolExecStart")
    async with house("child done", "parent done", path=tmp_path, tools=[helper, ToldTool("slow", for_ever)]) as h:
        async with asyncio.timeout(8):
            while (await h.state())["state"] != "idle":
                await asyncio.sleep(0.005)
        conversation = await h.messages()
        assert [m["role"] for m in conversation] == ["user", "assistant", "toolResult", "assistant"]
        assert conversation[-1]["content"][0]["text"] == "parent done"
        kinds = [event["type"] for event in await h.stored_events()]
        assert kinds.count("agentStart") == kinds.count("agentEnd")
