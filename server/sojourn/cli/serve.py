"""`serve`, `connect`, `shutdown`, `pid`, `socket`: the daemon's life, seen from the shell."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Optional

import typer

from sojourn._living import lives
from sojourn_client import ConnectionLost
from sojourn_client._launch import Place

from ._app import Exit, Failure, Options, client, command, say
from ._peer import listener, other_daemon, written


def register(app: typer.Typer) -> None:
    """Enters the commands."""
    command(app)(serve)
    command(app)(connect)
    command(app)(shutdown)
    command(app)(pid)
    command(app)(socket)


def serve(
    options: Options,
    *,
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve one client on stdin and stdout.")] = False,
    tcp: Annotated[
        Optional[str],  # noqa: UP045 - typer reads it at run time
        typer.Option("--tcp", metavar="HOST:PORT", help="Listen here, too; clients must show the token."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Go into the background once it answers.")] = False,
) -> int:
    """Runs the daemon. It listens on the unix socket, and on TCP when asked to; or serves one client on stdio."""
    from sojourn.daemon import ServeOptions, run

    if stdio and (tcp or detach):
        raise typer.BadParameter("--stdio serves one client in the foreground; --tcp and --detach do not go with it.")
    if detach and (process := _running(options.place)) is not None:
        say(f"already running (pid {process})")
        return Exit.DONE
    return run(
        ServeOptions(
            config=options.config,
            state_dir=options.state_dir,
            socket=options.socket,
            stdio=stdio,
            tcp=tcp,
            detach=detach,
        )
    )


def connect(options: Options) -> int:
    """Connects stdin and stdout to the daemon. Editors launch this; a daemon is started if none runs."""
    # `sojourn connect` never comes here (see `sojourn.__main__`); this is its entry in the help.
    from sojourn._bridge import main

    given = {"--config": options.config, "--state-dir": options.state_dir, "--socket": options.socket}
    return main([f"{name}={value}" for name, value in given.items() if value is not None])


async def shutdown(
    options: Options,
    *,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for runs to come to a point of rest.")] = False,
) -> None:
    """Saves everything and ends the daemon. Returns when it has ended."""
    process = listener(options.place)
    if options.state_dir is not None and options.socket is None and (other := other_daemon(options.place)) is not None:
        raise Failure(f"Nothing is ended. {other}")
    async with client(options, reconnect_s=0) as daemon:
        with contextlib.suppress(ConnectionLost):  # It may be gone before its answer is here.
            await daemon.call("server/shutdown", {"mode": "now" if now else "drain"})
        await daemon.wait_lost()
    while process is not None and lives(process):  # noqa: ASYNC110 - another process's end is no event of this loop
        await asyncio.sleep(0.02)
    say("The daemon has ended.")


def pid(options: Options) -> None:
    """Prints the process id of the daemon that runs."""
    process = listener(options.place)
    if process is None:
        raise Failure("A daemon runs, but neither the system nor its state directory tells its process id.")
    print(process)


def socket(options: Options) -> None:
    """Prints the path of the socket, whether a daemon runs or not."""
    print(options.place.path)


def _running(place: Place) -> int | None:
    """The process of a daemon that answers already and has this very state directory."""
    try:
        process = listener(place)
    except OSError:
        return None
    return process if process == written(place) else None
