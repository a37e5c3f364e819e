"""The conformance kit: recordings that are current, a daemon that follows them, and pytest fixtures for authors."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shared_inputs import ROOT

from sojourn_client.testing import DaemonProcess
from sojourn_client.transcripts import Transcript, load, names

STANDARD = {
    "approval", "child", "denied", "killed", "pending", "rejected", "replayed", "resolved", "retried", "stopped",
}  # fmt: skip


def recorder() -> Any:
    spec = importlib.util.spec_from_file_location("record_transcripts", ROOT / "scripts" / "record_transcripts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_recordings_are_what_this_daemon_says() -> None:
    module = recorder()
    with DaemonProcess(script=module.SCRIPT) as daemon:
        recorded = {sequence.__name__: module.record(sequence, daemon) for sequence in module.SEQUENCES}
    assert module.stale(recorded) == [], "run scripts/record_transcripts.py and look at what changed"
    assert set(names()) == set(recorded) == STANDARD


def test_a_changed_recording_is_seen() -> None:
    module = recorder()
    texts = {path.stem: path.read_text() for path in module.FOLDER.glob("*.jsonl")}
    assert module.stale(texts) == []
    assert module.stale({**texts, "child": texts["child"].replace("nested", "nasty")}) == ["child"]
    assert module.stale({name: text for name, text in texts.items() if name != "killed"}) == ["killed"]


@pytest.mark.parametrize("name", sorted(STANDARD))
def test_in_every_recording_numbers_follow_one_another_and_deltas_their_offsets(name: str) -> None:
    transcript = load(name)
    seq = 0
    texts: dict[tuple[Any, ...], str] = {}
    for params in transcript.events():
        if params.get("replayed") and params["seq"] <= seq:
            continue  # Another connection read it again.
        if "seq" in params:
            assert params["seq"] == seq + 1
            seq = params["seq"]
        path, event = [], params["event"]
        while event["type"] == "nested":
            path.append(event["toolCallId"])
            event = event["event"]
        if event["type"] == "messageReset":
            texts = {place: text for place, text in texts.items() if place[:-1] != (*path, event["messageId"])}
        if event["type"] == "messageDelta":
            assert "seq" not in params
            place = (*path, event["messageId"], event["part"])
            assert event["offset"] == len(texts.get(place, ""))
            texts[place] = texts.get(place, "") + event["text"]
    assert seq == transcript.shows["seq"]
    assert transcript.shows["messages"]


class Client:
    """Plays the client's side of a transcript against a process on stdio, with ids of its own."""

    def __init__(self, name: str, *arguments: str, headers: bool) -> None:
        self.headers = headers
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sojourn_client.transcripts", "play", name, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def send(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(data), data) if self.headers else data + b"\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line.lower().startswith(b"content-length:"):
            self.process.stdout.readline()
            line = self.process.stdout.read(int(line.partition(b":")[2]))
        message: dict[str, Any] = json.loads(line)
        return message

    def leave(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said.decode()


@pytest.fixture(params=[True, False], ids=["headers", "lines"])
def headers(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def shifted(body: dict[str, Any]) -> dict[str, Any]:
    """A request under an id of this client's own."""
    return {**body, "id": body["id"] + 100} if "id" in body and "method" in body else body


def follow(transcript: Transcript, client: Client, connection: int = 1) -> None:
    for frame in transcript.frames:
        if frame.connection != connection:
            continue
        if frame.to == "daemon":
            client.send(shifted(frame.body))
        else:
            expected = frame.body if "method" in frame.body else {**frame.body, "id": frame.body["id"] + 100}
            assert client.read() == expected


@pytest.mark.parametrize("name", ["approval", "resolved"])
def test_a_recording_is_a_daemon_for_a_client_that_does_the_same(name: str, headers: bool) -> None:
    client = Client(name, "connect", headers=headers)
    follow(load(name), client)
    assert client.leave() == (0, "")


def test_each_connection_of_a_recording_is_played_by_itself() -> None:
    client = Client("killed", "--connection", "2", headers=True)
    follow(load("killed"), client, 2)
    assert client.leave() == (0, "")


def test_what_a_recording_does_not_tell_of_is_answered_and_what_contradicts_it_is_refused() -> None:
    client = Client("pending", headers=False)
    frames = load("pending").frames
    hello = next(frame.body for frame in frames if frame.to == "daemon")
    client.send(hello)
    assert client.read()["result"]["serverInfo"]["name"] == "sojourn"
    client.send({"jsonrpc": "2.0", "id": 50, "method": "agent/list"})
    assert client.read() == {"jsonrpc": "2.0", "id": 50, "result": {"agents": []}}
    client.send({"jsonrpc": "2.0", "method": "initialized"})
    client.send({"jsonrpc": "2.0", "id": 51, "method": "agent/create", "params": {"agentId": "another"}})
    refused = client.read()["error"]
    assert refused["code"] == -32602
    assert "agent/create (agentId 'guide'), not with agent/create (agentId 'another')" in refused["message"]
    code, said = client.leave()
    assert code == 1
    assert "never came: agent/create (agentId 'guide'), agent/attach" in said


def test_an_unknown_transcript_or_format_is_said_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no transcript 'nothing'; there are approval, child"):
        load("nothing")
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"transcript": 2}\n')
    with pytest.raises(ValueError, match="format 2, this reads 1"):
        load(odd)
    code, said = Client("nothing", headers=True).leave()
    assert code == 2
    assert "no transcript 'nothing'" in said


def test_the_list_names_every_transcript_with_its_title() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "sojourn_client.transcripts", "list"], capture_output=True, text=True, check=True
    )
    rows = dict(line.split("\t") for line in listed.stdout.splitlines())
    assert set(rows) == STANDARD
    assert all(title.endswith(".") for title in rows.values())
    used_wrong = subprocess.run([sys.executable, "-m", "sojourn_client.transcripts"], capture_output=True, text=True)
    assert used_wrong.returncode == 2
    assert "play NAME" in used_wrong.stderr


def test_the_fixtures_come_with_the_package(
    sojourn_daemon: DaemonProcess, sojourn_transcripts: dict[str, Transcript]
) -> None:
    assert sojourn_daemon.run("pid").stdout.strip() == str(sojourn_daemon.pid)
    assert set(sojourn_transcripts) == STANDARD
