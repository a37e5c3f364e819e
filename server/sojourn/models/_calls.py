"""Which call a fragment of a streamed tool call belongs to, by what the wire really says.

`index`, `id` and `name` may each be missing, empty, repeated or reused. The rule: two calls are never joined and none
is dropped. An id that is new begins a call, and so does a name, unless it only repeats what is known of an unfinished
call; a fragment with arguments alone continues the call of its index, or else the last one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ._assemble import AnswerBuilder, CallSlot
from .base import ModelDelta

_KNOWN = frozenset(("index", "id", "type", "function"))


@dataclass(frozen=True, slots=True)
class Fragment:
    """One entry of a chunk's `tool_calls`. Empty strings and wrong types count as missing."""

    index: int | None
    id: str
    name: str
    arguments: str | dict[str, Any]
    unknown: dict[str, Any]

    @classmethod
    def read(cls, entry: dict[str, Any]) -> Fragment:
        """The fragment in `entry`, whatever its form."""
        function = entry.get("function")
        function = function if isinstance(function, dict) else {}
        index, id, name = entry.get("index"), entry.get("id"), function.get("name")
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str | dict):
            arguments = json.dumps(arguments)
        return cls(
            index=index if isinstance(index, int) and not isinstance(index, bool) else None,
            id=id if isinstance(id, str) else "",
            name=name if isinstance(name, str) else "",
            arguments=arguments,
            unknown={key: value for key, value in entry.items() if key not in _KNOWN},
        )


class CallAssembler:
    """Sorts fragments into the calls of `builder`, whose advertised names tell a cut name from another one."""

    def __init__(self, builder: AnswerBuilder) -> None:
        self._builder = builder
        self._offered = builder.names
        self._by_index: dict[int, CallSlot] = {}
        self._last: CallSlot | None = None

    def add(self, entries: list[Any]) -> list[ModelDelta]:
        """The deltas of one chunk's `tool_calls`."""
        deltas: list[ModelDelta] = []
        for position, entry in enumerate(entries):
            if isinstance(entry, dict):
                deltas += self._add(Fragment.read(entry), sibling=position > 0)
        return deltas

    def _add(self, fragment: Fragment, *, sibling: bool) -> list[ModelDelta]:
        slot = self._continued(fragment, sibling=sibling)
        if slot is not None and _repeats(fragment, slot):
            return []
        if slot is None:
            slot = self._builder.open_call(id=fragment.id, name=fragment.name)
        else:
            slot.id = slot.id or fragment.id
            slot.name = slot.name if slot.name == fragment.name else slot.name + fragment.name
        self._last = slot
        if fragment.index is not None:
            self._by_index[fragment.index] = slot
        slot.opaque.update(fragment.unknown)
        if isinstance(fragment.arguments, dict):
            return self._builder.set_arguments(slot, fragment.arguments)
        return self._builder.add_arguments(slot, fragment.arguments)

    def _continued(self, fragment: Fragment, *, sibling: bool) -> CallSlot | None:
        """The call that this fragment continues, or None when it begins one."""
        if fragment.index is not None:
            slot = self._by_index.get(fragment.index)
        elif fragment.id:
            slot = next((call for call in reversed(self._builder.calls) if call.id == fragment.id), self._last)
        else:
            slot = None if sibling and fragment.name else self._last
        if slot is None or self._begins(fragment, slot):
            return None
        return slot

    def _begins(self, fragment: Fragment, slot: CallSlot) -> bool:
        """Whether the fragment says of itself that it is not a piece of `slot`."""
        if fragment.id and slot.id and fragment.id != slot.id:
            return True
        if _repeats(fragment, slot):
            return False
        if not fragment.name and not fragment.id:
            return isinstance(fragment.arguments, dict) and slot.complete
        if fragment.name and slot.name not in ("", fragment.name) and not self._is_cut_name(slot, fragment.name):
            return True
        if fragment.index is None and not fragment.id and not fragment.arguments and not slot.stream.pieces:
            return bool(slot.name)  # two bare names in a row and nothing to tell them apart: two calls
        return bool(fragment.arguments) and slot.complete

    def _is_cut_name(self, slot: CallSlot, piece: str) -> bool:
        if slot.stream.pieces or slot.name in self._offered:
            return False
        return any(name.startswith(slot.name + piece) for name in self._offered)


def _repeats(fragment: Fragment, slot: CallSlot) -> bool:
    """Whether the fragment is all of a call once more, under its own id."""
    same = bool(fragment.id) and (fragment.id, fragment.name) == (slot.id, slot.name)
    return same and slot.complete and fragment.arguments in (slot.ready, slot.stream.text)
