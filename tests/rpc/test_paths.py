"""Where things live: options before the environment before the defaults."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sojourn import _paths


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("XDG_", "SOJOURN_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_defaults_lie_in_the_home_directory(tmp_path: Path) -> None:
    assert _paths.config_file() == (tmp_path / ".config/sojourn/config.toml", False)
    assert _paths.state_dir() == tmp_path / ".local/state/sojourn"
    assert _paths.socket_file() == tmp_path / ".local/state/sojourn/sojourn.sock"
    assert _paths.socket_file(state="/s") == Path("/s/sojourn.sock")
    assert _paths.token_file("/s") == Path("/s/token")


def test_xdg_directories_count_when_they_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, "/xdg/" + name.lower())
    assert _paths.config_file()[0] == Path("/xdg/xdg_config_home/sojourn/config.toml")
    assert _paths.state_dir() == Path("/xdg/xdg_state_home/sojourn")
    assert _paths.socket_file(state="/s") == Path("/xdg/xdg_runtime_dir/sojourn/sojourn.sock")
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, "relative")
    assert _paths.state_dir() == tmp_path / ".local/state/sojourn"
    assert _paths.socket_file() == tmp_path / ".local/state/sojourn/sojourn.sock"


def test_own_variables_come_before_xdg_and_options_before_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    monkeypatch.setenv("SOJOURN_CONFIG", "~/c.toml")
    monkeypatch.setenv("SOJOURN_STATE_DIR", "state")
    monkeypatch.setenv("SOJOURN_SOCKET", "/k/s.sock")
    assert _paths.config_file() == (tmp_path / "c.toml", True)
    assert _paths.state_dir() == tmp_path / "state"
    assert _paths.socket_file() == Path("/k/s.sock")
    assert _paths.config_file("o.toml") == (tmp_path / "o.toml", True)
    assert _paths.state_dir("/o") == Path("/o")
    assert _paths.socket_file("o.sock", state="/o") == tmp_path / "o.sock"


def test_the_limit_of_a_socket_path_counts_bytes_of_the_absolute_path(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = "/" + "x" * (_paths.MAX_SOCKET_PATH - 1)
    assert _paths.socket_path(fits) == Path(fits)
    short = _paths.socket_path(fits + "x")
    assert short.parent == Path(f"/tmp/sojourn-{os.getuid()}")
    assert short != _paths.socket_path(fits + "y")
    assert _paths.socket_path("/" + "ü" * 60).parent == short.parent
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert _paths.socket_path(fits + "x") == short


def test_owned_means_a_real_directory_of_ours_that_nobody_else_may_enter(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(private)
    (tmp_path / "file").touch(mode=0o600)
    assert _paths.owned(private)
    assert not _paths.owned(tmp_path / "link")
    assert not _paths.owned(tmp_path / "file")
    assert not _paths.owned(tmp_path / "nothing")
    private.chmod(0o750)
    assert not _paths.owned(private)


def test_finding_the_socket_loads_nothing_heavy() -> None:
    program = (
        "import sys, sojourn._paths as p; p.socket_path(p.socket_file());"
        "print([m for m in ('pydantic', 'pygls', 'lsprotocol', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.strip() == "[]"
