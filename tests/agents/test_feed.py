"""Attach, replay, live: nothing twice, nothing missing, whatever the moment and however slow the client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from house import Client, ToldTool, call, house

from sojourn.core.errors import AgentNotFound, SeqAhead
from sojourn.core.messages import TextPart
from sojourn.models.base import ModelAnswer, ModelDelta, ModelNotice, ModelRequest, ModelReset

pytestmark = pytest.mark.anyio


async def attached(h: Any, after: int | None, agent_id: str = "a", **options: Any) -> tuple[Client, dict[str, Any]]:
    client = Client("late", **options)
    return client, await h.hub.attach(client, agent_id, after_seq=after, deltas=True)


async def settled(h: Any, client: Client, agent_id: str = "a") -> None:
    async with asyncio.timeout(5):
        await h.hub.feed.settled(client, agent_id)


async def test_attaching_from_anywhere_replays_exactly_the_rest() -> None:
    async with house([call("quick")], "one", "two", tools=[ToldTool("quick")]) as h:
        await h.agent()
        await h.prompt()
        head = (await h.state())["seq"]
        for after in range(head + 1):
            client, answer = await attached(h, after)
            await settled(h, client)
            assert answer["seq"] == head
            assert client.seqs() == list(range(after + 1, head + 1))
            assert all(p["replayed"] for p in client.params())
            assert client.events() == h.client.events()[after:]
            await h.hub.detach(client, "a")
        with pytest.raises(SeqAhead) as caught:
            await attached(h, head + 1)
        assert caught.value.data["seq"] == head
        with pytest.raises(AgentNotFound):
            await attached(h, 0, "nobody")


async def test_without_after_seq_only_live_events_come() -> None:
    async with house("one", "two") as h:
        await h.agent()
        await h.prompt()
        client, answer = await attached(h, None)
        assert answer["mode"] == "live"
        await settled(h, client)
        assert client.sent == []
        await h.prompt()
        assert client.seqs() == list(range(answer["seq"] + 1, (await h.state())["seq"] + 1))
        assert not any(p.get("replayed") for p in client.params())


async def test_clients_that_attach_at_every_moment_of_a_run_have_no_hole_and_no_repeat() -> None:
    async with house() as h:
        h.model.replies = [[call("quick")], "a few words more", [call("quick")], "and some words again"] * 5
        h.hub.rt.toolset.toolbox.add(ToldTool("quick"))
        await h.agent()
        late: list[Client] = []

        async def join() -> None:
            while True:
                client, _ = await attached(h, 0 if len(late) % 2 else max(0, (await h.state())["seq"] - 3))
                late.append(client)
                await asyncio.sleep(0)

        joining = asyncio.create_task(join())
        for _ in range(10):
            await h.prompt()
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        head = (await h.state())["seq"]
        whole = h.client.events()
        assert h.client.seqs() == list(range(1, head + 1))
        assert len(late) > 20
        for client in late:
            await settled(h, client)
            first = client.seqs()[0]
            assert client.seqs() == list(range(first, head + 1))
            assert client.events() == whole[first - 1 :]


async def test_a_client_that_attaches_in_the_middle_of_a_message_gets_the_text_so_far_and_goes_on() -> None:
    go, more = asyncio.Event(), asyncio.Event()

    async def speak(_request: ModelRequest) -> Any:
        yield ModelDelta(0, "reasoning", "hmm")
        yield ModelDelta(1, "text", "Grüße 🐙 ")
        go.set()
        await more.wait()
        yield ModelDelta(1, "text", "und Tschüß")
        yield ModelAnswer((TextPart(text="Grüße 🐙 und Tschüß"),), "stop")

    async with house(speak) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await go.wait()
        for after in (None, 0):
            client, answer = await attached(h, after)
            texts = {(s["part"], s["kind"]): s["text"] for s in answer["streaming"]}
            assert texts == {(0, "reasoning"): "hmm", (1, "text"): "Grüße 🐙 "}
            await settled(h, client)
            client.sent.clear()
        client, answer = await attached(h, 0)
        await settled(h, client)
        more.set()
        await running
        deltas = [e for e in client.events(live=True) if e["type"] == "messageDelta"]
        assert [(d["part"], d["offset"], d["text"]) for d in deltas] == [(1, 8, "und Tschüß")]


async def test_what_is_streamed_while_a_replay_goes_on_comes_at_its_end_in_one_piece() -> None:
    go, more = asyncio.Event(), asyncio.Event()

    async def speak(_request: ModelRequest) -> Any:
        yield ModelDelta(0, "text", "abc")
        go.set()
        await more.wait()
        yield ModelDelta(0, "text", "def")
        yield ModelDelta(0, "text", "ghi")
        await asyncio.Event().wait()

    async with house(speak) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await go.wait()
        client, answer = await attached(h, 0, full=True)
        assert [s["text"] for s in answer["streaming"]] == ["abc"]
        more.set()
        await h.client.until("messageDelta", count=3)
        client.full = False
        await settled(h, client)
        deltas = [(d["offset"], d["text"]) for d in client.events(live=True) if d["type"] == "messageDelta"]
        assert deltas == [(3, "defghi")]
        running.cancel()


async def test_a_retry_resets_the_message_and_starts_again_at_offset_zero() -> None:
    async def speak(_request: ModelRequest) -> Any:
        yield ModelDelta(0, "text", "wro")
        yield ModelNotice("modelRetry", "Trying again.", {"attempt": 1})
        yield ModelReset("retry")
        yield ModelDelta(0, "text", "right")
        yield ModelAnswer((TextPart(text="right"),), "stop")

    async with house(speak) as h:
        await h.agent()
        assert (await h.prompt()).output == "right"
        story = [
            (e["type"], e.get("offset"), e.get("text") or e.get("reason") or e.get("code"))
            for e in h.client.events(live=True)
            if e["type"] in ("messageDelta", "messageReset", "warning")
        ]
        assert story == [
            ("messageDelta", 0, "wro"),
            ("warning", None, "modelRetry"),
            ("messageReset", None, "retry"),
            ("messageDelta", 0, "right"),
        ]
        ids = {e["messageId"] for e in h.client.events(live=True) if e["type"] in ("messageDelta", "messageReset")}
        assert len(ids) == 1


async def test_a_client_that_is_too_slow_is_told_and_reads_on_from_what_it_saw() -> None:
    async with house("one", "two") as h:
        await h.agent()
        slow, _ = await attached(h, 0)
        await settled(h, slow)
        await h.prompt()
        seen = slow.seqs()[-1]
        slow.full = True
        await h.prompt()
        assert slow.seqs()[-1] == seen
        slow.full = False
        async with asyncio.timeout(5):
            while not slow.params("agent/resync"):
                await asyncio.sleep(0)
        assert slow.params("agent/resync")[0]["agentId"] == "a"
        await h.hub.attach(slow, "a", after_seq=seen, deltas=True)
        await settled(h, slow)
        assert slow.seqs() == list(range(1, (await h.state())["seq"] + 1))


async def test_deltas_can_be_switched_off_and_joined() -> None:
    async with house("a b c d e f g h") as h:
        await h.agent()
        without = Client("without")
        await h.hub.attach(without, "a", after_seq=0, deltas=False)
        joined, _ = await attached(h, 0, delta_latency_ms=50)
        await h.prompt()
        assert without.events() == without.events(live=True) == h.client.events()
        deltas = [e for e in joined.events(live=True) if e["type"] == "messageDelta"]
        assert len(deltas) < 8
        assert "".join(d["text"] for d in deltas).strip() == "a b c d e f g h"
        kinds = [e["type"] for e in joined.events(live=True)]
        assert kinds.index("messageDelta") < kinds.index("generationStats")


async def test_watchers_hear_of_every_agent_that_changes_and_of_deletions() -> None:
    from sojourn.core.agent import Caller

    async with house("one") as h:
        await h.hub.watch(h.client)
        await h.agent(attach=False)
        await h.prompt()
        async with asyncio.timeout(5):
            while not any(p.get("agent", {}).get("messageCount") == 2 for p in h.client.params("agent/changed")):
                await asyncio.sleep(0)
        await h.hub.delete_agent(Caller(), "a", force=False)
        async with asyncio.timeout(5):
            while {"agentId": "a", "deleted": True} not in h.client.params("agent/changed"):
                await asyncio.sleep(0)
        await h.hub.unwatch(h.client)
        before = len(h.client.sent)
        await h.agent("b", attach=False)
        await asyncio.sleep(0.01)
        assert len(h.client.sent) == before


async def test_events_are_read_page_by_page() -> None:
    async with house("one") as h:
        await h.agent()
        await h.prompt()
        seen: list[int] = []
        after = 0
        while True:
            page = await h.hub.events("a", after_seq=after, limit=3)
            if not page["events"]:
                assert page["nextSeq"] == after
                break
            seen += [p["seq"] for p in page["events"]]
            after = page["nextSeq"]
        assert seen == h.client.seqs()


async def test_a_client_that_has_left_gets_nothing_more() -> None:
    async with house("one", "two") as h:
        await h.agent()
        leaver, _ = await attached(h, 0)
        await settled(h, leaver)
        await h.prompt()
        count = len(leaver.sent)
        h.hub.client_gone(leaver)
        await h.prompt()
        assert len(leaver.sent) == count


@pytest.mark.parametrize("late", [0, 1, 2], ids=["the first read", "the second read", "no read"])
async def test_what_a_client_asked_last_holds_though_an_earlier_answer_is_late(late: int) -> None:
    """Attach, detach and attach again in one breath, as a window does that is closed and opened."""
    async with house("one", "two") as h:
        await h.agent()
        await h.prompt()
        head = (await h.state())["seq"]
        client = Client("hasty")
        with held_reads(h, late) as (go_on,):
            first = asyncio.ensure_future(h.hub.attach(client, "a", after_seq=head, deltas=True))
            await asyncio.sleep(0)
            await h.hub.detach(client, "a")
            second = asyncio.ensure_future(h.hub.attach(client, "a", after_seq=0, deltas=True))
            async with asyncio.timeout(5):
                await (second if late == 0 else first)
                go_on.set()
                answers = await asyncio.gather(first, second)
        assert [answer["seq"] for answer in answers] == [head, head]
        await settled(h, client)
        assert client.seqs() == list(range(1, head + 1))
        await h.prompt()
        assert client.seqs() == list(range(1, (await h.state())["seq"] + 1))


@pytest.mark.parametrize("late", ["good", "refused"])
async def test_a_refused_attach_leaves_the_one_before_it_as_it_is(late: str) -> None:
    async with house("one", "two") as h:
        await h.agent()
        await h.prompt()
        client = Client("hasty")
        with held_reads(h, 0, 1) as (go_good, go_refused):
            good = asyncio.ensure_future(h.hub.attach(client, "a", after_seq=0, deltas=True))
            refused = asyncio.ensure_future(h.hub.attach(client, "a", after_seq=999, deltas=True))
            await asyncio.sleep(0)
            order = [(go_good, good), (go_refused, refused)]
            for go_on, asking in order if late == "refused" else reversed(order):
                go_on.set()
                await asyncio.wait({asking}, timeout=5)
        assert (await good)["mode"] == "replay"
        with pytest.raises(SeqAhead):
            await refused
        await settled(h, client)
        await h.prompt()
        assert client.seqs() == list(range(1, (await h.state())["seq"] + 1))


async def test_of_two_attachments_in_one_breath_only_the_later_one_begins() -> None:
    async with house("one", "two") as h:
        await h.agent()
        await h.prompt()
        head = (await h.state())["seq"]
        client = Client("hasty")
        with held_reads(h, 0, 1) as (go_first, go_second):
            first = asyncio.ensure_future(h.hub.attach(client, "a", after_seq=0, deltas=True))
            second = asyncio.ensure_future(h.hub.attach(client, "a", after_seq=head - 2, deltas=True))
            await asyncio.sleep(0)
            go_first.set()
            await first
            await h.prompt()
            assert client.sent == []
            go_second.set()
            await second
        await settled(h, client)
        assert client.seqs() == list(range(head - 1, (await h.state())["seq"] + 1))
        assert h.hub.feed._wishes == {}


async def test_a_client_that_detaches_while_its_attach_is_read_is_not_attached() -> None:
    async with house("one") as h:
        await h.agent()
        client = Client("hasty")
        with held_reads(h, 0) as (go_on,):
            attaching = asyncio.ensure_future(h.hub.attach(client, "a", after_seq=0, deltas=True))
            await asyncio.sleep(0)
            await h.hub.detach(client, "a")
            go_on.set()
            assert (await attaching)["mode"] == "replay"
        await h.prompt()
        assert client.sent == []


@contextmanager
def held_reads(h: Any, *numbers: int) -> Iterator[list[asyncio.Event]]:
    """Of the store's reads from here on, those with these numbers give their answers when their events are set."""
    store, count = h.hub.feed._store, iter(range(1_000))
    held_back = {number: asyncio.Event() for number in numbers}
    read = store.read

    async def held(work: Any) -> Any:
        mine = next(count)
        answer = await read(work)
        if mine in held_back:
            await held_back[mine].wait()
        return answer

    store.read = held
    try:
        yield list(held_back.values())
    finally:
        del store.read
