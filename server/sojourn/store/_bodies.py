"""Large strings of bodies are kept once each, by SHA-256, outside the row.

A packed body is `blobs:` and a skeleton: the body's text cut at the strings that were taken out. No JSON text begins
like that, and a text that does is packed itself, so a packed body is never mistaken for a body. Only whole JSON string
literals are taken out, in their source form: unpacking gives back the very text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from sojourn.core.values import decode, encode

LARGE_BODY = 64 * 1024
"""Characters above which the large strings of a body are taken out."""
LARGE_STRING = 4 * 1024
"""Characters from which on a string of such a body is large."""
SHORTEST = 64
"""Image data not longer than a digest stays where it is: the reference would be larger."""
MARK = "blobs:"

_IMAGE = '"type":"image"'
_DATA = '"data":'


@dataclass(frozen=True, slots=True)
class Packed:
    """What stands in the row, and the strings by their SHA-256."""

    text: str
    blobs: dict[str, bytes]


def must_pack(text: str) -> bool:
    """Whether a body may hold something to take out. Cheap: it is asked of every body."""
    return len(text) > LARGE_BODY or _IMAGE in text or text.startswith(MARK)


def none_to_pack(bodies: Sequence[str | None]) -> bool:
    """Whether surely none of these bodies is one to pack; for less than asking about each."""
    together = "".join(filter(None, bodies))
    if len(together) > LARGE_BODY and max(len(body) for body in bodies if body is not None) > LARGE_BODY:
        return False
    return _IMAGE not in together and MARK not in together


def pack(text: str) -> Packed | None:
    """The body with its large strings taken out; None when there is none."""
    shortest = LARGE_STRING if len(text) > LARGE_BODY else len(text)
    images = _IMAGE in text
    pieces: list[str] = []
    digests: list[str] = []
    blobs: dict[str, bytes] = {}
    done = 0
    for start, end in _strings(text):
        size = end - start
        if size < shortest and not (images and size > SHORTEST and text.startswith(_DATA, start - 1 - len(_DATA))):
            continue
        blob = text[start:end].encode()
        digest = sha256(blob).hexdigest()
        blobs[digest] = blob
        digests.append(digest)
        pieces.append(text[done:start])
        done = end
    if not blobs and not text.startswith(MARK):
        return None
    return Packed(MARK + encode({"blobs": digests, "pieces": [*pieces, text[done:]]}).decode(), blobs)


def unpack(text: str, fetch: Callable[[str], bytes | None]) -> str:
    """The body that was packed into `text`. A blob that is lost says so in its place: the rest is worth reading."""
    skeleton = decode(text[len(MARK) :])
    parts: list[str] = [skeleton["pieces"][0]]
    for digest, piece in zip(skeleton["blobs"], skeleton["pieces"][1:], strict=True):
        blob = fetch(digest)
        parts.append(f"[lost: {digest}]" if blob is None else blob.decode())
        parts.append(piece)
    return "".join(parts)


def _strings(text: str) -> Iterator[tuple[int, int]]:
    """The spans between the quotes of the JSON string literals in `text`, up to the first that never ends."""
    # `str.find` runs at the speed of memory over megabytes of base64, and between two calls other threads get their
    # turn; one regular expression would hold them up for the whole body.
    find = text.find
    start = find('"') + 1
    while start:
        end = find('"', start)
        while end > 0 and _escaped(text, end):
            end = find('"', end + 1)
        if end < 0:
            return
        yield start, end
        start = find('"', end + 1) + 1


def _escaped(text: str, at: int) -> bool:
    before = at
    while text[before - 1] == "\\":
        before -= 1
    return (at - before) % 2 == 1
