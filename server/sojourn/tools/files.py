"""The toolset `files`: reading, searching, writing and editing below an agent's working directory, never outside of it.

Rule: reading is `allow`, writing is `ask`, and what is approved is what is done: a change is shown as a diff
beforehand, bound to the text that it starts from, and fails in words when that is another one by then. A file that is
open in an editor is read as it stands there, and changed there.
"""

from __future__ import annotations

import asyncio
import base64
import os
import stat
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import Field

from sojourn.core.approvals import Preview
from sojourn.core.messages import ImagePart, InputPart, TextPart

from . import _change, _text
from ._grep import MAX_FILE, Search, literal, ripgrep
from ._places import FileRefused, Missing, Place, Root, in_line
from ._tree import Glob, Walk
from .author import FunctionTool, in_thread, tool
from .base import Document, ToolContext

T = TypeVar("T")

MAX_IMAGE = 4 * 1024 * 1024
MAX_NAMES = 1_000
Path = Annotated[str, Field(description="Relative to the working directory.", min_length=1)]
Directory = Annotated[str, Field(description="The directory, relative to the working directory.", min_length=1)]
Ignored = Annotated[bool, Field(description="Also what .gitignore leaves out.")]


@dataclass(frozen=True, slots=True)
class Source:
    """A text to be changed: where it is, what it is now (None: there is none yet), and who has it open."""

    shown: str
    path: str
    text: str | None
    document: Document | None = None


class FileTools:
    """The six tools. They share a line for each file: changes of one file come one after the other, in call order."""

    def __init__(self, *, rg: Callable[[], str | None] = ripgrep) -> None:
        self._rg = rg
        self._finding: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._last: weakref.WeakValueDictionary[str, _Turn] = weakref.WeakValueDictionary()

    def tools(self) -> list[FunctionTool[..., Any]]:
        """All of them."""
        return [self._read_tool(), self._write_tool(), self._edit_tool(), list_, glob, self._grep_tool()]

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read_tool(self) -> FunctionTool[..., Any]:
        @tool(approval="allow")
        async def read(
            ctx: ToolContext,
            path: Path,
            line: Annotated[int, Field(description="The first line.", ge=1, le=2**31)] = 1,
            lines: Annotated[int, Field(description="How many lines.", ge=1, le=_text.MAX_LINES)] = _text.MAX_LINES,
        ) -> list[InputPart]:
            """Reads a file: text by lines, or an image."""
            document = await _document(ctx, path)
            if document is None:
                return await in_thread(lambda: _read(ctx, path, line, lines), ctx)
            if document.text is None:
                saved = await in_thread(lambda: _read(ctx, path, line, lines), ctx)
                return [*saved, TextPart(text=f"[It is open in {document.owner!r}, whose unsaved text is not known.]")]
            data = document.text.encode("utf-8", "replace")
            found = _text.read_lines(lambda size, at: data[at : at + size], line, lines)
            if found is None:
                raise FileRefused(f"{path!r} is not text.")
            return _parts(found[0], [*found[1], f"As it stands in {document.owner!r}, where it is open."])

        return read

    def _grep_tool(self) -> FunctionTool[..., Any]:
        @tool(approval="allow")
        def grep(
            ctx: ToolContext,
            pattern: Annotated[str, Field(description="A regular expression, matched line by line.")],
            path: Annotated[str, Field(description="A directory or a file.", min_length=1)] = ".",
            glob: Annotated[str | None, Field(description="Only files that fit, e.g. '*.py'.")] = None,
            ignore_case: bool = False,
            literal: Annotated[bool, Field(description="The pattern is plain text.")] = False,
            context: Annotated[int, Field(description="Lines to show around each match.", ge=0, le=20)] = 0,
            ignored: Ignored = False,
        ) -> str:
            """Searches the lines of text files (UTF-8). Answers 'path:line: text'."""
            search = Search(_pattern(pattern, literal), ignore_case, context, stopped=lambda: ctx.stop_requested)
            with Root(ctx.cwd) as root:
                walk = Walk(ignored=ignored, stopped=lambda: ctx.stop_requested)
                found = _candidates(ctx, root, path, glob, walk)
                too_large = [name for name, size in found if size > MAX_FILE]
                search.run(root, (name for name, size in found if size <= MAX_FILE), rg=self._rg())
            notes = [*search.notes, *walk.notes]
            if too_large:
                notes.append(f"Not searched, more than {MAX_FILE} bytes: {_some(too_large)}.")
            return _listing(search.lines, notes, nothing="Nothing matches.")

        return grep

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write_tool(self) -> FunctionTool[..., Any]:
        def plan(path: str, content: str) -> Callable[[Source], str]:
            return lambda _source: content

        async def preview(args: dict[str, Any], ctx: ToolContext) -> Preview | None:
            values = write.read(args)
            return await self._preview(ctx, values["path"], plan(**values))

        @tool
        async def write(
            ctx: ToolContext,
            path: Path,
            content: Annotated[str, Field(description="The whole new text of the file.")],
        ) -> str:
            """Writes a whole file, new or not; directories are made as needed. To change a part of a file use edit."""
            source = await self._change(ctx, path, plan(path, content))
            what = "Made" if source.text is None else "Wrote"
            count = content.count("\n") + (not content.endswith("\n") and content != "")
            return f"{what} {source.shown!r}: {count} {'line' if count == 1 else 'lines'}.{_unsaved(source)}"

        write.preview = preview
        return write

    def _edit_tool(self) -> FunctionTool[..., Any]:
        def plan(path: str, old_text: str, new_text: str, replace_all: bool) -> Callable[[Source], str]:
            def apply(source: Source) -> str:
                if source.text is None:
                    raise FileRefused(f"There is no {source.shown!r} in the working directory; write makes new files.")
                return _change.replaced(
                    source.shown, source.text, old_text, new_text, everywhere=replace_all, limit=MAX_FILE
                )

            return apply

        async def preview(args: dict[str, Any], ctx: ToolContext) -> Preview | None:
            values = edit.read(args)
            return await self._preview(ctx, values["path"], plan(**values))

        @tool
        async def edit(
            ctx: ToolContext,
            path: Path,
            old_text: Annotated[str, Field(description="Exactly as in the file, with enough around it to be unique.")],
            new_text: str,
            replace_all: Annotated[bool, Field(description="Replace every place where it stands.")] = False,
        ) -> str:
            """Replaces a piece of text in a file by another one. The old text must stand there exactly once."""
            before = await self._change(ctx, path, plan(path, old_text, new_text, replace_all))
            return f"Edited {before.shown!r}.{_unsaved(before)}"

        edit.preview = preview
        return edit

    async def _preview(self, ctx: ToolContext, path: str, change: Callable[[Source], str]) -> Preview:
        """The change as a diff, on top of those that the same turn has asked for before."""
        ahead: dict[str, str] = ctx.extra.setdefault("ahead", {})
        source = await _source(ctx, path)
        if source.path in ahead:
            source = Source(source.shown, source.path, ahead[source.path], source.document)
        after = await in_thread(lambda: _checked(source, change(source)), ctx)
        ahead[source.path] = after
        return await in_thread(lambda: _text.preview_of(source.shown, source.text, after), ctx)

    async def _change(self, ctx: ToolContext, path: str, change: Callable[[Source], str]) -> Source:
        """Makes the change, where the file is what it was when it was approved. Answers what was there before."""
        async with await self._turn(ctx, path):
            source = await _source(ctx, path)
            after = await in_thread(lambda: _as_approved(ctx.approved, source, change), ctx)
            if source.document is not None:
                assert ctx.documents is not None
                await ctx.documents.change(source.document, after)
            else:
                await in_thread(lambda: _put(ctx, path, source, after), ctx)
            return source

    async def _turn(self, ctx: ToolContext, path: str) -> _Turn:
        """This change's place in the line for its file. One agent's changes find their files in the order of its calls,
        however they name them, and stand in line before the next one looks."""
        async with self._finding.setdefault(ctx.agent_id, asyncio.Lock()):
            real = (await in_thread(lambda: _locate(ctx, path), ctx))[1]
            mine = _Turn(self._last.get(real))
            self._last[real] = mine
        return mine


class _Turn:
    """A place in the line for a file, from when it is made: entered when the one before it has left."""

    def __init__(self, before: _Turn | None) -> None:
        self._before = before
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        try:
            await asyncio.shield(before._left)
        except asyncio.CancelledError:  # whoever is behind waits for whom this one waited for
            before._left.add_done_callback(lambda _: self._left.set_result(None))
            raise

    async def __aexit__(self, *_: object) -> None:
        self._left.set_result(None)


@tool(name="list", approval="allow")
def list_(ctx: ToolContext, path: Directory = ".") -> str:
    """Lists a directory; directories end with '/'."""
    with Root(ctx.cwd) as root, _place(ctx, root, path) as place:
        fd = place.open_directory()
        try:
            names = sorted(os.listdir(fd))
            lines = [_entry(fd, name) for name in names[:MAX_NAMES]]
        finally:
            os.close(fd)
    notes = [f"{len(names) - MAX_NAMES} more names are not shown."] if len(names) > MAX_NAMES else []
    return _listing(lines, notes, nothing="The directory is empty.")


@tool(approval="allow")
def glob(
    ctx: ToolContext,
    pattern: Annotated[str, Field(description="E.g. '**/*.py', 'src/*.{js,ts}' or 'README*'.", max_length=1000)],
    path: Directory = ".",
    ignored: Ignored = False,
) -> str:
    """Finds files by their names."""
    wanted = Glob(pattern)
    found: list[str] = []
    walk = Walk(ignored=ignored, stopped=lambda: ctx.stop_requested)
    with Root(ctx.cwd) as root, _place(ctx, root, path) as place:
        for name, _ in walk.files(place):
            if wanted.matches(name):
                if len(found) == MAX_NAMES:
                    walk.notes.append(f"Only the first {MAX_NAMES} are shown; there are more.")
                    break
                found.append(in_line(name if place.shown == "." else f"{place.shown}/{name}"))
    return _listing(found, walk.notes, nothing="No file fits.")


# -- the small steps; they block, and run in a tool's thread ----------------------------------------------------------


def _place(ctx: ToolContext, root: Root, path: str, *, missing: Missing = "refuse") -> Place:
    """Where a call's path leads: there where it led when a rule judged it, or nowhere."""
    place = root.place(path, missing=missing)
    if ctx.led_to not in (None, place.path):
        place.close()
        raise FileRefused(f"{path!r} leads elsewhere than when this call was let through; nothing was done.")
    return place


def _read(ctx: ToolContext, path: str, line: int, lines: int) -> list[InputPart]:
    with Root(ctx.cwd) as root, _place(ctx, root, path) as place:
        fd = place.open()
        try:
            if kind := _text.image_type(os.pread(fd, 16, 0)):
                return [_image(fd, kind, place)]
            found = _text.read_lines(lambda size, at: os.pread(fd, size, at), line, lines)
            if found is None:
                size = os.fstat(fd).st_size
                raise FileRefused(f"{place.shown!r} is not text ({size} bytes); only text and images can be read.")
        except OSError as error:
            raise place.unreadable(error) from None
        finally:
            os.close(fd)
    return _parts(*found)


def _image(fd: int, kind: str, place: Place) -> ImagePart:
    size = os.fstat(fd).st_size
    if size > MAX_IMAGE:
        raise FileRefused(f"{place.shown!r} is an image of {size} bytes; up to {MAX_IMAGE} can be shown.")
    return ImagePart(mime_type=kind, data=base64.b64encode(os.pread(fd, size, 0)).decode())


def _parts(text: str, notes: list[str]) -> list[InputPart]:
    said = [TextPart(text=f"[{' '.join(notes)}]")] if notes else []
    return [*([TextPart(text=text)] if text else []), *said]


def _locate(ctx: ToolContext, path: str) -> tuple[str, str]:
    if ctx.documents is not None:
        ctx.documents.settle()
    with Root(ctx.cwd) as root, _place(ctx, root, path, missing="leave") as place:
        return place.shown, place.path


async def _document(ctx: ToolContext, path: str) -> Document | None:
    if ctx.documents is None:
        return None
    _, real = await in_thread(lambda: _locate(ctx, path), ctx)
    return ctx.documents.at(real)


async def _source(ctx: ToolContext, path: str) -> Source:
    document = await _document(ctx, path)
    if document is not None and document.text is None:
        raise FileRefused(
            f"{path!r} is open in {document.owner!r}, whose unsaved text is not known; it is not changed."
        )
    source = await in_thread(lambda: _saved(ctx, path, read=document is None or not document.changeable), ctx)
    if document is None or (not document.changeable and source.text == document.text):
        return source
    if not document.changeable:
        raise FileRefused(f"{path!r} is open and unsaved in {document.owner!r}, which takes no edits; save it first.")
    return Source(source.shown, source.path, document.text, document)


def _saved(ctx: ToolContext, path: str, *, read: bool) -> Source:
    with Root(ctx.cwd) as root, _place(ctx, root, path, missing="leave") as place:
        if place.name == "." or path.endswith("/"):
            raise FileRefused(f"{place.shown!r} is a directory, not a file.")
        there = place.file() is not None
        return Source(place.shown, place.path, _whole(place) if read and there else None)


def _whole(place: Place) -> str:
    data = place.read(MAX_FILE)
    try:
        if _text.is_binary(data):
            raise ValueError
        return data.decode()
    except ValueError:
        raise FileRefused(f"{place.shown!r} is not UTF-8 text; only text can be changed.") from None


def _checked(source: Source, after: str) -> str:
    if len(after) > MAX_FILE or "\0" in after:
        raise FileRefused(f"The new text of {source.shown!r} is too long, or has a NUL in it.")
    if after == source.text:
        raise FileRefused(f"{source.shown!r} has that text already; nothing was changed.")
    return after


def _as_approved(approved: Preview | None, source: Source, change: Callable[[Source], str]) -> str:
    """The changed text, where the change starts from what whoever approved it saw."""
    if approved is not None:
        if approved.path != source.shown:
            raise FileRefused(
                f"What was approved is a change of {approved.path!r}, and this path leads to {source.shown!r} now; "
                "nothing was done. Look at where it leads and try again."
            )
        now = None if source.text is None else _text.sha256(source.text)
        if now != approved.base_sha256:
            raise _moved_on(source.shown)
    return _checked(source, change(source))


def _moved_on(shown: str) -> FileRefused:
    return FileRefused(
        f"{shown!r} has changed since this change of it was worked out; nothing was done. Read it and try again."
    )


def _put(ctx: ToolContext, path: str, source: Source, after: str) -> None:
    def still() -> None:
        if (_whole(place) if place.file() is not None else None) != source.text:
            raise _moved_on(source.shown)

    with Root(ctx.cwd) as root, root.place(path, missing="make") as place:
        if place.path != source.path:
            raise _moved_on(source.shown)
        place.put(after.encode(), still=still)


def _unsaved(source: Source) -> str:
    return (
        "" if source.document is None else f" It is open in {source.document.owner!r} and was changed there, unsaved."
    )


def _entry(directory: int, name: str) -> str:
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            return f"{in_line(name)} -> {in_line(os.readlink(name, dir_fd=directory))}"
    except OSError:
        return in_line(name)
    return in_line(f"{name}/") if stat.S_ISDIR(found.st_mode) else in_line(name)


def _pattern(pattern: str, plain: bool) -> str:
    return literal(pattern) if plain else pattern


def _candidates(ctx: ToolContext, root: Root, path: str, glob: str | None, walk: Walk) -> list[tuple[str, int]]:
    """The files to search, relative to the root, with their sizes."""
    wanted = Glob(glob) if glob else None
    with _place(ctx, root, path) as place:
        here = place.stat()
        if here is not None and stat.S_ISREG(here.st_mode):
            return [(place.shown, here.st_size)]
        prefix = "" if place.shown == "." else f"{place.shown}/"
        files = walk.files(place)
        return [(prefix + name, found.st_size) for name, found in files if wanted is None or wanted.matches(name)]


def _listing(lines: list[str], notes: list[str], *, nothing: str) -> str:
    return "\n".join([*(lines or [nothing]), *(f"[{note}]" for note in dict.fromkeys(notes))])


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
