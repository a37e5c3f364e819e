"""The servers that everybody has, as their makers published them. `scripts/install_mcp_servers` gets them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp_bench import Bench, free_port, gone
from shared_inputs import ROOT
from tool_fakes import FakeHost

from sojourn.core.messages import ImagePart, ResourcePart, text_of
from sojourn.core.servers import McpServer
from sojourn.tools.mcp import McpServers

pytestmark = pytest.mark.anyio

PLACES = [ROOT / ".mcp-servers/python/bin", ROOT / ".mcp-servers/node/node_modules/.bin"]
WHERE = os.pathsep.join([*map(str, PLACES), os.environ.get("PATH", "")])


@contextlib.asynccontextmanager
async def real(program: str, *args: str, world: Path, **more: object) -> AsyncIterator[Bench]:
    """A bench with the server as `real`; skips where it is not installed."""
    found = shutil.which(program, path=WHERE)
    if found is None:
        pytest.skip(f"{program} is not installed here (scripts/install_mcp_servers)")
    config = McpServer.model_validate({"command": found, "args": args, "startTimeoutS": 60, **more})
    servers = McpServers({"real": config})
    try:
        yield Bench(servers, world)
    finally:
        await servers.aclose()


async def said(b: Bench, tool: str, **args: object) -> str:
    output = await b.call(f"real__{tool}", **args)
    assert not output.is_error, output
    return text_of(output.content)


async def test_time(tmp_path: Path) -> None:
    async with real("mcp-server-time", world=tmp_path) as b:
        answer = json.loads(await said(b, "get_current_time", timezone="Europe/Oslo"))
        assert answer["timezone"] == "Europe/Oslo"
        wrong = await b.call("real__get_current_time", timezone="Mars/Olympus")
        assert wrong.is_error
        assert "Mars/Olympus" in text_of(wrong.content)


async def test_git(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "a.txt").write_text("one\n")
    async with real("mcp-server-git", "--repository", str(tmp_path), world=tmp_path) as b:
        assert "a.txt" in await said(b, "git_status", repo_path=str(tmp_path))
        await said(b, "git_add", repo_path=str(tmp_path), files=["a.txt"])
        assert "+one" in await said(b, "git_diff_staged", repo_path=str(tmp_path))
        outside = await b.call("real__git_status", repo_path="/")
        assert outside.is_error


async def test_filesystem(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("inside")
    async with real("mcp-server-filesystem", str(tmp_path), world=tmp_path) as b:
        assert "inside" in await said(b, "read_text_file", path=str(tmp_path / "a.txt"))
        await said(b, "write_file", path=str(tmp_path / "b.txt"), content="new")
        assert (tmp_path / "b.txt").read_text() == "new"
        outside = await b.call("real__read_text_file", path="/etc/passwd")
        assert outside.is_error
        assert "outside allowed directories" in text_of(outside.content)


async def test_memory_keeps_what_it_was_told_over_a_restart(tmp_path: Path) -> None:
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    entity = {"name": "Sojourn", "entityType": "daemon", "observations": ["stays"]}
    async with real("mcp-server-memory", world=tmp_path, env=env) as b:
        await said(b, "create_entities", entities=[entity])
    async with real("mcp-server-memory", world=tmp_path, env=env) as b:
        assert "stays" in await said(b, "read_graph")


async def test_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    async with real("mcp-server-everything", world=tmp_path, taskWaitS=1) as b:
        assert await said(b, "echo", message="hi") == "Echo: hi"
        wrong = await b.call("real__echo")
        assert wrong.is_error
        assert "message" in text_of(wrong.content)
        picture = await b.call("real__get-tiny-image")
        assert [part.mime_type for part in picture.content if isinstance(part, ImagePart)] == ["image/png"]
        weather = json.loads(await said(b, "get-structured-content", location="New York"))
        assert set(weather) == {"temperature", "conditions", "humidity"}
        links = await b.call("real__get-resource-links", count=2)
        assert len([part for part in links.content if isinstance(part, ResourcePart)]) == 2
        env = json.loads(await said(b, "get-env"))
        assert "PATH" in env
        assert "OPENAI_API_KEY" not in env
        assert "completed" in await said(b, "trigger-long-running-operation", duration=0.4, steps=2)
        assert b.host.progress[-1][1] == 1.0
        slow = asyncio.create_task(b.call("real__trigger-long-running-operation", duration=30, steps=2))
        started = await b.call("real__simulate-research-query", topic="staying")
        assert started.is_pending
        kind, call_id, report = (await b.until(lambda: b.host.inbox.items))[0]
        assert (kind, call_id) == ("resolve", "msg-2-call-1")
        assert "staying" in report
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        assert await said(b, "echo", message="still") == "Echo: still"


async def test_everything_over_http(tmp_path: Path) -> None:
    found = shutil.which("mcp-server-everything", path=WHERE)
    if found is None:
        pytest.skip("mcp-server-everything is not installed here (scripts/install_mcp_servers)")
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        found,
        "streamableHttp",
        env={**os.environ, "PORT": str(port)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    servers = McpServers({"real": McpServer(url=f"http://127.0.0.1:{port}/mcp", start_timeout_s=60)})
    b = Bench(servers, tmp_path, FakeHost())
    try:
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while b"listening" not in (line := await process.stderr.readline()):
                assert line, "it ended"
        assert await said(b, "echo", message="hi") == "Echo: hi"
        assert "completed" in await said(b, "trigger-long-running-operation", duration=0.4, steps=2)
        assert b.host.progress[-1][1] == 1.0
    finally:
        await servers.aclose()
        process.kill()
        await process.wait()
    assert gone(process.pid)
