"""An agent's events as a person reads them: the answer as it streams, tools with their state, what is waited for."""

from __future__ import annotations

import re
import sys
from typing import Any

from sojourn_client.events import AgentEvent

from ._show import arguments, console, one_line, printable, text_of

_RESULT_WIDTH = 160


class View:
    """Shows events in order. `all_on_stdout`: everything there; otherwise only the agent's answers, notes on stderr.

    `own_prompts`: whether what users said is shown, too.
    """

    def __init__(self, *, all_on_stdout: bool, own_prompts: bool = True) -> None:
        self._notes = console(stderr=not all_on_stdout)
        self._together = all_on_stdout or (sys.stdout.isatty() and sys.stderr.isatty())
        self._own_prompts = own_prompts
        self._streamed: set[str] = set()
        self._midline = False

    def show(self, item: AgentEvent) -> None:
        """One event. A child's are set in by its depth, its text whole."""
        path, event = item.innermost()
        show = getattr(self, "_on_" + re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", event["type"]), None)
        if show is not None:
            show(event, len(path))

    def show_wire(self, params: dict[str, Any]) -> None:
        """One event, as the params of `agent/event`."""
        self.show(AgentEvent.from_wire(params))

    def note(self, text: str, style: str = "dim", depth: int = 0) -> None:
        """A line beside the answer."""
        if self._together:
            self.end_line()
        self._notes.print("  " * depth + printable(text), style=style)

    def end_line(self) -> None:
        """Ends a line that text was streamed to."""
        if self._midline:
            self._midline = False
            print(flush=True)

    def _on_message_delta(self, event: dict[str, Any], depth: int) -> None:
        if event["kind"] != "text" or depth:
            return
        self._streamed.add(event["messageId"])
        self._write(event["text"])

    def _on_message_reset(self, event: dict[str, Any], depth: int) -> None:
        if event["messageId"] in self._streamed:
            self._streamed.discard(event["messageId"])
            self.end_line()
            self.note("… what stands above is void; the answer starts again", "yellow", depth)

    def _on_message_end(self, event: dict[str, Any], depth: int) -> None:
        message = event["message"]
        role, text = message["role"], text_of(message["content"])
        if role == "user" and self._own_prompts:
            self.note(f"> {text}", "bold cyan", depth)
        elif role == "assistant" and depth and text:
            self.note(f"↳ {text}", "dim", depth)
        elif role == "assistant" and not depth:
            if message.get("messageId") not in self._streamed:
                self._write(text)
            self.end_line()

    def _on_tool_exec_start(self, event: dict[str, Any], depth: int) -> None:
        self.note(f"· {event['toolName']} {arguments(event['args'])}", "blue", depth)

    def _on_tool_exec_progress(self, event: dict[str, Any], depth: int) -> None:
        parts = [f"{event['fraction']:.0%}"] if "fraction" in event else []
        parts += [one_line(event["text"], _RESULT_WIDTH)] if event.get("text") else []
        self.note(f"  {' '.join(parts)}", "dim", depth)

    def _on_tool_exec_end(self, event: dict[str, Any], depth: int) -> None:
        result = event["result"]
        mark, style = (
            ("…", "yellow") if result.get("pending") else ("✗", "red") if result.get("isError") else ("✓", "green")
        )
        self.note(f"{mark} {event['toolName']}: {one_line(text_of(result['content']), _RESULT_WIDTH)}", style, depth)

    def _on_tool_resolved(self, event: dict[str, Any], depth: int) -> None:
        self._on_tool_exec_end(event, depth)

    def _on_approval_requested(self, event: dict[str, Any], depth: int) -> None:
        approval = event["approval"]
        what = f"{approval['toolName']} {arguments(approval['args'])}"
        self.note(f"? {what} waits for a decision: sojourn approve {approval['approvalId']}", "bold yellow", depth)

    def _on_approval_resolved(self, event: dict[str, Any], depth: int) -> None:
        approval = event["approval"]
        decision = approval["decision"]
        reason = f": {decision['reason']}" if decision.get("reason") else ""
        self.note(f"! {approval['toolName']}: {decision['decision']} by {decision['by']}{reason}", "yellow", depth)

    def _on_inbox_queued(self, event: dict[str, Any], depth: int) -> None:
        item = event["item"]
        if item["kind"] != "message":
            self.note(f"→ a {item['kind']} for {item['callId']} is in the inbox", "dim", depth)

    def _on_warning(self, event: dict[str, Any], depth: int) -> None:
        self.note(f"! {event['message']}", "yellow", depth)

    def _on_paused(self, event: dict[str, Any], depth: int) -> None:
        waiting = [f"{call['toolName']} ({call['callId']})" for call in event["pending"]]
        waiting += [f"a decision about {approval['toolName']}" for approval in event["approvals"]]
        self.note(f"paused; waits for {', '.join(waiting)}", "yellow", depth)

    def _on_agent_end(self, event: dict[str, Any], depth: int) -> None:
        if event["reason"] in ("done", "paused"):
            return
        error = event.get("error")
        self.note(f"{event['reason']}{': ' + error['message'] if error else ''}", "red", depth)

    def _write(self, text: str) -> None:
        shown = printable(text)
        if shown:
            sys.stdout.write(shown)
            sys.stdout.flush()
            self._midline = not shown.endswith("\n")
