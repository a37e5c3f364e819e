"""Fixtures for whoever tests a client of Sojourn: pytest finds them by the package's entry point, nothing is imported.

def test_my_editor(make_sojourn_daemon):
    daemon = make_sojourn_daemon(script=MY_SCRIPT).start()
    subprocess.run([..., "sojourn", "connect"], env=daemon.env)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import DaemonProcess
    from .transcripts import Transcript

# Imports are inside: this is loaded by every pytest run of an environment that has Sojourn.


@pytest.fixture
def make_sojourn_daemon() -> Iterator[Callable[..., DaemonProcess]]:
    """Makes daemons in temporary directories, not started yet; arguments as of `testing.DaemonProcess`."""
    from ._process import daemons

    yield from daemons()


@pytest.fixture
def sojourn_daemon(make_sojourn_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A running daemon with the built-in offline model. `env` of it leads `sojourn connect` there."""
    return make_sojourn_daemon().start()


@pytest.fixture(scope="session")
def sojourn_transcripts() -> dict[str, Transcript]:
    """The recorded transcripts by name."""
    from .transcripts import load, names

    return {name: load(name) for name in names()}
