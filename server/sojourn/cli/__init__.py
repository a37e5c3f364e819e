"""The command line: one module a group of commands. It is a client like any other; only `serve` is the daemon."""

from __future__ import annotations


def main() -> int:
    """Runs the command line in `sys.argv` and answers its exit code."""
    import sys

    from ._app import run_app
    from ._commands import command_line

    return run_app(command_line(*sys.argv[1:2]))
