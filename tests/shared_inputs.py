"""Inputs that are kept outside the project, where a checkout has them beside it. Tests skip, saying so, where not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


def shared(path: str) -> Path:
    """The file or folder `path` of the inputs beside the checkout; skips the test where there is none."""
    found = ROOT.parent / "shared" / path
    if not found.exists():
        pytest.skip(f"{path} is not beside this checkout")
    return found


Exchange = dict[str, Any]


def cassettes(pattern: str, wanted: Callable[[Exchange], bool] = lambda _: True) -> list[tuple[str, int]]:
    """File and number of the recorded exchanges that are wanted; `("none", 0)`, which skips, where there are none."""
    root = ROOT.parent / "shared" / "cassettes"
    found = [
        (str(path.relative_to(root)), number)
        for path in sorted(root.glob(pattern))
        for number, one in enumerate(_exchanges(path))
        if wanted(one)
    ]
    return found or [("none", 0)]


def exchange(file: str, number: int) -> Exchange:
    """What was asked and answered; skips the test where it is not there."""
    return _exchanges(shared("cassettes") / file)[number]


@functools.cache
def _exchanges(path: Path) -> list[Exchange]:
    return list(yaml.load_all(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
