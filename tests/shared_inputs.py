"""Inputs that are kept outside the project, where a checkout has them beside it. Tests skip, saying so, where not."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shared(path: str) -> Path:
    """The file or folder `path` of the inputs beside the checkout; skips the test where there is none."""
    found = ROOT.parent / "shared" / path
    if not found.exists():
        pytest.skip(f"{path} is not beside this checkout")
    return found
