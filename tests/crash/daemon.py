"""The daemon as a real process: started, killed without a word, looked at from outside only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from wire import Wire, WireClosed

HERE = Path(__file__).resolve().parent
CONFIG = f"""
[daemon]
default_model = "crash"

[models.crash]
backend = "scripted"
script = "{HERE / "script.yaml"}"

[agents.worker]
tools = ["demo_deploy"]
approvals = {{ demo_deploy = "allow" }}

[agents.asker]
tools = ["demo_deploy"]
approvals = {{ demo_deploy = "ask" }}
"""


class Daemon:
    """One life of the daemon on the state directory `home`.

    `fault` is a kill point (`after:tool:2`); `plant` the name of a defect of `plants/sitecustomize.py` to put into it.
    """

    def __init__(self, home: Path, *, fault: str | None = None, plant: str | None = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.socket = home / "s"
        self.world = home / "world"
        self.fell = False
        """Whether it had ended in another way than by SIGKILL when it was to be killed."""
        self._log = home / "log"
        config = home / "config.toml"
        config.write_text(CONFIG)
        arguments = ["serve", "--state-dir", str(home / "state"), "--socket", str(self.socket), "--config", str(config)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sojourn", *arguments],
                env=_environment(self.world, fault, plant),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def connect(self, *, timeout: float = 60) -> Wire:
        """A new connection, also while the daemon is still starting. Raises `WireClosed` when it dies instead."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return Wire.unix(self.socket, timeout=0.05).with_timeout(timeout)
            except OSError as error:
                if not self.alive:
                    raise WireClosed("the daemon ended before it served anybody") from error
                if time.monotonic() > deadline:
                    raise AssertionError(f"The daemon does not serve ({error}); its log ends:\n{self.log()}") from error

    def kill(self) -> bool:
        """SIGKILL; answers whether the daemon had killed itself before (its kill point was reached)."""
        ended = self._process.poll()
        struck = ended == -signal.SIGKILL
        self.fell = ended is not None and not struck
        self._process.kill()
        self._process.wait(10)
        return struck

    def wait_dead(self, timeout: float) -> None:
        """Waits until it is gone. Raises `subprocess.TimeoutExpired`."""
        self._process.wait(timeout)

    def terminate(self) -> int:
        """SIGTERM, and its exit code."""
        self._process.terminate()
        return self._process.wait(10)

    def log(self) -> str:
        """The end of what it wrote in all its lives."""
        return self._log.read_text(errors="replace")[-4000:]


def _environment(world: Path, fault: str | None, plant: str | None) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SOJOURN_", "COVERAGE_", "PYTEST_"))}
    kept["SOJOURN_DEMO_WORLD"] = str(world)
    if fault is not None:
        kept["SOJOURN_FAULT"] = fault
    if plant is not None:
        kept["SOJOURN_TEST_PLANT"] = plant
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE / "plants"), kept.get("PYTHONPATH")]))
    return kept
