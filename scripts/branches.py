"""Reads what `coverage json -o -` writes and says how many branches are taken; exit code 1 under `ASKED` percent.

`coverage report --fail-under` judges lines and branches together, and there are four times as many lines.
"""

from __future__ import annotations

import json
import sys

ASKED = 95


def main() -> int:
    """The exit code."""
    totals = json.load(sys.stdin)["totals"]
    covered, there = totals["covered_branches"], totals["num_branches"]
    sys.stdout.write(f"branches: {covered} of {there} ({100 * covered / there:.2f} %), {ASKED} asked\n")
    return int(100 * covered < ASKED * there)


if __name__ == "__main__":
    sys.exit(main())
