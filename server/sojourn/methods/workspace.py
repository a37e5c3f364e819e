"""`workspace/executeCommand` and the code actions that call it, for language clients without a plugin: what they can do
besides reading answers.

The commands are advertised in `initialize`; what comes back is told by `window/showMessage`, asked by
`window/showMessageRequest` and shown as `$/progress`.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from pydantic import Field

from sojourn.core.values import Value

from ._table import Params, Result, Session, method
from .document import ClosedDocument, Span
from .lifecycle import TOLERANT


class CommandParams(Params):
    """LSP's `ExecuteCommandParams`."""

    model_config = TOLERANT

    command: str
    arguments: tuple[Any, ...] | None = None


class CommandArguments(Value):
    """What the commands take: nothing, a string, or an object with some of these.

    The string is the `text` of `sojourn.prompt` and `sojourn.new`, the `approvalId` of `sojourn.approve` and
    `sojourn.deny`, and the `agentId` of the others. `uri` and `range` point a prompt at an open file, or a part of it.
    """

    text: str | None = Field(default=None, min_length=1)
    agent_id: str | None = None
    uri: str | None = None
    range: Span | None = None
    approval_id: str | None = None
    scope: Literal["once", "run", "agent"] | None = None
    reason: str | None = None


class CommandAnswer(Result):
    """What was done, in words; what follows from it is told as it happens."""

    message: str
    agent_id: str | None = None
    run_id: str | None = None
    approval_id: str | None = None


class Problem(Value):
    """One of LSP's diagnostics, as far as it is looked at."""

    model_config = TOLERANT

    message: str


class CodeActionContext(Value):
    """LSP's `CodeActionContext`, as far as it is looked at."""

    model_config = TOLERANT

    diagnostics: tuple[Problem, ...] = ()
    only: tuple[str, ...] | None = None


class CodeActionParams(Params):
    """LSP's `CodeActionParams`."""

    model_config = TOLERANT

    text_document: ClosedDocument
    range: Span
    context: CodeActionContext = CodeActionContext()


class EditorCommand(Value):
    """LSP's `Command`: a title to choose it by, and what is then sent as `workspace/executeCommand`."""

    title: str
    command: str
    arguments: tuple[dict[str, Any], ...] = ()


class CancelProgressParams(Params):
    """LSP's `WorkDoneProgressCancelParams`."""

    model_config = TOLERANT

    token: str | int


class CommandSession(Session, Protocol):
    """What a language client without a plugin may do on its connection."""

    async def execute(self, command: str, arguments: tuple[Any, ...]) -> Any:
        """Does one of the commands."""
        ...

    async def actions(self, params: CodeActionParams) -> list[EditorCommand]:
        """What can be done at a place of an open file."""
        ...

    async def cancel_progress(self, token: str | int) -> None:
        """Stops the run whose progress the client shows under this token."""
        ...


@method("workspace/executeCommand", params=CommandParams, result=CommandAnswer)
async def execute_command(session: CommandSession, params: CommandParams) -> Any:
    """Does one of the commands that `initialize` names (LSP); answers at once, a run goes on by itself.

    Each takes a string, an object or nothing; the guide to plugins has them all.
    """
    return await session.execute(params.command, params.arguments or ())


@method("textDocument/codeAction", params=CodeActionParams, result=EditorCommand, many=True)
async def code_action(session: CommandSession, params: CodeActionParams) -> Any:
    """The commands that make sense at a place of an open file, as code actions (LSP).

    Prompting with what is selected or about a diagnostic, deciding what waits, stopping a run. None of them has a kind:
    a client that asks for certain kinds only, as on saving, gets nothing.
    """
    return [] if params.context.only else await session.actions(params)


@method("window/workDoneProgress/cancel", params=CancelProgressParams, result=None)
async def cancel_progress(session: CommandSession, params: CancelProgressParams) -> None:
    """The person has cancelled what is shown as progress: the run is stopped (LSP notification)."""
    await session.cancel_progress(params.token)
