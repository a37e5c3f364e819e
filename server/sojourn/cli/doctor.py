"""`doctor`: looks at config, state, socket, models and tools, and says what to do about what is wrong."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sojourn import __version__, _paths
from sojourn_client import DaemonNotRunning, RpcError
from sojourn_client._launch import Place

from ._app import Exit, JsonFlag, Options, client, command
from ._behind import RESTART, differences
from ._peer import listener, written
from ._show import console, count, json_line

if TYPE_CHECKING:
    from sojourn.config import Config, McpServer
    from sojourn.models.base import ModelSpec


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one thing; `advice` says what to do when it is not all right."""

    check: str
    ok: bool
    message: str
    advice: str | None = None


def register(app: typer.Typer) -> None:
    """Enters the command."""
    command(app)(doctor)


ModelsFlag = Annotated[bool, typer.Option("--models", help="Also ask each model for one word.")]


async def doctor(options: Options, *, json: JsonFlag = False, models: ModelsFlag = False) -> int:
    """Checks everything and says what to do. Exit code 1 when something is wrong.

    Looks at config, state, socket, daemon, models and tools. Starts each MCP server for a moment and nothing else, and
    sends nothing to any model unless --models asks for it: then each gets one cheap request.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # What goes wrong is in the findings.
    wrong = 0
    async for finding in _findings(options, ask_models=models):
        wrong += not finding.ok
        if json:
            json_line({key: value for key, value in asdict(finding).items() if value is not None})
        else:
            _print(finding)
    if not json:
        console().print("All is well." if not wrong else f"{wrong} to put right.", style="bold")
    return Exit.ERROR if wrong else Exit.DONE


async def _findings(options: Options, *, ask_models: bool) -> AsyncIterator[Finding]:
    place = options.place
    yield Finding("version", True, f"Sojourn {__version__} on Python {sys.version.split()[0]}")
    config = None
    for found in _config(options):
        if isinstance(found, Finding):
            yield found
        else:
            config = found
    for finding in (*_state(Path(place.state_dir)), *_socket(place)):
        yield finding
    for finding in await _daemon(options, config):
        yield finding
    if config is not None:
        async for finding in _models(config, ask=ask_models):
            yield finding
        for finding in (*_hooks(config), *_tools(config)):
            yield finding
        async for finding in _mcp(config):
            yield finding


def _config(options: Options) -> Iterator[Finding | Config]:
    from sojourn._config_faults import ConfigError
    from sojourn.config import load

    try:
        config = load(options.config)
    except ConfigError as error:
        for fault in error.faults:
            yield Finding("config", False, str(fault), "Correct it; the daemon does not start with it.")
        return
    where = str(config.file) if config.file else f"none at {_paths.config_file(options.config)[0]}; the defaults hold"
    yield Finding("config", True, where)
    yield config


def _state(directory: Path) -> Iterator[Finding]:
    if not directory.exists():
        yield _unmade(directory)
        return
    found = directory.stat()
    if found.st_uid != os.geteuid():
        yield Finding("state", False, f"{directory} belongs to another user", "Name one of your own with --state-dir.")
    elif stat.S_IMODE(found.st_mode) & 0o077:
        yield Finding("state", False, f"others may enter {directory}", f"chmod 700 {directory}")
    elif not os.access(directory, os.W_OK | os.X_OK):
        yield Finding("state", False, f"{directory} cannot be written to", f"chmod 700 {directory}, or --state-dir.")
    else:
        size = sum(file.stat().st_size for file in directory.iterdir() if file.is_file())
        yield Finding("state", True, f"{directory} ({size / 1e6:.1f} MB)")


def _unmade(directory: Path) -> Finding:
    above = next(one for one in directory.parents if one.exists())
    advice = "Name another one with --state-dir or $SOJOURN_STATE_DIR."
    if not above.is_dir():
        return Finding("state", False, f"{directory} cannot be made: {above} is no directory", advice)
    if not os.access(above, os.W_OK | os.X_OK):
        return Finding("state", False, f"{directory} cannot be made: {above} cannot be written to", advice)
    return Finding("state", True, f"{directory} is made at the first start")


def _socket(place: Place) -> Iterator[Finding]:
    path = Path(place.path)
    if path.exists() and not path.is_socket():
        advice = "Move it away, or name another path with --socket."
        yield Finding("socket", False, f"{path} is there and is no socket", advice)
        return
    short = "" if place.path == place.socket else f" (instead of {place.socket}, which is too long for a socket)"
    yield Finding("socket", True, f"{path}{short}")


async def _daemon(options: Options, config: Config | None) -> list[Finding]:
    behind: list[str] = []
    try:
        async with client(options, reconnect_s=0) as daemon:
            status = await daemon.call("server/status")
            if config is not None:
                place = options.place
                pid = listener(place)
                behind = await differences(daemon, config, started=_started(place, pid, status), pid=pid)
    except DaemonNotRunning:
        return [Finding("daemon", True, "none runs; `sojourn prompt`, `attach` and `connect` start one")]
    except (RpcError, OSError) as error:
        advice = "`sojourn shutdown`, then try again."
        return [Finding("daemon", False, f"it does not answer as it should: {error}", advice)]
    return [_life(options, status), *(Finding("daemon", False, one, RESTART) for one in behind)]


def _started(place: Place, pid: int | None, status: dict[str, Any]) -> float:
    """When the daemon started. `daemon.json`, where it is this one's, tells it however late its answer is read."""
    if pid is not None and pid == written(place):
        with contextlib.suppress(OSError):
            return Path(place.state_dir, "daemon.json").stat().st_mtime
    return time.time() - float(status["uptimeS"])


def _life(options: Options, status: dict[str, Any]) -> Finding:
    counted = f"{count(status['agents'], 'agent')}, {count(status['activeRuns'], 'active run')}"
    said = f"Sojourn {status['version']}, {counted}"
    if status["version"] != __version__:
        return Finding("daemon", False, said, "`sojourn shutdown`; the next command starts this version.")
    if status["state"] != "ready":
        return Finding(
            "daemon", False, f"{said}, {status['state']}", f"Its log says why: {options.place.state_dir}/daemon.log."
        )
    return Finding("daemon", True, said)


async def _models(config: Config, *, ask: bool) -> AsyncIterator[Finding]:
    for name, spec in config.model_specs().items():
        default = ", the default" if name == config.daemon.default_model else ""
        label = f"{name} ({spec.backend}{default})"
        wrong, advice = _FAULTS.get(spec.backend, _key_fault)(spec)
        if ask and not wrong:
            yield await _tried(spec, label)
        else:
            yield Finding("model", not wrong, f"{label}: {wrong}" if wrong else label, advice or None)


async def _tried(spec: ModelSpec, label: str) -> Finding:
    from sojourn.models.trial import try_model

    trial = await try_model(spec)
    return Finding("model", not trial.advice, f"{label}: {trial.said}", trial.advice or None)


def _script_fault(spec: ModelSpec) -> tuple[str, str]:
    from sojourn.models.table import make_model

    try:
        make_model(spec)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a script is what was asked for
        return str(error), f"Correct {spec.script}."
    return "", ""


def _key_fault(spec: ModelSpec) -> tuple[str, str]:
    if spec.api_key_env and not os.environ.get(spec.api_key_env):
        return f"${spec.api_key_env} is not set", f"Set {spec.api_key_env} where the daemon is started."
    if spec.api_key_file and not os.access(spec.api_key_file, os.R_OK):
        return f"{spec.api_key_file} cannot be read", "Put the key into it, readable by you alone."
    if spec.api_key_command:
        program = spec.api_key_command.split()[0]
        if shutil.which(program) is None:
            return f"there is no command {program!r}", "Install it, or name another api_key_command."
    return "", ""


def _local_fault(spec: ModelSpec) -> tuple[str, str]:
    from sojourn.models._local_files import fault_of

    return fault_of(spec) or ("", "")


_FAULTS = {"scripted": _script_fault, "local": _local_fault}


def _hooks(config: Config) -> Iterator[Finding]:
    from sojourn.tools.hooks import HookProblem, load

    try:
        hooks = load(packages=config.hooks.packages, files=config.hook_files())
    except HookProblem as error:
        yield Finding("hooks", False, str(error), "Until then the daemon does not start.")
        return
    if hooks:
        yield Finding("hooks", True, ", ".join(hook.name for hook in hooks))


def _tools(config: Config) -> Iterator[Finding]:
    from sojourn.tools.processes import Surroundings
    from sojourn.tools.table import Toolbox

    from ._presets import faults

    toolbox = Toolbox.standard(
        files=config.tools.files,
        demo=config.tools.demo,
        packages=config.tools.packages,
        shell=Surroundings() if config.tools.shell else None,
    )
    names = ", ".join(sorted(one.info.spec.name for one in toolbox))
    yield Finding("tools", True, names)
    for problem in toolbox.problems:
        advice = "Repair or uninstall that package, or set tools.packages = false."
        yield Finding("tools", False, f"{problem.source}: {problem.message}", advice)
    for fault in faults(config, toolbox):
        yield Finding("presets", False, fault, "Correct it in the config.")


async def _mcp(config: Config) -> AsyncIterator[Finding]:
    """Starts each server, asks it for its tools, and ends it."""
    from sojourn.tools.mcp import McpServers

    servers = McpServers(config.mcp_servers())
    try:
        for name, server in config.mcp.servers.items():
            if not server.enabled:
                yield Finding("mcp", True, f"{name}: switched off")
                continue
            names, problems = await servers.trial(name)
            if names or not problems:
                yield Finding("mcp", True, f"{name}: {count(len(names), 'tool')}: {', '.join(names)}")
            for problem in problems:
                yield Finding("mcp", False, f"{name}: {problem.message}", _mcp_advice(server, bool(names)))
    finally:
        await servers.aclose()


def _mcp_advice(server: McpServer, works: bool) -> str:
    if works:
        return "Tell whoever made the server; its other tools can be used."
    if server.command is None:
        return f"See whether {server.url} is the right address, and the server is there."
    if shutil.which(server.command) is None:
        return "Install it, or correct the path."
    return f"Try it by hand: {' '.join([server.command, *server.args])}"


def _print(finding: Finding) -> None:
    from rich.text import Text

    from ._table import beside

    mark = Text("✓ ", "green") if finding.ok else Text("✗ ", "bold red")
    beside(console(), Text.assemble(mark, (f"{finding.check:<8}", "bold")), Text(finding.message))
    if finding.advice:
        beside(console(), Text(f"{'':10}→ ", "yellow"), Text(finding.advice, "yellow"))
