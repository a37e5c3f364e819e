"""What all commands share: the three options that every one takes, exit codes, and how failures are told.

A command is a function of a `Place` (where the daemon is) and its own options; coroutines are run. It answers an exit
code, or None for 0.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand

from sojourn_client import DaemonNotRunning, DaemonStartFailed, RpcError, connect
from sojourn_client._launch import STARTING, Place, dial
from sojourn_client.client import Client

from . import _signals
from ._behind import UNKNOWN
from ._peer import other_daemon


class Exit(IntEnum):
    """What the shell is told."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    NO_DAEMON = 3
    PAUSED = 4
    FAILED = 5
    INTERRUPTED = 130


CLIENT_ID = "cli"
OF_REASON = {"done": Exit.DONE, "paused": Exit.PAUSED}
"""A pass's `reason` as an exit code; every other reason is `FAILED`."""

JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON value a line, for scripts.")]
AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id, or the beginning of it.")]

_PLACES = {
    "config": Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it at run time
        typer.Option("--config", metavar="PATH", help="The config file of a daemon that is started."),
    ],
    "state_dir": Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--state-dir", metavar="PATH", help="The state directory."),
    ],
    "socket": Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--socket", metavar="PATH", help="The daemon's socket."),
    ],
}

_USAGE: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What a wrong command line raises; typer has it from click, its own copy of it or the installed one."""

F = TypeVar("F", bound=Callable[..., Any])


class _Command(TyperCommand):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """As one types it: what may be left out in brackets, and nothing around the rest."""
        words = [
            (str(one.metavar or one.name).upper(), one.required)
            for one in self.params
            if isinstance(one, TyperArgument)
        ]
        return ["[OPTIONS]", *(word if required else f"[{word}]" for word, required in words)]


class Options:
    """Where the daemon is, as the command line said it."""

    def __init__(self, config: Path | None, state_dir: Path | None, socket: Path | None) -> None:
        self.config, self.state_dir, self.socket = config, state_dir, socket

    @property
    def place(self) -> Place:
        """What the options come to."""
        return Place(config=self.config, state_dir=self.state_dir, socket=self.socket)


def command(group: typer.Typer, name: str | None = None) -> Callable[[F], F]:
    """Enters a function into a group of commands, with the options of every command after its own."""

    def enter(function: F) -> F:
        own = inspect.signature(function, eval_str=True)
        places = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for key, annotation in _PLACES.items()
        ]
        parameters = [*list(own.parameters.values())[1:], *places]

        @functools.wraps(function)
        def run(**given: Any) -> None:
            options = Options(*(given.pop(key) for key in _PLACES))
            answer = function(options, **given)
            try:
                code = _signals.run(answer) if inspect.iscoroutine(answer) else answer
            except BrokenPipeError:
                code = _reader_gone()
            if code:
                raise typer.Exit(int(code))

        run.__signature__ = own.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__
        group.command(name or function.__name__.replace("_", "-"), cls=_Command)(run)
        return function

    return enter


def client(options: Options, *, start: bool = False, **more: Any) -> _Session:
    """A connected client in `async with`; `start` starts a daemon when none runs."""
    return _Session(options, start=start, **more)


def say(text: str) -> None:
    """Words for a person, on stderr; on a terminal their lines are broken at words."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        lines = (
            textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n")
        )
        text = "\n".join("\n".join(line) for line in lines)
    with contextlib.suppress(OSError):  # The terminal may be gone, which is when some of it is said.
        print(text, file=sys.stderr, flush=True)


def run_app(app: typer.Typer) -> int:
    """Runs the command line and answers the exit code. Every deliberate failure is one line on stderr."""
    logging.getLogger("sojourn_client").setLevel(logging.ERROR)  # What matters of it is said by the command.
    try:
        answer = app(standalone_mode=False)
    except _USAGE as error:
        error.show()
        return int(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except DaemonNotRunning as error:
        say(str(error))
        return Exit.NO_DAEMON
    except RpcError as error:
        configured = error.kind == "unknownModel" or (error.data or {}).get("field") == "config.preset"
        say(f"{error.message} {UNKNOWN}" if configured else error.message)
        return Exit.ERROR
    except (OSError, DaemonStartFailed, Failure) as error:
        say(str(error))
        return Exit.ERROR
    return answer if isinstance(answer, int) else Exit.DONE


class Failure(Exception):
    """A command cannot do what it was asked to; the message is for a person."""


class _Session:
    def __init__(self, options: Options, *, start: bool, **more: Any) -> None:
        self._starts = options.place if start else None
        self._means = options.place if options.state_dir is not None and options.socket is None else None
        self._connecting = connect(
            config=options.config,
            state_dir=options.state_dir,
            socket=options.socket,
            client_id=CLIENT_ID,
            start=start,
            **more,
        )

    async def __aenter__(self) -> Client:
        if self._starts is not None:
            _say_starting(self._starts)
        opened = await self._connecting
        if opened.version_mismatch:
            say(opened.version_mismatch)
        if self._means is not None and (other := other_daemon(self._means)) is not None:
            say(other)
        self._client = opened
        return opened

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()


def _say_starting(place: Place) -> None:
    try:
        dial(place).close()
    except DaemonNotRunning:
        say(STARTING)
    except OSError:
        return  # `connect` meets it as well, and says it.


def _reader_gone() -> int:
    # `sojourn events | head`: whoever read has enough. Python would complain when it flushes at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return Exit.DONE
