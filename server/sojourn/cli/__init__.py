"""The command line: one module a group of commands. It is a client like any other; only `serve` is the daemon."""

from __future__ import annotations


def main() -> int:
    """Runs the command line in `sys.argv` and answers its exit code."""
    from ._app import run_app
    from ._commands import app

    return run_app(app)
