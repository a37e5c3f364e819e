"""The example that steps a run by hand does what it says, over two processes too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "run_stepping.py"


def step(checkpoint: Path, *options: str, typed: str = "") -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *options, str(checkpoint)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("typed", "output"),
    [
        ("y\n", "The bank says: Transferred $500 to account B-2."),
        ("edit 100\n", "The bank says: Transferred $100 to account B-2."),
        ("why?\n", "The bank says: denied by the reviewer"),
        ("", "The bank says: denied by the reviewer"),
    ],
)
def test_the_person_decides_what_runs(tmp_path: Path, typed: str, output: str) -> None:
    """R-DR-02, R-DR-14, R-DR-16, R-DR-17, R-DR-20, R-DR-22."""
    assert step(tmp_path / "run.json", typed=typed) == output
    assert not (tmp_path / "run.json").exists()


def test_the_run_waits_in_its_file_for_another_process(tmp_path: Path) -> None:
    """R-DR-04, R-DR-13, R-DR-18, R-DR-22."""
    checkpoint = tmp_path / "run.json"
    assert step(checkpoint, "--pause").startswith("stopped")
    saved = json.loads(checkpoint.read_text())
    assert (saved["state"], saved["turn"]) == ("executing_tools", 1)
    assert step(checkpoint, typed="abort\n").startswith("stopped")
    assert json.loads(checkpoint.read_text()) == saved
    assert step(checkpoint, typed="y\n") == "The bank says: Transferred $500 to account B-2."


def test_a_file_of_another_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run.json"
    checkpoint.write_text('{"format": 99}')
    done = subprocess.run([sys.executable, str(EXAMPLE), str(checkpoint)], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "format 99" in done.stderr
    assert checkpoint.read_text() == '{"format": 99}'
