"""The points at which the crash harness has a daemon kill itself, and what else only it uses."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from house import ToldTool, call, house
from method_calls import calls_of

from sojourn.agents import _faults
from sojourn.agents.runtime import KnownAgents
from sojourn.core.agent import AgentConfig
from sojourn.store.records import AgentRecord
from sojourn.tools.base import ToolContext


def test_a_daemon_is_killed_at_the_point_and_the_time_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(_faults.os, "kill", lambda pid, number: killed.append((pid, number)))
    point, left = _faults._parse("after:dispatch:3")
    monkeypatch.setattr(_faults, "_POINT", point)
    monkeypatch.setattr(_faults, "_left", left)
    for _ in range(2):
        _faults.strike("after:dispatch")
        _faults.strike("before:dispatch")
    assert killed == []
    _faults.strike("after:dispatch")
    assert killed == [(os.getpid(), signal.SIGKILL)]
    assert _faults._parse("before:end") == ("before:end", 1)
    assert _faults._parse("") == ("", 1)


def test_of_the_agents_that_changed_the_last_are_known() -> None:
    known = KnownAgents(keep=2)
    rows = [AgentRecord(agent_id=name, conversation=name, created_at="t", updated_at="t", activity=1) for name in "abc"]
    for row in rows:
        known.learn(row)
    assert [known.get(name) is not None for name in "abc"] == [False, True, True]
    known.learn(rows[1])
    known.learn(rows[0])
    assert [known.get(name) is not None for name in "abc"] == [True, True, False]
    rows[0].deleted = True
    known.learn(rows[0])
    assert known.get("a") is None


@pytest.mark.anyio
async def test_a_child_that_is_deleted_leaves_a_mark_while_its_parents_events_refer_to_it() -> None:
    async def helper(_args: dict[str, Any], ctx: ToolContext) -> str:
        return (await ctx.run_child(AgentConfig(), "look")).text

    async with house([call("helper")], "seen", "done", tools=[ToldTool("helper", helper)]) as h:
        await h.agent()
        await h.prompt()
        script = calls_of(h)
        (child,) = (await script.ask("agent/list", parentAgentId="a"))["agents"]
        events = await h.stored_events()
        await script.ask("agent/delete", agentId=child["agentId"])
        assert (await script.ask("agent/list", parentAgentId="a"))["agents"] == []
        assert await h.stored_events() == events
        await script.ask("agent/delete", agentId="a")
        assert (await script.ask("agent/list"))["agents"] == []
