"""What every store promises, asked of each of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from store_rows import AT, a_run, add, agent, event, found, item, message, positions

from sojourn.core.errors import StorageError
from sojourn.store.base import Conflict, Store, Tx
from sojourn.store.records import (
    AgentRecord,
    ApprovalRecord,
    EventRecord,
    InboxRecord,
    MessageRecord,
    MetaRecord,
    Record,
    RequestRecord,
    RunRecord,
    snapshot,
)

pytestmark = pytest.mark.anyio


async def test_a_row_comes_back_as_it_was_given(store: Store) -> None:
    given = agent("a1", title="Ada", needs_reply=True, last_seq=7, usage='{"inputTokens":1}')
    await add(store, given)
    assert await store.read(lambda tx: tx.get(AgentRecord, "a1")) == given
    kept = await store.read(lambda tx: tx.get(AgentRecord, "a1"))
    assert kept is not None
    assert kept.needs_reply is True
    assert kept.deleted is False


async def test_there_is_no_row_where_none_was_put(store: Store) -> None:
    assert await store.read(lambda tx: tx.get(MessageRecord, "c1", 1)) is None
    assert await store.write(lambda tx: tx.delete(MessageRecord, "c1", 1)) is False
    assert await found(store, MessageRecord) == []


async def test_a_returned_record_is_a_copy(store: Store) -> None:
    given = agent("a1")
    await add(store, given)
    given.title = "changed after it was given"
    got = await store.read(lambda tx: tx.get(AgentRecord, "a1"))
    assert got is not None
    got.title = "changed after it was read"
    again = await store.read(lambda tx: tx.get(AgentRecord, "a1"))
    assert again is not None
    assert again.title is None


async def test_find_sorts_pages_and_limits(store: Store) -> None:
    await add(store, *(message(n) for n in (3, 1, 2, 5, 4)), message(9, conversation="c2"))
    assert await positions(store, conversation="c1") == [1, 2, 3, 4, 5]
    assert await positions(store, conversation="c1", order="position", desc=True) == [5, 4, 3, 2, 1]
    assert await positions(store, conversation="c1", order="position", after=2, limit=2) == [3, 4]
    assert await positions(store, conversation="c1", order="position", after=4, desc=True) == [3, 2, 1]
    assert await positions(store, conversation="c1", after=("c1", 3)) == [4, 5]
    assert await positions(store, after=("c1", 5)) == [9]
    assert await positions(store, conversation="c1", order=["position"], limit=0) == []
    assert await positions(store, conversation="c1", order="position", after=5) == []
    assert await positions(store, conversation="c1", order="position", after=0, limit=1) == [1]


async def test_rows_that_the_order_does_not_tell_apart_come_as_they_were_made(store: Store) -> None:
    await add(store, a_run("z"), a_run("a", agent_id="a2"), a_run("m", agent_id="a3"))
    await store.write(lambda tx: tx.put(a_run("z", turn=2)))
    assert [r.run_id for r in await found(store, RunRecord, order="created_at")] == ["z", "a", "m"]
    assert [r.run_id for r in await found(store, RunRecord, order="created_at", desc=True)] == ["m", "a", "z"]


async def test_rows_without_a_value_sort_before_all_others(store: Store) -> None:
    await add(store, agent("a1", title="b"), agent("a2"), agent("a3", title="a"))
    assert [r.agent_id for r in await found(store, AgentRecord, order="title")] == ["a2", "a3", "a1"]
    assert [r.agent_id for r in await found(store, AgentRecord, order="title", desc=True)] == ["a1", "a3", "a2"]


async def test_find_asks_for_equal_for_one_of_and_for_none(store: Store) -> None:
    await add(store, item(1), item(2, call_id="x"), item(3, state="read"), item(4, call_id="y", state="read"))
    assert [r.position for r in await found(store, InboxRecord, state="unread")] == [1, 2]
    assert [r.position for r in await found(store, InboxRecord, call_id=None)] == [1, 3]
    assert [r.position for r in await found(store, InboxRecord, call_id=("x", "y"))] == [2, 4]
    assert [r.position for r in await found(store, InboxRecord, call_id=("y", None))] == [1, 3, 4]
    assert [r.position for r in await found(store, InboxRecord, call_id=(None,), state=("read",))] == [3]
    assert await found(store, InboxRecord, call_id=()) == []
    assert await store.read(lambda tx: tx.count(InboxRecord, agent_id="a1", state="read")) == 2
    assert await store.read(lambda tx: tx.count(InboxRecord)) == 4


async def test_conditions_on_yes_or_no_take_booleans(store: Store) -> None:
    await add(store, agent("a1", needs_reply=True), agent("a2"))
    assert [r.agent_id for r in await found(store, AgentRecord, needs_reply=True)] == ["a1"]
    assert [r.agent_id for r in await found(store, AgentRecord, needs_reply=False)] == ["a2"]


@pytest.mark.parametrize(
    ("kind", "question"),
    [
        (MessageRecord, {"nothing_like_it": 1}),
        (MessageRecord, {"order": "nothing_like_it"}),
        (MessageRecord, {"order": "body"}),
        (MessageRecord, {"body": "{}"}),
        (MessageRecord, {"limit": -1}),
        (MessageRecord, {"after": 1}),
        (MessageRecord, {"after": (None, 1)}),
        (AgentRecord, {"order": "title", "after": "x"}),
        (MessageRecord, {"position": tuple(range(30_001))}),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    store: Store, kind: type[Record], question: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r".+"):
        await found(store, kind, **question)
    await add(store, message(1))  # the store goes on


async def test_a_body_that_is_missing_can_be_asked_for(store: Store) -> None:
    await add(store, RequestRecord("c", "1", "00", AT), RequestRecord("c", "2", "00", AT, answer="{}"))
    assert [r.request_id for r in await found(store, RequestRecord, answer=None)] == ["1"]


async def test_a_key_has_as_many_values_as_its_table_says(store: Store) -> None:
    with pytest.raises(TypeError):
        await store.read(lambda tx: tx.get(MessageRecord, "c1"))


async def test_a_second_row_with_the_key_is_a_conflict(store: Store) -> None:
    await add(store, message(1, '{"first":1}'))
    with pytest.raises(Conflict):
        await add(store, message(1, '{"second":1}'))
    (kept,) = await found(store, MessageRecord)
    assert kept.body == '{"first":1}'


async def test_rows_of_a_kind_are_added_in_one_go(store: Store) -> None:
    large = '"' + "x" * 70_000 + '"'
    await store.write(lambda tx: tx.insert_all([message(n) for n in (1, 2, 3)]))
    await store.write(lambda tx: tx.insert_all([message(4), message(5, large)]))
    await store.write(lambda tx: tx.insert_all([]))
    assert [(r.position, len(r.body)) for r in await found(store, MessageRecord)] == [
        (1, 2),
        (2, 2),
        (3, 2),
        (4, 2),
        (5, 70_002),
    ]
    with pytest.raises(Conflict):
        await store.write(lambda tx: tx.insert_all([message(6), message(1)]))
    with pytest.raises(TypeError):
        await store.write(lambda tx: tx.insert_all([message(6), message(7, None)]))  # type: ignore[arg-type]
    assert await positions(store) == [1, 2, 3, 4, 5]


async def test_put_replaces_the_row_with_its_key(store: Store) -> None:
    await add(store, message(1, '{"first":1}'))
    await store.write(lambda tx: [tx.put(message(1, '{"second":1}')), tx.put(message(2))])
    assert [(r.position, r.body) for r in await found(store, MessageRecord)] == [(1, '{"second":1}'), (2, "{}")]


async def test_a_unique_value_of_another_row_is_a_conflict(store: Store) -> None:
    await add(store, message(1))
    taken = MessageRecord("c1", 2, "msg-1", "user", "{}")
    for change in (Tx.insert, Tx.put):
        with pytest.raises(Conflict):
            await store.write(lambda tx, change=change: getattr(tx, change.__name__)(taken))
    await add(store, MessageRecord("c2", 2, "msg-1", "user", "{}"))
    assert await store.read(lambda tx: tx.count(MessageRecord)) == 2


async def test_an_update_into_a_taken_value_is_a_conflict(store: Store) -> None:
    await add(store, message(1), message(2))
    with pytest.raises(Conflict):
        await store.write(lambda tx: tx.update(MessageRecord("c1", 2, "msg-1", "user", "{}"), "message_id"))
    assert [r.message_id for r in await found(store, MessageRecord)] == ["msg-1", "msg-2"]


async def test_an_agent_has_one_active_run(store: Store) -> None:
    await add(store, a_run("r1", active=True), a_run("r2"), a_run("r3"), a_run("r4", agent_id="a2", active=True))
    with pytest.raises(Conflict):
        await add(store, a_run("r5", active=True))
    with pytest.raises(Conflict):
        await store.write(lambda tx: tx.update(a_run("r2", active=True), "active"))
    await store.write(lambda tx: [tx.update(a_run("r1"), "active"), tx.update(a_run("r2", active=True), "active")])
    assert [r.run_id for r in await found(store, RunRecord, active=True)] == ["r2", "r4"]


async def test_runs_without_an_agent_may_all_be_active(store: Store) -> None:
    await add(store, *(a_run(f"r{n}", agent_id=None, active=True) for n in range(3)))
    assert await store.read(lambda tx: tx.count(RunRecord, agent_id=None, active=True)) == 3


async def test_a_call_has_one_unread_answer(store: Store) -> None:
    await add(store, item(1, call_id="x"), item(2), item(3))
    with pytest.raises(Conflict):
        await add(store, item(4, call_id="x"))
    await store.write(lambda tx: tx.update(item(1, call_id="x", state="read"), "state"))
    await add(store, item(4, call_id="x"))
    assert await store.read(lambda tx: tx.count(InboxRecord, call_id="x")) == 2


async def test_a_conflict_that_is_handled_costs_nothing_else(store: Store) -> None:
    def transition(tx: Tx) -> str:
        tx.insert(message(1))
        try:
            tx.insert(message(1))
        except Conflict:
            tx.insert(message(2))
        return "went on"

    assert await store.write(transition) == "went on"
    assert await positions(store) == [1, 2]


async def test_update_writes_the_named_fields_only(store: Store) -> None:
    await add(store, agent("a1", title="before", last_seq=3))
    await store.write(lambda tx: tx.update(agent("a1", title="after", last_seq=9, inbox=5), "last_seq", "inbox"))
    (kept,) = await found(store, AgentRecord)
    assert (kept.title, kept.last_seq, kept.inbox) == ("before", 9, 5)


async def test_an_update_of_no_row_is_a_key_error(store: Store) -> None:
    with pytest.raises(KeyError, match="a1"):
        await store.write(lambda tx: tx.update(agent("a1"), "title"))


@pytest.mark.parametrize("fields", [(), ("agent_id",), ("nothing_like_it",)])
async def test_an_update_names_fields_that_can_change(store: Store, fields: tuple[str, ...]) -> None:
    await add(store, agent("a1"))
    with pytest.raises(ValueError, match="agents"):
        await store.write(lambda tx: tx.update(agent("a1"), *fields))


async def test_much_is_deleted_in_pieces(store: Store) -> None:
    await add(store, *(message(n) for n in range(1, 8)), message(1, conversation="c2"))
    assert await store.write(lambda tx: tx.delete_some(MessageRecord, 4, conversation="c1")) == 4
    assert await positions(store, conversation="c1") == [5, 6, 7]
    assert await store.write(lambda tx: tx.delete_some(MessageRecord, 4, conversation="c1")) == 3
    assert await store.write(lambda tx: tx.delete_some(MessageRecord, 4, conversation="c1")) == 0
    assert await store.read(lambda tx: tx.count(MessageRecord)) == 1


async def test_a_deleted_row_leaves_its_key_and_its_unique_values_free(store: Store) -> None:
    await add(store, message(1))
    assert await store.write(lambda tx: tx.delete(MessageRecord, "c1", 1)) is True
    await add(store, MessageRecord("c1", 2, "msg-1", "user", "{}"), message(3))
    assert await positions(store) == [2, 3]


async def test_a_transition_sees_what_it_wrote(store: Store) -> None:
    def transition(tx: Tx) -> list[Any]:
        tx.insert(message(1))
        tx.put(message(2))
        tx.delete(MessageRecord, "c1", 1)
        return [tx.get(MessageRecord, "c1", 1), tx.count(MessageRecord), tx.find(MessageRecord)[0].position]

    assert await store.write(transition) == [None, 1, 2]


async def test_nothing_of_a_failing_transition_is_kept(store: Store) -> None:
    await add(store, message(1, '{"old":1}'), message(2), message(3))

    def failing(tx: Tx) -> None:
        tx.put(message(1, '{"new":1}'))
        tx.delete(MessageRecord, "c1", 2)
        tx.insert(message(4))
        tx.update(MessageRecord("c1", 3, "other", "user", "{}"), "message_id")
        tx.delete_some(MessageRecord, 10)
        tx.insert(message(2))
        raise LookupError("on purpose")

    with pytest.raises(LookupError, match="on purpose"):
        await store.write(failing)
    kept = [(r.position, r.message_id, r.body) for r in await found(store, MessageRecord)]
    assert kept == [(1, "msg-1", '{"old":1}'), (2, "msg-2", "{}"), (3, "msg-3", "{}")]
    await add(store, message(4))
    with pytest.raises(Conflict):
        await add(store, MessageRecord("c1", 5, "msg-3", "user", "{}"))


async def test_neighbours_of_a_failing_transition_live(store: Store) -> None:
    def transition(n: int) -> Any:
        def change(tx: Tx) -> int:
            tx.insert(message(n))
            if n % 3 == 0:
                raise LookupError(str(n))
            return n

        return change

    results = await asyncio.gather(*(store.write(transition(n)) for n in range(1, 31)), return_exceptions=True)
    assert [r if isinstance(r, int) else str(r) for r in results] == [n if n % 3 else str(n) for n in range(1, 31)]
    assert await positions(store) == [n for n in range(1, 31) if n % 3]


async def test_what_is_published_arrives_in_commit_order_before_the_answers(store: Store) -> None:
    seen: list[Any] = []
    store.on_commit(lambda items: seen.extend(("published", n) for n in items))

    def transition(tx: Tx) -> int:
        number = tx.count(MessageRecord) + 1
        tx.insert(message(number))
        tx.publish(number)
        tx.publish(-number)
        return number

    async def writer() -> None:
        number = await store.write(transition)
        seen.append(("answered", number))
        assert ("published", number) in seen

    await asyncio.gather(*(writer() for _ in range(20)))
    published = [number for what, number in seen if what == "published"]
    assert published == [sign * n for n in range(1, 21) for sign in (1, -1)]
    assert sorted(number for what, number in seen if what == "answered") == list(range(1, 21))


async def test_what_a_failing_transition_published_is_forgotten(store: Store) -> None:
    seen: list[Any] = []
    store.on_commit(seen.extend)

    def failing(tx: Tx) -> None:
        tx.publish("never")
        raise LookupError

    def fine(tx: Tx) -> None:
        tx.publish("yes")

    await asyncio.gather(store.write(failing), store.write(fine), return_exceptions=True)
    assert seen == ["yes"]


async def test_a_listener_is_called_on_the_event_loop_and_may_fail(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    loops: list[Any] = []

    def listener(items: list[Any]) -> None:
        loops.append(asyncio.get_running_loop())
        raise LookupError("the listener's own failure")

    store.on_commit(listener)
    assert await store.write(lambda tx: tx.publish(1) or "answered") == "answered"
    assert loops == [asyncio.get_running_loop()]
    assert "the listener's own failure" in caplog.text


async def test_a_cancelled_caller_does_not_undo_its_transition(store: Store) -> None:
    published: list[Any] = []
    store.on_commit(published.extend)

    def transition(tx: Tx) -> None:
        tx.insert(message(1))
        tx.publish("done")

    task = asyncio.create_task(store.write(transition))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await add(store, message(2))
    assert await positions(store) == [1, 2]
    assert published == ["done"]


async def test_fifty_writers_and_a_reader_lose_nothing(store: Store) -> None:
    counts: list[int] = []

    async def writer(name: str) -> None:
        for seq in range(1, 11):
            await store.write(lambda tx, seq=seq: tx.insert(event(seq, agent=name)))
            assert await store.read(lambda tx, seq=seq: tx.get(EventRecord, name, seq)) is not None

    async def reader() -> None:
        while not counts or counts[-1] < 500:
            counts.append(await store.read(lambda tx: tx.count(EventRecord)))

    await asyncio.gather(reader(), *(writer(f"a{n}") for n in range(50)))
    assert counts == sorted(counts)
    for n in range(50):
        assert [e.seq for e in await found(store, EventRecord, agent_id=f"a{n}")] == list(range(1, 11))


async def test_transitions_never_race(store: Store) -> None:
    await add(store, agent("a1"))

    def bump(tx: Tx) -> int:
        row = tx.get(AgentRecord, "a1")
        assert row is not None
        row.last_seq += 1
        tx.update(row, "last_seq")
        return row.last_seq

    numbers = await asyncio.gather(*(store.write(bump) for _ in range(100)))
    assert sorted(numbers) == list(range(1, 101))


async def test_a_transition_is_over_when_it_returned(store: Store) -> None:
    leaked: list[Any] = []
    await store.write(leaked.append)
    await store.read(leaked.append)
    for tx in leaked:
        with pytest.raises(RuntimeError, match="over"):
            tx.get(AgentRecord, "a1")


async def test_a_transition_may_raise_what_a_future_cannot_carry(store: Store) -> None:
    for ask in (store.write, store.read):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await ask(lambda tx: next(iter(tx.find(AgentRecord))))


async def test_a_query_answers_or_raises_its_own_error(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        await store.read(lambda tx: 1 // tx.count(AgentRecord))


async def test_a_store_knows_itself(store: Store) -> None:
    assert len(store.store_id) == 32
    assert set(store.store_id) <= set("0123456789abcdef")
    kept = await store.read(lambda tx: tx.get(MetaRecord, "store_id"))
    assert kept == MetaRecord("store_id", store.store_id)


async def test_commits_and_transitions_are_counted(store: Store) -> None:
    before = store.stats()
    for n in range(1, 4):
        await add(store, message(n))
    with pytest.raises(Conflict):
        await add(store, message(1))
    assert store.stats().transitions == before.transitions + 3
    assert store.stats().commits >= before.commits + 3


async def test_closing_commits_what_is_queued(store: Store) -> None:
    writes = [asyncio.create_task(store.write(lambda tx, n=n: tx.insert(message(n)))) for n in range(1, 300)]
    await asyncio.sleep(0)
    await asyncio.gather(store.aclose(), store.aclose())
    assert await asyncio.gather(*writes) == [None] * 299
    await store.aclose()


async def test_a_closed_store_is_of_no_use(store: Store) -> None:
    await store.aclose()
    with pytest.raises(StorageError, match="closed"):
        await add(store, message(1))
    with pytest.raises(StorageError, match="closed"):
        await found(store, MessageRecord)


async def test_an_approval_is_one_per_call(store: Store) -> None:
    await add(store, ApprovalRecord("p1", "a1", "r1", "x", AT, "{}"))
    with pytest.raises(Conflict):
        await add(store, ApprovalRecord("p2", "a1", "r1", "x", AT, "{}"))
    await add(store, ApprovalRecord("p2", "a2", "r1", "x", AT, "{}"))


async def test_a_row_is_read_together_with_what_was_in_it(store: Store) -> None:
    await add(store, agent("a1", title="first"))

    def renamed(tx: Tx) -> None:
        found = tx.read(AgentRecord, "a1")
        assert found is not None
        row, before = found
        assert row == tx.get(AgentRecord, "a1")
        assert before == snapshot(row)
        row.title = "second"
        assert before != snapshot(row)
        tx.save(row, before)

    await store.write(renamed)
    assert [row.title for row in await found(store, AgentRecord)] == ["second"]
    assert await store.write(lambda tx: tx.read(AgentRecord, "a2")) is None
