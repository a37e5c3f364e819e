"""`textDocument/*`: the files that are open in a client's editor (LSP notifications).

Tools see them as they stand there. Any language client sends these by itself. Files of other machines and of no file
system are not looked at.
"""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from sojourn.core.documents import Position, Range
from sojourn.core.values import Value

from ._table import Params, Session, method
from .lifecycle import TOLERANT

Number = Field(ge=-(2**31), lt=2**31)


class _Tolerant(Value):
    model_config = TOLERANT


class TextDocument(_Tolerant):
    """An open file and its version in the editor."""

    uri: str
    version: int = Number
    text: str = ""


class ClosedDocument(_Tolerant):
    """A file that is not open any more."""

    uri: str


class Place(_Tolerant):
    """LSP's `Position`: a line and a column in UTF-16 units, from 0."""

    line: int = Field(ge=0, lt=2**32)
    character: int = Field(ge=0, lt=2**32)


class Span(_Tolerant):
    """LSP's `Range`."""

    start: Place
    end: Place

    def range(self) -> Range:
        """The same as the core has it."""
        start, end = self.start, self.end
        return Range(
            start=Position(line=start.line, character=start.character),
            end=Position(line=end.line, character=end.character),
        )


class ContentChange(_Tolerant):
    """A change of a text; without a `range` it is the whole new text."""

    range: Span | None = None
    text: str


class DidOpenParams(Params):
    """LSP's `DidOpenTextDocumentParams`."""

    model_config = TOLERANT

    text_document: TextDocument


class DidChangeParams(Params):
    """LSP's `DidChangeTextDocumentParams`."""

    model_config = TOLERANT

    text_document: TextDocument
    content_changes: tuple[ContentChange, ...]


class DidCloseParams(Params):
    """LSP's `DidCloseTextDocumentParams`."""

    model_config = TOLERANT

    text_document: ClosedDocument


class EditorSession(Session, Protocol):
    """What the hub knows of a connection whose editor has files open."""

    editor_name: str
    applies_edits: bool
    versioned_edits: bool


@method("textDocument/didOpen", params=DidOpenParams, result=None, inline=True)
async def did_open(session: EditorSession, params: DidOpenParams) -> None:
    """A file was opened in the client's editor (LSP notification)."""
    it = params.text_document
    session.hub.buffers.opened(session, it.uri, it.version, it.text)


@method("textDocument/didChange", params=DidChangeParams, result=None, inline=True)
async def did_change(session: EditorSession, params: DidChangeParams) -> None:
    """An open file was changed in the client's editor, in whole or in part (LSP notification)."""
    changes = [(change.range.range() if change.range else None, change.text) for change in params.content_changes]
    session.hub.buffers.changed(session, params.text_document.uri, params.text_document.version, changes)


@method("textDocument/didClose", params=DidCloseParams, result=None, inline=True)
async def did_close(session: EditorSession, params: DidCloseParams) -> None:
    """A file was closed in the client's editor (LSP notification)."""
    session.hub.buffers.closed(session, params.text_document.uri)
