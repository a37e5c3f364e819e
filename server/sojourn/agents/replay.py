"""Events out of the store, as clients get them: they go out as they are stored, so each is looked at before."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from sojourn.core import events as ev
from sojourn.core.errors import DamagedRecord
from sojourn.store.base import Damaged, ReadTx
from sojourn.store.records import EventRecord

from . import clock, stored
from .ledger import nested_json, params_json

_DEEPEST = 256
"""How often an event may be nested before its row is taken for damaged."""


class StoredEvent(NamedTuple):
    """An event as it is stored: the params of its `agent/event`, as JSON and as a value."""

    seq: int
    params: bytes
    value: dict[str, Any]


def read_events(tx: ReadTx, agent_id: str, after: int, limit: int, *, told: Damaged | None = None) -> list[StoredEvent]:
    """Stored events behind `after`.

    One that is damaged raises `DamagedRecord`; when `told` is given, a `warning` that names it stands in its place.
    """
    rows = tx.find(EventRecord, agent_id=agent_id, order="seq", after=after, limit=limit, damaged=told)
    return [_stored_event(tx, row, told) for row in rows]


def events_page(tx: ReadTx, agent_id: str, after: int, limit: int) -> dict[str, Any]:
    """Stored events behind `after`, as `agent/events` answers them. Raises `DamagedRecord`."""
    page = read_events(tx, agent_id, after, limit)
    return {"events": [one.value for one in page], "nextSeq": page[-1].seq if page else after}


def _stored_event(tx: ReadTx, row: EventRecord, told: Damaged | None) -> StoredEvent:
    try:
        if told and (error := told.get((row.agent_id, row.seq))) is not None:
            raise error
        params = params_json(row, event_body(tx, row))
        return StoredEvent(row.seq, params, stored.read_event(row, params))
    except DamagedRecord as error:
        if told is None:
            raise
        whole = EventRecord(row.agent_id, row.seq, clock.now(), "")
        params = params_json(whole, damage(error).json_bytes())
        return StoredEvent(row.seq, params, orjson.loads(params))


def damage(error: DamagedRecord) -> ev.Warning:
    """What stands in the place of events that cannot be read."""
    return ev.Warning(code="recordDamaged", message=error.message, data=error.data)


def event_body(tx: ReadTx, row: EventRecord) -> bytes:
    """An event's JSON; a nested one is put together from its child's row."""
    calls: list[str] = []
    inner: EventRecord | None = row
    while inner is not None and inner.ref_agent_id is not None:
        calls.append(inner.ref_call_id or "")
        if len(calls) > _DEEPEST:
            raise stored.damaged(row, "ref_seq", "it leads in a circle")
        inner = tx.get(EventRecord, inner.ref_agent_id, inner.ref_seq)
    if inner is None:
        body = b'{"type":"warning","code":"eventLost","message":"Gone."}'
    else:
        body = inner.body.encode()
        if inner is not row:
            stored.read(inner, "body", orjson.loads)  # else the outer row, which is whole, would be blamed
    for call_id in reversed(calls):
        body = nested_json(call_id, body)
    return body
