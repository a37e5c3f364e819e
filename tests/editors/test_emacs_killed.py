"""Emacs is killed in the middle of a conversation, then the daemon; the next Emacs comes back to the same place."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from emacs_process import FILES, command, daemon

BEFORE = """
(with-current-buffer (tests-chat "kept" :tools ["*"] :pauseOnPending t)
  (tests-say "Please build the website")
  (tests-await-state "paused")
  (sojourn-prompt "kept" "deploy website")
  (tests-await "waits for your approval")
  (tests-await-state "waiting")
  (write-region (tests-story) nil "{told}.part" nil 'silent)
  (rename-file "{told}.part" "{told}")
  (while t (accept-process-output nil 1)))
"""
AFTER = """
(with-current-buffer (progn (sojourn-chat-open "kept"))
  (tests-await "waits for your approval")
  (tests-await-state "waiting")
  (write-region (tests-story) nil "{told}" nil 'silent)
  (tests-until (sojourn-approvals))
  (tests-press "[yes]")
  (tests-await-state "idle")
  (write-region (tests-story) nil "{told}.end" nil 'silent))
"""


def _emacs(form: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("-l", str(FILES / "sojourn-tests.el"), "--eval", form), env=env, start_new_session=True
    )


def _wait_for(file: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 90
    while not file.exists():
        assert process.poll() is None, "Emacs has ended"
        assert time.monotonic() < deadline, "Emacs has not come so far"
        time.sleep(0.02)
    return file.read_text()


def test_the_next_emacs_shows_the_same_conversation_and_carries_it_on(tmp_path: Path) -> None:
    with daemon() as running:
        first = _emacs(BEFORE.replace("{told}", str(tmp_path / "first")), running.env)
        try:
            told = _wait_for(tmp_path / "first", first)
        finally:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait(10)
        running.kill9()
        second = _emacs(AFTER.replace("{told}", str(tmp_path / "second")), running.env)
        try:
            assert second.wait(90) == 0
        finally:
            second.poll() is None and os.killpg(second.pid, signal.SIGKILL)
    assert "its result will follow" in told
    assert "waits for your approval" in told
    assert (tmp_path / "second").read_text() == told
    end = (tmp_path / "second.end").read_text()
    assert "✓  approved by emacs\n    Deployed website.\n" in end
    assert end.count("deploy website") == 1
