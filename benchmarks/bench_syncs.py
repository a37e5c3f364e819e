"""How often a durable turn has the disk sync: every `fsync` and `fdatasync` of the process, counted by `strace`.

A commit takes one. Writing the log back takes three, which is rare. What opening and closing a store takes is
left out by counting a few turns and more turns, in a process each, and looking at the difference. Counts do not vary
with the machine's load. Without `strace` nothing is counted.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from _busy_hub import agent_id, busy_hub, opened, prompt
from _report import Report

AT_MOST = {1: 4.2, 100: 0.3}
"""Four commits of a lone agent, and next to nothing for writing the log back."""
FEW, MORE = {1: 5, 100: 1}, {1: 85, 100: 6}
"""Turns of each agent."""


async def work(folder: Path, agents: int, turns: int) -> None:
    """So many turns of so many agents on a fresh store."""
    store = await opened(folder)

    async def one(number: int) -> None:
        for _ in range(turns):
            await prompt(hub, agent_id(number))

    async with busy_hub(store, agents) as hub:
        await asyncio.gather(*(one(n) for n in range(agents)))
    await store.aclose()


def syncs(agents: int, turns: int) -> int:
    """The syncs of a process that does this work."""
    with tempfile.TemporaryDirectory() as name:
        seen = Path(name) / "seen"
        trace = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-e", "signal=none", "-o", str(seen)]
        child = [sys.executable, __file__, str(Path(name) / "store"), str(agents), str(turns)]
        subprocess.run([*trace, *child], check=True)
        return sum("sync(" in line for line in seen.read_text().splitlines())


def main() -> int:
    report = Report()
    if shutil.which("strace") is None:
        print("strace is not installed: no sync is counted", file=sys.stderr)
        return 0
    for agents, most in AT_MOST.items():
        name = "turn.one_agent.syncs" if agents == 1 else f"turn.{agents}_agents.syncs"
        turns = (MORE[agents] - FEW[agents]) * agents
        counted = (syncs(agents, MORE[agents]) - syncs(agents, FEW[agents])) / turns
        report.line(name, counted, "syncs/turn", at_most=most)
    return report.exit_code


if __name__ == "__main__":
    if len(sys.argv) == 4:
        asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
        sys.exit(0)
    sys.exit(main())
