"""A durable turn (user, model, tool, model) against the same rows written by plain SQLite in one thread.

The baseline writes what a real turn wrote (recorded at the store's border) in as many commits. For one agent the rows
are ready in memory and go in by `executemany`. For 100 agents a raw loop encodes and inserts row by row, all agents in
each commit, which is the limit of group commit; beside it the replay of ready rows, table by table, is shown. They run
alternately, synchronous=FULL; the medians of the rounds are printed. What is counted (commits, bytes) cannot vary.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _busy_hub import agent_id, busy_hub, opened, prompt, settle
from _report import Report
from _turn_rows import Raw, RawLoop, RecordingStore, Transition

AT_LEAST = {1: 0.5, 100: 0.3}
COMMITS = {1: 4.0, 100: 0.3}
TURNS = {1: 20, 100: 3}
ROUNDS = 7
WARM_UP = 2


async def recorded(folder: Path) -> list[Transition]:
    """What the second turn of an agent writes."""
    store = RecordingStore(await opened(folder))
    async with busy_hub(store, 1) as hub:
        await prompt(hub, agent_id(0))
        store.transitions.clear()
        await prompt(hub, agent_id(0))
        turn = list(store.transitions)
    await store.aclose()
    return turn


async def lags(found: list[float]) -> None:
    """How late the event loop is, in seconds, every 5 ms."""
    while True:
        due = time.perf_counter() + 0.005
        await asyncio.sleep(0.005)
        found.append(time.perf_counter() - due)


async def measure(report: Report, folder: Path, agents: int, turn: list[Transition]) -> None:
    replay = Raw(folder / f"replay-{agents}", turn, agents)
    raw = replay if agents == 1 else RawLoop(folder / f"raw-{agents}", turn, agents)
    store = await opened(folder / f"ours-{agents}")
    late: list[float] = []
    idle: list[float] = []
    ratios, cpu_ratios, ours, base, replayed = [], [], [], [], []
    commits = 0
    turns = agents * TURNS[agents]
    async with busy_hub(store, agents) as hub:
        settle()
        for number in range(ROUNDS + WARM_UP):
            before, clock = store.stats().commits, asyncio.create_task(lags(late))
            start, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*(_turns(hub, agent_id(n), TURNS[agents]) for n in range(agents)))
            ours_s, ours_cpu = time.perf_counter() - start, time.process_time() - cpu
            clock.cancel()
            commits += store.stats().commits - before
            raw_s, raw_cpu = _written(raw, TURNS[agents])
            replay_s, _ = (raw_s, raw_cpu) if replay is raw else _written(replay, TURNS[agents])
            await _watched(idle)
            if number < WARM_UP:
                late.clear()
                idle.clear()
                continue
            ratios.append(raw_s / ours_s)
            cpu_ratios.append(ours_cpu / raw_cpu)
            ours.append(turns / ours_s)
            base.append(turns / raw_s)
            replayed.append((turns / replay_s, replay_s / ours_s))
    await store.aclose()
    replay.db.close()
    raw.db.close()
    name = "turn.one_agent" if agents == 1 else f"turn.{agents}_agents"
    report.line(
        name,
        statistics.median(ours),
        "turns/s",
        baseline="raw sqlite3, the same rows" if agents == 1 else "a raw loop on sqlite3, all agents in a commit",
        baseline_value=statistics.median(base),
        ratio=statistics.median(ratios),
        at_least=AT_LEAST[agents],
        cpu_ratio=round(statistics.median(cpu_ratios), 2),
    )
    if agents > 1:
        report.line(
            f"{name}.replay",
            statistics.median(ours),
            "turns/s",
            baseline="the same rows, ready in memory, table by table",
            baseline_value=statistics.median(rate for rate, _ in replayed),
            ratio=statistics.median(ratio for _, ratio in replayed),
        )
    report.line(f"{name}.commits", commits / turns / (ROUNDS + WARM_UP), "commits/turn", at_most=COMMITS[agents])
    if agents > 1:
        ours_p99, idle_p99 = (statistics.quantiles(found, n=100)[98] * 1000 for found in (late, idle))
        report.line(
            f"{name}.loop_lag_p99",
            ours_p99,
            "ms",
            baseline="the same loop, idle",
            baseline_value=idle_p99,
            at_most=5.0,
            binding=False,
        )


def _written(raw: Raw | RawLoop, turns: int) -> tuple[float, float]:
    """Writes so many turns; the seconds and the CPU seconds that it took."""
    prepared: list[Any] = [raw.prepared() for _ in range(turns)]
    start, cpu = time.perf_counter(), time.process_time()
    for statements in prepared:
        raw.write(statements)
    return time.perf_counter() - start, time.process_time() - cpu


async def _watched(found: list[float]) -> None:
    """How late the loop is with nothing to do: what the machine itself adds."""
    clock = asyncio.create_task(lags(found))
    await asyncio.sleep(0.3)
    clock.cancel()


async def _turns(hub: object, agent: str, turns: int) -> None:
    for _ in range(turns):
        await prompt(hub, agent)  # type: ignore[arg-type]


async def grown(report: Report, folder: Path) -> None:
    """Bytes that a step writes when the conversation is long, against a short one."""
    store = RecordingStore(await opened(folder))
    found = {}
    async with busy_hub(store, 1) as hub:
        for length in (10, 1000):
            agent = await hub.get_agent(agent_id(0))
            rounds = (length - agent["messageCount"]) // 2 - 1
            await prompt(hub, agent_id(0), rounds=rounds)
            before = store.bytes
            await prompt(hub, agent_id(0))
            found[length] = store.bytes - before
    await store.aclose()
    report.line(
        "turn.bytes_at_1000_messages",
        found[1000],
        "bytes/turn",
        baseline="at 10 messages",
        baseline_value=found[10],
        ratio=found[1000] / found[10],
        at_most=1.3,
    )


async def main() -> int:
    report = Report()
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        folder = Path(name)
        turn = await recorded(folder / "recorded")
        for agents in (1, 100):
            await measure(report, folder, agents, turn)
        await grown(report, folder / "grown")
    return report.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
