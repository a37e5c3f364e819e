"""Where a person at a terminal decides: lines typed answer the open question, or are given on as messages."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator
from typing import Any

from sojourn_client import RpcError
from sojourn_client.client import Client
from sojourn_client.events import AgentEvent

from ._show import arguments
from ._view import View

_HINT = "y approves, n denies, `n REASON` denies and says why, `e {…}` approves with other arguments"


class Desk:
    """The open approvals of an agent and its children, asked about one by one."""

    def __init__(self, client: Client, view: View) -> None:
        self._client = client
        self._view = view
        self._open: dict[str, dict[str, Any]] = {}
        self._asked: str | None = None

    def add(self, approval: dict[str, Any]) -> None:
        """An approval that is open."""
        self._open.setdefault(approval["approvalId"], approval)
        self._ask()

    def see(self, item: AgentEvent) -> None:
        """An event went by; approvals are opened and closed by theirs."""
        _, event = item.innermost()
        if event["type"] == "approvalResolved":
            self._forget(event["approval"]["approvalId"])
        elif event["type"] == "approvalRequested" and not item.replayed:
            self.add(event["approval"])

    async def take(self, line: str) -> bool:
        """A line was typed; True when it was about the question that is open."""
        if self._asked is None:
            return False
        approval_id = self._asked
        decision = _decision(line)
        if isinstance(decision, str):
            self._view.note(decision, "yellow")
            return True
        try:
            await self._client.call("approval/decide", {"approvalId": approval_id, **decision})
        except RpcError as error:
            self._view.note(error.message, "red")
            if error.kind not in ("alreadyDecided", "approvalNotFound"):
                return True
        self._forget(approval_id)
        return True

    def _forget(self, approval_id: str) -> None:
        self._open.pop(approval_id, None)
        if self._asked == approval_id:
            self._asked = None
        self._ask()

    def _ask(self) -> None:
        if self._asked is not None or not self._open:
            return
        self._asked, approval = next(iter(self._open.items()))
        self._view.note(f"Allow {approval['toolName']} {arguments(approval['args'], 2000)} ?  ({_HINT})", "bold yellow")


def _decision(line: str) -> dict[str, Any] | str:
    """A typed line as a decision, or what to say to it."""
    word, _, rest = line.strip().partition(" ")
    word, rest = word.lower(), rest.strip()
    if word in ("y", "yes"):
        return {"decision": "approve"}
    if word in ("n", "no"):
        return {"decision": "deny", **({"reason": rest} if rest else {})}
    if word in ("e", "edit"):
        try:
            args = json.loads(rest)
        except ValueError:
            args = None
        if isinstance(args, dict):
            return {"decision": "edit", "arguments": args}
        return "After `e` the new arguments are needed, as a JSON object on the same line."
    return f"A decision is needed first: {_HINT}."


async def typed_lines() -> AsyncIterator[str]:
    """The lines of stdin until its end. The terminal stays blocking: others share it."""
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_read_stdin, args=(loop, lines), daemon=True, name="sojourn-stdin").start()
    while (line := await lines.get()) is not None:
        yield line


def _read_stdin(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str | None]) -> None:
    rest = b""
    try:
        # Not `sys.stdin`: its lock, held by a thread that waits, makes the interpreter abort at its end.
        while data := os.read(0, 4096):
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                loop.call_soon_threadsafe(lines.put_nowait, line.decode(errors="replace"))
        if rest:
            loop.call_soon_threadsafe(lines.put_nowait, rest.decode(errors="replace"))
        loop.call_soon_threadsafe(lines.put_nowait, None)
    except (OSError, RuntimeError):
        return  # The terminal, or the loop, is gone.
