"""How a daemon says that it cannot start, whom it tells what, and how it ends when something is in the way."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from sojourn import daemon
from sojourn.core.errors import StorageError
from sojourn.daemon import CannotStart, ServeOptions
from sojourn.tools.mcp import process


def test_a_state_directory_that_cannot_be_used_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert daemon._state_dir(ServeOptions(state_dir=tmp_path / "a" / "b")).is_dir()
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match=r"'.*/file/below' cannot be used: .*; --state-dir or \$SOJOURN_STATE_DIR"):
        daemon._state_dir(ServeOptions(state_dir=tmp_path / "file" / "below"))
    monkeypatch.setattr(daemon.os, "access", lambda *_: False)
    with pytest.raises(CannotStart, match="cannot be used: it cannot be written to; --state-dir"):
        daemon._state_dir(ServeOptions(state_dir=tmp_path))


def test_a_store_that_ends_a_start_is_told_with_its_place_once() -> None:
    place = Path("/state")
    said = daemon._about_the_store(StorageError("The disk is full."), place)
    assert said.startswith("The disk is full ('/state/")
    assert "if it is damaged, " in said
    named = "The file '/state/sojourn.db' is of a newer version."
    assert daemon._about_the_store(StorageError(named), place) == named


def test_of_a_group_of_one_failure_the_failure_is_told() -> None:
    one = StorageError("No.")
    assert daemon._only(ExceptionGroup("g", [ExceptionGroup("h", [one])])) is one
    two = ExceptionGroup("g", [one, ValueError()])
    assert daemon._only(two) is two


def test_only_clients_that_said_hello_hear_of_the_daemons_state() -> None:
    heard: list[Any] = []

    def connection(name: str, *, ready: bool) -> Any:
        session = SimpleNamespace(ready=ready, notify=lambda body: heard.append((name, orjson.loads(body)["params"])))
        return SimpleNamespace(session=session)

    host = SimpleNamespace(connections=[connection("early", ready=False), connection("there", ready=True)])
    daemon._tell_clients(host, "degraded", "the disk is full")  # type: ignore[arg-type]
    daemon._tell_clients(host, "ready", None)  # type: ignore[arg-type]
    assert heard == [
        ("there", {"state": "degraded", "reason": "the disk is full"}),
        ("there", {"state": "ready"}),
    ]


def test_a_daemon_that_is_cut_off_takes_the_servers_of_tools_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[Any] = []
    monkeypatch.setattr(process, "kill_groups", lambda: order.append("servers"))
    monkeypatch.setattr(daemon.os, "_exit", order.append)
    daemon._cut_off(143)
    assert order == ["servers", 143]
    monkeypatch.delitem(daemon.sys.modules, "sojourn.tools.mcp.process")
    daemon._cut_off(0)
    assert order == ["servers", 143, 0]


def test_where_the_daemon_listens_is_written_down_and_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon._tell(tmp_path, {"pid": os.getpid()})
    assert orjson.loads((tmp_path / "daemon.json").read_bytes()) == {"pid": os.getpid()}
    daemon._forget(tmp_path)
    daemon._forget(tmp_path)
    assert list(tmp_path.iterdir()) == []
    daemon._tell(tmp_path / "gone", {})
    assert "Where the daemon listens cannot be written down" in caplog.text
    (tmp_path / "daemon.json").mkdir()
    daemon._forget(tmp_path)
    assert "What was written down of the daemon stays" in caplog.text
