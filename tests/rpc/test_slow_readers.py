"""Clients that do not read: their events are refused, their answers kept, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import anyio
import pytest
from wire_fakes import Daemon, Wire, daemon, notification, request, until

from sojourn.rpc import outbox as outboxes
from sojourn.rpc.host import Turns, resident_bytes
from sojourn.rpc.outbox import SOFT_BYTES, Outbox

pytestmark = pytest.mark.anyio

MB = 2**20


def stop_reading(wire: Wire) -> None:
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]


def read_on(wire: Wire) -> None:
    wire.writer.transport.resume_reading()  # type: ignore[attr-defined]


async def test_a_stalled_client_costs_a_bounded_queue_while_another_gets_everything(served: Daemon) -> None:
    """Twenty megabytes of events to both: one reads, the other does not."""
    stalled, reads = await served.connect(), await served.connect()
    slow, fast = served.hub.here
    stop_reading(stalled)
    body = b'{"jsonrpc":"2.0","method":"test/event","params":"' + b"x" * 20_000 + b'"}'
    before = resident_bytes()
    taken = {slow: 0, fast: 0}

    async def publish() -> None:
        for _ in range(1000):
            taken[slow] += slow.notify(body)
            await fast.room()
            taken[fast] += fast.notify(body)

    async with asyncio.timeout(20):
        publishing = asyncio.create_task(publish())
        for _ in range(1000):
            assert (await reads.receive())["method"] == "test/event"
        await publishing
    assert taken[fast] == 1000
    assert 8 * MB // 20_100 <= taken[slow] < 1000 // 2
    assert resident_bytes() - before < 24 * MB

    read_on(stalled)
    for _ in range(taken[slow]):
        assert (await stalled.receive())["method"] == "test/event"
    assert await stalled.barrier() == []
    assert slow.notify(body) is True  # there is room again, for `agent/resync` and what follows


async def test_answers_still_come_when_events_are_refused(tmp_path: Path) -> None:
    async with daemon(tmp_path, max_client_queue_bytes=200_000) as served:
        wire = await served.connect()
        stop_reading(wire)
        wire.send(request(1, "test/flood", {"count": 1000, "size": 10_000}), request(2, "test/big", {"size": 50_000}))
        await until(lambda: not next(iter(served.host.connections)).protocol.requests)
        read_on(wire)
        found = await wire.barrier()
        answers = {message["id"]: message["result"] for message in found if "id" in message}
        events = len(found) - 2
        assert answers[1] == {"accepted": events}
        assert len(answers[2]["text"]) == 50_000
        assert 20 <= events < 100


async def test_a_client_that_writes_without_reading_does_not_deadlock_with_events(tmp_path: Path) -> None:
    """Events pile up, and the daemon goes on reading: a single-threaded client may be in the middle of a write."""
    async with daemon(tmp_path, max_client_queue_bytes=100_000) as served:
        wire = await served.connect()
        stop_reading(wire)
        wire.send(request(1, "test/flood", {"count": 500, "size": 10_000}))
        for n in range(40):
            wire.send(notification("test/echo", {"value": f"{n}" + "x" * 100_000}))
        async with asyncio.timeout(10):
            await wire.writer.drain()
            await until(lambda: len(served.hub.seen) == 40)


async def test_reading_stops_while_unread_answers_pass_half_of_the_limit(tmp_path: Path) -> None:
    async with daemon(tmp_path, max_client_queue_bytes=MB) as served:
        wire = await served.connect()
        stop_reading(wire)
        wire.send(*[request(n, "test/big", {"size": 400_000}) for n in range(4)])
        await until(lambda: next(iter(served.host.connections)).outbox.full_of_answers)
        wire.send(request("late", "test/echo", {"value": "late"}))
        await wire.writer.drain()
        other = await served.connect()
        assert (await other.call("test/nothing"))["result"] is None
        assert served.hub.seen == []
        read_on(wire)
        answers = [await wire.receive() for _ in range(5)]
        assert sorted(len(answer["result"].get("text", "")) for answer in answers) == [0, *[400_000] * 4]
        assert served.hub.seen == ["late"]


async def test_a_client_that_leaves_answers_unread_for_too_long_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(outboxes, "STALL_S", 0.2)
    async with daemon(tmp_path, max_client_queue_bytes=MB) as served:
        wire = await served.connect()
        stop_reading(wire)
        wire.send(*[request(n, "test/big", {"size": 900_000}) for n in range(5)])
        await until(lambda: not served.host.connections)
        assert "unread" in caplog.text
        assert len(served.hub.gone) == 1


async def test_a_slow_reader_of_many_answers_gets_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "STALL_S", 1.0)
    async with daemon(tmp_path, max_client_queue_bytes=MB) as served:
        wire = await served.connect(limit=2**16)
        wire.send(*[request(n, "test/big", {"size": 900_000}) for n in range(6)])
        found = []
        for _ in range(6):
            await asyncio.sleep(0.25)
            found.append((await wire.receive())["id"])
        assert sorted(found) == list(range(6))


async def test_a_replay_is_paced_by_its_reader(served: Daemon) -> None:
    wire = await served.connect()
    stop_reading(wire)
    wire.send(request(1, "test/paced", {"count": 400, "size": 50_000}))
    (connection,) = served.host.connections
    await until(lambda: connection.outbox._unsent() >= SOFT_BYTES)
    assert connection.outbox._unsent() < SOFT_BYTES + 100_000
    read_on(wire)
    found = [await wire.receive() for _ in range(401)]
    assert found[-1]["result"] == {"accepted": True}


async def test_waiting_for_room_ends_with_the_connection(served: Daemon) -> None:
    wire = await served.connect()
    (session,) = served.hub.here
    stop_reading(wire)
    while session.notify(b'"' + b"x" * 100_000 + b'"'):
        pass
    waiting = asyncio.create_task(session.room())
    await asyncio.sleep(0)
    wire.writer.transport.abort()
    with pytest.raises(anyio.ClosedResourceError):
        await waiting
    with pytest.raises(anyio.ClosedResourceError):
        await session.room()


async def test_a_reader_that_stalls_at_the_end_is_cut_and_one_that_reads_gets_its_rest(served: Daemon) -> None:
    reads, stalls = await served.connect(), await served.connect()
    for wire in (reads, stalls):
        stop_reading(wire)
        wire.send(request(1, "test/big", {"size": 3 * MB}), request(2, "shutdown"), notification("exit"))
    await asyncio.sleep(0.1)
    read_on(reads)
    assert len(await reads.rest()) == 2
    await until(lambda: len(served.host.connections) == 0)
    read_on(stalls)
    assert [answer["id"] for answer in await stalls.rest()] == [2]


# ── the queue by itself ───────────────────────────────────────────────────────────────────────────────────────────────


class Sink:
    """A transport that keeps everything until it is told to have sent it."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.kept = 0

    def write(self, data: bytes, /) -> None:
        self.writes.append(data)

    def get_write_buffer_size(self) -> int:
        return self.kept

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high


def box(sink: Sink, hard: int = 1000, **calls: Any) -> Outbox:
    told = {"hold_reading": lambda held: None, "cut": lambda reason: None, **calls}
    return Outbox(sink, Turns(), hard, **told)


async def test_the_first_frame_of_a_turn_goes_at_once_and_the_others_as_one_write() -> None:
    sink = Sink()
    out = box(sink)
    out.event(b"1")
    assert sink.writes == [b"1"]
    out.answer(b"2")
    out.must(b"3")
    assert sink.writes == [b"1"]
    await asyncio.sleep(0)
    assert sink.writes == [b"1", b"23"]
    out.event(b"4")
    assert sink.writes == [b"1", b"23", b"4"]


async def test_frames_stay_in_order_through_a_pause() -> None:
    sink = Sink()
    out = box(sink)
    out.event(b"1")
    out.event(b"2")
    out.pause()
    out.answer(b"3")
    await asyncio.sleep(0)
    out.event(b"4")
    assert sink.writes == [b"1"]
    out.resume()
    assert sink.writes == [b"1", b"234"]


async def test_closing_sends_what_waits_and_takes_nothing_more() -> None:
    sink = Sink()
    out = box(sink)
    out.event(b"1")
    out.answer(b"2")
    out.close(send=True)
    out.close(send=True)
    out.answer(b"3")
    out.must(b"4")
    assert out.event(b"5") is False
    await asyncio.sleep(0)
    assert sink.writes == [b"1", b"2"]


async def test_events_have_a_limit_that_answers_do_not_use_up() -> None:
    sink = Sink()
    held: list[bool] = []
    out = box(sink, hold_reading=held.append)
    out.pause()
    assert out.event(b"e" * 600)
    assert not out.event(b"e" * 600)
    out.answer(b"a" * 450)
    assert held == []
    out.answer(b"a" * 450)
    assert held == [True]
    assert out.event(b"e" * 300)
    assert not out.event(b"e" * 300)
    assert not out.full_of_answers
    out.answer(b"a" * 200)
    assert out.full_of_answers
    out.resume()
    assert held == [True, False]
    assert not out.full_of_answers
    assert sum(map(len, sink.writes)) == 600 + 450 + 450 + 300 + 200
