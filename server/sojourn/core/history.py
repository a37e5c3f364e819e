"""From a stored conversation to the history that a provider is sent: `project`.

The stored conversation and the request are two things. Whatever happened before, a crash, a stop, a late result, a
change of provider, the request is one that the strictest provider of its dialect accepts; and what was sent once is
sent again byte for byte, so that the provider's prompt cache hits.

What holds in every projection:

- each call has exactly one result, directly after its turn, in call order; a call without one gets an error result, a
  result without its call is left out, doubled ids are told apart by position;
- what the inbox brought, late results included, stands as a user turn after the round, a late result under a line that
  names its call (two results under one id never reach a provider);
- everything before the last summary is left out, but what it keeps (`kept_from`), and no round is cut;
- empty content is padded, arguments are a JSON object, names and ids have the provider's form;
- what only a provider understands goes back to it unchanged and to no other (`opaque`, see below);
- nothing that was said in words is lost.

What stays when a conversation grows: the projection of a conversation is an exact prefix of its projection with more
messages, if the first of these is an assistant's (as it is after every answer) and none is a summary.

`opaque` by shape, only for parts whose `provider` is the dialect's:

=========== ====================================================== ===================================================
part        chat                                                   responses · anthropic
=========== ====================================================== ===================================================
text        –                                                      more fields of the message item · the text block
reasoning   – (its text goes into `Dialect.reasoning_field`)       the whole reasoning item · thinking block
tool call   more fields of the call (`function` too)               more fields of the function call · tool_use block
image       –                                                      responses: the item of its tool, without `result`
other       `data`: more fields of the assistant message           `data`: the whole item · block
=========== ====================================================== ===================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._history_blocks import is_sayable, told
from ._history_dialects import (
    ANTHROPIC,
    DEEPSEEK,
    DIALECTS,
    MISTRAL,
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    Dialect,
    IdMap,
    WireIds,
    wire_name,
)
from ._history_turns import Turns, late_heading, since_summary
from ._history_wire import RENDERERS
from .messages import Message

__all__ = [
    "ANTHROPIC",
    "DEEPSEEK",
    "DIALECTS",
    "MISTRAL",
    "OPENAI_CHAT",
    "OPENAI_RESPONSES",
    "Dialect",
    "IdMap",
    "Projection",
    "late_heading",
    "project",
    "since_summary",
    "wire_name",
]


@dataclass(frozen=True, slots=True)
class Projection:
    """What stands in a request: `messages`, JSON data, and `system` where it stands apart.

    The caller may add to messages and their blocks (a cache mark, say), but not change what is inside a block.

    `system` is Anthropic's `system` and the responses API's `instructions`; None when there is none, and for chat,
    where it is the first message. `ids` tells which call is which.
    """

    messages: list[dict[str, Any]]
    system: str | None
    ids: IdMap


def project(messages: Sequence[Message], dialect: Dialect, *, system: str | None = None) -> Projection:
    """The request history of a conversation in a dialect. Pure; never raises for stored (`clean`) messages.

    `system` is the agent's system prompt; system messages at the start of the conversation follow it.
    """
    seen = since_summary(messages)
    start = next((n for n, message in enumerate(seen) if message.role != "system"), len(seen))
    leading = [told(part) for message in seen[:start] for part in message.content if is_sayable(part)]
    instructions = "\n\n".join(text for text in (system or "", *leading) if text.strip()) or None
    turns = Turns(dialect, WireIds(dialect))
    turns.read(seen[start:])
    wire = RENDERERS[dialect.shape](turns.turns, dialect)
    if dialect.shape == "chat" and instructions is not None:
        wire.insert(0, {"role": "system", "content": instructions})
        instructions = None
    return Projection(wire, instructions, turns.ids.freeze())
