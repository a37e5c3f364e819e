"""What one client is to the methods and to the hub: who it is, what it can do, and the way to it."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any

import orjson

from sojourn.core.agent import Caller
from sojourn.core.documents import path_of
from sojourn.core.errors import ProtocolVersion, Unauthorized
from sojourn.methods._table import Mutating, Params
from sojourn.methods.lifecycle import InitializeParams, InitializeResult
from sojourn.methods.workspace import CodeActionParams, EditorCommand

from .framing import Framer, frame
from .host import PROTOCOL_VERSION, Host
from .plain import PlainEditor
from .requests import CURRENT

if TYPE_CHECKING:
    from .connection import Connection


class ClientSession:
    """One connection's session, for its life (`methods._table.Session` and what the hub uses besides)."""

    def __init__(self, host: Host, connection: Connection, framer: Framer, *, name: str, token: str | None) -> None:
        self.host = host
        self.hub = host.hub
        self.name = name
        """For the log: the connection's own name, and the client's when it gave one."""
        self.ready = False
        """Whether `initialize` has been answered."""
        self.retired = False
        """Whether `shutdown` was asked: only `exit` may follow."""
        self.client_id: str | None = None
        self.root_path: str | None = None
        self.process_id: int | None = None
        self.delta_latency_ms: int | None = None
        self.answers_approvals = False
        self.runs_tools = False
        self.editor_name = "an editor"
        self.applies_edits = False
        self.versioned_edits = False
        self.shows_progress = False
        self.plain: PlainEditor | None = None
        """What it is to the hub besides, once it has used a command."""
        self._connection = connection
        self._framer = framer
        self._token = token

    def caller(self, params: Params, method: str) -> Caller:
        """Who asks, with the request's id and body hash when it carries a `requestId`."""
        request_id = params.request_id if isinstance(params, Mutating) else None
        return Caller(
            client_id=self.client_id,
            request_id=request_id,
            body_sha256=_body_sha256(method, params) if request_id is not None else None,
            cwd=self.root_path,
        )

    def cancel_requested(self) -> bool:
        """Whether the request that the current task answers was cancelled by its client (not: the client left)."""
        request = CURRENT.get()
        return request is not None and request.cancelled

    def notify(self, body: bytes) -> bool:
        """Queues the body of a notification; False, and nothing queued, when the queue of events is at its limit or
        the connection is closed."""
        return self._connection.outbox.event(self.host.frame(body, self._framer.kind))

    async def room(self) -> None:
        """Returns when the queue is below its soft limit. Raises `anyio.ClosedResourceError` when closed."""
        await self._connection.outbox.room()

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """The client's result of a request of the daemon. Raises `ClientRefused` with the client's error, and
        `ConnectionError` when it leaves. Being cancelled sends `$/cancelRequest`."""
        return await self._connection.protocol.send_request(method, params)

    def tell(self, method: str, params: dict[str, Any]) -> None:
        """Sends a notification, unless the queue of events is at its limit."""
        self._connection.protocol.notify(method, params)

    # ── commands of language clients without a plugin ─────────────────────────────────────────────────────────────

    async def execute(self, command: str, arguments: tuple[Any, ...]) -> Any:
        """Does one of the commands of `workspace/executeCommand`."""
        self.plain = self.plain or PlainEditor(self)
        return await self.plain.execute(command, arguments)

    async def actions(self, params: CodeActionParams) -> list[EditorCommand]:
        """What can be done at a place of an open file."""
        self.plain = self.plain or PlainEditor(self)
        return await self.plain.actions(params)

    async def cancel_progress(self, token: str | int) -> None:
        """Stops the run whose progress is shown under this token."""
        if self.plain is not None:
            await self.plain.cancel_progress(token)

    def frame(self, body: bytes) -> bytes:
        """`body` in the framing that the client speaks."""
        return frame(body, self._framer.kind)

    # ── the life cycle ────────────────────────────────────────────────────────────────────────────────────────────

    def welcome(self, params: InitializeParams) -> InitializeResult:
        """Takes in what `initialize` says. Raises `Unauthorized` or `ProtocolVersion`; then nothing has changed."""
        client = params.sojourn()
        if self._token is not None and not _same(self._token, client.token or ""):
            raise Unauthorized(
                "This connection needs the daemon's token (the file 'token' of its state directory) as "
                "'capabilities.experimental.sojourn.token'."
            )
        if client.protocol_versions is not None and PROTOCOL_VERSION not in client.protocol_versions:
            raise ProtocolVersion(
                f"This daemon speaks protocol version {PROTOCOL_VERSION} only.", supported=[PROTOCOL_VERSION]
            )
        self.ready = True
        self.client_id = client.client_id
        self.root_path = _root_path(params)
        self.process_id = params.process_id
        self.delta_latency_ms = client.deltas.max_latency_ms if client.deltas else None
        self.answers_approvals = client.approvals is not None and client.approvals.request is not None
        self.runs_tools = client.tools is not None and client.tools.execute is not None
        self._meet_editor(params)
        if self.client_id:
            self.name = f"{self.name} ({self.client_id})"
        self._connection.introduce()
        return self.host.welcome()

    def _meet_editor(self, params: InitializeParams) -> None:
        said = params.client_info.name if params.client_info else None
        self.editor_name = (said.strip()[:64] if isinstance(said, str) else "") or self.client_id or self.editor_name
        if params.capabilities is not None:
            self.applies_edits = params.capabilities.has("workspace", "applyEdit")
            self.shows_progress = params.capabilities.has("window", "workDoneProgress")
            self.versioned_edits = params.capabilities.has("workspace", "workspaceEdit", "documentChanges")

    def retire(self) -> None:
        """From now on only `exit` is served."""
        self.retired = True

    def leave(self) -> None:
        """Ends the connection once what it was asked before has been answered, within a limit."""
        self._connection.exit()

    def host_status(self) -> dict[str, Any]:
        """The part of `server/status` that is about the process and its connections."""
        return self.host.status()


def _body_sha256(method: str, params: Params) -> str:
    # A field that is null differs from one left out (`agent/update` clears with null), so unset ones are left out.
    body = params.model_dump(mode="json", by_alias=True, exclude={"request_id", "meta"}, exclude_unset=True)
    return hashlib.sha256(orjson.dumps([method, body], option=orjson.OPT_SORT_KEYS)).hexdigest()


def _same(token: str, shown: str) -> bool:
    return hmac.compare_digest(token.encode(), shown.encode())


def _root_path(params: InitializeParams) -> str | None:
    folders = params.workspace_folders or ()
    for uri in (params.root_uri, *(folder.uri for folder in folders)):
        if uri and (path := path_of(uri)):
            return path
    return params.root_path if params.root_path and params.root_path.startswith("/") else None
