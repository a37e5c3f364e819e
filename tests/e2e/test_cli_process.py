"""The command line as a process: exit codes, starting the daemon by itself, what is imported, being interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from typer.main import get_command
from wire import Wire

from sojourn.cli._commands import MODULES, command_line
from sojourn_client.testing import DaemonProcess

Make = Callable[..., DaemonProcess]
SLOW = 'rules: [{when: {always: true}, reply: {text: "one two three four five six", delay_ms: 500, chunk_chars: 4}}]'

ASKS = """
rules:
- when: {turn: 1}
  reply: {calls: [{name: demo_deploy, arguments: {target: site}}]}
- when: {always: true}
  reply: {text: Well then.}
"""

names = (f"agent-{number}" for number in count(1))


@pytest.fixture(scope="module")
def calm() -> Iterator[DaemonProcess]:
    """A daemon for commands that leave it as it was."""
    with DaemonProcess() as running:
        yield running


@pytest.fixture(scope="module")
def asking() -> Iterator[DaemonProcess]:
    """A daemon whose model wants to do something, in the first turn of every agent."""
    with DaemonProcess(script=ASKS) as running:
        yield running


def start(daemon: DaemonProcess, *arguments: str) -> subprocess.Popen[str]:
    """A command, for which no signal is ignored because whoever runs the tests ignores it."""
    return subprocess.Popen(
        [sys.executable, "-m", "sojourn", *arguments],
        env=daemon.env,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509 (no other thread is at work)
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "arguments", [["ps"], ["events", "a", "--follow"], ["shutdown"], ["call", "server/status"], ["approvals", "--json"]]
)
def test_without_a_daemon_commands_say_so_and_exit_with_three(make_daemon: Make, arguments: list[str]) -> None:
    done = make_daemon().run(*arguments)
    assert (done.returncode, done.stdout) == (3, "")
    assert "No daemon" in done.stderr
    assert "`sojourn serve --detach`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_prompt_starts_the_daemon_and_leaves_it_running(make_daemon: Make) -> None:
    daemon = make_daemon()
    done = daemon.run("prompt", "hello", "--agent", "a")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Hello!")
    assert done.stderr.splitlines() == ["Starting the daemon …", "new agent a"]
    assert daemon.run("ps").stdout.startswith("a\tidle")
    ended = daemon.run("shutdown")
    assert (ended.returncode, ended.stderr) == (0, "The daemon has ended.\n")
    assert not daemon.answers()


def test_a_shutdown_does_not_wait_for_a_parent_that_takes_no_notice(make_daemon: Make) -> None:
    daemon = make_daemon().start()  # our child, whose end nobody here has asked about: its id stays taken
    ended = daemon.run("shutdown")
    assert (ended.returncode, ended.stderr) == (0, "The daemon has ended.\n")
    os.kill(daemon.pid, 0)


def test_a_daemon_that_cannot_start_is_said_with_its_own_words(make_daemon: Make) -> None:
    done = make_daemon(config="[nonsense]\n[folly]\n").run("prompt", "hello")
    assert done.returncode == 1
    started, one, other = done.stderr.splitlines()
    assert started == "Starting the daemon …"
    assert "nonsense" in one
    assert "folly" in other


def test_a_daemon_of_another_state_directory_is_told_from_the_one_that_is_meant(
    make_daemon: Make, tmp_path: Path
) -> None:
    daemon = make_daemon().start()
    other = daemon.run("ps", "--state-dir", str(tmp_path))
    assert other.returncode == 0
    assert other.stderr.splitlines()[0] == (
        f"The daemon that answers at {daemon.socket} has another state directory than {tmp_path}; "
        "for a daemon of that one, name a socket with --socket, too."
    )
    spared = daemon.run("shutdown", "--state-dir", str(tmp_path))
    assert (spared.returncode, spared.stderr) == (1, f"Nothing is ended. {other.stderr.splitlines()[0]}\n")
    right = "No agents yet; `sojourn prompt TEXT` makes one.\n"
    assert daemon.run("ps", "--state-dir", str(daemon.state_dir)).stderr == right
    assert daemon.run("ps", "--state-dir", str(tmp_path), "--socket", str(daemon.socket)).stderr == right


def test_an_interrupted_prompt_stops_its_run(make_daemon: Make) -> None:
    daemon = make_daemon(script=SLOW).start()
    process = start(daemon, "prompt", "x", "--agent", "a", "--json")
    assert process.stdout is not None
    while "messageDelta" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130
    with Wire.unix(daemon.socket) as wire:
        wire.initialize()
        assert wire.call("agent/get", {"agentId": "a"})["state"] == "idle"
        last = wire.call("agent/events", {"agentId": "a"})["events"][-1]["event"]
        assert (last["type"], last["reason"]) == ("agentEnd", "stopped")


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice, as a closed terminal does"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("words", [["prompt", "x", "--agent"], ["resume"]], ids=["prompt", "resume"])
def test_a_command_that_is_ended_by_others_leaves_the_run_and_its_question_alone(
    asking: DaemonProcess, words: list[str], number: signal.Signals, times: int
) -> None:
    agent = next(names)
    with Wire.unix(asking.socket) as wire:
        wire.initialize()
        wire.call("agent/create", {"agentId": agent, "config": {"tools": ["*"]}})
        wire.call("inbox/push", {"agentId": agent, "content": "x"})
        process = start(asking, *words, agent, "--json")
        assert process.stdout is not None
        assert any("approvalRequested" in line for line in process.stdout)
        for _ in range(times):
            process.send_signal(number)
        _, said = process.communicate(timeout=10)
        assert process.returncode == 128 + number
        assert said.splitlines()[-1] == (
            f"Left; what runs goes on. `sojourn attach {agent}` shows it, `sojourn stop {agent}` stops it."
        )
        [approval] = wire.call("approval/list")["approvals"]
        assert wire.call("agent/get", {"agentId": agent})["state"] == "waiting"
        wire.call("approval/decide", {"approvalId": approval["approvalId"], "decision": "deny"})
        assert wire.call("agent/wait", {"agentId": agent})["output"] == "Well then."


def test_a_command_under_nohup_takes_no_notice_of_a_closed_terminal(make_daemon: Make) -> None:
    daemon = make_daemon(script=SLOW).start()
    process = subprocess.Popen(
        ["nohup", sys.executable, "-m", "sojourn", "prompt", "x", "--agent", "a", "--json"],
        env=daemon.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert any("messageDelta" in line for line in process.stdout)
    process.send_signal(signal.SIGHUP)
    shown, _ = process.communicate(timeout=20)
    assert (process.returncode, json.loads(shown.splitlines()[-1])["reason"]) == (0, "done")


def test_following_events_survives_a_daemon_that_dies(daemon: DaemonProcess) -> None:
    with Wire.unix(daemon.socket) as wire:
        wire.initialize()
        wire.call("agent/create", {"agentId": "a"})
    process = start(daemon, "events", "a", "--follow", "--json")
    assert process.stdout is not None
    seqs = []
    for _ in range(2):
        with Wire.unix(daemon.socket) as wire:
            wire.initialize()
            last = wire.call("agent/prompt", {"agentId": "a", "content": "hello"})["lastSeq"]
        while not seqs or seqs[-1] < last:
            line = json.loads(process.stdout.readline())
            assert "seq" in line, line
            seqs.append(line["seq"])
        daemon.kill9()
        daemon.start()
    assert seqs == list(range(1, last + 1))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130


def test_a_reader_that_has_enough_is_no_error(calm: DaemonProcess) -> None:
    calm.run("prompt", "hello", "--agent", "a")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "sojourn", "events", "a"], env=calm.env, stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def loaded(daemon: DaemonProcess, *arguments: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.stderr))\n"
        f"sys.argv = ['sojourn', *{list(arguments)!r}]\n"
        "from sojourn.__main__ import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={key: value for key, value in daemon.env.items() if not key.startswith("COVERAGE_")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return {line.split(".")[0] for line in done.stderr.splitlines()}


def entered(first: str | None) -> set[str]:
    """The commands and groups of the command line that is made for the command `first`."""
    return set(get_command(command_line(first)).commands)  # type: ignore[attr-defined]


def test_a_command_is_entered_by_its_module_alone_and_anything_else_by_all() -> None:
    every = {name for names in MODULES.values() for name in names}
    assert entered(None) == entered("promt") == entered("--help") == every
    for names in MODULES.values():
        for name in names:
            assert entered(name) == set(names)


HEAVY = {"pygls", "lsprotocol", "httpx", "mcp", "sqlite3", "jsonschema"}


def test_the_help_and_short_commands_load_no_server(calm: DaemonProcess) -> None:
    assert not loaded(calm, "--help") & (HEAVY | {"pydantic"})
    assert not loaded(calm, "ps") & HEAVY  # typer reads arguments with pydantic


def test_connect_loads_neither_pydantic_nor_the_command_line(calm: DaemonProcess) -> None:
    found = loaded(calm, "connect")
    assert "sojourn" in found
    assert not found & (HEAVY | {"pydantic", "pydantic_core", "typer", "rich", "asyncio", "orjson", "click"})


def test_doctor_says_what_to_do(make_daemon: Make) -> None:
    config = """
[models.gpt]
backend = "openai-chat"
model = "m"
base_url = "https://example.org/v1"
api_key_env = "NO_SUCH_KEY"
[models.filed]
backend = "openai-chat"
model = "m"
api_key_file = "/no/such/file"
[models.commanded]
backend = "openai-chat"
model = "m"
api_key_command = "no-such-program get key"
[models.scripted]
backend = "scripted"
script = "missing.yaml"
[mcp.servers.files]
command = "no-such-server"
"""
    daemon = make_daemon(config=config)
    daemon.socket.write_text("")
    daemon.state_dir.mkdir(mode=0o755)
    daemon.state_dir.chmod(0o755)
    done = daemon.run("doctor")
    assert done.returncode == 1
    wanted = [
        "NO_SUCH_KEY",
        "/no/such/file",
        "no-such-program",
        "missing.yaml",
        "no-such-server",
        "no socket",
        "chmod 700",
    ]
    assert [word for word in wanted if word not in done.stdout] == []
    assert "Traceback" not in done.stderr
    broken = make_daemon(config="[daemon]\nnope = 1\n").run("doctor", "--json")
    assert broken.returncode == 1
    faults = [json.loads(line) for line in broken.stdout.splitlines()]
    assert any(fault["check"] == "config" and not fault["ok"] and "nope" in fault["message"] for fault in faults)


def test_the_demo_passes_and_its_last_line_is_the_verdict(make_daemon: Make) -> None:
    begun = time.monotonic()
    done = make_daemon().run("demo", timeout_s=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("PASSED")
    assert time.monotonic() - begun < 90


def test_the_pid_and_the_socket_are_told_for_scripts(make_daemon: Make) -> None:
    daemon = make_daemon()
    assert daemon.run("socket").stdout == f"{daemon.socket}\n"
    none = daemon.run("pid")
    assert (none.returncode, none.stdout) == (3, "")
    daemon.start()
    assert daemon.run("pid").stdout == f"{daemon.pid}\n"


def test_doctor_says_what_the_running_daemon_has_not_read(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    assert daemon.run("doctor").returncode == 0
    daemon.config.write_text('[models.next]\nbackend = "openai-chat"\nmodel = "m"\napi_key_env = "NEXT_KEY"\n')
    done = daemon.run("doctor", env={"NEXT_KEY": "k", "SOJOURN__LIMITS__TOOL_CONCURRENCY": "2"})
    assert done.returncode == 1
    wanted = ["config.toml was changed", "does not know the model next", "starts it anew"]
    wanted += ["$NEXT_KEY", "$SOJOURN__LIMITS__TOOL_CONCURRENCY"] if sys.platform == "linux" else []
    assert [word for word in wanted if word not in done.stdout] == []
    unknown = daemon.run("prompt", "hello", "--new", "--model", "next")
    assert unknown.returncode == 1
    assert "'next'" in unknown.stderr
    assert "sojourn shutdown" in unknown.stderr


def test_doctor_names_the_hooks_and_scripts_that_were_changed_since(make_daemon: Make, tmp_path: Path) -> None:
    guard, script = tmp_path / "guard.py", tmp_path / "mine.yaml"
    guard.write_text("def before_tool(ctx, call): ...\n")
    script.write_text("rules: [{when: {always: true}, reply: {text: one}}]\n")
    config = f"[hooks]\nfiles = ['{guard}']\n[models.mine]\nbackend = 'scripted'\nscript = '{script}'\n"
    daemon = make_daemon(config=config).start()
    fresh = daemon.run("doctor")
    assert (fresh.returncode, "was changed" in fresh.stdout) == (0, False), fresh.stdout
    later = time.time() + 60
    os.utime(guard, (later, later))
    os.utime(script, (later, later))
    done = daemon.run("doctor", "--json")
    assert done.returncode == 1
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["message"], "sojourn shutdown" in one["advice"]) for one in found if not one["ok"]] == [
        (f"{guard} (a hook) was changed after the daemon started", True),
        (f"{script} (a model's script) was changed after the daemon started", True),
    ]


def test_doctor_names_a_model_that_only_the_running_daemon_has(make_daemon: Make) -> None:
    daemon = make_daemon(config='[models.old]\nbackend = "scripted"\nscript = "builtin:demo"\n').start()
    daemon.config.write_text("")
    assert "still has the model old" in daemon.run("doctor").stdout


def test_doctor_compares_the_default_model(make_daemon: Make) -> None:
    daemon = make_daemon(config='[models.other]\nbackend = "scripted"\nscript = "builtin:demo"\n').start()
    assert "default model is " in daemon.run("doctor", env={"SOJOURN__DAEMON__DEFAULT_MODEL": "other"}).stdout


def test_a_daemon_that_runs_already_is_named(make_daemon: Make, tmp_path: Path) -> None:
    daemon = make_daemon().start()
    away = daemon.run("prompt", "hello", "--socket", str(tmp_path / "s.sock"))
    assert (away.returncode, f"(pid {daemon.pid})" in away.stderr, str(daemon.socket) in away.stderr) == (1, True, True)
    again = daemon.run("serve", "--detach")
    assert (again.returncode, again.stderr) == (0, f"already running (pid {daemon.pid})\n")
    second = daemon.run("serve")
    assert second.returncode == 1
    wanted = [f"(pid {daemon.pid})", "`sojourn ps`", "`sojourn shutdown`"]
    assert [word for word in wanted if word not in second.stderr] == []
