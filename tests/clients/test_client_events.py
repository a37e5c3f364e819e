"""The client's event stream: one unbroken list over lost connections, resyncs, slow readers and half-seen messages."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from fake_daemon import Connection, FakeDaemon, Refuse

from sojourn_client import ConnectionLost, EventsGone, RpcError, connect, events
from sojourn_client.events import AgentEvent, EventStream

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
async def _limit() -> Any:
    with anyio.fail_after(15):
        yield


class Log:
    """An agent's stored events on a fake daemon, replayed to whoever attaches."""

    def __init__(self, fake: FakeDaemon) -> None:
        self.fake = fake
        self.events: list[dict[str, Any]] = []
        self.streaming: list[dict[str, Any]] = []
        fake.handlers["agent/attach"] = self.attach
        fake.handlers["agent/detach"] = lambda *_: None

    @property
    def seq(self) -> int:
        return len(self.events)

    def add(self, event: dict[str, Any], *, tell: bool = True) -> None:
        self.events.append(event)
        if tell:
            self.fake.client.event(self.seq, event)

    def attach(self, connection: Connection, params: dict[str, Any]) -> dict[str, Any]:
        after = params.get("afterSeq", self.seq)
        for number in range(after, self.seq):
            event = self.events[number]
            self.fake.afterwards.append(lambda n=number, e=event: connection.event(n + 1, e, replayed=True))
        mode = "replay" if after < self.seq else "live"
        empty: list[Any] = []
        return {
            "seq": self.seq,
            "oldestSeq": 1,
            "mode": mode,
            "agent": {},
            "pendingCalls": empty,
            "approvals": empty,
            "streaming": list(self.streaming),
        }


@pytest.fixture
def log(fake: FakeDaemon) -> Log:
    return Log(fake)


def reach(fake: FakeDaemon, **options: Any) -> Any:
    return connect(socket=fake.socket, state_dir=fake.root, **{"start": False, "reconnect_s": 5, **options})


def turn(number: int) -> dict[str, Any]:
    return {"type": "turnStart", "turn": number}


def delta(offset: int, text: str, message: str = "m", part: int = 0) -> dict[str, Any]:
    return {"type": "messageDelta", "messageId": message, "part": part, "kind": "text", "offset": offset, "text": text}


async def take(stream: EventStream, count: int) -> list[AgentEvent]:
    return [await anext(stream) for _ in range(count)]


def turns(found: list[AgentEvent]) -> list[tuple[int | None, Any]]:
    return [(item.seq, item.event.get("turn")) for item in found]


async def test_a_stream_replays_and_goes_on_live(fake: FakeDaemon, log: Log) -> None:
    log.events = [turn(1), turn(2)]
    async with reach(fake) as client, client.events("a", after_seq=0) as stream:
        assert turns(await take(stream, 2)) == [(1, 1), (2, 2)]
        log.add(turn(3))
        found = await anext(stream)
        assert (found.seq, found.replayed, stream.seq) == (3, False, 3)
        assert found.typed().turn == 3
        assert AgentEvent.from_wire(found.wire()) == found


async def test_without_a_start_only_what_happens_from_now_on_is_given(fake: FakeDaemon, log: Log) -> None:
    log.events = [turn(1), turn(2)]
    async with reach(fake) as client, client.events("a") as stream:
        assert "afterSeq" not in fake.asked("agent/attach")[0]
        log.add(turn(3))
        assert turns(await take(stream, 1)) == [(3, 3)]


async def test_who_wants_no_deltas_gets_none_of_a_message_that_is_being_written(fake: FakeDaemon, log: Log) -> None:
    log.events = [turn(1)]
    log.streaming = [{"messageId": "m", "part": 0, "kind": "text", "text": "half a"}]
    async with reach(fake) as client, client.events("a", after_seq=0, deltas=False) as stream:
        log.add(turn(2))
        assert turns(await take(stream, 2)) == [(1, 1), (2, 2)]


async def test_a_lost_connection_leaves_no_gap_and_no_repeat(fake: FakeDaemon, log: Log) -> None:
    async with reach(fake) as client, client.events("a", after_seq=0) as stream:
        found = []
        for number in range(1, 41):
            log.add(turn(number), tell=number % 4 != 3)
            if number % 4 == 0:
                fake.client.drop()
                attached = len(fake.asked("agent/attach"))
                found += await take(stream, number - len(found))
                assert len(fake.asked("agent/attach")) >= attached
    assert turns(found) == [(number, number) for number in range(1, 41)]


async def test_events_seen_before_are_dropped_and_a_gap_is_read_again(fake: FakeDaemon, log: Log) -> None:
    async with reach(fake) as client, client.events("a", after_seq=0) as stream:
        log.add(turn(1))
        log.add(turn(2))
        fake.client.event(1, turn(1))
        log.add(turn(3), tell=False)
        log.add(turn(4))
        assert turns(await take(stream, 4)) == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert [params.get("afterSeq") for params in fake.asked("agent/attach")] == [0, 2]


async def test_a_resync_attaches_again_from_the_last_event_seen(fake: FakeDaemon, log: Log) -> None:
    async with reach(fake) as client, client.events("a", after_seq=0) as stream:
        log.add(turn(1))
        assert turns(await take(stream, 1)) == [(1, 1)]
        log.add(turn(2), tell=False)
        fake.client.send("agent/resync", agentId="a", seq=2)
        fake.client.event(3, turn(3))
        assert turns(await take(stream, 1)) == [(2, 2)]
    assert fake.asked("agent/attach")[1]["afterSeq"] == 1


async def test_a_slow_consumer_reads_on_from_the_store(
    fake: FakeDaemon, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "QUEUE_LIMIT", 5)
    async with reach(fake) as client, client.events("a", after_seq=0) as stream:
        for number in range(1, 9):
            log.add(turn(number))
        fake.handlers["agent/get"] = lambda *_: {}
        await client.call("agent/get", {"agentId": "a"})
        assert turns(await take(stream, 8)) == [(n, n) for n in range(1, 9)]
    assert len(fake.asked("agent/attach")) > 1


async def test_what_was_streamed_before_attaching_comes_first_and_whole(fake: FakeDaemon, log: Log) -> None:
    log.events = [{"type": "messageStart", "messageId": "m", "role": "assistant"}]
    log.streaming = [{"messageId": "m", "part": 0, "kind": "text", "text": "Hel"}]
    async with reach(fake) as client, client.events("a", after_seq=0) as stream:
        assert [item.type for item in await take(stream, 2)] == ["messageStart", "messageDelta"]
        fake.client.event(None, delta(3, "lo"))
        found = await anext(stream)
        assert (found.seq, found.event["offset"], found.event["text"]) == (None, 3, "lo")


async def test_deltas_join_over_a_lost_connection(fake: FakeDaemon, log: Log) -> None:
    text = ""
    async with reach(fake) as client, client.events("a", after_seq=0) as stream:
        log.add({"type": "messageStart", "messageId": "m", "role": "assistant"})
        fake.client.event(None, delta(0, "Hé"))
        text += (await take(stream, 2))[1].event["text"]
        log.streaming = [{"messageId": "m", "part": 0, "kind": "text", "text": "Héllo w"}]
        fake.client.drop()
        text += (await anext(stream)).event["text"]
        fake.client.event(None, delta(5, " wor"))
        fake.client.event(None, delta(2, "llo"))
        fake.client.event(None, delta(9, "ld"))
        text += "".join(item.event["text"] for item in await take(stream, 2))
    assert text == "Héllo world"


async def test_a_childs_streamed_text_arrives_nested(fake: FakeDaemon, log: Log) -> None:
    piece = {"messageId": "m", "part": 0, "kind": "text", "text": "x"}
    log.streaming = [{**piece, "path": ["c1", "c2"]}, {**piece, "path": [{"agentId": "a", "callId": "c1"}]}]
    async with reach(fake) as client, client.events("a") as stream:
        first, second = await take(stream, 2)
        assert (first.innermost()[0], second.innermost()[0]) == (("c1", "c2"), ("c1",))
        inner = {"type": "nested", "toolCallId": "c2", "event": delta(1, "y")}
        fake.client.event(None, {"type": "nested", "toolCallId": "c1", "event": inner})
        assert (await anext(stream)).innermost()[1]["text"] == "y"


async def test_missing_text_is_asked_for_once_and_then_taken_as_it_comes(fake: FakeDaemon, log: Log) -> None:
    async with reach(fake) as client, client.events("a", after_seq=0) as stream:
        fake.client.event(None, delta(5, "late"))

        def again(connection: Connection, params: dict[str, Any]) -> dict[str, Any]:
            fake.afterwards.append(lambda: connection.event(None, delta(9, "r")))
            return log.attach(connection, params)

        fake.handlers["agent/attach"] = again
        assert (await anext(stream)).event["text"] == "r"
    assert len(fake.asked("agent/attach")) == 2


async def test_a_reset_message_starts_again_at_its_beginning(fake: FakeDaemon, log: Log) -> None:
    async with reach(fake) as client, client.events("a", after_seq=0) as stream:
        fake.client.event(None, delta(0, "wrong"))
        log.add({"type": "messageReset", "messageId": "m", "reason": "retry"})
        fake.client.event(None, delta(0, "right"))
        assert [item.event.get("text") for item in await take(stream, 3)] == ["wrong", None, "right"]


async def test_the_end_of_a_message_or_pass_forgets_its_lengths(fake: FakeDaemon, log: Log) -> None:
    async with reach(fake) as client, client.events("a", after_seq=0) as stream:
        fake.client.event(None, delta(0, "one"))
        log.add({"type": "messageEnd", "message": {"messageId": "m", "role": "assistant", "content": []}})
        fake.client.event(None, delta(0, "two"))
        log.add({"type": "agentEnd", "reason": "stopped", "messages": [], "usage": {}})
        fake.client.event(None, delta(0, "three"))
        found = [item.event.get("text") for item in await take(stream, 5)]
    assert found == ["one", None, "two", None, "three"]


async def test_events_that_are_gone_are_said_with_where_to_go_on(fake: FakeDaemon, log: Log) -> None:
    fake.handlers["agent/attach"] = lambda *_: {"seq": 50, "oldestSeq": 20, "mode": "snapshot", "streaming": []}
    async with reach(fake) as client:
        with pytest.raises(EventsGone, match="before 20") as caught:
            await anext(client.events("a", after_seq=3))
    assert (caught.value.agent_id, caught.value.seq) == ("a", 50)


async def test_an_unknown_agent_is_refused_when_the_stream_is_opened(fake: FakeDaemon) -> None:
    def refuse(*_: Any) -> None:
        raise Refuse(-31001, "There is no agent 'a'.", kind="agentNotFound")

    fake.handlers["agent/attach"] = refuse
    async with reach(fake) as client:
        stream = client.events("a")
        with pytest.raises(RpcError):
            await stream.__aenter__()
        await stream.aclose()


async def test_one_stream_an_agent_at_a_time(fake: FakeDaemon, log: Log) -> None:
    async with reach(fake) as client:
        async with client.events("a"):
            with pytest.raises(RuntimeError, match="already"):
                client.events("a")
        async with client.events("a"):
            pass
    assert len(fake.asked("agent/detach")) == 2


async def test_closing_the_client_ends_its_streams(fake: FakeDaemon, log: Log) -> None:
    async with reach(fake) as client:
        stream = client.events("a")
        await stream.__aenter__()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_daemon_that_stays_away_ends_the_stream_with_an_error(fake: FakeDaemon, log: Log) -> None:
    async with reach(fake, reconnect_s=0.1) as client:
        stream = client.events("a")
        await stream.__aenter__()
        await fake.close()
        with pytest.raises(ConnectionLost):
            await anext(stream)
