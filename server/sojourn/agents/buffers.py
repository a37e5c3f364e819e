"""The files that are open in clients' editors, as they stand there: what `read` sees, and where changes of them go.

Rule: what an editor has open is the editor's. It is changed by asking its owner (`workspace/applyEdit`), against the
version that was seen; an owner that leaves takes its buffers along. Nothing here is kept on disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from sojourn.core.documents import Lines, Range, difference, path_of
from sojourn.core.errors import ClientRefused
from sojourn.tools.base import Document

log = logging.getLogger(__name__)

MAX_BUFFERS = 2_000
"""Open files of one editor; more are not known."""
MAX_TEXT = 10 * 1024 * 1024
"""Characters of one open file; the text of a larger one is not known."""
MAX_ALL = 64 * 1024 * 1024
"""Characters of all open files of one editor."""
ANSWER_S = 15.0
"""How long an editor may take over a change."""
FOLLOW_S = 2.0
"""How long after it the editor may take to send the changed text."""


class Editor(Protocol):
    """A connection that has files open."""

    editor_name: str
    applies_edits: bool
    versioned_edits: bool

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """Asks the client something."""
        ...


class NotChanged(Exception):
    """An editor did not make a change; the message is for the model."""


@dataclass(eq=False, slots=True)
class Buffer:
    """One open file. `lines` is None when its text is not known."""

    editor: Editor
    uri: str
    path: str
    version: int
    lines: Lines | None
    touched: int
    real: str | None = None
    """The path without links, once it was looked up."""
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Buffers:
    """All open files (`tools.base.Documents`)."""

    def __init__(self) -> None:
        self._of: dict[object, dict[str, Buffer]] = {}
        self._ticks = count(1)

    # -- what editors say ---------------------------------------------------------------------------------------------

    def opened(self, editor: Editor, uri: str, version: int, text: str) -> None:
        """`textDocument/didOpen`."""
        path = path_of(uri)
        if path is None:
            return
        mine = self._of.setdefault(editor, {})
        if len(mine) >= MAX_BUFFERS and uri not in mine:
            log.warning("%s has more than %d files open; %s is not followed.", editor.editor_name, MAX_BUFFERS, uri)
            return
        mine[uri] = Buffer(editor, uri, path, version, None, next(self._ticks))
        self._keep(mine[uri], text)

    def changed(self, editor: Editor, uri: str, version: int, changes: Sequence[tuple[Range | None, str]]) -> None:
        """`textDocument/didChange`: each change on top of the one before; one without a range is the whole text."""
        buffer = self._of.get(editor, {}).get(uri)
        if buffer is None:
            return
        buffer.version, buffer.touched = version, next(self._ticks)
        for place, text in changes:
            self._apply(buffer, place, text)
        buffer.news.set()

    def closed(self, editor: Editor, uri: str) -> None:
        """`textDocument/didClose`."""
        buffer = self._of.get(editor, {}).pop(uri, None)
        if buffer is not None:
            buffer.news.set()

    def gone(self, editor: object) -> None:
        """The connection has ended."""
        for buffer in self._of.pop(editor, {}).values():
            buffer.news.set()

    def _apply(self, buffer: Buffer, place: Range | None, text: str) -> None:
        if place is None:
            self._keep(buffer, text)
        elif buffer.lines is not None:
            try:
                buffer.lines.replace(place, text)
            except ValueError as error:
                log.warning(
                    "%s changed %s in a way that makes no sense: %s", buffer.editor.editor_name, buffer.uri, error
                )
                buffer.lines = None
            self._keep_within(buffer)

    def _keep(self, buffer: Buffer, text: str) -> None:
        buffer.lines = None
        if len(text) <= MAX_TEXT:
            buffer.lines = Lines(text)
        self._keep_within(buffer)

    def _keep_within(self, buffer: Buffer) -> None:
        if buffer.lines is None:
            return
        held = sum(one.lines.length for one in self._of[buffer.editor].values() if one.lines is not None)
        if buffer.lines.length > MAX_TEXT or held > MAX_ALL:
            log.warning("%s: the text of %s is too large to be followed.", buffer.editor.editor_name, buffer.uri)
            buffer.lines = None

    def text(self, editor: object, uri: str, place: Range | None = None) -> str | None:
        """The text of a file that this editor has open, or of a part of it; None when it is not known."""
        buffer = self._of.get(editor, {}).get(uri)
        if buffer is None or buffer.lines is None:
            return None
        return buffer.lines.text if place is None else buffer.lines.part(place)

    # -- what tools ask -----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Looks up where the open files really are; blocks, may be called in any thread, comes before `at`."""
        for mine in list(self._of.values()):
            for buffer in list(mine.values()):
                if buffer.real is None:
                    buffer.real = os.path.realpath(buffer.path)

    def at(self, path: str) -> Document | None:
        """The open file at this path; of several editors' the one that was touched last."""
        found = [one for mine in self._of.values() for one in mine.values() if path in (one.real, one.path)]
        if not found:
            return None
        buffer = max(found, key=lambda one: one.touched)
        text = buffer.lines.text if buffer.lines is not None else None
        return Document(
            path, text, buffer.editor.editor_name, (buffer, buffer.version), changeable=buffer.editor.applies_edits
        )

    async def change(self, document: Document, text: str) -> None:
        """Has the editor make `text` of the document. Raises `NotChanged`."""
        buffer: Buffer = document.key[0]
        version: int = document.key[1]
        name = os.path.basename(buffer.path)
        if self._of.get(buffer.editor, {}).get(buffer.uri) is not buffer or buffer.version != version:
            raise NotChanged(f"{name!r} was changed in {document.owner!r} meanwhile; nothing was done. Read it again.")
        place, new = difference(document.text or "", text)
        buffer.news.clear()
        answer = await self._ask(buffer, version, {"range": place.wire(), "newText": new}, name)
        if not isinstance(answer, dict) or answer.get("applied") is not True:
            why = answer.get("failureReason") if isinstance(answer, dict) else None
            reason = f": {why}" if isinstance(why, str) and why else "; it may have been changed there meanwhile"
            raise NotChanged(f"{document.owner!r} did not make the change of {name!r}{reason}.")
        await _follow(buffer)

    async def _ask(self, buffer: Buffer, version: int, edit: dict[str, Any], name: str) -> Any:
        editor = buffer.editor
        if editor.versioned_edits:
            one = {"textDocument": {"uri": buffer.uri, "version": version}, "edits": [edit]}
            changes: dict[str, Any] = {"documentChanges": [one]}
        else:
            changes = {"changes": {buffer.uri: [edit]}}
        try:
            async with asyncio.timeout(ANSWER_S):
                return await editor.request("workspace/applyEdit", {"label": f"Sojourn: {name}", "edit": changes})
        except TimeoutError:
            text = (
                f"{editor.editor_name!r} has not answered in {ANSWER_S:g} s; whether {name!r} was changed is not known."
            )
            raise NotChanged(text) from None
        except ClientRefused as error:
            raise NotChanged(f"{editor.editor_name!r} refused to change {name!r}: {error.message}.") from None
        except ConnectionError:
            text = f"{editor.editor_name!r} has left; whether {name!r} was changed is not known. Read it again."
            raise NotChanged(text) from None


async def _follow(buffer: Buffer) -> None:
    """Waits until the editor has told of its change, so that whoever reads next sees it."""
    try:
        async with asyncio.timeout(FOLLOW_S):
            await buffer.news.wait()
    except TimeoutError:
        log.info("%s has not told of the change of %s.", buffer.editor.editor_name, buffer.uri)
