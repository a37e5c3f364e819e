"""The list of processes that must not outlive the daemon, and the program that keeps it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from process_tools import mark, marked, sleeper, wait_marked

from sojourn.tools import _supervise
from sojourn.tools._watch import Watch

BY_NAME = "COVERAGE_RUN" in os.environ
PROGRAM = [sys.executable, *(["-m", "sojourn.tools._supervise"] if BY_NAME else [str(_supervise.__file__)])]


class Sessions:
    """Commands that lead sessions of their own, as servers do."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, command: str) -> int:
        self._all.append(subprocess.Popen(["bash", "-c", command], start_new_session=True))
        return self._all[-1].pid

    def close(self) -> None:
        for process in self._all:
            process.kill()
            process.wait()


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    found = Sessions()
    yield found
    found.close()


def keeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([*PROGRAM, "watch=1", "grace=0.2", "--"], stdin=subprocess.PIPE, start_new_session=True)


def test_when_the_pipe_closes_what_is_named_is_ended_wherever_it_went_and_nothing_else(sessions: Sessions) -> None:
    name, forgotten, other = mark(), mark(), mark()
    stubborn = f"trap '' TERM; setsid {sleeper(name)} & {sleeper(name)} & while true; do sleep 0.05; done"
    pids = [sessions.start(stubborn), *(sessions.start(f"exec -a {word} sleep 300") for word in (forgotten, other))]
    for word, count in ((name, 2), (forgotten, 1), (other, 1)):
        wait_marked(word, count)
    born = [_supervise.birth(pid) for pid in pids]
    process = keeper()
    process.communicate(f"+{pids[0]} {born[0]}\n+{pids[1]} {born[1]}\n-{pids[1]}\n+{pids[2]} 1\n".encode(), timeout=20)
    assert process.returncode == 0
    wait_marked(name, 0)
    assert len(marked(forgotten)) == len(marked(other)) == 1  # one was forgotten, one is another process of that id


def test_one_that_ends_by_itself_is_given_the_time(sessions: Sessions) -> None:
    name = mark()
    pid = sessions.start(f"exec -a {name} sleep 0.1")
    process = keeper()
    process.communicate(f"+{pid} {_supervise.birth(pid)}\n".encode(), timeout=20)
    assert process.returncode == 0
    wait_marked(name, 0)


def test_the_program_is_there_while_something_is_named(sessions: Sessions) -> None:
    name = mark()
    pids = [sessions.start(f"exec -a {name} sleep 300") for _ in range(2)]
    watch = Watch(grace_s=0.1)
    watch.discard(1)
    assert watch.program is None
    watch.add(pids[0])
    watch.add(pids[1])
    program = watch.program
    assert program is not None
    watch.discard(pids[0])
    assert watch.program is program
    watch.discard(pids[1])
    assert watch.program is None
    assert program.wait(10) == 0
    assert len(marked(name)) == 2


def test_a_new_program_is_told_everything(sessions: Sessions) -> None:
    name = mark()
    pids = [sessions.start(f"exec -a {name} sleep 300") for _ in range(2)]
    watch = Watch(grace_s=0.1)
    watch.add(pids[0])
    killed = watch.program
    assert killed is not None
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    watch.add(pids[1])
    assert watch.pids() == tuple(pids)
    assert watch.program is not None
    watch.program.communicate(timeout=20)  # closes the pipe, as the end of this process does
    wait_marked(name, 0)


def test_without_a_program_the_list_is_kept_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    watch = Watch(grace_s=0.1)
    watch.add(os.getpid())
    assert watch.program is None
    assert watch.pids() == (os.getpid(),)
    assert "Nothing watches over the processes of servers" in caplog.text
    watch.discard(os.getpid())
    assert watch.pids() == ()
