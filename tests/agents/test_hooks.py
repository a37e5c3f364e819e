"""Hooks: what they see and change around model calls and tools, what their faults do; none harms the daemon."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from house import House, ToldTool, call, house, killed_house, pending_tool

from sojourn.core.agent import AgentConfig, Caller, RunOutcome
from sojourn.core.approvals import args_sha256
from sojourn.core.messages import TextPart
from sojourn.tools.base import ToolContext, ToolOutput
from sojourn.tools.hooks import (
    STUCK,
    Answer,
    Change,
    Hook,
    HookContext,
    InvalidToolCallAction,
    Replace,
    Request,
    Stop,
    ToolCall,
    Veto,
)

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}


def hook(name: str = "h", *, on_fault: str = "closed", **functions: Any) -> Hook:
    return Hook(name, SimpleNamespace(on_fault=on_fault, **functions))


def deploy(**options: Any) -> ToldTool:
    return ToldTool("deploy", lambda args, _ctx: f"deployed {args.get('to')}", schema=SCHEMA, **options)


async def results(h: House) -> list[tuple[str, bool]]:
    return [(m["content"][0]["text"], m["isError"]) for m in await h.messages() if m["role"] == "toolResult"]


def warnings(h: House) -> list[dict[str, Any]]:
    return [e for e in h.client.events() if e["type"] == "warning"]


# -- before a model call


async def test_a_hook_may_change_what_is_sent_and_nothing_of_it_is_kept() -> None:
    seen: list[Request] = []

    def before_model(_ctx: HookContext, request: Request) -> Change:
        seen.append(request)
        return Change(system="Be brief.", sampling={"temperature": 0}, tools=["deploy"], note="It is Friday.")

    tools = [deploy(), ToldTool("other")]
    async with house([call("other")], "done", tools=tools, hooks=[hook(before_model=before_model)]) as h:
        await h.agent(system_prompt="Be kind.", sampling={"top_p": 1}, max_turns=4)
        assert (await h.prompt("hello")).output == "done"
        sent = h.model.requests[0]
        assert (sent.system, [tool.name for tool in sent.tools]) == ("Be brief.", ["deploy"])
        assert sent.sampling == {"top_p": 1, "temperature": 0}
        assert [m.content[0].text for m in sent.messages] == ["hello", "It is Friday."]  # type: ignore[union-attr]
        assert (seen[0].system, seen[0].tools, seen[0].turn) == ("Be kind.", ("deploy", "other"), 1)
        ((told, _),) = await results(h)
        assert "'other'" in told, "a tool that was not offered cannot be called"
        assert tools[1].ran == []
        assert "It is Friday." not in str(await h.messages())


async def test_a_hook_may_stop_the_run_before_the_model_is_asked() -> None:
    async with house("never", hooks=[hook(before_model=lambda _c, _r: Stop("the budget is spent"))]) as h:
        await h.agent()
        outcome = await h.prompt()
        assert outcome.reason == "failed"
        assert outcome.error is not None
        assert outcome.error.kind == "cancelled"
        assert "the budget is spent" in outcome.error.message
        assert h.model.requests == []
        h.hub.rt.hooks.before_model = ()
        assert (await h.prompt("again")).reason == "done"


async def test_hooks_are_asked_in_their_order_and_each_sees_what_the_one_before_made() -> None:
    first = hook("a", before_model=lambda _c, r: Change(system=f"{r.system} one"))
    second = hook("b", before_model=lambda _c, r: Change(system=f"{r.system} two"))
    async with house("done", hooks=[first, second]) as h:
        await h.agent(system_prompt="zero")
        await h.prompt()
        assert h.model.requests[0].system == "zero one two"


# -- invalid calls


@pytest.mark.parametrize(
    ("action", "reason", "runs", "says"),
    [
        (InvalidToolCallAction.repair("deploy"), "done", [{"to": "x"}], "deployed x"),
        (InvalidToolCallAction.skip("not today"), "done", [], "not today"),
        (InvalidToolCallAction.retry("use deploy"), "done", [], "use deploy"),
        (InvalidToolCallAction.fail(), "failed", [], None),
        (InvalidToolCallAction.stop("enough"), "failed", [], None),
        (InvalidToolCallAction.repair("nobody"), "failed", [], None),
        (None, "done", [], "Tools you can call"),
    ],
)
async def test_a_hook_decides_about_a_call_that_the_model_cannot_make(
    action: Any, reason: str, runs: list[Any], says: str | None
) -> None:
    asked: list[Any] = []

    async def on_invalid_call(_ctx: HookContext, context: Any) -> Any:
        asked.append((context.tool_name, context.reason, tuple(context.available_tools)))
        return action

    tool = deploy()
    replies = ([call("deplyo", to="x")], "done")
    async with house(*replies, tools=[tool], hooks=[hook(on_invalid_call=on_invalid_call)]) as h:
        await h.agent()
        outcome = await h.prompt()
        assert (outcome.reason, tool.ran) == (reason, runs)
        assert asked == [("deplyo", "unknown_tool", ("deploy",))]
        if says is not None:
            assert says in (await results(h))[0][0]
        if reason == "failed":
            assert (await h.prompt("again")).output == "done", "the conversation goes on"


async def test_every_invalid_call_of_a_turn_is_asked_about() -> None:
    asked: list[str] = []

    def on_invalid_call(_ctx: HookContext, context: Any) -> Any:
        asked.append(context.tool_name)
        return InvalidToolCallAction.repair("deploy")

    tool = deploy()
    calls = [call("one", to="1"), call("deploy", to="2"), call("three", to="3")]
    async with house(calls, "done", tools=[tool], hooks=[hook(on_invalid_call=on_invalid_call)]) as h:
        await h.agent()
        assert (await h.prompt()).output == "done"
        assert asked == ["one", "three"]
        assert [args["to"] for args in tool.ran] == ["1", "2", "3"]


# -- before a tool


async def test_a_veto_has_words_that_the_model_reads_and_asks_nobody() -> None:
    tool = deploy(approval="ask")
    veto = hook("guard", before_tool=lambda _c, c: Veto("never on a Friday") if c.arguments["to"] == "prod" else None)
    async with house([call("deploy", to="prod")], "understood", tools=[tool], hooks=[veto]) as h:
        await h.agent()
        outcome = await h.prompt()
        assert outcome.output == "understood"
        assert await results(h) == [("Not executed: never on a Friday", True)]
        assert tool.ran == []
        assert not {"toolExecStart", "approvalRequested"} & set(h.client.types())
        (entry,) = (await h.hub.run_entries(outcome.run_id, "hook"))["entries"]
        assert entry["value"]["hook"] == "guard"
        assert entry["value"]["action"] == "veto"
        assert entry["value"]["words"] == "never on a Friday"


async def test_what_a_hook_makes_of_the_arguments_is_what_is_judged_shown_bound_and_run() -> None:
    tool = deploy(approval="ask")
    replace = hook(before_tool=lambda _c, c: Replace({"to": c.arguments["to"] + "-eu"}))
    replies = ([call("deploy", to="prod")], [call("deploy", to="test")], "done")
    async with house(*replies, tools=[tool], hooks=[replace]) as h:
        await h.agent(approvals={"deploy: to=test-eu": "deny"})
        running = asyncio.create_task(h.prompt())
        await h.client.until("approvalRequested")
        (approval,) = await h.approvals()
        assert approval["args"] == {"to": "prod-eu"}
        assert approval["argsSha256"] == args_sha256({"to": "prod-eu"})
        await h.decide(approval["approvalId"])
        assert (await running).output == "done"
        assert tool.ran == [{"to": "prod-eu"}]
        start = next(e for e in h.client.events() if e["type"] == "toolExecStart")
        assert start["args"] == {"to": "prod-eu"}
        assert "Denied by policy" in (await results(h))[1][0]


async def test_a_hook_may_answer_instead_of_the_tool() -> None:
    tool = deploy()
    answer = hook(before_tool=lambda _c, _t: Answer((TextPart(text="from the cache"),)))
    async with house([call("deploy", to="x")], "done", tools=[tool], hooks=[answer]) as h:
        await h.agent()
        await h.prompt()
        assert await results(h) == [("from the cache", False)]
        assert tool.ran == []


async def test_a_hook_may_stop_the_run_at_a_call() -> None:
    tool = deploy()
    stop = hook(before_tool=lambda _c, t: Stop("that is enough") if t.arguments["to"] == "2" else None)
    calls = [call("deploy", to="1"), call("deploy", to="2"), call("deploy", to="3")]
    async with house(calls, "next", tools=[tool], hooks=[stop]) as h:
        await h.agent()
        assert (await h.prompt()).reason == "stopped"
        assert tool.ran == []
        assert len(await results(h)) == 3
        assert "that is enough" in warnings(h)[0]["message"]
        assert (await h.prompt("go on")).output == "next"


async def test_a_run_is_stopped_while_a_hook_thinks() -> None:
    thinking, ended = asyncio.Event(), asyncio.Event()

    async def think(*_: Any) -> None:
        thinking.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    for point in ("before_model", "before_tool", "after_tool"):
        thinking.clear()
        ended.clear()
        tool = deploy()
        async with house([call("deploy", to="x")], "next", tools=[tool], hooks=[hook(**{point: think})]) as h:
            await h.agent()
            running = asyncio.create_task(h.prompt())
            async with asyncio.timeout(2):
                await thinking.wait()
                await h.hub.stop(Caller(), "a")
                assert (await running).reason == "stopped"
                await ended.wait()
            types = h.client.types()
            assert types.count("agentStart") == types.count("agentEnd") == 1
            h.hub.rt.hooks.before_model = h.hub.rt.hooks.before_tool = h.hub.rt.hooks.after_tool = ()
            h.model.replies = ["next"]
            assert (await h.prompt("again")).output == "next"


async def test_a_call_that_a_crash_kept_from_its_hooks_meets_them_when_the_run_goes_on(tmp_path: Path) -> None:
    thinking = asyncio.Event()

    async def think(*_: Any) -> None:
        thinking.set()
        await asyncio.Event().wait()

    chain = {"hooks": [hook(before_tool=think)]}
    async with killed_house([call("deploy", to="x")], path=tmp_path, tools=[deploy()], **chain) as h:
        await h.agent()
        await h.start()
        async with asyncio.timeout(5):
            await thinking.wait()
    tool = deploy()
    veto = hook(before_tool=lambda _c, _t: Veto("not now"))
    async with house("I see", path=tmp_path, tools=[tool], hooks=[veto]) as h:
        assert (await h.state())["state"] == "interrupted"
        assert (await h.resume()).output == "I see"
        assert tool.ran == []
        assert await results(h) == [("Not executed: not now", True)]


# -- after a tool


async def test_a_hook_may_change_a_result_before_anybody_sees_it() -> None:
    redact = hook(after_tool=lambda _c, _t, output: output.content[0].text.replace("prod", "***"))
    async with house([call("deploy", to="prod")], "done", tools=[deploy()], hooks=[redact]) as h:
        await h.agent()
        await h.prompt()
        assert await results(h) == [("deployed ***", False)]
        end = next(e for e in h.client.events() if e["type"] == "toolExecEnd")
        assert end["result"]["content"] == [{"type": "text", "text": "deployed ***"}]


async def test_a_failed_tool_has_a_result_that_hooks_see_and_a_placeholder_stays_one() -> None:
    seen: list[tuple[bool, bool]] = []

    async def after_tool(_ctx: HookContext, _call: ToolCall, output: ToolOutput) -> ToolOutput:
        seen.append((output.is_error, output.is_pending))
        return ToolOutput.of("seen")

    def fail(*_: Any) -> str:
        raise RuntimeError("broken")

    tools = [ToldTool("bad", fail), pending_tool()]
    async with house([call("bad"), call("build")], "done", tools=tools, hooks=[hook(after_tool=after_tool)]) as h:
        await h.agent()
        await h.prompt()
        assert sorted(seen) == [(False, True), (True, False)]
        assert await results(h) == [("seen", False), ("seen", False)]
        assert [c["toolName"] for c in await h.pending()] == ["build"]


# -- at the end


async def test_hooks_hear_what_a_run_came_to_and_may_note_it() -> None:
    ended = asyncio.Event()
    outcomes: list[RunOutcome] = []

    async def on_run_end(ctx: HookContext, outcome: RunOutcome) -> None:
        outcomes.append(outcome)
        ctx.append_entry("audit", {"reason": outcome.reason, "seen": len(ctx.entries())})
        ended.set()

    tools = [deploy(approval="ask")]
    async with house([call("deploy", to="x")], "done", tools=tools, hooks=[hook(on_run_end=on_run_end)]) as h:
        await h.agent(on_approval="pause")
        paused = await h.prompt()
        assert outcomes == [], "a pause is no end"
        await h.decide(paused.approvals[0].approval_id)
        await h.resume()
        async with asyncio.timeout(5):
            await ended.wait()
            while not (kept := (await h.hub.run_entries(paused.run_id, "audit"))["entries"]):
                await asyncio.sleep(0)
        assert [(o.run_id, o.reason, o.output) for o in outcomes] == [(paused.run_id, "done", "done")]
        assert kept[0]["value"] == {"reason": "done", "seen": 1}


# -- what hooks note


async def test_a_hook_of_a_resumed_run_sees_what_was_noted_before_the_pause(tmp_path: Path) -> None:
    """R-DR-32."""

    def before_tool(ctx: HookContext, call: ToolCall) -> None:
        ctx.append_entry("ticket", {"id": "T-1", "for": call.arguments["to"]})
        assert ctx.last_entry("ticket").value["id"] == "T-1"  # type: ignore[union-attr,index,call-overload]

    tools = [deploy(approval="ask")]
    replies = ([call("deploy", to="x")],)
    async with killed_house(*replies, path=tmp_path, tools=tools, hooks=[hook(before_tool=before_tool)]) as h:
        await h.agent()
        await h.start()
        await h.client.until("approvalRequested")
    seen: list[Any] = []

    async def after_tool(ctx: HookContext, _call: ToolCall, _output: ToolOutput) -> None:
        seen.extend((e.kind, e.turn) for e in ctx.entries())
        seen.append(ctx.last_entry("ticket").value)  # type: ignore[union-attr]
        seen.append(ctx.last_entry("nothing"))

    async with house("done", path=tmp_path, tools=tools, hooks=[hook(after_tool=after_tool)]) as h:
        await h.hub.attach(h.client, "a", after_seq=None, deltas=True)
        await h.decide((await h.approvals())[0]["approvalId"], by="morning")
        await h.client.until("agentEnd")
        assert seen == [("ticket", 1), ("approval", 1), {"id": "T-1", "for": "x"}, None]
        assert "T-1" not in str(h.model.requests)


async def test_entries_of_parallel_calls_are_all_kept_once() -> None:
    counts: list[int] = []

    async def after_tool(ctx: HookContext, call: ToolCall, _output: ToolOutput) -> None:
        counts.append(len(ctx.entries("n")))
        await asyncio.sleep(0)
        ctx.append_entry("n", call.call_id)

    tools = [ToldTool("quick")]
    calls = [call("quick") for _ in range(12)]
    async with house(calls, calls, "done", tools=tools, hooks=[hook(after_tool=after_tool)]) as h:
        await h.agent()
        outcome = await h.prompt()
        kept = [e["value"] for e in (await h.hub.run_entries(outcome.run_id, "n"))["entries"]]
        assert len(kept) == len(set(kept)) == 24
        assert max(counts) < 24


@pytest.mark.parametrize("value", [object(), {1, object()}, b"\xff", lambda: 1])
async def test_an_entry_that_is_not_json_is_the_hooks_fault(value: Any) -> None:
    noting = hook(on_fault="open", before_tool=lambda c, _t: c.append_entry("x", value))
    async with house([call("deploy", to="x")], "done", tools=[deploy()], hooks=[noting]) as h:
        await h.agent()
        assert (await h.prompt()).output == "done"
        assert "is not JSON" in warnings(h)[0]["message"]


# -- faults


async def hang(*_: Any) -> None:
    while True:  # swallows being cancelled, too
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if STOP_HANGING.is_set():
                raise


STOP_HANGING = threading.Event()


def raise_it(*_: Any) -> None:
    raise ValueError("boom")


async def exit_it(*_: Any) -> None:
    raise SystemExit(3)


async def cancel_itself(*_: Any) -> None:
    raise asyncio.CancelledError


BROKEN = SimpleNamespace()
FAULTS: list[tuple[Callable[..., Any], str]] = [
    (raise_it, "ValueError: boom"),
    (exit_it, "SystemExit"),
    (lambda *_: exec("raise SystemExit(1)"), "SystemExit"),
    (cancel_itself, "cancelled itself"),
    (hang, "took longer than hookWaitS = 0.05 s"),
    (lambda *_: threading.Event().wait(2), "took longer than hookWaitS"),
    (lambda *_: "yes" if False else 5, "answered int"),
    (lambda *_: BROKEN, "answered SimpleNamespace"),
    (lambda: None, "TypeError"),
]


@pytest.mark.parametrize("point", ["before_model", "before_tool", "after_tool"])
@pytest.mark.parametrize("on_fault", ["closed", "open"])
async def test_a_fault_closes_what_the_hook_guards_unless_it_says_open(point: str, on_fault: str) -> None:
    STOP_HANGING.clear()
    for fault, words in FAULTS:
        tool = deploy()
        guard = hook("guard", on_fault=on_fault, **{point: fault})
        async with house([call("deploy", to="x")], "done", tools=[tool], hooks=[guard], hook_wait_s=0.05) as h:
            await h.agent(max_turns=4)
            outcome = await h.prompt()
            (told, *_) = warnings(h)
            assert (told["code"], told["data"]) == ("hookFailed", {"hook": "guard", "point": point})
            assert words in told["message"]
            if on_fault == "open":
                assert (outcome.output, tool.ran) == ("done", [{"to": "x"}])
                assert await results(h) == [("deployed x", False)]
            elif point == "before_model":
                assert (outcome.reason, h.model.requests) == ("failed", [])
                assert "'guard'" in outcome.error.message  # type: ignore[union-attr]
            else:
                ((text, is_error),) = await results(h)
                assert outcome.output == "done"
                assert is_error
                assert "'guard'" in text
                assert "deployed" not in text
                assert tool.ran == ([] if point == "before_tool" else [{"to": "x"}])
            STOP_HANGING.set()


@pytest.mark.parametrize(
    ("point", "answer", "words"),
    [
        ("before_model", Change(tools=["nobody"]), "not there"),
        ("before_model", Change(tools="deploy"), "tools = 'deploy'"),
        ("before_model", Change(system=5), "system = 5"),  # type: ignore[arg-type]
        ("before_model", Change(sampling=[1]), "sampling = [1]"),  # type: ignore[arg-type]
        ("before_tool", Replace({"to": 5}), "do not fit the schema of 'deploy'"),
        ("before_tool", Replace({"to": object()}), "not JSON"),
        ("before_tool", Replace([1]), "arguments = [1]"),  # type: ignore[arg-type]
        ("before_tool", Veto(5), "words = 5"),  # type: ignore[arg-type]
        ("before_tool", Stop(None), "reason = None"),  # type: ignore[arg-type]
        ("before_tool", Answer([5]), "neither text nor parts"),  # type: ignore[arg-type]
        ("before_tool", Answer(5), "cannot be read"),  # type: ignore[arg-type]
        ("before_tool", Change(), "answered Change"),
        ("after_tool", ToolOutput(content=("x",)), "neither text nor parts"),  # type: ignore[arg-type]
        ("after_tool", Veto("x"), "answered Veto"),
    ],
)
@pytest.mark.parametrize("on_fault", ["closed", "open"])
async def test_an_answer_that_is_none_is_a_fault(point: str, answer: Any, words: str, on_fault: str) -> None:
    tool = deploy()
    odd = hook("odd", on_fault=on_fault, **{point: lambda *_: answer})
    async with house([call("deploy", to="x")], "done", tools=[tool], hooks=[odd]) as h:
        await h.agent(max_turns=4)
        outcome = await h.prompt()
        assert words in warnings(h)[0]["message"]
        if on_fault == "open":
            assert (outcome.output, tool.ran) == ("done", [{"to": "x"}])
        else:
            assert outcome.reason == ("failed" if point == "before_model" else "done")
            assert tool.ran == ([{"to": "x"}] if point == "after_tool" else [])


@pytest.mark.parametrize("point", ["on_invalid_call", "on_run_end"])
async def test_where_nothing_is_guarded_a_fault_is_only_told(point: str, caplog: pytest.LogCaptureFixture) -> None:
    async with house([call("nobody")], "done", tools=[deploy()], hooks=[hook("odd", **{point: raise_it})]) as h:
        await h.agent()
        assert (await h.prompt()).output == "done"
        async with asyncio.timeout(5):
            while "boom" not in caplog.text:
                await asyncio.sleep(0)
        assert h.client.types()[-1] == "agentEnd", "nothing of a run follows its end"


async def test_a_sync_hook_that_hangs_is_not_called_for_ever() -> None:
    gate = threading.Event()
    ran: list[int] = []

    def wait(*_: Any) -> None:
        ran.append(1)
        gate.wait(10)

    slow = hook("slow", before_tool=wait)
    try:
        for _ in range(STUCK):
            with pytest.raises(Exception, match="took longer"):
                await slow.call("before_tool", within_s=0.001)
        with pytest.raises(Exception, match="hang still"):
            await slow.call("before_tool", within_s=0.001)
        assert len(ran) == STUCK
    finally:
        gate.set()
    async with asyncio.timeout(5):
        while slow._stuck:
            await asyncio.sleep(0)
    assert await slow.call("before_tool", within_s=5) is None


async def test_a_sync_hook_holds_nobody_up() -> None:
    gate = threading.Event()
    slow = hook(before_model=lambda _c, r: gate.wait(10) and None if r.system == "slow" else None)
    async with house(hooks=[slow]) as h:
        await h.agent("a", system_prompt="slow")
        await h.agent("b", attach=False)
        running = asyncio.create_task(h.prompt(agent_id="a"))
        try:
            assert (await h.prompt(agent_id="b")).reason == "done"
            assert not running.done()
        finally:
            gate.set()
        assert (await running).reason == "done"


async def test_children_have_hooks_as_well() -> None:
    seen: list[str] = []

    async def run(_args: Any, ctx: ToolContext) -> str:
        return (await ctx.run_child(AgentConfig(system_prompt="child"), "look")).text

    watch = hook(before_model=lambda _c, r: seen.append(r.system))
    async with house([call("helper")], "found", "done", tools=[ToldTool("helper", run)], hooks=[watch]) as h:
        await h.agent(system_prompt="parent")
        await h.prompt()
        assert seen == ["parent", "child", "parent"]


async def test_an_approval_shows_the_preview_of_what_a_hook_made_of_the_call(tmp_path: Path) -> None:
    from sojourn.tools.table import Toolbox

    (tmp_path / "b.txt").write_text("one\n")
    write = next(tool for tool in Toolbox.standard() if tool.info.spec.name == "write")
    other = hook(before_tool=lambda _c, c: Replace({**c.arguments, "path": "b.txt"}))
    async with house([call("write", path="a.txt", content="two\n")], "done", extra_tools=[write], hooks=[other]) as h:
        await h.agent(cwd=str(tmp_path))
        running = asyncio.create_task(h.prompt())
        await h.client.until("approvalRequested")
        (approval,) = await h.approvals()
        assert "b.txt" in str(approval["preview"])
        assert "-one" in str(approval["preview"])
        await h.decide(approval["approvalId"])
        await running
        assert (tmp_path / "b.txt").read_text() == "two\n"
        assert not (tmp_path / "a.txt").exists()
