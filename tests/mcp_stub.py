"""An MCP server over stdio that does what a test wants, also what no good server does. Run as a process of its own.

Written without the SDK on purpose: that would not let it misbehave, and takes half a second to start.
Everything that really happened goes as a line into the file that WORLD names.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

FLAGS = set(sys.argv[1:])
WORLD = os.environ.get("WORLD")
TASKS = Path(os.environ["TASKS"]) if "TASKS" in os.environ else None
OBJECT = {"type": "object", "properties": {}}
MODERN = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
more: list[dict[str, Any]] = []


def note(what: str) -> None:
    if WORLD:
        with open(WORLD, "a") as world:
            world.write(what + "\n")


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], **more}


def tool(name: str, schema: Any = OBJECT, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema, **more}


def tools() -> list[dict[str, Any]]:
    names = ("echo", "die", "slow", "late", "garbage", "flood", "big", "shout", "refuse", "malformed", "env", "grow")
    found = [tool(name) for name in (*names, "ask", "parts", "progress")]
    found[0]["inputSchema"] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    if "--bad-schemas" in FLAGS:
        found += [
            tool("no-object", "string"),
            tool("array", {"type": "array"}),
            tool("not-a-schema", {"type": "object", "properties": {"a": {"type": 5}}}),
            tool("bad-pattern", {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}),
            tool("elsewhere", {"type": "object", "properties": {"a": {"$ref": "https://example.invalid/a.json"}}}),
            tool("huge", {"type": "object", "description": "x" * 300_000}),
            tool("echo"),
            {"description": "has no name"},
            "not an object",
            tool("untyped", {"properties": {}}),
            tool("long" * 200),
            tool("wordy") | {"description": 5},
            tool("task-only", execution={"taskSupport": "required"}),
            tool("told") | {"description": "y" * 30_000},
        ]
    if TASKS is not None:
        found.append(tool("job", execution={"taskSupport": "required"}))
    return found + more


def task_state(task_id: str) -> dict[str, Any] | None:
    assert TASKS is not None
    file = TASKS / task_id
    if not file.exists():
        return None
    job = json.loads(file.read_text())
    job["status"] = job["status"] if time.time() >= job["due"] else "working"
    return {
        "taskId": task_id,
        "status": job["status"],
        "statusMessage": f"{job['status']} on it",
        "createdAt": "2026-01-01T00:00:00Z",
        "lastUpdatedAt": "2026-01-01T00:00:00Z",
        "ttl": job.get("ttl"),
        "pollInterval": 20,
    }


def begin_task(args: dict[str, Any]) -> dict[str, Any]:
    assert TASKS is not None
    task_id = f"task-{os.getpid()}-{len(list(TASKS.iterdir()))}"
    job = {"due": time.time() + args.get("seconds", 0), "status": args.get("ends", "completed"), "ttl": args.get("ttl")}
    (TASKS / task_id).write_text(json.dumps(job))
    note(f"task {task_id}")
    return {"task": task_state(task_id)}


def call(id: Any, params: dict[str, Any]) -> None:  # noqa: C901 - a list of cases
    name, args = params["name"], params.get("arguments") or {}
    token = params.get("_meta", {}).get("progressToken")
    note(f"call {name}")
    match name:
        case "echo":
            send(id=id, result=text(str(args.get("text")), resultType="complete"))
        case "die":
            sys.stderr.write("my last words\n")
            sys.stderr.flush()
            os._exit(3)
        case "slow":
            pass
        case "late":
            threading.Timer(args["seconds"], lambda: send(id=id, result=text("late"))).start()
        case "garbage":
            sys.stdout.write('hello\n\n{"half": \n[1,2]\n\x00\xff\n')
            sys.stdout.buffer.write(b"\xff\xfe\n")
            send(id=id, result=text("after garbage"))
        case "flood":
            for _ in range(args["count"]):
                if args.get("garbage"):
                    sys.stdout.write("x" * 100 + "\n")
                else:
                    params = {"progressToken": token, "progress": 1}
                    sys.stdout.write(
                        json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}) + "\n"
                    )
            send(id=id, result=text("after the flood"))
        case "big":
            send(id=id, result=text("x" * args["bytes"]))
        case "shout":
            for number in range(args["lines"]):
                sys.stderr.write(f"line {number} \x1b[31mred {'y' * args.get('width', 10)}\n")
            sys.stderr.flush()
            send(id=id, result=text("shouted"))
        case "refuse":
            send(id=id, error={"code": -32099, "message": "I will not"})
        case "malformed":
            send(id=id, result={"content": "no list"})
        case "env":
            send(id=id, result={"content": [], "structuredContent": {**os.environ, "CWD": os.getcwd()}})
        case "grow":
            more.append(tool(f"grown-{len(more)}"))
            for _ in range(args.get("times", 1)):
                send(method="notifications/tools/list_changed")
            send(id=id, result=text("grown"))
        case "ask" if "--modern" in FLAGS:
            send(id=id, result={"resultType": "input_required", "inputRequests": {}, "requestState": "s"})
        case "ask":
            send(id="q-1", method="elicitation/create", params={"message": "?", "requestedSchema": OBJECT})
            send(id=id, result=text("asked"))
        case "parts":
            blocks = [
                {"type": "text", "text": "a \ud800 b"},
                {"type": "image", "mimeType": "image/png", "data": "AAAA"},
                {"type": "audio", "mimeType": "audio/wav", "data": "AAAAAAAA"},
                {"type": "resource_link", "uri": "file:///x", "name": "x", "description": "the x"},
                {"type": "resource", "resource": {"uri": "a:b", "mimeType": "text/plain", "text": "inside"}},
                {"type": "resource", "resource": {"uri": "a:c", "mimeType": "image/png", "blob": "BBBB"}},
                {"type": "resource", "resource": {"uri": "a:d", "mimeType": "a/b", "blob": "CCCC"}},
            ]
            send(id=id, result={"content": blocks, "structuredContent": {"n": 1}, "isError": True})
        case "progress":
            for step in (1, 2):
                note_params = {"progressToken": token, "progress": step, "total": 2, "message": f"step {step}"}
                send(method="notifications/progress", params=note_params)
                time.sleep(0.1)
            send(id=id, result=text("stepped"))
        case "job":
            send(id=id, result=begin_task(args) if "task" in params else text("not as a task"))
        case _:
            send(id=id, result=text(f"there is no {name}", isError=True))


def answer(message: dict[str, Any]) -> None:  # noqa: C901 - a list of cases
    method, id, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "initialize" and "--modern" in FLAGS:
        versions = {"supported": ["2026-07-28"], "requested": params["protocolVersion"]}
        send(id=id, error={"code": -32022, "message": "too old", "data": versions})
    elif method == "server/discover":
        found = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "serverInfo": {}}
        send(id=id, result={**found, **MODERN})
    elif method == "initialize":
        note(f"start {os.getpid()}")
        able: dict[str, Any] = {"tools": {"listChanged": True}}
        if TASKS is not None:
            able["tasks"] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
        info = {"name": "stub", "version": "1"}
        send(id=id, result={"protocolVersion": "2025-11-25", "capabilities": able, "serverInfo": info})
    elif method == "tools/list":
        note("list")
        start = int(params.get("cursor") or 0)
        step = 3 if "--pages" in FLAGS else 1000
        page: dict[str, Any] = {"tools": tools()[start : start + step]}
        if start + step < len(tools()):
            page["nextCursor"] = str(start + step)
        page |= MODERN if "--modern" in FLAGS else {}
        send(id=id, result={"tools": 5} if "--no-list" in FLAGS else page)
    elif method == "tools/call":
        call(id, params)
    elif method in ("tasks/get", "tasks/result", "tasks/cancel"):
        answer_task(method, id, params["taskId"])
    elif method == "notifications/cancelled":
        note(f"cancelled {params['requestId']}")
    elif id is not None and method is not None:
        send(id=id, error={"code": -32601, "message": f"no {method}"})


def answer_task(method: str, id: Any, task_id: str) -> None:
    state = task_state(task_id)
    if state is None:
        send(id=id, error={"code": -32602, "message": "no such task"})
    elif method == "tasks/cancel":
        note(f"cancel {task_id}")
        send(id=id, result={**state, "status": "cancelled"})
    elif method == "tasks/get":
        send(id=id, result=state)
    else:
        send(id=id, result=text(f"result of {state['status']}", isError=state["status"] == "failed"))


def main() -> None:
    if "--dies" in FLAGS:
        sys.exit("I cannot start: no such thing")
    if "--stubborn" in FLAGS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--grandchild" in FLAGS:
        child = subprocess.Popen(["sleep", "600"])
        note(f"grandchild {child.pid}")
    if "--banner" in FLAGS:
        print("Welcome to the stub!\n=== v1 ===", flush=True)
    for line in sys.stdin:
        if "--hangs" not in FLAGS:
            answer(json.loads(line))
    if "--stubborn" in FLAGS:
        while True:
            time.sleep(60)


if __name__ == "__main__":
    main()
