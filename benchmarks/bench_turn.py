"""A durable turn (user, model, tool, model) against the same rows written by plain SQLite in one thread.

The baseline writes what a real turn wrote (recorded at the store's border) in as many commits: a raw loop that encodes
and writes row by row. With 100 agents all of them are in each commit, which is the limit of group commit. Beside it a
replay is shown, which only writes: rows that are ready in memory, table by table. They run alternately,
synchronous=FULL; the medians of the rounds are printed. What is counted (commits, bytes) cannot vary.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from _busy_hub import agent_id, busy_hub, opened, prompt, settle
from _report import Report
from _turn_rows import Raw, RawLoop, RecordingStore, Transition

from sojourn.agents.hub import Hub

AT_LEAST = {1: 0.5, 100: 0.3}
COMMITS = {1: 4.0, 100: 0.3}
TURNS = {1: 20, 100: 3}
ROUNDS = 15
WARM_UP = 2
START_S, BUSY_S = 0.5, 6.0
"""In what time the busy agents begin, and how long the event loop is watched then."""


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


def watched(worked: list[float]) -> Callable[[], None]:
    """The event loop's `_run_once` that notes how long it works, in CPU seconds, from one look at its clients to the
    next. Only to be set on the loop while that is measured: it is not free."""
    run_once = cast("Any", asyncio.get_running_loop())._run_once

    def noted() -> None:
        before = time.thread_time()
        run_once()
        worked.append(time.thread_time() - before)

    return noted


async def lags(found: list[float]) -> None:
    """How late the event loop is, in seconds, every 5 ms."""
    while True:
        due = time.perf_counter() + 0.005
        await asyncio.sleep(0.005)
        found.append(time.perf_counter() - due)


async def measure(report: Report, folder: Path, agents: int, turn: list[Transition]) -> None:
    replay = Raw(folder / f"replay-{agents}", turn, agents)
    raw = RawLoop(folder / f"raw-{agents}", turn, agents)
    store = await opened(folder / f"ours-{agents}")
    ratios, cpu_ratios, ours, base, replayed = [], [], [], [], []
    commits = 0
    turns = agents * TURNS[agents]
    async with busy_hub(store, agents) as hub:
        settle()
        for number in range(ROUNDS + WARM_UP):
            before = store.stats().commits
            start, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*(_turns(hub, agent_id(n), TURNS[agents]) for n in range(agents)))
            ours_s, ours_cpu = time.perf_counter() - start, time.process_time() - cpu
            commits += store.stats().commits - before
            raw_s, raw_cpu = _written(raw, TURNS[agents])
            replay_s, _ = _written(replay, TURNS[agents])
            if number < WARM_UP:
                continue
            ratios.append(raw_s / ours_s)
            cpu_ratios.append(ours_cpu / raw_cpu)
            ours.append(turns / ours_s)
            base.append(turns / raw_s)
            replayed.append((turns / replay_s, replay_s / ours_s))
        busy, idle = await _kept_busy(hub, agents) if agents > 1 else None, await _idle()
    await store.aclose()
    replay.db.close()
    raw.db.close()
    name = "turn.one_agent" if agents == 1 else f"turn.{agents}_agents"
    report.line(
        name,
        statistics.median(ours),
        "turns/s",
        baseline="a raw loop on sqlite3, the same rows" + (", all agents in a commit" if agents > 1 else ""),
        baseline_value=statistics.median(base),
        ratio=statistics.median(ratios),
        at_least=AT_LEAST[agents],
        cpu_ratio=round(statistics.median(cpu_ratios), 2),
    )
    report.line(
        f"{name}.replay",
        statistics.median(ours),
        "turns/s",
        baseline="the same rows, ready in memory, table by table",
        baseline_value=statistics.median(rate for rate, _ in replayed),
        ratio=statistics.median(ratio for _, ratio in replayed),
    )
    report.line(f"{name}.commits", commits / turns / (ROUNDS + WARM_UP), "commits/turn", at_most=COMMITS[agents])
    if busy is not None:
        late, worked = busy
        report.line(
            f"{name}.loop_lag_p99",
            _p99_ms(late),
            "ms",
            baseline="the same loop, idle",
            baseline_value=_p99_ms(idle),
            at_most=5.0,
        )
        report.line(f"{name}.loop_work_p99", _p99_ms(worked), "ms", at_most=5.0, binding=False)


def _written(raw: Raw | RawLoop, turns: int) -> tuple[float, float]:
    """Writes so many turns; the seconds and the CPU seconds that it took."""
    prepared: list[Any] = [raw.prepared() for _ in range(turns)]
    start, cpu = time.perf_counter(), time.process_time()
    for statements in prepared:
        raw.write(statements)
    return time.perf_counter() - start, time.process_time() - cpu


async def _kept_busy(hub: Hub, agents: int) -> tuple[list[float], list[float]]:
    """`lags`, and how long the loop worked at a time, while every agent is prompted again as soon as it has answered.

    They begin one after another: a hundred prompts in one moment are no load that lasts.
    """
    loop = cast("Any", asyncio.get_running_loop())
    late: list[float] = []
    worked: list[float] = []
    until = time.perf_counter() + START_S + BUSY_S

    async def busy(number: int) -> None:
        await asyncio.sleep(START_S * number / agents)
        while time.perf_counter() < until:
            await prompt(hub, agent_id(number))

    async with asyncio.TaskGroup() as group:
        for number in range(agents):
            group.create_task(busy(number))
        await asyncio.sleep(START_S)
        clock = group.create_task(lags(late))
        loop._run_once = watched(worked)
        await asyncio.sleep(BUSY_S)
        clock.cancel()
        del loop._run_once
    return late, worked


async def _idle() -> list[float]:
    """`lags` with nothing to do: what the machine itself adds."""
    late: list[float] = []
    clock = asyncio.create_task(lags(late))
    await asyncio.sleep(BUSY_S)
    clock.cancel()
    return late


def _p99_ms(found: list[float]) -> float:
    return statistics.quantiles(found, n=100)[98] * 1000


async def _turns(hub: Hub, agent: str, turns: int) -> None:
    for _ in range(turns):
        await prompt(hub, agent)


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
