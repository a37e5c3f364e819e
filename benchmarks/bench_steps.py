"""What a step costs at 5,000 messages against one at 50: CPU time of the process, two agents of one hub in turns.

A step is a model call and a tool call with everything that is recorded of them. Building the model's request is the one
part that must grow with the conversation; it is timed apart, taken off, and printed on a line of its own.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _busy_hub import agent_id, busy_hub, opened, prompt, settle
from _report import Report

from sojourn.core.messages import AssistantMessage, TextPart, UserMessage
from sojourn.core.run import AgentRun
from sojourn.store.records import AgentRecord, MessageRecord

SHORT, LONG = 50, 5000
STEPS = 40
ROUNDS = 7
AT_MOST = 1.2


async def filled(hub: Any, agent: str, length: int) -> None:
    """Gives the agent a conversation of this length, through the store."""
    messages = [
        kind(content=(TextPart(text=f"message {n} " + "word " * 40),), message_id=f"msg-{n}", at="2026-01-01T00:00:00Z")
        for n in range(1, length + 1)
        for kind in ((UserMessage, AssistantMessage)[(n + 1) % 2],)
    ]

    def change(tx: Any) -> None:
        row = tx.get(AgentRecord, agent)
        tx.insert_all(
            [
                MessageRecord(row.conversation, n, str(m.message_id), m.role, m.json_bytes().decode())
                for n, m in enumerate(messages, 1)
            ]
        )
        row.message_count, row.next_message = length, length + 1
        tx.put(row)

    await hub.rt.store.write(change)
    hub.rt.agents.forget(agent)


class Clock:
    """CPU time that a function takes, added up."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.spent = 0.0

    def __call__(self, *args: Any) -> Any:
        start = time.thread_time()
        try:
            return self.function(*args)
        finally:
            self.spent += time.thread_time() - start


async def main() -> int:
    report = Report()
    building = Clock(AgentRun._model_step)

    def timed(run: AgentRun) -> Any:
        return building(run)

    AgentRun._model_step = timed  # type: ignore[method-assign]
    costs: dict[int, list[float]] = {SHORT: [], LONG: []}
    requests: dict[int, list[float]] = {SHORT: [], LONG: []}
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        store = await opened(Path(folder))
        async with busy_hub(store, 2) as hub:
            agents = {SHORT: agent_id(0), LONG: agent_id(1)}
            for length, agent in agents.items():
                await filled(hub, agent, length)
                await prompt(hub, agent)
            settle()
            for _ in range(ROUNDS):
                for length, agent in agents.items():
                    building.spent, start = 0.0, time.process_time()
                    await prompt(hub, agent, rounds=STEPS)
                    costs[length].append((time.process_time() - start - building.spent) / STEPS * 1e6)
                    requests[length].append(building.spent / STEPS * 1e6)
        await store.aclose()
    ratio = statistics.median(long / short for short, long in zip(costs[SHORT], costs[LONG], strict=True))
    report.line(
        "steps.at_5000_messages",
        statistics.median(costs[LONG]),
        "us CPU/step",
        baseline="at 50 messages",
        baseline_value=statistics.median(costs[SHORT]),
        ratio=ratio,
        at_most=AT_MOST,
    )
    report.line(
        "steps.request_building_at_5000_messages",
        statistics.median(requests[LONG]),
        "us CPU/step",
        baseline="at 50 messages",
        baseline_value=statistics.median(requests[SHORT]),
    )
    return report.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
