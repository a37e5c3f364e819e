"""The daemon is killed again and again, at named points and at random; nothing that was acknowledged may be lost, and
nothing may happen twice. `make crash` does it for hundreds of lives, with seeds that nobody chose."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from crash.harness import POINTS, Broken, Store

SHORT = 10
"""Lives of the short version."""
LONG_S = int(os.environ.get("SOJOURN_CRASH_S", "1500"))
FAULTS = [f"{when}:{point}" for point in POINTS for when in ("before", "after")]


def live(store: Store, rng: random.Random, count: int) -> None:
    """So many lives: two of three end at a kill point, in turn, the third at a random moment."""
    faults = rng.sample(FAULTS, len(FAULTS))
    while store.lives < count:
        if store.lives % 3 == 2:
            store.life()
        else:
            faults.append(fault := faults.pop(0))
            store.life(fault=f"{fault}:{rng.choice([1, 1, 1, 2, 4])}")


def lives(store: Store, count: int, fault: str | None) -> None:
    """So many lives that end in the same way."""
    for _ in range(count):
        store.life(fault=fault)


def test_whatever_kills_the_daemon_nothing_is_lost_and_nothing_happens_twice(tmp_path: Path) -> None:
    """A short version, of one seed."""
    store = Store(tmp_path, seed=1)
    live(store, random.Random(1), SHORT)
    store.end()
    assert store.struck, store.summary


@pytest.mark.crash
def test_hundreds_of_lives_lose_nothing_and_do_nothing_twice(tmp_path: Path) -> None:
    until = time.monotonic() + LONG_S
    struck: set[str] = set()
    lives = 0
    while time.monotonic() < until:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        store = Store(tmp_path / str(seed), seed)
        rng = random.Random(seed)
        live(store, rng, rng.choice([5, 20, 40]))
        store.end()
        struck |= {fault.rpartition(":")[0] for fault in store.struck}
        lives += store.lives
        print(store.summary)
    assert struck == set(FAULTS) or lives < 100, f"in {lives} lives these were never reached: {set(FAULTS) - struck}"


@pytest.mark.parametrize(
    ("plant", "verbs", "fault", "checks"),
    [
        ("acknowledge_before_commit", [], None, {"4", "11"}),
        ("append_results_as_they_finish", ["several"], "after:tool:3", {"7"}),
    ],
)
def test_the_checks_find_a_planted_defect(
    plant: str, verbs: list[str], fault: str | None, checks: set[str], tmp_path: Path
) -> None:
    store = Store(tmp_path, seed=7, plant=plant, verbs=verbs)
    with pytest.raises(Broken) as found:
        lives(store, 8, fault)
    assert {what.partition(":")[0] for what in found.value.found} & checks, str(found.value)
