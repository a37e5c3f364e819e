"""The example that leaves an approval with the daemon does what it says, over a killed daemon too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sojourn_client.testing import DaemonProcess, make_daemon

__all__ = ["make_daemon"]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "durable_approval.py"


def example(daemon: DaemonProcess, what: str, typed: str = "") -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), what],
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        env=daemon.env,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("typed", "ends", "deployed"),
    [
        ("y\n", "done: About the deployment: Deployed website.", ['"target":"website"']),
        ("edit staging\n", "done: About the deployment: Deployed staging.", ['"target":"staging"']),
        ("not today\n", "not today", []),
        ("", "no answer", []),
        ("abort\n", "stopped:", []),
    ],
)
def test_the_person_decides_after_the_daemon_was_killed(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path, typed: str, ends: str, deployed: list[str]
) -> None:
    """R-LW-29, R-DR-14, R-DR-16, R-DR-17, R-DR-18, R-DR-20, R-DR-22."""
    world = tmp_path / "world"
    daemon = make_daemon(env={"SOJOURN_DEMO_WORLD": str(world)}).start()
    assert "waits" in example(daemon, "ask")
    daemon.kill9()
    daemon.start()
    assert ends in example(daemon, "decide", typed)
    lines = world.read_text().replace(" ", "").splitlines() if world.exists() else []
    assert len(lines) == len(deployed)
    assert all(part in line for part, line in zip(deployed, lines, strict=True))
    assert example(daemon, "decide") == "Nothing waits for a decision."
