"""What every test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Or each of the hundreds of daemons and commands would compile the whole server anew."""

UNMEASURED = ("crash/", "docs/", "editors/", "e2e/test_shows_")
"""Tests whose processes are not measured for coverage, which doubles what a start costs.

What these run of the server is run by the tests of its rooms and of the daemon's life, which are measured; most of
their daemons are killed, and would leave nothing measured behind anyhow.
"""


@pytest.fixture(scope="module", autouse=True)
def processes_measured(request: pytest.FixtureRequest) -> Iterator[None]:
    """Has coverage measure the processes that the tests of a module start, or not."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.relative_to(request.config.rootpath / "tests").as_posix().startswith(UNMEASURED):
            patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
            patch.delenv("COVERAGE_PROCESS_START", raising=False)
        yield


@pytest.fixture
def anyio_backend() -> str:
    """In-process async tests run on asyncio, as the daemon does."""
    return "asyncio"
