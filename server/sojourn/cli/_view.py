"""An agent's events as a person reads them: the answer as it streams, tools with their state, what is waited for."""

from __future__ import annotations

import re
import sys
from typing import Any, TextIO

from sojourn_client.events import AgentEvent

from ._show import arguments, asked_for, console, decided, one_line, printable, text_of
from ._wrap import Wrap

_RESULT_WIDTH = 160
_RESULT_LINES = 5
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


class View:
    """Shows events in order. `all_on_stdout`: everything there; otherwise only the agent's answers, notes on stderr.

    `own_prompts`: whether what users said is shown, too. `file` stands for stdout. `go_on` says how to go on with an
    interrupted run.
    """

    def __init__(
        self,
        *,
        all_on_stdout: bool,
        own_prompts: bool = True,
        file: TextIO | None = None,
        go_on: str = "`sojourn resume` goes on",
    ) -> None:
        self._out = file or sys.stdout
        self._notes = console(stderr=not all_on_stdout, file=file)
        self._together = all_on_stdout or (sys.stdout.isatty() and sys.stderr.isatty())
        self._wrap = Wrap() if self._out.isatty() else None
        self._go_on = go_on
        self._own_prompts = own_prompts
        self._streamed: set[str] = set()
        self._midline = False
        self._path: tuple[str, ...] = ()
        self._told: set[tuple[str, ...]] = set()
        """The calls whose end was shown, and whose result as a message says nothing new."""

    def show(self, item: AgentEvent) -> None:
        """One event. A child's are set in by its depth, its text whole."""
        path, event = item.innermost()
        self._path = tuple(path)
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

    def change(self, approval: dict[str, Any], depth: int = 0) -> None:
        """What the call would change, as a diff, where that is known."""
        preview = approval.get("preview") or {"text": ""}
        for line in preview["text"].splitlines():
            self.note(line, _DIFF_STYLES.get(line[:1], "dim"), depth)

    def end_line(self) -> None:
        """Ends a line that text was streamed to."""
        if self._midline:
            self._midline = False
            print(self._wrap.end() if self._wrap else "", file=self._out, flush=True)

    def _on_message_delta(self, event: dict[str, Any], depth: int) -> None:
        if event["kind"] != "text" or depth:
            return
        self._streamed.add(event["messageId"])
        self._write(event["text"])

    def _on_message_reset(self, event: dict[str, Any], depth: int) -> None:
        if event["messageId"] in self._streamed:
            self._streamed.discard(event["messageId"])
            self.end_line()
            again = "" if event["reason"] == "restart" else "; the answer starts again"
            self.note(f"… what stands above is void{again}", "yellow", depth)

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
        elif role == "toolResult":
            self._refused(message, depth)

    def _refused(self, message: dict[str, Any], depth: int) -> None:
        """A result that no tool gave: the call was refused before it ran."""
        call = (*self._path, message["callId"])
        if call not in self._told:
            self._result(message, message, depth)
        self._told.discard(call)

    def _on_tool_exec_start(self, event: dict[str, Any], depth: int) -> None:
        self.note(f"· {event['toolName']} {arguments(event['args'])}", "blue", depth)

    def _on_tool_exec_progress(self, event: dict[str, Any], depth: int) -> None:
        parts = [f"{event['fraction']:.0%}"] if "fraction" in event else []
        lines = event.get("text", "").strip().splitlines()
        parts += [one_line(lines[-1], _RESULT_WIDTH)] if lines else []
        self.note(f"  {' '.join(parts)}", "dim", depth)

    def _on_tool_exec_end(self, event: dict[str, Any], depth: int) -> None:
        self._told.add((*self._path, event["toolCallId"]))
        self._result(event, event["result"], depth)

    def _result(self, call: dict[str, Any], result: dict[str, Any], depth: int) -> None:
        mark, style = (
            ("…", "yellow") if result.get("pending") else ("✗", "red") if result.get("isError") else ("✓", "green")
        )
        name = call["toolName"]
        if result.get("pending"):
            name = f"{name} ({call.get('toolCallId') or call['callId']})"
        lines = [line.rstrip() for line in printable(text_of(result["content"])).strip().splitlines()]
        if len(lines) <= 1:
            self.note(f"{mark} {name}: {one_line(''.join(lines), _RESULT_WIDTH)}", style, depth)
            return
        self.note(f"{mark} {name}:", style, depth)
        for line in lines[:_RESULT_LINES]:
            self.note(f"    {line if len(line) <= _RESULT_WIDTH else line[: _RESULT_WIDTH - 1] + '…'}", "dim", depth)
        if (more := len(lines) - _RESULT_LINES) > 0:
            self.note(f"    … {more} more line{'s' * (more > 1)}", "dim", depth)

    def _on_tool_resolved(self, event: dict[str, Any], depth: int) -> None:
        self._result(event, event["result"], depth)

    def _on_approval_requested(self, event: dict[str, Any], depth: int) -> None:
        approval = event["approval"]
        self.change(approval, depth)
        what = asked_for(approval)
        self.note(f"? {what} waits for a decision: sojourn approve {approval['approvalId']}", "bold yellow", depth)

    def _on_approval_resolved(self, event: dict[str, Any], depth: int) -> None:
        approval = event["approval"]
        decision = approval["decision"]
        reason = f": {decision['reason']}" if decision.get("reason") else ""
        went_on = decision["decision"] in ("approve", "edit", "answer")
        mark, style = ("✓", "green") if went_on else ("!", "yellow")
        self.note(f"{mark} {approval['toolName']}: {decided(decision)}{reason}", style, depth)
        if not went_on:
            self._told.add((*self._path, approval["callId"]))

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
        go_on = f"; {self._go_on}" if event["reason"] == "interrupted" and not depth else ""
        self.note(f"{event['reason']}{go_on}{': ' + error['message'] if error else ''}", "red", depth)

    def _write(self, text: str) -> None:
        shown = printable(text)
        if shown:
            self._out.write(self._wrap.feed(shown) if self._wrap else shown)
            self._out.flush()
            self._midline = not shown.endswith("\n")
