"""A hub in this process for tests: a real store, a model that says what the test wants, tools that do as they are told.

Mocks stop at the process border: the model is the only thing here that is not the product's own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from sojourn.agents.hub import Hub
from sojourn.agents.runtime import HubLimits
from sojourn.core.agent import AgentConfig, Caller, RunOutcome
from sojourn.core.errors import ClientRefused
from sojourn.core.messages import Part, TextPart, ToolCallPart, ToolSpec, Usage
from sojourn.models.base import NEUTRAL, ModelAnswer, ModelDelta, ModelEvent, ModelRequest, ModelSpec
from sojourn.store.base import Store
from sojourn.store.memory import MemoryStore
from sojourn.store.sqlite import SqliteStore
from sojourn.tools.base import OnInterrupt, ToolContext, ToolInfo, ToolOutput
from sojourn.tools.hooks import Hook
from sojourn.tools.mcp import McpServers
from sojourn.tools.table import Toolbox

WAIT_S = 10

Reply = str | Sequence[Part] | ModelAnswer | Exception | Callable[[ModelRequest], Any]


def call(name: str, **arguments: Any) -> ToolCallPart:
    """A call as a provider makes it."""
    return ToolCallPart(id=f"p-{name}", name=name, arguments=arguments)


class SaidModel:
    """A model that gives the replies it was told to, in order; then it echoes. `requests` are what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.spec = ModelSpec(name="said", backend="said", model="said-1")
        self.replies: list[Reply] = list(replies)
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Streams the next reply word by word."""
        self.requests.append(request)
        reply = self.replies.pop(0) if self.replies else f"echo {len(self.requests)}"
        if callable(reply) and not isinstance(reply, Exception):
            reply = reply(request)
            if isinstance(reply, Awaitable):
                reply = await reply
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, AsyncIterator):
            async for event in reply:
                yield event
            return
        answer = reply if isinstance(reply, ModelAnswer) else as_answer(reply)
        for place, part in enumerate(answer.content):
            if isinstance(part, TextPart):
                for word in part.text.split(" "):
                    yield ModelDelta(place, "text", word if word is part.text else word + " ")
                    await asyncio.sleep(0)
        yield answer

    gauge = NEUTRAL

    def estimate_tokens(self, request: ModelRequest) -> int:
        """Not what is tested here."""
        return len(request.messages)

    async def aclose(self) -> None:
        """Nothing to close."""


def as_answer(reply: str | Sequence[Part]) -> ModelAnswer:
    """A reply as a whole answer."""
    content: tuple[Part, ...] = (TextPart(text=reply),) if isinstance(reply, str) else tuple(reply)
    calls = any(isinstance(part, ToolCallPart) for part in content)
    return ModelAnswer(
        content, "toolCalls" if calls else "stop", Usage(input_tokens=10, output_tokens=5), model="said-1"
    )


class ToldTool:
    """A tool that runs the test's function; `ran` are the arguments of its calls."""

    def __init__(
        self,
        name: str,
        work: Callable[[dict[str, Any], ToolContext], Any] = lambda _args, _ctx: "done",
        *,
        approval: str = "allow",
        on_interrupt: OnInterrupt = "fail",
        schema: dict[str, Any] | None = None,
    ) -> None:
        spec = ToolSpec(name=name, input_schema=schema or {"type": "object"})
        self.info = ToolInfo(spec, approval, on_interrupt)  # type: ignore[arg-type]
        self.ran: list[dict[str, Any]] = []
        self._work = work

    async def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        """Runs the test's function."""
        self.ran.append(args)
        result = self._work(args, ctx)
        if isinstance(result, Awaitable):
            result = await result
        return result if isinstance(result, ToolOutput) else ToolOutput.of(str(result))


def pending_tool(name: str = "build") -> ToldTool:
    """A tool that starts something slow."""
    return ToldTool(name, lambda _a, _c: ToolOutput.pending("Started job 7."))


@dataclass(eq=False)
class Client:
    """A connection of a test: collects what it is sent. `refuse` makes its queue full."""

    client_id: str | None = "test"
    root_path: str | None = None
    delta_latency_ms: int | None = None
    answers_approvals: bool = False
    runs_tools: bool = False
    cancelled: bool = False
    full: bool = False
    sent: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, Callable[[dict[str, Any]], Any]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self, body: bytes) -> bool:
        if self.full:
            return False
        self.sent.append(orjson.loads(body))
        self.news.set()
        return True

    async def room(self) -> None:
        while self.full:
            await asyncio.sleep(0)

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        self.asked.append((method, params))
        answer = self.answers.get(method)
        if answer is None:
            raise ClientRefused(-32601, "not here")
        result = answer(params)
        return await result if isinstance(result, Awaitable) else result

    def cancel_requested(self) -> bool:
        return self.cancelled

    def caller(self, params: Any, method: str) -> Caller:
        return Caller(client_id=self.client_id)

    # -- reading ----------------------------------------------------------------------------------------------

    def params(self, method: str = "agent/event") -> list[dict[str, Any]]:
        """The params of the notifications of this method."""
        return [note["params"] for note in self.sent if note["method"] == method]

    def events(self, *, live: bool = False) -> list[dict[str, Any]]:
        """The events so far; numbered ones only unless `live`."""
        return [p["event"] for p in self.params() if live or "seq" in p]

    def types(self) -> list[str]:
        """The types of the numbered events, a nested one as `nested:TYPE`."""
        return [shape(event) for event in self.events()]

    def seqs(self) -> list[int]:
        """The numbers of the numbered events."""
        return [p["seq"] for p in self.params() if "seq" in p]

    async def until(self, wanted: Callable[[dict[str, Any]], bool] | str, *, count: int = 1) -> dict[str, Any]:
        """Waits for the `count`-th event (any kind) that is `wanted`, or of this type."""
        test = wanted if callable(wanted) else lambda event: shape(event) == wanted
        async with asyncio.timeout(WAIT_S):
            while True:
                found = [event for event in self.events(live=True) if test(event)]
                if len(found) >= count:
                    return found[count - 1]
                self.news.clear()
                await self.news.wait()


def shape(event: dict[str, Any]) -> str:
    """An event's type, `nested:` before it for each child."""
    return f"nested:{shape(event['event'])}" if event["type"] == "nested" else str(event["type"])


class House:
    """A hub with an agent or more, and short words for what tests do with them."""

    def __init__(self, hub: Hub, store: Store, model: SaidModel) -> None:
        self.hub = hub
        self.store = store
        self.model = model
        self.client = Client()

    async def agent(self, agent_id: str = "a", *, attach: bool = True, **config: Any) -> str:
        """Makes an agent that has all tools, and attaches the client."""
        config.setdefault("tools", ("*",))
        await self.hub.create_agent(Caller(), agent_id=agent_id, config=AgentConfig(**config))
        if attach:
            await self.hub.attach(self.client, agent_id, after_seq=0, deltas=True)
        return agent_id

    async def prompt(self, text: str = "go", agent_id: str = "a", **options: Any) -> RunOutcome:
        """Prompts and waits for the outcome."""
        options = {"if_busy": "reject", "on_approval": None, "wait": True, "session": self.client, **options}
        caller = options.pop("caller", Caller(client_id="test"))
        async with asyncio.timeout(WAIT_S):
            return await self.hub.prompt(caller, agent_id, (TextPart(text=text),), **options)  # type: ignore[return-value]

    async def resume(self, agent_id: str = "a", **options: Any) -> RunOutcome:
        """Resumes and waits for the outcome."""
        options = {"run": None, "wait": True, "session": self.client, **options}
        caller = options.pop("caller", Caller(client_id="test"))
        async with asyncio.timeout(WAIT_S):
            return await self.hub.resume(caller, agent_id, **options)  # type: ignore[return-value]

    async def start(self, text: str = "go", agent_id: str = "a", **options: Any) -> Any:
        """Prompts without waiting."""
        return await self.prompt(text, agent_id, wait=False, **options)

    async def push(self, text: str, agent_id: str = "a") -> str:
        """Pushes a message."""
        answer = await self.hub.inbox_push(Caller(client_id="test"), agent_id, (TextPart(text=text),))
        return str(answer["itemId"])

    async def resolve(self, call_id: str, text: str = "result", agent_id: str = "a", by: str = "test") -> str:
        """Resolves a pending call."""
        content = (TextPart(text=text),)
        answer = await self.hub.inbox_resolve(Caller(client_id=by), agent_id, call_id, content)
        return str(answer["itemId"])

    async def decide(self, approval_id: str, decision: str = "approve", by: str = "test", **more: Any) -> Any:
        """Decides an approval."""
        fields = {"arguments": None, "content": None, "reason": None, "scope": None, **more}
        return await self.hub.decide(Caller(client_id=by), approval_id, decision, **fields)

    async def state(self, agent_id: str = "a") -> dict[str, Any]:
        """The agent as clients see it."""
        return await self.hub.get_agent(agent_id)

    async def pending(self, agent_id: str = "a") -> list[dict[str, Any]]:
        """The agent's pending calls."""
        answer = await self.hub.pending_calls(agent_id)
        return list(answer["pendingCalls"])

    async def approvals(self, agent_id: str | None = None) -> list[dict[str, Any]]:
        """The open approvals."""
        answer = await self.hub.approvals(agent_id)
        return list(answer["approvals"])

    async def messages(self, agent_id: str = "a") -> list[dict[str, Any]]:
        """The conversation."""
        answer = await self.hub.messages(agent_id, cursor=None, limit=1000, order="asc")
        return list(answer["messages"])

    async def said(self, agent_id: str = "a") -> list[tuple[str, str]]:
        """The conversation as (role, text)."""
        return [(m["role"], "".join(p.get("text", "") for p in m["content"])) for m in await self.messages(agent_id)]

    async def stored_events(self, agent_id: str = "a") -> list[dict[str, Any]]:
        """All stored events of an agent."""
        answer = await self.hub.events(agent_id, after_seq=0, limit=10_000)
        return [params["event"] for params in answer["events"]]


@contextlib.asynccontextmanager
async def house(
    *replies: Reply,
    tools: Sequence[ToldTool] = (),
    store: Store | None = None,
    path: Path | None = None,
    limits: HubLimits | None = None,
    presets: Mapping[str, AgentConfig] | None = None,
    extra_tools: Sequence[Any] = (),
    servers: McpServers | None = None,
    jobs_dir: Path | None = None,
    hooks: Sequence[Hook] = (),
    hook_wait_s: float = WAIT_S,
) -> AsyncIterator[House]:
    """A running hub. `path`: on SQLite there (open it again to see what a restart sees), else in memory."""
    model = SaidModel(*replies)
    kept: Store = store or (await SqliteStore.open(path) if path is not None else MemoryStore())
    hub = Hub(
        kept,
        models={"said": lambda: model},
        default_model="said",
        toolbox=Toolbox([*tools, *extra_tools]),
        servers=servers,
        limits=replace(limits or HubLimits(), hook_wait_s=hook_wait_s),
        presets=presets,
        jobs_dir=jobs_dir,
        hooks=hooks,
    )
    try:
        async with hub:
            yield House(hub, kept, model)
    finally:
        if store is None:
            await kept.aclose()


@contextlib.asynccontextmanager
async def killed_house(
    *replies: Reply, path: Path, tools: Sequence[ToldTool] = (), **options: Any
) -> AsyncIterator[House]:
    """A hub on SQLite that ends like a killed process: nothing is written any more, no task finishes."""
    model = SaidModel(*replies)
    store = await SqliteStore.open(path)
    hub = Hub(store, models={"said": lambda: model}, default_model="said", toolbox=Toolbox(list(tools)), **options)
    await hub.__aenter__()
    try:
        yield House(hub, store, model)
    finally:
        await store.aclose()
        running = [task for p in hub.rt.live.values() for task in p.running.values()]
        tasks = [*hub._tasks, *running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
