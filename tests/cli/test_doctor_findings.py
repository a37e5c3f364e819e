"""What `sojourn doctor` says of things that are not as they should be, and what to do about each."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import FakeDaemon

from sojourn import __version__
from sojourn.cli import doctor
from sojourn.cli._app import Options
from sojourn.config import load
from sojourn.core.servers import McpServer
from sojourn.models.base import ModelSpec

pytestmark = pytest.mark.anyio


@pytest.fixture
async def fake() -> AsyncIterator[FakeDaemon]:
    async with FakeDaemon() as one:
        yield one


def spec(**more: Any) -> ModelSpec:
    return ModelSpec(name="m", backend="openai-chat", model="m-1", **more)


def test_a_state_directory_is_all_right_or_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> tuple[bool, str, str | None]:
        (one,) = doctor._state(place)
        return one.ok, one.message, one.advice

    place = tmp_path / "state"
    assert found() == (True, f"{place} is made at the first start", None)
    place.mkdir(mode=0o700)
    (place / "file").write_bytes(b"x" * 180_000)
    assert found() == (True, f"{place} (0.2 MB)", None)
    place.chmod(0o755)
    assert found() == (False, f"others may enter {place}", f"chmod 700 {place}")
    place.chmod(0o700)
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert found() == (False, f"{place} cannot be written to", f"chmod 700 {place}, or --state-dir.")
    monkeypatch.setattr(doctor.os, "geteuid", lambda: place.stat().st_uid + 1)
    assert found() == (False, f"{place} belongs to another user", "Name one of your own with --state-dir.")


@pytest.mark.parametrize(
    ("status", "ok", "said", "advice"),
    [
        ({}, True, f"Sojourn {__version__}, 2 agents, 1 active run", None),
        ({"version": "0.0.1"}, False, "Sojourn 0.0.1, 2 agents", "`sojourn shutdown`; the next command starts this"),
        ({"state": "degraded"}, False, "1 active run, degraded", "Its log says why: "),
    ],
)
async def test_a_daemon_that_answers_is_judged_by_what_it_says(
    fake: FakeDaemon, status: dict[str, Any], ok: bool, said: str, advice: str | None
) -> None:
    about = {"version": __version__, "state": "ready", "agents": 2, "activeRuns": 1, "uptimeS": 5, **status}
    fake.handlers["server/status"] = lambda _connection, _params: about
    options = Options(None, fake.root, fake.socket)
    (found,) = await doctor._daemon(options, None)
    assert (found.ok, found.check) == (ok, "daemon")
    assert said in found.message
    assert (found.advice or "").startswith(advice or "")
    assert bool(found.advice) == (not ok)


async def test_a_daemon_that_does_not_answer_as_it_should_is_told(fake: FakeDaemon) -> None:
    (found,) = await doctor._daemon(Options(None, fake.root, fake.socket), None)
    assert (found.ok, found.advice) == (False, "`sojourn shutdown`, then try again.")
    assert "it does not answer as it should" in found.message
    await fake.close()
    (found,) = await doctor._daemon(Options(None, fake.root, fake.socket), None)
    assert (found.ok, found.message.startswith("none runs")) == (True, True)
    await fake.listen()


def test_a_key_that_cannot_be_had_says_where_to_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    assert doctor._key_fault(spec()) == ("", "")
    assert doctor._key_fault(spec(api_key_env="NO_SUCH_KEY")) == (
        "$NO_SUCH_KEY is not set",
        "Set NO_SUCH_KEY where the daemon is started.",
    )
    assert doctor._key_fault(spec(api_key_file=str(tmp_path / "key")))[0] == f"{tmp_path}/key cannot be read"
    (tmp_path / "key").write_text("k")
    assert doctor._key_fault(spec(api_key_file=str(tmp_path / "key"))) == ("", "")
    assert doctor._key_fault(spec(api_key_command="no-such-command --key"))[0] == (
        "there is no command 'no-such-command'"
    )
    assert doctor._key_fault(spec(api_key_command="sh -c 'echo k'")) == ("", "")


@pytest.mark.parametrize(
    ("server", "works", "advice"),
    [
        (McpServer(command="x"), True, "Tell whoever made the server; its other tools can be used."),
        (McpServer(url="http://127.0.0.1:1/mcp"), False, "See whether http://127.0.0.1:1/mcp is the right address"),
        (McpServer(command="no-such-server"), False, "Install it, or correct the path."),
        (McpServer(command="sh", args=("-c", "exit 1")), False, "Try it by hand: sh -c exit 1"),
    ],
)
def test_what_to_do_about_a_server_depends_on_how_it_is_reached(server: Any, works: bool, advice: str) -> None:
    assert doctor._mcp_advice(server, works).startswith(advice)


async def test_a_server_that_is_switched_off_is_not_started_and_a_broken_one_is_told(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[mcp.servers.off]\ncommand = "no-such-server"\nenabled = false\n'
        '[mcp.servers.broken]\ncommand = "no-such-server"\n'
    )
    off, broken = [found async for found in doctor._mcp(load(config))]
    assert (off.ok, off.message) == (True, "off: switched off")
    assert (broken.ok, broken.advice) == (False, "Install it, or correct the path.")
    assert "no-such-server" in broken.message


def test_when_a_daemon_started_is_read_where_it_wrote_it_down(fake_place: Any, tmp_path: Path) -> None:
    status = {"uptimeS": 100.0}
    told = tmp_path / "daemon.json"
    told.write_text(json.dumps({"pid": os.getpid(), "version": "0", "socket": "s"}))
    os.utime(told, (1000, 1000))
    assert doctor._started(fake_place, os.getpid(), status) == 1000
    by_uptime = doctor._started(fake_place, os.getpid() + 1, status)
    assert by_uptime > 1000
    told.unlink()
    assert doctor._started(fake_place, os.getpid(), status) == pytest.approx(by_uptime, abs=5)


@pytest.fixture
def fake_place(tmp_path: Path) -> Any:
    return Options(None, tmp_path, tmp_path / "s").place
