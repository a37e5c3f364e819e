"""The life cycle of one connection, in LSP's words: `initialize`, `initialized`, `shutdown`, `exit`.

They end the connection (on `--stdio` the process), never a daemon that others share. They run in line: the message
after `initialize` is already looked at with its effect, so that scripts may pipeline. LSP's fields that mean nothing
here are tolerated.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from sojourn.core.agent import ClientId
from sojourn.core.values import Value

from ._table import Params, Result, Session, method

TOLERANT = ConfigDict(
    frozen=True,
    extra="ignore",
    alias_generator=to_camel,
    validate_by_name=True,
    validate_by_alias=True,
    serialize_by_alias=True,
)

COMMANDS = tuple(f"sojourn.{name}" for name in ("prompt", "new", "approve", "deny", "stop", "status", "show"))
"""What a language client without a plugin can have done."""

T = TypeVar("T")
ObjectOrNothing = Annotated[T | None, BeforeValidator(lambda value: value if isinstance(value, dict) else None)]
"""LSP allows any JSON here; only an object can hold something for us."""


class ApprovalsCapability(Value):
    """What the client can do about approvals."""

    model_config = TOLERANT

    request: dict[str, Any] | None = None
    """Present: it answers `approval/request`."""


class ToolsCapability(Value):
    """What the client can do about tools."""

    model_config = TOLERANT

    execute: dict[str, Any] | None = None
    """Present: it answers `tool/execute`."""


class DeltasCapability(Value):
    """How the client wants streamed text."""

    model_config = TOLERANT

    max_latency_ms: int | None = Field(default=None, ge=0, le=60_000)
    """Deltas may be held back this long to be joined."""


class SojournCapabilities(Value):
    """The client's side of `capabilities.experimental.sojourn` (`initializationOptions.sojourn` is taken as well)."""

    model_config = TOLERANT

    protocol_versions: tuple[int, ...] | None = None
    client_id: ClientId | None = None
    token: str | None = Field(default=None, repr=False)
    approvals: ApprovalsCapability | None = None
    tools: ToolsCapability | None = None
    deltas: DeltasCapability | None = None


class ExperimentalCapabilities(Value):
    """LSP's `capabilities.experimental`."""

    model_config = TOLERANT

    sojourn: SojournCapabilities | None = None


class ClientCapabilities(Value):
    """LSP's client capabilities, as far as they are looked at."""

    model_config = TOLERANT

    experimental: ObjectOrNothing[ExperimentalCapabilities] = None
    workspace: ObjectOrNothing[dict[str, Any]] = None
    window: ObjectOrNothing[dict[str, Any]] = None

    def has(self, group: Literal["workspace", "window"], *path: str) -> bool:
        """Whether the client can do what stands there."""
        found: Any = getattr(self, group)
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found is True


class ClientInfo(Value):
    """Who the client says that it is."""

    model_config = TOLERANT

    name: Any = None


class InitializationOptions(Value):
    """LSP's `initializationOptions`, as far as they are looked at."""

    model_config = TOLERANT

    sojourn: SojournCapabilities | None = None


class WorkspaceFolder(Value):
    """One of LSP's workspace folders."""

    model_config = TOLERANT

    uri: str


class InitializeParams(Params):
    """LSP's `InitializeParams`, as far as they are looked at; everything else in them is tolerated."""

    model_config = TOLERANT

    process_id: int | None = None
    root_uri: str | None = None
    root_path: str | None = None
    workspace_folders: tuple[WorkspaceFolder, ...] | None = None
    client_info: ObjectOrNothing[ClientInfo] = None
    capabilities: ClientCapabilities | None = None
    initialization_options: ObjectOrNothing[InitializationOptions] = None

    def sojourn(self) -> SojournCapabilities:
        """What the client says about itself, in either of the two places; the first wins as a whole."""
        experimental = self.capabilities.experimental if self.capabilities else None
        if experimental and experimental.sojourn:
            return experimental.sojourn
        options = self.initialization_options
        return (options.sojourn if options else None) or SojournCapabilities()


class ServerInfo(Value):
    """Who answers."""

    name: str
    version: str


class SojournServer(Value):
    """The daemon's side of `capabilities.experimental.sojourn`."""

    protocol_version: int
    instance_id: str
    """New at each start of the daemon."""
    store_id: str
    """New with each store."""
    limits: dict[str, int | float]
    methods: tuple[str, ...]


class ServerExperimental(Value):
    """LSP's `capabilities.experimental` of the server."""

    sojourn: SojournServer


class TextDocumentSync(Value):
    """Which news of open files are wanted: that they are opened and closed, and what is changed in them (2)."""

    open_close: bool = True
    change: int = 2


class ExecuteCommandOptions(Value):
    """The commands of `workspace/executeCommand`."""

    commands: tuple[str, ...] = COMMANDS


class ServerCapabilities(Value):
    """LSP's server capabilities: it follows open files and has commands; everything else is Sojourn's own."""

    position_encoding: str = "utf-16"
    text_document_sync: TextDocumentSync = TextDocumentSync()
    execute_command_provider: ExecuteCommandOptions = ExecuteCommandOptions()
    code_action_provider: bool = True
    experimental: ServerExperimental


class InitializeResult(Result):
    """LSP's `InitializeResult`."""

    capabilities: ServerCapabilities
    server_info: ServerInfo


class ConnectionSession(Session, Protocol):
    """What the life cycle may do to its connection."""

    def welcome(self, params: InitializeParams) -> InitializeResult:
        """Takes in the client's capabilities; the connection is ready afterwards. Raises `Unauthorized` or
        `ProtocolVersion`, and then nothing has changed."""
        ...

    def retire(self) -> None:
        """From now on only `exit` is served."""
        ...

    def leave(self) -> None:
        """Ends the connection once what it was asked before has been answered, within a limit."""
        ...


class Nothing(Params):
    """Parameters that are not looked at."""

    model_config = TOLERANT


@method("initialize", params=InitializeParams, result=InitializeResult, ready=False, inline=True)
async def initialize(session: ConnectionSession, params: InitializeParams) -> InitializeResult:
    """The first request of a connection (LSP): exchanges capabilities."""
    return session.welcome(params)


@method("initialized", params=Nothing, result=None, ready=False, inline=True)
async def initialized(session: ConnectionSession, params: Nothing) -> None:
    """The client has read the answer to `initialize` (LSP notification); needs nothing."""


@method("shutdown", params=Nothing, result=None, inline=True)
async def shutdown(session: ConnectionSession, params: Nothing) -> None:
    """Nothing but `exit` will follow on this connection (LSP)."""
    session.retire()


@method("exit", params=Nothing, result=None, ready=False, inline=True)
async def exit(session: ConnectionSession, params: Nothing) -> None:
    """Ends the connection (LSP notification); on `--stdio` the process, with 0 after `shutdown` and 1 without."""
    session.leave()
