"""Dialects: what each kind of provider accepts as history, as data. And the ids and names that stand on its wire.

Where providers of a kind differ, a dialect follows the strictest one. Sources of the rules: the providers' API
references and the errors they answer; for Mistral also the public request validator of `mistral-common`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Literal

EMPTY = "[empty]"
"""Stands where a provider wants text and there is none (blank text counts as none)."""
NO_RESULT = "[no result was recorded]"
"""The error result of a call that never got one."""
CONTINUE = "[continue]"
"""The user turn where a provider wants one and nobody said anything."""
NOTED = "[noted]"
"""The assistant turn between a result and a user turn where a provider wants one."""

Shape = Literal["chat", "responses", "anthropic"]

_ALNUM = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of provider. Derive a variant with `dataclasses.replace`, e.g. with another `provider`.

    `provider` is whom parts are from: a part with the same `provider` gets its `opaque` back, byte for byte.
    """

    name: str
    provider: str
    shape: Shape
    id_pattern: re.Pattern[str]
    id_prefix: str = "call_"
    """What an id that we make starts with, when ours does not fit `id_pattern`."""
    id_digits: int = 24
    """How many characters of [0-9A-Za-z] follow the prefix."""
    alternates: bool = True
    """The first turn is a user's, no two of one side stand in a row, the last one is a user's or a result."""
    text_beside_calls: bool = True
    """One assistant message may hold text and calls; else the text goes ahead in a message of its own."""
    user_after_result: bool = True
    images_in_results: bool = False
    image_types: frozenset[str] = _IMAGES
    """Empty for a model that reads text only; an image is then told in words."""
    image_urls: tuple[str, ...] = ("https://", "http://")
    system_in_middle: bool = False
    """A system message may stand anywhere; else one that is not at the start is told in a user turn."""
    reasoning_field: str | None = None
    """The field of an assistant message in which its reasoning goes back (chat); None = it does not."""
    reasoning_padding: str | None = None
    """What that field holds when there is no reasoning of this provider's; None = the field is left out."""


OPENAI_CHAT = Dialect(
    name="openai-chat",
    provider="openai-chat",
    shape="chat",
    id_pattern=re.compile(r"[A-Za-z0-9_-]{1,40}"),
)
DEEPSEEK = Dialect(
    name="deepseek",
    provider="deepseek",
    shape="chat",
    id_pattern=re.compile(r"[A-Za-z0-9_-]{1,40}"),
    image_types=frozenset(),
    reasoning_field="reasoning_content",
    reasoning_padding=" ",
)
"""Thinking mode of DeepSeek and Kimi: every assistant message must carry `reasoning_content`, and not an empty one."""
MISTRAL = Dialect(
    name="mistral",
    provider="mistral",
    shape="chat",
    id_pattern=re.compile(r"[A-Za-z0-9]{9}"),
    id_prefix="",
    id_digits=9,
    text_beside_calls=False,
    user_after_result=False,
)
OPENAI_RESPONSES = Dialect(
    name="openai-responses",
    provider="openai-responses",
    shape="responses",
    id_pattern=re.compile(r"[A-Za-z0-9_-]{1,64}"),
    alternates=False,
    images_in_results=True,
    system_in_middle=True,
)
ANTHROPIC = Dialect(
    name="anthropic",
    provider="anthropic",
    shape="anthropic",
    id_pattern=re.compile(r"[A-Za-z0-9_-]{1,64}"),
    id_prefix="toolu_",
    images_in_results=True,
    image_urls=("https://",),
)
DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {dialect.name: dialect for dialect in (OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC, MISTRAL, DEEPSEEK)}
)
"""The dialects by name, as a model's config names them."""


@dataclass(frozen=True, slots=True)
class IdMap:
    """Which id on the wire stands for which call of ours. Stored ids never change; this is for one request."""

    to_wire: Mapping[str, str]
    """Our id → the id on the wire; where the conversation has our id twice, that of the last such call."""
    to_ours: Mapping[str, str]
    """The id on the wire → ours. Each id on the wire stands for one call."""

    def wire(self, call_id: str) -> str:
        """The id on the wire of our call `call_id`; the same when the request does not hold it."""
        return self.to_wire.get(call_id, call_id)

    def ours(self, wire_id: str) -> str:
        """Our id of the call that is `wire_id` on the wire; the same when the request does not hold it."""
        return self.to_ours.get(wire_id, wire_id)


@dataclass(slots=True)
class WireIds:
    """Gives each call of one request, in order, an id that its dialect takes: ours where it fits and is free.

    An id depends on the calls before it only, so that what was sent once is sent again the same way.
    """

    dialect: Dialect
    to_wire: dict[str, str] = field(default_factory=dict)
    to_ours: dict[str, str] = field(default_factory=dict)
    _made: dict[str, int] = field(default_factory=dict)

    def give(self, call_id: str) -> str:
        """The id on the wire of the next call."""
        wire_id = call_id
        while wire_id in self.to_ours or not self.dialect.id_pattern.fullmatch(wire_id):
            made = self._made.get(call_id, 0)
            self._made[call_id] = made + 1
            wire_id = self.dialect.id_prefix + _digits(f"{call_id}\0{made}", self.dialect.id_digits)
        self.to_wire[call_id] = wire_id
        self.to_ours[wire_id] = call_id
        return wire_id

    def freeze(self) -> IdMap:
        """The ids given so far."""
        return IdMap(MappingProxyType(self.to_wire), MappingProxyType(self.to_ours))


def wire_name(name: str) -> str:
    """The tool name `name` in the form that every provider takes (`[A-Za-z0-9_-]`, 1 to 64 characters).

    A name that has that form stays; another gets a part of its hash, so that two names do not become one.
    Advertise tools under it and map the names of calls back with a table made from the advertised tools.
    """
    if _NAME.fullmatch(name):
        return name
    return f"{_NOT_IN_NAME.sub('_', name)[:55]}_{sha256(name.encode()).hexdigest()[:8]}"


def _digits(text: str, count: int) -> str:
    number = int.from_bytes(sha256(text.encode()).digest()[: count + 2])  # a digit takes less than a byte
    digits = []
    for _ in range(count):
        number, digit = divmod(number, 62)
        digits.append(_ALNUM[digit])
    return "".join(digits)
