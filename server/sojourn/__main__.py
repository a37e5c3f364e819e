"""The way in: `sojourn`, `python -m sojourn`. `connect` goes straight to its bridge; the rest is the command line."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command in `sys.argv` and answers its exit code."""
    if sys.platform == "win32":
        sys.stderr.write("Sojourn needs unix sockets and signals; on Windows it runs inside WSL.\n")
        return 1
    if sys.argv[1:2] == ["connect"]:
        from sojourn._bridge import main as connect

        return connect(sys.argv[2:])
    from sojourn.cli import main as cli

    return cli()


if __name__ == "__main__":
    sys.exit(main())
