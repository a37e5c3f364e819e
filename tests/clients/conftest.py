"""What the client's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fake_daemon import FakeDaemon

from sojourn_client.testing import daemon, make_daemon

__all__ = ["daemon", "fake", "make_daemon"]


@pytest.fixture
async def fake() -> AsyncIterator[FakeDaemon]:
    async with FakeDaemon() as one:
        yield one
