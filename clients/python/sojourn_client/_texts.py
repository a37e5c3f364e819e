"""How much of each unfinished message a client has seen, so that deltas join without a hole and without a repeat."""

from __future__ import annotations

from typing import Any

_Path = tuple[str, ...]


class Texts:
    """Lengths, in Unicode code points, by message and part. `path` leads to the child whose message it is."""

    def __init__(self) -> None:
        self._lengths: dict[tuple[_Path, str], dict[tuple[int, str], int]] = {}

    def note(self, path: _Path, event: dict[str, Any]) -> None:
        """A numbered event went by: a reset starts its message anew, an end or the end of a pass finishes it."""
        if event["type"] == "messageReset":
            self._lengths.pop((path, event["messageId"]), None)
        elif event["type"] == "messageEnd":
            self._lengths.pop((path, event["message"].get("messageId", "")), None)
        elif event["type"] == "agentEnd":
            for key in [key for key in self._lengths if key[0][: len(path)] == path]:
                del self._lengths[key]

    def admit(self, path: _Path, delta: dict[str, Any], *, force: bool = False) -> dict[str, Any] | None:
        """The delta without what was seen (its text may be empty then); None when text before it is missing.

        `force` takes it although text is missing.
        """
        parts, part = self._part(path, delta)
        seen = parts.get(part, 0)
        offset, text = delta["offset"], delta["text"]
        if offset > seen and not force:
            return None
        parts[part] = max(seen, offset + len(text))
        if offset >= seen:
            return delta
        return {**delta, "offset": seen, "text": text[seen - offset :]}

    def catch_up(self, path: _Path, piece: dict[str, Any]) -> dict[str, Any]:
        """A delta with what `piece` (of `streaming`, the whole text so far) has beyond what was seen."""
        parts, part = self._part(path, piece)
        seen, text = parts.get(part, 0), piece["text"]
        parts[part] = max(seen, len(text))
        return {
            "type": "messageDelta",
            "messageId": piece["messageId"],
            "part": piece["part"],
            "kind": piece["kind"],
            "offset": seen,
            "text": text[seen:],
        }

    def _part(self, path: _Path, piece: dict[str, Any]) -> tuple[dict[tuple[int, str], int], tuple[int, str]]:
        return self._lengths.setdefault((path, piece["messageId"]), {}), (piece["part"], piece["kind"])
