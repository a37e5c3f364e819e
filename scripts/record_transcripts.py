#!/usr/bin/env python3
"""Records the transcripts of the standard sequences anew; with `--check` only says which are not current.

Every value that differs from run to run (ids, times, durations, versions) gets a fixed one, in order of appearance,
so that a recording is the same wherever it is made. docs/conformance.md describes the files.
"""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Callable
from typing import Any

from sojourn_client.testing import DaemonProcess
from sojourn_client.transcripts._read import FOLDER, FORMAT

SCRIPT = r"""
rules:
  - when: {late_result: "*"}
    reply: {text: "The build has finished: {result}"}
  - when: {user: '^build'}
    reply:
      reasoning: "That takes a while."
      text: "I start it."
      calls: [{name: demo_build, arguments: {target: site}}]
  - when: {user: '^deploy'}
    reply: {text: "A person decides.", calls: [{name: demo_deploy, arguments: {target: production}}]}
  - when: {user: '^research'}
    reply: {text: "A helper looks.", calls: [{name: delegate, arguments: {task: say hello}}]}
  - when: {user: '^nap'}
    reply: {calls: [{name: demo_sleep, arguments: {seconds: 60}}]}
  - when: {user: '^flaky'}
    times: 1
    reply: {text: "Half an ans", error: {status: 529, message: "Overloaded"}}
  - when: {user: '^flaky'}
    reply: {text: "A whole answer. 🙂"}
  - when: {tool_result: "*"}
    reply: {text: "{tool} says: {result}"}
  - when: {always: true}
    reply: {text: "You said: {user}"}
"""
TOOLS = ["demo_build", "demo_deploy", "demo_sleep", "delegate"]


class Recorder:
    """A client that writes down both directions."""

    def __init__(self, daemon: DaemonProcess, name: str) -> None:
        self.daemon = daemon
        self.name = name
        """The agent's id while it is recorded; all sequences share a daemon, in each file it is `guide`."""
        self.lines: list[dict[str, Any]] = []
        self._ids = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._connections = 0
        self.connect()

    def connect(self) -> None:
        """A new connection that has said hello."""
        self._connections += 1
        if self._connections > 1:
            self.lines.append({"connection": self._connections})
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(self.daemon.socket))
        self._stream = self._socket.makefile("r", encoding="utf-8", newline="\n")
        ours = {"protocolVersions": [1], "clientId": "recorder", "approvals": {"request": {}}}
        self.call("initialize", processId=None, rootUri="file:///tmp", capabilities={"experimental": {"sojourn": ours}})
        self.send({"method": "initialized", "params": {}})

    def close(self) -> None:
        """Leaves without a word."""
        self._stream.close()
        self._socket.close()

    def send(self, body: dict[str, Any]) -> None:
        """Sends a message."""
        whole = {"jsonrpc": "2.0", **body}
        self.lines.append({"to": "daemon", "frame": whole})
        self._socket.sendall(json.dumps(whole).encode() + b"\n")

    def ask(self, method: str, **params: Any) -> int:
        """Sends a request and does not wait; its id."""
        self._ids += 1
        self.send({"id": self._ids, "method": method, "params": params})
        return self._ids

    def call(self, method: str, **params: Any) -> Any:
        """The result of a request."""
        return self.answer(self.ask(method, **params))

    def answer(self, id: int) -> Any:
        """Reads until the answer to `id` comes."""
        if id in self._answers:
            message = self._answers[id]
        else:
            message = self.until(lambda one: "method" not in one and one.get("id") == id)
        return message.get("result", message.get("error"))

    def event(self, type: str) -> dict[str, Any]:
        """Reads until an event of this type comes, also a child's."""
        return self.until(lambda one: one.get("method") == "agent/event" and _kind(one["params"]["event"]) == type)

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Reads and writes down until a message is wanted."""
        while line := self._stream.readline():
            message: dict[str, Any] = json.loads(line)
            self.lines.append({"to": "client", "frame": message})
            if "method" not in message:
                self._answers[message["id"]] = message
            if wanted(message):
                return message
        raise ConnectionError("The daemon ended the connection.")

    def agent(self, **config: Any) -> None:
        """An agent, from its first event on."""
        self.call("agent/create", agentId=self.name, config={"tools": TOOLS, **config})
        self.call("agent/attach", agentId=self.name, afterSeq=0)


def _kind(event: dict[str, Any]) -> str:
    return _kind(event["event"]) if event["type"] == "nested" else str(event["type"])


def pending(one: Recorder) -> None:
    """A tool answers later, and the model answers around it"""
    one.agent()
    one.call("agent/prompt", agentId=one.name, content="build it")


def resolved(one: Recorder) -> None:
    """The result of a pending call arrives, and resume reads it; a second result is refused"""
    pending(one)
    one.call("inbox/resolve", agentId=one.name, callId="msg-2-call-1", content="built in 42 s")
    one.call("inbox/resolve", agentId=one.name, callId="msg-2-call-1", content="again")
    one.call("agent/resume", agentId=one.name)
    one.call("agent/resume", agentId=one.name)


def rejected(one: Recorder) -> None:
    """A pending call is said to have failed while the agent is paused for it"""
    one.agent(pauseOnPending=True)
    one.call("agent/prompt", agentId=one.name, content="build it")
    one.call("inbox/reject", agentId=one.name, callId="msg-2-call-1", error="The disk is full.")
    one.call("agent/resume", agentId=one.name)


def child(one: Recorder) -> None:
    """A child agent works inside of a call"""
    one.agent()
    one.call("agent/prompt", agentId=one.name, content="research it")


def approval(one: Recorder) -> None:
    """A call waits for a decision, is asked about by a request of the daemon, and runs with edited arguments"""
    one.agent()
    prompt = one.ask("agent/prompt", agentId=one.name, content="deploy it")
    asked = one.until(lambda message: message.get("method") == "approval/request")
    one.send({"id": asked["id"], "result": {"decision": "edit", "arguments": {"target": "staging"}}})
    one.answer(prompt)


def denied(one: Recorder) -> None:
    """A call is denied with a reason; the next decider is told who was first"""
    one.agent()
    prompt = one.ask("agent/prompt", agentId=one.name, content="deploy it")
    asked = one.until(lambda message: message.get("method") == "approval/request")
    approval_id = asked["params"]["approval"]["approvalId"]
    one.send({"id": asked["id"], "result": {"decision": "deny", "reason": "Not on a Friday."}})
    one.answer(prompt)
    one.call("approval/decide", approvalId=approval_id, decision="approve")


def retried(one: Recorder) -> None:
    """A model call breaks off and is made again: what was streamed is void"""
    one.agent()
    one.call("agent/prompt", agentId=one.name, content="flaky")


def stopped(one: Recorder) -> None:
    """A run is stopped while its tool runs, after a message was left in its inbox; resume answers that"""
    one.agent()
    prompt = one.ask("agent/prompt", agentId=one.name, content="nap")
    one.event("toolExecStart")
    one.call("inbox/push", agentId=one.name, content="hurry")
    one.call("agent/stop", agentId=one.name)
    one.answer(prompt)
    one.call("agent/resume", agentId=one.name)


def killed(one: Recorder) -> None:
    """The daemon is killed while an approval is open: the client comes back to it, and it is approved there"""
    one.agent()
    one.ask("agent/prompt", agentId=one.name, content="deploy it")
    asked = one.until(lambda message: message.get("method") == "approval/request")
    seq = [line["frame"]["params"]["seq"] for line in one.lines if "seq" in line.get("frame", {}).get("params", {})][-1]
    one.daemon.kill9()
    one.close()
    one.daemon.start()
    one.connect()
    one.call("agent/attach", agentId=one.name, afterSeq=seq)
    again = one.until(lambda message: message.get("method") == "approval/request")
    assert again["params"]["approval"] == asked["params"]["approval"]
    one.send({"id": again["id"], "result": {"decision": "approve"}})
    one.event("agentEnd")


def replayed(one: Recorder) -> None:
    """A client that comes later reads everything from the first event, and is told where there is nothing to read"""
    pending(one)
    one.close()
    one.connect()
    seq = one.call("agent/attach", agentId=one.name, afterSeq=0)["seq"]
    one.until(lambda message: message.get("params", {}).get("seq") == seq)
    one.call("agent/attach", agentId=one.name, afterSeq=seq + 100)


SEQUENCES = [pending, resolved, rejected, child, approval, denied, retried, stopped, killed, replayed]

_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)")
_DELAY = re.compile(r"again in [\d.]+ s")
_IDS = {
    "runId": "run",
    "activeRunId": "run",
    "instanceId": "instance",
    "storeId": "store",
    "approvalId": "approval",
    "itemId": "item",
    "agentId": "agent",
}
_FIXED: dict[str, Any] = {
    "durationMs": 1,
    "timeToFirstTokenMs": 1,
    "delayS": 0.4,
    "usedTokens": 100,
    "inputTokens": 100,
    "outputTokens": 10,
    "version": "0.0.0",
    "limits": {},
    "methods": [],
}


class Fixer:
    """Gives what differs from run to run a fixed value."""

    def __init__(self, name: str) -> None:
        self._known: dict[str, str] = {name: "guide"}
        self._counts: dict[str, int] = {}

    def fix(self, value: Any, key: str = "") -> Any:
        """The same value with fixed ids, times and durations."""
        if key in _FIXED:
            return _FIXED[key]
        if isinstance(value, dict):
            return {name: self.fix(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [self.fix(one) for one in value]
        return self._text(value, key) if isinstance(value, str) else value

    def _text(self, value: str, key: str) -> str:
        value = _DELAY.sub("again in 0.4 s", _TIME.sub("2026-01-01T00:00:00Z", value))
        if key in _IDS and value not in self._known:
            kind = _IDS[key]
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._known[value] = f"{kind}-{self._counts[kind]}"
        for real, fixed in self._known.items():
            if real in value and (key not in _IDS or real == value):
                value = value.replace(real, fixed)
        return value


def joined(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring deltas of one part are one: how they are cut is not the protocol's."""
    made: list[dict[str, Any]] = []
    for line in lines:
        old, new = _delta(made[-1] if made else {}), _delta(line)
        if old is not None and new is not None and all(old[k] == new[k] for k in ("messageId", "part", "kind")):
            old["text"] += new["text"]
        else:
            made.append(json.loads(json.dumps(line)))
    return made


def _delta(line: dict[str, Any]) -> dict[str, Any] | None:
    event = line.get("frame", {}).get("params", {}).get("event", {})
    while event.get("type") == "nested":
        event = event["event"]
    return event if event.get("type") == "messageDelta" else None


def shows(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client knows at the end, read from the events by the rules of the protocol page."""
    messages: list[dict[str, str]] = []
    calls: dict[str, dict[str, str]] = {}
    seq, inside = 0, 0
    for line in lines:
        params = line.get("frame", {}).get("params", {})
        if line.get("frame", {}).get("method") != "agent/event" or params.get("seq", 0) <= seq:
            continue
        seq, event = params["seq"], params["event"]
        inside += event["type"] == "nested" and _kind(event) == "messageEnd"
        _note(event, messages, calls)
    return {"agentId": "guide", "seq": seq, "messages": messages, "calls": calls, "childMessages": inside}


def _note(event: dict[str, Any], messages: list[dict[str, str]], calls: dict[str, dict[str, str]]) -> None:
    kind = event["type"]
    if kind == "approvalRequested":
        calls[event["approval"]["callId"]] = {"status": "asks"}
    elif kind == "toolExecStart":
        calls[event["toolCallId"]] = {"status": "running"}
    elif kind in ("toolExecEnd", "toolResolved"):
        calls[event["toolCallId"]] = _result(event["result"])
    elif kind == "messageEnd":
        message = event["message"]
        messages.append({"role": message["role"], "text": _words(message["content"])})
        if message["role"] == "toolResult":
            calls[message["callId"]] = _result(message)


def _result(result: dict[str, Any]) -> dict[str, str]:
    status = "pending" if result.get("pending") else "failed" if result.get("isError") else "done"
    return {"status": status, "output": _words(result["content"])}


def _words(content: list[dict[str, Any]]) -> str:
    return "".join(part["text"] for part in content if part["type"] == "text")


def record(sequence: Callable[[Recorder], None], daemon: DaemonProcess) -> str:
    """The text of a transcript's file."""
    recorder = Recorder(daemon, f"agent-of-{sequence.__name__}")
    sequence(recorder)
    recorder.close()
    lines = joined(Fixer(recorder.name).fix(recorder.lines))
    head = {"transcript": FORMAT, "name": sequence.__name__, "title": f"{sequence.__doc__}.", "protocolVersion": 1}
    whole = [head, *lines, {"shows": shows(lines)}]
    return "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in whole)


def stale(recorded: dict[str, str]) -> list[str]:
    """The names of recordings that differ from the files, and of files that nobody records."""
    files = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.jsonl")}
    return sorted(name for name in recorded.keys() | files.keys() if recorded.get(name) != files.get(name))


def main(arguments: list[str]) -> int:
    """Writes or checks every recording."""
    with DaemonProcess(script=SCRIPT) as daemon:
        recorded = {sequence.__name__: record(sequence, daemon) for sequence in SEQUENCES}
    changed = stale(recorded)
    if "--check" in arguments:
        for name in changed:
            sys.stderr.write(f"The transcript {name!r} is not current; run scripts/record_transcripts.py.\n")
        return 1 if changed else 0
    FOLDER.mkdir(exist_ok=True)
    for name in changed:
        (FOLDER / f"{name}.jsonl").unlink(missing_ok=True)
        if name in recorded:
            (FOLDER / f"{name}.jsonl").write_text(recorded[name], encoding="utf-8")
            sys.stdout.write(f"wrote {name}.jsonl\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
