"""The tests of the run notice when the run is broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.crash
def test_every_mutation_of_the_run_fails_a_test() -> None:
    script = Path(__file__).with_name("run_mutations.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("property") > done.stdout.count("NOT NOTICED")
