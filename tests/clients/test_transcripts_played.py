"""A transcript as a daemon, played in this process: what fits it, what it does not tell of, what contradicts it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sojourn_client._framing import Splitter, encode
from sojourn_client.transcripts import Off, Transcript, __main__, load, names, play


def sent(transcript: Transcript, connection: int = 1) -> list[dict[str, Any]]:
    """What a client says that gives its requests ids of its own."""
    bodies = [one.body for one in transcript.frames if one.connection == connection and one.to == "daemon"]
    return [{**body, "id": body["id"] + 100} if "id" in body and "method" in body else body for body in bodies]


def heard(transcript: Transcript, connection: int = 1) -> list[dict[str, Any]]:
    """What such a client must read."""
    bodies = [one.body for one in transcript.frames if one.connection == connection and one.to == "client"]
    return [body if "method" in body else {**body, "id": body["id"] + 100} for body in bodies]


def plays(transcript: Transcript, messages: list[dict[str, Any]], connection: int = 1) -> list[dict[str, Any]]:
    """What a client reads that says these."""
    rest: Iterator[dict[str, Any]] = iter(messages)
    written: list[dict[str, Any]] = []
    play(transcript, lambda: next(rest, None), written.append, connection=connection)
    return written


def request(id: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


@pytest.mark.parametrize("name", names())
def test_a_client_that_does_the_same_reads_the_same_under_its_own_ids(name: str) -> None:
    transcript = load(name)
    for connection in sorted({one.connection for one in transcript.frames}):
        assert plays(transcript, sent(transcript, connection), connection) == heard(transcript, connection)


def test_what_is_not_told_of_is_answered_as_by_an_empty_daemon_wherever_it_comes() -> None:
    transcript = load("pending")
    first, *others = sent(transcript)
    messages = [
        first,
        request(50, "model/list"),
        *others,
        request(51, "agent/list"),
        {"jsonrpc": "2.0", "method": "initialized"},
        {"jsonrpc": "2.0", "id": 7, "result": None},
    ]
    answers = {one["id"]: one for one in plays(transcript, messages) if "method" not in one}
    assert answers[50]["result"] == {"models": []}
    assert answers[51]["result"] == {"agents": []}
    assert 7 not in answers


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("agent/create", {"agentId": "another"}), "agent/create (agentId 'another')"),
        (("agent/prompt", {"agentId": "guide"}), "agent/prompt (agentId 'guide')"),
        (("server/status", {}), "server/status"),
    ],
)
def test_what_contradicts_it_is_refused_and_the_right_message_is_still_taken(
    wrong: tuple[str, dict[str, Any]], said: str
) -> None:
    transcript = load("pending")
    messages = sent(transcript)
    at = next(place for place, one in enumerate(messages) if one.get("method") == "agent/create")
    messages.insert(at, request(60, wrong[0], **wrong[1]))
    (refused,) = [one for one in plays(transcript, messages) if one.get("id") == 60]
    assert refused["error"]["data"] == {"kind": "invalidParams"}
    assert refused["error"]["message"] == (
        f"The transcript goes on with agent/create (agentId 'guide'), not with {said}."
    )


def test_a_request_after_its_end_is_told_that_it_is_over() -> None:
    transcript = load("pending")
    answers = plays(transcript, [*sent(transcript), request(70, "agent/prompt", agentId="guide")])
    assert answers[-1]["error"]["message"] == (
        "The transcript goes on with its end, not with agent/prompt (agentId 'guide')."
    )


def test_a_client_that_leaves_too_early_is_told_what_never_came() -> None:
    transcript = load("approval")
    messages = sent(transcript)
    with pytest.raises(Off) as caught:
        plays(transcript, messages[:2])
    assert len(caught.value.left) == len(messages) - 2
    assert str(caught.value).startswith("never came: ")
    assert str(Off([])) == "everything came"


# ── as a command ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Pipes(SimpleNamespace):
    """The two ends of a process, as `os` sees them; few bytes at a time."""

    def __init__(self, given: bytes) -> None:
        super().__init__(given=given, written=b"")

    def read(self, fd: int, _most: int) -> bytes:
        assert fd == 0
        some, self.given = self.given[:1000], self.given[1000:]
        return bytes(some)

    def write(self, fd: int, data: bytes) -> int:
        assert fd == 1
        self.written += data[:100]
        return len(data[:100])


@pytest.mark.parametrize("framing", ["headers", "lines"])
def test_the_command_speaks_the_framing_of_its_client(framing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    transcript = load("killed")
    pipes = Pipes(b"".join(encode(body, framing) for body in sent(transcript, 2)))
    monkeypatch.setattr(__main__, "os", pipes)
    assert __main__.main(["play", "killed", "--connection", "2", "connect"]) == 0
    assert [json.loads(body) for body in Splitter(framing).feed(pipes.written)] == heard(transcript, 2)


def test_the_command_says_what_never_came(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(__main__, "os", Pipes(encode(sent(load("pending"))[0], "lines")))
    assert __main__.main(["play", "pending"]) == 1
    assert capsys.readouterr().err.startswith("The client left; never came: ")


@pytest.mark.parametrize("arguments", [[], ["play"], ["dance", "pending"]])
def test_a_command_that_there_is_not_shows_how_it_is_used(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(arguments) == 2
    assert "list | play NAME [--connection N]" in capsys.readouterr().err


def test_the_command_lists_titles_and_knows_no_other_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["list"]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == names()
    assert __main__.main(["play", "nothing"]) == 2
    assert "There is no transcript 'nothing'; there are approval, " in capsys.readouterr().err
