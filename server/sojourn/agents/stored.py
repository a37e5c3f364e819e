"""What rows hold, read out of them: a column's JSON as a value, or `DamagedRecord` with the name of the record.

Rows are the daemon's own writing, but disks lose and garble them. Everything in this room that takes a column's text
for more than text goes through here, so that one damaged record is named, and no other is harmed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from sojourn.core.agent import AgentConfig, InboxItem, ModelCall
from sojourn.core.approvals import Approval
from sojourn.core.errors import DamagedRecord
from sojourn.core.messages import MESSAGE, Message, Usage
from sojourn.core.values import Value
from sojourn.store.records import (
    AgentRecord,
    ApprovalRecord,
    CallRecord,
    EventRecord,
    InboxRecord,
    MessageRecord,
    ModelCallRecord,
    Record,
    RunRecord,
)

T = TypeVar("T")
_LABELS = TypeAdapter(dict[str, str])
V = TypeVar("V", bound=Value)


def config(row: AgentRecord) -> AgentConfig:
    """An agent's own config."""
    return read(row, "config", parse_config)


def config_json(row: AgentRecord) -> dict[str, Any]:
    """An agent's own config in wire form, as it is stored."""
    config(row)
    return fields(row, "config")


def labels(row: AgentRecord) -> dict[str, str]:
    """An agent's labels."""
    return read(row, "labels", _LABELS.validate_json) if row.labels != "{}" else {}


@lru_cache(maxsize=512)
def parse_config(text: str) -> AgentConfig:
    """An agent's config out of its JSON."""
    return AgentConfig.model_validate_json(text)


def message(row: MessageRecord) -> Message:
    """A message."""
    return read(row, "body", MESSAGE.validate_json)


def message_json(row: MessageRecord) -> Any:
    """A message in wire form, as it is stored."""
    message(row)
    return orjson.loads(row.body)


def approval(row: ApprovalRecord) -> Approval:
    """An approval."""
    return read(row, "body", Approval.model_validate_json)


def item(row: InboxRecord) -> InboxItem:
    """An inbox item."""
    return read(row, "body", InboxItem.model_validate_json)


def model_call(row: ModelCallRecord) -> ModelCall:
    """One answered model call of a run."""
    return read(row, "body", ModelCall.model_validate_json)


def usage(row: AgentRecord | RunRecord) -> Usage:
    """What an agent or a run has used so far."""
    return read(row, "usage", Usage.model_validate_json) if row.usage != "{}" else Usage()


def round_calls(row: RunRecord) -> list[str]:
    """The ids of the calls of a run's open round, in their order; nothing when none is open."""

    def parse(text: str) -> list[str]:
        found = orjson.loads(text).get("round")
        return [call["id"] for call in found["calls"]] if found else []

    return read(row, "machine", parse)


def args(row: CallRecord) -> dict[str, Any]:
    """The arguments of a call."""
    return fields(row, "args")


def result(row: CallRecord) -> dict[str, Any]:
    """The result of a call that has one: `{content, isError, pending}`."""
    return fields(row, "result", "content")


def read_event(row: EventRecord, params: bytes) -> dict[str, Any]:
    """The params of `agent/event` that were put together from a row: they go out as they are."""

    def parse(_text: str) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(params)
        event = found["event"]
        if type(event) is not dict or type(event.get("type")) is not str or found["seq"] != row.seq:
            raise TypeError("it is no event")
        return found

    if row.origin is not None:
        read(row, "origin", orjson.loads)
    return read(row, "body", parse)


def fields(row: Record, column: str, *needed: str) -> dict[str, Any]:
    """A column that holds a JSON object, with these fields at least."""

    def parse(text: str) -> dict[str, Any]:
        found = orjson.loads(text)
        if type(found) is not dict:
            raise TypeError(f"it holds a {type(found).__name__} in the place of an object")
        if missing := [name for name in needed if name not in found]:
            raise KeyError(*missing)
        return found

    return read(row, column, parse)


def plain(row: Record, column: str) -> Any:
    """A column that holds any JSON."""
    return read(row, column, orjson.loads)


def value(row: Record, column: str, kind: type[V], wire: dict[str, Any]) -> V:
    """A value that is put together from a row. Raises `DamagedRecord` naming `column` when it does not fit."""
    try:
        return kind.model_validate(wire)
    except ValidationError as error:
        raise damaged(row, column, _why(error)) from error


def read(row: Record, column: str, parse: Callable[[str], T]) -> T:
    """What `parse` makes of a column's text. Raises `DamagedRecord` when it cannot."""
    try:
        return parse(getattr(row, column))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(row, column, _why(error)) from error


def damaged(row: Record, column: str, why: str) -> DamagedRecord:
    """The error that names the record of a row whose column cannot be read."""
    table = row.TABLE
    return DamagedRecord.of(table.name, [getattr(row, name) for name in table.key], column, why)


def _why(error: Exception) -> str:
    """Why a text is not what it should be; never the text itself."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"{first['msg']} at {where!r}" if where else str(first["msg"])
    if isinstance(error, KeyError):
        return f"it lacks {', '.join(map(repr, error.args))}"
    return f"it is not JSON: {error}" if isinstance(error, ValueError) else str(error)
