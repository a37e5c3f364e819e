"""Emacs as a subprocess: found, and driven in batch mode against a daemon of `sojourn_client.testing`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sojourn_client.testing import DaemonProcess

HERE = Path(__file__).resolve().parent
PLUGIN = HERE.parent / "clients" / "emacs"
FILES = HERE / "editors" / "emacs"
CONFIG = '[agents.worker]\ntools = ["demo_deploy"]\n'


def emacs() -> str:
    """The program; without one of at least version 28 the test is skipped, with words."""
    found = shutil.which("emacs")
    if found is None:
        pytest.skip("There is no Emacs here: `apt-get install emacs-nox` has one.")
    words = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30).stdout.split()
    if int(words[2].split(".")[0]) < 28:
        pytest.skip(f"The Emacs here is {words[2]}; the plugin is for 28 and newer.")
    return found


def command(*arguments: str) -> list[str]:
    """Emacs in batch mode with the plugin in its load path."""
    return [emacs(), "-Q", "--batch", "-L", str(PLUGIN), *arguments]


def daemon() -> DaemonProcess:
    """A daemon, not started yet, whose model follows the script of these tests."""
    made = DaemonProcess(script=(FILES / "script.yaml").read_text(), config=CONFIG)
    made.env["SOJOURN_TEST_PYTHON"] = sys.executable
    made.env["LC_ALL"] = "C.UTF-8"
    return made
