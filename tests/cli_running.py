"""Running `sojourn …` inside the test's own process: the same entry point, without a new interpreter each time."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from sojourn_client.testing import DaemonProcess


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> list[Any]:
        """stdout as JSON, a value a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """The command line with one daemon's places in its environment."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon

    def __call__(self, *arguments: str, stdin: str = "") -> Done:
        from sojourn.__main__ import main

        out, err = io.StringIO(), io.StringIO()
        with self._process(["sojourn", *arguments], stdin, out, err):
            code = int(main())
        return Done(code, out.getvalue(), err.getvalue())

    def json(self, *arguments: str) -> list[Any]:
        """The JSON lines of a command that succeeds."""
        done = self(*arguments, "--json")
        assert done.code == 0, done
        return done.json

    @contextlib.contextmanager
    def _process(self, argv: list[str], stdin: str, out: io.StringIO, err: io.StringIO) -> Iterator[None]:
        with (
            mock.patch.object(sys, "argv", argv),
            mock.patch.object(sys, "stdin", io.StringIO(stdin)),
            mock.patch.dict(os.environ, self.daemon.env, clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            yield
