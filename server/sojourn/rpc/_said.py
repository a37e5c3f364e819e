"""How a run, its end and its approvals are told to a client that has only messages and progress to show them with."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any

from sojourn.methods.workspace import EditorCommand

_MOST = 4_000
"""Characters of a question; what is cut is said."""
_TITLE = 80
"""Characters of what a title names."""


class Progress:
    """One run as `$/progress`: begun when the client has made a place for it, ended once."""

    def __init__(self, name: str, tell: Callable[[str, dict[str, Any]], None]) -> None:
        self.token = f"{name} {secrets.token_hex(4)}"
        self._tell = tell
        self._doing = "thinking"
        self._open = False
        self._over = False

    def begin(self) -> None:
        """The client shows it from now on."""
        if self._over:
            return
        self._open = True
        self._send({"kind": "begin", "title": "Sojourn", "message": self._doing, "cancellable": True})

    def hear(self, event: dict[str, Any]) -> None:
        """An event of the run."""
        doing = _doing(event)
        if doing is not None and doing != self._doing:
            self._doing = doing
            if self._open:
                self._send({"kind": "report", "message": doing})

    def end(self, word: str) -> None:
        """The run is over."""
        self._over = True
        if self._open:
            self._open = False
            self._send({"kind": "end", "message": word})

    def _send(self, value: dict[str, Any]) -> None:
        self._tell("$/progress", {"token": self.token, "value": value})


def what_happened(event: dict[str, Any], answer: str | None) -> tuple[bool, str]:
    """What an `agentEnd` comes to: whether it is a failure, and the words for it."""
    reason = event["reason"]
    if reason == "done":
        return False, answer or "Done, without words."
    if reason == "paused":
        return False, "\n\n".join([*([answer] if answer else []), "Paused: a decision or a result is waited for."])
    error = event.get("error")
    return reason == "failed", f"The run has ended ({reason}){': ' + error['message'] if error else ''}"


def question(approval: dict[str, Any]) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """What a person is asked about an approval, and the answers with the decision that each makes."""
    preview = approval.get("preview")
    what = preview["path"] if preview else json.dumps(approval["args"], ensure_ascii=False)
    head = f"{approval['agentId']} asks: {approval['toolName']} {what}"
    text = f"{head}\n\n{preview['text']}" if preview else head
    if len(text) > _MOST:
        text = f"{text[:_MOST]}\n[cut: {len(text) - _MOST} more characters]"
    for_run = f"Approve {approval['covers']} for this run" if approval.get("covers") else "Approve for this run"
    actions = [
        ("Approve", {"decision": "approve"}),
        (for_run, {"decision": "approve", "scope": "run"}),
        ("Deny", {"decision": "deny"}),
    ]
    return text, actions


def selection_actions(place: dict[str, Any], selected: str | None) -> list[EditorCommand]:
    """Prompting with what is selected, when something is."""
    if not selected or not selected.strip():
        return []
    return [
        EditorCommand(title=f"Sojourn: {title}", command=command, arguments=(place,))
        for title, command in (
            ("prompt with the selection", "sojourn.prompt"),
            ("prompt a new agent with the selection", "sojourn.new"),
        )
    ]


def problem_action(place: dict[str, Any], problem: str) -> EditorCommand:
    """Having a diagnostic mended."""
    asked = {"text": f"Please mend this problem: {problem}", **place}
    return EditorCommand(title=f"Sojourn: mend “{_short(problem)}”", command="sojourn.prompt", arguments=(asked,))


def decision_actions(approval: dict[str, Any]) -> list[EditorCommand]:
    """Deciding about a call that waits."""
    preview = approval.get("preview")
    what = preview["path"] if preview else json.dumps(approval["args"], ensure_ascii=False)
    name = _short(f"{approval['toolName']} {what}")
    return [
        EditorCommand(
            title=f"Sojourn: {word} {name}",
            command=f"sojourn.{word}",
            arguments=({"approvalId": approval["approvalId"]},),
        )
        for word in ("approve", "deny")
    ]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TITLE else f"{line[: _TITLE - 1]}…"


def _doing(event: dict[str, Any]) -> str | None:
    kind = event["type"]
    if kind == "turnStart":
        return "thinking"
    if kind == "toolExecStart":
        name = event["args"].get("path") or event["args"].get("pattern") or event["args"].get("task")
        return f"{event['toolName']} {name[:80]}" if isinstance(name, str) else str(event["toolName"])
    if kind == "approvalRequested":
        return f"waits for your decision about {event['approval']['toolName']}"
    if kind == "nested":
        return _doing(event["event"])
    return None
