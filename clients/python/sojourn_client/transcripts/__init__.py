"""Recorded conversations between a client and the daemon, for tests of clients in any language.

A transcript is a file of JSON lines (docs/conformance.md). `load` reads one, `play` is a daemon that follows it, and
`python -m sojourn_client.transcripts play NAME` is that on stdin and stdout, to be launched as `sojourn connect` is.
"""

from __future__ import annotations

from ._play import Off, play
from ._read import Frame, Transcript, find, load, names

__all__ = ["Frame", "Off", "Transcript", "find", "load", "names", "play"]
