"""How the daemon comes and goes: signals, locks, sockets, other starters, what a crash leaves behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from wire import Wire

from sojourn._living import lives
from sojourn_client.testing import DaemonProcess

Make = Callable[..., DaemonProcess]

SLOW = """
rules:
  - when: {always: true}
    reply: {text: "one two three four five six seven eight nine ten", delay_ms: 500, chunk_chars: 4}
"""


def prompt(daemon: DaemonProcess, text: str = "hello") -> Wire:
    """A client that has prompted agent `a` and saw the model's answer begin."""
    wire = Wire.unix(daemon.socket)
    wire.initialize("test")
    wire.call("agent/create", {"agentId": "a"})
    wire.call("agent/attach", {"agentId": "a"})
    wire.call("agent/prompt", {"agentId": "a", "content": text, "wait": False})
    wire.event("messageDelta", agent_id="a")
    return wire


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_daemon_ends_at_the_first_signal(daemon: DaemonProcess, number: signal.Signals) -> None:
    begun = time.monotonic()
    daemon.signal(number)
    assert daemon.wait(timeout_s=5) == 0
    assert time.monotonic() - begun < 2.5
    assert "Traceback" not in daemon.stderr
    assert not daemon.socket.exists()
    assert not (daemon.state_dir / "daemon.json").exists()


def test_a_daemon_in_the_middle_of_a_run_saves_and_ends_within_two_seconds(make_daemon: Make) -> None:
    daemon = make_daemon(script=SLOW).start()
    with prompt(daemon):
        begun = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - begun < 2.5
    daemon.start()
    with Wire.unix(daemon.socket) as wire:
        wire.initialize()
        assert wire.call("agent/get", {"agentId": "a"})["state"] == "interrupted"
        types = [event["event"]["type"] for event in wire.call("agent/events", {"agentId": "a"})["events"]]
        assert types[-1] == "agentEnd"
        assert types.count("agentStart") == types.count("agentEnd") == 1
        assert wire.call("agent/resume", {"agentId": "a", "wait": False})["runId"]


def test_a_socket_file_that_a_crash_left_is_no_hindrance(daemon: DaemonProcess) -> None:
    daemon.kill9()
    assert daemon.socket.exists()
    daemon.start()
    with Wire.unix(daemon.socket) as wire:
        assert wire.initialize()["serverInfo"]["name"] == "sojourn"


def test_a_second_daemon_is_refused_with_one_line(daemon: DaemonProcess) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    second = daemon.run("serve")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert second.returncode == 1
    assert second.stderr.count("\n") == 1
    assert "sojourn shutdown" in second.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1  # CPU: a busy machine is no fault
    assert daemon.answers()


def test_a_second_daemon_on_stdio_is_refused_as_well(daemon: DaemonProcess) -> None:
    second = daemon.run("serve", "--stdio", input="")
    assert (second.returncode, second.stdout) == (1, "")
    assert "sojourn shutdown" in second.stderr


def test_of_four_starters_one_serves_and_the_others_say_so(make_daemon: Make) -> None:
    first = make_daemon().start()
    first.kill9()
    command = [sys.executable, "-m", "sojourn", "serve"]
    starters = [
        subprocess.Popen(command, env=first.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    try:
        first.process = None
        first.wait_ready()
        deadline = time.monotonic() + 20
        while sum(one.poll() is not None for one in starters) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        losers = [one for one in starters if one.poll() is not None]
        assert [one.returncode for one in losers] == [1, 1, 1]
        for one in losers:
            assert one.stderr is not None
            said = one.stderr.read()
            assert said.count("\n") == 1, said
            assert "sojourn shutdown" in said
        assert first.answers()
    finally:
        for one in starters:
            one.kill()
            one.communicate()


def test_a_stopped_daemon_is_not_taken_for_dead(daemon: DaemonProcess) -> None:
    before = daemon.socket.stat().st_ino
    daemon.signal(signal.SIGSTOP)
    try:
        assert daemon.run("serve").returncode == 1
        other = {"SOJOURN_STATE_DIR": str(daemon.root / "other")}
        refused = daemon.run("serve", env=other)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    finally:
        daemon.signal(signal.SIGCONT)
    assert daemon.socket.stat().st_ino == before
    with Wire.unix(daemon.socket) as wire:
        wire.initialize()


def test_what_is_no_socket_is_left_alone(make_daemon: Make) -> None:
    daemon = make_daemon()
    daemon.socket.write_text("precious")
    refused = daemon.run("serve")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert str(daemon.socket) in refused.stderr
    assert daemon.socket.read_text() == "precious"


def test_a_socket_path_that_is_too_long_has_a_short_one_that_both_sides_know(make_daemon: Make) -> None:
    daemon = make_daemon()
    daemon.env["SOJOURN_SOCKET"] = str(daemon.root / ("ä" * 60) / "sojourn.sock")
    detached = daemon.run("serve", "--detach")
    try:
        assert detached.returncode == 0, detached.stderr
        assert daemon.run("ps").returncode == 0
    finally:
        pid = daemon.detached_pid()
        assert pid is not None
        assert daemon.run("shutdown", "--now").returncode == 0
    assert not lives(pid)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        pytest.param("[daemon]\nidle = 3\n", ["config.toml", "idle"], id="an unknown key"),
        pytest.param('[daemon]\nidle_exit_s = "x"\n', ["config.toml", "daemon.idle_exit_s"], id="a wrong type"),
        pytest.param("[daemon\n", ["config.toml", "TOML"], id="no TOML"),
    ],
)
def test_a_bad_config_is_refused_by_name(make_daemon: Make, config: str, words: list[str]) -> None:
    refused = make_daemon(config=config).run("serve")
    assert refused.returncode == 1
    assert all(word in refused.stderr for word in words), refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_named_config_that_is_missing_is_refused(make_daemon: Make) -> None:
    refused = make_daemon().run("serve", "--config", "/nowhere/config.toml")
    assert refused.returncode == 1
    assert "/nowhere/config.toml" in refused.stderr


def test_a_state_directory_that_cannot_be_one_is_refused_by_name(make_daemon: Make) -> None:
    daemon = make_daemon()
    daemon.state_dir.write_text("")
    refused = daemon.run("serve")
    assert refused.returncode == 1
    assert "--state-dir" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_lock_that_cannot_be_made_is_refused_by_name(make_daemon: Make) -> None:
    daemon = make_daemon()
    (daemon.state_dir / "daemon.lock").mkdir(parents=True)
    refused = daemon.run("serve")
    assert refused.returncode == 1
    assert "cannot be used: Is a directory ('daemon.lock'); --state-dir" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_note_that_cannot_be_written_or_removed_is_no_hindrance(make_daemon: Make) -> None:
    daemon = make_daemon()
    (daemon.state_dir / "daemon.json").mkdir(parents=True)
    daemon.start()
    with Wire.unix(daemon.socket) as wire:
        wire.initialize()
        assert wire.call("server/status")["state"] == "ready"
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log.read_text()


def test_proxies_in_the_environment_do_not_break_the_start(make_daemon: Make) -> None:
    proxy = "socks5://127.0.0.1:9"
    names = ("ALL_PROXY", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    config = '[models.gpt]\nbackend = "openai-chat"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    daemon = make_daemon(config=config, env=dict.fromkeys(names, proxy)).start()
    with Wire.unix(daemon.socket) as wire:
        wire.initialize()
        assert {model["name"] for model in wire.call("model/list")["models"]} == {"gpt", "offline"}


def test_only_the_owner_can_read_what_is_kept(make_daemon: Make) -> None:
    daemon = make_daemon()
    before = os.umask(0)
    try:
        daemon.start()
    finally:
        os.umask(before)
    assert daemon.state_dir.stat().st_mode & 0o777 == 0o700
    assert daemon.socket.stat().st_mode & 0o777 == 0o600
    kept = {file.name: file.stat().st_mode & 0o777 for file in daemon.state_dir.iterdir() if file.is_file()}
    assert kept
    assert set(kept.values()) == {0o600}, kept


def test_a_daemon_that_nobody_needs_ends_by_itself(make_daemon: Make) -> None:
    daemon = make_daemon(config="[daemon]\nidle_exit_s = 0.4\n").start()
    with Wire.unix(daemon.socket) as wire:
        wire.initialize()
        with pytest.raises(subprocess.TimeoutExpired):
            daemon.wait(timeout_s=1)
    assert daemon.wait(timeout_s=5) == 0
    assert "nobody needed it" in daemon.stderr


def test_a_log_that_nobody_reads_holds_nothing_up(make_daemon: Make) -> None:
    daemon = make_daemon(config='[daemon]\nlog_level = "debug"\n')
    daemon.process = subprocess.Popen(
        [sys.executable, "-m", "sojourn", "serve"], env=daemon.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    daemon.wait_ready()
    for _ in range(3):
        with Wire.unix(daemon.socket) as wire:
            for number in range(400):
                wire.write_raw(json.dumps({"jsonrpc": "2.0", "id": number, "method": "x" * 900}).encode() + b"\n")
            assert wire.error("initialize", {"capabilities": 7} | {"x": "y" * 50_000}).code or True
    assert daemon.stop() == 0
    assert daemon.process.stderr is not None
    daemon.process.stderr.close()


@pytest.mark.parametrize("mode", ["drain", "now"])
def test_a_client_can_end_the_daemon_and_the_others_are_told(daemon: DaemonProcess, mode: str) -> None:
    with Wire.unix(daemon.socket) as one, Wire.unix(daemon.socket) as other:
        one.initialize()
        other.initialize()
        assert one.call("server/shutdown", {"mode": mode}) is None
        assert other.notification("server/state")["state"] == "draining"
        assert daemon.wait(timeout_s=5) == 0


def test_draining_waits_for_the_run_and_takes_no_new_work(make_daemon: Make) -> None:
    daemon = make_daemon(script=SLOW.replace("500", "150")).start()
    with prompt(daemon) as wire:
        wire.call("server/shutdown", {"mode": "drain"})
        assert wire.error("agent/prompt", {"agentId": "a", "content": "more"}).kind == "draining"
        assert wire.event("agentEnd", agent_id="a")["event"]["reason"] == "done"
    assert daemon.wait(timeout_s=10) == 0


def test_a_detached_daemon_answers_when_its_command_returns(make_daemon: Make) -> None:
    daemon = make_daemon()
    started = daemon.run("serve", "--detach")
    assert (started.returncode, started.stderr) == (0, "")
    pid = daemon.detached_pid()
    assert pid is not None
    os.kill(pid, signal.SIGHUP)
    with Wire.unix(daemon.socket) as wire:
        wire.initialize()
        assert wire.call("server/status")["state"] == "ready"
    assert "listens on" in (daemon.state_dir / "daemon.log").read_text()
    assert os.readlink(f"/proc/{pid}/cwd") == "/" if Path("/proc").exists() else True
    second = daemon.run("serve", "--detach")
    assert (second.returncode, second.stderr) == (0, f"already running (pid {pid})\n")
    assert daemon.run("shutdown").returncode == 0


def test_a_detached_daemon_that_cannot_start_says_why(make_daemon: Make) -> None:
    daemon = make_daemon()
    daemon.socket.write_text("no socket")
    failed = daemon.run("serve", "--detach")
    assert failed.returncode == 1
    assert "not a socket" in failed.stderr


def test_a_second_signal_ends_the_daemon_at_once(daemon: DaemonProcess) -> None:
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        daemon.signal(number)
    assert daemon.wait(timeout_s=5) in (130, 143)


def test_a_terminal_that_is_closed_ends_a_daemon_in_the_foreground_while_it_drains(make_daemon: Make) -> None:
    daemon = make_daemon(script=SLOW).start()
    with prompt(daemon) as wire:
        wire.call("server/shutdown", {"mode": "drain"})
        daemon.signal(signal.SIGHUP)
        assert daemon.wait(timeout_s=5) == 0


def test_a_thread_that_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from sojourn import daemon as life

    left: list[int] = []
    go_on = threading.Event()
    threads = ThreadPoolExecutor()
    monkeypatch.setattr(life, "_THREADS_S", 0.01)
    monkeypatch.setattr(life.os, "_exit", left.append)
    threads.submit(go_on.wait)
    life._leave(threads, 0)
    assert left == [0]
    go_on.set()
    threads.shutdown()
    monkeypatch.setattr(life, "_THREADS_S", 10)
    life._leave(threads, 0)
    assert left == [0]
