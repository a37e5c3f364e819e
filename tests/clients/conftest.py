"""What the client's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fake_daemon import FakeDaemon


@pytest.fixture
async def fake() -> AsyncIterator[FakeDaemon]:
    async with FakeDaemon() as daemon:
        yield daemon
