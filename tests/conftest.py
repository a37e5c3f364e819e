"""What every test may use, which processes coverage measures, and which files begin."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Or each of the hundreds of daemons and commands would compile the whole server anew."""

MEASURED = ("agents/", "e2e/test_cli_", "e2e/test_daemon_life", "models/", "rpc/", "store/", "tools/")
"""Tests whose processes are measured for coverage, which makes a start half as long again.

Those of the others are nearly all killed, and would leave nothing measured behind.
"""

FIRST = (
    "editors/test_vscode_extension",
    "editors/test_emacs_plugin",
    "crash/",
    "e2e/test_shows_jobs",
    "e2e/test_shows_sigterm",
    "docs/test_example",
    "e2e/",
    "editors/",
    "docs/",
    "clients/",
)
"""The files that take longest, so that no worker is left alone with one at the end (`--no-loadscope-reorder`)."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the files of `FIRST` first, in its order."""

    def rank(item: pytest.Item) -> int:
        where = _within(config, item)
        return next((place for place, start in enumerate(FIRST) if where.startswith(start)), len(FIRST))

    items.sort(key=rank)


@pytest.fixture(scope="module", autouse=True)
def processes_measured(request: pytest.FixtureRequest) -> Iterator[None]:
    """Has coverage measure the processes that the tests of a module start, or not."""
    with pytest.MonkeyPatch.context() as patch:
        if not _within(request.config, request.node).startswith(MEASURED):
            patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
            patch.delenv("COVERAGE_PROCESS_START", raising=False)
        yield


@pytest.fixture
def anyio_backend() -> str:
    """In-process async tests run on asyncio, as the daemon does."""
    return "asyncio"


def _within(config: pytest.Config, node: pytest.Item | pytest.Module) -> str:
    """The path of a test's file within this folder."""
    return node.path.relative_to(config.rootpath / "tests").as_posix()
