"""About how many tokens a request takes: bytes of text over four, and a little for each message, call and image.

The rule: cheap enough to be asked before every turn of a long conversation (microseconds a message), so no tokenizer.
UTF-8 bytes, because tokens of other scripts are shorter than four characters. A summary stands for all before it.
"""

from __future__ import annotations

import orjson

from sojourn.core.history import since_summary
from sojourn.core.messages import (
    ImagePart,
    OtherPart,
    Part,
    ResourcePart,
    TextPart,
    ToolCallPart,
)

from .base import ModelRequest

BYTES_PER_TOKEN = 4
MESSAGE_BYTES = 16
CALL_BYTES = 32
IMAGE_BYTES = 1_000 * BYTES_PER_TOKEN


def estimate_tokens(request: ModelRequest) -> int:
    """The estimate for all of `request`: system prompt, tools and what the model sees of the conversation."""
    total = _text_bytes(request.system or "")
    for tool in request.tools:
        total += CALL_BYTES + _text_bytes(tool.name + tool.description) + len(orjson.dumps(tool.input_schema))
    for message in since_summary(request.messages):
        total += MESSAGE_BYTES
        for part in message.content:
            if type(part) is TextPart:  # nearly every part; a call per part would double the cost
                text = part.text
                total += len(text) if text.isascii() else _text_bytes(text)
            else:
                total += _part_bytes(part)
    return -(-total // BYTES_PER_TOKEN)


def _part_bytes(part: Part) -> int:
    if isinstance(part, ToolCallPart):
        return CALL_BYTES + len(part.name) + len(orjson.dumps(part.arguments))
    if isinstance(part, ImagePart):
        return IMAGE_BYTES
    if isinstance(part, ResourcePart):
        return _text_bytes(part.uri + (part.text or ""))
    if isinstance(part, OtherPart):
        return len(orjson.dumps(part.data))
    return _text_bytes(part.text)


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
