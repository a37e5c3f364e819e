"""Whether the daemon that runs is behind its files (config, hooks, scripts), its packages and its environment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sojourn_client.client import Client

if TYPE_CHECKING:
    from sojourn.config import Config

RESTART = "`sojourn shutdown`; the next command starts it anew."
UNKNOWN = "The running daemon read its config when it started; after a change: " + RESTART
"""What to say beside the daemon's word that it knows no such model or preset."""


async def differences(daemon: Client, config: Config, *, started: float, pid: int | None) -> list[str]:
    """What this command would have the daemon start with, and the running one has not; a sentence each.

    `started`: when that was, in seconds since the epoch.
    """
    found = [*_files(config, started), *_packages(config, started)]
    theirs = (await daemon.call("model/list"))["models"]
    found += _models(config, {model["name"] for model in theirs}, [m["name"] for m in theirs if m["default"]])
    if pid is not None and (environment := _environment(pid)) is not None:
        found += _variables(config, environment)
    return found


def _files(config: Config, started: float) -> Iterator[str]:
    hooks = {Path(file): " (a hook)" for file in config.hook_files()}
    named = (spec.script for spec in config.model_specs().values())
    scripts = {Path(file): " (a model's script)" for file in named if file and not file.startswith("builtin:")}
    for file, what in {**({config.file: ""} if config.file else {}), **hooks, **scripts}.items():
        with contextlib.suppress(OSError):  # one that is gone is told of where it is checked
            if file.stat().st_mtime > started:
                yield f"{file}{what} was changed after the daemon started"


def _packages(config: Config, started: float) -> Iterator[str]:
    asked = (("sojourn.tools", config.tools.packages), ("sojourn.hooks", config.hooks.packages))
    points = [point for group, wanted in asked if wanted for point in entry_points(group=group)]
    packages = {point.dist.name: point.dist for point in points if point.dist is not None}
    for name, package in sorted(packages.items()):
        written = [Path(str(file.locate())) for file in package.files or () if file.name == "RECORD"]
        if any(file.exists() and file.stat().st_mtime > started for file in written):
            yield f"the package {name} was installed after the daemon started"


def _models(config: Config, theirs: set[str], default: list[str]) -> Iterator[str]:
    ours = config.model_specs().keys()
    if missing := sorted(ours - theirs):
        yield f"the running daemon does not know the model {', '.join(missing)}"
    if more := sorted(theirs - ours):
        yield f"the running daemon still has the model {', '.join(more)}"
    if not (missing or more) and default != [config.daemon.default_model]:
        yield f"the running daemon's default model is {', '.join(default) or 'none'}, not {config.daemon.default_model}"


def _variables(config: Config, theirs: dict[str, str]) -> Iterator[str]:
    from sojourn.config import variables

    keys: list[Any] = [spec.api_key_env for spec in config.model_specs().values()]
    for name in sorted({*variables(), *filter(None, keys)}):
        if os.environ.get(name, "") != theirs.get(name, ""):
            yield f"${name} is not what the running daemon was started with"


def _environment(pid: int) -> dict[str, str] | None:
    """What a process was started with; None where the system does not say."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in (entry.partition(b"=") for entry in entries)}
