"""The client: one logical connection that is made again when it breaks.

A request that was under way when the connection broke is sent again. Requests that change something carry a
`requestId`, so that the daemon does them once and gives the first answer again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from sojourn._version import __version__

from ._api import Api
from ._connection import Connection
from ._framing import Framing
from ._reach import Reach
from .errors import ConnectionLost, RpcError
from .events import EventStream
from .serving import ApprovalHandler, RegisteredTool, Serving, ToolHandler

if TYPE_CHECKING:
    from sojourn.core.approvals import Policy

_log = logging.getLogger(__name__)

_ATTEMPTS = 10
"""How often one request is sent. A request that brings the daemon down each time must end somewhere."""
_FIRST_DELAY_S, _MAX_DELAY_S = 0.02, 2.0

Listener = Callable[[str, dict[str, Any]], None]


class Client(Api):
    """A client of one daemon. Made by `connect`; `async with`, or `aclose` when done. Closing stops no run.

    The methods of the protocol are there by name: `client.agent.prompt(agent_id=…, content=…)`; `call` takes any
    method with plain JSON. `server` information of the handshake is in `info`.
    """

    def __init__(
        self,
        reach: Reach,
        *,
        client_id: str | None = None,
        root: str | os.PathLike[str] | None = None,
        on_approval: ApprovalHandler | None = None,
        on_notification: Listener | None = None,
        reconnect_s: float = 30,
        framing: Framing = "lines",
    ) -> None:
        self.info: dict[str, Any] = {}
        self.client_id = client_id
        self._reach = reach
        self._root = Path(root or ".").absolute()
        self._on_notification = on_notification
        self._reconnect_s = reconnect_s
        self._framing: Framing = framing
        self._serving = Serving(self.call, on_approval)
        self._streams: dict[str, EventStream] = {}
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._watching = False
        self._closed = False

    @property
    def daemon_version(self) -> str:
        """The version of the daemon that answered last."""
        return str(self.info.get("serverInfo", {}).get("version", ""))

    @property
    def version_mismatch(self) -> str | None:
        """A sentence for a person when the daemon is of another version than this client, else None."""
        if self.daemon_version in ("", __version__):
            return None
        return (
            f"The running daemon is Sojourn {self.daemon_version}, this client is {__version__}; "
            f"`sojourn shutdown` ends the old one, the next command starts the new one."
        )

    @property
    def instance_id(self) -> str:
        """Names the daemon's life: another one after a restart."""
        experimental = self.info.get("capabilities", {}).get("experimental", {})
        return str(experimental.get("sojourn", {}).get("instanceId", ""))

    async def open(self) -> Client:
        """Connects and says hello. Raises `DaemonNotRunning`, `DaemonStartFailed`, `RpcError`, `ConnectionLost`."""
        self._connection = await self._dial()
        return self

    async def __aenter__(self) -> Self:
        if self._connection is None:
            await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection; what runs at the daemon goes on. Idempotent."""
        self._closed = True
        for stream in list(self._streams.values()):
            stream.end()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        await self._serving.aclose()
        if self._connection is not None:
            await self._connection.aclose()

    async def call(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_result: Callable[[Any], None] | None = None,
    ) -> Any:
        """The result of any method, as plain JSON. Cancelling the awaiting task cancels the request at the daemon.

        `params` are in wire form. A `requestId` is made where the method takes one. `on_result` is called with the
        result before anything that the daemon sent after it. Raises `RpcError`, or `ConnectionLost` when the
        connection broke and could not be made again.
        """
        if method in ("agent/watch", "agent/unwatch"):
            self._watching = method == "agent/watch"
        body = dict(params or {})
        if method in self.MUTATING:
            body.setdefault("requestId", uuid.uuid4().hex)
        for attempt in range(1, _ATTEMPTS + 1):
            connection = await self._connected()
            try:
                return await connection.request(method, body, on_result=on_result)
            except ConnectionLost:
                if method == "server/shutdown" or self._closed or attempt == _ATTEMPTS:
                    raise
        raise AssertionError("the last attempt raises or returns")

    def events(self, agent_id: str, *, after_seq: int | None = None, deltas: bool = True) -> EventStream:
        """The events of an agent after `after_seq` (None: from now on, 0: all), then live, over lost connections.

        One stream an agent and client at a time. Raises `RuntimeError` when there is one already.
        """
        if agent_id in self._streams:
            raise RuntimeError(f"This client already reads the events of agent {agent_id!r}; close that stream first.")
        stream = self._streams[agent_id] = EventStream(self, agent_id, after_seq=after_seq, deltas=deltas)
        return stream

    async def register_tool(
        self,
        name: str,
        handler: ToolHandler,
        *,
        description: str,
        input_schema: dict[str, Any],
        approval: Policy = "ask",
        on_interrupt: Literal["fail", "rerun"] | None = None,
        agent_id: str | None = None,
    ) -> None:
        """Offers a tool that this client runs, to one agent or to all; again after every reconnect.

        Needs a `client_id`. Raises `RpcError` (`alreadyExists`) when another client owns the name.
        """
        spec = {"name": name, "description": description, "inputSchema": input_schema, "approval": approval}
        if on_interrupt is not None:
            spec["onInterrupt"] = on_interrupt
        tool = RegisteredTool(spec, agent_id, handler)
        self._serving.tools[name] = tool
        try:
            await self.call("tool/register", _registration(tool))
        except RpcError:
            del self._serving.tools[name]
            raise

    async def unregister_tool(self, name: str) -> None:
        """Takes a tool back."""
        self._serving.tools.pop(name, None)
        await self.call("tool/unregister", {"names": [name]})

    async def wait_lost(self) -> None:
        """Returns when the present connection has ended."""
        connection = await self._connected()
        await connection.wait_closed()

    async def wait_connected(self) -> None:
        """Returns when there is a connection, made again if the last one ended. Raises `ConnectionLost`."""
        await self._connected()

    # What `EventStream` calls.

    async def attach(self, stream: EventStream, params: dict[str, Any], on_result: Callable[[Any], None]) -> None:
        """Sends `agent/attach` for a stream of this client."""
        self._streams.setdefault(stream.agent_id, stream)
        await self.call("agent/attach", params, on_result=on_result)

    async def detach(self, stream: EventStream) -> None:
        """Forgets a stream; the daemon is told when it can be."""
        if self._streams.pop(stream.agent_id, None) is None or self._connection is None or self._connection.closed:
            return
        try:
            await self._connection.request("agent/detach", {"agentId": stream.agent_id})
        except (ConnectionLost, RpcError) as error:
            _log.debug("Detaching from agent %r failed: %s", stream.agent_id, error)

    # What `Connection` calls (`_connection.Peer`).

    def on_request(self, connection: Connection, request_id: Any, method: str, params: dict[str, Any]) -> None:
        """The daemon asks this client."""
        self._serving.begin(connection, request_id, method, params)

    def on_notification(self, method: str, params: dict[str, Any]) -> None:
        """The daemon tells this client."""
        if method == "$/cancelRequest":
            self._serving.cancel(params.get("id"))
            return
        stream = self._streams.get(params.get("agentId", "")) if method.startswith("agent/") else None
        if stream is not None and method == "agent/event":
            stream.push(params)
        elif stream is not None and method == "agent/resync":
            stream.restart()
        if self._on_notification is not None:
            self._on_notification(method, params)

    def on_lost(self, connection: Connection) -> None:
        """The connection ended: make a new one, unless this client is done."""
        if self._closed or connection is not self._connection:
            return
        self._reconnect()
        for stream in self._streams.values():
            stream.restart()

    async def _connected(self) -> Connection:
        if self._closed:
            raise ConnectionLost("This client is closed.")
        if self._connection is None:
            await self.open()
        elif self._connection.closed:
            self._connection = await asyncio.shield(self._reconnect())
        assert self._connection is not None
        return self._connection

    def _reconnect(self) -> asyncio.Task[Connection]:
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._redial(), name="sojourn-client-reconnect")
            self._connecting.add_done_callback(_look_at)
        return self._connecting

    async def _redial(self) -> Connection:
        delay, deadline = _FIRST_DELAY_S, asyncio.get_running_loop().time() + self._reconnect_s
        while True:
            try:
                self._connection = await self._dial()
                return self._connection
            except (ConnectionError, OSError) as error:
                if asyncio.get_running_loop().time() + delay > deadline:
                    raise ConnectionLost(f"The daemon did not come back within {self._reconnect_s:g} s.") from error
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_DELAY_S)

    async def _dial(self) -> Connection:
        reader, writer = await self._reach.open()
        connection = Connection(reader, writer, self, framing=self._framing)
        try:
            self.info = await connection.request("initialize", self._hello())
            connection.notify("initialized", {})
            for tool in self._serving.tools.values():
                await connection.request("tool/register", _registration(tool))
            if self._watching:
                await connection.request("agent/watch", {})
        except BaseException:
            await connection.aclose()
            raise
        return connection

    def _hello(self) -> dict[str, Any]:
        ours: dict[str, Any] = {"protocolVersions": [1], "tools": {"execute": {}}}
        if self.client_id is not None:
            ours["clientId"] = self.client_id
        if self._serving.decides:
            ours["approvals"] = {"request": {}}
        if (token := self._reach.token()) is not None:
            ours["token"] = token
        return {
            "processId": None,
            "clientInfo": {"name": "sojourn-python", "version": __version__},
            "rootUri": self._root.as_uri(),
            "capabilities": {"experimental": {"sojourn": ours}},
        }


class _Connecting:
    """What `connect` answers: to be awaited, or used in `async with`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __await__(self) -> Generator[Any, None, Client]:
        return self._client.open().__await__()

    async def __aenter__(self) -> Client:
        return await self._client.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()


def connect(
    *,
    socket: str | os.PathLike[str] | None = None,
    tcp: str | None = None,
    token: str | None = None,
    state_dir: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    start: bool = True,
    client_id: str | None = None,
    root: str | os.PathLike[str] | None = None,
    on_approval: ApprovalHandler | None = None,
    on_notification: Listener | None = None,
    reconnect_s: float = 30,
    framing: Framing = "lines",
) -> _Connecting:
    """A connected client: `client = await connect()`, or `async with connect() as client`.

    Without arguments it reaches the user's own daemon and starts one, detached, if none runs (`start=False`: raises
    `DaemonNotRunning` instead). `tcp` is `HOST:PORT` of a daemon that is never started from here; its `token` defaults
    to the file in the state dir. `root` is the workspace (default: the current directory), the `cwd` of agents that
    this client creates. `on_approval` decides approvals of attached agents; `on_notification` hears every
    notification. A broken connection is made again for up to `reconnect_s` seconds, with its tools, event streams and
    `agent/watch`.
    """
    reach = Reach(socket=socket, tcp=tcp, token=token, state_dir=state_dir, config=config, start=start)
    return _Connecting(
        Client(
            reach,
            client_id=client_id,
            root=root,
            on_approval=on_approval,
            on_notification=on_notification,
            reconnect_s=reconnect_s,
            framing=framing,
        )
    )


def _registration(tool: RegisteredTool) -> dict[str, Any]:
    params: dict[str, Any] = {"tools": [tool.spec]}
    return params if tool.agent_id is None else {**params, "agentId": tool.agent_id}


def _look_at(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("%s", error)
