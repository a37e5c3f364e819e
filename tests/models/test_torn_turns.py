"""Turns against a server that cuts, stalls and refuses at random, through the real hub.

Every run ends done or failed with the provider's words; no wrong text, no phantom call; no connection stays open; the
agent takes its next prompt. The seeds are fixed; `make crash` plays many more turns than `make check`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from house import House, ToldTool
from models.loopback import Loopback, Peer, answer_json, head, loopback
from models.stubs import SPECS, Said, api_of, events_of, verdict

from sojourn.agents.hub import Hub
from sojourn.core.agent import AgentConfig, Caller
from sojourn.models.base import ModelSpec
from sojourn.models.retry import RetryPolicy
from sojourn.models.table import make_model
from sojourn.store.memory import MemoryStore
from sojourn.tools.table import Toolbox

pytestmark = pytest.mark.anyio

APIS = ("chat", "responses", "anthropic")
AGENTS = 12
FAULTS = ("cut", "half event", "abort", "429", "529", "500", "400", "stall", "error event", "late garbage", "drop")
IN_WORDS = {"429": "rate limited by", "529": "Overloaded at", "500": "a crash at", "400": "refused at"}
ERROR_EVENTS = {
    "chat": b'data: {"error": {"message": "the worker died", "code": 500}}\n\n',
    "responses": b'event: error\ndata: {"type": "error", "code": "server_error", "message": "the worker died"}\n\n',
    "anthropic": b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", '
    b'"message": "the worker died"}}\n\n',
}


@dataclass
class Torn:
    """A server that tears its answers: what it answered whole is in `whole`, by the mark that the answer carries."""

    seed: int
    often: float
    server: Loopback | None = None
    count: int = 0
    played: Counter[str] = field(default_factory=Counter)
    whole: dict[str, Said] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    async def __call__(self, peer: Peer) -> None:
        assert self.server is not None
        received = self.server.requests[-1]
        self.count += 1
        rng = random.Random(f"{self.seed}:{self.count}")
        if (why := verdict(received)) is not None:
            self.refused.append(why)
        api = api_of(received)
        mark = f"m{self.count:06d}"
        calls = (("look", {"mark": mark}),) if rng.random() < 0.3 else ()
        said = Said(mark, text=f"[{mark}] " + "ü✅ word " * rng.randint(1, 12), reasoning="", calls=calls)
        fault = rng.choice(FAULTS) if rng.random() < self.often else None
        self.played[fault or "whole"] += 1
        if fault is None:
            self.whole[mark] = said
            await peer.send(head() + b"".join(events_of(api, said)))
        elif fault in IN_WORDS:
            body = {"error": {"message": f"{IN_WORDS[fault]} {mark}", "type": "x"}}
            await answer_json(body, status=int(fault), retry_after="0")(peer)
        else:
            await self._tear(peer, rng, api, said, fault)

    async def _tear(self, peer: Peer, rng: random.Random, api: str, said: Said, fault: str) -> None:
        if fault == "drop":
            peer.abort()
            return
        events = events_of(api, said)
        last = len(events) - 2 if api != "responses" else len(events) - 1  # from here on it would be an answer
        kept = b"".join(events[: rng.randint(0, last - 1)])
        if fault == "half event":
            kept += events[last - 1][: rng.randint(1, len(events[last - 1]) - 3)]
        if fault == "error event":
            kept += ERROR_EVENTS[api]
        if fault == "late garbage":
            kept += b"data: {not json\n\n"
        await peer.send(head() + kept)
        if fault == "abort":
            peer.abort()
        if fault == "stall":
            await peer.until_gone()


def specs(root: str, retries: int) -> list[ModelSpec]:
    limits = {"idle_timeout_s": 0.3, "total_timeout_s": 20.0, "max_retries": retries}
    return [ModelSpec(name=api, model="m", base_url=f"{root}/{api}/v1", **limits, **SPECS[api]) for api in APIS]


def quick(spec: ModelSpec) -> Any:
    model = make_model(spec)
    model._policy = RetryPolicy(max_retries=spec.max_retries, first_delay_s=0.001)
    return model


async def play(turns: int, *, seed: int, retries: int, often: float) -> Torn:
    torn = Torn(seed, often)
    store = MemoryStore()
    ran: list[str] = []
    look = ToldTool("look", lambda args, _ctx: ran.append(args["mark"]) or "seen")
    async with loopback(torn) as server:
        torn.server = server
        root = server.url.removesuffix("/v1")
        models = {spec.name: (lambda spec=spec: quick(spec)) for spec in specs(root, retries)}
        hub = Hub(store, models=models, default_model="chat", toolbox=Toolbox([look]))
        async with hub:
            h = House(hub, store, None)  # type: ignore[arg-type]
            await asyncio.gather(*(life(h, torn, n, turns // AGENTS) for n in range(AGENTS)))
            async with asyncio.timeout(10):
                while server.open:
                    await server.closed.wait()
        await store.aclose()
    assert torn.refused == []
    asked = [mark for mark, said in torn.whole.items() if said.calls]
    assert sorted(ran) == sorted(asked), "each call of a whole answer ran once, and no other ran"
    return torn


async def life(h: House, torn: Torn, number: int, turns: int) -> None:
    agent_id = f"a{number}"
    config = AgentConfig(model=APIS[number % len(APIS)], tools=("*",), max_turns=50)
    await h.hub.create_agent(Caller(), agent_id=agent_id, config=config)
    for turn in range(turns):
        async with asyncio.timeout(60):
            outcome = await h.prompt(f"prompt {turn}", agent_id)
        messages = [m for m in outcome.messages if m.role == "assistant"]
        for message in messages:
            text = "".join(part.text for part in message.content if part.type == "text")
            said = torn.whole[text[1:8]]
            assert text == said.text, "a text that was torn, or mixed of two"
            assert [(call.name, call.arguments) for call in message.calls] == list(said.calls)
        if outcome.reason == "done":
            assert outcome.output == torn.whole[outcome.output[1:8]].text
        else:
            assert outcome.reason == "failed"
            assert outcome.error is not None
            check_words(outcome.error.message)
    agent = await h.state(agent_id)
    assert (agent["state"], agent["inbox"], agent.get("activeRunId")) == ("idle", 0, None)


WORDS = (
    *IN_WORDS.values(),
    "the worker died",
    "broke off",
    "sent nothing",
    "cannot be reached",
    "not JSON",
    "failed",
    "ended",
    "cut",
)


def check_words(message: str) -> None:
    assert message.startswith("The model '"), message
    assert ": ." not in message, message
    assert any(word.lower() in message.lower() for word in WORDS), message


@pytest.mark.parametrize(("retries", "often"), [(0, 0.4), (6, 0.4)])
async def test_torn_turns_end_well_or_in_the_provider_s_words(retries: int, often: float) -> None:
    torn = await play(60, seed=1, retries=retries, often=often)
    assert {"whole", "cut", "stall", "429"} <= set(torn.played)


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(4))
async def test_a_thousand_torn_turns(seed: int) -> None:
    torn = await play(252, seed=seed, retries=(0, 2, 6, 6)[seed], often=(0.3, 0.5, 0.5, 0.7)[seed])
    assert {"whole", *FAULTS} <= set(torn.played)


async def test_the_check_would_see_a_torn_text() -> None:
    with pytest.raises(AssertionError):
        check_words("Something happened.")
