"""What the events of an Anthropic messages answer say.

The rule: an answer is complete when its stop reason was told. Blocks of kinds that we do not know are kept whole, and
so are the fields that we do not know of text and calls; unknown events and deltas are passed over. No block is dropped
or joined with another because its index is missing, not a number or used before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sojourn.core.messages import FinishReason, OtherPart, Usage
from sojourn.core.values import Json, clean

from ._assemble import AnswerBuilder, CallSlot, TextSlot, parse_arguments
from ._chat_reader import count
from ._wire_errors import Peer, read_event
from .base import ModelAnswer, ModelDelta, ModelEvent

_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "toolCalls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "other",
}


@dataclass(slots=True)
class _Block:
    """A content block in the making: what it began as, and the slot that its deltas go to."""

    start: dict[str, Any]
    slot: TextSlot | CallSlot | None = None
    place: int = -1
    input: list[str] = field(default_factory=list)
    signature: str = ""


class AnthropicReader:
    """Reads one answer. Feed it the data of each event, then ask for `answer`."""

    def __init__(self, builder: AnswerBuilder, peer: Peer) -> None:
        self._builder = builder
        self._peer = peer
        self._blocks: dict[int, _Block] = {}
        self._ended: list[_Block] = []
        """Blocks whose index another one took."""
        self._usage: dict[str, Any] = {}
        self._stop: str | None = None
        self._model = ""
        self._id: str | None = None
        self.done = False

    @property
    def finished(self) -> bool:
        """Whether the stop reason was told."""
        return self.done or self._stop is not None

    def event(self, name: str, data: bytes) -> list[ModelDelta]:
        """See `Reader.event`."""
        event = read_event(self._peer, name, data)
        return [] if event is None else self._read(event)

    def whole(self, answer: dict[str, Any]) -> list[ModelDelta] | None:
        """See `Reader.whole`."""
        if not isinstance(answer.get("content"), list):
            return None
        self._read_frame(answer)
        deltas: list[ModelDelta] = []
        for index, block in enumerate(answer["content"]):
            if isinstance(block, dict):
                deltas += self._begin(index, block) + self._stopped(index)
        self._stop = _word(answer.get("stop_reason")) or "end_turn"
        self.done = True
        return deltas

    def answer(self, request_id: str | None) -> list[ModelEvent]:
        """See `AnswerReader.answer`."""
        for block in (*self._ended, *self._blocks.values()):
            self._end(block)
        events: list[ModelEvent] = list(self._builder.flush())
        events.append(
            ModelAnswer(
                content=self._builder.content(),
                finish_reason=self._finish(),
                usage=_usage(self._usage),
                model=self._model,
                response_id=self._id,
                request_id=request_id,
                paused=self._stop == "pause_turn" and not self._builder.calls,
            )
        )
        return events

    def _read(self, event: dict[str, Any]) -> list[ModelDelta]:
        kind = event.get("type")
        if kind == "message_start" and isinstance(event.get("message"), dict):
            self._read_frame(event["message"])
        elif kind == "message_delta":
            self._read_frame(event)
            delta = event.get("delta")
            self._stop = _word(delta.get("stop_reason")) or self._stop if isinstance(delta, dict) else self._stop
        elif kind == "message_stop":
            self.done = True
        else:
            return self._read_block(str(kind), event)
        return []

    def _read_block(self, kind: str, event: dict[str, Any]) -> list[ModelDelta]:
        index, newest = event.get("index"), max(self._blocks, default=-1)
        known = isinstance(index, int) and not isinstance(index, bool)
        place: int = index if known else newest  # type: ignore[assignment]
        if kind == "content_block_start" and isinstance(event.get("content_block"), dict):
            return self._begin(place if known else newest + 1, event["content_block"])
        if kind == "content_block_delta" and isinstance(event.get("delta"), dict):
            return self._begun(place, event["delta"]) + self._grow(self._blocks[place], event["delta"])
        if kind == "content_block_stop" and place in self._blocks:
            return self._stopped(place)
        return []

    def _begun(self, index: int, delta: dict[str, Any]) -> list[ModelDelta]:
        """Begins the block of a delta whose beginning was never told. Raises `ModelError` for arguments of no call."""
        if index in self._blocks:
            return []
        if delta.get("type") == "input_json_delta":
            raise self._peer.error(
                "sent arguments of a call that it never began; nothing of the answer is kept.",
                retryable=True,
                reason="badChunk",
            )
        kind = "thinking" if "thinking" in delta or "signature" in delta else "text"
        return self._begin(index, {"type": kind})

    def _read_frame(self, frame: dict[str, Any]) -> None:
        if isinstance(frame.get("usage"), dict):
            self._usage |= {key: value for key, value in frame["usage"].items() if value is not None}
        self._model = self._model or clean(_word(frame.get("model")))
        self._id = self._id or clean(_word(frame.get("id"))) or None

    def _begin(self, index: int, start: dict[str, Any]) -> list[ModelDelta]:
        build, kind = self._builder, start.get("type")
        deltas = self._stopped(index) if index in self._blocks else []
        self._ended += [self._blocks[index]] if index in self._blocks else []
        block = self._blocks[index] = _Block(start)
        if kind == "text":
            block.slot = build.open_text("text")
            deltas += build.add_piece(block.slot, _word(start.get("text")))
        elif kind in ("thinking", "redacted_thinking"):
            block.slot = build.open_text("reasoning")
            block.signature = _word(start.get("signature"))
            deltas += build.add_piece(block.slot, _word(start.get("thinking")))
        elif kind == "tool_use":
            block.slot = build.open_call(id=_word(start.get("id")), name=_word(start.get("name")))
            block.slot.ready = start["input"] if start.get("input") and isinstance(start["input"], dict) else None
        else:
            block.place = len(build.slots)
            build.add_other(start)
        return deltas

    def _grow(self, block: _Block, delta: dict[str, Any]) -> list[ModelDelta]:
        build, slot = self._builder, block.slot
        if isinstance(slot, CallSlot):
            return build.add_arguments(slot, self._partial(slot, delta))
        if isinstance(slot, TextSlot):
            block.signature += _word(delta.get("signature"))
            if delta.get("type") == "citations_delta":
                block.start.setdefault("citations", [])
                block.start["citations"] = [*(block.start["citations"] or ()), delta.get("citation")]
            return build.add_piece(slot, _word(delta.get("text" if slot.kind == "text" else "thinking")))
        block.input.append(_word(delta.get("partial_json")))
        return []

    def _partial(self, slot: CallSlot, delta: dict[str, Any]) -> str:
        """More arguments. What a call began with is void once it streams them."""
        partial = _word(delta.get("partial_json"))
        if partial:
            slot.ready = None
        return partial

    def _stopped(self, index: int) -> list[ModelDelta]:
        """What is told of a block only when it is whole: arguments that were not streamed."""
        slot = self._blocks[index].slot
        if isinstance(slot, CallSlot) and slot.ready is not None and not slot.stream.pieces:
            return self._builder.set_arguments(slot, slot.ready)
        return []

    def _end(self, block: _Block) -> None:
        slot, start = block.slot, block.start
        if isinstance(slot, CallSlot):
            slot.opaque = _rest(start, "type", "id", "name", "input")
        elif isinstance(slot, TextSlot) and slot.kind == "text":
            slot.opaque = _rest(start, "type", "text") or None
        elif isinstance(slot, TextSlot) and start.get("type") == "thinking":
            slot.opaque = {**start, "thinking": slot.stream.text, "signature": block.signature}
        elif isinstance(slot, TextSlot):
            slot.opaque = start
        elif any(block.input):
            given = parse_arguments("".join(block.input))
            self._builder.slots[block.place] = OtherPart(
                provider=self._builder.provider, data=clean({**start, "input": given if given is not None else {}})
            )

    def _finish(self) -> FinishReason:
        said = _FINISH.get(self._stop or "end_turn", "other")
        if self._builder.calls and said != "length":
            # A classifier ends a turn as a refusal wherever it stands, so a call before it may be half of one.
            return "contentFilter" if said == "refusal" else "toolCalls"
        return "stop" if said == "toolCalls" else said


def _rest(block: dict[str, Any], *known: str) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in known and value is not None}


def _word(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _usage(usage: dict[str, Any]) -> Usage | None:
    """What the API reports: its `input_tokens` are without what was read from or written to its cache."""
    if not usage:
        return None
    read, written = count(usage, "cache_read_input_tokens"), count(usage, "cache_creation_input_tokens")
    return Usage(
        input_tokens=(count(usage, "input_tokens") or 0) + (read or 0) + (written or 0),
        output_tokens=count(usage, "output_tokens") or 0,
        cached_input_tokens=read,
        reasoning_tokens=count(usage.get("output_tokens_details"), "thinking_tokens"),
    )
