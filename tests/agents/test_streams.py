"""What a model streams, as clients see it: halves of answers, summaries being written, news of tools and children."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from house import Client, House, ToldTool, call, house, pending_tool

from sojourn.agents.compaction import INSTRUCTIONS
from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.errors import ModelError
from sojourn.core.messages import ImagePart, ResourcePart, TextPart
from sojourn.models.base import ModelAnswer, ModelDelta, ModelNotice, ModelRequest, ModelReset
from sojourn.tools.base import ToolContext

pytestmark = pytest.mark.anyio

WITHOUT_AN_ANSWER = "The model 'said' ended its stream without an answer."


async def half(_request: ModelRequest) -> AsyncIterator[Any]:
    yield ModelDelta(0, "text", "I was about to")


async def notes(_request: ModelRequest) -> AsyncIterator[Any]:
    """A summary that begins twice."""
    yield ModelDelta(0, "reasoning", "hmm")
    yield ModelDelta(0, "text", "wro")
    yield ModelNotice("modelRetry", "Trying again.", {"attempt": 1})
    yield ModelReset("retry")
    yield ModelReset("retry")
    yield ModelDelta(0, "text", "They like ")
    yield ModelDelta(0, "text", "tea.")
    yield ModelAnswer((TextPart(text="They like tea."),), "stop")


def shown(client: Client, *kinds: str) -> list[tuple[Any, ...]]:
    return [
        (event["type"], event.get("offset"), event.get("text") or event.get("reason") or event.get("code"))
        for event in client.events(live=True)
        if event["type"] in kinds
    ]


async def test_a_stream_that_ends_without_an_answer_fails_the_run_and_what_was_shown_is_taken_back() -> None:
    async with house(half, "whole") as h:
        await h.agent()
        outcome = await h.prompt()
        assert outcome.reason == "failed"
        assert outcome.error is not None
        assert outcome.error.message == WITHOUT_AN_ANSWER
        assert [text for _, text in await h.said()] == ["go"]
        assert (await h.prompt("again")).output == "whole"


async def test_a_summary_that_a_client_asks_for_is_shown_as_it_is_written() -> None:
    async with house("Noted.", notes) as h:
        await h.agent()
        await h.prompt("I like tea.")
        h.client.sent.clear()
        await h.hub.compact(Caller(), "a")
        assert shown(h.client, "messageDelta", "messageReset") == [
            ("messageDelta", 0, "wro"),
            ("messageReset", None, "retry"),
            ("messageDelta", 0, "They like "),
            ("messageDelta", 10, "tea."),
        ]


@asynccontextmanager
async def narrow(answer: Callable[[ModelRequest], Any], **options: Any) -> AsyncIterator[House]:
    """A house whose model says that it has a window of a thousand tokens."""
    async with house(*[answer] * 50, **options) as h:
        h.model.spec = replace(h.model.spec, context_window=1_000)
        yield h


async def test_a_summary_within_a_run_is_shown_as_it_is_written() -> None:
    def brain(request: ModelRequest) -> Any:
        return notes(request) if request.system == INSTRUCTIONS else words(request)

    async def words(_request: ModelRequest) -> AsyncIterator[Any]:
        yield ModelAnswer((TextPart(text="word " * 300),), "stop")

    async with narrow(brain) as h:
        await h.agent()
        while not any(message["role"] == "summary" for message in await h.messages()):
            h.client.sent.clear()
            assert (await h.prompt("more " * 100)).reason == "done"
        story = shown(h.client, "messageDelta", "messageReset", "warning")
        assert ("warning", None, "modelRetry") in story
        assert [one for one in story if one[0] != "warning"] == [
            ("messageDelta", 0, "wro"),
            ("messageReset", None, "retry"),
            ("messageDelta", 0, "They like "),
            ("messageDelta", 10, "tea."),
        ]


async def test_a_summary_without_an_answer_is_told_and_the_conversation_stays() -> None:
    async with house("Noted.", half) as h:
        await h.agent()
        await h.prompt("I like tea.")
        with pytest.raises(ModelError, match="The model ended its stream without an answer"):
            await h.hub.compact(Caller(), "a")
        assert [role for role, _ in await h.said()] == ["user", "assistant"]


async def test_what_is_summed_up_is_told_part_by_part_with_late_results_under_their_calls() -> None:
    parts = (
        TextPart(text="look at these"),
        ImagePart(mime_type="image/png", data="aGk="),
        ResourcePart(uri="file:///a.txt", text="what is in it"),
    )
    async with house([call("build")], "waits", "there it is", "summed up", tools=[pending_tool()]) as h:
        await h.agent()
        async with asyncio.timeout(10):
            await h.hub.prompt(Caller(), "a", parts, if_busy="reject", on_approval=None, wait=True, session=h.client)
        await h.resolve("msg-2-call-1", "built at last")
        await h.prompt("and?")
        await h.hub.compact(Caller(), "a")
        (asked,) = h.model.requests[-1].messages
        text = asked.content[0].text  # type: ignore[union-attr]
        for told in (
            "[user]\nlook at these\n[an image]\n[file:///a.txt]\nwhat is in it",
            "[calls build (msg-2-call-1) with {}]",
            "[result of build (msg-2-call-1), a placeholder]\nStarted job 7.",
            "built at last",
        ):
            assert told in text
        assert "aGk=" not in text


async def test_a_tool_that_cancels_itself_has_failed_and_the_run_goes_on() -> None:
    async def leave(_args: dict[str, Any], _ctx: ToolContext) -> Any:
        raise asyncio.CancelledError

    async with house([call("leave")], "went on", tools=[ToldTool("leave", leave)]) as h:
        await h.agent()
        assert (await h.prompt()).output == "went on"
        (result,) = [message for message in await h.messages() if message["role"] == "toolResult"]
        assert (result["content"][0]["text"], result["isError"]) == ("The tool cancelled itself.", True)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_a_tool_that_would_end_the_process_ends_alone(error: BaseException) -> None:
    async def leave(_args: dict[str, Any], _ctx: ToolContext) -> Any:
        raise error

    async with house([call("leave")], "went on", tools=[ToldTool("leave", leave)]) as h:
        await h.agent()
        assert (await h.prompt()).output == "went on"
        assert f"The tool ended with {type(error).__name__}" in (await h.said())[2][1]


async def test_news_of_a_childs_tool_reach_its_parents_clients_inside_of_the_call() -> None:
    async def work(_args: dict[str, Any], ctx: ToolContext) -> Any:
        ctx.progress("half of it", 0.5)
        ctx.progress(None, 0.75)
        ctx.progress("nearly")
        return "done"

    async def helper(_args: dict[str, Any], ctx: ToolContext) -> Any:
        return (await ctx.run_child(AgentConfig(tools=("work",)), "do it")).text

    tools = [ToldTool("work", work), ToldTool("helper", helper)]
    async with house([call("helper")], [call("work")], "worked", "all done", tools=tools) as h:
        await h.agent()
        without = Client("without")
        await h.hub.attach(without, "a", after_seq=0, deltas=False)
        assert (await h.prompt()).output == "all done"
        news = [e["event"] for e in h.client.events(live=True) if e["type"] == "nested"]
        progress = [one for one in news if one["type"] == "toolExecProgress"]
        assert [(one.get("text"), one.get("fraction")) for one in progress] == [
            ("half of it", 0.5),
            (None, 0.75),
            ("nearly", None),
        ]
        assert without.events() == without.events(live=True) == h.client.events()


async def test_what_a_grandchild_is_saying_is_shown_inside_of_every_call_above_it() -> None:
    go = asyncio.Event()

    async def speak(_request: ModelRequest) -> AsyncIterator[Any]:
        yield ModelDelta(0, "text", "deep ")
        await go.wait()
        yield ModelDelta(0, "text", "down")
        yield ModelAnswer((TextPart(text="deep down"),), "stop")

    async def alone(_request: ModelRequest) -> AsyncIterator[Any]:
        yield ModelDelta(0, "text", "alone")
        await go.wait()
        yield ModelAnswer((TextPart(text="alone"),), "stop")

    async def inner(_args: dict[str, Any], ctx: ToolContext) -> Any:
        return (await ctx.run_child(AgentConfig(), "say it")).text

    async def outer(_args: dict[str, Any], ctx: ToolContext) -> Any:
        return (await ctx.run_child(AgentConfig(tools=("inner",)), "have it said")).text

    tools = [ToldTool("inner", inner), ToldTool("outer", outer)]
    async with house([call("outer")], [call("inner")], speak, alone, tools=tools) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("nested:nested:messageDelta")
        await h.agent("b")
        other = asyncio.create_task(h.prompt(agent_id="b"))
        await h.client.until("messageDelta")
        below = await h.hub.list_agents(cursor=None, limit=9, state=None, parent_agent_id="a", labels=None)
        child = below["agents"][0]["agentId"]
        top, middle, joined = Client("top"), Client("middle"), Client("joined", delta_latency_ms=10)
        seen = {}
        for client, agent_id in ((top, "a"), (middle, child), (joined, child), (Client("beside"), "b")):
            answer = await h.hub.attach(client, agent_id, after_seq=None, deltas=True)
            await h.hub.feed.settled(client, agent_id)
            seen[client.client_id] = [
                (piece["text"], [step["agentId"] for step in piece.get("path", [])]) for piece in answer["streaming"]
            ]
        assert seen == {
            "top": [("deep ", ["a", child])],
            "middle": [("deep ", [child])],
            "joined": [("deep ", [child])],
            "beside": [("alone", [])],
        }
        go.set()
        await asyncio.gather(running, other)
        for client, kind in ((top, "nested:nested"), (middle, "nested"), (joined, "nested")):
            delta = await client.until(f"{kind}:messageDelta")
            while delta["type"] == "nested":
                delta = delta["event"]
            assert (delta["offset"], delta["text"]) == (5, "down")


async def test_a_message_that_begins_again_while_a_client_catches_up_is_shown_from_its_new_start() -> None:
    more, go = asyncio.Event(), asyncio.Event()

    async def speak(_request: ModelRequest) -> AsyncIterator[Any]:
        yield ModelDelta(0, "text", "all of this is wrong")
        await more.wait()
        yield ModelReset("retry")
        yield ModelDelta(0, "text", "right")
        await go.wait()
        yield ModelAnswer((TextPart(text="right"),), "stop")

    async with house(speak) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("messageDelta")
        slow = Client("slow", full=True)
        answer = await h.hub.attach(slow, "a", after_seq=0, deltas=True)
        assert [piece["text"] for piece in answer["streaming"]] == ["all of this is wrong"]
        more.set()
        await h.client.until("messageDelta", count=2)
        slow.full = False
        async with asyncio.timeout(10):
            await h.hub.feed.settled(slow, "a")
        assert shown(slow, "messageReset", "messageDelta") == [
            ("messageReset", None, "retry"),
            ("messageDelta", 0, "right"),
        ]
        go.set()
        await running


async def test_a_client_without_room_for_a_piece_is_told_where_to_go_on() -> None:
    go = asyncio.Event()
    slow = Client("slow")
    joining = Client("joining", delta_latency_ms=60_000)
    others = [slow, joining]

    async def work(_args: dict[str, Any], ctx: ToolContext) -> Any:
        slow.full = True
        ctx.progress("half of it")
        return "done"

    async def speak(_request: ModelRequest) -> AsyncIterator[Any]:
        yield ModelDelta(0, "text", "one ")
        joining.full = True
        yield ModelDelta(0, "text", "two")
        await go.wait()
        yield ModelAnswer((TextPart(text="one two"),), "stop")

    async with house([call("work")], speak, tools=[ToldTool("work", work)]) as h:
        await h.agent()
        for client in others:
            await h.hub.attach(client, "a", after_seq=0, deltas=True)
            await h.hub.feed.settled(client, "a")
        running = asyncio.create_task(h.prompt())
        await h.client.until("messageDelta", count=2)
        go.set()
        await running
        for client in others:
            seen = client.seqs()[-1]
            client.full = False
            async with asyncio.timeout(10):
                while not client.params("agent/resync"):
                    await asyncio.sleep(0)
            assert len(client.params("agent/resync")) == 1
            await h.hub.attach(client, "a", after_seq=seen, deltas=True)
            await h.hub.feed.settled(client, "a")
            assert client.events() == h.client.events()
