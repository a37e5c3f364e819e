"""Approval rules at work: patterns, what a lasting approval covers, taking it back, limits, and nobody there to ask."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from house import Client, House, ToldTool, call, house, killed_house

from sojourn.core.agent import AgentConfig, Caller, Limits
from sojourn.core.approvals import args_sha256
from sojourn.core.errors import AlreadyDecided, InvalidParams
from sojourn.store.records import CallRecord
from sojourn.tools.base import ToolContext

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string", "minLength": 1}, "background": {"type": "boolean"}},
    "required": ["command"],
    "additionalProperties": False,
}


def shell(**options: Any) -> ToldTool:
    return ToldTool("shell", lambda args, _ctx: f"ran {args['command']}", approval="ask", schema=SCHEMA, **options)


def sh(command: str) -> Any:
    return call("shell", command=command)


async def asked(h: House, count: int = 1) -> dict[str, Any]:
    """The newest open approval, once `count` were asked."""
    await h.client.until("approvalRequested", count=count)
    return (await h.approvals())[-1]


async def stop(h: House, running: asyncio.Task[Any]) -> None:
    await h.hub.stop(Caller(), "a")
    await running


@pytest.mark.parametrize(
    ("command", "asks", "runs"),
    [
        ("git status -s", False, True),
        ("git status; rm -rf x", True, False),
        ("git status $(rm x)", True, False),
        ("git push --force", False, False),
        ("ls && git push --force", False, False),
        ("make", True, False),
    ],
)
async def test_a_pattern_decides_by_what_the_call_is_about(command: str, asks: bool, runs: bool) -> None:
    tool = shell()
    async with house([sh(command)], "done", tools=[tool]) as h:
        await h.agent(approvals={"shell: git status*": "allow", "shell: git push*": "deny"})
        running = asyncio.create_task(h.prompt())
        if asks:
            await asked(h)
            await stop(h, running)
        else:
            assert (await running).output == "done"
        assert bool(tool.ran) is runs
        if not asks and not runs:
            result = h.model.requests[-1].messages[-1]
            assert "Denied by policy" in result.content[0].text  # type: ignore[union-attr]


async def test_a_lasting_approval_of_a_command_covers_that_command_only() -> None:
    tool = shell()
    replies = ([sh("make")], [sh("make")], [sh("make x")])
    async with house(*replies, tools=[tool]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        approval = await asked(h)
        assert approval["covers"] == "shell: make"
        answer = await h.decide(approval["approvalId"], scope="run", by="alice")
        assert answer["approval"]["decision"]["covers"] == "shell: make"
        second = await asked(h, count=2)
        assert second["args"] == {"command": "make x"}
        assert tool.ran == [{"command": "make"}, {"command": "make"}]
        assert await h.hub.approval_rules("a") == {
            "rules": [{"rule": "shell: make", "policy": "allow", "source": "run"}]
        }
        await stop(h, running)
        assert await h.hub.approval_rules("a") == {"rules": []}


async def test_a_pattern_widens_a_lasting_approval_and_must_fit_the_call_itself() -> None:
    tool = shell()
    replies = ([sh("git log -3")], [sh("git log -5")], "done", [sh("git log -7")], "done")
    async with house(*replies, tools=[tool]) as h:
        await h.agent(approvals={"shell: git push*": "deny"})
        running = asyncio.create_task(h.prompt())
        approval_id = (await asked(h))["approvalId"]
        for pattern, scope, decision in (
            ("git diff *", "agent", "approve"), ("git push*", "agent", "approve"), ("  ", "agent", "approve"),
            ("git *", "once", "approve"), ("git *", None, "approve"), ("git *", "agent", "deny"),
        ):  # fmt: skip
            with pytest.raises(InvalidParams) as caught:
                await h.decide(approval_id, decision, scope=scope, pattern=pattern)
            assert caught.value.data["field"] == "pattern"
        await h.decide(approval_id, scope="agent", pattern="git log *")
        assert (await running).output == "done"
        assert (await h.prompt()).output == "done"
        assert [ran["command"] for ran in tool.ran] == ["git log -3", "git log -5", "git log -7"]
        assert (await h.state())["config"]["approvals"]["shell: git log *"] == "allow"


async def test_a_lasting_approval_is_durable_listed_and_can_be_taken_back(tmp_path: Path) -> None:
    presets = {"careful": AgentConfig(approvals={"shell: rm *": "deny"}, tools=("shell",))}
    async with house([sh("make")], "done", tools=[shell()], path=tmp_path, presets=presets) as h:
        await h.agent(preset="careful")
        running = asyncio.create_task(h.prompt())
        await h.decide((await asked(h))["approvalId"], scope="agent")
        await running
    tool = shell()
    replies = ([sh("make")], "done", [sh("make")])
    async with house(*replies, tools=[tool], path=tmp_path, presets=presets) as h:
        await h.hub.attach(h.client, "a", after_seq=None, deltas=True)
        assert (await h.prompt()).output == "done"
        assert tool.ran == [{"command": "make"}]
        assert (await h.hub.approval_rules("a"))["rules"] == [
            {"rule": "shell: rm *", "policy": "deny", "source": "preset"},
            {"rule": "shell: make", "policy": "allow", "source": "agent"},
        ]
        with pytest.raises(InvalidParams, match="shell: make"):
            await h.hub.approval_revoke(Caller(), "a", "shell: rm *")
        assert await h.hub.approval_revoke(Caller(), "a", "shell: make") == {"rules": []}
        running = asyncio.create_task(h.prompt())
        await asked(h)
        await stop(h, running)


@pytest.mark.parametrize("scope", ["run", "agent"])
async def test_a_rule_that_was_taken_back_does_not_hold_for_the_rest_of_the_run(scope: str) -> None:
    gate, at_work = asyncio.Event(), asyncio.Event()

    async def work(args: dict[str, Any], _ctx: ToolContext) -> str:
        at_work.set()
        await gate.wait()
        return "ran"

    tool = ToldTool("shell", work, approval="ask", schema=SCHEMA)
    async with house([sh("make")], [sh("make")], tools=[tool]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        await h.decide((await asked(h))["approvalId"], scope=scope)
        await at_work.wait()
        await h.hub.approval_revoke(Caller(client_id="alice"), "a", "shell: make")
        gate.set()
        await asked(h, count=2)
        await stop(h, running)


async def test_a_lasting_approval_never_goes_over_a_rule_that_denies() -> None:
    tool = ToldTool("deploy", approval="ask", schema={"type": "object", "properties": {"to": {"type": "string"}}})
    replies = ([call("deploy", to="test")], [call("deploy", to="prod")], "done")
    async with house(*replies, tools=[tool]) as h:
        await h.agent(approvals={"deploy: to=prod": "deny"})
        running = asyncio.create_task(h.prompt())
        approval = await asked(h)
        assert approval["covers"] == "deploy"
        await h.decide(approval["approvalId"], scope="agent")
        assert (await running).output == "done"
        assert tool.ran == [{"to": "test"}]


async def test_an_edit_is_judged_bound_and_lasting_like_an_approval() -> None:
    tool = shell()
    async with house([sh("make")], [sh("make -n")], "done", tools=[tool]) as h:
        await h.agent(approvals={"shell: rm *": "deny"})
        running = asyncio.create_task(h.prompt())
        approval_id = (await asked(h))["approvalId"]
        for bad in ({"command": "rm -rf x"}, {"command": ""}, {"command": 5}, {}, {"command": "ls", "x": 1}):
            with pytest.raises(InvalidParams):
                await h.decide(approval_id, "edit", arguments=bad)
        edited = {"command": "make -n"}
        decision = (await h.decide(approval_id, "edit", arguments=edited, scope="run"))["approval"]["decision"]
        assert decision["argsSha256"] == args_sha256(edited)
        assert decision["covers"] == "shell: make -n"
        assert (await running).output == "done"
        assert tool.ran == [edited, edited]


@pytest.mark.parametrize("decision", ["approve", "edit"])
async def test_what_is_not_what_was_approved_does_not_run(decision: str) -> None:
    """Somebody changed the stored call between the decision and its start."""
    tool = shell()
    async with house([sh("make")], "I see", tools=[tool]) as h:
        await h.agent()
        running = asyncio.create_task(h.prompt())
        approval = await asked(h)
        wake, h.hub._control.wake = h.hub._control.wake, lambda _agent_id: None  # type: ignore[method-assign]
        more = {"arguments": {"command": "make -n"}} if decision == "edit" else {}
        await h.decide(approval["approvalId"], decision, **more)

        def tamper(ledger: Any) -> None:
            row = ledger.tx.get(CallRecord, "a", approval["callId"])
            row.args = orjson.dumps({"command": "rm -rf x"}).decode()
            ledger.tx.update(row, "args")

        await h.hub.rt.write("tamper", tamper)
        h.hub._control.wake = wake  # type: ignore[method-assign]
        wake("a")
        assert (await running).output == "I see"
        assert tool.ran == []
        result = h.model.requests[-1].messages[-1]
        assert "not those that were approved" in result.content[0].text  # type: ignore[union-attr]


async def test_the_time_limit_goes_on_while_the_daemon_is_away(tmp_path: Path) -> None:
    tool = shell()
    async with killed_house([sh("make")], path=tmp_path, tools=[tool]) as h:
        await h.agent(limits=Limits(approval_s=0.2))
        await h.start()
        expires = (await asked(h))["expiresAt"]
    async with house("too late then", path=tmp_path, tools=[tool]) as h:
        await h.hub.attach(h.client, "a", after_seq=0, deltas=True)
        await h.client.until("agentEnd")
        assert tool.ran == []
        resolved = next(e for e in h.client.events() if e["type"] == "approvalResolved")["approval"]
        assert (resolved["decision"]["decision"], resolved["decision"]["by"]) == ("expired", "limit")
        assert resolved["expiresAt"] == expires
        assert (await h.said())[-1] == ("assistant", "too late then")


async def test_a_decision_after_the_time_limit_is_too_late_even_when_the_clock_has_not_rung() -> None:
    tool = shell()
    async with house([sh("make")], "denied", tools=[tool]) as h:
        h.hub._questions._limit = lambda _approval_id, _expires_at: None  # type: ignore[method-assign]
        await h.agent(limits=Limits(approval_s=0.001))
        running = asyncio.create_task(h.prompt())
        approval = await asked(h)
        await asyncio.sleep(0.01)
        with pytest.raises(AlreadyDecided) as caught:
            await h.decide(approval["approvalId"])
        assert caught.value.data["by"] == "limit"
        assert (await running).output == "denied"
        assert tool.ran == []


@pytest.mark.parametrize(("unattended", "ends"), [("deny", "done"), ("pause", "paused")])
async def test_where_nobody_can_answer_the_config_says_what_happens(unattended: str, ends: str) -> None:
    tool = shell()
    async with house([sh("make")], "I see", tools=[tool]) as h:
        await h.agent(on_approval_unattended=unattended)
        outcome = await h.prompt()
        assert outcome.reason == ends
        assert tool.ran == []
        assert len(await h.approvals()) == (unattended == "pause")


async def test_where_somebody_can_answer_they_are_asked() -> None:
    tool = shell()
    async with house([sh("make")], "done", tools=[tool]) as h:
        await h.agent(on_approval_unattended="deny")
        eye = Client("eye", answers_approvals=True, answers={"approval/request": lambda _p: {"decision": "approve"}})
        await h.hub.attach(eye, "a", after_seq=None, deltas=True)
        assert (await h.prompt()).output == "done"
        assert tool.ran == [{"command": "make"}]


async def test_a_prompt_that_says_what_an_approval_does_goes_over_the_rule_for_nobody() -> None:
    async with house([sh("make")], "done", tools=[shell()]) as h:
        await h.agent(on_approval_unattended="deny")
        running = asyncio.create_task(h.prompt(on_approval="wait"))
        await asked(h)
        await stop(h, running)


async def test_a_client_may_answer_with_a_pattern() -> None:
    tool = shell()
    async with house([sh("ls a")], [sh("ls b")], "done", tools=[tool]) as h:
        answer = {"decision": "approve", "scope": "run", "pattern": "ls *"}
        h.client.answers_approvals, h.client.answers["approval/request"] = True, lambda _p: answer
        await h.agent()
        assert (await h.prompt()).output == "done"
        assert len(h.client.asked) == 1
        assert len(tool.ran) == 2
