"""What the events of an OpenAI responses answer say.

The rule: an answer is complete when the response was told to be completed or incomplete. Deltas are told as they come;
what an item is in the end its `done` event says, or the completed response, and whatever was not streamed is read
from there. Items of kinds that we do not know are kept whole; unknown events are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sojourn.core.messages import FinishReason, Usage
from sojourn.core.values import Json, clean

from ._assemble import AnswerBuilder, CallSlot, TextKind, TextSlot
from ._chat_reader import count
from ._wire_errors import Peer, read_event, stream_error
from .base import ModelAnswer, ModelDelta, ModelEvent

_ENDS = frozenset(("response.completed", "response.incomplete", "response.done"))
_FAILS = frozenset(("response.failed", "response.cancelled"))
_TEXT_DELTAS: dict[str, TextKind] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
}
_CALL = ("type", "call_id", "name", "arguments")
_MESSAGE = ("type", "role", "content")


@dataclass(slots=True)
class _Item:
    """An output item in the making. `texts` are its parts by kind and number (a summary's parts are one text)."""

    kind: str
    call: CallSlot | None = None
    texts: dict[tuple[TextKind, int], TextSlot] = field(default_factory=dict)
    summary: int = 0
    done: bool = False


class ResponsesReader:
    """Reads one answer. Feed it the data of each event, then ask for `answer`."""

    def __init__(self, builder: AnswerBuilder, peer: Peer) -> None:
        self._builder = builder
        self._peer = peer
        self._items: dict[int, _Item] = {}
        self._places: dict[str, int] = {}
        self._response: dict[str, Any] = {}
        self.done = False

    @property
    def finished(self) -> bool:
        """Whether the response was told to be over."""
        return self.done

    def event(self, name: str, data: bytes) -> list[ModelDelta]:
        """See `Reader.event`."""
        if data.strip() == b"[DONE]":
            return []
        event = read_event(self._peer, name, data)
        return [] if event is None else self._read(event)

    def whole(self, answer: dict[str, Any]) -> list[ModelDelta] | None:
        """See `Reader.whole`."""
        return self._end(answer) if isinstance(answer.get("output"), list) else None

    def answer(self, request_id: str | None) -> list[ModelEvent]:
        """See `AnswerReader.answer`."""
        events: list[ModelEvent] = list(self._builder.flush())
        events.append(
            ModelAnswer(
                content=self._builder.content(),
                finish_reason=self._finish(),
                usage=_usage(self._response.get("usage")),
                model=clean(_word(self._response.get("model"))),
                response_id=clean(_word(self._response.get("id"))) or None,
                request_id=request_id,
            )
        )
        return events

    def _read(self, event: dict[str, Any]) -> list[ModelDelta]:
        kind, response = _word(event.get("type")), event.get("response")
        if kind in _FAILS:
            raise self._failed(response)
        if kind in _ENDS:
            return self._end(response if isinstance(response, dict) else {})
        index = self._place(event)
        if kind in ("response.output_item.added", "response.output_item.done"):
            item = event.get("item")
            return self._item(index, item, done=kind.endswith("done")) if isinstance(item, dict) else []
        if kind in _TEXT_DELTAS:
            return self._text(index, _TEXT_DELTAS[kind], event)
        if kind == "response.function_call_arguments.delta" and index in self._items:
            call = self._items[index].call
            return [] if call is None else self._builder.add_arguments(call, _word(event.get("delta")))
        return []

    def _place(self, event: dict[str, Any]) -> int:
        """Which item an event is about: its `output_index`, or where that is left out the item's id, or the newest."""
        index, item = event.get("output_index"), event.get("item")
        if isinstance(index, int):
            return index
        newest = max(self._items, default=0)
        opens = event.get("type") == "response.output_item.added" or self._items.get(newest, _Item("")).done
        place = newest + 1 if newest in self._items and opens else newest
        name = _word(item.get("id") or item.get("call_id")) if isinstance(item, dict) else _word(event.get("item_id"))
        return self._places.setdefault(name, place) if name else place

    def _failed(self, response: Json) -> Exception:
        error = response.get("error") if isinstance(response, dict) else None
        return stream_error(self._peer, error or {"message": "the response failed or was cancelled"})

    def _item(self, index: int, item: dict[str, Any], *, done: bool) -> list[ModelDelta]:
        made = self._items.get(index)
        if made is None:
            made = self._items[index] = _Item(_word(item.get("type")))
            if made.kind == "function_call":
                made.call = self._builder.open_call(id=_word(item.get("call_id")), name=_word(item.get("name")))
        if not done or made.done:
            return []
        made.done = True
        if made.call is not None:
            return self._call_done(made.call, item)
        if made.kind == "reasoning":
            return self._reasoning_done(index, made, item)
        if made.kind == "message":
            return self._message_done(made, item)
        if made.kind == "image_generation_call" and _word(item.get("result")):
            rest = {key: value for key, value in item.items() if key != "result"}
            form = _word(item.get("output_format")) or "png"
            self._builder.add_picture(f"image/{form}", item["result"], opaque=rest)
            return []
        self._builder.add_other(item)
        return []

    def _call_done(self, call: CallSlot, item: dict[str, Any]) -> list[ModelDelta]:
        call.id = call.id or _word(item.get("call_id"))
        call.name = call.name or _word(item.get("name"))
        call.opaque = _rest(item, *_CALL)
        given = item.get("arguments")
        if call.stream.pieces:
            return []
        if isinstance(given, dict):
            return self._builder.set_arguments(call, given)
        return self._builder.add_arguments(call, _word(given))

    def _reasoning_done(self, index: int, made: _Item, item: dict[str, Any]) -> list[ModelDelta]:
        deltas: list[ModelDelta] = []
        if not made.texts:
            pieces = [_word(part.get("text")) for part in _parts(item.get("summary")) or _parts(item.get("content"))]
            slot = made.texts["reasoning", 0] = self._builder.open_text("reasoning")
            deltas = self._builder.add_piece(slot, "\n\n".join(piece for piece in pieces if piece))
        next(iter(made.texts.values())).opaque = item
        return deltas

    def _message_done(self, made: _Item, item: dict[str, Any]) -> list[ModelDelta]:
        deltas: list[ModelDelta] = []
        for number, part in enumerate(_parts(item.get("content"))):
            kind: TextKind = "refusal" if part.get("type") == "refusal" else "text"
            if (kind, number) not in made.texts and (text := _word(part.get(kind))):
                slot = made.texts[kind, number] = self._builder.open_text(kind)
                deltas += self._builder.add_piece(slot, text)
        for slot in made.texts.values():
            if slot.kind == "text":
                slot.opaque = _rest(item, *_MESSAGE) or None
                break
        return deltas

    def _text(self, index: int, kind: TextKind, event: dict[str, Any]) -> list[ModelDelta]:
        made = self._items.get(index)
        if made is None:
            made = self._items[index] = _Item("reasoning" if kind == "reasoning" else "message")
        piece = _word(event.get("delta"))
        number, key = 0, (kind, 0)
        if kind == "reasoning":
            number = count(event, "summary_index") or 0
        else:
            key = (kind, count(event, "content_index") or 0)
        if key not in made.texts:
            made.texts[key] = self._builder.open_text(kind)
        elif number != made.summary:
            piece = "\n\n" + piece
        made.summary = number
        return self._builder.add_piece(made.texts[key], piece)

    def _end(self, response: dict[str, Any]) -> list[ModelDelta]:
        error = response.get("error")
        if error or response.get("status") in ("failed", "cancelled"):
            raise self._failed(response)
        self.done = True
        self._response = response
        return self._rest_of(_parts(response.get("output")))

    def _rest_of(self, output: list[dict[str, Any]]) -> list[ModelDelta]:
        """What of the final output was not streamed. Items are told apart by place and kind: some proxies give an item
        another id in each event."""
        if len(output) == len(self._items) and all(item.done for item in self._items.values()):
            return []
        called = {made.call.id for made in self._items.values() if made.call is not None and made.done}
        deltas: list[ModelDelta] = []
        for index, item in enumerate(output):
            made = self._items.get(index)
            if _word(item.get("call_id")) in called or (
                made is not None and made.done and made.kind == item.get("type")
            ):
                continue
            free = index if made is None or not made.done else max(self._items) + 1
            deltas += self._item(free, item, done=True)
        return deltas

    def _finish(self) -> FinishReason:
        if any(isinstance(slot, TextSlot) and slot.kind == "refusal" for slot in self._builder.slots):
            return "refusal"
        if self._response.get("status") == "incomplete":
            details = self._response.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, dict) else None
            return "contentFilter" if reason == "content_filter" else "length"
        return "toolCalls" if self._builder.calls else "stop"


def _parts(value: Json) -> list[dict[str, Any]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def _rest(item: dict[str, Any], *known: str) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in known and value is not None}


def _word(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _usage(usage: Json) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    return Usage(
        input_tokens=count(usage, "input_tokens") or 0,
        output_tokens=count(usage, "output_tokens") or 0,
        cached_input_tokens=count(usage.get("input_tokens_details"), "cached_tokens"),
        reasoning_tokens=count(usage.get("output_tokens_details"), "reasoning_tokens"),
    )
