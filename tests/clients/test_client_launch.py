"""Reaching a daemon and starting one: who decides, and what is said when it does not come up."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sojourn import __version__, _bridge
from sojourn._lock import CONNECT_HINT
from sojourn_client import DaemonNotRunning, DaemonStartFailed, _launch
from sojourn_client._launch import Place
from sojourn_client.testing import DaemonProcess


@pytest.fixture
def place(make_daemon: Any) -> Place:
    daemon: DaemonProcess = make_daemon()
    return Place(config=daemon.config, state_dir=daemon.state_dir, socket=daemon.socket)


@pytest.fixture
def listener(place: Place) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        yield listening


def test_a_place_is_what_the_environment_and_the_options_come_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SOJOURN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("SOJOURN_SOCKET", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    place = Place()
    assert (str(place.state_dir), str(place.socket)) == (f"{tmp_path}/state", f"{tmp_path}/state/sojourn.sock")
    assert "--config" not in place.serve_command()
    monkeypatch.chdir(tmp_path)
    assert Place(config="c.toml").serve_command()[-2:] == ["--config", f"{tmp_path}/c.toml"]


def test_nobody_listening_is_said_with_the_path(place: Place) -> None:
    with pytest.raises(DaemonNotRunning, match=place.path):
        _launch.dial(place)


def test_other_failures_are_not_taken_for_no_daemon(place: Place) -> None:
    place.path = "x" * 500
    with pytest.raises(OSError, match="too long"):
        _launch.dial(place)


def starts(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> list[float]:
    """Has `start` answer these, one after the other; callables are called first."""
    left, asked = list(answers), []

    def start(_place: Place, *, timeout_s: float) -> str | None:
        asked.append(timeout_s)
        answer = left.pop(0)
        return answer() if callable(answer) else answer

    monkeypatch.setattr(_launch, "start", start)
    return asked


def test_a_starter_that_came_second_uses_the_first_ones_daemon(
    place: Place, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another() -> str:
        listener.bind(place.path)
        listener.listen()
        return f"Another daemon uses it; {CONNECT_HINT}."

    starts(monkeypatch, f"Another daemon is about to end; {CONNECT_HINT}.", another)
    _launch.reach(place).close()


def test_a_daemon_that_refuses_to_start_ends_the_attempt_with_its_words(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = starts(monkeypatch, "The config is wrong.")
    with pytest.raises(DaemonStartFailed, match=r"The config is wrong\."):
        _launch.reach(place)
    assert len(asked) == 1


def test_attempts_end_with_the_time_for_them(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    starts(monkeypatch, *[f"Another one; {CONNECT_HINT}."] * 50)
    with pytest.raises(DaemonStartFailed, match="Another one"):
        _launch.reach(place, timeout_s=0.1)


def test_a_daemon_that_answers_on_another_socket_is_named_at_once(
    place: Place, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{place.path}.other"
    Path(place.state_dir).mkdir()
    Path(place.state_dir, "daemon.json").write_text(json.dumps({"version": __version__, "pid": 4711, "socket": other}))
    listener.bind(other)
    listener.listen()
    asked = starts(monkeypatch, f"Another daemon uses it; {CONNECT_HINT}.")
    with pytest.raises(DaemonStartFailed, match=rf"pid 4711\) .* listens on '{other}', .* Use --socket {other}, or"):
        _launch.reach(place)
    assert len(asked) == 1


def test_a_daemon_that_has_left_its_other_socket_is_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(place.state_dir).mkdir()
    Path(place.state_dir, "daemon.json").write_text(json.dumps({"pid": 4711, "socket": f"{place.path}.other"}))
    starts(monkeypatch, f"Another daemon is about to end; {CONNECT_HINT}.", "The config is wrong.")
    with pytest.raises(DaemonStartFailed, match=r"The config is wrong\."):
        _launch.reach(place)


def test_a_start_that_takes_too_long_names_the_log(place: Place) -> None:
    said = _launch.start(place, timeout_s=0.01)
    assert said is not None
    assert "daemon.log" in said


def test_a_start_that_says_nothing_is_told_by_its_exit_code(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "serve_command", lambda: ["false"])
    assert _launch.start(place, timeout_s=10) == "The daemon ended with exit code 1 and said nothing."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(None, False, id="no file"),
        pytest.param("nonsense", False, id="no JSON"),
        pytest.param("[]", False, id="no object"),
        pytest.param("{}", False, id="no version"),
        pytest.param(json.dumps({"version": __version__}), False, id="the same version"),
        pytest.param(json.dumps({"version": "0.0.9"}), True, id="another version"),
    ],
)
def test_a_daemon_of_another_version_is_told_by_what_it_wrote(place: Place, text: str | None, said: bool) -> None:
    Path(place.state_dir).mkdir()
    if text is not None:
        Path(place.state_dir, "daemon.json").write_text(text)
    assert ("0.0.9" in (_launch.mismatch(place) or "")) is said


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        pytest.param([], {}, id="none"),
        pytest.param(["--socket", "/s"], {"socket": "/s"}, id="two words"),
        pytest.param(["--state-dir=/d", "--config=/c"], {"state_dir": "/d", "config": "/c"}, id="one word"),
        pytest.param(["-h"], None, id="help"),
    ],
)
def test_the_options_of_connect(arguments: list[str], options: dict[str, str] | None) -> None:
    assert _bridge._parse(arguments) == options


@pytest.mark.parametrize("arguments", [["--nope"], ["x"], ["--socket"]])
def test_wrong_options_of_connect_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _bridge.main(arguments) == 2
    assert "Usage" in capsys.readouterr().err
