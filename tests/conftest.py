"""What every test may use."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """In-process async tests run on asyncio, as the daemon does."""
    return "asyncio"
