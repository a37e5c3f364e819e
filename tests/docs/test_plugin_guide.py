"""Every frame of the guide for plugin authors is sent to a real daemon, and answered as the guide says."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sojourn_client.testing import DaemonProcess, daemon, make_daemon

__all__ = ["daemon", "make_daemon"]

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "plugins.md"
ANY = "…"


def frames() -> Iterator[tuple[str, Any]]:
    for block in re.findall(r"```frames\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        for line in block.splitlines():
            yield line[0], json.loads(line[2:])


def fits(said: Any, real: Any) -> bool:
    """Whether `real` holds everything that is `said`; an array's items must each be in it, in any place."""
    if said == ANY:
        return real is not None
    if isinstance(said, dict):
        return isinstance(real, dict) and all(key in real and fits(value, real[key]) for key, value in said.items())
    if isinstance(said, list):
        return isinstance(real, list) and bool(said) == bool(real) and all(any(fits(s, r) for r in real) for s in said)
    return bool(said == real and type(said) is type(real))


class Wire:
    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("r", encoding="utf-8", newline="\n")
        self.last_request_id: Any = None

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def send(self, frame: dict[str, Any]) -> None:
        if frame.get("id") == "$id":
            frame = {**frame, "id": self.last_request_id}
        self._socket.sendall(json.dumps(frame).encode() + b"\n")

    def expect(self, said: dict[str, Any]) -> None:
        """Reads until a frame fits what the guide says; others in between are left out there."""
        seen: list[Any] = []
        while True:
            try:
                line = self._lines.readline()
            except TimeoutError:
                line = ""
            assert line, f"never came: {said}\ncame: {seen}"
            seen.append(json.loads(line))
            if fits(said, seen[-1]):
                break
        if "method" in seen[-1] and "id" in seen[-1]:
            self.last_request_id = seen[-1]["id"]


def test_the_guides_conversation_is_what_a_real_daemon_says(daemon: DaemonProcess) -> None:
    wire = Wire(daemon.socket)
    answered = 0
    try:
        for way, frame in frames():
            if way == "→":
                wire.send(frame)
            else:
                wire.expect(frame)
                answered += 1
    finally:
        wire.close()
    assert answered > 30


def test_fits_can_fail() -> None:
    assert not fits({"a": 1}, {"a": 2})
    assert not fits({"a": 1}, {"b": 1})
    assert not fits({"a": []}, {"a": [1]})
    assert not fits({"a": [{"b": 1}]}, {"a": [{"b": 2}]})
    assert not fits({"a": ANY}, {"a": None})
    assert not fits({"a": True}, {"a": 1})
