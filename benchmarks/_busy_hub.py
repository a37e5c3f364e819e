"""A hub on a fresh SQLite store whose model answers at once: what is left is what a turn costs here."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from sojourn.agents.hub import Hub
from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.messages import TextPart, ToolCallPart, ToolSpec, Usage
from sojourn.models.base import NEUTRAL, ModelAnswer, ModelDelta, ModelEvent, ModelRequest, ModelSpec
from sojourn.store.base import Store
from sojourn.store.sqlite import SqliteStore
from sojourn.tools.base import ToolContext, ToolInfo, ToolOutput
from sojourn.tools.table import Toolbox


class Said:
    """Asks for the tool as often as the prompt's number says, then says one word."""

    spec = ModelSpec(name="said", backend="said", model="said-1")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if _rounds_left(request) > 0:
            yield _CALL
        else:
            yield _DELTA
            yield _ANSWER

    gauge = NEUTRAL

    def estimate_tokens(self, request: ModelRequest) -> int:
        return 0

    async def aclose(self) -> None:
        pass


# Made once: what the stub costs is nothing of a turn's.
_USAGE = Usage(input_tokens=10, output_tokens=5)
_CALL = ModelAnswer((ToolCallPart(id="call", name="look", arguments={"at": 1}),), "toolCalls", _USAGE, model="said-1")
_DELTA = ModelDelta(0, "text", "done")
_ANSWER = ModelAnswer((TextPart(text="done"),), "stop", _USAGE, model="said-1")
_SEEN = ToolOutput.of("seen")


def _rounds_left(request: ModelRequest) -> int:
    results = 0
    for message in reversed(request.messages):
        if message.role == "user":
            return int(message.content[0].text) - results  # type: ignore[union-attr]
        results += message.role == "toolResult"
    return 0


class Look:
    """The tool."""

    info = ToolInfo(ToolSpec(name="look", input_schema={"type": "object"}), "allow", "fail")

    async def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        return _SEEN


class Nobody:
    """A connection that is attached to nothing."""

    client_id = "bench"
    root_path = None
    delta_latency_ms = None
    answers_approvals = False
    runs_tools = False

    def cancel_requested(self) -> bool:
        return False


NOBODY: Any = Nobody()


def agent_id(number: int) -> str:
    """Ids of one length."""
    return f"agent-{number:06d}"


async def prompt(hub: Hub, agent: str, *, rounds: int = 1) -> Any:
    """One turn of an agent: `rounds` times model and tool, then the model's last word."""
    content = (TextPart(text=str(rounds)),)
    return await hub.prompt(Caller(), agent, content, if_busy="reject", on_approval=None, wait=True, session=NOBODY)


@contextlib.asynccontextmanager
async def busy_hub(store: Store, agents: int) -> AsyncIterator[Hub]:
    """A hub on `store` with so many agents."""
    toolbox = Toolbox([Look()])
    async with Hub(store, models={"said": Said}, default_model="said", toolbox=toolbox) as hub:
        for number in range(agents):
            config = AgentConfig(tools=("*",), max_turns=10_000)
            await hub.create_agent(Caller(), agent_id=agent_id(number), config=config)
        yield hub


def settle() -> None:
    """What the daemon does after its start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 25, 25)
    sys.setswitchinterval(0.0005)


async def opened(folder: Path) -> SqliteStore:
    """A store in a folder of its own."""
    return await SqliteStore.open(folder)
