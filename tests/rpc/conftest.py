"""A daemon for the tests of the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from wire_fakes import Daemon, daemon


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Daemon]:
    """A daemon with the limits of the default config."""
    async with daemon(tmp_path) as running:
        yield running
