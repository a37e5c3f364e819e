"""What a server answers to a call, as a tool's output: text, images, resources, structured content, errors."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types

from sojourn.core.messages import ImagePart, InputPart, ResourcePart, TextPart
from sojourn.core.values import clean
from sojourn.tools.base import ToolOutput


def as_output(result: types.CallToolResult) -> ToolOutput:
    """The result as parts. Structured content that no text says already is added as JSON text.

    Audio and other bytes, which no model takes as a tool's result, are named with type and size.
    """
    parts = [part for block in result.content for part in _parts(block)]
    if result.structured_content is not None and not _says(parts, result.structured_content):
        parts.append(TextPart(text=_json(result.structured_content)))
    if not parts:
        parts = [TextPart(text="(no output)")]
    cleaned = tuple(type(part).model_validate(clean(part.model_dump(by_alias=False))) for part in parts)
    return ToolOutput(cleaned, is_error=bool(result.is_error))


def _parts(block: types.ContentBlock) -> list[InputPart]:
    match block:
        case types.TextContent():
            return [TextPart(text=block.text)]
        case types.ImageContent():
            return [ImagePart(mime_type=block.mime_type, data=block.data)]
        case types.AudioContent():
            return [TextPart(text=f"[audio, {block.mime_type}, {_size(block.data)}; it cannot be shown here]")]
        case types.ResourceLink():
            about = " - ".join(text for text in (block.title or block.name, block.description) if text)
            named = [TextPart(text=about)] if about else []
            return [*named, ResourcePart(uri=str(block.uri), mime_type=block.mime_type)]
        case types.EmbeddedResource():
            return [_embedded(block.resource)]


def _embedded(found: types.TextResourceContents | types.BlobResourceContents) -> InputPart:
    if isinstance(found, types.TextResourceContents):
        return ResourcePart(uri=str(found.uri), mime_type=found.mime_type, text=found.text)
    if (found.mime_type or "").startswith("image/"):
        return ImagePart(mime_type=str(found.mime_type), data=found.blob)
    text = f"[{_size(found.blob)} that are no text; they cannot be shown here]"
    return ResourcePart(uri=str(found.uri), mime_type=found.mime_type, text=text)


def _says(parts: list[InputPart], structured: Any) -> bool:
    same = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        same.append(structured["result"])  # how the Python SDK gives a structure to what is no object
    for part in parts:
        if isinstance(part, TextPart):
            if part.text in same:
                return True
            try:
                if json.loads(part.text) in same:
                    return True
            except ValueError:
                continue
    return False


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _size(base64_text: str) -> str:
    return f"{len(base64_text) * 3 // 4} bytes"
