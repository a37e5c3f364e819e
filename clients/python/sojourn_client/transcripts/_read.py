"""Reading transcripts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

FORMAT = 1
FOLDER = Path(__file__).parent / "recorded"


@dataclass(frozen=True)
class Frame:
    """A message, and who reads it. `connection` counts from 1: a client that lost one goes on with the next."""

    to: Literal["daemon", "client"]
    body: dict[str, Any]
    connection: int


@dataclass(frozen=True)
class Transcript:
    """`shows` is what a client that has read everything knows of the agent, whichever way it draws it."""

    name: str
    title: str
    frames: tuple[Frame, ...]
    shows: dict[str, Any] = field(default_factory=dict)

    def events(self) -> list[dict[str, Any]]:
        """The params of every `agent/event`, in order, over all connections."""
        return [frame.body["params"] for frame in self.frames if frame.body.get("method") == "agent/event"]


def names() -> list[str]:
    """The transcripts that come with this package."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def find(name: str) -> Path:
    """The file of a transcript of this package, or of the path itself. Raises `FileNotFoundError` with the names."""
    for path in (FOLDER / f"{name}.jsonl", Path(name)):
        if path.is_file():
            return path
    raise FileNotFoundError(f"There is no transcript {name!r}; there are {', '.join(names())}.")


def load(name: str | Path) -> Transcript:
    """Reads a transcript by its name or path. Raises `ValueError` for a file of another format."""
    path = find(str(name))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    head = lines[0] if lines else {}
    if head.get("transcript") != FORMAT:
        raise ValueError(f"{path.name!r} is of transcript format {head.get('transcript')!r}, this reads {FORMAT}.")
    frames: list[Frame] = []
    shows: dict[str, Any] = {}
    connection = 1
    for line in lines[1:]:
        if "to" in line:
            frames.append(Frame(line["to"], line["frame"], connection))
        elif "connection" in line:
            connection = line["connection"]
        else:
            shows = line.get("shows", shows)
    return Transcript(head["name"], head["title"], tuple(frames), shows)
