"""Values come back from every store as they were given, or are refused."""

from __future__ import annotations

import asyncio

import pytest
from store_rows import add, agent, found, message, positions

from sojourn.store.base import Store
from sojourn.store.records import AgentRecord, MessageRecord, Record

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "text",
    [
        "nul \x00 in the middle",
        "\x00",
        "\u2028\u2029",
        "\U0001f9ed 🏳️‍🌈",
        "\ufffd\ufeff",
        "' \" -- ; DROP TABLE",
        "",
        "é́",
    ],
)
async def test_odd_text_comes_back_whole(store: Store, text: str) -> None:
    await add(store, agent(f"id {text}", title=text))
    (kept,) = await found(store, AgentRecord, title=text)
    assert (kept.agent_id, kept.title) == (f"id {text}", text)
    assert await store.read(lambda tx: tx.get(AgentRecord, f"id {text}")) == kept


async def test_names_that_look_alike_are_different(store: Store) -> None:
    names = ["a", "A", "\u0430", "a ", "\u00e1", "a\u0301", "../a", "/a", "CON", ""]
    await add(store, *(agent(name) for name in names))
    assert {r.agent_id for r in await found(store, AgentRecord)} == set(names)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 0, -1])
async def test_integers_have_64_bits(store: Store, number: int) -> None:
    await add(store, agent("a1", last_seq=number))
    (kept,) = await found(store, AgentRecord, last_seq=number)
    assert kept.last_seq == number


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (agent("a1", last_seq=2**63), OverflowError),
        (agent("a1", title="\ud800"), UnicodeEncodeError),
        (agent("a1", title=["a list"]), TypeError),
        (agent("a1", state=None), TypeError),
        (agent("a1", last_seq="many"), TypeError),
    ],
)
async def test_what_a_column_cannot_hold_fails_alone(store: Store, record: Record, error: type[Exception]) -> None:
    results = await asyncio.gather(
        store.write(lambda tx: tx.insert(message(1))),
        store.write(lambda tx: tx.insert(record)),
        store.write(lambda tx: tx.insert(message(2))),
        return_exceptions=True,
    )
    assert isinstance(results[1], error)
    assert await positions(store) == [1, 2]


async def test_large_and_quoted_bodies_come_back_to_the_letter(store: Store) -> None:
    image = "iVBORw0KGgo" * 50
    bodies = [
        '{"content":[{"type":"text","text":"' + 'ä\\n\\"' * 30_000 + '"}], "n": 1.50}',
        '{"content":[{"type":"image","mimeType":"image/png","data":"' + image + '"}]}',
        '[{"type":"image","mimeType":"image/png","data":"' + image + '"}]',
        '{"small":true}',
    ]
    await add(store, *(message(n, body) for n, body in enumerate(bodies, 1)))
    assert [r.body for r in await found(store, MessageRecord)] == bodies
    await store.write(lambda tx: tx.update(message(4, bodies[0]), "body"))
    await store.write(lambda tx: tx.put(message(1, bodies[1])))
    kept = [r.body for r in await found(store, MessageRecord)]
    assert kept == [bodies[1], bodies[1], bodies[2], bodies[0]]
