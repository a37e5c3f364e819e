"""Wiring and lifetime: config → store → hub → listeners, and an end that saves everything within two seconds.

Everything durable is committed before anybody hears of it, so ending is never more than stopping the tools and closing
the door; what takes longer than `END_S` is cut off like by a crash, from which the next start recovers.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from sojourn import __version__, _paths

from ._detach import Ready, detach
from ._lock import Locked, StateLock
from ._logs import Log

if TYPE_CHECKING:
    from sojourn.agents.hub import Hub
    from sojourn.config import Config
    from sojourn.models.base import Model
    from sojourn.rpc.host import Host
    from sojourn.rpc.stdio import Stdio
    from sojourn.tools.hooks import Hook
    from sojourn.tools.mcp import McpServers
    from sojourn.tools.processes import Surroundings
    from sojourn.tools.table import Toolbox

log = logging.getLogger(__name__)

END_S = 1.8
"""How long the end may take after a signal or the end of stdin."""
_THREADS_S = 0.2


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `sojourn serve` was told."""

    config: Path | None = None
    state_dir: Path | None = None
    socket: Path | None = None
    stdio: bool = False
    tcp: str | None = None
    detach: bool = False


class CannotStart(Exception):
    """The daemon cannot start; the message is one line for the user."""


def run(options: ServeOptions) -> int:
    """Runs the daemon until it is told to end; the exit code."""
    umask = os.umask(0o077)
    gc.disable()  # Until `_settle`: most of a start is imports, whose objects all stay.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))  # Nothing has begun that could be saved.
    ready = Ready()
    try:
        state_dir = _state_dir(options)
        lock = _lock(state_dir)  # noqa: F841 - held until the process is gone, however it goes
        config = _config(options)
        if options.detach:
            detached = detach(state_dir / "daemon.log")
            if isinstance(detached, int):
                return detached
            ready = detached
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        ends = _claim() if options.stdio else None
        output = Log(config.daemon.log_level, state_dir / "daemon.log" if options.detach else None)
        try:
            return _run_loop(_Daemon(options, config, state_dir, ready, umask), ends)
        finally:
            output.close()
    except (CannotStart, Locked) as error:
        ready.failed(str(error))
        return 1


def _run_loop(daemon: _Daemon, ends: Stdio | None) -> int:
    # Not `asyncio.run`: it would wait for a tool's thread for as long as that likes to take.
    loop = asyncio.new_event_loop()
    threads = ThreadPoolExecutor(thread_name_prefix="sojourn")
    loop.set_default_executor(threads)
    try:
        code = loop.run_until_complete(daemon.serve(ends))
    except CannotStart:
        raise
    except BaseException:
        log.critical("The daemon ends by a fault of its own.", exc_info=True)
        raise
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
    _leave(threads, code)
    loop.close()
    return code


class _Daemon:
    """One life."""

    def __init__(self, options: ServeOptions, config: Config, state_dir: Path, ready: Ready, umask: int) -> None:
        self._options = options
        self._config = config
        self._state_dir = state_dir
        self._ready = ready
        self._umask = umask
        self._over = asyncio.Event()
        self._hooks = _hooks(config)

    async def serve(self, ends: Stdio | None) -> int:
        """Serves until told to end; the exit code."""
        from sojourn.core.errors import SojournError, StorageError
        from sojourn.rpc.listen import CannotListen

        try:
            async with self._hub() as hub, self._host(hub) as host:
                self._listen_for_signals(host)
                return await (self._serve_stdio(host, ends) if ends else self._serve_sockets(host))
        except (CannotListen, SojournError, ExceptionGroup) as error:
            reason = _only(error)
            if not isinstance(reason, (CannotListen, SojournError)):
                raise
            if isinstance(reason, StorageError):
                raise CannotStart(_about_the_store(reason, self._state_dir)) from None
            raise CannotStart(str(reason)) from None

    def end(self, why: str, *, within_s: float | None = END_S) -> None:
        """Begins the end. Within `within_s` seconds the process is gone, whatever is in the way."""
        if self._over.is_set():
            return
        log.info("Ending: %s.", why)
        self._over.set()
        if within_s is not None:
            timer = threading.Timer(within_s, _cut_off, (0,))
            timer.daemon = True
            timer.start()

    @contextlib.asynccontextmanager
    async def _hub(self) -> AsyncIterator[Hub]:
        from sojourn.agents.hub import Hub
        from sojourn.store.sqlite import SqliteStore
        from sojourn.tools.processes import Surroundings

        around = Surroundings(self._config.secret_variables(), self._umask)
        store = await SqliteStore.open(self._state_dir, durability=self._config.daemon.durability)
        try:
            async with Hub(
                store,
                models=_models(self._config),
                default_model=self._config.daemon.default_model,
                toolbox=_toolbox(self._config, around),
                servers=_servers(self._config, self._state_dir),
                limits=_hub_limits(self._config),
                presets=self._config.presets(),
                jobs_dir=self._state_dir / "jobs",
                around=around,
                hooks=self._hooks,
            ) as hub:
                hub.on_shutdown = lambda mode: self.end(f"a client asked for it ({mode})")
                yield hub
        finally:
            await store.aclose()

    @contextlib.asynccontextmanager
    async def _host(self, hub: Hub) -> AsyncIterator[Host]:
        from sojourn.rpc.host import Host, WireLimits

        limits = self._config.limits
        host = Host(
            hub,
            WireLimits(
                max_frame_bytes=limits.max_frame_bytes,
                max_client_queue_bytes=limits.max_client_queue_bytes,
                max_inflight=limits.max_inflight,
            ),
        )
        hub.on_state = lambda state, reason: _tell_clients(host, state, reason)
        yield host

    async def _serve_stdio(self, host: Host, ends: Stdio) -> int:
        from sojourn.rpc.stdio import serve_stdio

        serving = asyncio.create_task(serve_stdio(host, ends))
        over = asyncio.create_task(self._until_over(host))
        log.info("Sojourn %s serves one client on stdin and stdout, state in %s.", __version__, self._state_dir)
        _settle()
        await asyncio.wait([serving, over], return_when=asyncio.FIRST_COMPLETED)
        code = serving.result() if serving.done() else 0
        self.end("the client has left")
        await _cancel(serving, over)
        return code

    async def _serve_sockets(self, host: Host) -> int:
        from sojourn.rpc.listen import read_token, serve_tcp, serve_unix

        socket = _paths.socket_file(self._options.socket, state=self._options.state_dir)
        where = {"socket": str(_paths.socket_path(socket))}
        async with contextlib.AsyncExitStack() as stack:
            if self._options.tcp is not None:
                token = read_token(_paths.token_file(self._state_dir))
                address = await stack.enter_async_context(serve_tcp(host, self._options.tcp, token=token))
                where["tcp"] = f"{address[0]}:{address[1]}"
            # Before the socket: whoever finds that one answering may look here for what answers.
            stack.callback(_forget, self._state_dir)
            _tell(self._state_dir, {"version": __version__, "pid": os.getpid(), **where})
            await stack.enter_async_context(serve_unix(host, socket))
            self._ready.ok()
            log.info(
                "Sojourn %s listens on %s, state in %s.", __version__, " and ".join(where.values()), self._state_dir
            )
            _settle()
            await self._until_over(host)
        return 0

    async def _until_over(self, host: Host) -> None:
        """Returns when a signal came, a client asked for the end, or nobody needed the daemon for long."""
        idle = asyncio.create_task(self._until_idle(host)) if self._config.daemon.idle_exit_s else None
        await self._over.wait()
        if idle is not None:
            await _cancel(idle)

    async def _until_idle(self, host: Host) -> None:
        limit = self._config.daemon.idle_exit_s
        since = time.monotonic()
        while time.monotonic() - since < limit:
            await asyncio.sleep(min(1.0, limit / 4))
            status = await host.hub.status()
            if host.connections or status["activeRuns"]:
                since = time.monotonic()
        self.end(f"nobody needed it for {limit:g} s")

    def _listen_for_signals(self, host: Host) -> None:
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGTERM, signal.SIGINT, *([] if self._options.detach else [signal.SIGHUP])]

        def heard(number: int) -> None:
            if self._over.is_set():
                _cut_off(128 + number)  # Whoever says it twice means now.
            self.end(signal.Signals(number).name)

        for number in numbers:
            loop.add_signal_handler(number, heard, number)


def _state_dir(options: ServeOptions) -> Path:
    directory = _paths.state_dir(options.state_dir)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(13, "it cannot be written to")
    except OSError as error:
        raise _unusable(directory, error) from None
    return directory


def _lock(directory: Path) -> StateLock:
    try:
        return StateLock(directory)
    except OSError as error:
        raise _unusable(directory, error) from None


def _unusable(directory: Path, error: OSError) -> CannotStart:
    what = f" ({Path(error.filename).name!r})" if error.filename and Path(error.filename) != directory else ""
    return CannotStart(
        f"The state directory {str(directory)!r} cannot be used: {error.strerror}{what}; "
        "--state-dir or $SOJOURN_STATE_DIR names another one."
    )


def _about_the_store(error: Exception, state_dir: Path) -> str:
    """What a start says that the store ended: with the place, and what to do."""
    from sojourn.store.migrations import DAMAGED
    from sojourn.store.sqlite import FILE_NAME

    if str(state_dir) in str(error):
        return str(error)
    return f"{str(error).rstrip('.')} ({str(state_dir / FILE_NAME)!r}); if it is damaged, {DAMAGED}."


def _config(options: ServeOptions) -> Config:
    from ._config_faults import ConfigError
    from .config import load

    try:
        return load(options.config)
    except ConfigError as error:
        raise CannotStart(str(error)) from None


def _claim() -> Stdio:
    from sojourn.rpc.listen import CannotListen
    from sojourn.rpc.stdio import claim

    try:
        return claim()
    except CannotListen as error:
        raise CannotStart(str(error)) from None


def _models(config: Config) -> dict[str, Callable[[], Model]]:
    from functools import partial

    from sojourn.models.table import make_model

    return {name: partial(make_model, spec) for name, spec in config.model_specs().items()}


def _toolbox(config: Config, around: Surroundings) -> Toolbox:
    from sojourn.tools.table import Toolbox

    tools = config.tools
    shell = around if tools.shell else None
    return Toolbox.standard(
        files=tools.files, shell=shell, demo=tools.demo, packages=tools.packages, kinds=config.kinds()
    )


def _servers(config: Config, state_dir: Path) -> McpServers:
    from sojourn.tools.mcp import McpServers

    return McpServers(config.mcp_servers(), notes=state_dir / "mcp-tasks")


def _hooks(config: Config) -> list[Hook]:
    from sojourn.tools.hooks import HookProblem, load

    try:
        return load(packages=config.hooks.packages, files=config.hook_files())
    except HookProblem as error:
        raise CannotStart(str(error)) from None


def _hub_limits(config: Config) -> Any:
    from dataclasses import fields

    from sojourn.agents.runtime import HubLimits

    return HubLimits(**{field.name: getattr(config.limits, field.name) for field in fields(HubLimits)})


def _tell_clients(host: Host, state: str, reason: str | None) -> None:
    from sojourn.rpc.answers import encode_notification

    said = encode_notification("server/state", {"state": state, **({} if reason is None else {"reason": reason})})
    for connection in host.connections:
        if connection.session.ready:
            connection.session.notify(said)


def _settle() -> None:
    """Tunes the interpreter for a process that runs for long and must answer fast while its store is busy.

    What was imported and built by now lives as long as the process: the collector need not look at it again (measured
    on Python 3.11: 20-37 % less CPU for pipelined requests). It looks at 20,000 new objects at a time: at 5,000 it
    takes as long in all, and more with what it then looks at twice. And a thread that wants to go on, such as the event
    loop beside the store's writer, waits half a millisecond for its turn, not five.
    """
    sys.setswitchinterval(0.0005)
    gc.freeze()  # Without a collection before: it takes a twentieth of the start, and one object in fifty is garbage.
    gc.enable()
    gc.set_threshold(20_000, 25, 25)


def _tell(state_dir: Path, what: dict[str, Any]) -> None:
    """Writes `daemon.json`, for clients of another version and for people; nobody decides anything by it."""
    fresh = state_dir / "daemon.json.new"
    try:
        fresh.write_bytes(orjson.dumps(what) + b"\n")
        fresh.replace(state_dir / "daemon.json")
    except OSError as error:
        log.warning("Where the daemon listens cannot be written down (%s).", error)


def _forget(state_dir: Path) -> None:
    try:
        (state_dir / "daemon.json").unlink(missing_ok=True)
    except OSError as error:
        log.warning("What was written down of the daemon stays (%s).", error)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _only(error: BaseException) -> BaseException:
    """What is inside of groups that task groups make of a single failure."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _cut_off(code: int) -> None:
    """Ends the process here and now, and the processes of tools that would outlive it."""
    if (process := sys.modules.get("sojourn.tools.mcp.process")) is not None:
        process.kill_groups()
    os._exit(code)


def _leave(threads: ThreadPoolExecutor, code: int) -> None:
    """Ends the process here if a thread is still at work that Python would wait for: a tool that cannot be stopped."""
    threads.shutdown(wait=False, cancel_futures=True)
    deadline = time.monotonic() + _THREADS_S
    for thread in threading.enumerate():
        if thread is threading.current_thread() or thread.daemon:
            continue
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            log.warning("The thread %r is still at work and is left behind.", thread.name)
            logging.shutdown()
            os._exit(code)
