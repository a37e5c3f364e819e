"""One line of JSON a measure, and the exit code: 1 when a limit is missed."""

from __future__ import annotations

import json
from typing import Any


class Report:
    """Prints measures and remembers whether one missed its limit.

    `at_least` and `at_most` are limits of `ratio` (ours by the baseline's), or of `value` where there is no baseline.
    """

    def __init__(self) -> None:
        self.missed: list[str] = []

    def line(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        baseline: str | None = None,
        baseline_value: float | None = None,
        ratio: float | None = None,
        at_least: float | None = None,
        at_most: float | None = None,
        binding: bool = True,
        **more: Any,
    ) -> None:
        """Prints one measure; a missed limit that is not `binding` is shown and changes no exit code."""
        judged = value if ratio is None else ratio
        ok = (at_least is None or judged >= at_least) and (at_most is None or judged <= at_most)
        shown = {
            "name": name,
            "value": _short(value),
            "unit": unit,
            "baseline": baseline,
            "baseline_value": _short(baseline_value),
            "ratio": _short(ratio),
            "limit": at_most if at_least is None else at_least,
            "limit_is": None if at_least is at_most else "most" if at_least is None else "least",
            "ok": ok,
            **more,
        }
        print(json.dumps({key: shown[key] for key in shown if shown[key] is not None}), flush=True)
        if binding and not ok:
            self.missed.append(name)

    @property
    def exit_code(self) -> int:
        return int(bool(self.missed))


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.4g}")
