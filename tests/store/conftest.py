"""What the tests of the stores share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sojourn.store.base import Store
from sojourn.store.memory import MemoryStore
from sojourn.store.sqlite import SqliteStore


@pytest.fixture(params=["sqlite", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Each store there is, empty."""
    opened: Store = await SqliteStore.open(tmp_path) if request.param == "sqlite" else MemoryStore()
    async with asyncio.timeout(30):
        yield opened
        await opened.aclose()
