"""A prompt may ask for output by a schema and for a tool choice, as a hand-driven run may."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from house import House, ToldTool, call, house

from sojourn.core.errors import AgentBusy, InvalidParams
from sojourn.core.messages import ToolChoice
from sojourn.models.base import ModelRequest

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
OSLO = {"city": "Oslo", "degrees": 3}
OSLO_TEXT = json.dumps(OSLO)
REQUIRED, NONE, AUTO = ToolChoice(mode="required"), ToolChoice(mode="none"), ToolChoice()
LOOK = ToolChoice(mode="tool", name="look")


async def same_when_asked_again(h: House, outcome: Any) -> None:
    """What `agent/wait` reads from the store is what the prompt answered."""
    assert (await h.hub.wait("a", outcome.run_id)).wire() == outcome.wire()


@pytest.mark.parametrize("reply", [OSLO_TEXT, [call("final_result", **OSLO)]], ids=["said", "called"])
async def test_the_outcome_carries_the_output_however_it_was_given(reply: Any) -> None:
    async with house(reply) as h:
        await h.agent()
        outcome = await h.prompt("Weather?", output_schema=SCHEMA)
        assert (outcome.reason, json.loads(outcome.output)) == ("done", OSLO)
        assert outcome.best_effort is None
        assert [message.role for message in outcome.messages] == ["user", "assistant"]
        assert not outcome.messages[-1].calls
        await same_when_asked_again(h, outcome)
        asked = h.model.requests[0]
        assert (asked.output_schema, asked.output_tool) == (SCHEMA, "final_result")
        plain = await h.prompt("Thanks")
        assert plain.output == "echo 2"
        assert h.model.requests[1].output_schema is None


async def test_the_model_is_asked_again_once_for_an_output_that_is_not_valid() -> None:
    async with house("It is cold.", [call("final_result", **OSLO)]) as h:
        await h.agent()
        outcome = await h.prompt("Weather?", output_schema=SCHEMA)
        assert json.loads(outcome.output) == OSLO
        assert [message.role for message in outcome.messages] == ["user", "assistant", "user", "assistant"]
        assert "not the output that was asked for" in h.model.requests[1].messages[-1].content[0].text
        turns = [event["turn"] for event in h.client.events() if event["type"] == "turnStart"]
        assert turns == [1, 2]


async def test_what_came_in_meanwhile_is_read_before_the_model_is_asked_again() -> None:
    async with house() as h:

        async def slow(_request: ModelRequest) -> str:
            await h.push("And the wind?")
            return "It is cold."

        h.model.replies = [slow, OSLO_TEXT]
        await h.agent()
        outcome = await h.prompt("Weather?", output_schema=SCHEMA)
        assert json.loads(outcome.output) == OSLO
        assert "And the wind?" in [text for _, text in await h.said()]


async def test_the_best_effort_is_marked_as_such_when_no_try_is_left() -> None:
    async with house("cold", "very cold") as h:
        await h.agent()
        outcome = await h.prompt("Weather?", output_schema=SCHEMA)
        assert (outcome.reason, outcome.output, outcome.best_effort) == ("done", "very cold", True)
        await same_when_asked_again(h, outcome)


async def test_tools_are_used_on_the_way_and_the_output_s_tool_has_a_name_of_its_own() -> None:
    tools = [ToldTool("look", lambda _a, _c: "3 degrees"), ToldTool("final_result")]
    async with house([call("look")], [call("final_result-2", **OSLO)], tools=tools) as h:
        await h.agent()
        outcome = await h.prompt("Weather?", output_schema=SCHEMA)
        assert json.loads(outcome.output) == OSLO
        assert (len(tools[0].ran), len(tools[1].ran)) == (1, 0)
        assert {request.output_tool for request in h.model.requests} == {"final_result-2"}


@pytest.mark.parametrize(("choice", "later"), [(REQUIRED, None), (LOOK, None), (AUTO, AUTO), (NONE, NONE)])
async def test_a_choice_that_makes_the_model_call_holds_until_it_has(choice: ToolChoice, later: Any) -> None:
    look = ToldTool("look", lambda _a, _c: "seen")
    first = "I may not." if choice is NONE else [call("look")]
    async with house(first, "Done.", tools=[look, ToldTool("other")]) as h:
        await h.agent()
        outcome = await h.prompt("Look!", tool_choice=choice)
        assert outcome.reason == "done"
        choices = [request.tool_choice for request in h.model.requests]
        assert choices == ([choice] if choice is NONE else [choice, later])


REFUSED = {"none": NONE, "another tool": LOOK}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_call_that_the_choice_does_not_allow_is_not_run(name: str) -> None:
    look, other = ToldTool("look"), ToldTool("other")
    async with house([call("other")], "Then not.", tools=[look, other]) as h:
        await h.agent()
        outcome = await h.prompt("Go", tool_choice=REFUSED[name])
        assert (outcome.reason, outcome.output) == ("done", "Then not.")
        assert other.ran == []
        told = [text for role, text in await h.said() if role == "toolResult"]
        assert "disallowed_by_tool_choice" in told[0]
        assert told[0].endswith("none." if name == "none" else "look.")


async def test_a_tool_that_is_not_there_cannot_be_chosen_and_nothing_happens() -> None:
    async with house(tools=[ToldTool("look")]) as h:
        await h.agent()
        before = await h.state()
        with pytest.raises(InvalidParams, match=r"has no tool 'peek'; it has: look\.") as refused:
            await h.prompt("Go", tool_choice=ToolChoice(mode="tool", name="peek"))
        assert refused.value.data["field"] == "toolChoice"
        assert await h.state() == before


async def test_a_busy_agent_queues_no_prompt_that_needs_a_run_of_its_own() -> None:
    go_on = asyncio.Event()

    async def slow(_request: ModelRequest) -> str:
        await go_on.wait()
        return "Done."

    async with house(slow) as h:
        await h.agent()
        await h.start("one")
        with pytest.raises(AgentBusy):
            await h.prompt("two", if_busy="queue", output_schema=SCHEMA)
        go_on.set()
        await h.client.until("agentEnd")
        assert (await h.state())["inbox"] == 0


async def test_a_run_keeps_its_wishes_when_it_is_resumed_and_takes_no_others() -> None:
    async with house([call("build")], OSLO_TEXT, tools=[ToldTool("build", approval="ask")]) as h:
        await h.agent()
        paused = await h.prompt("Weather?", output_schema=SCHEMA, on_approval="pause")
        assert paused.reason == "paused"
        with pytest.raises(InvalidParams, match="goes on under what it began with") as refused:
            await h.resume(output_schema=SCHEMA)
        assert refused.value.data["field"] == "outputSchema"
        await h.decide((await h.approvals())[0]["approvalId"])
        outcome = await h.resume()
        assert json.loads(outcome.output) == OSLO


async def test_a_resume_that_begins_a_run_takes_wishes() -> None:
    async with house(OSLO_TEXT) as h:
        await h.agent()
        await h.push("Weather?")
        outcome = await h.resume(output_schema=SCHEMA, tool_choice=AUTO)
        assert json.loads(outcome.output) == OSLO
        assert h.model.requests[0].tool_choice == AUTO


async def test_a_saved_run_takes_no_wishes() -> None:
    async with house() as h:
        await h.agent()
        with pytest.raises(InvalidParams, match="saved run"):
            await h.resume(run={}, output_schema=SCHEMA)
