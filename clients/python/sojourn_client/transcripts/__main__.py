"""`python -m sojourn_client.transcripts list | play NAME [--connection N]`: a transcript on stdin and stdout.

Further arguments are ignored, so that an editor that adds `connect` to its command can launch it. Exit code 1 when the
client left before everything came; stderr says what is missing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from sojourn_client._framing import Framing, Splitter, encode

from . import Off, load, names, play

_BLOCK = 65536


def main(arguments: list[str]) -> int:
    """Runs a command; its exit code."""
    if arguments[:1] == ["list"]:
        for name in names():
            sys.stdout.write(f"{name}\t{load(name).title}\n")
        return 0
    if arguments[:1] != ["play"] or len(arguments) < 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    connection = int(arguments[arguments.index("--connection") + 1]) if "--connection" in arguments else 1
    wire = _Stdio()
    try:
        play(load(arguments[1]), wire.read, wire.write, connection=connection)
    except Off as off:
        sys.stderr.write(f"The client left; {off}.\n")
        return 1
    except FileNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


class _Stdio:
    """Messages on stdin and stdout, in the framing of the first byte."""

    def __init__(self) -> None:
        self._framing: Framing = "headers"
        self._messages = self._read()

    def read(self) -> dict[str, Any] | None:
        return next(self._messages, None)

    def write(self, body: dict[str, Any]) -> None:
        data = encode(body, self._framing)
        while data:
            data = data[os.write(1, data) :]

    def _read(self) -> Iterator[dict[str, Any]]:
        splitter: Splitter | None = None
        while data := os.read(0, _BLOCK):
            if splitter is None:
                self._framing = "lines" if data.lstrip()[:1] in (b"{", b"[") else "headers"
                splitter = Splitter(self._framing)
            for body in splitter.feed(data):
                yield json.loads(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
