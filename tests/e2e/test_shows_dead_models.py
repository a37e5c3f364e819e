"""The real daemon and model servers that are dead, by its settings: idle limits, retries, and proxies in the way."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from e2e.stage import agent, client, prompt

from sojourn_client.testing import DaemonProcess

Make = Callable[..., DaemonProcess]

ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    b'data: {"choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


class Stub:
    """A server that takes connections and answers with `answer`, or never (None)."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.taken = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1"
        self.held: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                taken, _ = self.listener.accept()
            except OSError:
                return
            self.taken += 1
            if self.answer is None:
                self.held.append(taken)
                continue
            with taken, suppress(ConnectionError):  # a daemon that was stopped meanwhile hears no answer
                taken.recv(65536)
                taken.sendall(self.answer)

    def close(self) -> None:
        self.listener.close()
        for one in self.held:
            one.close()

    def all_hung_up(self) -> bool:
        """Whether the client has closed each connection that was taken."""
        for one in self.held:
            one.settimeout(5)
            while one.recv(65536):
                pass
        return True


@pytest.fixture
def silent() -> Iterator[Stub]:
    stub = Stub(None)
    yield stub
    stub.close()


def config_for(stub: Stub, **fields: object) -> str:
    more = "".join(f"{key} = {value}\n" for key, value in fields.items())
    table = f'[models.m]\nbackend = "openai-chat"\nmodel = "m"\nbase_url = "{stub.url}"\n{more}'
    return f'[daemon]\ndefault_model = "m"\n{table}'


def sockets_of(pid: int) -> int:
    """How many sockets a process holds."""
    folder = Path(f"/proc/{pid}/fd")
    return sum(os.readlink(one).startswith("socket:") for one in folder.iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts the sockets in /proc")
def test_a_model_that_never_answers_is_given_up_and_no_socket_stays(make_daemon: Make, silent: Stub) -> None:
    daemon = make_daemon(config=config_for(silent, idle_timeout_s=0.2, max_retries=1)).start()
    with client(daemon) as wire:
        agent(wire, "a")
        held = sockets_of(daemon.pid)
        for number in range(1, 4):
            began = time.monotonic()
            outcome = prompt(wire, "a", "hi")
            assert (outcome["reason"], outcome["error"]["retryable"]) == ("failed", True)
            assert "idle_timeout_s" in outcome["error"]["message"]
            assert time.monotonic() - began < 8
            assert silent.taken == 2 * number
            assert sockets_of(daemon.pid) == held
        assert silent.all_hung_up()


def test_a_model_that_never_answers_is_stopped_at_once(make_daemon: Make, silent: Stub) -> None:
    daemon = make_daemon(config=config_for(silent)).start()
    with client(daemon) as wire:
        agent(wire, "a")
        wire.call("agent/prompt", {"agentId": "a", "content": "hi", "wait": False})
        began = time.monotonic()
        assert wire.call("agent/stop", {"agentId": "a"})["stopped"]
        assert time.monotonic() - began < 2
        assert wire.call("agent/wait", {"agentId": "a"})["reason"] == "stopped"
        assert silent.all_hung_up()


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5h://127.0.0.1:9", "nonsense::"])
def test_a_model_on_this_machine_is_reached_past_any_proxy(make_daemon: Make, proxy: str) -> None:
    stub = Stub(ANSWER)
    names = ("ALL_PROXY", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    daemon = make_daemon(config=config_for(stub, max_retries=0), env=dict.fromkeys(names, proxy)).start()
    with client(daemon) as wire:
        agent(wire, "a")
        outcome = prompt(wire, "a", "hi")
        assert (outcome["reason"], outcome["output"]) == ("done", "hello"), outcome
    stub.close()


def test_a_model_elsewhere_behind_a_dead_proxy_fails_in_one_clear_line(make_daemon: Make) -> None:
    config = (
        '[daemon]\ndefault_model = "m"\n[models.m]\nbackend = "openai-chat"\nmodel = "m"\n'
        'base_url = "http://model.invalid/v1"\nmax_retries = 0\n'
    )
    daemon = make_daemon(config=config, env={"http_proxy": "http://127.0.0.1:9"}).start()
    with client(daemon) as wire:
        agent(wire, "a")
        outcome = prompt(wire, "a", "hi")
        assert outcome["reason"] == "failed"
        assert "cannot be reached at http://model.invalid/v1" in outcome["error"]["message"]
        assert "\n" not in outcome["error"]["message"]
