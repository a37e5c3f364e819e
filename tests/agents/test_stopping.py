"""Stop: within a second in every state; finished work is kept, the agent takes the next prompt at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from house import Client, ToldTool, as_answer, call, house

from sojourn.agents import children, loop
from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.messages import TextPart
from sojourn.models.base import ModelDelta, ModelEvent, ModelRequest
from sojourn.tools.base import ToolContext, ToolOutput
from sojourn.tools.hooks import Hook, ToolCall

pytestmark = pytest.mark.anyio


async def for_ever(*_args: Any) -> str:
    await asyncio.Event().wait()
    return "never"


async def test_stopping_while_the_model_streams_keeps_the_text_and_not_half_a_call() -> None:
    async with house() as h:

        async def stream_some(_request: ModelRequest) -> AsyncIterator[ModelEvent]:
            yield ModelDelta(0, "text", "half a ")
            yield ModelDelta(0, "text", "sen")
            yield ModelDelta(1, "toolArguments", '{"pa')
            await asyncio.Event().wait()

        h.model.replies = [stream_some]
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("messageDelta", count=3)
        async with asyncio.timeout(1):
            answer = await h.hub.stop(Caller(), "a")
        outcome = await running
        assert answer == {"stopped": True, "runId": outcome.run_id}
        assert (outcome.reason, outcome.output) == ("stopped", "half a sen")
        last = (await h.messages())[-1]
        assert (last["role"], last["finishReason"]) == ("assistant", "stopped")
        assert last["content"] == [{"type": "text", "text": "half a sen"}]
        h.model.replies = ["next"]
        assert (await h.prompt("again")).output == "next"


async def test_stopping_before_the_first_word_keeps_nothing_of_the_answer() -> None:
    async with house(for_ever) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("messageStart", count=2)
        await h.hub.stop(Caller(), "a")
        assert (await running).reason == "stopped"
        assert [role for role, _ in await h.said()] == ["user"]
        assert h.client.types()[-3:] == ["messageReset", "turnEnd", "agentEnd"]


async def test_stopping_a_tool_round_keeps_finished_results_and_stops_the_rest() -> None:
    async with house([call("quick"), call("slow")], tools=[ToldTool("quick"), ToldTool("slow", for_ever)]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("toolExecEnd")
        async with asyncio.timeout(1):
            await h.hub.stop(Caller(), "a")
        outcome = await running
        assert outcome.reason == "stopped"
        results = [(m["toolName"], m["isError"]) for m in await h.messages() if m["role"] == "toolResult"]
        assert results == [("quick", False), ("slow", True)]
        assert h.client.types().count("toolExecStart") == h.client.types().count("toolExecEnd") == 2
        h.model.replies = ["next"]
        assert (await h.prompt("again")).output == "next"


async def test_a_hook_that_swallows_its_cancellation_does_not_hold_the_stop() -> None:
    begun, free = asyncio.Event(), asyncio.Event()

    async def stubborn(_ctx: object, _request: object) -> None:
        begun.set()
        while not free.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await free.wait()

    async with house("next", hooks=[Hook("stubborn", SimpleNamespace(before_model=stubborn))]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await begun.wait()
        async with asyncio.timeout(2.5):
            await h.hub.stop(Caller(), "a")
            assert (await running).reason == "stopped"
        free.set()


async def test_a_tool_that_swallows_its_cancellation_does_not_hold_the_stop() -> None:
    async def stubborn(_args: dict[str, Any], _ctx: ToolContext) -> str:
        for _ in range(3):
            try:
                await asyncio.sleep(1.2)
            except asyncio.CancelledError:
                continue
        return "late"

    async with house([call("stubborn")], tools=[ToldTool("stubborn", stubborn)]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("toolExecStart")
        async with asyncio.timeout(2.5):
            await h.hub.stop(Caller(), "a")
            assert (await running).reason == "stopped"
        texts = [m["content"][0]["text"] for m in await h.messages() if m["role"] == "toolResult"]
        assert texts == ["Stopped by the user."]
        warnings = [event for event in await h.stored_events() if event["type"] == "warning"]
        assert [(event["code"], event["data"]["toolName"]) for event in warnings] == [("toolGoesOn", "stubborn")]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_a_tool_that_ends_itself_does_not_end_the_daemon(error: BaseException) -> None:
    async def leave(_args: dict[str, Any], _ctx: ToolContext) -> str:
        raise error

    async def foresee(_args: dict[str, Any], _ctx: ToolContext) -> None:
        raise error

    foreseeing = ToldTool("foresee", approval="ask")
    foreseeing.preview = foresee  # type: ignore[attr-defined]
    calls = [[call("leave")], [call("foresee")], "still there"]
    async with house(*calls, tools=[ToldTool("leave", leave), foreseeing]) as h:
        await h.agent()
        assert (await h.prompt()).output == "still there"
        first, second = [text for role, text in await h.said() if role == "toolResult"]
        assert first.startswith(f"The tool ended with {type(error).__name__}")
        assert second == (str(error) or type(error).__name__)
        assert foreseeing.ran == []


async def test_stopping_with_an_approval_open_closes_it() -> None:
    tool = ToldTool("deploy", approval="ask")
    async with house([call("deploy")], tools=[tool]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("approvalRequested")
        await h.hub.stop(Caller(), "a")
        assert (await running).reason == "stopped"
        assert await h.approvals() == []
        resolved = next(e for e in h.client.events() if e["type"] == "approvalResolved")
        assert resolved["approval"]["decision"]["decision"] == "stopped"
        assert tool.ran == []


async def test_stopping_an_idle_agent_says_that_nothing_ran() -> None:
    async with house("hi") as h:
        await h.agent()
        assert await h.hub.stop(Caller(), "a") == {"stopped": False}
        await h.prompt()
        assert await h.hub.stop(Caller(), "a") == {"stopped": False}


async def test_two_stops_at_once_both_answer() -> None:
    async with house([call("slow")], tools=[ToldTool("slow", for_ever)]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("toolExecStart")
        async with asyncio.timeout(2):
            first, second = await asyncio.gather(h.hub.stop(Caller(), "a"), h.hub.stop(Caller(), "a"))
        assert first["stopped"] or second["stopped"]
        await running
        assert h.client.types().count("agentEnd") == 1


async def test_cancelling_the_prompt_request_stops_its_run_and_leaving_does_not() -> None:
    async with house([call("slow")], [call("slow")], tools=[ToldTool("slow", for_ever)]) as h:
        await h.agent()
        leaver = Client("leaver")
        left = asyncio.create_task(h.prompt(session=leaver))
        await h.client.until("toolExecStart")
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        assert (await h.state())["state"] == "running"
        await h.hub.stop(Caller(), "a")
        canceller = Client("canceller", cancelled=True)
        cancelled = asyncio.create_task(h.prompt(session=canceller))
        await h.client.until("toolExecStart", count=2)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert (await h.state())["state"] == "idle"


async def test_stopping_a_parent_stops_child_and_grandchild_innermost_first() -> None:
    """R-LW-32."""

    async def go_deeper(args: dict[str, Any], ctx: ToolContext) -> str:
        config = AgentConfig(tools=("helper", "slow"))
        return (await ctx.run_child(config, "look")).text

    replies = ([call("helper")], [call("helper")], [call("slow")])
    tools = [ToldTool("helper", go_deeper), ToldTool("slow", for_ever)]
    async with house(*replies, tools=tools) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("nested:nested:toolExecStart")
        async with asyncio.timeout(2):
            await h.hub.stop(Caller(), "a")
        outcome = await running
        assert outcome.reason == "stopped"
        ends = [kind for kind in h.client.types() if kind.endswith("agentEnd")]
        assert ends == ["nested:nested:agentEnd", "nested:agentEnd", "agentEnd"]
        everybody = await h.hub.list_agents(cursor=None, limit=100, state="running", parent_agent_id="a", labels=None)
        assert everybody["agents"] == []


def held_by_its_child(answer: asyncio.Event) -> list[ToldTool]:
    """A tool that begins a child, the child's tool, which holds the stop up for a moment and lets the `answer` come
    meanwhile, and a tool that is called in that answer."""
    paid = asyncio.Event()

    async def begin(_args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        await ctx.start_child(AgentConfig(tools=("slow",)), "be slow")
        return ToolOutput.pending("It is at work.")

    async def slow(_args: dict[str, Any], _ctx: ToolContext) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            answer.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    await paid.wait()
            raise
        return "never"

    return [ToldTool("begin", begin), ToldTool("slow", slow), ToldTool("pay", lambda _args, _ctx: paid.set())]


@pytest.mark.parametrize("late", ["model", "hook"])
async def test_an_answer_that_comes_while_the_stop_is_with_the_children_starts_no_tool(late: str) -> None:
    answer = asyncio.Event()

    async def said(request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if request.messages[0].content[0] == TextPart(text="be slow"):
            yield as_answer([call("slow")])
        elif len(request.messages) == 1:
            yield as_answer([call("begin")])
        else:
            await answer.wait() if late == "model" else None
            yield as_answer([TextPart(text="now"), call("pay")])

    async def judge(_ctx: Any, made: ToolCall) -> None:
        await answer.wait() if made.name == "pay" and late == "hook" else None

    hooks = [Hook("thinks", SimpleNamespace(before_tool=judge))] if late == "hook" else []
    _begin, slow, pay = tools = held_by_its_child(answer)
    async with house(said, said, said, tools=tools, hooks=hooks) as h, asyncio.timeout(10):
        await h.agent(on_inbox_idle="resume")
        running = asyncio.create_task(h.prompt())
        while len(h.model.requests) < 3 or not slow.ran:
            await asyncio.sleep(0)
        assert (await h.hub.stop(Caller(), "a"))["stopped"]
        assert (await running).reason == "stopped"
        assert pay.ran == []
        assert h.client.types()[-2:] == ["turnEnd", "agentEnd"]
        assert (await h.state())["state"] == "idle", "its child's end starts nothing"
        assert len(h.model.requests) == 3


async def test_a_run_whose_stop_was_asked_for_and_never_comes_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "STOP_S", 0.01)
    answer, tool = asyncio.Event(), ToldTool("pay")

    async def said(_request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await answer.wait()
        yield as_answer([call("pay")])

    async with house(said, tools=[tool]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("messageStart", count=2)
        await h.hub.rt.write("stop", lambda ledger: children.ask_to_stop(ledger, "a"))
        answer.set()
        assert (await running).reason == "stopped"
        assert tool.ran == []


async def test_a_child_that_starts_while_the_stop_is_on_its_way_does_not_run() -> None:
    stopped = asyncio.Event()
    reached: list[str] = []

    async def late_child(_args: dict[str, Any], ctx: ToolContext) -> str:
        reached.append("tool")
        try:
            await stopped.wait()
        except asyncio.CancelledError:
            await ctx.run_child(AgentConfig(), "too late")
            reached.append("child ran")
            raise
        return "unreachable"

    async with house([call("helper")], "child speaks", tools=[ToldTool("helper", late_child)]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("toolExecStart")
        await h.hub.stop(Caller(), "a")
        await running
        assert reached == ["tool"]
        assert len(h.model.requests) == 1


@pytest.mark.parametrize("seed", range(12))
async def test_a_stop_at_any_moment_of_a_round_ends_the_pass_once_and_leaves_a_whole_conversation(seed: int) -> None:
    import random

    chance = random.Random(seed)

    async def work(_args: dict[str, Any], _ctx: ToolContext) -> str:
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
        return "done"

    tools = [ToldTool("one", work), ToldTool("two", work), ToldTool("ask", approval="ask")]
    names = ["one", "two", "one", "ask"]
    async with house(tools=tools) as h:
        await h.agent()
        for number in range(15):
            chosen = [call(name) for name in names[: chance.randrange(1, 5)]]
            h.model.replies = [chosen, chosen, "the end"]
            running = asyncio.create_task(h.prompt(f"go {number}"))
            for _ in range(chance.randrange(60)):
                await asyncio.sleep(0)
            async with asyncio.timeout(5):
                if approvals := await h.approvals():
                    decision = chance.choice(["approve", "abort", "deny"])
                    await asyncio.gather(
                        h.decide(approvals[0]["approvalId"], decision),
                        h.hub.stop(Caller(), "a"),
                        return_exceptions=True,
                    )
                await h.hub.stop(Caller(), "a")
                await running
        kinds = h.client.types()
        assert kinds.count("agentStart") == kinds.count("agentEnd") == 15
        conversation = await h.messages()
        calls = [p["id"] for m in conversation for p in m["content"] if p["type"] == "toolCall"]
        results = [m["callId"] for m in conversation if m["role"] == "toolResult"]
        assert results == calls, "each call has one result, in call order"
        assert await h.approvals() == []
        h.model.replies = ["still here"]
        assert (await h.prompt()).output == "still here"


async def test_a_stop_whose_client_leaves_in_the_middle_is_a_whole_stop() -> None:
    started, held, let_go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def says(request: ModelRequest) -> Any:
        if request.system == "child":
            return [call("busy")]
        if any(message.role == "toolResult" for message in request.messages):
            return await for_ever()
        return [call("begin")]

    async def begin(_args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        await ctx.start_child(AgentConfig(system_prompt="child", tools=("busy",)), "work")
        return ToolOutput.pending("begun")

    async def busy(_args: dict[str, Any], _ctx: ToolContext) -> str:
        started.set()
        try:
            return await for_ever()
        finally:
            held.set()
            await let_go.wait()

    async with house(*[says] * 4, tools=[ToldTool("begin", begin), ToldTool("busy", busy)]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        async with asyncio.timeout(5):
            await started.wait()
            await h.client.until("messageStart", count=4)
            stopping = asyncio.create_task(h.hub.stop(Caller(), "a"))
            await held.wait()
            stopping.cancel()
            await asyncio.wait({stopping})
            let_go.set()
            assert (await running).reason == "stopped"
        listed = await h.hub.list_agents(cursor=None, limit=9, state=None, parent_agent_id=None, labels=None)
        assert {row["state"] for row in listed["agents"]} == {"idle"}


async def test_a_repeated_stop_stops_no_run_that_has_begun_since() -> None:
    asked = Caller(client_id="test", request_id="once", body_sha256="s")
    async with house(for_ever, for_ever) as h:
        await h.agent()
        first = await h.start()
        answer = await h.hub.stop(asked, "a")
        assert answer == {"stopped": True, "runId": first.run_id}
        second = await h.start()
        assert await h.hub.stop(asked, "a") == answer
        assert (await h.state())["state"] == "running"
        assert await h.hub.stop(Caller(client_id="test"), "a") == {"stopped": True, "runId": second.run_id}
