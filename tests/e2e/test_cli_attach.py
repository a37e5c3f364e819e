"""`sojourn attach` and `sojourn prompt` at a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_running import Cli
from wire import Wire

from sojourn.cli._view import View
from sojourn_client.testing import DaemonProcess

Make = Callable[..., DaemonProcess]
SLOW = f'rules: [{{when: {{always: true}}, reply: {{text: "{"one two " * 500}", delay_ms: 100, chunk_chars: 4}}}}]'
_SLOWLY = f'text: "{"one two " * 8}", delay_ms: 50, chunk_chars: 4'
TALKS_FIRST = f"""
rules:
  - {{when: {{user: talk}}, reply: {{{_SLOWLY}}}}}
  - {{when: {{tool_result: "*"}}, reply: {{text: Well.}}}}
  - when: {{user: "go|deploy"}}
    reply: {{{_SLOWLY}, calls: [{{name: demo_deploy, arguments: {{target: site}}}}]}}
  - {{when: {{always: true}}, reply: {{text: So it is.}}}}
"""
_TAKE_TERMINAL = """
import os, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))  # The first terminal that a session opens is its own.
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A command at a terminal of its own."""

    def __init__(self, daemon: DaemonProcess, *command: str) -> None:
        self._fd, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command],
            env={**daemon.env, "TERM": "xterm", "COLUMNS": "200"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""
        self._seen = 0

    def until(self, words: str, timeout_s: float = 20) -> str:
        """Reads until `words` are on the screen, after what was waited for before; what came until then."""
        deadline = time.monotonic() + timeout_s
        while (at := self.text.find(words, self._seen)) < 0:
            left = deadline - time.monotonic()
            assert left > 0, f"{words!r} did not come; there is: {self.text[self._seen :]!r}"
            if select.select([self._fd], [], [], left)[0]:
                try:
                    data = os.read(self._fd, 65536).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"{words!r} did not come before the end: {self.text!r}") from None
                self.text += re.sub(r"\x1b\[[0-9;]*m", "", data)
        found, self._seen = self.text[self._seen : at], at + len(words)
        return found

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def hang_up(self) -> None:
        """The window is closed."""
        os.close(self._fd)
        self._fd = os.open(os.devnull, os.O_RDWR)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


@contextmanager
def at(daemon: DaemonProcess, *arguments: str) -> Iterator[Terminal]:
    terminal = Terminal(daemon, sys.executable, "-m", "sojourn", *arguments)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess() as one:
        yield one


@pytest.fixture(scope="module")
def slow() -> Iterator[DaemonProcess]:
    with DaemonProcess(script=TALKS_FIRST) as one:
        yield one


@pytest.fixture
def wire(daemon: DaemonProcess) -> Iterator[Wire]:
    with Wire.unix(daemon.socket) as client:
        client.initialize("other")
        client.call("agent/create", {"agentId": "a", "config": {"tools": ["demo_deploy", "demo_time"]}})
        yield client
        client.call("agent/delete", {"agentId": "a", "force": True})


def test_attach_shows_what_was_said_and_sends_what_is_typed(daemon: DaemonProcess, wire: Wire) -> None:
    wire.call("agent/prompt", {"agentId": "a", "content": "hello there"})
    with at(daemon, "attach", "a") as terminal:
        terminal.until("> hello there")
        terminal.until("Hello!")
        terminal.until("/quit")
        terminal.type("what time is it\n")
        terminal.until("you> what time is it\r\n")
        assert "what time is it" not in terminal.until("✓ demo_time")
        terminal.until("It is 2")
        terminal.type("/quit\n")
        assert terminal.process.wait(10) == 0


def test_an_approval_is_asked_about_and_decided_at_the_prompt(daemon: DaemonProcess, wire: Wire) -> None:
    with at(daemon, "attach", "a") as terminal:
        terminal.until("/quit")
        terminal.type("deploy the site\n")
        terminal.until('Allow demo_deploy {"target": "site"}')
        terminal.type("what?\n")
        terminal.until("A decision is needed first")
        terminal.type("e not json\n")
        terminal.until("JSON object")
        terminal.type('e {"target": "staging"}\n')
        terminal.until("demo_deploy: approved with other arguments by cli")
        terminal.until("Deployed staging.")
        terminal.type("deploy the shop\n")
        terminal.until("Allow demo_deploy")
        terminal.type("n not on a friday\n")
        terminal.until("demo_deploy: denied by cli: not on a friday")
        terminal.type("\x04")
        assert terminal.process.wait(10) == 0


def test_an_approval_that_was_open_before_is_asked_about_and_may_be_decided_elsewhere(
    daemon: DaemonProcess, wire: Wire
) -> None:
    wire.call("agent/attach", {"agentId": "a"})
    wire.call("agent/prompt", {"agentId": "a", "content": "deploy the site", "wait": False})
    approval = wire.event("approvalRequested")["event"]["approval"]["approvalId"]
    with at(daemon, "attach", "a") as terminal:
        terminal.until("Allow demo_deploy")
        wire.call("approval/decide", {"approvalId": approval, "decision": "approve"})
        terminal.until("approved by other")
        terminal.until("Deployed site.")
        terminal.type("/nothing such\n")
        terminal.until("There is no /nothing")
        terminal.type("//nothing but said\n")
        terminal.until("You said: /nothing")
        terminal.type("/resume\n")
        terminal.until("resume")
        terminal.type("\x03")
        terminal.until("Left; what runs goes on.")
        assert terminal.process.wait(10) == 0


def test_leaving_stops_nothing_and_stopping_does(make_daemon: Make) -> None:
    daemon = make_daemon(script=SLOW).start()
    with Wire.unix(daemon.socket) as wire:
        wire.initialize()
        wire.call("agent/create", {"agentId": "a"})
        with at(daemon, "attach", "a") as terminal:
            terminal.until("/quit")
            terminal.type("go\n")
            terminal.until("one ")
            terminal.type("\x03")
            assert terminal.process.wait(10) == 0
        assert wire.call("agent/get", {"agentId": "a"})["state"] == "running"
        with at(daemon, "attach", "a") as terminal:
            terminal.until("/quit")
            terminal.until("one ")
            terminal.type("/stop\n")
            terminal.until("stopped")
            terminal.type("/stop\n")
            terminal.until("Nothing was running.")
            terminal.type("\x04")
            assert terminal.process.wait(10) == 0


def test_a_prompt_at_a_terminal_asks_about_approvals(daemon: DaemonProcess) -> None:
    with at(daemon, "prompt", "deploy the site", "--agent", "p", "--tool", "demo_deploy") as terminal:
        terminal.until("Allow demo_deploy")
        terminal.type("/say thank you\n")
        terminal.type("y\n")
        terminal.until("Deployed site.")
        assert terminal.process.wait(10) == 0
    assert "> thank you" in daemon.run("events", "p").stdout


@pytest.mark.parametrize("typed", ["y\n", "y\r", "y\ny\ny\n", "y"])
@pytest.mark.parametrize("command", ["attach", "prompt"])
def test_what_is_typed_before_a_question_does_not_decide_it(slow: DaemonProcess, command: str, typed: str) -> None:
    agent = f"{command}-{len(typed)}-{typed.count(chr(13))}"
    with Wire.unix(slow.socket) as wire:
        wire.initialize()
        wire.call("agent/create", {"agentId": agent, "config": {"tools": ["demo_deploy"]}})
    with at(slow, *(["attach", agent] if command == "attach" else ["prompt", "go", "--agent", agent])) as terminal:
        if command == "attach":
            terminal.until("/quit")
            terminal.type("go\n")
        terminal.until("one ")
        terminal.type(typed)
        terminal.until("y")
        if command == "attach" and typed == "y":
            terminal.type(" means yes\n")  # The question waits until the line is free, and is not what it answers.
        terminal.until("Allow demo_deploy")
        terminal.type("n\r")
        assert "A decision is needed" not in terminal.until("demo_deploy: denied by cli")


def test_a_prompt_leaves_what_it_does_not_ask_for_to_the_shell(slow: DaemonProcess) -> None:
    sojourn = f"{sys.executable} -m sojourn prompt --new --tool demo_deploy"
    script = f'{sojourn} "just talk"; read -r line; echo "[$line]"; {sojourn} deploy; read -r line; echo "[$line]"'
    terminal = Terminal(slow, "sh", "-c", script)
    try:
        terminal.until("one ")
        terminal.type("echo mine\n")
        terminal.until("[echo mine]")
        terminal.until("Allow demo_deploy")
        terminal.type("n\necho mine, too\n")
        terminal.until("denied by cli")
        terminal.until("[echo mine, too]")
    finally:
        terminal.close()


def test_a_run_stopped_at_an_open_question_is_shown_and_replayed(daemon: DaemonProcess, wire: Wire) -> None:
    with at(daemon, "attach", "a") as terminal:
        terminal.until("/quit")
        terminal.type("deploy the site\n")
        terminal.until("Allow demo_deploy")
        terminal.type("/stop\n")
        terminal.until("demo_deploy: not decided, the run was stopped")
        terminal.until("stopped")
        terminal.type("/quit\n")
        assert terminal.process.wait(10) == 0
    with at(daemon, "prompt", "deploy the site", "--agent", "q", "--tool", "demo_deploy") as terminal:
        terminal.until("Allow demo_deploy")
        wire.call("agent/stop", {"agentId": "q"})
        terminal.until("demo_deploy: not decided, the run was stopped")
        assert terminal.process.wait(10) == 5
    assert "not decided, the run was stopped" in daemon.run("events", "a").stdout


def test_what_cannot_be_shown_is_no_secret(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(view: View, item: object) -> None:
        raise LookupError("no words for it")

    monkeypatch.setattr(View, "show", broken)
    with pytest.raises(LookupError, match="no words for it"):
        Cli(daemon)("prompt", "hello", "--agent", "unseen")


def test_refused_calls_leave_a_line(daemon: DaemonProcess) -> None:
    done = daemon.run(
        "prompt", "deploy the site", "--agent", "refused", "--tool", "demo_deploy", "--on-approval", "deny"
    )
    assert "✗ demo_deploy: Denied: 'demo_deploy' needs an approval" in done.stderr


def test_what_is_for_scripts_is_not_shown_to_people(daemon: DaemonProcess, wire: Wire) -> None:
    with at(daemon, "prompt", "deploy the site", "--agent", "a", "--no-wait") as terminal:
        terminal.until("Taken; `sojourn attach a` shows how it goes on.")
        assert terminal.process.wait(10) == 0
    with at(daemon, "approvals") as terminal:
        terminal.until("just now")
        assert terminal.process.wait(10) == 0


def test_a_table_at_a_terminal_has_headings(daemon: DaemonProcess, wire: Wire) -> None:
    with at(daemon, "ps") as terminal:
        terminal.until("AGENT")
        terminal.until("idle")
        assert terminal.process.wait(10) == 0


def test_an_agent_is_attached_to_by_the_beginning_of_its_id(daemon: DaemonProcess) -> None:
    assert daemon.run("create", "agent-12345").returncode == 0
    with at(daemon, "attach", "agent-1") as terminal:
        terminal.until("/quit")
        terminal.type("hello\n")
        terminal.until("Hello!")
        terminal.type("/quit\n")
        assert terminal.process.wait(10) == 0
    with at(daemon, "ps") as terminal:
        assert "ABOUT" in terminal.until("agent-12345")
        terminal.until("hello")
        assert terminal.process.wait(10) == 0


def test_an_unknown_agent_is_said(daemon: DaemonProcess) -> None:
    done = daemon.run("attach", "nobody")
    assert done.returncode == 1
    assert "nobody" in done.stderr


def test_what_is_typed_and_what_is_shown_do_not_mix(make_daemon: Make) -> None:
    daemon = make_daemon(script=SLOW).start()
    with Wire.unix(daemon.socket) as wire:
        wire.initialize()
        wire.call("agent/create", {"agentId": "a"})
        with at(daemon, "attach", "a") as terminal:
            terminal.until("/quit")
            terminal.type("go\n")
            terminal.until("one two ")
            for key in "and then wait":
                terminal.type(key)
            terminal.until("you> and then wait")
            wire.call("agent/stop", {"agentId": "a"})
            terminal.type("!")
            typed = terminal.until("wait!")
            terminal.type("\x7f")
            typed += terminal.until("wait")
            assert "one" not in typed
            assert "stopped" not in typed
            terminal.type("\x15")
            terminal.until("stopped")
            terminal.type("\x04")
            assert terminal.process.wait(10) == 0


def test_a_lost_connection_and_its_return_are_said(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    with Wire.unix(daemon.socket) as wire:
        wire.initialize()
        wire.call("agent/create", {"agentId": "a", "config": {"tools": ["demo_build"]}})
        wire.call("agent/prompt", {"agentId": "a", "content": "build the site"})
    with at(daemon, "attach", "a") as terminal:
        terminal.until("demo_build (msg-2-call-1): Started")
        terminal.until("pending: msg-2-call-1 demo_build since ")
        terminal.until("/quit")
        daemon.kill9()
        terminal.until("(connection lost; reconnecting…)")
        terminal.until("(back)")
        terminal.type("/say hello\n")
        terminal.until("Hello!")
        terminal.type("/quit\n")
        assert terminal.process.wait(10) == 0


def test_a_message_can_be_said_while_a_decision_is_asked_for(daemon: DaemonProcess, wire: Wire) -> None:
    with at(daemon, "attach", "a") as terminal:
        terminal.until("/quit")
        terminal.type("deploy the site\n")
        assert "waits for a decision" not in terminal.until('Allow demo_deploy {"target": "site"}? [y/n/e/?]')
        terminal.type("?\n")
        terminal.until("`/say TEXT` is a message")
        terminal.type("/say and the time\n")
        terminal.until("you> /say and the time")
        terminal.type("y\n")
        terminal.until("approved by cli")
        terminal.type("\x04")
        assert terminal.process.wait(10) == 0


def test_a_pipe_in_place_of_the_terminal_says_everything_plainly(daemon: DaemonProcess, wire: Wire) -> None:
    done = daemon.run("attach", "a", input="hello\n/help\n/quit\n")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "you>" not in done.stdout
    assert done.stdout.count("Lines typed are messages") == 2


def test_a_closed_window_ends_attach_without_a_traceback(daemon: DaemonProcess, wire: Wire, tmp_path: Path) -> None:
    said = tmp_path / "said"
    terminal = Terminal(daemon, "sh", "-c", f"exec {sys.executable} -m sojourn attach a 2>{said}")
    try:
        terminal.until("you> ")
        terminal.hang_up()
        terminal.process.wait(10)
    finally:
        terminal.close()
    assert "Traceback" not in said.read_text(), said.read_text()
