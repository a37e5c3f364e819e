"""What must hold after every life, whatever killed the daemon. Read from a copy of the SQLite file, and over the wire.

The numbers are those of the list that the suite proves:
 1 integrity and foreign keys · 2 no effect twice · 3 no effect without its committed mark · 4 nothing acknowledged is
 lost, and it is delivered once · 5 event numbers gapless · 6 message numbers gapless · 7 conversations are well formed
 and every strict provider takes them · 8 a late result at most once · 9 every agentStart has its agentEnd once recovery
 ran · 10 a decision is carried out at most once, and it is the one that was acknowledged · 11 what was heard is stored.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import strict_checkers as strict
from crash.client import all_agents, pages
from crash.notebook import Intent, Notebook
from wire import Wire

from sojourn.core.history import DIALECTS, project
from sojourn.core.messages import MESSAGES, user

MARKED = {"dispatched", "returned", "pending", "resolved", "failed", "interrupted"}
"""The states of a call whose tool may have started."""


@dataclass
class Stored:
    """Everything that the SQLite file of a dead daemon holds, as plain rows."""

    integrity: list[str]
    agents: dict[str, dict[str, Any]]
    messages: dict[str, list[dict[str, Any]]]
    """By agent: bodies in order, each with its `position`."""
    events: dict[str, list[dict[str, Any]]]
    """By agent: rows in order, `event` resolved through references."""
    calls: dict[tuple[str, str], dict[str, Any]]
    inbox: dict[str, dict[str, Any]]
    approvals: dict[str, dict[str, Any]]


def read_store(state: Path) -> Stored:
    """Reads a copy, so that the daemon's next start finds the file as the crash left it."""
    with tempfile.TemporaryDirectory() as folder:
        for file in state.glob("sojourn.db*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, folder)
        db = sqlite3.connect(Path(folder) / "sojourn.db")
        db.row_factory = sqlite3.Row
        try:
            return _read(db)
        finally:
            db.close()


def _read(db: sqlite3.Connection) -> Stored:
    def rows(sql: str) -> list[dict[str, Any]]:
        return [dict(row) for row in db.execute(sql)]

    integrity = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
    integrity += [f"foreign key {tuple(row)}" for row in db.execute("PRAGMA foreign_key_check")]
    agents = {row["agent_id"]: row for row in rows("SELECT * FROM agents")}
    by_conversation: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows("SELECT * FROM messages ORDER BY conversation, position"):
        by_conversation[row["conversation"]].append({"position": row["position"], **json.loads(row["body"])})
    return Stored(
        integrity=integrity,
        agents=agents,
        messages={agent_id: by_conversation[row["conversation"]] for agent_id, row in agents.items()},
        events=_resolve(rows("SELECT * FROM events ORDER BY agent_id, seq")),
        calls={(row["owner"], row["call_id"]): row for row in rows("SELECT * FROM calls")},
        inbox={row["item_id"]: row for row in rows("SELECT * FROM inbox")},
        approvals={row["approval_id"]: {**row, **json.loads(row["body"])} for row in rows("SELECT * FROM approvals")},
    )


def _resolve(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    by_key = {(row["agent_id"], row["seq"]): row for row in rows}

    def event_of(row: dict[str, Any]) -> dict[str, Any]:
        if row["ref_agent_id"] is None:
            event: dict[str, Any] = json.loads(row["body"])
            return event
        inner = event_of(by_key[row["ref_agent_id"], row["ref_seq"]])
        return {"type": "nested", "toolCallId": row["ref_call_id"], "event": inner}

    events: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        events[row["agent_id"]].append({**row, "event": event_of(row)})
    return events


def check_dead(stored: Stored, notebook: Notebook) -> list[str]:
    """Everything that must hold the moment after the kill, before anything recovers. What does not, in words."""
    return [
        *(f"1: {what}" for what in stored.integrity),
        *_effects(stored, notebook),
        *_acknowledged(stored, notebook),
        *_gapless(stored),
        *_conversations(stored),
        *_decisions(stored, notebook),
        *_heard(stored, notebook),
    ]


def _effects(stored: Stored, notebook: Notebook) -> Iterator[str]:
    effects = notebook.effects()
    for what, count in Counter((effect["agentId"], effect["callId"]) for effect in effects).items():
        if count > 1:
            yield f"2: the call {what} took effect {count} times"
    for target, count in Counter(effect["target"] for effect in effects).items():
        if count > 1:
            yield f"2: what was asked for once, {target!r}, took effect {count} times"
    started = {
        (agent_id, row["event"]["toolCallId"])
        for agent_id, rows in stored.events.items()
        for row in rows
        if row["event"]["type"] == "toolExecStart"
    }
    for effect in effects:
        key = effect["agentId"], effect["callId"]
        call = stored.calls.get(key)
        if call is None or call["state"] not in MARKED or key not in started:
            state = call and call["state"]
            yield f"3: {effect} has no committed mark: its call is {state!r}, started: {key in started}"


def _acknowledged(stored: Stored, notebook: Notebook) -> Iterator[str]:
    where = _tokens(stored)
    for intent in notebook.intents:
        if intent.token is None or intent.method == "approval/decide":
            continue
        found = where[intent.token]
        if found > 1:
            yield f"4: {intent} was delivered {found} times"
        if intent.refused is not None and found:
            yield f"4: {intent} was refused and delivered"
        if not intent.acknowledged:
            continue
        item_id = (intent.answer or {}).get("itemId")
        if item_id is not None:
            yield from _item(stored, intent, item_id, found)
        elif found != 1:
            yield f"4: {intent} was accepted as a run's prompt and is in {found} messages"


def _item(stored: Stored, intent: Intent, item_id: str, found: int) -> Iterator[str]:
    item = stored.inbox.get(item_id)
    if item is None:
        yield f"4: {intent} was acknowledged and its item is gone"
    elif item["state"] == "dropped":
        if found or item["call_id"] is None or not _was_told(stored, item):
            yield f"4: {intent} was dropped: in {found} messages, told: {_was_told(stored, item)}"
    elif found != (item["state"] == "read"):
        yield f"4: the item of {intent} is {item['state']!r} and stands in {found} messages"


def _was_told(stored: Stored, item: dict[str, Any]) -> bool:
    """Whether a warning says that this result was dropped."""
    return any(
        row["event"]["type"] == "warning" and (row["event"].get("data") or {}).get("callId") == item["call_id"]
        for row in stored.events[item["agent_id"]]
    )


def _tokens(stored: Stored) -> Counter[str]:
    """In how many messages each token stands, the model's own left out (it quotes)."""
    found: Counter[str] = Counter()
    for agent_id, messages in stored.messages.items():
        if stored.agents[agent_id]["parent_agent_id"] is None:
            for message in messages:
                if message["role"] != "assistant":
                    found.update(set(re.findall(r"\btok\d+\b(?!-)", _text(message))))
    return found


def _text(message: dict[str, Any]) -> str:
    """What a message says; of results only what a client sent, not what the demo's tools say of a prompt's token."""
    text = " ".join(part.get("text", "") for part in message["content"])
    if message["role"] in ("toolResult", "lateResult") and not re.match(r"(built|failed) ", text):
        return ""
    return text


def _gapless(stored: Stored) -> Iterator[str]:
    for agent_id, agent in stored.agents.items():
        seqs = [row["seq"] for row in stored.events[agent_id]]
        if seqs != list(range(1, agent["last_seq"] + 1)):
            yield f"5: the events of {agent_id!r} are not 1 to {agent['last_seq']}: {seqs}"
        positions = [message["position"] for message in stored.messages[agent_id]]
        if positions != list(range(1, agent["message_count"] + 1)):
            yield f"6: the messages of {agent_id!r} are not 1 to {agent['message_count']}: {positions}"


def _conversations(stored: Stored) -> Iterator[str]:
    for agent_id, messages in stored.messages.items():
        bare = [{key: value for key, value in message.items() if key != "position"} for message in messages]
        yield from check_conversation(agent_id, bare)


def check_conversation(agent_id: str, messages: list[dict[str, Any]]) -> Iterator[str]:
    """A stored conversation is well formed (results all or none, in call order), and providers take it."""
    owed: list[str] = []
    round_size = 0
    for message in messages:
        if message["role"] == "toolResult":
            if not owed or owed.pop(0) != message["callId"]:
                yield f"7: {agent_id!r}: {message['messageId']} is a result of {message['callId']} in the wrong place"
            continue
        if owed:
            yield f"7: {agent_id!r}: {message['messageId']} comes where results of {owed} are owed"
        owed = [part["id"] for part in message["content"] if part["type"] == "toolCall"]
        round_size = len(owed)
    if owed and len(owed) != round_size:
        yield f"7: {agent_id!r}: a round has only some of its results, {owed} are missing"
    late = Counter(message["callId"] for message in messages if message["role"] == "lateResult")
    yield from (f"8: {agent_id!r} has {count} late results of {call}" for call, count in late.items() if count > 1)
    if messages:
        yield from _providers(agent_id, messages)


def _providers(agent_id: str, messages: list[dict[str, Any]]) -> Iterator[str]:
    conversation = MESSAGES.validate_python(messages, by_name=False)
    if messages[-1]["role"] == "assistant":
        conversation = [*conversation, user("go on")]
    for name, check in CHECKERS.items():
        try:
            check(project(conversation, DIALECTS[name]).messages)
        except AssertionError as refused:
            yield f"7: {agent_id!r}: {name} would refuse the request: {refused}"


def _decisions(stored: Stored, notebook: Notebook) -> Iterator[str]:
    effects: dict[tuple[str, str], list[str]] = defaultdict(list)
    for effect in notebook.effects():
        effects[effect["agentId"], effect["callId"]].append(effect["target"])
    acknowledged: dict[str, list[Intent]] = defaultdict(list)
    for intent in notebook.intents:
        if intent.method == "approval/decide" and intent.acknowledged:
            acknowledged[intent.params["approvalId"]].append(intent)
    for approval_id, approval in stored.approvals.items():
        decision = (approval.get("decision") or {}).get("decision")
        done = effects[approval["agentId"], approval["callId"]]
        if len(done) > 1 or (done and decision not in ("approve", "edit")):
            yield f"10: {approval_id} was decided {decision!r} and took effect {len(done)} times"
        wanted = (approval.get("decision") or {}).get("arguments") or approval["args"]
        if done and done != [wanted["target"]]:
            yield f"10: {approval_id} was decided for {wanted} and did {done}"
        kinds = [intent.params["decision"] for intent in acknowledged[approval_id]]
        if len(kinds) > 1 or (kinds and kinds != [decision]):
            yield f"10: {approval_id} is {decision!r}; acknowledged were {kinds}"
    for approval_id in acknowledged.keys() - stored.approvals.keys():
        yield f"10: {approval_id} was decided and is gone"


def _heard(stored: Stored, notebook: Notebook) -> Iterator[str]:
    yield from (f"11: {what}" for what in notebook.contradictions)
    for (agent_id, seq), event in notebook.heard.items():
        rows = stored.events[agent_id]
        kept = rows[seq - 1]["event"] if len(rows) >= seq else None
        if kept != event:
            yield f"11: event {seq} of {agent_id!r} was heard as {event}; stored is {kept}"


def check_recovered(wire: Wire) -> list[str]:
    """What must hold as soon as the next daemon serves, seen over the wire."""
    return [what for agent in all_agents(wire) for what in _recovered(wire, agent)]


def _recovered(wire: Wire, agent: dict[str, Any]) -> Iterator[str]:
    agent_id = agent["agentId"]
    messages = list(pages(wire, "agent/messages", {"agentId": agent_id}, "messages"))
    yield from check_conversation(agent_id, messages)
    seqs, level = [], 0
    for params in _events(wire, agent_id):
        seqs.append(params["seq"])
        kind = params["event"]["type"]
        level += (kind == "agentStart") - (kind == "agentEnd")
        if level not in (0, 1):
            yield f"9: {agent_id!r}: {kind} at {params['seq']} comes where {level} passes are open"
    if seqs != list(range(1, len(seqs) + 1)):
        yield f"5: the events of {agent_id!r} come as {seqs}"
    if level and not _goes_on(wire, agent_id, seqs[-1]):
        yield f"9: {agent_id!r} is {agent['state']!r} and its last pass has no agentEnd"


def _goes_on(wire: Wire, agent_id: str, seq: int) -> bool:
    """Whether somebody is still at the pass that was open at `seq`: it waits, it runs, or it has ended meanwhile."""
    if wire.call("agent/get", {"agentId": agent_id})["state"] in ("waiting", "running"):
        return True
    return any(params["event"]["type"] == "agentEnd" for params in _events(wire, agent_id, after=seq))


def _events(wire: Wire, agent_id: str, *, after: int = 0) -> Iterator[dict[str, Any]]:
    while True:
        answer = wire.call("agent/events", {"agentId": agent_id, "afterSeq": after})
        yield from answer["events"]
        if not answer["events"]:
            return
        after = answer["events"][-1]["seq"]


def check_settled(stored: Stored, notebook: Notebook) -> list[str]:
    """What must hold besides when nobody waits for anything any more."""
    return list(_settled(stored, notebook))


def _settled(stored: Stored, notebook: Notebook) -> Iterator[str]:
    for intent in notebook.intents:
        item_id = (intent.answer or {}).get("itemId")
        if item_id is not None and stored.inbox[item_id]["state"] == "unread":
            yield f"4: {intent} was never read"
    for approval_id, approval in stored.approvals.items():
        if approval.get("decision") is None:
            yield f"10: {approval_id} is still open"
    effects = {(effect["agentId"], effect["callId"]) for effect in notebook.effects()}
    results = {
        (agent_id, message["callId"]): message
        for agent_id, messages in stored.messages.items()
        for message in messages
        if message["role"] == "toolResult"
    }
    for key, result in results.items():
        if result["toolName"] == "demo_deploy":
            yield from _reported(stored, key, result, took_effect=key in effects)
    yield from (f"7: {key} took effect and has no result" for key in effects - results.keys())


def _reported(stored: Stored, key: tuple[str, str], result: dict[str, Any], *, took_effect: bool) -> Iterator[str]:
    text = " ".join(part.get("text", "") for part in result["content"])
    deployed = text.startswith("Deployed ") and not result.get("isError", False)
    if deployed and not took_effect:
        yield f"3: {key} says {text!r} and nothing happened"
    if took_effect and not deployed and not result.get("isError", False):
        yield f"2: {key} took effect and says {text!r}"
    if stored.calls[key]["state"] not in {*MARKED, "denied", "preresolved"}:
        yield f"7: {key} has a result and is {stored.calls[key]['state']!r}"


CHECKERS = {
    "openai-chat": strict.check_openai_chat,
    "openai-responses": strict.check_openai_responses,
    "anthropic": strict.check_anthropic,
}
