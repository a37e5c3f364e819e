"""MCP servers over streamable HTTP: the SDK's own server in another process."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mcp_bench import EVERYTHING, Bench, free_port

from sojourn.core.messages import text_of
from sojourn.core.servers import McpServer
from sojourn.tools.mcp import McpServers

pytestmark = pytest.mark.anyio

STUB = str(Path(__file__).parents[1] / "mcp_http_stub.py")
START_S = 60


@contextlib.asynccontextmanager
async def serving(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """The server on the port, until the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, STUB, str(port), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(START_S):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                assert process.returncode is None, "the server ended"
                await asyncio.sleep(0.05)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_server_over_http_is_called_told_its_headers_and_found_again_after_its_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_TOKEN", "sesame\n")
    monkeypatch.setenv("WEB_KEY", "k")
    port = free_port()
    web = McpServer(
        url=f"http://127.0.0.1:{port}/mcp",
        bearer_token_env="WEB_TOKEN",
        header_env={"X-Key": "WEB_KEY"},
        headers={"X-Plain": "p"},
        call_timeout_s=10,
    )
    servers = McpServers({"web": web})
    b = Bench(servers, tmp_path / "world")
    try:
        async with serving(port) as process:
            assert set(await b.tools()) == {"web__echo", "web__header", "web__count", "web__wait", "web__forget"}
            assert [part.text for part in (await b.call("web__echo", text="hi")).content] == ["hi"]
            for name, value in (("authorization", "Bearer sesame"), ("x-key", "k"), ("x-plain", "p")):
                assert text_of((await b.call("web__header", which=name)).content) == value
            assert text_of((await b.call("web__count", upto=2)).content) == "counted"
            assert ("at 2", 1.0) in b.host.progress
            waiting = asyncio.create_task(b.call("web__wait"))
            await asyncio.sleep(0.3)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert process.stdout is not None
            async with asyncio.timeout(20):
                while await process.stdout.readline() != b"gave up\n":
                    assert process.returncode is None
            await b.call("web__forget")
            assert text_of((await b.call("web__echo", text="again")).content) == "again", "a lost session costs no call"
        lost = await b.call("web__echo", text="nobody")
        assert lost.is_error
        assert "'web' was lost during the call" in text_of(lost.content)
        down = await b.call("web__echo", text="nobody")
        assert f"nothing was called: {web.url} cannot be reached" in text_of(down.content)
    finally:
        await servers.aclose()


async def test_a_variable_that_cannot_be_a_header_is_named_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_TOKEN", "se\nsame")
    servers = McpServers({"web": McpServer(url="http://127.0.0.1:9/mcp", bearer_token_env="WEB_TOKEN")})
    (problem,) = await servers.ready(servers.split(EVERYTHING)[1], EVERYTHING)
    assert "the variable 'WEB_TOKEN' holds characters that a header cannot have" in problem.message
    assert "sesame" not in problem.message.replace("\n", "")
    await servers.aclose()


class Odd(BaseHTTPRequestHandler):
    """A server whose tools answer as no server should. `/json` and `/sse` say how it answers."""

    protocol_version = "HTTP/1.1"
    BODIES = {  # noqa: RUF012
        "deep": '{"content": [], "structuredContent": {"a": ' + "[" * 5000 + "]" * 5000 + "}}",
        "garbage": '{"content": no',
        "huge": '{"content": [{"type": "text", "text": "' + "x" * 17 * 1024 * 1024 + '"}]}',
        "echo": '{"content": [{"type": "text", "text": "hi"}]}',
        **dict.fromkeys(("otherId", "noId", "refused", "ownRequest", "number", "packed", "bomb"), ""),
    }

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self._send(405, "text/plain", "")

    def do_DELETE(self) -> None:
        self._send(405, "text/plain", "")

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message:
            self._send(202, "text/plain", "")
            return
        name = str(message.get("params", {}).get("name"))
        body = self._odd(name, message["id"])
        if body is None:
            result = self._result(message["method"], message.get("params", {}))
            body = f'{{"jsonrpc": "2.0", "id": {json.dumps(message["id"])}, "result": {result}}}'
        if self.path == "/sse":
            self._send(200, "text/event-stream", f"event: message\ndata: {body}\n\n")
        else:
            self._send(200, "application/json", body)

    def _odd(self, name: str, asked: int) -> str | None:
        """A whole message that is no answer, or no usual one."""
        said = {
            "otherId": {"id": 987654, "result": {"content": []}},
            "noId": {"result": {"content": []}},
            "refused": {"id": None, "error": {"code": -32001, "message": "not today"}},
            "ownRequest": {"id": asked, "method": "ping"},
            "number": {"id": str(asked), "result": {"content": [{"type": "text", "text": "as text"}]}},
            "packed": {"id": asked, "result": {"content": [{"type": "text", "text": "unpacked"}]}},
            "bomb": {"id": asked, "result": {"content": [{"type": "text", "text": "x" * 17 * 1024 * 1024}]}},
        }
        return json.dumps({"jsonrpc": "2.0", **said[name]}) if name in said else None  # type: ignore[dict-item]

    def _result(self, method: str, params: dict[str, object]) -> str:
        if method == "initialize":
            info = {"name": "odd", "version": "1"}
            return json.dumps(
                {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
            )
        if method == "tools/list":
            return json.dumps({"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in self.BODIES]})
        return self.BODIES[str(params["name"])]

    def _send(self, status: int, kind: str, body: str) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        if self.path == "/packed":
            data = gzip.compress(data)
            self.send_header("content-encoding", "gzip")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):  # it was hung up on
            self.wfile.write(data)


@pytest.fixture(scope="module")
def odd() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("how", ["json", "sse"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deep", "'web' answered with an error: Failed to parse"),
        ("garbage", "'web' answered with an error: Failed to parse"),
        ("huge", "'web' was lost during the call, which may have taken effect"),
    ],
)
async def test_an_answer_over_http_that_cannot_be_read_is_an_error_of_its_call_at_once(
    odd: str, how: str, name: str, said: str, tmp_path: Path
) -> None:
    bench = Bench(McpServers({"web": McpServer(url=f"{odd}/{how}", call_timeout_s=60)}), tmp_path)
    try:
        began = time.monotonic()
        output = await bench.call(f"web__{name}")
        assert output.is_error
        assert said in text_of(output.content)
        assert time.monotonic() - began < 15
        output = await bench.call("web__echo")  # the next call finds it as before
        assert text_of(output.content) == "hi"
    finally:
        await bench.servers.aclose()


@pytest.mark.parametrize(
    ("how", "name", "is_error", "said"),
    [
        ("json", "otherId", True, "'web' answered with an error: it answered with the id '987654' to the request"),
        ("json", "noId", True, "'web' answered with an error: it answered with no id to the request"),
        ("json", "refused", True, "'web' answered with an error: not today (-32001)"),
        ("json", "ownRequest", True, "'web' answered with an error: it answered with something that is no answer"),
        ("json", "number", False, "as text"),
        ("packed", "packed", False, "unpacked"),
        ("packed", "otherId", True, "'web' answered with an error: it answered with the id '987654' to the request"),
        ("packed", "bomb", True, "'web' was lost during the call, which may have taken effect"),
    ],
)
async def test_what_comes_over_http_and_is_no_answer_to_the_call_is_its_error_at_once(
    odd: str, how: str, name: str, is_error: bool, said: str, tmp_path: Path
) -> None:
    bench = Bench(McpServers({"web": McpServer(url=f"{odd}/{how}", call_timeout_s=60)}), tmp_path)
    try:
        began = time.monotonic()
        output = await bench.call(f"web__{name}")
        assert output.is_error is is_error
        assert text_of(output.content).removeprefix("The MCP server ").startswith(said)
        assert time.monotonic() - began < 10
        assert text_of((await bench.call("web__echo")).content) == "hi"
    finally:
        await bench.servers.aclose()
