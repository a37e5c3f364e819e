"""Puts the parts of an answer together while they stream, whatever the backend.

The rule: what was told as deltas is exactly what the answer holds. Parts stand in the order in which they began; a
run of text, reasoning or refusal is one part until something else begins. Half a surrogate pair is held back until its
other half arrives, so no delta ever carries text that cannot be encoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, NoReturn

import orjson

from sojourn.core.errors import InvalidParams, ModelError
from sojourn.core.messages import ImagePart, OtherPart, Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart
from sojourn.core.values import Json, clean

from .base import ModelDelta

TextKind = Literal["text", "reasoning", "refusal"]


@dataclass(slots=True)
class Stream:
    """Text that arrives in pieces. `held`: a first half of a surrogate pair that still lacks its second."""

    pieces: list[str] = field(default_factory=list)
    held: str = ""

    def add(self, piece: str) -> str:
        """What of `piece` may be told now."""
        if self.held:
            piece, self.held = self.held + piece, ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self.held = piece[:-1], piece[-1]
        piece = clean(piece)
        if piece:
            self.pieces.append(piece)
        return piece

    def flush(self) -> str:
        """What was held back and will not be completed any more."""
        rest, self.held = ("\ufffd", "") if self.held else ("", "")
        self.pieces.extend([rest] if rest else [])
        return rest

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self.pieces)


@dataclass(slots=True)
class TextSlot:
    """A text, reasoning or refusal part in the making."""

    position: int
    kind: TextKind
    stream: Stream = field(default_factory=Stream)
    opaque: Json = None


_QUOTED = re.compile(r'["\\]')
_OPEN = re.compile(r'["{}\[\]]')


@dataclass(slots=True)
class Brackets:
    """Follows JSON text while it arrives, each piece once: some servers ask of every piece whether it is the last."""

    read: int = 0
    depth: int = 0
    opened: bool = False
    quoted: bool = False
    escaped: bool = False

    def closed(self, pieces: list[str]) -> bool:
        """Whether the text of all `pieces` (those of before and more) has closed all that it opened."""
        for piece in pieces[self.read :]:
            self._follow(piece)
        self.read = len(pieces)
        return self.opened and self.depth <= 0 and not self.quoted

    def _follow(self, piece: str) -> None:
        at, self.escaped = int(self.escaped), False
        while found := (_QUOTED if self.quoted else _OPEN).search(piece, at):
            at, sign = found.end(), found[0]
            if sign == '"':
                self.quoted = not self.quoted
            elif sign == "\\":
                at += 1
                self.escaped = at > len(piece)
            else:
                self.depth += 1 if sign in "{[" else -1
                self.opened = True


@dataclass(slots=True)
class CallSlot:
    """A tool call in the making. `ready`: arguments that came as an object, not as text."""

    position: int
    id: str = ""
    name: str = ""
    stream: Stream = field(default_factory=Stream)
    ready: dict[str, Any] | None = None
    opaque: dict[str, Any] = field(default_factory=dict)
    _brackets: Brackets = field(default_factory=Brackets)
    _whole: bool | None = None

    @property
    def complete(self) -> bool:
        """Whether the arguments so far are one whole JSON object."""
        if self.ready is not None:
            return True
        if self._whole is None and self._brackets.closed(self.stream.pieces):
            self._whole = isinstance(
                parse_arguments(self.stream.text), dict
            )  # nothing that follows mends what is closed
        return bool(self._whole)


MAX_CALLS = 256
"""Of one answer. What calls more has lost its way, and a round costs the more a call the larger it is."""
_DATA_URL = re.compile(r"data:(image/[a-z.+-]+);base64,([A-Za-z0-9+/]+={0,2})")

Slot = TextSlot | CallSlot | OtherPart | ImagePart


class AnswerBuilder:
    """The content of one answer. `provider` is named in every part that carries something only it understands.

    `names` tells which tool of ours an advertised name stands for.
    """

    def __init__(self, provider: str, names: Mapping[str, str] | None = None) -> None:
        self.provider = provider
        self.names: Mapping[str, str] = names or {}
        self.slots: list[Slot] = []
        self._calls = 0

    @property
    def calls(self) -> list[CallSlot]:
        """The calls so far, in the order in which they began."""
        return [slot for slot in self.slots if isinstance(slot, CallSlot)]

    def add_text(self, kind: TextKind, piece: str) -> list[ModelDelta]:
        """`piece` goes to the last part if that is one of this kind, else begins a new one."""
        if not piece:
            return []
        last = self.slots[-1] if self.slots else None
        slot = last if isinstance(last, TextSlot) and last.kind == kind else self.open_text(kind)
        return self.add_piece(slot, piece)

    def open_text(self, kind: TextKind) -> TextSlot:
        """A new text, reasoning or refusal part at the end."""
        slot = TextSlot(len(self.slots), kind)
        self.slots.append(slot)
        return slot

    def add_piece(self, slot: TextSlot, piece: str) -> list[ModelDelta]:
        """More of the text of a part."""
        told = slot.stream.add(piece)
        return [ModelDelta(slot.position, _delta_kind(slot.kind), told)] if told else []

    def open_call(self, *, id: str, name: str) -> CallSlot:
        """A new call at the end."""
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise ModelError(
                f"The model ({self.provider}) called over {MAX_CALLS} tools in one answer; nothing of it is kept.",
                retryable=False,
                provider=self.provider,
                reason="badAnswer",
            )
        slot = CallSlot(len(self.slots), id, name)
        self.slots.append(slot)
        return slot

    def add_arguments(self, slot: CallSlot, piece: str) -> list[ModelDelta]:
        """More of the text of a call's arguments."""
        told = slot.stream.add(piece)
        return [ModelDelta(slot.position, "toolArguments", told)] if told else []

    def set_arguments(self, slot: CallSlot, arguments: dict[str, Any]) -> list[ModelDelta]:
        """A call's arguments, given whole as an object."""
        slot.ready = arguments
        told = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
        return self.add_arguments(slot, told)

    def add_other(self, data: Json) -> None:
        """A block that only the provider understands."""
        self.slots.append(OtherPart(provider=self.provider, data=clean(data)))

    def add_picture(self, mime_type: str, data: str, *, opaque: Json) -> None:
        """An image that the provider's own tool made; `opaque` is what else the provider wants back of it."""
        self.slots.append(
            ImagePart(mime_type=clean(mime_type), data=clean(data), provider=self.provider, opaque=clean(opaque))
        )

    def add_image(self, url: str) -> None:
        """An image that the model made, as a data URL or an address; anything else is passed over."""
        if found := _DATA_URL.fullmatch(url):
            self.slots.append(ImagePart(mime_type=found[1], data=found[2]))
        elif url.startswith(("https://", "http://")):
            self.slots.append(ImagePart(mime_type="image/*", uri=clean(url)))

    def flush(self) -> list[ModelDelta]:
        """The deltas of what was still held back. Ask for it once, before `content`."""
        deltas: list[ModelDelta] = []
        for position, slot in enumerate(self.slots):
            told = "" if isinstance(slot, OtherPart | ImagePart) else slot.stream.flush()
            if told and isinstance(slot, TextSlot):
                deltas.append(ModelDelta(position, _delta_kind(slot.kind), told))
            elif told:
                deltas.append(ModelDelta(position, "toolArguments", told))
        return deltas

    def content(self) -> tuple[Part, ...]:
        """The parts as they are stored."""
        ids = _call_ids([clean(call.id) for call in self.calls])
        return tuple(
            self._call(slot, next(ids)) if isinstance(slot, CallSlot) else self._part(slot) for slot in self.slots
        )

    def said_bytes(self) -> int:
        """How many bytes of text the answer is, reasoning and arguments included."""
        return sum(len(slot.stream.text.encode()) for slot in self.slots if not isinstance(slot, OtherPart | ImagePart))

    def _part(self, slot: TextSlot | OtherPart | ImagePart) -> Part:
        if isinstance(slot, OtherPart | ImagePart):
            return slot
        if slot.kind == "refusal":
            return RefusalPart(text=slot.stream.text)
        opaque = clean(slot.opaque)
        provider = self.provider if opaque is not None or slot.kind == "reasoning" else None
        part = ReasoningPart if slot.kind == "reasoning" else TextPart
        return part(text=slot.stream.text, provider=provider, opaque=opaque)

    def _call(self, slot: CallSlot, ids: tuple[str, str | None]) -> ToolCallPart:
        return ToolCallPart(
            id=ids[0],
            name=self.names.get(slot.name) or clean(slot.name),
            arguments=_arguments(slot),
            provider=self.provider,
            provider_id=ids[1],
            opaque=clean(slot.opaque) or None,
        )


def _call_ids(given: list[str]) -> Iterator[tuple[str, str | None]]:
    """For each call its id and its provider's. An id that is missing or was there before is made anew."""
    taken: set[str] = set()
    made = (id for n in count(1) if (id := f"call-{n}") not in given)
    for id in given:
        if id and id not in taken:
            taken.add(id)
            yield id, id
        else:
            yield next(made), None


def parse_arguments(text: str) -> Json:
    """The JSON value in `text`; None where it is none that a stored conversation can hold (also for `null`)."""
    try:
        return clean(parse_json(text))
    except (ValueError, RecursionError, InvalidParams):
        return None


def parse_json(text: str | bytes) -> Json:
    """JSON from outside. Unlike orjson it takes lone surrogate escapes, which `Stream` puts together again.

    Raises `ValueError` (also for NaN and infinities) and `RecursionError`.
    """
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _arguments(slot: CallSlot) -> dict[str, Any] | str:
    """An object; or the raw text when it is not one, for the run to refuse the call by. Nothing at all means {}."""
    if slot.ready is not None:
        try:
            return clean(slot.ready)
        except InvalidParams:
            return slot.stream.text
    text = slot.stream.text
    if not text.strip():
        return {}
    parsed = parse_arguments(text)
    return parsed if isinstance(parsed, dict) else text


def _delta_kind(kind: TextKind) -> Literal["text", "reasoning"]:
    return "reasoning" if kind == "reasoning" else "text"
