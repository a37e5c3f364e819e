"""The command line, put together: all of it, or the modules that one command needs. It loads no server."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Optional

import typer

from sojourn import __version__

from ._meant import Commands

MODULES = {
    "serve": ("serve", "connect", "shutdown", "pid", "socket"),
    "prompt": ("prompt", "resume", "create"),
    "attach": ("attach",),
    "agents": ("ps", "stop", "delete", "events"),
    "inbox": ("inbox",),
    "jobs": ("jobs",),
    "approvals": ("approvals", "approve", "rules"),
    "runs": ("run",),
    "raw": ("call", "protocol"),
    "doctor": ("doctor",),
    "demo": ("demo",),
}
"""What each module enters. To import and read them all takes a command a tenth longer."""


def command_line(first: str | None = None) -> typer.Typer:
    """The whole command line; only the module of the command `first` where there is such a command."""
    app = typer.Typer(
        name="sojourn",
        cls=Commands,
        help="A daemon for LLM agents. `sojourn prompt TEXT` is the quickest way in.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in [name for name, entered in MODULES.items() if first in entered] or MODULES:
        import_module(f"sojourn.cli.{name}").register(app)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sojourn {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        Optional[bool],  # noqa: UP045 - typer reads it at run time
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit."),
    ] = None,
) -> None:
    pass
