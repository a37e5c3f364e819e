"""The `delegate` tool and the demo's tools, with a host that only remembers."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tool_fakes import FakeHost

from sojourn.core.agent import AgentConfig
from sojourn.core.errors import Aborted, AlreadyDecided
from sojourn.core.messages import ImagePart, text_of
from sojourn.tools.base import ChildReply, ToolOutput
from sojourn.tools.delegate import delegate
from sojourn.tools.demo import DemoTools

pytestmark = pytest.mark.anyio


async def run(one: Any, args: dict[str, Any], host: FakeHost | None = None, **more: Any) -> ToolOutput:
    async with asyncio.timeout(5):
        return await one.execute(args, (host or FakeHost()).context(one.info.spec.name, **more))


def demo(name: str, tools: DemoTools | None = None) -> Any:
    return next(one for one in (tools or DemoTools()).tools() if one.info.spec.name == name)


# delegate


def test_delegate_enters_the_same_child_again_after_a_restart_and_asks_nobody() -> None:
    assert (delegate.info.on_interrupt, delegate.info.approval) == ("rerun", "allow")


async def test_delegate_answers_what_the_child_answered() -> None:
    host = FakeHost()
    output = await run(delegate, {"task": "count"}, host, cwd="/w")
    assert (text_of(output.content), output.is_pending) == ("did: count", False)
    ((how, config, prompt),) = host.children
    assert (how, prompt) == ("run", "count")
    assert isinstance(config, AgentConfig)
    assert (config.cwd, config.preset) == ("/w", None)
    assert config.system_prompt


async def test_delegate_leaves_the_words_to_a_preset() -> None:
    host = FakeHost()
    await run(delegate, {"task": "count", "preset": "researcher"}, host)
    assert host.children == [("run", AgentConfig(preset="researcher"), "count")]


async def test_delegate_in_the_background_is_a_placeholder_that_names_the_child() -> None:
    host = FakeHost()
    output = await run(delegate, {"task": "count", "background": True}, host)
    assert output.is_pending
    assert "child-1" in text_of(output.content)
    assert [how for how, *_ in host.children] == ["start"]


async def test_delegate_keeps_an_image_and_says_so_when_there_are_no_words() -> None:
    host, image = FakeHost(), ImagePart(mime_type="image/png", data="aGk=")
    replies = [ChildReply("c", (image,), ""), ChildReply("c", (), "")]

    async def child(_: str) -> ChildReply:
        return replies.pop(0)

    host.child = child
    assert (await run(delegate, {"task": "draw"}, host)).content == (image,)
    assert text_of((await run(delegate, {"task": "draw"}, host)).content) == "(the agent answered without words)"


async def test_a_stopped_child_ends_the_call_as_aborted() -> None:
    async def stopped(_: str) -> ChildReply:
        raise Aborted

    with pytest.raises(Aborted):
        await run(delegate, {"task": "x"}, FakeHost(child=stopped))


async def test_a_delegation_without_a_task_starts_nobody() -> None:
    host = FakeHost()
    assert (await run(delegate, {"task": ""}, host)).is_error
    assert host.children == []


# the demo's tools


async def test_a_build_is_pending_until_somebody_resolves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOJOURN_DEMO_SECONDS", raising=False)
    tools, host = DemoTools(), FakeHost()
    first, second = [await run(demo("demo_build", tools), args, host) for args in ({}, {"target": "docs"})]
    assert first.is_pending
    assert text_of(first.content) == "Started build job 1 of everything. Its result will follow."
    assert text_of(second.content) == "Started build job 2 of docs. Its result will follow."
    await tools.aclose()
    assert host.inbox.items == []


@pytest.mark.parametrize(("argument", "variable"), [({"seconds": 0}, None), ({}, "0"), ({"seconds": 0}, "86400")])
async def test_a_build_that_takes_seconds_reports_through_the_inbox(
    argument: dict[str, Any], variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOJOURN_DEMO_SECONDS", raising=False)
    if variable is not None:
        monkeypatch.setenv("SOJOURN_DEMO_SECONDS", variable)
    tools, host = DemoTools(), FakeHost()
    await run(demo("demo_build", tools), {"target": "docs", **argument}, host)
    async with asyncio.timeout(5):
        while not host.inbox.items:
            await asyncio.sleep(0)
    assert host.inbox.items == [("resolve", "msg-2-call-1", "The build of docs succeeded.")]


async def test_builds_under_way_end_with_their_table() -> None:
    before = asyncio.all_tasks()
    tools, host = DemoTools(), FakeHost()
    await run(demo("demo_build", tools), {"seconds": 3600}, host)
    assert asyncio.all_tasks() != before
    async with asyncio.timeout(5):
        await tools.aclose()
    assert asyncio.all_tasks() == before
    assert host.inbox.items == []


async def test_a_build_whose_call_was_resolved_by_somebody_else_ends_quietly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    tools, host = DemoTools(), FakeHost()
    host.inbox.refuse = AlreadyDecided("Somebody was first.")
    await run(demo("demo_build", tools), {"seconds": 0}, host)
    async with asyncio.timeout(5):
        while "was dropped" not in caplog.text:
            await asyncio.sleep(0)


async def test_a_deployment_leaves_one_line_in_the_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = tmp_path / "world"
    monkeypatch.setenv("SOJOURN_DEMO_WORLD", str(world))
    assert demo("demo_deploy").info.approval == "ask"
    for call_id in ("c1", "c2"):
        output = await run(demo("demo_deploy"), {"target": "prod\n"}, call_id=call_id)
        assert text_of(output.content) == "Deployed prod\n."
    lines = [json.loads(line) for line in world.read_text().splitlines()]
    assert lines == [{"agentId": "agent-1", "callId": c, "target": "prod\n"} for c in ("c1", "c2")]


async def test_a_deployment_without_a_world_only_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOJOURN_DEMO_WORLD", raising=False)
    assert text_of((await run(demo("demo_deploy"), {"target": "x"})).content) == "Deployed x."


async def test_the_time_is_the_time() -> None:
    said = datetime.fromisoformat(text_of((await run(demo("demo_time"), {})).content))
    assert abs(datetime.now(UTC) - said) < timedelta(seconds=5)


async def test_a_sleep_reports_ends_and_can_be_stopped() -> None:
    host = FakeHost()
    assert text_of((await run(demo("demo_sleep"), {"seconds": 0}, host)).content) == "Slept for 0 s."
    assert host.progress == [("Sleeping for 0 s.", 0.0)]
    assert (await run(demo("demo_sleep"), {"seconds": -1})).is_error
    call = asyncio.create_task(demo("demo_sleep").execute({"seconds": 3600}, host.context("demo_sleep")))
    async with asyncio.timeout(5):
        while len(host.progress) < 2:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_failing_fails_and_an_echo_echoes() -> None:
    with pytest.raises(RuntimeError, match="The tool failed: as planned"):
        await run(demo("demo_fail"), {"reason": "as planned"})
    assert text_of((await run(demo("demo_echo"), {"text": "hö"})).content) == "hö"
