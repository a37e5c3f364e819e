"""A damaged row is named to whoever asks for it, and harms nobody else: every table, several damages, every reading.

The damages are made in the file itself, below everything that is ours, while nobody has it open.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from house import Client, House, ToldTool, call, house, killed_house, pending_tool

from sojourn.core.agent import Caller
from sojourn.core.errors import DamagedRecord, SojournError
from sojourn.store.records import JobRecord
from sojourn.store.sqlite import FILE_NAME, SqliteStore

pytestmark = pytest.mark.anyio

JSON = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda _: "",
    "garbled": lambda text: text[:3] + '\x00"\n\x1f{' + text[8:],
    "another kind": lambda _: '"a text"',
    "another shape": lambda _: '{"type":7,"x":[]}',
    "no text": lambda text: text.encode(),
}
"""What a disk makes of a column's JSON."""
COLUMNS = [
    ("agents", "config"),
    ("agents", "labels"),
    ("agents", "usage"),
    ("messages", "body"),
    ("events", "body"),
    ("events", "origin"),
    ("runs", "machine"),
    ("runs", "usage"),
    ("runs", "outcome"),
    ("model_calls", "body"),
    ("entries", "value"),
    ("calls", "args"),
    ("calls", "result"),
    ("calls", "placeholder"),
    ("inbox", "body"),
    ("approvals", "body"),
    ("requests", "answer"),
    ("client_tools", "body"),
    ("jobs", "body"),
]
AS_GOOD = ("another kind", "another shape", "empty")
LOOSE = {
    ("events", "origin"),
    ("entries", "value"),
    ("calls", "placeholder"),
    ("calls", "args"),
    ("requests", "answer"),
    ("runs", "outcome"),
}
"""Columns of which that is as good as any: their JSON is somebody else's, or few of its fields matter."""


REPEATED = Caller(client_id="test", request_id="r1", body_sha256="s")
AGAIN = Caller(client_id="test", request_id="r2", body_sha256="s")


async def for_ever(*_args: Any) -> str:
    await asyncio.Event().wait()
    return "never"


def the_tools() -> list[ToldTool]:
    return [ToldTool("quick"), ToldTool("risky", approval="ask"), pending_tool()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a daemon that was killed: `a` waits for a decision with something in its inbox, a call pending and
    one returned; the model of `c` was writing; `b` rests."""
    path = tmp_path_factory.mktemp("world")
    asyncio.run(_make_world(path))
    return path


async def _make_world(path: Path) -> None:
    replies = ["from b", [call("build"), call("quick")], "started", [call("quick"), call("risky")], for_ever]
    async with killed_house(*replies, path=path, tools=the_tools()) as h:
        for name in ("b", "a", "c"):
            await h.agent(name)
        await h.prompt("hello", "b")
        await h.prompt("build it", caller=REPEATED)
        await h.hub.update_agent(AGAIN, "a", {"labels": {"of": "a"}})
        await h.start("now the risky one")
        await h.client.until("approvalRequested")
        await h.push("more")
        for run in (await run_list(h))["runs"]:
            await h.hub.run_append_entry(Caller(), run["runId"], "note", {"n": 1})
        await h.start("say something", "c")
        while len(h.model.requests) < 5:
            await asyncio.sleep(0)
        await h.hub.rt.write("job", lambda ledger: ledger.tx.insert(a_job()))
        tool = {"name": "edit", "description": "", "inputSchema": {"type": "object"}}
        await h.hub.register_tools(Caller(client_id="editor"), Client(), [tool], None)


def a_job() -> JobRecord:
    body = '{"toolName":"shell","command":"sleep 1","outcome":"exited","exitCode":0}'
    return JobRecord("job-1", "a", "msg-2-call-9", "ended", "2026-01-01T00:00:00.000Z", body)


async def run_list(h: House) -> dict[str, Any]:
    return await h.hub.run_list(agent_id=None, state=None, cursor=None, limit=100)


async def run_of(h: House, agent_id: str) -> str:
    runs = await h.hub.run_list(agent_id=agent_id, state=None, cursor=None, limit=1)
    return str(runs["runs"][0]["runId"])


async def listed(h: House) -> dict[str, Any]:
    answer = await h.hub.list_agents(cursor=None, limit=100, state=None, parent_agent_id=None, labels=None)
    return {one["agentId"]: one for one in answer["agents"]}


Ask = Callable[[House, str], Awaitable[Any]]


async def attached(h: House, agent_id: str) -> Any:
    """All lines that an attached client gets, each of which must be JSON."""
    client = Client()
    answer = await h.hub.attach(client, agent_id, after_seq=0, deltas=True)
    async with asyncio.timeout(5):
        await h.hub.feed.settled(client, agent_id)
    assert client.seqs()[: answer["seq"]] == list(range(1, answer["seq"] + 1))
    return client.sent


async def everything_of_a_run(h: House, agent_id: str) -> None:
    run_id = await run_of(h, agent_id)
    await h.hub.run_get(run_id)
    await h.hub.run_export(run_id)
    await h.hub.run_entries(run_id, None)
    await h.hub.wait(agent_id, run_id) if (await h.state(agent_id))["state"] == "idle" else None


OF_AN_AGENT: dict[str, Ask] = {
    "agent/get": lambda h, a: h.state(a),
    "agent/messages": lambda h, a: h.messages(a),
    "agent/events": lambda h, a: h.stored_events(a),
    "agent/attach": attached,
    "agent/pendingCalls": lambda h, a: h.pending(a),
    "agent/fork": lambda h, a: h.hub.fork_agent(Caller(), a, after_message=None),
    "inbox/list": lambda h, a: h.hub.inbox_list(a),
    "approval/list": lambda h, a: h.approvals(a),
    "approval/rules": lambda h, a: h.hub.approval_rules(a),
    "run/get": everything_of_a_run,
    "job/list": lambda h, a: h.hub.job_list(a, None),
    "tool/list": lambda h, a: h.hub.list_tools(a),
    "agent/update": lambda h, a: h.hub.update_agent(Caller(), a, {"labels": {"x": "y"}, "config": {"maxTurns": 9}}),
    "agent/prompt, repeated": lambda h, a: h.prompt("build it", a, caller=REPEATED),
    "agent/update, repeated": lambda h, a: h.hub.update_agent(AGAIN, a, {"labels": {"of": "a"}}),
    "inbox/push": lambda h, a: h.push("again", a),
    "agent/stop": lambda h, a: h.hub.stop(Caller(), a),
    "agent/resume": lambda h, a: h.resume(a),
    "agent/prompt": lambda h, a: h.prompt("again", a),
    "agent/compact": lambda h, a: h.hub.compact(Caller(), a),
}
OF_ALL: dict[str, Callable[[House], Awaitable[Any]]] = {
    "agent/list": listed,
    "run/list": run_list,
    "approval/list": lambda h: h.approvals(),
    "job/list": lambda h: h.hub.job_list(None, None),
    "tool/list": lambda h: h.hub.list_tools(None),
    "server/status": lambda h: h.hub.status(),
}


def harm(path: Path, table: str, column: str, how: Callable[[str], str | bytes]) -> int:
    """Damages a column in all rows but those of `b`; how many there were."""
    with closing(sqlite3.connect(path / FILE_NAME, isolation_level=None)) as db:
        if isinstance(how("{}"), bytes):  # what no statement can do while the table is strict
            db.execute("PRAGMA writable_schema = ON")
            db.execute("UPDATE sqlite_schema SET sql = replace(sql, 'STRICT', '') WHERE name = ?", (table,))
    with closing(sqlite3.connect(path / FILE_NAME, isolation_level=None)) as db:
        rows = db.execute(f"SELECT rowid, * FROM {table} WHERE {column} IS NOT NULL AND {column} != ''")
        names = [one[0] for one in rows.description]
        found = [dict(zip(names, row, strict=True)) for row in rows]
        of_b = {
            row[0] for row in db.execute("SELECT run_id FROM runs WHERE agent_id = 'b' UNION SELECT 'b'").fetchall()
        }
        found = [row for row in found if not of_b & {value for value in row.values() if isinstance(value, str)}]
        for row in found:
            db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (how(row[column]), row["rowid"]))
        if isinstance(how("{}"), bytes):
            db.execute("PRAGMA writable_schema = ON")
            db.execute("UPDATE sqlite_schema SET sql = sql || ' STRICT' WHERE name = ?", (table,))
    return len(found)


@asynccontextmanager
async def after(world: Path, tmp_path: Path, table: str, column: str, how: str, *said: Any) -> AsyncIterator[House]:
    path = tmp_path / "state"
    shutil.copytree(world, path)
    assert harm(path, table, column, JSON[how]) > 0
    store = await SqliteStore.open(path, durability="normal")
    try:
        async with house(*said, store=store, tools=the_tools()) as h:
            yield h
    finally:
        await store.aclose()


@pytest.mark.parametrize("how", JSON)
@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=str)
async def test_a_damaged_column_is_named_by_whoever_reads_it_and_harms_nobody_else(
    world: Path, tmp_path: Path, table: str, column: str, how: str
) -> None:
    async with after(world, tmp_path, table, column, how, *["fine"] * 8) as h:
        told: list[DamagedRecord] = []
        for one in OF_ALL.values():
            orjson.dumps(await one(h))
        for agent_id in ("a", "c"):
            for ask in OF_AN_AGENT.values():
                try:
                    orjson.dumps(answer_of(await ask(h, agent_id)))
                except DamagedRecord as error:
                    told.append(error)
                except SojournError:
                    pass  # it is busy, or has nothing to resume: an answer as good as any
        marked = [one for one in (await listed(h)).values() if "damage" in one]
        marked += [one for one in (await run_list(h))["runs"] if "damage" in one]
        marked += [one for one in (await h.hub.job_list(None, None))["jobs"] if "damaged" in one["command"]]
        if table != "client_tools" and not (
            (table, column) in LOOSE and how in ("another kind", "another shape", "empty")
        ):
            assert told or marked, "nobody was told"
        for error in told:
            assert (error.code, error.kind) == (-31020, "storageError")
            assert error.data["table"] == table, error
            assert error.data["column"] == column, error
            assert error.data["key"], error
        assert (await h.prompt("hello again", "b")).output == "fine"
        assert [role for role, _ in await h.said("b")] == ["user", "assistant"] * 2
        assert h.hub.state == "ready"
        if (table, how) != ("agents", "no text"):
            for agent_id in ("a", "c"):
                await h.hub.delete_agent(Caller(), agent_id, force=True)
            assert not {"a", "c"} & set(await listed(h))


async def test_a_damaged_event_is_told_in_its_place_to_who_attaches(world: Path, tmp_path: Path) -> None:
    async with after(world, tmp_path, "events", "body", "cut") as h:
        notes = await attached(h, "c")
        warning = notes[0]["params"]["event"]
        assert (warning["type"], warning["code"], warning["data"]["key"]) == ("warning", "recordDamaged", ["c", 1])
        assert "the store's table 'events' is damaged" in warning["message"]
        with pytest.raises(DamagedRecord, match=r"The record 'c', 1 of the store's table 'events' is damaged"):
            await h.stored_events("c")
        last = await h.hub.events("c", after_seq=notes[-1]["params"]["seq"] - 1, limit=1)
        assert last["events"][0]["event"]["type"] == "agentEnd", "what the daemon has written since is whole"


async def test_events_that_the_database_cannot_be_read_for_are_told_once_and_live_ones_follow(tmp_path: Path) -> None:
    async with house("z" * 4_000, "z" * 4_000, path=tmp_path) as h:
        await h.agent()
        await h.prompt()
        await h.prompt()
    data = bytearray((tmp_path / FILE_NAME).read_bytes())
    size = int.from_bytes(data[16:18], "big")
    for start in range(size, len(data), size):
        if b"zzzzzzzz" in data[start : start + size]:
            data[start : start + 200] = b"\xff" * 200
    (tmp_path / FILE_NAME).write_bytes(data)
    async with house(path=tmp_path) as h:
        client = Client()
        await h.hub.attach(client, "a", after_seq=0, deltas=True)
        async with asyncio.timeout(5):
            await h.hub.feed.settled(client, "a")
        (warning,) = client.events(live=True)
        assert warning["code"] == "recordDamaged"
        assert "The database is damaged where this part of the table 'events' is kept" in warning["message"]
        with pytest.raises(DamagedRecord, match="this part of the table 'events'"):
            await h.stored_events()


async def test_an_event_that_leads_in_a_circle_is_damaged(world: Path, tmp_path: Path) -> None:
    path = tmp_path / "state"
    shutil.copytree(world, path)
    with closing(sqlite3.connect(path / FILE_NAME, isolation_level=None)) as db:
        db.execute(
            "UPDATE events SET ref_agent_id = 'c', ref_seq = 2, ref_call_id = 'x' WHERE agent_id = 'c' AND seq = 2"
        )
    async with house(path=path, tools=the_tools()) as h:
        with pytest.raises(DamagedRecord, match=r"'ref_seq' cannot be read \(it leads in a circle\)"):
            await h.stored_events("c")


@pytest.mark.parametrize(
    "column", [("messages", "body"), ("approvals", "body"), ("runs", "machine"), ("runs", "usage")]
)
async def test_a_start_ends_what_a_damaged_record_keeps_from_going_on_and_says_which(
    world: Path, tmp_path: Path, column: tuple[str, str]
) -> None:
    """Nothing is started twice, and who waits for a decision waits, or is told why not."""
    async with after(world, tmp_path, *column, "cut", "fine") as h:
        wanted = "interrupted" if column == ("runs", "machine") else "waiting"  # else it needs it at the decision only
        async with asyncio.timeout(5):
            while (found := await listed(h))["a"]["state"] != wanted:
                await asyncio.sleep(0)
        assert found["c"]["state"] == "interrupted"
        assert all(not tool.ran for tool in h.hub.rt.toolset.toolbox.select(("*",)).values())  # type: ignore[attr-defined]
        if column == ("messages", "body"):
            *_, warning, end = await h.stored_events("c")
            assert (warning["code"], warning["data"]["table"]) == ("recordDamaged", "messages")
            assert (end["reason"], end["error"]["kind"]) == ("interrupted", "storageError")
        if wanted == "interrupted":
            with pytest.raises(DamagedRecord, match="table 'runs' is damaged: its 'machine' cannot be read"):
                await h.prompt("go on", "a")


async def test_a_run_whose_record_is_damaged_while_it_waits_ends_at_the_decision(tmp_path: Path) -> None:
    path = tmp_path / "state"
    async with house([call("risky")], path=path, tools=the_tools()) as h:
        await h.agent()
        await h.start()
        asked = await h.client.until("approvalRequested")
        async with asyncio.timeout(5):
            while h.hub.rt.live:
                await asyncio.sleep(0)
        h.hub.rt.conversations.forget("a")
        with closing(sqlite3.connect(path / FILE_NAME, isolation_level=None)) as db:
            db.execute("UPDATE messages SET body = 'x'")
        await h.decide(asked["approval"]["approvalId"])
        end = await h.client.until("agentEnd")
        assert (end["reason"], end["error"]["kind"]) == ("interrupted", "storageError")
        assert "'messages' is damaged" in end["error"]["message"]


async def test_a_conversation_is_forked_from_before_its_damage(world: Path, tmp_path: Path) -> None:
    path = tmp_path / "state"
    shutil.copytree(world, path)
    with closing(sqlite3.connect(path / FILE_NAME, isolation_level=None)) as db:
        db.execute("UPDATE messages SET body = '{' WHERE conversation = 'a' AND position > 2")
    async with house("fine", path=path, tools=the_tools()) as h:
        with pytest.raises(DamagedRecord, match=r"The record 'a', 3 .* fork the agent from a message before it"):
            await h.messages("a")
        fork = await h.hub.fork_agent(Caller(), "a", after_message="msg-1")
        assert (await h.prompt("go on", fork["agentId"])).output == "fine"


def answer_of(answer: Any) -> Any:
    return answer.wire() if hasattr(answer, "wire") else answer


async def test_a_conversation_with_a_message_missing_is_named_and_never_waited_for(tmp_path: Path) -> None:
    async with house("one", "two", path=tmp_path) as h:
        await h.agent()
        await h.prompt()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        db.execute("UPDATE messages SET conversation = 'elsewhere' WHERE position = 1")
        db.commit()
    async with house("three", path=tmp_path) as h:
        async with asyncio.timeout(5):
            with pytest.raises(DamagedRecord, match=r"'message_count' cannot be read \(it has 1 messages that can be"):
                await h.prompt()
            assert await h.hub.stop(Caller(), "a") == {"stopped": False}
            await h.hub.delete_agent(Caller(), "a", force=True)


async def test_an_approval_whose_call_cannot_be_found_is_named_when_it_is_decided(tmp_path: Path) -> None:
    gated = ToldTool("gated", approval="ask")
    async with killed_house([call("gated")], path=tmp_path, tools=[gated]) as h:
        await h.agent()
        await h.start()
        await h.client.until("approvalRequested")
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        db.execute("UPDATE calls SET call_id = 'garbled'")
        db.commit()
        ((approval_id,),) = db.execute("SELECT approval_id FROM approvals").fetchall()
    async with house(path=tmp_path, tools=[gated]) as h:
        for decision in ("approve", "deny"):
            with pytest.raises(DamagedRecord, match="'call_id' cannot be read"):
                await h.decide(approval_id, decision)
        await h.hub.delete_agent(Caller(), "a", force=True)
        assert gated.ran == []
