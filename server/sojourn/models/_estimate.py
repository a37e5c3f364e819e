"""About how many tokens a request takes: bytes of text by what the API makes of them, a little for messages and calls.

The rule: cheap enough to be asked before every turn of a long conversation (microseconds a message), so no tokenizer.
UTF-8 bytes, because tokens of other scripts are shorter than four characters. A summary stands for all before it.
"""

from __future__ import annotations

import math

import orjson

from sojourn.core.history import since_summary
from sojourn.core.messages import (
    ImagePart,
    OtherPart,
    ReasoningPart,
    RefusalPart,
    ResourcePart,
    TextPart,
    ToolCallPart,
)

from .base import NEUTRAL, Gauge, ModelRequest

BYTES_PER_TOKEN = 4
Counted = TextPart | ResourcePart | ReasoningPart | ToolCallPart | RefusalPart | OtherPart
MESSAGE_BYTES = 16
CALL_BYTES = 32


def estimate_tokens(request: ModelRequest, gauge: Gauge = NEUTRAL) -> int:
    """The estimate for all of `request`: system prompt, tools and what the model sees of the conversation."""
    images = 0
    total = _text_bytes(request.system or "")
    for tool in request.tools:
        total += CALL_BYTES + _text_bytes(tool.name + tool.description) + len(orjson.dumps(tool.input_schema))
    for message in since_summary(request.messages):
        total += MESSAGE_BYTES
        for part in message.content:
            if type(part) is TextPart:  # nearly every part; a call per part would double the cost
                text = part.text
                total += len(text) if text.isascii() else _text_bytes(text)
            elif isinstance(part, ImagePart):
                images += 1
            elif gauge.reasoning or not isinstance(part, ReasoningPart):
                total += _part_bytes(part)
    fixed = images * gauge.image + (gauge.tools if request.tools else 0)
    return math.ceil(total / gauge.bytes_per_token) + fixed


def _part_bytes(part: Counted) -> int:
    if isinstance(part, ToolCallPart):
        return CALL_BYTES + len(part.name) + len(orjson.dumps(part.arguments))
    if isinstance(part, ResourcePart):
        return _text_bytes(part.uri + (part.text or ""))
    if isinstance(part, OtherPart):
        return len(orjson.dumps(part.data))
    return _text_bytes(part.text)


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
