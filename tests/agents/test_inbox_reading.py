"""The inbox: when it is read, what becomes of each item, and that nothing is lost or read twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from house import House, ToldTool, call, house, killed_house, pending_tool

from sojourn.core.agent import Caller
from sojourn.core.errors import AlreadyDecided, CallNotFound, NothingToResume
from sojourn.core.messages import TextPart
from sojourn.models.base import ModelRequest
from sojourn.tools.base import ToolContext, ToolOutput

pytestmark = pytest.mark.anyio


def roles(h: House, request: int = -1) -> list[str]:
    return [message.role for message in h.model.requests[request].messages]


async def test_the_inbox_is_read_ahead_of_the_prompts_own_text() -> None:
    """R-LW-12, R-LW-16."""
    async with house("ok") as h:
        await h.agent()
        await h.push("first")
        await h.push("second")
        await h.prompt("third")
        assert await h.said() == [("user", "first"), ("user", "second"), ("user", "third"), ("assistant", "ok")]


async def test_a_message_pushed_in_the_middle_is_seen_on_the_next_step() -> None:
    """R-LW-10, R-LW-14."""

    async def push(args: dict[str, Any], ctx: ToolContext) -> str:
        await ctx.inbox().push("also the README")
        return "ran"

    async with house([call("work")], "both done", tools=[ToldTool("work", push)]) as h:
        await h.agent()
        await h.prompt()
        assert roles(h) == ["user", "assistant", "toolResult", "user"]
        assert len(h.model.requests) == 2


async def test_what_lands_while_the_final_answer_is_written_is_answered_in_the_same_run() -> None:
    """R-LW-15."""
    async with house() as h:

        async def answer_late(_request: ModelRequest) -> str:
            await h.push("wait")
            return "first answer"

        h.model.replies = [answer_late, "second answer"]
        await h.agent()
        outcome = await h.prompt()
        assert outcome.output == "second answer"
        assert [role for role, _ in await h.said()] == ["user", "assistant", "user", "assistant"]
        assert h.client.types().count("agentEnd") == 1


async def test_without_a_turn_left_the_run_ends_and_the_item_stays_unread() -> None:
    async with house() as h:

        async def late(_request: ModelRequest) -> str:
            await h.push("too late")
            return "the answer"

        h.model.replies = [late]
        await h.agent(max_turns=1)
        outcome = await h.prompt()
        assert outcome.reason == "done"
        assert outcome.output == "the answer"
        assert (await h.state())["inbox"] == 1
        await h.resume()
        assert (await h.state())["inbox"] == 0


async def test_a_result_becomes_a_late_result_and_the_call_is_pending_until_it_is_read() -> None:
    """R-LW-05, R-LW-06, R-LW-13, R-LW-17."""
    async with house([call("build")], "started", "thanks", tools=[pending_tool()]) as h:
        await h.agent()
        await h.prompt()
        assert [(c["callId"], c["answered"]) for c in await h.pending()] == [("msg-2-call-1", False)]
        await h.resolve("msg-2-call-1", "built")
        assert [(c["callId"], c["answered"]) for c in await h.pending()] == [("msg-2-call-1", True)]
        await h.resume()
        assert await h.pending() == []
        late = (await h.messages())[-2]
        assert late["role"] == "lateResult"
        assert (late["callId"], late["toolName"], late["isError"]) == ("msg-2-call-1", "build", False)
        assert late["content"] == [{"type": "text", "text": "built"}]


async def test_a_rejection_becomes_an_error_result() -> None:
    """R-LW-11."""
    async with house([call("build")], "started", "pity", tools=[pending_tool()]) as h:
        await h.agent()
        await h.prompt()
        await h.hub.inbox_reject(Caller(client_id="ci"), "a", "msg-2-call-1", "exit 2")
        await h.resume()
        late = (await h.messages())[-2]
        assert late["isError"] is True
        assert late["content"] == [{"type": "text", "text": "exit 2"}]


async def test_a_second_result_names_the_first_and_is_dropped_with_a_warning() -> None:
    """R-LW-07."""
    async with house([call("build")], "started", tools=[pending_tool()]) as h:
        await h.agent()
        await h.prompt()
        await h.resolve("msg-2-call-1", "first", by="one")
        with pytest.raises(AlreadyDecided) as caught:
            await h.resolve("msg-2-call-1", "second", by="two")
        assert caught.value.data["by"] == "one"
        assert caught.value.data["at"]
        warning = h.client.events()[-1]
        assert (warning["type"], warning["code"]) == ("warning", "resultDropped")
        assert warning["data"] == {"callId": "msg-2-call-1"}
        await h.resume()
        texts = [text for role, text in await h.said() if role == "lateResult"]
        assert texts == ["first"]


@pytest.mark.parametrize("call_id", ["msg-2-call-1", "msg-9-call-1", "nonsense"])
async def test_a_result_for_a_call_that_never_was_pending_is_refused_with_a_warning(call_id: str) -> None:
    """R-LW-18."""
    async with house([call("quick")], "done", tools=[ToldTool("quick")]) as h:
        await h.agent()
        await h.prompt()
        with pytest.raises(CallNotFound):
            await h.resolve(call_id)
        assert h.client.events()[-1]["code"] == "resultDropped"
        assert (await h.state())["inbox"] == 0


async def test_a_call_of_another_agent_is_not_found_there() -> None:
    async with house([call("build")], "started", tools=[pending_tool()]) as h:
        await h.agent("a")
        await h.agent("b")
        await h.prompt(agent_id="a")
        with pytest.raises(CallNotFound):
            await h.resolve("msg-2-call-1", agent_id="b")
        assert len(await h.pending("a")) == 1


async def test_a_result_that_comes_before_its_placeholder_waits_and_is_used_after_it() -> None:
    async def early(args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        await ctx.inbox().resolve(ctx.call_id, "was faster")
        return ToolOutput.pending("started")

    async with house([call("build")], "all known", tools=[ToldTool("build", early)]) as h:
        await h.agent()
        await h.prompt()
        assert [role for role, _ in await h.said()] == ["user", "assistant", "toolResult", "lateResult", "assistant"]
        assert await h.pending() == []


async def test_resume_with_nothing_to_do_is_an_error_without_event_row_or_model_call() -> None:
    """R-LW-21."""
    async with house("hi") as h:
        await h.agent()
        await h.prompt()
        before = (h.client.seqs(), len(h.model.requests), await h.state())
        with pytest.raises(NothingToResume):
            await h.resume()
        assert (h.client.seqs(), len(h.model.requests), await h.state()) == before


async def test_resume_while_paused_on_pending_calls_with_an_empty_inbox_is_nothing_to_resume() -> None:
    async with house([call("build")], tools=[pending_tool()]) as h:
        await h.agent(pause_on_pending=True)
        await h.prompt()
        with pytest.raises(NothingToResume):
            await h.resume()
        assert len(h.model.requests) == 1


async def test_what_arrives_while_calls_stay_open_is_added_and_the_pass_pauses_again() -> None:
    async with house([call("build"), call("test")], "both", tools=[pending_tool(), pending_tool("test")]) as h:
        await h.agent(pause_on_pending=True)
        await h.prompt()
        await h.resolve("msg-2-call-1", "built")
        outcome = await h.resume()
        assert outcome.reason == "paused"
        assert [c.call_id for c in outcome.pending_calls] == ["msg-2-call-2"]
        assert len(h.model.requests) == 1
        await h.resolve("msg-2-call-2", "tested")
        outcome = await h.resume()
        assert (outcome.reason, outcome.output) == ("done", "both")
        assert len(h.model.requests) == 2


async def test_a_prompt_with_calls_pending_is_allowed_and_they_stay_pending() -> None:
    async with house([call("build")], "chatting", tools=[pending_tool()]) as h:
        await h.agent(pause_on_pending=True)
        await h.prompt()
        outcome = await h.prompt("how are you?")
        assert outcome.output == "chatting"
        assert [c["callId"] for c in await h.pending()] == ["msg-2-call-1"]
        await h.resolve("msg-2-call-1", "built")
        await h.resume()
        assert await h.pending() == []


async def test_an_item_can_be_taken_back_until_it_is_read() -> None:
    async with house("ok") as h:
        await h.agent()
        item = await h.push("never mind")
        assert [i["itemId"] for i in (await h.hub.inbox_list("a"))["items"]] == [item]
        assert await h.hub.inbox_remove(Caller(), "a", item) == {"outcome": "removed"}
        other = await h.push("this one")
        await h.prompt()
        assert await h.hub.inbox_remove(Caller(), "a", other) == {"outcome": "alreadyRead"}
        assert ("user", "never mind") not in await h.said()


async def test_a_taken_back_answer_leaves_its_call_waiting() -> None:
    async with house([call("build")], "started", tools=[pending_tool()]) as h:
        await h.agent()
        await h.prompt()
        item = await h.resolve("msg-2-call-1", "wrong")
        await h.hub.inbox_remove(Caller(), "a", item)
        assert [c["answered"] for c in await h.pending()] == [False]
        await h.resolve("msg-2-call-1", "right")


async def test_what_lands_on_an_idle_agent_starts_a_pass_where_the_config_says_so() -> None:
    async with house("by itself") as h:
        await h.agent(on_inbox_idle="resume")
        await h.push("wake up")
        await h.client.until("agentEnd")
        assert h.client.events()[1]["type"] == "agentStart"
        assert h.client.events()[1]["cause"] == "inbox"
        assert (await h.said())[-1] == ("assistant", "by itself")


async def test_by_default_what_lands_on_an_idle_agent_waits() -> None:
    async with house("answer") as h:
        await h.agent()
        await h.push("later")
        await asyncio.sleep(0.05)
        assert h.model.requests == []
        assert (await h.resume()).output == "answer"


async def test_pushes_are_there_after_a_kill_in_order_and_once(tmp_path: Path) -> None:
    async with killed_house(path=tmp_path) as h:
        await h.agent()
        for text in ("one", "two", "three"):
            await h.push(text)
    async with house("got them", path=tmp_path) as h:
        await h.resume()
        assert await h.said() == [("user", "one"), ("user", "two"), ("user", "three"), ("assistant", "got them")]


@pytest.mark.parametrize("tries", [240, pytest.param(10_000, marks=pytest.mark.crash)])
async def test_a_push_at_every_moment_around_the_final_answer_is_answered_or_waits(tries: int) -> None:
    """Never lost, never twice, whatever the moment."""
    seen = set()
    async with house() as h:
        for number in range(tries):
            agent_id = await h.agent(f"a{number}", attach=False)
            running = asyncio.create_task(h.prompt("go", agent_id))
            for _ in range(number % 60):
                await asyncio.sleep(0)
            await h.push("in between", agent_id)
            await running
            in_conversation = sum(1 for role, text in await h.said(agent_id) if text == "in between")
            unread = (await h.state(agent_id))["inbox"]
            assert (in_conversation, unread) in ((1, 0), (0, 1)), number
            if in_conversation:
                assert (await h.messages(agent_id))[-1]["role"] == "assistant"
            seen.add((in_conversation, (await h.state(agent_id))["messageCount"]))
    assert seen == {(1, 3), (1, 4), (0, 2)}, "every moment was met: before, during and after the run"


async def test_the_parts_of_a_pushed_message_are_kept_as_they_are() -> None:
    async with house("seen") as h:
        await h.agent()
        odd = "NUL \x00, separators \u2028\u2029, emoji 🐙"
        await h.hub.inbox_push(Caller(), "a", (TextPart(text=odd),))
        await h.prompt()
        assert (await h.said())[0] == ("user", odd)
