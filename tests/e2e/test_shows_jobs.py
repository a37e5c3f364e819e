"""Jobs of a real daemon that is killed: a build while it runs, and any moment around a job's end. Each result once."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cli_running import Cli
from e2e.stage import agent, client, conversation, prompt, stored
from process_tools import mark, marked, sleeper, wait_marked
from wire import Wire, WireClosed

from sojourn_client.testing import DaemonProcess

SCRIPT = r"""
rules:
  - when: {late_result: "*"}
    reply: {text: "It says: {result}"}
  - when: {tool_result: "*"}
    reply: {text: "{result}"}
  - when: {user: '(?s)^go (.+)$'}
    reply: {calls: [{name: shell, arguments: {command: "{1}", background: true}}]}
  - when: {user: '(?s)^wait for (.+)$'}
    reply: {calls: [{name: shell, arguments: {command: "{1}"}}]}
  - when: {always: true}
    reply: {text: "Heard."}
"""
CONFIG = """
[models.other]
backend = "openai-chat"
model = "m"
api_key_env = "A_KEY_OF_OURS"
"""
FREE = {"cwd": "/", "approvals": {"shell": "allow"}, "onRestart": "resume", "onInboxIdle": "resume"}
names = (f"agent-{number}" for number in count(1))


@pytest.fixture
def house() -> Iterator[DaemonProcess]:
    with DaemonProcess(script=SCRIPT, config=CONFIG, env={"A_KEY_OF_OURS": "sk-secret"}) as daemon:
        yield daemon


def again(daemon: DaemonProcess) -> None:
    daemon.kill9()
    daemon.start()


def jobs(wire: Wire, agent_id: str) -> list[dict[str, Any]]:
    return list(wire.call("job/list", {"agentId": agent_id})["jobs"])


def results(wire: Wire, agent_id: str) -> list[str]:
    """What reached an agent of its job: as its call's result, or as a message."""
    said = conversation(wire, agent_id)
    return [text for role, text in said if role == "lateResult" or (role == "user" and text.startswith("[job-"))]


def until(wire: Wire, test: Any, what: str, within_s: float = 60) -> Any:
    """Waits until the answer of `test` is something."""
    deadline = time.monotonic() + within_s
    while not (found := test()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def settled(wire: Wire, agent_id: str) -> bool:
    """Whether an agent has nothing more to do."""
    found = wire.call("agent/get", {"agentId": agent_id})
    running = [job for job in jobs(wire, agent_id) if job["state"] == "running"]
    return found["state"] == "idle" and not found["inbox"] and not found["pendingCalls"] and not running


def build(daemon: DaemonProcess, working: str, go: Path) -> None:
    """An agent starts a build, the daemon is killed twice meanwhile; the agent is told once, and answers."""
    a, ran = next(names), daemon.root / "ran"
    command = f"echo building >> {ran}; echo half; {working}; echo built"
    with client(daemon) as wire:
        agent(wire, a, **FREE)
        assert prompt(wire, a, f"go {command}")["reason"] == "done"
        (job,) = jobs(wire, a)
        assert conversation(wire, a)[-1][1].startswith(f"Started job {job['jobId']}: ")
    for _ in range(2):
        again(daemon)
        with client(daemon) as wire:
            (found,) = jobs(wire, a)
            assert (found["jobId"], found["state"]) == (job["jobId"], "running")
            assert len(wire.call("agent/pendingCalls", {"agentId": a})["pendingCalls"]) == 1
    go.touch()
    with client(daemon) as wire:
        until(wire, lambda: settled(wire, a), "the build has ended and its agent has answered")
        again(daemon)
    with client(daemon) as wire:
        assert settled(wire, a)
        (result,) = results(wire, a)
        assert result.startswith("half\nbuilt\n[exit code 0 after ")
        assert conversation(wire, a)[-1] == ("assistant", f"It says: {result}")
        kinds = [params["event"]["type"] for params in stored(wire, a)]
        assert kinds.count("toolResolved") == 1
        assert ran.read_text() == "building\n"
        output = wire.call("job/output", {"jobId": job["jobId"], "offset": 5})
        assert (output["text"], output["job"]["exitCode"]) == ("built\n", 0)


def test_a_build_outlives_two_kills_of_the_daemon_and_its_agent_answers_once(house: DaemonProcess) -> None:
    go = house.root / "go"
    build(house, f"until test -e {go}; do sleep 0.01; done", go)


@pytest.mark.crash
def test_a_build_of_ten_seconds_outlives_two_kills_of_the_daemon(house: DaemonProcess) -> None:
    began = time.monotonic()
    go = house.root / "go"
    build(house, f"sleep 10; until test -e {go}; do sleep 0.01; done", go)
    assert time.monotonic() - began >= 10


class Lives:
    """A daemon that is killed again and again around the end of jobs, and started again.

    In each life one job runs for a time of chance, and one of those that were begun in the life before is let end; then
    the daemon is killed, at a moment of chance. `undelivered` counts the jobs that had ended by then, and whose agent
    had not been told: what a restart must make good.
    """

    EVERY = 10

    def __init__(self, daemon: DaemonProcess, rng: random.Random) -> None:
        self._daemon, self._rng = daemon, rng
        self._begun: list[str] = []
        self._held: list[str] = []
        self.undelivered = 0

    def live(self, kills: int) -> None:
        for number in range(1, kills + 1):
            with client(self._daemon) as wire:
                self._one(wire)
            self._undelivered()
            self._start_again()
            if number % self.EVERY == 0 or number == kills:
                self._judge()
                print(f"{number} kills; {self.undelivered} jobs had ended, untold, at one of them", flush=True)

    def _one(self, wire: Wire) -> None:
        free, held, ending = next(names), next(names), self._held[:]
        self._held = [held]
        self._begin(wire, free, f"sleep {self._rng.uniform(0, 0.4):.2f}")
        self._begin(wire, held, f"until test -e {self._go(held)}; do sleep 0.02; done")
        time.sleep(self._rng.choice([0.05, 0.4]) * self._rng.random())  # not to wait for anything: a moment of chance
        for a in ending:
            self._go(a).touch()
        time.sleep(self._rng.uniform(0, 0.3))  # a moment of chance, in which an end is noticed and told
        self._daemon.kill9()

    def _begin(self, wire: Wire, a: str, work: str) -> None:
        agent(wire, a, **FREE)
        self._begun.append(a)
        command = f"echo run >> {self._daemon.root / a}; {work}; echo over"
        wire.send("agent/prompt", {"agentId": a, "content": f"go {command}", "wait": False})

    def _go(self, a: str) -> Path:
        return self._daemon.root / f"{a}-go"

    def _undelivered(self) -> None:
        with closing(sqlite3.connect(self._daemon.state_dir / "sojourn.db")) as store:
            rows = store.execute("select job_id from jobs where state = 'running'").fetchall()
        self.undelivered += sum((self._daemon.state_dir / "jobs" / job / "result").exists() for (job,) in rows)

    def _start_again(self) -> None:
        # A daemon that is killed between a fork and its exec has left a child that holds its socket for a moment more.
        deadline = time.monotonic() + 10
        while self._daemon.answers():
            assert time.monotonic() < deadline, "somebody still holds the socket of the daemon that was killed"
            time.sleep(0.01)
        self._daemon.start()

    def _judge(self) -> None:
        for a in self._held:
            self._go(a).touch()
        with client(self._daemon) as wire:
            for a in self._begun:
                judge(wire, a, self._daemon.root / a)
        self._begun, self._held = [], []


def judge(wire: Wire, a: str, ran: Path) -> None:
    """Whatever was begun came to its end once, and was told once."""
    listed = wire.call("agent/get", {"agentId": a})
    if listed["messageCount"] == 0:
        return  # killed before the prompt was accepted
    until(wire, lambda: settled(wire, a), f"{a} has settled")
    times = ran.read_text().count("run\n") if ran.exists() else 0
    told, found = results(wire, a), jobs(wire, a)
    assert times <= 1, f"{a}: the command was run {times} times"
    assert len(told) == len(found) <= 1, f"{a}: {len(found)} jobs, and it was told {told}"
    assert len(told) >= times, f"{a}: the command was run, and it was told {conversation(wire, a)}"
    if times:
        assert "over\n[exit code 0" in told[0]
        assert found[0]["delivered"] in ("result", "message")


def test_a_daemon_that_is_killed_around_the_end_of_jobs_tells_each_result_once(house: DaemonProcess) -> None:
    Lives(house, random.Random(3)).live(5)


@pytest.mark.crash
def test_two_hundred_kills_around_the_end_of_jobs_tell_each_result_once(house: DaemonProcess) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    lives = Lives(house, random.Random(seed))
    lives.live(200)
    assert lives.undelivered > 20


@pytest.mark.parametrize(
    "point", ["before:job", "after:job", "before:tool", "after:tool", "before:jobEnd", "after:jobEnd"]
)
def test_a_daemon_that_is_killed_at_any_step_of_a_job_tells_its_result_once(point: str) -> None:
    with DaemonProcess(script=SCRIPT, env={"SOJOURN_FAULT": point}) as daemon:
        a = next(names)
        with client(daemon) as wire:
            agent(wire, a, **FREE)
            wire.send("agent/prompt", {"agentId": a, "content": f"go echo run >> {daemon.root / a}; echo over"})
            with pytest.raises(WireClosed):
                wire.wait_until(lambda: False, "the daemon kills itself")
        daemon.wait()
        del daemon.env["SOJOURN_FAULT"]
        daemon.start()
        with client(daemon) as wire:
            judge(wire, a, daemon.root / a)
            ran = (daemon.root / a).exists()
            assert ran is (point not in ("before:job", "after:job"))
            assert len(jobs(wire, a)) == (point != "before:job")


def test_nothing_that_a_call_waited_for_outlives_a_killed_daemon(house: DaemonProcess) -> None:
    a, name = next(names), mark()
    with client(house) as wire:
        agent(wire, a, **FREE)
        prompt(wire, a, f"wait for setsid {sleeper(name)} & {sleeper(name)}", wait=False)
        wait_marked(name, 2)
        house.kill9()
    wait_marked(name, 0)


def test_a_command_sees_neither_the_keys_nor_the_descriptors_of_the_daemon(house: DaemonProcess) -> None:
    a = next(names)
    with client(house) as wire:
        agent(wire, a, **FREE)
        wire.call("tool/list", {})
        prompt(wire, a, "wait for env; ls -l /proc/self/fd; stat -c %a /proc/self/fd/0; umask")
        said = conversation(wire, a)[-1][1]
    assert "PATH=" in said
    assert "sk-secret" not in said
    assert "SOJOURN_" not in said
    assert "socket:" not in said
    assert "0077" not in said or os.umask(os.umask(0o022)) == 0o077


def test_the_command_line_shows_follows_and_stops_jobs(house: DaemonProcess) -> None:
    a, name, go = next(names), mark(), house.root / "go"
    cli = Cli(house)
    assert cli("jobs", "list").out == ""
    with client(house) as wire:
        agent(wire, a, **{**FREE, "onInboxIdle": "wait"})
        prompt(wire, a, f"go echo begun; until test -e {go}; do sleep 0.01; done; echo over; exit 4")
        (job,) = jobs(wire, a)
        until(wire, lambda: jobs(wire, a)[0]["outputBytes"], "it has begun")
        (row,) = cli("jobs", "list").out.splitlines()
        assert row.split("\t")[:3] == [job["jobId"], "running", a]
        shown = cli("jobs", "output", job["jobId"])
        assert (shown.code, shown.out) == (0, "begun\n")
        assert "is still running; --follow" in shown.err
        go.touch()
        shown = cli("jobs", "output", job["jobId"], "--follow")
        assert (shown.code, shown.out) == (5, "begun\nover\n")
        assert "has ended: exit code 4." in shown.err
        pieces = cli.json("jobs", "list", "--agent", a)
        assert pieces[0]["exitCode"] == 4
        wire.call("agent/resume", {"agentId": a})
        prompt(wire, a, f"go {sleeper(name)}")
        wait_marked(name, 1)
        other = jobs(wire, a)[0]["jobId"]
        stopped = cli("jobs", "stop", other)
        assert (stopped.code, stopped.err) == (0, f"{other}: stopped by cli.\n")
        assert marked(name) == []
        assert cli("jobs", "stop", other, "--json").json[0]["stoppedBy"] == "cli"
        assert "no job 'job-x'" in cli("jobs", "output", "job-x").err
