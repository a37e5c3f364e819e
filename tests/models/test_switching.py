"""An agent changes its model, and the provider with it, in the middle of a conversation: every request is one that the
provider accepts, and what only one provider understands goes back to that one alone."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from house import House, ToldTool, pending_tool
from models.loopback import Loopback, Peer, Received, answer_json, head, loopback
from models.stubs import CHECKERS, SPECS, Said, api_of, stream_of, verdict

from sojourn.agents.hub import Hub
from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.messages import ImagePart, TextPart
from sojourn.models.base import ModelSpec
from sojourn.models.table import make_model
from sojourn.store.memory import MemoryStore
from sojourn.tools.base import ToolOutput
from sojourn.tools.table import Toolbox

pytestmark = pytest.mark.anyio

PICTURE = ImagePart(
    mime_type="image/png",
    data="iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
)


class Providers:
    """All providers on one port; each prompt is answered with thoughts, text and two calls first, then with text."""

    def __init__(self) -> None:
        self.server: Loopback | None = None
        self.refused: list[str] = []
        self.marks: dict[str, str] = {}
        self.bodies: list[tuple[str, str]] = []

    async def __call__(self, peer: Peer) -> None:
        assert self.server is not None
        received = self.server.requests[-1]
        api = api_of(received)
        if (why := verdict(received)) is not None:
            self.refused.append(f"{api}: {why}")
            await answer_json({"error": {"message": why, "type": "invalid_request_error"}}, status=400)(peer)
            return
        number = len(self.server.requests)
        mark = f"mark{number:04d}"
        self.marks[mark] = api
        self.bodies.append((api, received.body.decode()))
        calls = (("look", {"n": number}), ("build", {"n": number})) if number % 2 else ()
        said = Said(mark, text=f"Text {number}.", reasoning=f"Thought {number}.", calls=calls)
        await peer.send(head() + stream_of(api, said))


@asynccontextmanager
async def providers_house() -> AsyncIterator[tuple[House, Providers]]:
    providers = Providers()
    look = ToldTool("look", lambda args, _ctx: ToolOutput((TextPart(text=f"saw {args['n']}"), PICTURE)))
    async with loopback(providers) as server:
        providers.server = server
        root = server.url.removesuffix("/v1")
        specs = [
            ModelSpec(name=api, model="o4-mini", base_url=f"{root}/{api}/v1", max_retries=0, **SPECS[api])
            for api in CHECKERS
        ]
        store = MemoryStore()
        hub = Hub(
            store,
            models={spec.name: (lambda spec=spec: make_model(spec)) for spec in specs},
            default_model="chat",
            toolbox=Toolbox([look, pending_tool()]),
        )
        async with hub:
            yield House(hub, store, None), providers  # type: ignore[arg-type]
        await store.aclose()


async def use(h: House, model: str) -> None:
    await h.hub.update_agent(Caller(), "a", {"config": {"model": model}})


async def talk(h: House, rng: random.Random, order: list[str]) -> None:
    """Prompts under each model in turn; results of pending calls come at any time."""
    await h.agent("a", attach=False, system_prompt="Be brief.", max_turns=6)
    for number, model in enumerate(order):
        await use(h, model)
        content = (TextPart(text=f"Prompt {number} to {model}."), *([PICTURE] if number % 3 == 0 else []))
        async with asyncio.timeout(20):
            outcome: Any = await h.hub.prompt(
                Caller(), "a", content, if_busy="reject", on_approval=None, wait=True, session=h.client
            )
        assert outcome.reason == "done", outcome.error
        for pending in await h.pending():
            if not pending["answered"] and rng.random() < 0.5:
                await h.resolve(pending["callId"], f"built {number}")
        if rng.random() < 0.3 and (await h.state())["inbox"]:
            assert (await h.resume()).reason == "done"


def check(providers: Providers, order: list[str]) -> None:
    assert providers.refused == []
    assert {api for api, _ in providers.bodies} == set(order)
    for api, body in providers.bodies:
        for mark, owner in providers.marks.items():
            signed = f'"{mark}"' in body  # as a signature or an encrypted thought; inside of ids it may stand anywhere
            assert not signed or owner == api, f"what {owner} alone understands went to {api}"
    for api in ("anthropic", "responses"):
        sent_back = [body for to, body in providers.bodies if to == api]
        own = [mark for mark, owner in providers.marks.items() if owner == api]
        assert f'"{own[0]}"' in sent_back[-1], "its own goes back to it after all"


@pytest.mark.parametrize("turn", range(len(CHECKERS)))
async def test_a_conversation_goes_through_every_provider_and_back(turn: int) -> None:
    apis = [*CHECKERS][turn:] + [*CHECKERS][:turn]
    order = [*apis, *reversed(apis)]
    async with providers_house() as (h, providers):
        await talk(h, random.Random(turn), order)
        check(providers, order)


@pytest.mark.parametrize(("first", "then"), [*itertools.permutations(CHECKERS, 2)])
async def test_a_provider_takes_over_in_the_middle_of_a_run(first: str, then: str) -> None:
    """The run pauses with a pending call; another provider carries it on."""
    async with providers_house() as (h, providers):
        config = AgentConfig(model=first, tools=("*",), pause_on_pending=True, max_turns=6)
        await h.hub.create_agent(Caller(), agent_id="a", config=config)
        assert (await h.prompt()).reason == "paused"
        (pending,) = await h.pending()
        await h.resolve(pending["callId"], "built")
        await use(h, then)
        outcome = await h.resume()
        assert (outcome.reason, outcome.error, providers.refused) == ("done", None, [])
        assert [api for api, _ in providers.bodies] == [first, then]
        assert "built" in providers.bodies[-1][1]


async def test_a_conversation_in_any_order_of_providers() -> None:
    rng = random.Random(7)
    order = [*CHECKERS, *(rng.choice([*CHECKERS]) for _ in range(15)), *CHECKERS]
    async with providers_house() as (h, providers):
        await talk(h, rng, order)
        check(providers, order)


ORPHANS: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "c", "content": "r"}]},
    "mistral": {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "c", "content": "r"}]},
    "deepseek": {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "no reasoning"}]},
    "responses": {"input": [{"type": "function_call_output", "call_id": "c", "output": "r"}]},
    "anthropic": {"messages": [{"role": "assistant", "content": [{"type": "text", "text": "prefill"}]}]},
}


@pytest.mark.parametrize("api", CHECKERS)
async def test_the_judge_refuses_what_a_provider_refuses(api: str) -> None:
    assert verdict(Received(f"POST /{api}/v1/x HTTP/1.1", {}, json.dumps(ORPHANS[api]).encode()))
