"""What rows of agents and jobs say, what a demo that goes wrong says, and how a line is edited."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import FakeDaemon
from rich.console import Console

from sojourn.cli import agents, demo, jobs
from sojourn.cli._keys import Line
from sojourn_client import connect
from sojourn_client._process import _config

pytestmark = pytest.mark.anyio


def agent(**more: Any) -> dict[str, Any]:
    owed = {"approvals": 0, "pendingCalls": 0, "inbox": 0}
    about = {"agentId": "a", "state": "waiting", "messageCount": 3, "updatedAt": "2026-01-01T00:00:00Z"}
    return {**about, **owed, **more}


@pytest.mark.parametrize(
    ("more", "waits", "about"),
    [
        ({}, "-", ""),
        ({"waitingFor": "model"}, "model", ""),
        ({"waitingFor": "approval", "approvals": 1, "inbox": 2}, "1 approval, 2 unread items", ""),
        ({"pendingCalls": 1, "title": "The\nbuild"}, "1 pending call (c-1)", "The build"),
        ({"labels": {"sojourn.prompt": "/work"}}, "-", "/work"),
        ({"title": "The build", "damage": "Its config cannot be read."}, "-", "Its config cannot be read."),
    ],
)
def test_a_row_of_an_agent_says_what_it_waits_for_and_what_it_is_about(
    more: dict[str, Any], waits: str, about: str
) -> None:
    row = agents._row(agent(**more), {"a": " (c-1)"}, {})
    assert (row[2], row[5]) == (waits, about)
    assert agents._without(3, row) == (*row[:3], *row[4:])


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"state": "running"}, "running"),
        ({"state": "running", "stoppedBy": "me"}, "stopping"),
        ({"state": "ended", "outcome": "exited", "exitCode": 3}, "exit code 3"),
        ({"state": "ended", "outcome": "exited", "signal": 9}, "ended by signal 9"),
        ({"state": "ended", "outcome": "stopped", "stoppedBy": "me"}, "stopped by me"),
        ({"state": "ended", "outcome": "stopped"}, "stopped by a signal"),
        ({"state": "ended", "outcome": "timedOut"}, "time limit"),
        ({"state": "ended", "outcome": "notStarted"}, "not started"),
        ({"state": "ended", "outcome": "lost"}, "ended without a record"),
    ],
)
def test_how_a_job_stands_is_said_in_words(job: dict[str, Any], words: str) -> None:
    assert jobs._how(job) == words


async def test_a_demo_in_which_something_is_not_so_fails_and_says_what() -> None:
    out = io.StringIO()
    story = demo._Story(Console(file=out, width=200))
    story._check(True, "this holds")
    with pytest.raises(demo._Wrong, match="this is not so: that does not"):
        story._check(False, "that does not")
    assert out.getvalue().splitlines() == ["   ✓ this holds"]
    async with FakeDaemon() as fake:
        fake.handlers |= {
            "agent/pendingCalls": lambda *_: {"pendingCalls": []},
            "approval/list": lambda *_: {"approvals": [{}, {}]},
            "approval/decide": lambda *_: {},
        }
        async with connect(socket=fake.socket, state_dir=fake.root, start=False) as client:
            with pytest.raises(demo._Wrong, match="one pending call and one approval were due, not 0 and 2"):
                await story._owed(client)
            with pytest.raises(demo._Wrong, match="two clients decided the same approval"):
                await story._approve(client, client, "p")


def test_rubbing_out_at_the_start_of_a_line_changes_nothing() -> None:
    line = Line()
    assert list(line.feed(b"ab\x7f\x7f\x7fc")) == []
    assert (line.text, line.cursor) == ("c", 1)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("", '[daemon]\ndefault_model = "scripted"\n'),
        ("[daemon]\nidle_exit_s = 5\n", '[daemon]\ndefault_model = "scripted"\nidle_exit_s = 5\n'),
    ],
)
def test_a_script_is_the_default_model_of_a_daemon_of_tests(tmp_path: Path, config: str, expected: str) -> None:
    written = _config(tmp_path, config, "rules: []")
    assert written.startswith(expected)
    assert '[models.scripted]\nbackend = "scripted"\nscript = "script.yaml"\n' in written
    assert written.count("[daemon]") == 1
    assert (tmp_path / "script.yaml").read_text() == "rules: []"
    assert _config(tmp_path, config, None) == config
