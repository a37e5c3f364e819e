"""What holds the branches that tests take: `scripts/branches.py`, after the tests of `make check`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from shared_inputs import ROOT


def judged(report: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "scripts" / "branches.py")]
    done = subprocess.run(command, input=report, capture_output=True, text=True, check=False, timeout=30)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("covered", "code", "said"),
    [
        (5700, 0, "branches: 5700 of 6000 (95.00 %), 95 asked\n"),
        (5699, 1, "branches: 5699 of 6000 (94.98 %), 95 asked\n"),
    ],
)
def test_one_branch_too_few_is_seen(covered: int, code: int, said: str) -> None:
    totals = {"covered_branches": covered, "num_branches": 6000, "num_partial_branches": 0, "percent_covered": 99}
    assert judged(json.dumps({"totals": totals})) == (code, said)


@pytest.mark.parametrize("report", ["", "{}", "No data to report."])
def test_without_a_report_nothing_is_called_enough(report: str) -> None:
    code, said = judged(report)
    assert (code != 0, said) == (True, "")


def test_the_check_asks_it_after_the_tests() -> None:
    check = (ROOT / "scripts" / "check").read_text()
    assert check.index("coverage combine") < check.index("| python scripts/branches.py || code=1")
