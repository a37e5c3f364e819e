"""A daemon as a subprocess in a directory of its own, to be killed, stopped and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from .client import _Connecting

_OURS = ("SOJOURN_", "XDG_", "PYTEST_")


class DaemonProcess:
    """A daemon with its own state, config and socket under `root` (a short temporary directory unless given).

    `config` is TOML; `script` is the YAML of a scripted model that becomes the default one. Nothing starts before
    `start`. The same object may be started again after `kill9` or `stop`: state stays until `close`.
    """

    def __init__(
        self,
        root: Path | None = None,
        *,
        config: str = "",
        script: str | None = None,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
    ) -> None:
        self._own_root = root is None
        # Short, since a socket's path has little room; the system's own temporary directory may be a long one.
        self.root = root or Path(tempfile.mkdtemp(prefix="sojourn-", dir="/tmp"))
        self.state_dir = self.root / "state"
        self.socket = self.root / "s"
        self.config = self.root / "config.toml"
        self.log = self.root / "stderr.log"
        self.args = list(args)
        self.process: subprocess.Popen[bytes] | None = None
        self.config.write_text(_config(self.root, config, script))
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
        self.env = {**kept, "HOME": str(self.root), **self._places(), **(env or {})}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        assert self.process is not None, "the daemon was not started"
        return self.process.pid

    @property
    def stderr(self) -> str:
        """Everything that all its lives wrote to stderr."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def start(self, *, timeout_s: float = 60, wait: bool = True) -> Self:
        """Starts it and waits until it answers. Raises `RuntimeError` with its stderr when it does not."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "sojourn", "serve", *self.args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
                start_new_session=True,
            )
        if wait:
            self.wait_ready(timeout_s=timeout_s)
        return self

    def wait_ready(self, *, timeout_s: float = 60) -> None:
        """Returns when somebody listens on the socket."""
        deadline = time.monotonic() + timeout_s
        while not self.answers():
            if self.process is not None and self.process.poll() is not None:
                raise RuntimeError(f"The daemon ended with exit code {self.process.returncode}:\n{self.stderr}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"The daemon did not answer within {timeout_s} s:\n{self.stderr}")
            time.sleep(0.01)

    def answers(self) -> bool:
        """Whether somebody listens on the socket."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            try:
                probe.connect(str(self.socket))
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            except BlockingIOError:  # somebody does, and has not come to take those who wait in line
                return True
            return True

    def kill9(self) -> None:
        """SIGKILL, and wait for the end."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self, *, timeout_s: float = 10) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s=timeout_s)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the daemon; nothing when it has ended."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, *, timeout_s: float = 10) -> int:
        """The exit code, once it has ended. Raises `subprocess.TimeoutExpired`."""
        assert self.process is not None, "the daemon was not started"
        return self.process.wait(timeout_s)

    def connect(self, **options: Any) -> _Connecting:
        """A client of this daemon (`sojourn_client.connect`), which never starts one by itself."""
        from .client import connect

        return connect(socket=self.socket, state_dir=self.state_dir, **{"start": False, **options})

    def run(
        self, *arguments: str, input: str | None = None, timeout_s: float = 30, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs `sojourn ARGUMENTS` with this daemon's places in the environment."""
        return subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "sojourn", *arguments],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**self.env, **(env or {})},
            check=False,
        )

    def close(self) -> None:
        """Kills it, a detached one on the same state, too, and removes what it left."""
        if self.process is not None:
            self.kill9()
        self._kill_detached()
        if self._own_root:
            shutil.rmtree(self.root, ignore_errors=True)

    def detached_pid(self) -> int | None:
        """The process id of the daemon that wrote `daemon.json` last, None when there is none."""
        import json

        try:
            return int(json.loads((self.state_dir / "daemon.json").read_text())["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _kill_detached(self) -> None:
        pid = self.detached_pid()
        if pid is None or pid == os.getpid() or not self.answers():
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _places(self) -> dict[str, str]:
        return {
            "SOJOURN_CONFIG": str(self.config),
            "SOJOURN_STATE_DIR": str(self.state_dir),
            "SOJOURN_SOCKET": str(self.socket),
        }


def _config(root: Path, config: str, script: str | None) -> str:
    if script is None:
        return config
    (root / "script.yaml").write_text(script)
    model = '[models.scripted]\nbackend = "scripted"\nscript = "script.yaml"\n'
    if "[daemon]" in config:
        config = config.replace("[daemon]", '[daemon]\ndefault_model = "scripted"', 1)
    else:
        config = '[daemon]\ndefault_model = "scripted"\n' + config
    return f"{config}\n{model}"


def daemons() -> Iterator[Callable[..., DaemonProcess]]:
    """A fixture's body: gives what makes daemons (arguments as of `DaemonProcess`), and ends all of them."""
    made: list[DaemonProcess] = []

    def make(**options: Any) -> DaemonProcess:
        made.append(DaemonProcess(**options))
        return made[-1]

    yield make
    for process in made:
        process.close()
