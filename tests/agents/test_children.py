"""Child agents: agents of their own whose runs answer to their parent's call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from house import Client, ToldTool, call, house

from sojourn.agents.runtime import HubLimits
from sojourn.core.agent import AgentConfig, Caller, Limits
from sojourn.tools.base import ToolContext, ToolOutput
from sojourn.tools.delegate import delegate

pytestmark = pytest.mark.anyio


def helper(name: str = "helper", config: AgentConfig | None = None) -> ToldTool:
    async def run(args: dict[str, Any], ctx: ToolContext) -> str:
        return (await ctx.run_child(config or AgentConfig(), args.get("task", "look"))).text

    return ToldTool(name, run)


async def test_a_child_is_an_agent_of_its_own_that_can_be_listed_read_and_prompted() -> None:
    """R-LW-33."""
    async with house([call("helper", task="dig")], "found", "done", "more", tools=[helper()]) as h:
        await h.agent()
        await h.prompt()
        roots = await h.hub.list_agents(cursor=None, limit=9, state=None, parent_agent_id=None, labels=None)
        assert [a["agentId"] for a in roots["agents"]] == ["a"]
        below = await h.hub.list_agents(cursor=None, limit=9, state=None, parent_agent_id="a", labels=None)
        (child,) = below["agents"]
        assert child["parent"] == {"agentId": "a", "toolCallId": "msg-2-call-1"}
        assert await h.said(child["agentId"]) == [("user", "dig"), ("assistant", "found")]
        assert (await h.prompt("and?", child["agentId"])).output == "more"
        assert not any(e["type"] == "nested" for e in h.client.events()[-5:]), "a prompt of its own is not nested"


async def test_parallel_children_are_never_mixed() -> None:
    replies = ([call("helper", task="one"), call("helper", task="two")],)

    async with house(*replies, tools=[helper()]) as h:
        h.model.replies += [lambda r: f"about {r.messages[-1].content[0].text}"] * 2 + ["both"]
        await h.agent()
        await h.prompt()
        texts = [m["content"][0]["text"] for m in await h.messages() if m["role"] == "toolResult"]
        assert texts == ["about one", "about two"]
        spans: dict[str, list[int]] = {}
        for place, event in enumerate(h.client.events()):
            if event["type"] in ("toolExecStart", "toolExecEnd", "nested"):
                spans.setdefault(event["toolCallId"], []).append(place)
                inside = event.get("event", {})
                if inside.get("type") == "messageEnd" and inside["message"]["role"] == "user":
                    said = inside["message"]["content"][0]["text"]
                    assert event["toolCallId"] == {"one": "msg-2-call-1", "two": "msg-2-call-2"}[said]
        for places in spans.values():
            kinds = [h.client.events()[p]["type"] for p in places]
            assert (kinds[0], kinds[-1]) == ("toolExecStart", "toolExecEnd")


async def test_a_childs_approval_surfaces_with_its_path_at_a_client_of_the_ancestor() -> None:
    deploy = ToldTool("deploy", approval="ask")
    tools = [helper(config=AgentConfig(tools=("deploy",))), deploy]
    async with house([call("helper")], [call("deploy")], "child ok", "parent ok", tools=tools) as h:
        h.client.answers_approvals = True
        h.client.answers["approval/request"] = lambda _p: {"decision": "approve"}
        await h.agent()
        assert (await h.prompt()).output == "parent ok"
        ((_, params),) = h.client.asked
        approval = params["approval"]
        assert approval["path"] == [{"agentId": "a", "callId": "msg-2-call-1"}]
        assert approval["agentId"] != "a"
        assert deploy.ran == [{}]


async def test_parent_and_child_are_waiting_while_the_child_asks_and_listed_under_both() -> None:
    tools = [helper(config=AgentConfig(tools=("deploy",))), ToldTool("deploy", approval="ask")]
    async with house([call("helper")], [call("deploy")], "ok", "ok", tools=tools) as h:
        await h.agent()
        await h.agent("stranger", attach=False)
        running = asyncio.create_task(h.prompt())
        await h.client.until("nested:approvalRequested")
        assert (await h.state())["state"] == "waiting"
        (mine,) = await h.approvals("a")
        assert await h.approvals() == [mine]
        assert await h.approvals("stranger") == []
        await h.decide(mine["approvalId"])
        assert (await running).reason == "done"


async def test_a_background_child_replies_through_the_inbox() -> None:
    """R-LW-35."""
    async with house([call("delegate", task="dig", background=True)], "meanwhile", extra_tools=[delegate]) as h:
        h.model.replies = [
            h.model.replies[0],
            lambda r: "child says" if r.messages[-1].content[0].text == "dig" else "meanwhile",  # type: ignore[union-attr]
            lambda r: "child says" if r.messages[-1].content[0].text == "dig" else "meanwhile",  # type: ignore[union-attr]
            "thank you",
        ]
        await h.agent(on_inbox_idle="resume")
        await h.prompt()
        await h.client.until(lambda e: e["type"] == "messageEnd" and "thank you" in str(e))
        late = [m for m in await h.messages() if m["role"] == "lateResult"]
        assert [m["content"][0]["text"] for m in late] == ["child says"]
        assert not any(e["type"] == "nested" for e in h.client.events())
        assert await h.pending() == []


async def test_a_failing_child_is_a_failed_result_that_the_model_reads() -> None:
    from sojourn.core.errors import ModelError

    async with house([call("helper")], ModelError("the server is on fire"), "I see", tools=[helper()]) as h:
        await h.agent()
        assert (await h.prompt()).output == "I see"
        result = next(m for m in await h.messages() if m["role"] == "toolResult")
        assert result["isError"]
        assert "the server is on fire" in result["content"][0]["text"]


async def test_depth_and_number_of_children_have_limits_by_name() -> None:
    async def spawn_two(args: dict[str, Any], ctx: ToolContext) -> str:
        await ctx.run_child(AgentConfig(), "one")
        await ctx.run_child(AgentConfig(), "two")
        return "both"

    async with house([call("many")], "c1", "told", tools=[ToldTool("many", spawn_two)]) as h:
        await h.agent(limits=Limits(children=1))
        await h.prompt()
        result = next(m for m in await h.messages() if m["role"] == "toolResult")
        assert result["isError"]
        assert "limit is 1" in result["content"][0]["text"]

    deep = helper(config=AgentConfig(tools=("helper",)))
    replies = ([call("helper")], [call("helper")], "grandchild was refused", "child", "parent")
    async with house(*replies, tools=[deep], limits=HubLimits(max_children_depth=1)) as h:
        await h.agent()
        await h.prompt()
        assert not any(kind.startswith("nested:nested") for kind in h.client.types())


async def test_a_tool_may_send_its_child_a_follow_up() -> None:
    """R-LW-33."""

    async def twice(args: dict[str, Any], ctx: ToolContext) -> str:
        first = await ctx.run_child(AgentConfig(), "one")
        second = await ctx.run_child(first.agent_id, "two")
        assert first.agent_id == second.agent_id
        return second.text

    async with house([call("talk")], "r1", "r2", "done", tools=[ToldTool("talk", twice)]) as h:
        await h.agent()
        await h.prompt()
        below = await h.hub.list_agents(cursor=None, limit=9, state=None, parent_agent_id="a", labels=None)
        assert await h.said(below["agents"][0]["agentId"]) == [
            ("user", "one"), ("assistant", "r1"), ("user", "two"), ("assistant", "r2"),
        ]  # fmt: skip


async def test_a_client_that_attaches_late_sees_what_a_child_streamed_so_far() -> None:
    from collections.abc import AsyncIterator

    from sojourn.core.messages import TextPart
    from sojourn.models.base import ModelAnswer, ModelDelta, ModelEvent, ModelRequest

    go = asyncio.Event()

    async def halfway(_request: ModelRequest) -> AsyncIterator[ModelEvent]:
        yield ModelDelta(0, "text", "first ")
        await go.wait()
        yield ModelDelta(0, "text", "second")
        yield ModelAnswer((TextPart(text="first second"),), "stop")

    async with house([call("helper")], halfway, "done", tools=[helper()]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("nested:messageDelta")
        late = Client("late")
        seen = await h.hub.attach(late, "a", after_seq=None, deltas=True)
        (piece,) = seen["streaming"]
        assert (piece["text"], piece["path"]) == ("first ", [{"agentId": "a", "callId": "msg-2-call-1"}])
        await h.hub.feed.settled(late, "a")
        go.set()
        await running
        deltas = [e["event"] for e in late.events(live=True) if e["type"] == "nested"]
        deltas = [e for e in deltas if e["type"] == "messageDelta"]
        assert [(d["offset"], d["text"]) for d in deltas] == [(6, "second")]


async def test_stopping_a_parent_stops_its_background_children_too() -> None:
    async def start(args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        await ctx.start_child(AgentConfig(tools=("slow",)), "work")
        return ToolOutput.pending("started")

    async def for_ever(*_: Any) -> str:
        await asyncio.Event().wait()
        return ""

    tools = [ToldTool("bg", start), ToldTool("slow", for_ever)]
    async with house([call("bg")], tools=tools) as h:
        h.model.replies += [[call("slow")], [call("slow")]]
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.client.until("toolExecStart", count=2)
        async with asyncio.timeout(3):
            await h.hub.stop(Caller(), "a")
            await running
        below = await h.hub.list_agents(cursor=None, limit=9, state=None, parent_agent_id="a", labels=None)
        assert [a["state"] for a in below["agents"]] == ["idle"]


@pytest.mark.parametrize(
    ("child", "preset", "asks"),
    [
        (AgentConfig(tools=("deploy",)), AgentConfig(), False),
        (AgentConfig(tools=("deploy",), approvals={"deploy": "ask"}), AgentConfig(), True),
        (AgentConfig(preset="p"), AgentConfig(tools=("deploy",)), False),
        (AgentConfig(preset="p"), AgentConfig(tools=("deploy",), approvals={"*": "ask"}), True),
    ],
)
async def test_a_child_without_rules_of_its_own_works_under_its_parents(
    child: AgentConfig, preset: AgentConfig, asks: bool
) -> None:
    deploy = ToldTool("deploy", approval="allow")
    replies = ([call("helper")], [call("deploy")], "child", "parent")
    async with house(*replies, tools=[helper(config=child), deploy], presets={"p": preset}) as h:
        await h.agent(approvals={"deploy": "deny"}, limits=Limits(approval_s=60), on_approval_unattended="wait")
        running = asyncio.create_task(h.prompt())
        if asks:
            await h.client.until("nested:approvalRequested")
            (approval,) = await h.approvals()
            assert approval["expiresAt"], "the time limit is the parent's"
            await h.hub.stop(Caller(), "a")
        await running
        assert deploy.ran == []
