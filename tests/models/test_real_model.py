"""A real, small model on this machine: over the three formats that its server speaks, and as `backend = "local"`.

Where the packages of a local model are installed (`make peers`); else these tests skip.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from house import House, ToldTool

from sojourn.agents.hub import Hub
from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.messages import TextPart, user
from sojourn.models._local_files import completed, fault_of, model_file, shown_name
from sojourn.models._local_process import PROGRAM
from sojourn.models.base import ModelAnswer, ModelRequest, ModelSpec
from sojourn.models.table import make_model
from sojourn.store.memory import MemoryStore
from sojourn.tools.table import Toolbox
from sojourn_client.testing import DaemonProcess

SMALL = completed(ModelSpec(name="small", backend="local", context_window=2_048))
FAULT = fault_of(SMALL)
pytestmark = [pytest.mark.anyio, pytest.mark.skipif(FAULT is not None, reason=f"the real model: {FAULT}")]

FORMATS = {"openai-chat": "/v1", "openai-responses": "/v1", "anthropic": ""}
LIMIT_S = 120


@dataclass(frozen=True)
class Served:
    url: str
    key: str


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The server of the product, one for all tests here."""
    told = {"file": str(model_file(SMALL)), "window": SMALL.context_window, "name": shown_name(SMALL), "key": "open"}
    with subprocess.Popen(PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(told).encode() + b"\n")
        process.stdin.flush()
        yield Served(json.loads(process.stdout.readline())["url"], "open")
        process.stdin.close()
        process.wait(10)


@pytest.fixture(params=FORMATS)
def spec(request: pytest.FixtureRequest, served: Served, monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    monkeypatch.setenv("SMALL_KEY", served.key)
    return ModelSpec(
        name="real",
        backend=request.param,
        model=shown_name(SMALL),
        base_url=served.url + FORMATS[request.param],
        api_key_env="SMALL_KEY",
        dialect="llama.cpp" if request.param == "openai-chat" else None,
        context_window=SMALL.context_window,
    )


@asynccontextmanager
async def real_house(spec: ModelSpec, *tools: ToldTool, **config: Any) -> AsyncIterator[House]:
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
    async with asyncio.timeout(LIMIT_S):
        return await h.hub.prompt(Caller(), "a", (TextPart(text=text),), **options)  # type: ignore[arg-type]


async def test_it_answers_word_by_word(spec: ModelSpec) -> None:
    async with real_house(spec) as h:
        first = await say(h, "My name is Ada. Say hello to me by my name.")
        assert (first.reason, first.error) == ("done", None)
        assert first.output
        assert first.usage.input_tokens > 10
        told = [e["text"] for e in h.client.events(live=True) if e["type"] == "messageDelta" and e["kind"] == "text"]
        assert "".join(told) == first.output
        assert len(told) > 3
        second = await say(h, "What is my name?")
        assert second.usage.input_tokens > first.usage.input_tokens


async def test_it_may_be_offered_tools(spec: ModelSpec) -> None:
    tool = ToldTool("get_weather", lambda _args, _ctx: "21 degrees", schema={"type": "object", "properties": {}})
    async with real_house(spec, tool, tools=("*",), max_turns=3) as h:
        outcome = await say(h, "Use the tool get_weather and tell me the weather.")
        assert outcome.reason in ("done", "maxTurns")


@pytest.mark.crash
@pytest.mark.parametrize("spec", ["openai-chat"], indirect=True)
async def test_its_window_fills_and_the_conversation_goes_on(spec: ModelSpec) -> None:
    async with real_house(spec) as h:
        for number in range(6):
            facts = ", ".join(f"number {number * 50 + n} is nice" for n in range(50))
            outcome = await say(h, f"Remember: {facts}. Say yes.")
            assert (outcome.reason, outcome.error) == ("done", None)
        codes = [e["code"] for e in h.client.events() if e["type"] == "warning"]
        assert "compacted" in codes
        assert "compactionFailed" not in codes


@pytest.mark.parametrize("spec", ["openai-chat"], indirect=True)  # its server holds to a schema in this format only
async def test_it_gives_the_output_that_a_schema_asks_for(spec: ModelSpec) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "size": {"enum": [1, 2, 3]}},
        "required": ["colour", "size"],
        "additionalProperties": False,
    }
    model = make_model(spec)
    request = ModelRequest([user("A red ball of size 2.")], sampling={"maxTokens": 40}, output_schema=schema)
    async with asyncio.timeout(LIMIT_S):
        (answer,) = [event async for event in model.stream(request) if isinstance(event, ModelAnswer)]
    await model.aclose()
    said = json.loads("".join(part.text for part in answer.content if part.type == "text"))
    assert said["colour"] in ("red", "green")
    assert said["size"] in (1, 2, 3)


def test_a_person_without_a_key_talks_with_it() -> None:
    config = '[daemon]\ndefault_model = "small"\n[models.small]\nbackend = "local"\n'
    config += "[agents.brief]\nsampling = { maxTokens = 24 }\n"
    with DaemonProcess(config=config) as daemon:
        first = daemon.run("prompt", "--preset", "brief", "Say hello.", timeout_s=LIMIT_S)
        assert first.returncode == 0, first
        assert first.stdout.strip()
        tried = daemon.run("doctor", "--models", timeout_s=LIMIT_S)
        assert "answered as 'SmolLM2-135M-Instruct'" in tried.stdout
