"""Many calls of one turn: each runs once and keeps its result, and never more at a time than the limit says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from house import ToldTool, call, house

from sojourn.agents.runtime import HubLimits

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("together", [True, False])
async def test_more_calls_than_places_all_run_also_when_many_end_at_once(together: bool) -> None:
    at_work, most = 0, 0
    gate = asyncio.Event()

    async def work(args: dict[str, Any], _ctx: Any) -> str:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        if together:  # all that are at work end in one tick, so that their results are committed together
            asyncio.get_running_loop().call_later(0.01, gate.set)
            await gate.wait()
            asyncio.get_running_loop().call_soon(gate.clear)
        else:
            await asyncio.sleep(args["n"] % 3 / 1000)
        at_work -= 1
        return f"did {args['n']}"

    tool = ToldTool("work", work)
    calls = [call("work", n=n) for n in range(30)]
    async with house(calls, "done", tools=[tool], limits=HubLimits(tool_concurrency=8)) as h:
        await h.agent()
        assert (await h.prompt()).output == "done"
        texts = [m["content"][0]["text"] for m in await h.messages() if m["role"] == "toolResult"]
        assert texts == [f"did {n}" for n in range(30)]
        assert sorted(args["n"] for args in tool.ran) == list(range(30))
        assert most == 8
        assert not [event for event in h.client.events() if event["type"] == "warning"]
