"""Where a person at a terminal decides: lines typed answer the open question, or are given on as messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from sojourn_client import RpcError
from sojourn_client.client import Client
from sojourn_client.events import AgentEvent

from ._input import discard_typed
from ._show import asked_for
from ._view import View

_HINT = (
    "y approves, n denies, `n REASON` denies and says why, `e {…}` approves with other arguments, "
    "`/say TEXT` is a message to the agent"
)


class Desk:
    """The open approvals of an agent and its children, asked about one by one.

    `when_free` calls a function once there is room for a question on the screen.
    """

    def __init__(
        self,
        client: Client,
        view: View,
        *,
        open_before: Iterable[dict[str, Any]] = (),
        when_free: Callable[[Callable[[], None]], None] = lambda show: show(),
    ) -> None:
        self._client = client
        self._view = view
        self._open_before = {approval["approvalId"] for approval in open_before}
        self._open: dict[str, dict[str, Any]] = {}
        self._when_free = when_free
        self._waits = False
        self._asked: str | None = None

    def asked(self) -> str | None:
        """The approval whose question is on the screen."""
        return self._asked

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

    def asks(self, item: AgentEvent) -> bool:
        """Whether this event is an approval that is asked about here, and so need not be shown as well."""
        _, event = item.innermost()
        if event["type"] != "approvalRequested":
            return False
        return not item.replayed or event["approval"]["approvalId"] in self._open_before

    async def take(self, line: str, approval_id: str | None) -> bool:
        """A line was typed while the question about `approval_id` was on the screen; False when there was none."""
        if approval_id is None:
            return False
        if approval_id != self._asked:
            self._view.note(f"{line.strip()!r} came too late for its question; it decides nothing.", "yellow")
            return True
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
        if self._asked is None and self._open and not self._waits:
            self._waits = True
            self._when_free(self._put)

    def _put(self) -> None:
        self._waits = False
        if self._asked is not None or not self._open:
            return
        approval_id, approval = next(iter(self._open.items()))
        discard_typed()
        self._view.change(approval)
        self._view.note(f"Allow {asked_for(approval, 2000)}? [y/n/e/?]", "bold yellow")
        self._asked = approval_id


def _decision(line: str) -> dict[str, Any] | str:
    """A typed line as a decision, or what to say to it."""
    word, _, rest = line.strip().partition(" ")
    word, rest = word.lower(), rest.strip()
    if word == "?":
        return _HINT
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
