"""Blocks: what a person or a tool sent, as text that is never blank and images that the dialect takes."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import NamedTuple

from ._history_dialects import Dialect
from .messages import ImagePart, Part

_MAGIC = (("iVBORw0KGgo", "image/png"), ("/9j/", "image/jpeg"), ("R0lGOD", "image/gif"), ("UklGR", "image/webp"))
"""How the base64 of each type starts. A provider refuses an image whose declared type is not its own."""


class Picture(NamedTuple):
    """An image that the dialect takes: base64 `data` of `media_type`, or a `url`."""

    media_type: str
    data: str = ""
    url: str = ""


Block = str | Picture
"""A piece of content. A string is never blank."""


def blocks_of(content: Sequence[Part], dialect: Dialect) -> list[Block]:
    """The blocks of what a person or a tool sent; blank text is left out."""
    blocks: list[Block] = []
    for part in content:
        if part.type == "image":
            blocks.append(_picture(part, dialect) or told(part))
        elif is_sayable(part):
            blocks.append(told(part))
    return blocks


def is_sayable(part: Part) -> bool:
    """Whether a part comes to text that everybody may read."""
    if part.type in ("text", "refusal"):
        return bool(part.text) and not part.text.isspace()
    return part.type in ("image", "resource")


def told(part: Part) -> str:
    """A sayable part in words; empty for any other."""
    if part.type in ("text", "refusal"):
        return part.text
    if part.type == "resource":
        about = f"{part.uri} ({part.mime_type})" if part.mime_type else part.uri
        return f"[resource {about}]\n{part.text}" if part.text else f"[resource {about}]"
    if part.type == "image":
        at = f" at {part.uri}" if part.uri and not part.uri.startswith("data:") else ""
        return f"[image {part.mime_type}{at}: not shown]"
    return ""


def _picture(part: ImagePart, dialect: Dialect) -> Picture | None:
    """The image as the dialect takes it, or None when it would be refused (and the whole conversation with it)."""
    data, uri = part.data or "", part.uri or ""
    if not data and uri.startswith("data:"):
        data = uri.partition(";base64,")[2]
    if data:
        media_type = next((kind for start, kind in _MAGIC if data.startswith(start)), part.mime_type.lower())
        if media_type in dialect.image_types and _is_base64(data):
            return Picture(media_type, data=data)
        return None
    if dialect.image_types and uri.startswith(dialect.image_urls) and uri.isprintable() and " " not in uri:
        return Picture(part.mime_type, url=uri)
    return None


def _is_base64(data: str) -> bool:
    try:
        return bool(binascii.a2b_base64(data, strict_mode=True))
    except ValueError:
        return False
