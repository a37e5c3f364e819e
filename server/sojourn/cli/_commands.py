"""The whole command line, put together. Importing it loads typer and the client, and no server."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from sojourn import __version__

from . import agents, approvals, attach, demo, doctor, inbox, jobs, prompt, raw, runs, serve

app = typer.Typer(
    name="sojourn",
    help="A daemon for LLM agents. `sojourn prompt TEXT` is the quickest way in.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sojourn {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        Optional[bool],  # noqa: UP045 - typer reads it at run time
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit."),
    ] = None,
) -> None:
    pass


serve.register(app)
prompt.register(app)
attach.register(app)
agents.register(app)
inbox.register(app)
jobs.register(app)
approvals.register(app)
runs.register(app)
raw.register(app)
doctor.register(app)
demo.register(app)
