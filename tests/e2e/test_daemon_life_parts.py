"""The parts of the daemon's life that can be looked at without a daemon: its lock, its log, going to the background."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sojourn import _logs
from sojourn._detach import Ready
from sojourn._lock import CONNECT_HINT, Locked, StateLock


def test_a_state_directory_has_one_lock_until_it_is_released(tmp_path: Path) -> None:
    first = StateLock(tmp_path)
    with pytest.raises(Locked, match=CONNECT_HINT):
        StateLock(tmp_path)
    first.release()
    StateLock(tmp_path).release()
    assert (tmp_path / "daemon.lock").exists()


def test_no_child_inherits_the_lock(tmp_path: Path) -> None:
    lock = StateLock(tmp_path)
    assert fcntl.fcntl(lock._fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    lock.release()


def test_a_directory_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StateLock(tmp_path / "missing")


def test_who_waits_is_told_once_how_it_went() -> None:
    reading, writing = os.pipe()
    ready = Ready(writing)
    ready.ok()
    ready.failed("too late")
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"ready"


def test_a_daemon_whose_starter_has_gone_goes_on() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    Ready(writing).ok()


def test_in_the_foreground_a_failure_is_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    ready = Ready()
    ready.failed("No.")
    ready.ok()
    assert capsys.readouterr() == ("", "No.\n")


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:], root.level = handlers, level


def test_the_log_goes_to_its_file_and_libraries_are_kept_quiet(root_logger: logging.Logger, tmp_path: Path) -> None:
    log = _logs.Log("debug", tmp_path / "daemon.log")
    logging.getLogger("sojourn.x").debug("%s", "small")
    logging.getLogger("pygls").info("a whole payload")
    log.close()
    text = (tmp_path / "daemon.log").read_text()
    assert "DEBUG sojourn.x: small" in text
    assert "payload" not in text


def test_a_log_that_is_full_begins_a_new_file_and_stderr_follows(
    root_logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_logs, "_FILE_BYTES", 2_000)
    followed = []
    monkeypatch.setattr(_logs.os, "dup2", lambda fd, to: followed.append((os.fstat(fd).st_ino, to)))
    log = _logs.Log("info", tmp_path / "daemon.log")
    for number in range(300):
        logging.getLogger("x").info("line %d", number)
    log.close()
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == ["daemon.log", "daemon.log.1", "daemon.log.2", "daemon.log.3"]
    assert "line 299" in (tmp_path / "daemon.log").read_text()
    assert followed[-2:] == [((tmp_path / "daemon.log").stat().st_ino, fd) for fd in (1, 2)]


def test_lines_are_dropped_and_counted_while_nobody_reads(
    root_logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_logs, "_QUEUE", 2)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        log = _logs.Log("info", None)
        for _ in range(40):
            logging.getLogger("x").info("%s", "y" * 8_000)
        taken: list[str] = []
        with os.fdopen(reading) as pipe:
            reader = threading.Thread(target=lambda: taken.extend(pipe))
            reader.start()
            deadline = threading.Event()
            while "were dropped" not in "".join(taken) and not deadline.wait(0.01):
                logging.getLogger("x").info("again")
            log.close()
            stderr.close()
            reader.join(10)
    assert any("lines were dropped before this one" in line for line in taken)


def test_a_log_that_nobody_reads_does_not_hold_up_the_end(
    root_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_logs, "_STOP_S", 0.01)
    monkeypatch.setattr(_logs, "_QUEUE", 3)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stderr, os.fdopen(reading) as pipe:
        monkeypatch.setattr("sys.stderr", stderr)
        log = _logs.Log("info", None)
        for _ in range(20):
            logging.getLogger("x").info("%s", "y" * 70_000)
        log.close()
        reader = threading.Thread(target=pipe.read)
        reader.start()
        log._lines.queue.clear()
        log._lines.put(None)
        log._thread.join(10)
        assert not log._thread.is_alive()
        stderr.close()
        reader.join(10)
