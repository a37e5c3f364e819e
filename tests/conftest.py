"""What every test may use, which processes coverage measures, and which files begin."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sojourn_client.testing import DaemonProcess

signal.signal(signal.SIGINT, signal.default_int_handler)
"""A job in the background of a shell ignores it, and so would all that it starts: Ctrl-C could not be tested."""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Or each of the hundreds of daemons and commands would compile the whole server anew."""

gc.disable()  # while the tests are collected: all that is made there stays, and each worker makes it

DAEMONS_MEASURED = tuple(f"e2e/test_{name}" for name in ("daemon_life", "lsp_client", "plain_lsp", "shows_hand_steps"))
MEASURED = (
    *("clients/test_transcripts", "e2e/test_cli_", "models/", "rpc/"),
    *("tools/test_shell", "tools/test_supervise", "tools/test_watch"),
    *DAEMONS_MEASURED,
)
"""Tests whose processes are measured for coverage, which costs each process 0.2 s and makes a start half as long again.

Those of the others are killed, or run nothing that no other test runs. A daemon that `DaemonProcess` starts is measured
only where it ends in order (`DAEMONS_MEASURED`): one that is killed leaves nothing measured behind.
"""

COVERAGE_VARIABLES = ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")

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
    "agents/test_damaged_rows",
    "models/test_recorded_chat",
    "tools/",
    "core/",
    "models/",
)
"""The files that take longest, so that no worker is left alone with one at the end (`--no-loadscope-reorder`)."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the files of `FIRST` first, in its order."""

    def rank(item: pytest.Item) -> int:
        where = _within(config, item)
        return next((place for place, start in enumerate(FIRST) if where.startswith(start)), len(FIRST))

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """From here on garbage is collected, without looking at what the collection of tests has made."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def processes_measured(request: pytest.FixtureRequest) -> Iterator[None]:
    """Has coverage measure the processes that the tests of a module start, or not."""
    with pytest.MonkeyPatch.context() as patch:
        where = _within(request.config, request.node)
        if not where.startswith(MEASURED):
            for name in COVERAGE_VARIABLES:
                patch.delenv(name, raising=False)
        elif not where.startswith(DAEMONS_MEASURED):
            patch.setattr(DaemonProcess, "start", _unmeasured(DaemonProcess.start))
        yield


@pytest.fixture
def anyio_backend() -> str:
    """In-process async tests run on asyncio, as the daemon does."""
    return "asyncio"


def _unmeasured(start: Callable[..., DaemonProcess]) -> Callable[..., DaemonProcess]:
    """`DaemonProcess.start` of a daemon that coverage does not measure; the commands of `run` still are."""

    def start_unmeasured(daemon: DaemonProcess, **options: Any) -> DaemonProcess:
        given = daemon.env
        daemon.env = {name: value for name, value in given.items() if name not in COVERAGE_VARIABLES}
        try:
            return start(daemon, **options)
        finally:
            daemon.env = given

    return start_unmeasured


def _within(config: pytest.Config, node: pytest.Item | pytest.Module) -> str:
    """The path of a test's file within this folder."""
    return node.path.relative_to(config.rootpath / "tests").as_posix()
