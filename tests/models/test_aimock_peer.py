"""The backends against another mock server of other people's making, from npm; `make peers` installs it, if it can."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from house import House, ToldTool

from sojourn.agents.hub import Hub
from sojourn.core.agent import AgentConfig, Caller
from sojourn.models.base import ModelSpec
from sojourn.models.retry import RetryPolicy
from sojourn.models.table import make_model
from sojourn.store.memory import MemoryStore
from sojourn.tools.table import Toolbox

pytestmark = pytest.mark.anyio

PROGRAM = Path(__file__).parents[2] / ".venv" / "peers" / "node_modules" / ".bin" / "llmock"
BACKENDS = {"openai-chat": "/v1", "openai-responses": "/v1", "anthropic": ""}
WEATHER = {"name": "get_weather", "arguments": {"city": "Oslo"}}
FIXTURES = {
    "fixtures": [
        {"match": {"userMessage": "weather", "hasToolResult": False}, "response": {"toolCalls": [WEATHER] * 2}},
        {
            "match": {"userMessage": "weather", "hasToolResult": True},
            "response": {"content": "It is 3 degrees – brr ✅."},
        },
        {"match": {"userMessage": "think"}, "response": {"content": "Done.", "reasoning": "Hm, let me see."}},
        {"match": {"userMessage": "hello"}, "response": {"content": "Hello to you, " * 20}},
        {
            "match": {"userMessage": "fail"},
            "response": {"error": {"message": "no such luck", "type": "x"}, "status": 400},
        },
    ]
}


@pytest.fixture(scope="module")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the program is to answer."""
    if not PROGRAM.exists():
        pytest.skip("aimock is not installed; `make peers` does it where npm is")
    root = tmp_path_factory.mktemp("aimock")
    (root / "fixtures.json").write_text(json.dumps(FIXTURES))
    return root


@pytest.fixture(params=[0.0, 0.3], ids=["well", "with faults"])
def chaos(request: pytest.FixtureRequest) -> Iterator[float]:
    return request.param


@asynccontextmanager
async def served(root: Path, chaos: float) -> AsyncIterator[str]:
    options = ["--port", "0", "--fixtures", root / "fixtures.json", "--strict", "--chunk-size", "7"]
    faults = [f"--chaos-{kind}={chaos}" for kind in ("drop", "disconnect")] if chaos else []
    process = await asyncio.create_subprocess_exec(
        PROGRAM, *map(str, options), *faults, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            said = b""
            while b"http://" not in said:
                line = await process.stdout.readline()
                assert line, said.decode()
                said += line
        drain = asyncio.create_task(process.stdout.read())
        yield "http://" + said.decode().split("http://")[1].split()[0].rstrip("/.,")
        drain.cancel()
    finally:
        process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]


@asynccontextmanager
async def aimock_house(url: str, backend: str, retries: int) -> AsyncIterator[tuple[House, ToldTool]]:
    spec = ModelSpec(name="mock", backend=backend, model="gpt-5", base_url=url + BACKENDS[backend], max_retries=retries)

    def make() -> Any:
        model = make_model(spec)
        model._policy = RetryPolicy(max_retries=retries, first_delay_s=0.01, max_delay_s=0.05)
        return model

    tool = ToldTool("get_weather", lambda args, _ctx: f"3 degrees in {args['city']}")
    store = MemoryStore()
    async with Hub(store, models={"mock": make}, default_model="mock", toolbox=Toolbox([tool])) as hub:
        house = House(hub, store, None)  # type: ignore[arg-type]
        await hub.create_agent(Caller(), agent_id="a", config=AgentConfig(tools=("*",)))
        yield house, tool
    await store.aclose()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_conversation_with_calls_comes_to_its_end(aimock: Path, backend: str, chaos: float) -> None:
    async with served(aimock, chaos) as url, aimock_house(url, backend, retries=40 if chaos else 0) as (h, tool):
        outcome = await h.prompt("What is the weather?")
        assert (outcome.reason, outcome.error) == ("done", None)
        assert outcome.output == "It is 3 degrees – brr ✅."
        assert tool.ran == [{"city": "Oslo"}] * 2
        hello = await h.prompt("hello")
        assert (hello.reason, hello.output) == ("done", "Hello to you, " * 20)
        thought = await h.prompt("think")
        assert thought.output == "Done."
        assert "Hm, let me see." in [part.text for part in thought.content if part.type == "reasoning"]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_an_error_is_told_in_its_words(aimock: Path, backend: str) -> None:
    async with served(aimock, 0.0) as url, aimock_house(url, backend, retries=0) as (h, _tool):
        outcome = await h.prompt("fail")
        assert outcome.reason == "failed"
        assert outcome.error is not None
        assert "no such luck" in outcome.error.message
