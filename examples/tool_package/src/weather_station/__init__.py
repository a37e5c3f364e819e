"""Three tools: one that answers at once, one that answers later, one that lets a child agent do the work."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field

from sojourn.core.agent import AgentConfig
from sojourn.tools import InboxHandle, ToolContext, ToolOutput, tool

STATIONS = {"oslo": 7.5, "lisbon": 21.0, "nairobi": 24.5}

City = Annotated[str, Field(description="A city with a station: Oslo, Lisbon or Nairobi.")]


@tool(approval="allow")
def temperature(city: City) -> dict[str, float]:
    """Tells how warm it is in a city, in degrees Celsius."""
    return {"celsius": STATIONS[city.lower()]}


class Measurements:
    """The measurements under way. The daemon calls `aclose` when it ends."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, inbox: InboxHandle, call_id: str, city: str, seconds: float) -> None:
        task = asyncio.create_task(self._measure(inbox, call_id, city, seconds))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def aclose(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _measure(self, inbox: InboxHandle, call_id: str, city: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if city.lower() in STATIONS:
            await inbox.resolve(call_id, f"Mean of {seconds:g} s in {city}: {STATIONS[city.lower()]} °C.")
        else:
            await inbox.reject(call_id, f"There is no station in {city}.")


measurements = Measurements()


@tool(approval="allow", close=measurements.aclose)
async def measure(
    ctx: ToolContext,
    city: City,
    seconds: Annotated[float, Field(gt=0, le=3600)] = 60,
) -> ToolOutput:
    """Measures for a while and reports the mean later. Other work can go on meanwhile."""
    measurements.start(ctx.inbox(), ctx.call_id, city, seconds)
    return ToolOutput.pending(f"Measuring in {city} for {seconds:g} s. The result will follow.")


@tool(approval="allow", on_interrupt="rerun")
async def compare(ctx: ToolContext, cities: Annotated[list[str], Field(min_length=2)]) -> str:
    """Lets another agent find out which of several cities is the warmest."""
    forecaster = AgentConfig(
        system_prompt="You compare the weather of cities. Answer with one sentence.",
        tools=("temperature",),
    )
    reply = await ctx.run_child(forecaster, f"Which of these is the warmest: {', '.join(cities)}?")
    return reply.text


TOOLS = [temperature, measure, compare]
