"""Parts of the commands by themselves: typed lines, decisions at a desk, names by their beginning, small words."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from fake_daemon import FakeDaemon, Refuse

from sojourn.cli import _input, jobs
from sojourn.cli._app import Failure
from sojourn.cli._desk import Desk
from sojourn.cli._input import typed_lines
from sojourn.cli._named import agent_meant, agent_named, agents, exists, one_of
from sojourn.cli._show import ago
from sojourn.cli._view import View
from sojourn_client import RpcError, connect
from sojourn_client.events import AgentEvent

pytestmark = pytest.mark.anyio


@pytest.fixture
async def fake() -> AsyncIterator[FakeDaemon]:
    async with FakeDaemon() as one:
        yield one


def reach(fake: FakeDaemon) -> Any:
    return connect(socket=fake.socket, state_dir=fake.root, start=False, reconnect_s=0)


# ── typed lines ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def typed(monkeypatch: pytest.MonkeyPatch, *pieces: bytes, asked: Callable[[], str | None]) -> list[Any]:
    """What is read of a pipe that is given these, piece by piece."""
    left = list(pieces)
    pipe = SimpleNamespace(read=lambda _fd, _size: left.pop(0) if left else b"", isatty=lambda _fd: False)
    monkeypatch.setattr(_input, "os", pipe)
    async with asyncio.timeout(10):
        return [line async for line in typed_lines(asked)]


async def test_lines_of_a_pipe_come_whole_also_the_last_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = await typed(monkeypatch, b"on", b"e\ntwo\r", b"thr\xc3", b"\xa9e", asked=lambda: "q")
    assert [line for line, _ in lines] == ["one", "two", "thrée"]


async def test_a_line_belongs_to_the_question_that_was_there_at_its_first_key(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = iter(["q1", "q2", "q2"])
    lines = await typed(monkeypatch, b"y", b"es\nn", b"o\n", asked=lambda: next(questions, None))
    assert lines == [("yes", "q1"), ("no", "q2")]


# ── the desk ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def approval(id: str) -> dict[str, Any]:
    return {"approvalId": id, "callId": "c", "toolName": "rm", "args": {"path": id}, "agentId": "a"}


def event(kind: str, id: str, **more: Any) -> AgentEvent:
    about = {"type": kind, "approval": approval(id)}
    return AgentEvent.from_wire({"agentId": "a", "seq": 1, "at": "2026-01-01T00:00:00Z", "event": about, **more})


class Place:
    """A desk at a daemon, and what is on its screen."""

    def __init__(self, client: Any, **more: Any) -> None:
        self.out = io.StringIO()
        self.desk = Desk(client, View(all_on_stdout=True, file=self.out), **more)

    def shows(self) -> str:
        text = self.out.getvalue()
        self.out.seek(0)
        self.out.truncate()
        return text


async def test_questions_are_asked_one_by_one_and_a_late_answer_decides_nothing(fake: FakeDaemon) -> None:
    fake.handlers["approval/decide"] = lambda _connection, _params: {}
    async with reach(fake) as client:
        place = Place(client)
        for one in ("p1", "p2", "p1"):
            place.desk.add(approval(one))
        assert place.shows().count("Allow rm") == 1
        assert await place.desk.take("hello", None) is False
        assert await place.desk.take("y", "p0")
        assert "'y' came too late for its question; it decides nothing." in place.shows()
        assert await place.desk.take("y", "p1")
        assert place.desk.asked() == "p2"
        place.desk.see(event("approvalResolved", "p2"))
        assert (place.desk.asked(), [params["approvalId"] for params in fake.asked("approval/decide")]) == (
            None,
            ["p1"],
        )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("?", "y approves, n denies"),
        ("e [1]", "After `e` the new arguments are needed, as a JSON object on the same line."),
        ("maybe", "A decision is needed first: y approves"),
    ],
)
async def test_a_line_that_is_no_decision_says_what_is_one(fake: FakeDaemon, line: str, said: str) -> None:
    async with reach(fake) as client:
        place = Place(client)
        place.desk.add(approval("p"))
        place.shows()
        assert await place.desk.take(line, "p")
        assert said in " ".join(place.shows().split())
        assert (place.desk.asked(), fake.asked("approval/decide")) == ("p", [])


@pytest.mark.parametrize(("kind", "stays"), [("alreadyDecided", None), ("approvalNotFound", None), ("storage", "p")])
async def test_a_decision_that_is_refused_is_asked_again_unless_it_is_over(
    fake: FakeDaemon, kind: str, stays: str | None
) -> None:
    def refuse(_connection: Any, _params: Any) -> Any:
        raise Refuse(-31000, "It cannot be.", kind=kind)

    fake.handlers["approval/decide"] = refuse
    async with reach(fake) as client:
        place = Place(client)
        place.desk.add(approval("p"))
        assert await place.desk.take("n too dangerous", "p")
        assert "It cannot be." in place.shows()
        assert place.desk.asked() == stays
        (sent,) = fake.asked("approval/decide")
        assert (sent["decision"], sent["reason"]) == ("deny", "too dangerous")


async def test_a_question_that_waited_for_room_is_not_put_when_it_is_over_by_then(fake: FakeDaemon) -> None:
    waiting: list[Callable[[], None]] = []
    async with reach(fake) as client:
        place = Place(client, when_free=waiting.append, open_before=[approval("old")])
        place.desk.see(event("approvalRequested", "p"))
        place.desk.see(event("approvalResolved", "p"))
        for put in waiting:
            put()
        assert (place.shows(), place.desk.asked()) == ("", None)
        assert not place.desk.asks(event("approvalResolved", "p"))
        assert place.desk.asks(event("approvalRequested", "p"))
        assert place.desk.asks(event("approvalRequested", "old", replayed=True))
        assert not place.desk.asks(event("approvalRequested", "p", replayed=True))


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def listing(pages: dict[str | None, list[list[str]]]) -> Callable[[Any, dict[str, Any]], Any]:
    """`agent/list` of these pages of ids, by the parent."""

    def answer(_connection: Any, params: dict[str, Any]) -> Any:
        here = pages.get(params.get("parentAgentId"), [[]])
        at = int(params.get("cursor", 0))
        more = {"nextCursor": str(at + 1)} if at + 1 < len(here) else {}
        return {"agents": [{"agentId": one} for one in here[at]], **more}

    return answer


def nobody(_connection: Any, params: dict[str, Any]) -> Any:
    raise Refuse(-31001, "There is no such agent.", kind="agentNotFound", agentId=params["agentId"])


async def test_an_agent_is_found_by_the_beginning_of_its_id_on_any_page_and_below(fake: FakeDaemon) -> None:
    pages: dict[str | None, list[list[str]]] = {
        None: [["agent-1234a", "agent-99"], ["agent-5678b"]],
        "agent-5678b": [["agent-abcd1"]],
    }
    fake.handlers |= {"agent/list": listing(pages), "agent/get": nobody}
    async with reach(fake) as client:
        assert await agent_named(client, "agent-567") == "agent-5678b"
        assert await agent_named(client, "agent-abcd") == "agent-abcd1"
        assert await agent_named(client, "nothing") == "nothing"
        assert await agent_meant(client, "agent-5678") == "agent-5678b"
        assert await agent_meant(client, "agent") == "agent", "the beginning of a made id is meant, not a word"
        with pytest.raises(Failure, match="'agent-' is the beginning of 3 agents: agent-1234a, agent-99, agent-5678b"):
            await agent_named(client, "agent-")
        assert [one["agentId"] async for one in agents(client)] == ["agent-1234a", "agent-99", "agent-5678b"]


async def test_what_goes_wrong_while_looking_is_no_missing_agent(fake: FakeDaemon) -> None:
    def broken(_connection: Any, _params: Any) -> Any:
        raise Refuse(-31011, "The disk is full.", kind="storage")

    fake.handlers |= {"agent/get": broken}
    async with reach(fake) as client:
        with pytest.raises(RpcError, match="The disk is full"):
            await exists(client, "a")


def test_of_many_that_are_meant_a_few_are_shown() -> None:
    ids = [f"job-{number}" for number in range(9)]
    assert one_of("job-3", ids, "jobs") == "job-3"
    assert one_of("x", ids, "jobs") == "x"
    with pytest.raises(Failure, match=r"9 jobs: job-0, job-1, job-2, job-3, job-4 and 4 more\. Type more"):
        one_of("job", ids, "jobs")


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("past", "words"),
    [
        (timedelta(seconds=5), "just now"),
        (timedelta(seconds=-5), "just now"),
        (timedelta(minutes=2, seconds=5), "2 min ago"),
        (timedelta(hours=3, seconds=5), "3 h ago"),
        (timedelta(days=1, seconds=5), "1 day ago"),
        (timedelta(days=2, seconds=5), "2 days ago"),
    ],
)
def test_how_long_ago_something_was_is_said_in_its_largest_unit(past: timedelta, words: str) -> None:
    assert ago((datetime.now(UTC) - past).isoformat()) == words


def test_output_that_was_not_kept_is_told_where_it_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    piece = {"offset": 100, "text": "the rest\n", "nextOffset": 109, "job": {}}
    jobs._show(piece, 40, json=False)
    jobs._show(piece, 100, json=False)
    jobs._show({**piece, "text": ""}, 40, json=False)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("the rest\nthe rest\n", "[60 bytes were not kept]\n")
    jobs._show(piece, 40, json=True)
    assert json.loads(capsys.readouterr().out) == {"offset": 100, "text": "the rest\n", "nextOffset": 109}


def test_forgetting_what_was_typed_leaves_a_pipe_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"y\n")
    monkeypatch.setattr(_input.termios, "tcflush", lambda _fd, _queue: _input.termios.tcgetattr(reading))
    _input.discard_typed()
    assert os.read(reading, 10) == b"y\n"
    os.close(reading)
    os.close(writing)
