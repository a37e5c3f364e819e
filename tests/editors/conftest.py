"""What the tests of editors share: real editors, and a real daemon with a scripted model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nvim_driver import Nvim

from sojourn_client.testing import DaemonProcess, daemon, make_daemon

__all__ = ["daemon", "make_daemon", "make_nvim", "world"]


def with_path(daemon: DaemonProcess) -> DaemonProcess:
    """The daemon, with the `sojourn` of this environment first in the PATH of what it is given to."""
    daemon.env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), daemon.env["PATH"]])
    return daemon


@pytest.fixture
def make_nvim() -> Iterator[Callable[..., Nvim]]:
    """Starts editors (arguments as of `Nvim`, without the root); all of them end with the test."""
    made: list[Nvim] = []

    def make(daemon: DaemonProcess, name: str = "nvim", **options: str) -> Nvim:
        made.append(Nvim(daemon.root / name, with_path(daemon), **options))
        return made[-1].start()

    yield make
    for one in made:
        one.kill9()


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest) -> Iterator[tuple[DaemonProcess, Nvim]]:
    """A daemon, with the `SCRIPT` and `CONFIG` of the test's module if it has them, and one editor at it."""
    script, config = (getattr(request.module, name, None) for name in ("SCRIPT", "CONFIG"))
    with DaemonProcess(script=script, config=config or "") as daemon:
        nvim = Nvim(daemon.root / "nvim", with_path(daemon)).start()
        yield daemon, nvim
        nvim.kill9()
