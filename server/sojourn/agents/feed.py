"""From commits to clients: attach, replay, live events, deltas; what a slow client misses is said and read from disk.

Live events are encoded once and queued at each attached client's connection, which bounds them. A connection that is
too slow loses its subscription and gets `agent/resync`: it attaches again from the last `seq` it saw, and the replay
goes at its own pace. While a subscription replays, live events are not queued for it; it reads on from the store until
nothing separates it from the head, and only then is live. So there is no gap and no repeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio
import orjson

from sojourn.core.errors import AgentNotFound, DamagedRecord, SeqAhead, SojournError
from sojourn.store.base import ReadTx, Store
from sojourn.store.records import AgentRecord

from . import clock
from .ending import agent_view, open_of, pending_of, shown_agent
from .ledger import Published, nested_json
from .replay import damage, read_events
from .subscription import Key, Piece, Subscriber, Subscription, Wishes

log = logging.getLogger(__name__)

PAGE = 200
_GONE = (ConnectionError, anyio.ClosedResourceError)
_EVENT = b'{"jsonrpc":"2.0","method":"agent/event","params":'
_MESSAGE_OVER = (b'{"type":"messageEnd"', b'{"type":"messageReset"')
_PASS_OVER = b'{"type":"agentEnd"'


class Feed:
    """All subscriptions of the daemon, and what is being streamed right now."""

    def __init__(self, store: Store, spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]) -> None:
        self._store = store
        self._spawn = spawn
        self._by_agent: dict[str, set[Subscription]] = {}
        self._wishes: dict[tuple[Subscriber, str], Wishes] = {}
        self._watchers: set[Subscriber] = set()
        self._heads: dict[str, int] = {}
        self._pieces: dict[str, dict[Key, Piece]] = {}
        self._nest: dict[str, tuple[tuple[str, str], ...]] = {}
        self._changed: set[str] = set()

    # -- what comes in ------------------------------------------------------------------------------------------

    def publish(self, events: list[Published]) -> None:
        """Committed events, in commit order, to every live subscription."""
        for event in events:
            agent_id, seq = event.record.agent_id, event.record.seq
            self._heads[agent_id] = seq
            if agent_id in self._pieces:
                self._track(agent_id, event.body)
            if subscriptions := self._by_agent.get(agent_id):
                frame = _EVENT + event.params + b"}"
                for subscription in list(subscriptions):
                    # A replay may have read the event from the store before this turn of the loop heard of its commit.
                    if subscription.live and seq > subscription.sent:
                        self._send(subscription, frame, seq)

    def delta(
        self, agent_id: str, run_id: str | None, message_id: str, part: int, kind: str, offset: int, text: str
    ) -> None:
        """A piece of a message under way: to the agent's clients, and nested to its ancestors'."""
        pieces = self._pieces.setdefault(agent_id, {})
        piece = pieces.get((agent_id, message_id, part))
        if piece is None:
            piece = pieces[agent_id, message_id, part] = Piece((), message_id, part, kind)
        piece.text += text
        key = (agent_id, message_id, part)
        self._send_delta(agent_id, run_id, (), key, kind, offset, text)
        inner: tuple[tuple[str, str], ...] = ()
        for ancestor, call_id in self._nest.get(agent_id, ()):
            inner = ((ancestor, call_id), *inner)
            self._send_delta(ancestor, None, inner, key, kind, offset, text)

    def progress(self, agent_id: str, run_id: str, call_id: str, text: str | None, fraction: float | None) -> None:
        """News from a running tool."""
        event: dict[str, Any] = {"type": "toolExecProgress", "toolCallId": call_id}
        if text is not None:
            event["text"] = text
        if fraction is not None:
            event["fraction"] = fraction
        body = orjson.dumps(event)
        self._send_live(agent_id, run_id, body)
        for ancestor, outer_call in self._nest.get(agent_id, ()):
            body = nested_json(outer_call, body)
            self._send_live(ancestor, None, body)

    def nest(self, agent_id: str, ancestors: tuple[tuple[str, str], ...]) -> None:
        """Says inside which calls an agent's run is shown: (parent, call), then (grandparent, call) …; none ends it."""
        if ancestors:
            self._nest[agent_id] = ancestors
        else:
            self._nest.pop(agent_id, None)

    def changed(self, agent_id: str) -> None:
        """An agent's row changed; the watchers hear of it once per turn of the event loop."""
        if not self._watchers:
            return
        if not self._changed:
            self._spawn(self._tell_watchers(), "watch")
        self._changed.add(agent_id)

    def _track(self, agent_id: str, event: bytes) -> None:
        if event.startswith(_MESSAGE_OVER):
            ended = _message_id(event)
            pieces = self._pieces[agent_id]
            for key in [k for k in pieces if k[1] == ended]:
                del pieces[key]
        elif event.startswith(_PASS_OVER):
            del self._pieces[agent_id]

    # -- what goes out ------------------------------------------------------------------------------------------

    def _send(self, subscription: Subscription, frame: bytes, seq: int) -> None:
        if not self._flush(subscription):
            return
        if subscription.session.notify(frame):
            subscription.sent = seq
        else:
            self._resync(subscription)

    def _send_live(self, agent_id: str, run_id: str | None, body: bytes) -> None:
        subscriptions = [s for s in self._by_agent.get(agent_id, ()) if s.live and s.deltas]
        if not subscriptions:
            return
        frame = _live_frame(agent_id, run_id, body)
        for subscription in subscriptions:
            if self._flush(subscription) and not subscription.session.notify(frame):
                self._resync(subscription)

    def _send_delta(
        self,
        agent_id: str,
        run_id: str | None,
        path: tuple[tuple[str, str], ...],
        key: Key,
        kind: str,
        offset: int,
        text: str,
    ) -> None:
        frame: bytes | None = None
        for subscription in list(self._by_agent.get(agent_id, ())):
            if not subscription.deltas or not subscription.live:
                continue
            if subscription.session.delta_latency_ms:
                self._hold(subscription, path, key, kind, offset, text)
                continue
            frame = frame or _live_frame(agent_id, run_id, delta_json(path, key, kind, offset, text))
            if not subscription.session.notify(frame):
                self._resync(subscription)

    def _hold(
        self,
        subscription: Subscription,
        path: tuple[tuple[str, str], ...],
        key: Key,
        kind: str,
        offset: int,
        text: str,
    ) -> None:
        held = subscription.held
        if held and held[-1][0] == key and held[-1][1] + len(held[-1][3]) == offset:
            held[-1] = (key, held[-1][1], kind, held[-1][3] + text)
        else:
            held.append((key, offset, kind, text))
        if subscription.flush is None:
            delay = (subscription.session.delta_latency_ms or 0) / 1000
            subscription.flush = asyncio.get_running_loop().call_later(delay, self._flush, subscription)

    def _flush(self, subscription: Subscription) -> bool:
        """Sends the deltas that were held back; False when the client has no room for them and is told so."""
        if subscription.flush is not None:
            subscription.flush.cancel()
            subscription.flush = None
        held, subscription.held = subscription.held, []
        for key, offset, kind, text in held:
            body = delta_json(self._path_to(subscription.agent_id, key[0]), key, kind, offset, text)
            if not subscription.session.notify(_live_frame(subscription.agent_id, None, body)):
                self._resync(subscription)
                return False
        return True

    def _path_to(self, ancestor: str, agent_id: str) -> tuple[tuple[str, str], ...]:
        path: tuple[tuple[str, str], ...] = ()
        for outer, call_id in self._nest.get(agent_id, ()):
            path = ((outer, call_id), *path)
            if outer == ancestor:
                return path
        return ()

    def _resync(self, subscription: Subscription) -> None:
        """This client was too slow: its live events end here; the notice itself waits for room."""
        self._drop(subscription)
        body = orjson.dumps(
            {
                "jsonrpc": "2.0",
                "method": "agent/resync",
                "params": {"agentId": subscription.agent_id, "seq": self._heads.get(subscription.agent_id, 0)},
            }
        )
        self._spawn(_tell_when_room(subscription.session, body), "resync")

    async def _tell_watchers(self) -> None:
        await asyncio.sleep(0)
        changed, self._changed = self._changed, set()
        for agent_id in changed:
            try:
                agent = await self._store.read(lambda tx, a=agent_id: tx.get(AgentRecord, a))  # type: ignore[misc]
            except SojournError as error:  # it was a notice; whoever needs the agent asks again
                log.debug("Nobody is told that %s changed: %s", agent_id, error)
                continue
            gone = agent is None or agent.deleted
            params = {"agentId": agent_id, "deleted": True} if gone else {"agent": shown_agent(agent)}
            body = orjson.dumps({"jsonrpc": "2.0", "method": "agent/changed", "params": params})
            for watcher in list(self._watchers):
                watcher.notify(body)

    # -- attach -------------------------------------------------------------------------------------------------

    async def attach(
        self, session: Subscriber, agent_id: str, *, after_seq: int | None, deltas: bool
    ) -> dict[str, Any]:
        """Attaches a client: what the agent is now, then (by a task) the replay and the live events.

        Of what came in one breath the newest holds that is not refused: an answer that comes late, or for an earlier
        wish, is an answer and no more.
        """
        wishes = self._wishes.setdefault((session, agent_id), Wishes())
        wishes.count = mine = wishes.count + 1
        wishes.reading.add(mine)
        try:
            snapshot = await self._store.read(lambda tx: _snapshot(tx, agent_id))
            while snapshot["agent"]["seq"] < self._heads.get(agent_id, 0):
                snapshot = await self._store.read(lambda tx: _snapshot(tx, agent_id))
            head = max(snapshot["agent"]["seq"], self._heads.get(agent_id, 0))
            if after_seq is not None and after_seq > head:
                raise SeqAhead(
                    f"afterSeq {after_seq} is ahead of {agent_id!r}, whose newest event is {head}.", seq=head
                )
            pieces = self._pieces_seen_by(agent_id)
            subscription = Subscription(session, agent_id, deltas, sent=head if after_seq is None else after_seq)
            subscription.lengths = {key: len(piece.text) for key, piece in pieces.items()}
            if mine > wishes.newest:
                wishes.newest, wishes.best = mine, (subscription, head)
        finally:
            wishes.reading.discard(mine)
            self._grant(wishes, session, agent_id)
        return {
            "seq": head,
            "oldestSeq": 1 if head else 0,
            "mode": "live" if after_seq is None else "replay",
            **snapshot,
            "streaming": [piece.wire() for piece in pieces.values()],
        }

    def _grant(self, wishes: Wishes, session: Subscriber, agent_id: str) -> None:
        """One of them was read or refused: the best begins when none that came after it is still read."""
        if wishes.over:
            return
        if not wishes.reading:
            del self._wishes[session, agent_id]
        if wishes.best is None or max(wishes.reading, default=0) > wishes.newest:
            return
        (subscription, head), wishes.best = wishes.best, None
        self._end(session, agent_id)
        self._by_agent.setdefault(agent_id, set()).add(subscription)
        subscription.task = self._spawn(self._replay(subscription, head), f"attach {agent_id}")

    def detach(self, session: Subscriber, agent_id: str) -> None:
        """Ends a client's subscription to an agent, and what it wished before."""
        if wishes := self._wishes.pop((session, agent_id), None):
            wishes.over = True
        self._end(session, agent_id)

    def _end(self, session: Subscriber, agent_id: str) -> None:
        for subscription in [s for s in self._by_agent.get(agent_id, ()) if s.session is session]:
            self._drop(subscription)

    def watch(self, session: Subscriber) -> None:
        """From now on the client hears of every agent that changes."""
        self._watchers.add(session)

    def unwatch(self, session: Subscriber) -> None:
        """Ends `watch`."""
        self._watchers.discard(session)

    def gone(self, session: Subscriber) -> None:
        """The client's connection has ended."""
        self.unwatch(session)
        for agent_id in {agent_id for one, agent_id in self._wishes if one is session} | set(self._by_agent):
            self.detach(session, agent_id)

    def forget(self, agent_id: str) -> None:
        """The agent was deleted."""
        for subscription in list(self._by_agent.get(agent_id, ())):
            self._drop(subscription)
        self._heads.pop(agent_id, None)
        self._pieces.pop(agent_id, None)

    def sessions_of(self, agent_ids: Sequence[str]) -> list[Subscriber]:
        """The clients attached to any of these agents, each once."""
        found: dict[int, Subscriber] = {}
        for agent_id in agent_ids:
            for subscription in self._by_agent.get(agent_id, ()):
                found[id(subscription.session)] = subscription.session
        return list(found.values())

    async def settled(self, session: Subscriber, agent_id: str) -> None:
        """Returns when the client's replay of the agent, if one goes on, has caught up."""
        for subscription in [s for s in self._by_agent.get(agent_id, ()) if s.session is session]:
            await subscription.caught_up.wait()

    def _drop(self, subscription: Subscription) -> None:
        self._by_agent.get(subscription.agent_id, set()).discard(subscription)
        if not self._by_agent.get(subscription.agent_id):
            self._by_agent.pop(subscription.agent_id, None)
        subscription.live = False
        subscription.caught_up.set()
        if subscription.flush is not None:
            subscription.flush.cancel()
            subscription.flush = None
        if subscription.task is not None and subscription.task is not asyncio.current_task():
            subscription.task.cancel()

    def _pieces_seen_by(self, agent_id: str) -> dict[Key, Piece]:
        seen = dict(self._pieces.get(agent_id, {}))
        for child, ancestors in self._nest.items():
            if any(outer == agent_id for outer, _ in ancestors):
                path = self._path_to(agent_id, child)
                for key, piece in self._pieces.get(child, {}).items():
                    seen[key] = Piece(path, piece.message_id, piece.part, piece.kind, piece.text)
        return seen

    async def _replay(self, subscription: Subscription, head: int) -> None:
        """Reads on from the store until nothing is missing, then goes live within one turn of the loop."""
        agent_id = subscription.agent_id
        with contextlib.suppress(*_GONE, AgentNotFound):
            await asyncio.sleep(0)  # the answer to `agent/attach` goes out first
            while True:
                if subscription.sent >= max(head, self._heads.get(agent_id, 0)):
                    self._switch(subscription)
                    return
                await subscription.session.room()  # nothing is read for a client that does not read
                after = subscription.sent
                try:
                    page = await self._store.read(lambda tx, a=after: read_events(tx, agent_id, a, PAGE, told={}))  # type: ignore[misc]
                except DamagedRecord as error:  # not of a row: the database cannot be read there
                    subscription.sent = head = max(head, self._heads.get(agent_id, 0))
                    subscription.session.notify(_live_frame(agent_id, None, damage(error).json_bytes()))
                    continue
                if not page:
                    head = subscription.sent
                    continue
                for one in page:
                    if not await self._push(subscription, one.params, one.seq, replayed=one.seq <= head):
                        return

    async def _push(self, subscription: Subscription, params: bytes, seq: int, *, replayed: bool) -> bool:
        await subscription.session.room()
        if subscription not in self._by_agent.get(subscription.agent_id, ()):
            return False
        mark = b'{"replayed":true,' + params[1:] if replayed else params
        if not subscription.session.notify(_EVENT + mark + b"}"):
            self._resync(subscription)
            return False
        subscription.sent = seq
        return True

    def _switch(self, subscription: Subscription) -> None:
        subscription.live = True
        if subscription.deltas:
            for key, piece in self._pieces_seen_by(subscription.agent_id).items():
                known = subscription.lengths.get(key, 0)
                if known > len(piece.text):
                    known = 0  # it was reset meanwhile
                if len(piece.text) > known:
                    body = delta_json(piece.path, key, piece.kind, known, piece.text[known:])
                    subscription.session.notify(_live_frame(subscription.agent_id, None, body))
        subscription.lengths = {}
        subscription.caught_up.set()


def delta_json(path: tuple[tuple[str, str], ...], key: Key, kind: str, offset: int, text: str) -> bytes:
    """A `messageDelta` event, wrapped into `nested` once for every step of `path` (outermost first)."""
    body = orjson.dumps(
        {"type": "messageDelta", "messageId": key[1], "part": key[2], "kind": kind, "offset": offset, "text": text}
    )
    for _, call_id in reversed(path):
        body = nested_json(call_id, body)
    return body


def _live_frame(agent_id: str, run_id: str | None, body: bytes) -> bytes:
    run = b',"runId":' + orjson.dumps(run_id) if run_id else b""
    at = clock.now().encode()
    return b'%s{"agentId":%s%s,"at":"%s","event":%s}}' % (_EVENT, orjson.dumps(agent_id), run, at, body)


def _message_id(body: bytes) -> str:
    event = orjson.loads(body)
    found: str = event["messageId"] if event["type"] == "messageReset" else event["message"]["messageId"]
    return found


async def _tell_when_room(session: Subscriber, body: bytes) -> None:
    with contextlib.suppress(*_GONE):
        while not session.notify(body):
            await session.room()


def _snapshot(tx: ReadTx, agent_id: str) -> dict[str, Any]:
    agent = tx.get(AgentRecord, agent_id)
    if agent is None or agent.deleted:
        raise AgentNotFound(f"There is no agent {agent_id!r}.", agentId=agent_id)
    return {
        "agent": agent_view(agent),
        "pendingCalls": [call.wire() for call in pending_of(tx, agent)],
        "approvals": [approval.wire() for approval in open_of(tx, agent)],
    }
