#!/usr/bin/env python3
"""Writes the generated pages of `docs/`; with `--check` only says whether they are up to date (exit code 1 if not)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from sojourn.cli._page import command_markdown
from sojourn.methods._markdown import protocol_markdown

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES: dict[str, Callable[[], str]] = {"protocol.md": protocol_markdown, "command-line.md": command_markdown}


def main(arguments: list[str]) -> int:
    """Writes or checks every page."""
    if unknown := [one for one in arguments if one != "--check"]:
        sys.stderr.write(f"generate_docs.py takes --check only, not {unknown[0]!r}.\n")
        return 2
    stale = [name for name, make in PAGES.items() if _current(name) != make()]
    if "--check" in arguments:
        for name in stale:
            sys.stderr.write(f"docs/{name} is not up to date; run `make docs`.\n")
        return 1 if stale else 0
    DOCS.mkdir(exist_ok=True)
    for name in stale:
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        sys.stdout.write(f"wrote docs/{name}\n")
    return 0


def _current(name: str) -> str | None:
    page = DOCS / name
    return page.read_text(encoding="utf-8") if page.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
