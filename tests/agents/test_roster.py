"""Agents as things: made, listed, described, forked, deleted; conversations read and replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from house import ToldTool, call, house, pending_tool

from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.errors import (
    AgentBusy,
    AgentNotFound,
    AlreadyExists,
    InvalidParams,
    RequestIdReused,
    UnknownModel,
    UnknownTool,
)
from sojourn.core.messages import MESSAGES

pytestmark = pytest.mark.anyio


def listing(h: Any, **more: Any) -> Any:
    options = {"cursor": None, "limit": 100, "state": None, "parent_agent_id": None, "labels": None, **more}
    return h.hub.list_agents(**options)


async def test_agents_are_listed_newest_activity_first_page_by_page() -> None:
    async with house("hi") as h:
        for number in range(7):
            await h.agent(f"a{number}", attach=False)
        await h.prompt("go", "a2")
        seen: list[str] = []
        cursor = None
        while True:
            page = await listing(h, cursor=cursor, limit=3)
            seen += [agent["agentId"] for agent in page["agents"]]
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        assert seen == ["a2", "a6", "a5", "a4", "a3", "a1", "a0"]


async def test_agents_can_be_listed_by_state_and_labels() -> None:
    async with house(tools=[pending_tool()]) as h:
        h.model.replies = [[call("build")]]
        await h.agent("one", pause_on_pending=True)
        await h.agent("two")
        await h.hub.update_agent(Caller(), "two", {"labels": {"team": "x", "env": "y"}})
        await h.prompt(agent_id="one")
        assert [a["agentId"] for a in (await listing(h, state="paused"))["agents"]] == ["one"]
        assert [a["agentId"] for a in (await listing(h, labels={"team": "x"}))["agents"]] == ["two"]
        assert (await listing(h, labels={"team": "z"}))["agents"] == []


@pytest.mark.parametrize("cursor", ["nonsense", "W10=", "bnVsbA=="])
async def test_a_foreign_cursor_is_refused(cursor: str) -> None:
    async with house() as h:
        with pytest.raises(InvalidParams):
            await listing(h, cursor=cursor)


async def test_a_taken_id_and_names_that_are_not_there_are_refused() -> None:
    async with house() as h:
        await h.agent("a")
        with pytest.raises(AlreadyExists):
            await h.agent("a")
        with pytest.raises(UnknownModel):
            await h.agent("b", model="none")
        with pytest.raises(UnknownTool):
            await h.agent("b", tools=("none",))
        with pytest.raises(InvalidParams):
            await h.agent("b", preset="none")
        with pytest.raises(AgentNotFound):
            await h.state("b")


async def test_a_preset_is_the_base_and_the_agents_own_config_goes_over_it() -> None:
    presets = {"calm": AgentConfig(system_prompt="Be calm.", max_turns=2, approvals={"*": "deny", "t": "ask"})}
    async with house("ok", presets=presets) as h:
        await h.agent(preset="calm", tools=None, approvals={"t": "allow"})
        await h.prompt()
        assert h.model.requests[0].system == "Be calm."
        config = h.hub.rt.config_of(AgentConfig.model_validate((await h.state())["config"]))
        assert config.approvals == {"*": "deny", "t": "allow"}
        assert config.max_turns == 2


async def test_update_changes_what_is_given_and_null_clears() -> None:
    async with house() as h:
        await h.agent(max_turns=3, tools=None)
        await h.hub.update_agent(Caller(client_id="ed"), "a", {"title": "T", "config": {"maxTurns": 5}})
        assert (await h.state())["title"] == "T"
        assert (await h.state())["config"] == {"maxTurns": 5}
        event = h.client.events()[-1]
        assert event == {"type": "agentUpdated", "title": "T", "config": {"maxTurns": 5}}
        await h.hub.update_agent(Caller(), "a", {"title": None, "config": {"maxTurns": None}})
        assert "title" not in await h.state()
        assert (await h.state())["config"] == {}
        with pytest.raises(UnknownModel):
            await h.hub.update_agent(Caller(), "a", {"config": {"model": "none"}})


async def test_messages_are_read_page_by_page_in_both_directions() -> None:
    async with house() as h:
        await h.agent()
        for number in range(3):
            await h.prompt(f"q{number}")
        page = await h.hub.messages("a", cursor=None, limit=4, order="asc")
        rest = await h.hub.messages("a", cursor=page["nextCursor"], limit=4, order="asc")
        assert [m["messageId"] for m in page["messages"] + rest["messages"]] == [f"msg-{n}" for n in range(1, 7)]
        assert "nextCursor" not in rest
        newest = await h.hub.messages("a", cursor=None, limit=2, order="desc")
        assert [m["messageId"] for m in newest["messages"]] == ["msg-6", "msg-5"]


OUTSIDE: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "build it"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "toolCall", "id": "c1", "name": "build", "arguments": {}},
            {"type": "toolCall", "id": "c2", "name": "test", "arguments": {"deep": True}},
        ],
    },
    {"role": "toolResult", "callId": "c1", "toolName": "build", "content": [], "pending": True},
    {"role": "toolResult", "callId": "orphan", "toolName": "x", "content": []},
]


async def test_replaced_messages_say_what_is_pending_and_the_rest_is_failed_at_the_next_run() -> None:
    async with house("first", "carried on") as h:
        await h.agent()
        await h.prompt("old talk")
        answer = await h.hub.replace_messages(Caller(), "a", MESSAGES.validate_python(OUTSIDE))
        assert answer["messages"] == 3
        assert [c["callId"] for c in answer["pendingCalls"]] == ["c1"]
        assert await h.pending() == answer["pendingCalls"]
        codes = [e.get("code") for e in h.client.events() if e["type"] == "warning"]
        assert len(codes) == 1
        await h.resolve("c1", "built")
        outcome = await h.resume()
        assert outcome.output == "carried on"
        roles = [m["role"] for m in await h.messages()]
        assert roles == ["user", "assistant", "toolResult", "toolResult", "lateResult", "assistant"]
        failed = (await h.messages())[3]
        assert (failed["callId"], failed["isError"]) == ("c2", True)
        assert any(e.get("code") == "callInterrupted" for e in h.client.events())


async def test_a_conversation_saved_with_its_placeholders_and_replaced_lists_the_same_pending_calls() -> None:
    """R-LW-22."""
    async with house([call("build")], "started", tools=[pending_tool()]) as h:
        await h.agent("a")
        await h.prompt()
        saved = MESSAGES.validate_python(await h.messages())
        await h.agent("b", attach=False)
        answer = await h.hub.replace_messages(Caller(), "b", saved)
        assert [c["callId"] for c in answer["pendingCalls"]] == [c["callId"] for c in await h.pending("a")]
        assert await h.messages("b") == await h.messages("a")


async def test_replacing_is_refused_while_a_pass_is_open() -> None:
    async with house([call("deploy")], tools=[ToldTool("deploy", approval="ask")]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("approvalRequested")
        with pytest.raises(AgentBusy):
            await h.hub.replace_messages(Caller(), "a", [])
        with pytest.raises(AgentBusy):
            await h.hub.delete_agent(Caller(), "a", force=False)
        await h.hub.delete_agent(Caller(), "a", force=True)
        await asyncio.gather(running, return_exceptions=True)
        with pytest.raises(AgentNotFound):
            await h.state()


async def test_a_fork_has_the_conversation_and_no_open_calls_inbox_or_approvals() -> None:
    async with house([call("build")], "started", "forked answer", tools=[pending_tool()]) as h:
        await h.agent()
        await h.prompt()
        await h.push("for the original")
        fork = await h.hub.fork_agent(Caller(), "a", after_message=None)
        assert (fork["pendingCalls"], fork["inbox"], fork["messageCount"]) == (0, 0, 4)
        assert not any(m.get("pending") for m in await h.messages(fork["agentId"]))
        await h.prompt("go on", fork["agentId"])
        assert (await h.state())["messageCount"] == 4
        assert len(await h.pending()) == 1
        early = await h.hub.fork_agent(Caller(), "a", after_message="msg-1")
        assert early["messageCount"] == 1
        assert early["needsReply"] is True
        with pytest.raises(InvalidParams):
            await h.hub.fork_agent(Caller(), "a", after_message="msg-99")


async def test_a_fork_in_the_middle_of_a_round_can_go_on() -> None:
    async with house([call("quick")], "done", "forked", tools=[ToldTool("quick")]) as h:
        await h.agent()
        await h.prompt()
        fork = await h.hub.fork_agent(Caller(), "a", after_message="msg-2")
        assert (await h.prompt("go on", fork["agentId"])).output == "forked"
        roles = [m["role"] for m in await h.messages(fork["agentId"])]
        assert roles == ["user", "assistant", "toolResult", "user", "assistant"]


async def test_a_deleted_agent_is_gone_with_everything_of_it_and_its_id_is_free(tmp_path: Path) -> None:
    async with house([call("build")], "started", path=tmp_path, tools=[pending_tool()]) as h:
        await h.agent()
        await h.prompt()
        await h.hub.delete_agent(Caller(), "a", force=False)
        assert (await listing(h))["agents"] == []
        h.model.replies = ["fresh"]
        await h.agent()
        assert (await h.prompt()).output == "fresh"
        assert (await h.state())["seq"] == len(await h.stored_events())


async def test_the_same_request_is_answered_once_and_another_body_refused() -> None:
    async with house() as h:
        caller = Caller(client_id="c", request_id="r", body_sha256="1")
        first = await h.hub.create_agent(caller, agent_id=None, config=None)
        again = await h.hub.create_agent(caller, agent_id=None, config=None)
        assert again == first
        other = caller.model_copy(update={"client_id": "d"})
        assert (await h.hub.create_agent(other, agent_id=None, config=None))["agentId"] != first["agentId"]
        with pytest.raises(RequestIdReused):
            await h.hub.create_agent(caller.model_copy(update={"body_sha256": "2"}), agent_id=None, config=None)


async def test_a_second_prompt_while_one_runs_is_refused_or_queued_by_rule() -> None:
    """R-LW-01."""
    go = asyncio.Event()

    async def wait(_request: Any) -> str:
        await go.wait()
        return "first answer"

    async with house(wait, "second answer") as h:
        await h.agent()
        first = asyncio.create_task(h.prompt("one"))
        await h.client.until("messageStart", count=2)
        with pytest.raises(AgentBusy):
            await h.prompt("two")
        queued = asyncio.create_task(h.prompt("three", if_busy="queue"))
        await h.client.until("inboxQueued")
        go.set()
        assert (await first).run_id == (await queued).run_id
        assert (await queued).output == "second answer"
        assert [text for _, text in await h.said()] == ["one", "first answer", "three", "second answer"]


async def test_a_queued_prompt_that_no_turn_was_left_for_starts_its_own_run() -> None:
    go = asyncio.Event()

    async def wait(_request: Any) -> str:
        await go.wait()
        return "first"

    async with house(wait, "second") as h:
        await h.agent(max_turns=1)
        first = asyncio.create_task(h.prompt("one"))
        await h.client.until("messageStart", count=2)
        queued = asyncio.create_task(h.prompt("two", if_busy="queue"))
        await h.client.until("inboxQueued")
        go.set()
        assert (await first).output == "first"
        outcome = await queued
        assert outcome.output == "second"
        assert outcome.run_id != (await first).run_id


async def test_the_usage_of_all_model_calls_adds_up() -> None:
    async with house([call("quick")], "one", "two", tools=[ToldTool("quick")]) as h:
        await h.agent()
        assert (await h.prompt()).usage.input_tokens == 20
        await h.prompt()
        assert (await h.state())["usage"] == {"inputTokens": 30, "outputTokens": 15}


async def test_limits_by_name_pause_the_run() -> None:
    from sojourn.core.agent import Limits

    async with house([call("quick")], "never asked", tools=[ToldTool("quick")]) as h:
        await h.agent(limits=Limits(tokens=12))
        assert (await h.prompt()).reason == "paused"
        warning = next(e for e in h.client.events() if e["type"] == "warning")
        assert (warning["code"], warning["data"]) == ("limitReached", {"limit": "tokens", "value": 15, "max": 12})
        assert len(h.model.requests) == 1


async def test_a_models_slip_is_answered_and_costs_a_turn() -> None:
    async with house([call("nonsense", x=1)], "sorry", tools=[ToldTool("quick")]) as h:
        await h.agent()
        assert (await h.prompt()).output == "sorry"
        result = h.model.requests[1].messages[-1]
        assert result.role == "toolResult"
        assert "quick" in result.content[0].text  # type: ignore[union-attr]
        assert not any(kind.startswith("toolExec") for kind in h.client.types())


async def test_a_model_that_slips_for_ever_ends_by_its_budget() -> None:
    async with house(*([call("nonsense")] for _ in range(9))) as h:
        await h.agent(max_turns=3)
        outcome = await h.prompt()
        assert outcome.reason == "maxTurns"
        assert len(h.model.requests) == 3
        h.model.replies = ["fine"]
        assert (await h.prompt()).output == "fine"


async def test_a_conversation_with_a_block_of_nothing_is_read_again(tmp_path: Path) -> None:
    nothing = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "other", "provider": "p", "data": None}]},
    ]
    async with house(path=tmp_path) as h:
        await h.agent()
        await h.hub.replace_messages(Caller(), "a", MESSAGES.validate_python(nothing))
        assert (await h.prompt()).reason == "done"
    async with house(path=tmp_path) as h:
        assert (await h.prompt()).reason == "done"
        assert [role for role, _ in await h.said()] == ["user", "assistant", *["user", "assistant"] * 2]
