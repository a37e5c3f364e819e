"""One connection to one server, from the handshake to the end, by the SDK's session.

Rule: one task enters and leaves everything that belongs to a connection (`run`), because the SDK's scopes are bound to
the task that opened them. Others only send requests through it; their cancellation is passed on to the server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import anyio
import mcp_types as types
from mcp import ClientSession, MCPError
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from pydantic import BaseModel, TypeAdapter, ValidationError

from sojourn._version import __version__
from sojourn.core.servers import McpServer
from sojourn.tools.base import ToolOutput

from .failures import CallRefused, ConnectionLost, NotSent, ServerDown
from .listing import ListedTool, Listing, read_listing
from .process import MAX_MESSAGE_BYTES, ServerProcess
from .results import as_output

log = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=BaseModel)

MAX_PAGES = 100
RELIST_S = 0.2
"""However often a server says that its tools have changed, they are listed again no sooner than after this."""
TASK_TTL_S = 24 * 3600
_RAW: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
_NO_SESSION = (types.INVALID_REQUEST, -32000, -32001)
"""What servers answer over HTTP to a session that they do not know (status 404, which the SDK does not hand on)."""
_NEWER = (types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND)


class Connection:
    """A connection under way. `listing` is what the server offers; `on_listing` is called whenever it has changed."""

    def __init__(self, name: str, server: McpServer, on_listing: Callable[[], None]) -> None:
        self.listing = Listing({})
        self._name = name
        self._server = server
        self._on_listing = on_listing
        self._process: ServerProcess | None = None
        self._scope = anyio.CancelScope()
        self._news = anyio.Event()
        self._over = False
        self._retired = False
        self._stale = False
        self._calls = 0
        self._used_at = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether it can still be used."""
        return not self._over

    def end(self) -> None:
        """Asks the owner to end it, wherever it stands."""
        self._over = True
        self._scope.cancel()

    # -- the owner's part -------------------------------------------------------------------------------------------

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Connects, calls `on_ready`, and returns when it was ended by `end` or because it was idle for long.

        Raises `ServerDown` with the reason of every other end.
        """
        try:
            with self._scope:
                async with self._streams() as (reads, writes):
                    self._dispatcher = JSONRPCDispatcher[Any](reads, writes)
                    info = types.Implementation(name="sojourn", version=__version__)
                    async with ClientSession(
                        dispatcher=self._dispatcher, client_info=info, message_handler=self._hear
                    ) as self._session:
                        with anyio.fail_after(self._server.start_timeout_s):
                            await self._greet()
                            self.listing = await self._list()
                        on_ready()
                        await self._serve()
                    if not self._retired:
                        raise ServerDown(self._epitaph())
        except Exception as error:
            raise ServerDown(self._reason(error)) from error
        finally:
            self._over = True

    @contextlib.asynccontextmanager
    async def _streams(self) -> AsyncIterator[tuple[Any, Any]]:
        if self._server.command is not None:
            async with ServerProcess(self._name, self._server, self._ended) as self._process:
                yield self._process.reads, self._process.writes
            return
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        from ._http import judge

        assert self._server.url is not None
        patience = httpx2.Timeout(self._server.start_timeout_s, read=self._server.call_timeout_s)
        async with (
            httpx2.AsyncClient(
                headers=_headers(self._server), timeout=patience, event_hooks={"response": [judge]}
            ) as http,
            streamable_http_client(self._server.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
        ):
            yield streams

    async def _greet(self) -> None:
        """The handshake that all servers know; one that is too new for it is asked in the newer way."""
        try:
            await self._session.initialize()
        except MCPError as error:
            if error.code not in _NEWER:
                raise
            await self._session.discover()

    async def _serve(self) -> None:
        """Until it is over, or idle for too long."""
        while not self._over:
            with anyio.move_on_after(self._idle_s()) as waiting:
                await self._news.wait()
            if waiting.cancelled_caught:
                if self._idle_s() <= 0:
                    self._over = self._retired = True  # at once: from here on a call begins the next life
                    return
                continue
            self._news = anyio.Event()
            if self._stale and not self._over:
                self._stale = False
                await self._relist()
                await anyio.sleep(RELIST_S)

    def _idle_s(self) -> float:
        """How long it may still be idle."""
        most = self._server.idle_timeout_s
        if most is None:
            return float("inf")
        return most if self._calls else self._used_at + most - time.monotonic()

    async def _relist(self) -> None:
        try:
            with anyio.fail_after(self._server.start_timeout_s):
                self.listing = await self._list()
        except (MCPError, ServerDown, ValidationError, TimeoutError) as error:
            log.warning("The MCP server %r said that its tools have changed, but: %s", self._name, self._reason(error))
        else:
            self._on_listing()

    async def _list(self) -> Listing:
        able = self._session.server_capabilities
        if able is None or able.tools is None:
            return Listing({})
        entries: list[Any] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
            answer = await self._request(types.ListToolsRequest(params=page), {})
            found, following = answer.get("tools"), answer.get("nextCursor")
            if not isinstance(found, list):
                raise ServerDown("its answer to 'tools/list' has no list of tools")
            entries += found
            if not isinstance(following, str) or following == cursor:
                break
            cursor = following
        return read_listing(self._name, entries, tasks=self._has_tasks)

    @property
    def _has_tasks(self) -> bool:
        able = self._session.server_capabilities
        asked = able.tasks.requests if able is not None and able.tasks is not None else None
        return asked is not None and asked.tools is not None and asked.tools.call is not None

    def _ended(self) -> None:
        self._over = True
        self._news.set()

    async def _hear(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._stale = True
            self._news.set()

    # -- everybody's part -------------------------------------------------------------------------------------------

    async def call(self, tool: ListedTool, args: dict[str, Any], on_progress: ProgressFnT) -> ToolOutput | types.Task:
        """A call's result, or the task that it became.

        Raises `CallRefused` for an error answer, `ConnectionLost`, `NotSent` when the server cannot have got it.
        """
        params = types.CallToolRequestParams(name=tool.raw, arguments=args)
        if tool.as_task:
            params = params.model_copy(update={"task": types.TaskMetadata(ttl=TASK_TTL_S * 1000)})
        with self._at_work():
            answer = await self._ask(types.CallToolRequest(params=params), {"on_progress": on_progress})
            if tool.as_task and "task" in answer:
                return _parsed(types.CreateTaskResult, answer).task
            return _output(answer)

    async def task(self, task_id: str) -> types.Task:
        """How a task stands."""
        params = types.GetTaskRequestParams(task_id=task_id)
        return _parsed(types.GetTaskResult, await self._ask(types.GetTaskRequest(params=params), {}))

    async def task_result(self, task_id: str) -> ToolOutput:
        """The result of a task that has ended."""
        params = types.GetTaskPayloadRequestParams(task_id=task_id)
        return _output(await self._ask(types.GetTaskPayloadRequest(params=params), {}))

    async def cancel_task(self, task_id: str) -> None:
        """Asks the server to give up a task."""
        params = types.CancelTaskRequestParams(task_id=task_id)
        await self._ask(types.CancelTaskRequest(params=params), {})

    async def _ask(self, request: types.Request[Any, Any], options: CallOptions) -> dict[str, Any]:
        try:
            return await self._request(request, options)
        except MCPError as error:
            if self._process is None and error.code in _NO_SESSION and "session" in error.message.lower():
                self._end_soon()
                raise NotSent("it does not know this session any more") from error
            if error.code == types.CONNECTION_CLOSED or self._over:
                self._end_soon()
                raise ConnectionLost(self._epitaph()) from error
            raise CallRefused(f"{error.message} ({error.code})") from error
        except ValidationError as error:
            raise CallRefused(f"its answer is malformed ({_first(error)})") from error

    def _end_soon(self) -> None:
        self._over = True
        self._news.set()

    async def _request(self, request: types.Request[Any, Any], options: CallOptions) -> dict[str, Any]:
        """The answer as it came: what the SDK would make of it fails as a whole when one tool of a list is bad."""
        version = self._session.protocol_version
        if self._session.initialize_result is None or version is None:
            on_progress = options.get("on_progress")
            answer: dict[str, Any] = await self._session.send_request(request, _RAW, progress_callback=on_progress)
            return answer
        data = request.model_dump(by_alias=True, mode="json", exclude_none=True)
        options = {**options, "headers": {MCP_PROTOCOL_VERSION_HEADER: version}}
        return await self._dispatcher.send_raw_request(data["method"], data.get("params"), options)

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._used_at = time.monotonic()

    # -- why --------------------------------------------------------------------------------------------------------

    def _epitaph(self) -> str:
        return "the connection has ended" if self._process is None else self._process.epitaph()

    def _reason(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        match error:
            case ServerDown():
                return str(error)
            case TimeoutError():
                words = "" if self._process is None else self._process.words()
                return f"it was not ready within start_timeout_s ({self._server.start_timeout_s:g} s){words}"
            case MCPError() if error.code == types.CONNECTION_CLOSED:
                return self._epitaph()
            case MCPError():
                return f"it answered with an error: {error.message} ({error.code})"
            case ValidationError():
                return f"it answered with something that is not MCP ({_first(error)})"
            case OSError() if self._process is None and self._server.command is not None:
                return f"{self._server.command!r} cannot be started: {error.strerror} ({error.filename!r})"
            case _ if self._server.url is not None:
                return f"{self._server.url} cannot be reached ({type(error).__name__}: {error})"
            case _:
                return f"{type(error).__name__}: {error}"


def _output(answer: dict[str, Any]) -> ToolOutput:
    if answer.get("resultType") == "input_required":
        raise CallRefused("it wants to be told something by a person first, which Sojourn does not offer to servers")
    return as_output(_parsed(types.CallToolResult, answer))


def _parsed(model: type[Answer], answer: dict[str, Any]) -> Answer:
    try:
        return model.model_validate(answer, by_name=False)
    except ValidationError as error:
        raise CallRefused(f"its answer is malformed ({_first(error)}); the call may have taken effect") from error


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(step) for step in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


def _headers(server: McpServer) -> dict[str, str]:
    """Raises `ServerDown` for a variable that is not set or cannot be a header; never with its value."""
    headers = {"user-agent": f"sojourn/{__version__}", **server.headers}
    named = {header: (variable, "") for header, variable in server.header_env.items()}
    if server.bearer_token_env is not None:
        named["authorization"] = (server.bearer_token_env, "Bearer ")
    for header, (variable, scheme) in named.items():
        value = os.environ.get(variable, "").strip()
        if not value:
            raise ServerDown(f"the variable {variable!r} is not set where the daemon was started")
        if not (value.isascii() and value.isprintable()):
            raise ServerDown(f"the variable {variable!r} holds characters that a header cannot have")
        headers[header] = scheme + value
    return headers
