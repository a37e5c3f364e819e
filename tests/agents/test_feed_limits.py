"""A client that cannot keep up loses its live events and is told so, whatever kind of event was the one too many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from house import Client, ToldTool, call, house

from sojourn.core.errors import RunNotFound
from sojourn.core.messages import TextPart
from sojourn.models.base import ModelAnswer, ModelDelta, ModelReset

pytestmark = pytest.mark.anyio


class Narrow(Client):
    """A connection whose queue is full as soon as a message of this kind comes."""

    def __init__(self, stops_at: str, **options: Any) -> None:
        super().__init__("narrow", **options)
        self.stops_at = stops_at.encode()

    def notify(self, body: bytes) -> bool:
        if self.stops_at in body and b"agent/resync" not in body:
            self.full = True
        if b"agent/resync" in body:
            self.full = False
        return super().notify(body)


def works(_args: dict[str, Any], ctx: Any) -> str:
    ctx.progress(fraction=0.5)
    ctx.progress("half done")
    return "done"


@pytest.mark.parametrize(
    ("stops_at", "latency"),
    [
        pytest.param("messageDelta", None, id="a delta"),
        pytest.param("messageDelta", 10_000, id="deltas held back"),
        pytest.param("toolExecProgress", None, id="progress"),
        pytest.param("messageEnd", None, id="a numbered event"),
    ],
)
async def test_the_one_too_many_ends_the_live_events_and_the_rest_is_read_from_disk(
    stops_at: str, latency: int | None
) -> None:
    async with house([call("work")], "one two three", tools=[ToldTool("work", works)]) as h:
        await h.agent()
        narrow = Narrow(stops_at, delta_latency_ms=latency)
        await h.hub.attach(narrow, "a", after_seq=0, deltas=True)
        await h.hub.feed.settled(narrow, "a")
        await h.prompt()
        (resync,) = narrow.params("agent/resync")
        last = narrow.seqs()[-1]
        assert resync["agentId"] == "a"
        assert last <= resync["seq"] < (await h.state())["seq"]
        narrow.stops_at = b"nothing any more"
        await h.hub.attach(narrow, "a", after_seq=last, deltas=True)
        async with asyncio.timeout(5):
            await h.hub.feed.settled(narrow, "a")
        assert narrow.events() == h.client.events()


async def test_progress_without_words_and_words_without_a_number_are_told_as_they_are() -> None:
    async with house([call("work")], "done", tools=[ToldTool("work", works)]) as h:
        await h.agent()
        await h.prompt()
        told = [event for event in h.client.events(live=True) if event["type"] == "toolExecProgress"]
        assert [{key: event.get(key) for key in ("text", "fraction")} for event in told] == [
            {"text": None, "fraction": 0.5},
            {"text": "half done", "fraction": None},
        ]


async def test_a_client_that_detaches_in_the_middle_of_its_replay_gets_no_more_of_it() -> None:
    async with house("one", "two") as h:
        await h.agent()
        await h.prompt()
        slow = Client("slow", full=True)
        await h.hub.attach(slow, "a", after_seq=0, deltas=True)
        await asyncio.sleep(0)
        await h.hub.detach(slow, "a")
        slow.full = False
        await h.prompt()
        assert slow.sent == []


async def test_a_client_whose_queue_is_full_again_in_its_replay_is_told_where_to_go_on() -> None:
    async with house("one", "two") as h:
        await h.agent()
        await h.prompt()
        narrow = Narrow("messageEnd")
        await h.hub.attach(narrow, "a", after_seq=0, deltas=True)
        async with asyncio.timeout(5):
            while not narrow.params("agent/resync"):
                await asyncio.sleep(0)
        assert narrow.params("agent/resync") == [{"agentId": "a", "seq": (await h.state())["seq"]}]
        last = narrow.seqs()[-1]
        assert narrow.seqs() == list(range(1, last + 1))
        assert h.client.types()[last] == "messageEnd"


async def test_deltas_that_are_held_back_are_dropped_with_the_client() -> None:
    held = asyncio.Event()

    async def reply(_request: Any) -> Any:
        async def stream() -> Any:
            yield ModelDelta(0, "text", "said ")
            await held.wait()
            yield ModelReset("retry")
            yield ModelDelta(0, "text", "again")
            yield ModelAnswer((TextPart(text="again"),), "stop")

        return stream()

    async with house(reply) as h:
        await h.agent()
        joined = Client("joined", delta_latency_ms=10_000)
        await h.hub.attach(joined, "a", after_seq=0, deltas=True)
        await h.start()
        await h.client.until("messageDelta")
        await h.hub.detach(joined, "a")
        held.set()
        await h.hub.wait("a", None)
        assert not [event for event in joined.events(live=True) if event["type"] == "messageDelta"]
        assert (await h.said())[-1] == ("assistant", "again")


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        (lambda h: h.hub.wait("a", None), "not run yet"),
        (lambda h: h.hub.wait("a", "run-of-nobody"), "no run 'run-of-nobody'"),
        (lambda h: h.hub.run_get("run-of-nobody"), "'run-of-nobody'"),
    ],
    ids=["an agent that was never prompted", "a run of nobody", "a run of nobody by its id"],
)
async def test_a_run_that_is_not_there_is_named(asks: Callable[[Any], Any], words: str) -> None:
    async with house() as h:
        await h.agent()
        with pytest.raises(RunNotFound, match=words):
            await asks(h)


async def test_nothing_is_read_from_disk_for_a_client_that_does_not_read() -> None:
    """However often it attaches: what was read would wait in the daemon's memory."""
    async with house("one", "two") as h:
        await h.agent()
        await h.prompt()
        deaf = Client("deaf", full=True)
        pages = 0
        read = h.store.read

        async def counted(work: Any) -> Any:
            nonlocal pages
            found = await read(work)
            pages += isinstance(found, list)
            return found

        h.store.read = counted  # type: ignore[method-assign]
        for _ in range(20):
            answer = await h.hub.attach(deaf, "a", after_seq=0, deltas=True)
            await asyncio.sleep(0)
        assert (answer["seq"], pages) == ((await h.state())["seq"], 0)
        deaf.full = False
        async with asyncio.timeout(5):
            await h.hub.feed.settled(deaf, "a")
        assert deaf.events() == h.client.events()
        assert pages > 0
