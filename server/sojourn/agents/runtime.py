"""What all of an agent's work shares: the store, the models, the tools, the limits, and who is at work now.

`write` is the one way to change anything: it gives a transition a `Ledger`, and what the transition published reaches
`Runtime.on_commit` before its caller goes on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson

from sojourn.core.agent import DEFAULT_MAX_TURNS, AgentConfig, Caller
from sojourn.core.errors import AgentNotFound, InvalidParams, RequestIdReused, UnknownModel
from sojourn.core.history import since_summary
from sojourn.core.messages import Message
from sojourn.core.values import Value
from sojourn.models.base import NEUTRAL, Gauge, Model
from sojourn.store.base import ReadTx, Store, Tx
from sojourn.store.records import AgentRecord, MessageRecord, RequestRecord

from . import clock, stored
from ._faults import FAULTS, strike
from .ledger import EntryCount, Ledger, message_json

if TYPE_CHECKING:
    from .control import Control
    from .feed import Feed
    from .hooks import Chain
    from .jobs import Jobs
    from .passes import Pass
    from .toolset import Toolset

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HubLimits:
    """Limits of the hub by their names in the config."""

    max_active_runs: int = 4096
    tool_concurrency: int = 8
    max_children_depth: int = 4
    max_children: int = 64
    client_tool_wait_s: float = 60
    hook_wait_s: float = 10
    max_client_queue_bytes: int = 8 * 1024 * 1024
    max_result_bytes: int = 8 * 1024 * 1024
    max_inbox_items: int = 10_000
    max_jobs: int = 64
    max_kept_jobs: int = 256
    max_job_output_bytes: int = 8 * 1024 * 1024
    compact_at: float = 0.8


class Weight(NamedTuple):
    """What messages weigh, whichever model reads them: bytes of their JSON, of these reasoning, and images."""

    size: int = 0
    reasoning: int = 0
    images: int = 0

    def plus(self, other: Weight) -> Weight:
        """Both together."""
        return Weight(self.size + other.size, self.reasoning + other.reasoning, self.images + other.images)

    def tokens(self, gauge: Gauge = NEUTRAL) -> int:
        """About how many tokens that is for a model that counts like this."""
        size = self.size if gauge.reasoning else self.size - self.reasoning
        return int(size / gauge.bytes_per_token) + self.images * gauge.image


def weigh(message: Message, body: bytes) -> Weight:
    """What a message weighs that is stored as `body`. The data of images is not text."""
    size, reasoning, images = len(body), 0, 0
    for part in message.content:
        if part.type == "image":
            size, images = size - len(part.data or ""), images + 1
        elif part.type == "reasoning":
            reasoning += len(part.json_bytes())
    return Weight(max(4, size), reasoning, images)


NOTHING = Weight()


@dataclass(slots=True)
class Conversation:
    """An agent's messages in memory, and about how much room they take."""

    id: str
    messages: list[Message] = field(default_factory=list)
    weight: Weight = NOTHING
    call_ids: set[str] = field(default_factory=set)
    open_calls: set[str] = field(default_factory=set)
    """The calls that no result message follows."""
    counted: int = 0
    """How many tokens the provider counted, up to and with its last answer; 0 when it did not say."""
    counted_weight: Weight = NOTHING
    """What `weight` was then."""

    def add(self, message: Message, body: bytes) -> None:
        """Appends a message that was just stored as `body`."""
        self.messages.append(message)
        if message.role == "assistant":
            for call in message.calls:
                self.call_ids.add(call.id)
                self.open_calls.add(call.id)
        elif message.role == "toolResult":
            self.open_calls.discard(message.call_id)
        elif message.role == "summary":
            self.counted = 0
            self.weight = weight_of(since_summary(self.messages))
            return
        self.weight = self.weight.plus(weigh(message, body))
        if message.role == "assistant" and message.usage is not None:
            self.counted, self.counted_weight = message.usage.input_tokens + message.usage.output_tokens, self.weight


def weight_of(messages: Iterable[Message]) -> Weight:
    """What all of these messages weigh."""
    total = NOTHING
    for message in messages:
        total = total.plus(weigh(message, message_json(message)))
    return total


class Conversations:
    """The conversations that were used last; the store has all of them."""

    def __init__(self, *, keep: int = 128) -> None:
        self._kept: OrderedDict[str, Conversation] = OrderedDict()
        self._keep = keep

    async def load(self, store: Store, agent: AgentRecord) -> Conversation:
        """The conversation as far as it is stored. Raises `DamagedRecord` when messages are missing."""
        found = self._kept.get(agent.conversation)
        if found is not None and len(found.messages) == agent.message_count:
            self._kept.move_to_end(agent.conversation)
            return found
        fresh = await store.read(lambda tx: _whole_conversation(tx, agent))
        self.keep(fresh)
        return fresh

    def keep(self, conversation: Conversation) -> None:
        """Remembers a conversation as the one used last."""
        self._kept[conversation.id] = conversation
        self._kept.move_to_end(conversation.id)
        while len(self._kept) > self._keep:
            self._kept.popitem(last=False)

    def forget(self, conversation_id: str) -> None:
        """Drops what is in memory: it may be ahead of the store."""
        self._kept.pop(conversation_id, None)


class KnownAgents:
    """The rows of the agents that changed last, as of their last commit. Whoever decides by one looks again inside the
    transition: another may be under way."""

    def __init__(self, *, keep: int = 1024) -> None:
        self._rows: OrderedDict[str, AgentRecord] = OrderedDict()
        self._keep = keep

    def get(self, agent_id: str) -> AgentRecord | None:
        """The agent's row; None when it is not known."""
        return self._rows.get(agent_id)

    def learn(self, row: AgentRecord) -> None:
        """Takes a row that was just committed."""
        self._rows.pop(row.agent_id, None)
        if not row.deleted:
            self._rows[row.agent_id] = row
            if len(self._rows) > self._keep:
                self._rows.popitem(last=False)

    def forget(self, agent_id: str) -> None:
        """The row is to be read again."""
        self._rows.pop(agent_id, None)


def read_conversation(tx: ReadTx, conversation_id: str) -> Conversation:
    """All messages of a conversation."""
    conversation = Conversation(conversation_id)
    for row in tx.find(MessageRecord, conversation=conversation_id, order="position"):
        conversation.add(stored.message(row), row.body.encode())
    return conversation


@dataclass(frozen=True, slots=True)
class Repeated:
    """A request that was made before: its row."""

    record: RequestRecord


@dataclass(slots=True)
class Stopping:
    """How something that is no pass is ended: who wants it ended sets `asked`, and it sets `over` at its end."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Runtime:
    """What all of an agent's work shares."""

    store: Store
    feed: Feed
    toolset: Toolset
    limits: HubLimits
    presets: Mapping[str, AgentConfig]
    model_of: Callable[[str], Model]
    model_names: Callable[[], list[str]]
    default_model: str
    hooks: Chain
    passes_of: Control = field(init=False)
    jobs: Jobs = field(init=False)
    conversations: Conversations = field(default_factory=Conversations)
    agents: KnownAgents = field(default_factory=KnownAgents)
    entries: EntryCount = field(default_factory=EntryCount)
    live: dict[str, Pass] = field(default_factory=dict)
    compacting: dict[str, Stopping] = field(default_factory=dict)
    """The agents whose conversations are being summed up because a client asked for it."""

    async def write(self, name: str, change: Callable[[Ledger], T]) -> T:
        """Commits the transition `name`. What it published has been handed on when this returns."""

        def transition(tx: Tx) -> T:
            ledger = Ledger(tx, clock.now(), clock.stamp(), self.entries)
            if FAULTS:
                tx.publish(Struck(name))
            result = change(ledger)
            ledger.flush()
            if FAULTS:
                strike(f"before:{name}")
            return result

        return await self.store.write(transition)

    async def once(
        self, caller: Caller, name: str, change: Callable[[Ledger], T], *, agent_id: str | None = None
    ) -> T | Repeated:
        """`write`, but a request with a `requestId` changes things once: a repeated one gets its row back.

        The result must be a `Value` or JSON data: it is kept as the request's answer in the same transaction. A
        result that is an exception is raised after the commit, and the request may be made again.
        """
        if caller.request_id is None:
            return _raised(await self.write(name, change))
        client, request, sha = caller.client_id or "", caller.request_id, caller.body_sha256 or ""

        def claimed(ledger: Ledger) -> T | Repeated:
            found = ledger.tx.get(RequestRecord, client, request)
            if found is not None:
                return _same(found, sha)
            result = change(ledger)
            if isinstance(result, Exception):
                return result
            wire = result.wire() if isinstance(result, Value) else result
            ids = wire if isinstance(wire, dict) else {}
            ledger.tx.insert(
                RequestRecord(
                    client_id=client,
                    request_id=request,
                    body_sha256=sha,
                    at=ledger.now,
                    answer=orjson.dumps(wire).decode(),
                    agent_id=agent_id or ids.get("agentId"),
                    run_id=ids.get("runId"),
                    item_id=ids.get("itemId"),
                )
            )
            return result

        return _raised(await self.write(name, claimed))

    async def answer_once(self, caller: Caller, name: str, change: Callable[[Ledger], Any]) -> Any:
        """`once` for methods whose first answer is simply given again."""
        result = await self.once(caller, name, change)
        return former(result.record) if isinstance(result, Repeated) else result

    async def agent(self, agent_id: str) -> AgentRecord:
        """The agent's row as stored."""
        return await self.store.read(lambda tx: _agent(tx, agent_id))

    def config_of(self, config: AgentConfig) -> AgentConfig:
        """`config` on top of its preset. Raises `InvalidParams` when there is no such preset."""
        if config.preset is None:
            return config
        preset = self.presets.get(config.preset)
        if preset is None:
            known = ", ".join(sorted(self.presets)) or "none are configured"
            raise InvalidParams(f"There is no preset {config.preset!r}; known: {known}.", field="config.preset")
        return config.over(preset)

    def model_name(self, config: AgentConfig) -> str:
        """The name of the model that an agent with this config uses. Raises `UnknownModel`."""
        name = config.model or self.default_model
        known = self.model_names()
        if name not in known:
            raise UnknownModel(f"No model {name!r} is configured; known: {', '.join(known)}.", model=name)
        return name

    def max_turns(self, config: AgentConfig) -> int:
        """The turn budget of a run."""
        return DEFAULT_MAX_TURNS if config.max_turns is None else config.max_turns

    def drop(self, agent_id: str) -> None:
        """Forgets what is in memory of an agent: a failed commit may have left it ahead of the store."""
        live = self.live.pop(agent_id, None)
        if live is not None:
            self.conversations.forget(live.conversation.id)


@dataclass(frozen=True, slots=True)
class Struck:
    """A transition was committed; the place where the crash harness may strike."""

    name: str


def former(record: RequestRecord) -> Any:
    """What a request was answered when it was first made."""
    return stored.plain(record, "answer") if record.answer else None


def _whole_conversation(tx: ReadTx, agent: AgentRecord) -> Conversation:
    conversation = read_conversation(tx, agent.conversation)
    now = tx.get(AgentRecord, agent.agent_id)
    if now is not None and now.conversation == conversation.id and now.message_count != len(conversation.messages):
        raise stored.damaged(now, "message_count", f"it has {len(conversation.messages)} messages that can be found")
    return conversation


def _agent(tx: ReadTx, agent_id: str) -> AgentRecord:
    record = tx.get(AgentRecord, agent_id)
    if record is None or record.deleted:
        raise AgentNotFound(f"There is no agent {agent_id!r}.", agentId=agent_id)
    return record


def _raised(result: T) -> T:
    if isinstance(result, Exception):
        raise result
    return result


def _same(found: RequestRecord, sha: str) -> Repeated:
    if found.body_sha256 != sha:
        raise RequestIdReused(
            f"The requestId {found.request_id!r} was used before with another body; use a fresh one.",
            requestId=found.request_id,
        )
    return Repeated(found)
