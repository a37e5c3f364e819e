"""Runs that a client steps: an agent's own, paused or interrupted, and those without an agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from house import Client, House, ToldTool, call, house, killed_house
from method_calls import Calls, calls_of

from sojourn.core.agent import Caller
from sojourn.core.errors import AgentBusy, ProtocolViolation, RunNotFound, StaleRevision
from sojourn.models.base import ModelRequest

pytestmark = pytest.mark.anyio


def gated(name: str = "deploy") -> ToldTool:
    return ToldTool(name, lambda args, _ctx: f"deployed {args}", approval="ask")


def says(*content: Any, tools: tuple[str, ...] = ("deploy", "look_up")) -> dict[str, Any]:
    """A model's response."""
    return {
        "content": [{"type": "text", "text": part} if isinstance(part, str) else part for part in content],
        "usage": {"inputTokens": 10, "outputTokens": 5},
        "executableTools": list(tools),
        "allowedTools": list(tools),
    }


def makes(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "toolCall", "id": "same", "name": name, "arguments": arguments}


def by_hand(*call_ids: str) -> list[dict[str, Any]]:
    return [{"callId": call_id, "content": f"{call_id} by hand"} for call_id in call_ids]


def ids(step: dict[str, Any]) -> list[str]:
    return [one["call"]["id"] for one in step["calls"]]


async def paused(h: House, **config: Any) -> str:
    """The run of an agent that waits for decisions, and whose pass is over."""
    await h.agent(on_approval="pause", **config)
    outcome = await h.prompt()
    assert outcome.reason == "paused"
    return str(outcome.run_id)


async def whole(h: House) -> list[str]:
    """The texts of the results in the conversation; each call has exactly one."""
    said = await h.messages()
    made = [part["id"] for message in said for part in message["content"] if part["type"] == "toolCall"]
    results = [message for message in said if message["role"] == "toolResult"]
    assert [message["callId"] for message in results] == made
    return [message["content"][0]["text"] for message in results]


async def test_a_paused_run_is_stepped_to_its_end_and_reads_the_inbox_on_the_way() -> None:
    tool = gated()
    async with house([call("deploy")], "next prompt", tools=[tool]) as h:
        run_id = await paused(h)
        script = calls_of(h)
        seq = (await h.state())["seq"]
        owed = await script.ask("run/step", runId=run_id)
        assert ids(owed["step"]) == ["msg-2-call-1"]
        assert (await h.state())["seq"] == seq, "asking is no feed"
        await h.push("and hurry")
        fed = await script.ask("run/step", runId=run_id, toolResults=by_hand("msg-2-call-1"))
        assert fed["revision"] == owed["revision"] + 1
        assert [m["content"][0].get("text") for m in [*fed["step"]["history"], fed["step"]["prompt"]]] == [
            "go",
            None,  # the call
            "msg-2-call-1 by hand",
            "and hurry",
        ]
        await h.push("one more thing")
        more = await script.ask("run/step", runId=run_id, modelResponse=says("Deployed."))
        assert (more["step"]["type"], more["step"]["prompt"]["content"][0]["text"]) == ("callModel", "one more thing")
        done = await script.ask("run/step", runId=run_id, modelResponse=says("That too."))
        assert (done["step"]["type"], done["step"]["result"]["output"]) == ("done", "That too.")
        assert (await script.ask("run/step", runId=run_id))["step"]["type"] == "done"
        assert ((await h.state())["state"], await h.approvals(), tool.ran) == ("idle", [], [])
        assert (await h.state())["usage"] == {"inputTokens": 30, "outputTokens": 15}
        assert await whole(h) == ["msg-2-call-1 by hand"]
        assert (await h.prompt("again")).output == "next prompt"


async def test_a_message_pushed_before_a_stepped_run_has_a_model_is_read_when_its_step_is_asked(
    tmp_path: Path,
) -> None:
    async def never(_request: ModelRequest) -> Any:
        await asyncio.Event().wait()

    async with killed_house(never, path=tmp_path / "db") as h:
        await h.agent()
        run_id = (await h.start()).run_id
        await h.client.until("turnStart")
    async with house(path=tmp_path / "db") as h:
        script = calls_of(h)
        await h.push("hear this too")
        step = (await script.ask("run/step", runId=run_id))["step"]
        assert (step["type"], step["turn"]) == ("callModel", 1)
        done = (await script.ask("run/step", runId=run_id, modelResponse=says("heard")))["step"]
        assert done["type"] == "callModel", "what was pushed is read before the run ends"
        assert done["prompt"]["content"][0]["text"] == "hear this too"
        assert (await script.ask("run/step", runId=run_id, modelResponse=says("that too")))["step"]["type"] == "done"
        assert [text for role, text in await h.said() if role == "user"] == ["go", "hear this too"]


async def test_an_interrupted_run_knows_what_its_calls_came_to_and_which_are_lost(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def for_ever(_args: dict[str, Any], _ctx: Any) -> Any:
        started.set()
        await asyncio.Event().wait()

    tools = [ToldTool("quick"), ToldTool("slow", for_ever)]
    async with killed_house([call("quick"), call("slow")], path=tmp_path / "db", tools=tools) as h:
        await h.agent()
        run_id = (await h.start()).run_id
        await h.client.until("toolExecEnd")
        async with asyncio.timeout(10):
            await started.wait()
    async with house(path=tmp_path / "db", tools=tools) as h:
        assert (await h.state())["state"] == "interrupted"
        model = (await calls_of(h).ask("run/step", runId=run_id))["step"]
        assert (model["type"], model["turn"]) == ("callModel", 2)
        quick, slow = await whole(h)
        assert quick == "done"
        assert "may have taken effect" in slow
        kinds = [event["type"] for event in await h.stored_events()]
        assert (kinds.count("agentStart"), kinds.count("agentEnd")) == (2, 1)
        codes = [event["code"] for event in await h.stored_events() if event["type"] == "warning"]
        assert codes.count("callInterrupted") == 1


async def test_a_run_that_the_daemon_drives_is_not_stepped() -> None:
    async with house([call("deploy")], "done", tools=[gated()]) as h:
        await h.agent()
        run_id = (await h.start()).run_id
        await h.client.until("approvalRequested")
        script = calls_of(h)
        seq = (await h.state())["seq"]
        with pytest.raises(AgentBusy) as caught:
            await script.ask("run/step", runId=run_id, toolResults=by_hand("msg-2-call-1"))
        assert caught.value.data["runId"] == run_id
        assert (await h.state())["seq"] == seq
        assert "step" not in await script.ask("run/get", runId=run_id)


@pytest.mark.parametrize("at", ["the model", "its own calls", "calls made by hand", "an invalid call"])
async def test_a_run_that_a_client_steps_is_stopped_at_once(at: str) -> None:
    async with house([call("deploy", n=1), call("deploy", n=2)], "hello", tools=[gated()]) as h:
        run_id = await paused(h)
        script = calls_of(h)
        fed = by_hand("msg-2-call-1") if at == "its own calls" else by_hand("msg-2-call-1", "msg-2-call-2")
        step = (await script.ask("run/step", runId=run_id, toolResults=fed))["step"]
        if at == "calls made by hand":
            made = says("Look:", makes("look_up", q=1), makes("look_up", q=2))
            step = (await script.ask("run/step", runId=run_id, modelResponse=made))["step"]
            some = by_hand(ids(step)[1])
            assert len((await script.ask("run/step", runId=run_id, toolResults=some))["step"]["calls"]) == 1
        elif at == "an invalid call":
            made = says(makes("fly"), makes("look_up"))
            step = (await script.ask("run/step", runId=run_id, modelResponse=made))["step"]
            assert step["type"] == "needsResolution"
        assert await h.hub.stop(Caller(), "a") == {"stopped": True, "runId": run_id}
        assert await h.hub.stop(Caller(), "a") == {"stopped": False}
        kinds = [event["type"] for event in await h.stored_events()]
        assert kinds[-2:] == ["turnEnd", "agentEnd"]
        for begun, over in (("agentStart", "agentEnd"), ("turnStart", "turnEnd"), ("messageStart", "messageEnd")):
            assert kinds.count(begun) == kinds.count(over)
        assert ((await h.state())["state"], await h.approvals()) == ("idle", [])
        step = (await script.ask("run/step", runId=run_id))["step"]
        assert (step["type"], step["error"]["kind"]) == ("failed", "cancelled")
        await whole(h)
        assert (await h.prompt("again")).reason == "done"


async def test_what_was_aborted_is_carried_on_by_no_step() -> None:
    tool = gated()
    async with house([call("deploy", n=1), call("deploy", n=2)], "hello", tools=[tool]) as h:
        run_id = await paused(h)
        first, second = await h.approvals()
        await h.decide(second["approvalId"])
        await h.decide(first["approvalId"], "abort")
        step = (await calls_of(h).ask("run/step", runId=run_id))["step"]
        assert (step["type"], step["error"]["kind"]) == ("failed", "cancelled")
        assert (await h.state())["state"] == "idle"
        assert tool.ran == []
        assert (await h.prompt("again")).output == "hello"


@pytest.mark.parametrize("takes_over", ["the connection closes", "agent/resume"])
async def test_a_stepped_pass_ends_interrupted_when(takes_over: str) -> None:
    async with house([call("deploy")], "the daemon's own", tools=[gated()]) as h:
        run_id = await paused(h)
        script = calls_of(h)
        await script.ask("run/step", runId=run_id, toolResults=by_hand("msg-2-call-1"))
        assert (await h.state())["state"] == "running"
        if takes_over == "the connection closes":
            h.hub.client_gone(script)
            await h.client.until(lambda event: event["type"] == "agentEnd" and event["reason"] == "interrupted")
            assert (await h.state())["state"] == "interrupted"
        outcome = await h.resume()
        assert (outcome.run_id, outcome.output) == (run_id, "the daemon's own")
        events = await h.stored_events()
        passes = [event.get("cause") or event["reason"] for event in events if event["type"].startswith("agent")]
        assert passes == ["prompt", "paused", "step", "interrupted", "resume", "done"]
        warned = [event for event in events if event["type"] == "warning"]
        assert [event["code"] for event in warned] == ["runInterrupted"]


async def test_a_connection_that_closes_lets_go_of_nothing_that_it_does_not_hold() -> None:
    async with house([call("deploy")], "done", tools=[gated()]) as h:
        run_id = await paused(h)
        script = calls_of(h)
        await script.ask("run/step", runId=run_id, toolResults=by_hand("msg-2-call-1"))
        await script.ask("run/step", runId=run_id, modelResponse=says("over"))
        h.hub.client_gone(script)
        h.hub.client_gone(Client())
        await h.push("for later")
        await h.push("and this")
        ends = [event["reason"] for event in await h.stored_events() if event["type"] == "agentEnd"]
        assert (ends, (await h.state())["state"]) == (["paused", "done"], "idle")


async def test_a_stepped_run_that_needs_more_turns_than_it_has_fails_as_the_loops_would() -> None:
    async with house([call("deploy")], "next", tools=[gated()]) as h:
        run_id = await paused(h, max_turns=1)
        step = (await calls_of(h).ask("run/step", runId=run_id, toolResults=by_hand("msg-2-call-1")))["step"]
        assert (step["type"], step["error"]["kind"]) == ("failed", "maxTurns")
        end = (await h.stored_events())[-1]
        assert (end["type"], end["reason"], end["error"]["kind"]) == ("agentEnd", "failed", "maxTurns")
        assert (await h.state())["state"] == "idle"
        await whole(h)


async def test_a_run_says_the_same_after_later_runs_of_its_agent() -> None:
    async with house("one", "two") as h:
        await h.agent()
        run_id = (await h.prompt()).run_id
        script = calls_of(h)
        shown = await script.ask("run/get", runId=run_id)
        exported = await script.ask("run/export", runId=run_id)
        owed = await script.ask("run/step", runId=run_id)
        assert (await h.prompt("again")).output == "two"
        assert shown["step"]["result"]["output"] == "one"
        assert await script.ask("run/get", runId=run_id) == shown
        assert await script.ask("run/export", runId=run_id) == exported
        assert await script.ask("run/step", runId=run_id) == owed


@pytest.mark.parametrize("by", ["a new prompt", "another conversation"])
async def test_a_run_that_its_agent_went_on_without_takes_nothing_more(by: str) -> None:
    async with house([call("deploy")], "next", tools=[gated()]) as h:
        run_id = await paused(h)
        script = calls_of(h)
        if by == "a new prompt":
            await h.prompt("again")
        else:
            await script.ask("agent/replaceMessages", agentId="a", messages=[{"role": "user", "content": "hello"}])
        said = await h.messages()
        for _ in range(2):
            step = (await script.ask("run/step", runId=run_id))["step"]
            assert (step["type"], step["error"]["kind"]) == ("failed", "cancelled")
            assert step["error"]["message"] == f"The run '{run_id}' is over: its agent went on without it."
            assert (await script.ask("run/get", runId=run_id))["step"] == step
            assert (await script.ask("run/step", runId=run_id, toolResults=by_hand("msg-2-call-1")))["step"] == step
        document = (await script.ask("run/export", runId=run_id))["run"]
        assert [message["role"] for message in document["messages"]] == ["user", "assistant"]
        assert await h.messages() == said


# ── runs without an agent ─────────────────────────────────────────────────────────────────────────────────────────────


async def created(script: Calls, **more: Any) -> str:
    return str((await script.ask("run/create", prompt="Where is Öland?", **{"maxTurns": 2, **more}))["runId"])


async def test_a_run_of_a_script_goes_from_its_prompt_to_its_output() -> None:
    async with house() as h:
        script = calls_of(h)
        run_id = await created(script)
        first = (await script.ask("run/step", runId=run_id))["step"]
        assert (first["type"], first["turn"], first["history"]) == ("callModel", 1, [])
        owed = await script.ask("run/step", runId=run_id, modelResponse=says("Let me see.", makes("look_up")))
        assert await script.ask("run/step", runId=run_id) == owed, "asking again changes nothing"
        (call_id,) = ids(owed["step"])
        await script.ask("run/step", runId=run_id, toolResults=by_hand(call_id))
        done = await script.ask("run/step", runId=run_id, modelResponse=says("In the east."))
        assert (done["step"]["type"], done["step"]["result"]["output"]) == ("done", "In the east.")
        shown = await script.ask("run/get", runId=run_id)
        assert (shown["state"], shown["turn"], shown["step"]) == ("done", 2, done["step"])
        assert "agentId" not in shown


async def test_a_run_keeps_to_the_tool_choice_and_the_output_that_it_was_made_with() -> None:
    schema = {"type": "object", "properties": {"sea": {"type": "string"}}, "required": ["sea"]}
    async with house() as h:
        script = calls_of(h)
        run_id = await created(script, toolChoice="required", outputSchema=schema)
        document = (await script.ask("run/export", runId=run_id))["run"]
        copy = (await script.ask("run/import", run=document))["runId"]
        again = (await script.ask("run/export", runId=copy))["run"]
        assert (copy != run_id, again) == (True, document)
        assert {"mode": "required"} in document.values()
        assert str(schema) in str(document)


async def test_what_a_script_feeds_wrongly_is_refused_and_changes_nothing() -> None:
    async with house() as h:
        script = calls_of(h)
        run_id = await created(script)
        await script.ask("run/step", runId=run_id)
        owed = await script.ask("run/step", runId=run_id, modelResponse=says(makes("look_up")))
        (call_id,) = ids(owed["step"])
        with pytest.raises(StaleRevision) as stale:
            await script.ask("run/step", runId=run_id, revision=owed["revision"] - 1, toolResults=by_hand(call_id))
        assert stale.value.data["revision"] == owed["revision"]
        for feed in (
            {"modelResponse": says("too early")},
            {"resolution": {"action": "skip"}},
            {"toolResults": by_hand("msg-9-call-9")},
        ):
            with pytest.raises(ProtocolViolation) as caught:
                await script.ask("run/step", runId=run_id, **feed)
            assert caught.value.data["state"] == "executing_tools"
        with pytest.raises(RunNotFound, match="There is no run 'run-none'"):
            await script.ask("run/step", runId="run-none")
        assert await script.ask("run/step", runId=run_id, revision=owed["revision"]) == owed


async def test_a_run_that_fails_says_so_at_every_step_after_it() -> None:
    async with house() as h:
        script = calls_of(h)
        run_id = await created(script, maxTurns=1)
        await script.ask("run/step", runId=run_id)
        owed = await script.ask("run/step", runId=run_id, modelResponse=says(makes("look_up")))
        failed = await script.ask("run/step", runId=run_id, toolResults=by_hand(*ids(owed["step"])))
        assert (failed["step"]["type"], failed["step"]["error"]["kind"]) == ("failed", "maxTurns")
        assert await script.ask("run/step", runId=run_id) == failed


@pytest.mark.parametrize(
    ("resolution", "kind"),
    [
        ({"action": "fail"}, "failed"),
        ({"action": "stop", "reason": "enough"}, "failed"),
        ({"action": "skip", "reason": "no such tool"}, "callTools"),
        ({"action": "repair", "toolName": "look_up"}, "callTools"),
    ],
    ids=["fail", "stop", "skip", "repair"],
)
async def test_a_call_of_no_tool_goes_on_as_it_is_resolved(resolution: dict[str, Any], kind: str) -> None:
    async with house() as h:
        script = calls_of(h)
        run_id = await created(script)
        await script.ask("run/step", runId=run_id)
        owed = await script.ask("run/step", runId=run_id, modelResponse=says(makes("fly"), makes("look_up")))
        assert owed["step"]["type"] == "needsResolution"
        assert (await script.ask("run/step", runId=run_id))["step"] == owed["step"]
        step = (await script.ask("run/step", runId=run_id, resolution=resolution))["step"]
        assert step["type"] == kind
        assert (await script.ask("run/get", runId=run_id))["step"] == step


async def test_a_call_that_was_dispatched_where_a_document_comes_from_is_failed_and_not_owed() -> None:
    async def for_ever(_args: dict[str, Any], _ctx: Any) -> Any:
        await asyncio.Event().wait()

    async with house([call("slow"), call("deploy")], tools=[ToldTool("slow", for_ever), gated()]) as h:
        await h.agent()
        run_id = (await h.start()).run_id
        await h.client.until("toolExecStart")
        await h.client.until("approvalRequested")
        script = calls_of(h)
        document = (await script.ask("run/export", runId=run_id))["run"]
        copy = (await script.ask("run/import", run=document))["runId"]
        owed = await script.ask("run/step", runId=copy)
        assert ids(owed["step"]) == ["msg-2-call-2"]
        model = (await script.ask("run/step", runId=copy, toolResults=by_hand("msg-2-call-2")))["step"]
        results = [*model["history"], model["prompt"]][-2:]
        assert "may have taken effect" in results[0]["content"][0]["text"]
        assert results[1]["content"][0]["text"] == "msg-2-call-2 by hand"


async def test_messages_of_a_document_that_share_an_id_are_all_kept() -> None:
    async with house() as h:
        script = calls_of(h)
        history = [
            {"role": "user", "content": "one", "messageId": "m"},
            {"role": "user", "content": "two", "messageId": "m"},
        ]
        run_id = await created(script, history=history)
        step = (await script.ask("run/step", runId=run_id))["step"]
        assert [message["content"][0]["text"] for message in step["history"]] == ["one", "two"]
        assert len({message["messageId"] for message in step["history"]}) == 2


async def test_runs_are_listed_page_by_page_and_an_unfinished_one_of_an_agent_is_not_deleted() -> None:
    async with house([call("deploy")], tools=[gated()]) as h:
        script = calls_of(h)
        alone = await created(script)
        active = await paused(h)
        first = await script.ask("run/list", limit=1)
        second = await script.ask("run/list", limit=1, cursor=first["nextCursor"])
        assert {first["runs"][0]["runId"], second["runs"][0]["runId"]} == {alone, active}
        assert "nextCursor" not in second
        assert [one["runId"] for one in (await script.ask("run/list", agentId="a"))["runs"]] == [active]
        with pytest.raises(AgentBusy, match="is unfinished and belongs to 'a'; stop or finish it first"):
            await script.ask("run/delete", runId=active)
        await h.decide((await h.approvals())[0]["approvalId"], "abort")
        assert (await h.resume()).reason == "stopped"
        said = await h.messages()
        await script.ask("run/delete", runId=active)
        await script.ask("run/delete", runId=alone)
        assert (await script.ask("run/list"))["runs"] == []
        assert await h.messages() == said, "the conversation is the agent's"


async def test_entries_of_a_script_are_kept_in_order_and_found_by_kind() -> None:
    async with house() as h:
        script = calls_of(h)
        run_id = await created(script)
        for number, kind in enumerate(("note", "mark", "note")):
            assert await script.ask("run/appendEntry", runId=run_id, kind=kind, value=number) == {"index": number}
        notes = (await script.ask("run/entries", runId=run_id, kind="note"))["entries"]
        assert [(one["value"], one["turn"]) for one in notes] == [(0, 0), (2, 0)]
        assert len((await script.ask("run/entries", runId=run_id))["entries"]) == 3
        with pytest.raises(RunNotFound):
            await script.ask("run/entries", runId="run-none")
