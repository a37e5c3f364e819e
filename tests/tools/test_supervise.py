"""The supervisor by itself, as a program; and what is told of jobs whose files are not as they should be."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from process_tools import mark, marked, sleeper, wait_marked

from sojourn.tools import _supervise, jobs
from sojourn.tools.clip import Clip
from sojourn.tools.processes import Order, Surroundings, read_ended, words

BY_NAME = "COVERAGE_RUN" in os.environ  # a program that is started by its path is no module whose lines are counted
PROGRAM = [sys.executable, *(["-m", "sojourn.tools._supervise"] if BY_NAME else [str(_supervise.__file__)])]


def start(*options: str, command: str, **more: object) -> subprocess.Popen[bytes]:
    """A supervisor without the daemon's switches for a quick start, so that its lines are counted."""
    words = [*PROGRAM, *options, "--", "sh", "-c", command]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.Popen(words, start_new_session=True, **pipes)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "command", "how", "code", "left"),
    [
        ((), "exit 3", "exited", 3, False),
        ((), "kill -9 $$", "exited", None, False),
        ((), "sleep 300 & exit 0", "exited", 0, True),
        (("limit=0.2", "grace=0.2"), "trap '' TERM; sleep 300", "timedOut", None, False),
        (("umask=077", "cwd=/tmp"), 'test "$(pwd) $(umask)" = "/tmp 0077"', "exited", 0, False),
    ],
)
def test_an_attached_command_is_told_of(
    options: tuple[str, ...], command: str, how: str, code: int | None, left: bool
) -> None:
    process = start(*options, command=command)
    ended = read_ended(_told(process))
    assert ended is not None
    assert (ended.how, ended.code, ended.left) == (how, code, left)
    assert 0 < ended.began <= ended.ended


def _told(process: subprocess.Popen[bytes]) -> str:
    """What a supervisor tells while its lifeline stays open."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    text = process.stdout.read().decode()
    process.wait(10)
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()
    return text


def test_a_closed_lifeline_ends_everything() -> None:
    name = mark()
    process = start("grace=0.2", command=f"trap '' TERM; setsid {sleeper(name)} & {sleeper(name)} & wait; sleep 300")
    wait_marked(name, 2)
    ended = read_ended(process.communicate(timeout=20)[0].decode())
    assert ended is not None
    assert ended.how == "stopped"
    assert marked(name) == []


@pytest.mark.parametrize(
    "first", ["kill -STOP $!; exit 0", "setsid sh -c 'kill -STOP $$; exit' & sleep 0.2; kill -STOP $$"]
)
def test_what_was_stopped_ends_without_waiting_for_the_grace(first: str) -> None:
    name = mark()
    process = start("grace=30", "limit=0.6", command=f"{sleeper(name)} & {first}")
    began = time.monotonic()
    assert read_ended(_told(process)) is not None
    assert time.monotonic() - began < 9
    wait_marked(name, 0)


def test_a_program_that_is_not_there_is_told_with_its_reason() -> None:
    process = subprocess.run(
        [*PROGRAM, "cwd=/", "--", "/no/such/program"], stdin=subprocess.PIPE, capture_output=True, timeout=20
    )
    ended = read_ended(process.stdout.decode())
    assert ended is not None
    assert (ended.how, ended.error) == ("notStarted", "No such file or directory: '/no/such/program'")


def test_a_job_keeps_the_beginning_and_the_end_of_its_output(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    command = "echo first; head -c 100000 /dev/zero | tr '\\0' x; echo; echo last; setsid sleep 0.6 &"
    process = start(f"dir={tmp_path}", f"lock={lock}", "most=8192", command=command, pass_fds=(lock,), stdin=None)
    os.close(lock)
    process.communicate(timeout=20)
    job = jobs.look(tmp_path)
    assert job.ended is not None
    assert (job.ended.how, job.ended.code) == ("exited", 0)
    assert jobs.size(tmp_path) == 100_012
    names = sorted(path.name for path in tmp_path.glob("out-*"))
    assert len(names) == 4
    assert names[0] == "out-000000000000000"
    text = jobs.clipped(tmp_path, Clip())
    assert text.startswith("first\nxxx")
    assert text.endswith("xxx\nlast\n")
    assert "bytes left out, 100012 in all" in text


def test_a_job_whose_directory_is_removed_ends_all_the_same(tmp_path: Path) -> None:
    place = tmp_path / "job"
    child = jobs.launch(place, Order(words("sleep 300")), Surroundings(), most_bytes=4096)
    _wait_started(place)
    for path in place.iterdir():
        path.unlink()
    place.rmdir()
    child.send_signal(signal.SIGTERM)
    assert child.wait(10) == 0


def test_a_job_whose_directory_is_removed_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    place, name = tmp_path / "job", mark()
    child = jobs.launch(place, Order(words(f"setsid {sleeper(name)} & {sleeper(name)}")), Surroundings(), most_bytes=99)
    wait_marked(name, 2)
    _wait_started(place)
    shutil.rmtree(place)
    assert child.wait(10) == 0
    assert marked(name) == []


def _wait_started(place: Path) -> None:
    deadline = time.monotonic() + 10
    while not (place / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("change", "how"),
    [
        ({}, "lost"),
        ({"boot": "another start of the machine"}, "lost"),
        (None, "notStarted"),
    ],
)
def test_a_job_without_a_supervisor_has_ended(change: dict[str, str] | None, how: str, tmp_path: Path) -> None:
    if change is not None:
        own = {"pid": str(os.getpid()), "birth": _supervise.birth(os.getpid()), "boot": _supervise.boot(), **change}
        (tmp_path / "started").write_text("".join(f"{key}={value}\n" for key, value in own.items()))
    (tmp_path / "lock").touch()
    job = jobs.look(tmp_path)
    assert job.ended is not None
    assert job.ended.how == how
    assert job.is_ours is (change == {})
    assert jobs.stop(job) is False


@pytest.mark.parametrize("wrong", ["birth", "boot"])
def test_a_process_that_has_only_the_same_id_is_never_signalled(wrong: str, tmp_path: Path) -> None:
    name = mark()
    other = subprocess.Popen(["bash", "-c", f"exec -a {name} sleep 300"], start_new_session=True)
    wait_marked(name, 1)
    try:
        facts = {"birth": _supervise.birth(other.pid), "boot": _supervise.boot(), wrong: "not this one"}
        lines = f"pid={other.pid}\nbirth={facts['birth']}\nboot={facts['boot']}\n"
        lines += f"command={other.pid}\ncommandBirth={facts['birth']}\n"
        (tmp_path / "started").write_text(lines)
        with (tmp_path / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            job = jobs.look(tmp_path)
            assert job.ended is None
            assert jobs.stop(job) is False
        jobs.end_orphans(jobs.look(tmp_path))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(10)


def test_output_files_that_vanish_or_miss_a_middle_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "out-000000000000000").write_bytes(b"begin")
    (tmp_path / "out-000000000000100").write_bytes(b"end")
    assert jobs.read(tmp_path, 0, 3) == jobs.Piece(0, b"beg")
    assert jobs.read(tmp_path, 3, 99) == jobs.Piece(3, b"in")
    assert jobs.read(tmp_path, 5, 99) == jobs.Piece(100, b"end")
    assert jobs.read(tmp_path, 103, 99) == jobs.Piece(103, b"")
    assert jobs.size(tmp_path) == 103
    assert jobs.size(tmp_path / "nowhere") == 0
    assert jobs.clipped(tmp_path, Clip()) == "begin\n[... 95 bytes left out, 103 in all ...]\nend"


def test_what_a_full_disk_does_not_take_is_counted_and_missing(tmp_path: Path) -> None:
    (tmp_path / "out-000000000000000").symlink_to("/dev/full")
    output = _supervise.Output(str(tmp_path), 8192)
    output.add(b"x" * 10)
    output.add(b"kept")
    output.close()
    assert output.total == 14
    assert (tmp_path / "out-000000000000010").read_bytes() == b"kept"
    nowhere = _supervise.Output(str(tmp_path / "gone"), 8192)
    nowhere.add(b"y" * 100_000)
    assert nowhere.total == 100_000


def test_output_that_a_full_disk_did_not_take_is_told_to_be_missing_and_what_came_after_it_is_shown(
    tmp_path: Path,
) -> None:
    for offset, data in ((0, b"begin\n"), (6, b""), (5_000, b""), (9_000, b"more\n"), (9_005, b"")):
        (tmp_path / f"out-{offset:015}").write_bytes(data)
    assert jobs.read(tmp_path, 6, 99) == jobs.Piece(9_000, b"more\n")
    assert jobs.clipped(tmp_path, Clip()) == "begin\n\n[... 8994 bytes left out, 9005 in all ...]\nmore\n"
    (tmp_path / "out-000000000012000").touch()
    assert jobs.read(tmp_path, 9_005, 99) == jobs.Piece(9_005, b"")
    assert jobs.clipped(tmp_path, Clip()).startswith("begin\n\n[... 11994 bytes left out, 12000 in all ...]")


def test_an_end_is_written_down_once_the_disk_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, waits = tmp_path / "result.new", []
    full.symlink_to("/dev/full")

    def wait(seconds: float) -> None:
        waits.append(seconds)
        full.unlink(missing_ok=True)

    monkeypatch.setattr(_supervise.time, "sleep", wait)
    _supervise.tell(str(tmp_path), "result", b"outcome=exited\n")
    assert ((tmp_path / "result").read_bytes(), waits) == (b"outcome=exited\n", [1])
    _supervise.tell(str(tmp_path / "gone"), "result", b"nobody asks\n")


def test_what_is_no_file_is_no_record_and_no_output_of_a_job(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    (tmp_path / "result").symlink_to("/dev/zero")
    (tmp_path / "out-000000000000000").mkdir()
    os.mkfifo(tmp_path / "out-000000000000001")
    (tmp_path / "out-000000000000002").symlink_to("/dev/zero")
    (tmp_path / "out-000000000000003").write_text("real\n")
    job = jobs.look(tmp_path)
    assert job.ended is not None
    assert job.ended.how == "lost"
    assert jobs.clipped(tmp_path, Clip()) == "\n[... 3 bytes left out, 8 in all ...]\nreal\n"


@pytest.mark.parametrize(
    ("result", "how"),
    [
        ("outcome=exited\ncode=none\n", "lost"),
        ("outcome=exited\nbegan=nan\n", "lost"),
        ("outcome=exited\nended=1e300\n", "lost"),
        ("outcome=happily\n", "lost"),
        ("code=0\n", "lost"),
        ("", "lost"),
        ("outcome=exited\ncode=0\n", "exited"),
    ],
)
def test_a_damaged_record_is_the_end_of_its_job_alone(result: str, how: str, tmp_path: Path) -> None:
    (tmp_path / "started").write_text("pid=x\ncommand=-1\nbegan=soon\n")
    (tmp_path / "result").write_text(result)
    (tmp_path / "lock").touch()
    (tmp_path / "out-x").touch()
    job = jobs.look(tmp_path)
    assert job.ended is not None
    assert job.ended.how == how
    assert jobs.stop(job) is False
    jobs.end_orphans(job)
    assert jobs.size(tmp_path) == 0
