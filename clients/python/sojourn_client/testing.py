"""For tests: a real daemon with a scripted model in a temporary directory, as a class and as pytest fixtures.

pytest_plugins = ["sojourn_client.testing"]

def test_something(daemon):
    assert daemon.run("ps", "--json").returncode == 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ._process import DaemonProcess, daemons

__all__ = ["DaemonProcess", "daemon", "make_daemon"]


@pytest.fixture
def make_daemon() -> Iterator[Callable[..., DaemonProcess]]:
    """Makes daemons that are not started yet (arguments as of `DaemonProcess`); all of them end with the test."""
    yield from daemons()


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A running daemon with the built-in offline model."""
    return make_daemon().start()
