"""Summing up: a conversation that fills the model's window goes on, whatever stands in it, and nothing is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from house import House, ToldTool, call, house, pending_tool
from strict_checkers import check_anthropic, check_openai_chat, check_openai_responses

from sojourn.agents.compaction import INSTRUCTIONS, make_plan
from sojourn.agents.runtime import HubLimits, weigh
from sojourn.core.agent import AgentConfig, Caller, Limits
from sojourn.core.errors import AgentBusy, ModelError
from sojourn.core.history import ANTHROPIC, OPENAI_CHAT, OPENAI_RESPONSES, project, since_summary
from sojourn.core.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SummaryMessage,
    TextPart,
    ToolCallPart,
    Usage,
    parts,
    user,
)
from sojourn.models.base import ModelAnswer, ModelRequest
from sojourn.models.prices import Price

pytestmark = pytest.mark.anyio

WINDOW = 1_000
NOTES = "Notes: the user likes tea."


class Brain:
    """Replies for a model with a small window that says so: it sums up when asked to, else it says what it is told."""

    def __init__(self, *replies: Any, notes: str = NOTES, window: int = WINDOW) -> None:
        self.replies = list(replies)
        self.notes, self.window = notes, window
        self.summaries: list[ModelRequest] = []
        self.turns: list[ModelRequest] = []

    def __call__(self, request: ModelRequest) -> Any:
        assert self.size(request) <= self.window, "a request is longer than the model's window"
        if request.system == INSTRUCTIONS:
            self.summaries.append(request)
            return said(self.notes)
        self.turns.append(request)
        reply = self.replies.pop(0) if self.replies else said(f"answer {len(self.turns)}")
        return reply if not isinstance(reply, Sequence) else said(reply)

    @staticmethod
    def size(request: ModelRequest) -> int:
        """What the provider counts: all text of the request that really goes out."""
        wire = project(request.messages, OPENAI_CHAT, system=request.system).messages
        return (
            sum(len(str(message.get("content") or "")) + len(str(message.get("tool_calls", ""))) for message in wire)
            // 4
        )


async def said(reply: Any) -> AsyncIterator[Any]:
    content = parts(reply) if isinstance(reply, str) else tuple(reply)
    calls = any(isinstance(part, ToolCallPart) for part in content)
    yield ModelAnswer(
        content, "toolCalls" if calls else "stop", Usage(input_tokens=10, output_tokens=5), model="said-1"
    )


@asynccontextmanager
async def small_house(
    brain: Callable[..., Any], *, window: int | None = WINDOW, **options: Any
) -> AsyncIterator[House]:
    async with house(*[brain] * 500, **options) as h:
        h.model.spec = replace(h.model.spec, context_window=window, price=Price(input=1_000_000, output=2_000_000))
        yield h


def words(count: int, word: str = "word") -> str:
    return " ".join(f"{word}{n}" for n in range(count))


async def test_a_conversation_far_over_the_window_goes_on() -> None:
    brain = Brain()
    async with small_house(brain) as h:
        await h.agent(max_turns=5)
        for n in range(40):
            outcome = await h.prompt(f"prompt {n}: {words(60)}")
            assert outcome.reason == "done"
        messages = await h.messages()
        roles = [m["role"] for m in messages]
        assert roles.count("user") == 40
        assert roles.count("assistant") == 40
        assert roles.count("summary") >= 3
        for checker, dialect in ((check_openai_chat, OPENAI_CHAT), (check_openai_responses, OPENAI_RESPONSES)):
            for request in brain.turns:
                checker(project(request.messages, dialect).messages)
        for request in brain.turns:
            check_anthropic(project(request.messages, ANTHROPIC).messages)


async def test_the_newest_rounds_stay_as_they_are_and_the_rest_is_summed_up() -> None:
    brain = Brain()
    async with small_house(brain) as h:
        await h.agent()
        for n in range(4):
            await h.prompt(f"prompt {n}: {words(110)}")
        assert len(brain.summaries) == 2  # in two pieces
        seen = since_summary(brain.turns[-1].messages)
        assert seen[0].role == "summary"
        assert NOTES in seen[0].content[0].text
        assert [m.role for m in seen[1:]] in (["user"], ["user", "assistant", "user"])
        assert "prompt 3" in seen[-1].content[0].text
        covered = "".join(request.messages[0].content[0].text for request in brain.summaries)
        assert "prompt 0" in covered
        assert "prompt 3" not in covered


async def test_it_is_told_in_events_and_counted() -> None:
    async with small_house(Brain()) as h:
        await h.agent()
        outcomes = [await h.prompt(f"prompt {n}: {words(110)}") for n in range(4)]
        events = h.client.events()
        start = next(n for n, e in enumerate(events) if e == {**e, "type": "messageStart", "role": "summary"})
        assert [e["type"] for e in events[start : start + 6]] == [
            "messageStart",
            "generationStats",
            "generationStats",
            "messageEnd",
            "warning",
            "turnStart",
        ]
        end, warning = events[start + 3]["message"], events[start + 4]
        assert end["messageId"] == events[start]["messageId"] == warning["data"]["messageId"]
        assert warning["code"] == "compacted"
        assert warning["data"]["tokensAfter"] < warning["data"]["tokensBefore"]
        budgets = [e["usedTokens"] for e in events if e["type"] == "contextBudget"]
        assert budgets[-1] < budgets[-2]
        assert outcomes[-1].usage == Usage(input_tokens=30, output_tokens=15, cost=60.0)
        assert outcomes[-1].model_calls[0].message_id == end["messageId"]
        assert (await h.state())["usage"] == {"inputTokens": 60, "outputTokens": 30, "cost": 120.0}


@pytest.mark.parametrize("setting", ["agent", "daemon", "no window"])
async def test_it_can_be_turned_off(setting: str) -> None:
    brain = Brain(window=10**9)
    limits = HubLimits(compact_at=0.0) if setting == "daemon" else None
    async with small_house(brain, window=None if setting == "no window" else WINDOW, limits=limits) as h:
        await h.agent(**({"compact_at": 0.0} if setting == "agent" else {}))
        for n in range(6):
            await h.prompt(f"prompt {n}: {words(110)}")
        assert not brain.summaries
        assert len(brain.turns[-1].messages) == 11


async def test_what_the_provider_counted_wins_over_the_estimate() -> None:
    """A tokenizer that makes more of a text than its length tells: the window is full long before the estimate says."""
    brain = Brain(window=10**9)

    def counting(request: ModelRequest) -> Any:
        if request.system == INSTRUCTIONS:
            return brain(request)
        usage = Usage(input_tokens=4 * Brain.size(request), output_tokens=5)
        return ModelAnswer(parts("yes"), "stop", usage)

    async def stream(request: ModelRequest) -> AsyncIterator[Any]:
        answer = counting(request)
        if isinstance(answer, ModelAnswer):
            yield answer
        else:
            async for event in answer:
                yield event

    async with small_house(stream) as h:
        await h.agent()
        for n in range(2):
            await h.prompt(f"prompt {n}: {words(110)}")
        assert [m["role"] for m in await h.messages()].count("summary") == 1
        budgets = [e["usedTokens"] for e in h.client.events() if e["type"] == "contextBudget"]
        assert budgets[0] < 400


async def test_an_agent_s_own_threshold_wins() -> None:
    brain = Brain()
    async with small_house(brain, limits=HubLimits(compact_at=1.0)) as h:
        await h.agent(compact_at=0.3)
        for n in range(2):
            await h.prompt(f"prompt {n}: {words(110)}")
        assert len(brain.summaries) == 1


async def test_a_single_message_that_is_far_over_the_window_is_read_in_pieces() -> None:
    brain = Brain()
    async with small_house(brain) as h:
        await h.agent()
        outcome = await h.prompt(f"BEGIN {words(2000)} END")
        assert outcome.reason == "done"
        assert len(brain.summaries) > 3
        told = "".join(request.messages[0].content[0].text for request in brain.summaries)
        assert all(word in told for word in ("BEGIN", "word0 ", "word777", "word1999", "END"))
        assert "[not answered yet, word for word]" in since_summary(brain.turns[-1].messages)[0].content[0].text


async def test_it_never_cuts_a_tool_round() -> None:
    big = ToldTool("look", lambda args, _ctx: f"{args['n']}: {words(90)}")
    turns = [
        [replace_id(call("look", n=2 * n), f"x{n}"), replace_id(call("look", n=2 * n + 1), f"y{n}")] for n in range(8)
    ]
    brain = Brain(*turns)
    async with small_house(brain, tools=[big]) as h:
        await h.agent()
        outcome = await h.prompt("Look at all of it.")
        assert outcome.reason == "done"
        assert len(big.ran) == 16
        assert brain.summaries
        for request in brain.turns:
            check_openai_chat(project(request.messages, OPENAI_CHAT).messages)
            check_anthropic(project(request.messages, ANTHROPIC).messages)
        for position, message in enumerate(messages := await h.messages()):
            if message["role"] == "summary":
                assert messages[position - 1]["role"] in ("toolResult", "user")
                after = next(m for m in messages[position + 1 :])
                assert after["role"] == "assistant"
        assert "Look at all of it." in str(brain.summaries[0].messages)


def replace_id(part: ToolCallPart, id: str) -> ToolCallPart:
    return part.model_copy(update={"id": id})


async def test_pending_calls_are_restated_and_still_resolved() -> None:
    brain = Brain([call("build", target="site")], "It is under way.")
    async with small_house(brain, tools=[pending_tool()]) as h:
        await h.agent()
        await h.prompt("Build it.")
        for n in range(4):
            await h.prompt(f"prompt {n}: {words(110)}")
        (pending,) = await h.pending()
        text = since_summary(brain.turns[-1].messages)[0].content[0].text
        assert "[calls whose results are still to come]" in text
        assert f"build ({pending['callId']})" in text
        assert "Started job 7." in text
        await h.resolve(pending["callId"], "The site is up.")
        await h.resume()
        wire = project(brain.turns[-1].messages, OPENAI_CHAT).messages
        check_openai_chat(wire)
        assert "The site is up." in str(wire)
        assert await h.pending() == []


async def test_a_summary_that_fails_is_told_and_the_turn_is_tried_all_the_same() -> None:
    brain = Brain(window=10**9)

    def failing(request: ModelRequest) -> Any:
        if request.system == INSTRUCTIONS:
            raise ModelError("The server is on fire.", reason="serverError")
        return brain(request)

    async with small_house(failing) as h:
        await h.agent()
        for n in range(4):
            assert (await h.prompt(f"prompt {n}: {words(110)}")).reason == "done"
        warnings = [e for e in h.client.events() if e["type"] == "warning"]
        assert [w["code"] for w in warnings] == ["compactionFailed"]
        assert "The server is on fire." in warnings[0]["message"]
        resets = [e["messageId"] for e in h.client.events() if e["type"] == "messageReset"]
        assert resets == [warnings[0]["data"]["messageId"]]
        assert all(m["role"] != "summary" for m in await h.messages())


@pytest.mark.parametrize("reply", ["", "   "])
async def test_an_empty_summary_is_none(reply: str) -> None:
    brain = Brain(notes=reply, window=10**9)
    async with small_house(brain) as h:
        await h.agent()
        for n in range(4):
            await h.prompt(f"prompt {n}: {words(110)}")
        assert all(m["role"] != "summary" for m in await h.messages())
        assert (await h.state())["usage"]["outputTokens"] == 25  # it was paid for


async def test_pieces_that_are_too_long_for_the_model_are_halved() -> None:
    brain = Brain()
    refused = 0

    def narrow(request: ModelRequest) -> Any:
        nonlocal refused
        if request.system == INSTRUCTIONS and Brain.size(request) > 350:
            refused += 1
            raise ModelError("Too long.", reason="contextWindow")
        return brain(request)

    async with small_house(narrow) as h:
        await h.agent()
        for n in range(4):
            assert (await h.prompt(f"prompt {n}: {words(110)}")).reason == "done"
        assert refused
        assert len(brain.summaries) > 1
        assert any(m["role"] == "summary" for m in await h.messages())


async def test_a_stop_ends_it_at_once() -> None:
    asked = asyncio.Event()

    def stuck(request: ModelRequest) -> Any:
        if request.system != INSTRUCTIONS:
            return said("yes")
        asked.set()
        return asyncio.get_running_loop().create_future()

    async with small_house(stuck) as h:
        await h.agent()
        for n in range(3):
            await h.prompt(f"prompt {n}: {words(110)}")
        waiting = asyncio.create_task(h.prompt(f"prompt 3: {words(110)}"))
        async with asyncio.timeout(5):
            await asked.wait()
            await h.hub.stop(Caller(), "a")
            outcome = await waiting
        assert outcome.reason == "stopped"
        assert h.client.types()[-2:] == ["messageReset", "agentEnd"]
        assert (await h.messages())[-1]["role"] == "user"


async def test_a_daemon_killed_while_summing_up_sums_up_again(tmp_path: Path) -> None:
    from house import killed_house

    path = tmp_path / "s.db"
    asked = asyncio.Event()

    def stuck(request: ModelRequest) -> Any:
        if request.system != INSTRUCTIONS:
            return said("yes")
        asked.set()
        return asyncio.get_running_loop().create_future()

    async with killed_house(*[stuck] * 9, path=path) as h:
        h.model.spec = replace(h.model.spec, context_window=WINDOW)
        await h.agent()
        for n in range(3):
            await h.prompt(f"prompt {n}: {words(110)}")
        await h.start(f"prompt 3: {words(110)}")
        async with asyncio.timeout(5):
            await asked.wait()
    brain = Brain()
    async with small_house(brain, path=path) as h:
        assert (await h.state())["state"] == "interrupted"
        assert (await h.resume()).reason == "done"
        assert len(brain.summaries) == 2  # in two pieces
        assert [m["role"] for m in await h.messages()].count("summary") == 1


async def test_the_run_s_document_holds_the_summary(tmp_path: Path) -> None:
    async with small_house(Brain(), path=tmp_path / "s.db") as h:
        await h.agent()
        for n in range(4):
            outcome = await h.prompt(f"prompt {n}: {words(110)}")
        run = (await h.hub.run_export(outcome.run_id))["run"]
        assert [m["role"] for m in run["messages"]] == ["user", "summary", "assistant"]
        assert run["usage"]["outputTokens"] == 15


# -- agent/compact ----------------------------------------------------------------------------------------------------


async def test_a_client_can_ask_for_it() -> None:
    brain = Brain(window=10**9)
    async with small_house(brain, window=None) as h:
        await h.agent()
        await h.prompt(f"I like tea. {words(50)}")
        await h.prompt("And milk.")
        answer = await h.hub.compact(Caller(), "a")
        assert answer["tokensAfter"] < answer["tokensBefore"]
        assert (await h.messages())[-1]["messageId"] == answer["messageId"]
        assert (await h.state())["needsReply"] is False
        assert [m["role"] for m in await h.messages()] == ["user", "assistant", "user", "assistant", "summary"]
        assert h.client.types()[-4:] == ["messageStart", "generationStats", "messageEnd", "warning"]
        await h.prompt("What do I like?")
        seen = since_summary(brain.turns[-1].messages)
        assert [m.role for m in seen] == ["summary", "user"]
        again = await h.hub.compact(Caller(), "a")
        assert again["messageId"] != answer["messageId"]
        assert NOTES in brain.summaries[-1].messages[0].content[0].text


async def test_there_may_be_nothing_to_sum_up() -> None:
    brain = Brain(window=10**9)
    async with small_house(brain) as h:
        await h.agent()
        assert await h.hub.compact(Caller(), "a") == {"tokensBefore": 0, "tokensAfter": 0}
        await h.prompt("hi")
        await h.hub.compact(Caller(), "a")
        assert "messageId" not in await h.hub.compact(Caller(), "a")
        assert len(brain.summaries) == 1


async def test_a_repeated_request_sums_up_once() -> None:
    brain = Brain()
    async with small_house(brain) as h:
        await h.agent()
        await h.prompt("hi")
        caller = Caller(client_id="c", request_id="r", body_sha256="x")
        first = await h.hub.compact(caller, "a")
        assert await h.hub.compact(caller, "a") == first
        assert len(brain.summaries) == 1


async def test_it_is_refused_while_a_pass_is_open_and_in_a_round() -> None:
    gate = ToldTool("risky", approval="ask")
    brain = Brain([call("risky")])
    async with small_house(brain, tools=[gate]) as h:
        await h.agent()
        await h.start("go")
        await h.client.until("approvalRequested")
        with pytest.raises(AgentBusy):
            await h.hub.compact(Caller(), "a")
        await h.agent("b", on_approval="pause")
        brain.replies = [[call("risky")]]
        assert (await h.prompt("go", "b")).reason == "paused"
        with pytest.raises(AgentBusy, match="tool round"):
            await h.hub.compact(Caller(), "b")
        assert not brain.summaries


async def test_a_paused_agent_can_be_summed_up_and_resumed() -> None:
    brain = Brain([call("build")])
    async with small_house(brain, tools=[pending_tool()]) as h:
        await h.agent(pause_on_pending=True)
        assert (await h.prompt("Build it.")).reason == "paused"
        answer = await h.hub.compact(Caller(), "a")
        assert "Build it." in (await h.messages())[-1]["content"][0]["text"]
        assert (await h.state())["needsReply"] is True
        (pending,) = await h.pending()
        await h.resolve(pending["callId"], "Built.")
        assert (await h.resume()).reason == "done"
        wire = project(brain.turns[-1].messages, ANTHROPIC).messages
        check_anthropic(wire)
        assert "Built." in str(wire)
        assert answer["messageId"] in [m["messageId"] for m in await h.messages()]


@asynccontextmanager
async def summing_up(go: asyncio.Event) -> AsyncIterator[tuple[House, asyncio.Task[Any]]]:
    """An agent whose compact has asked the model for the summary, which comes when `go` is set."""
    asked = asyncio.Event()

    async def slow() -> Any:
        asked.set()
        await go.wait()
        return said(NOTES)

    def brain(request: ModelRequest) -> Any:
        return slow() if request.system == INSTRUCTIONS else said("yes")

    async with small_house(brain) as h:
        await h.agent()
        await h.prompt("one")
        waiting = asyncio.create_task(h.hub.compact(Caller(), "a"))
        async with asyncio.timeout(5):
            await asked.wait()
        yield h, waiting


async def test_what_happens_meanwhile_wins() -> None:
    go = asyncio.Event()
    async with summing_up(go) as (h, waiting), asyncio.timeout(5):
        await h.prompt("two")
        go.set()
        with pytest.raises(AgentBusy):
            await waiting
        assert all(m["role"] != "summary" for m in await h.messages())
        assert (await h.state())["usage"]["outputTokens"] == 15


async def test_a_stop_ends_it_at_once_and_the_agent_takes_its_next_prompt() -> None:
    async with summing_up(asyncio.Event()) as (h, waiting):
        async with asyncio.timeout(5):
            with pytest.raises(AgentBusy, match="summed up already"):
                await h.hub.compact(Caller(), "a")
        async with asyncio.timeout(1):
            assert await h.hub.stop(Caller(), "a") == {"stopped": True}
        assert h.client.types()[-2:] == ["messageReset", "warning"]
        with pytest.raises(ModelError, match="stopped") as refused:
            await waiting
        assert refused.value.data["reason"] == "stopped"
        assert (await h.prompt("two")).output == "yes"
        assert await h.hub.stop(Caller(), "a") == {"stopped": False}
        assert all(m["role"] != "summary" for m in await h.messages())


async def test_a_client_that_leaves_ends_it_too() -> None:
    async with summing_up(asyncio.Event()) as (h, waiting):
        waiting.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert not h.hub.rt.compacting
        assert h.client.types()[-1] == "warning"


async def test_a_failure_is_the_answer() -> None:
    def brain(request: ModelRequest) -> Any:
        if request.system == INSTRUCTIONS:
            raise ModelError("No.", reason="badRequest")
        return said("yes")

    async with small_house(brain) as h:
        await h.agent()
        await h.prompt("one")
        with pytest.raises(ModelError, match="No"):
            await h.hub.compact(Caller(), "a")
        assert h.client.types()[-2:] == ["messageReset", "warning"]


# -- the plan ---------------------------------------------------------------------------------------------------------

CALL = ToolCallPart(id="c", name="look", arguments={})


def labelled(*messages: Message) -> list[Message]:
    return [m.model_copy(update={"message_id": f"msg-{n}"}) for n, m in enumerate(messages, 1)]


def spoke(*content: Any) -> AssistantMessage:
    return AssistantMessage(content=tuple(TextPart(text=one) if isinstance(one, str) else one for one in content))


CONVERSATIONS: dict[str, tuple[list[Message], int, str | None]] = {
    "answered": (labelled(user("a"), spoke("b")), 2, None),
    "one round may stay": (labelled(user("a" * 400), spoke("b" * 400), user("c"), spoke("d")), 2, "msg-3"),
    "an open round stays": (labelled(user("a" * 400), spoke("b"), user("c"), spoke(CALL)), 3, "msg-4"),
    "a summary is not summed up alone": (labelled(SummaryMessage(content=parts("s"))), 0, None),
    "nothing": ([], 0, None),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_plan_says_what_is_covered(name: str) -> None:
    messages, covered, kept_from = CONVERSATIONS[name]
    most = 60 if name == "one round may stay" else 0
    plan = make_plan(messages, WINDOW, kept=most, most=most)
    assert (0 if plan is None else len(plan.covered), plan and plan.kept_from) == (covered, kept_from)


def test_images_that_are_not_answered_yet_are_shown_again() -> None:
    picture = ImagePart(mime_type="image/png", data="iVBORw0KGgo=")
    messages = labelled(user("old"), spoke("b"), user((TextPart(text="What is it?"), picture)))
    plan = make_plan(messages, WINDOW, kept=0, most=0)
    assert plan is not None
    assert [m.message_id for m in plan.restated] == ["msg-3"]
    assert weigh(messages[2], b"").tokens() > 100


async def test_limits_of_cost_pause_by_name() -> None:
    async with small_house(Brain(*[[call("look")]] * 3), tools=[ToldTool("look")]) as h:
        await h.agent(limits=Limits(cost=30.0))
        outcome = await h.prompt("go")
        assert outcome.reason == "paused"
        warning = next(e for e in h.client.events() if e["type"] == "warning")
        assert (warning["code"], warning["data"]) == ("limitReached", {"limit": "cost", "value": 40.0, "max": 30.0})
        assert outcome.usage.cost == 40.0
        stats = [e["cost"] for e in h.client.events() if e["type"] == "generationStats"]
        assert stats == [20.0, 20.0]


async def test_without_a_price_there_is_no_cost() -> None:
    async with house("hi") as h:
        await h.agent(limits=Limits(cost=0.1))
        outcome = await h.prompt("go")
        assert outcome.reason == "done"
        assert "cost" not in outcome.usage.wire()
        assert AgentConfig(compact_at=0.5).wire() == {"compactAt": 0.5}
