"""A run driven well and badly at random, saved and loaded at any moment, against a model that knows only the rules.

The model keeps its own count of turns, retries, tokens, open calls and answers, and its own idea of every message. It
reads nothing from the run but what the run answers, and the run's answers are compared with it after every call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from run_driving import RELOADS, assert_closed

from sojourn.core.errors import ModelResponseError, ProtocolViolation, RunFailed
from sojourn.core.messages import (
    AssistantMessage,
    LateResultMessage,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolChoice,
    ToolResultMessage,
    Usage,
    parts,
    text_of,
    user,
)
from sojourn.core.run import (
    AgentRun,
    CallModel,
    CallTools,
    Continue,
    Done,
    InvalidToolCallAction,
    ModelTurn,
    NeedsResolution,
    TurnRetried,
)

ALLOWED, EXISTING = ("add", "mul"), ("add", "mul", "rm")

Shown = tuple[Any, ...]
"""A message as this test compares it: role, text, and what binds calls to results."""


def shown(message: Message) -> Shown:
    text = text_of(message.content)
    if isinstance(message, AssistantMessage):
        return ("assistant", text, tuple((made.id, made.name) for made in message.calls))
    if isinstance(message, ToolResultMessage):
        return ("result", message.call_id, message.tool_name, message.is_error, text[:7] if message.is_error else text)
    return (message.role, text)


def not_run(made: Made) -> Shown:
    return ("result", made.id, made.name, True, "Not run")


@dataclass
class Made:
    """A call as the model of this test knows it."""

    id: str
    name: str
    good_arguments: bool
    skipped: str | None = None
    answer: Shown | None = None
    settled: Shown | None = None
    started: bool = False
    asked_as: str = ""


@dataclass
class Expected:
    """Where the run must stand, by the rules alone."""

    limit: int
    retries: int
    choice_none: bool
    before: list[Shown]
    own: list[Shown]
    state: str = "preparing"
    turn: int = 0
    retried: int = 0
    usage: tuple[int, int] = (0, 0)
    model_calls: int = 0
    entries: list[Any] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    text: str = ""
    cut: bool = False
    answerless: bool = False
    made: list[Made] = field(default_factory=list)
    output: str = ""

    def invalid(self) -> tuple[Made, str] | None:
        """The first call of the turn that cannot be made, by the rules."""
        for made in self.made if not self.cut else []:
            if made.skipped is not None:
                continue
            if made.name not in ALLOWED:
                return made, "disallowed_by_tool_choice" if made.name in EXISTING else "unknown_tool"
            if not made.good_arguments:
                return made, "malformed_arguments"
        return None

    def can_inject(self) -> bool:
        return self.state == "preparing" or (self.state == "done" and self.turn < self.limit)

    def open(self) -> list[Made]:
        return [made for made in self.made if made.answer is None]

    def turn_as_shown(self, *, original: bool = False) -> Shown:
        names = tuple((made.id, made.asked_as if original else made.name) for made in self.made)
        return ("assistant", self.text, names)


CALL = st.tuples(
    st.sampled_from(["", "p", "q", "r", "s", "call-1-1"]),
    st.sampled_from(["add", "mul"] * 5 + ["rm", "nope"]),
    st.sampled_from([True] * 7 + [False]),
)
OUT_OF_ORDER = ["model_response", "resolve_invalid_tool_call", "tool_results", "mark_dispatched", "max_turns", "inject"]
BAD_ANSWERS = ["unknown", "again", "again", "twice", "no result", "another", "start unknown"]
TOKENS = st.tuples(st.integers(0, 9), st.integers(0, 9))


class Driving(RuleBasedStateMachine):
    run: AgentRun
    now: Expected

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        limit, retries = data.draw(st.sampled_from([0, 1, 2, 3, 6, 9])), data.draw(st.integers(0, 2))
        history, choice = data.draw(st.integers(0, 2)), data.draw(st.sampled_from([None, None, "auto", "none"]))
        before: list[Message] = [
            user("earlier"),
            AssistantMessage(content=(ToolCallPart(id="p", name="add", arguments={}),)),
            ToolResultMessage(call_id="p", tool_name="add", content=parts("3")),
        ]
        before = before if history == 2 else before[:history]
        self.run = AgentRun.new("go").with_history(before).max_turns(limit).max_invalid_tool_call_retries(retries)
        if choice:
            self.run.tool_choice(ToolChoice(mode=choice))
        self.now = Expected(limit, retries, choice == "none", [shown(m) for m in before], [("user", "go")])
        self.now.ids = {"p"} if history == 2 else set()

    # One rule and a choice of its own: hypothesis would leave out some of many rules, and with `step` all others.
    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        natural = {
            "preparing": [self.step] * 6 + [self.inject],
            "awaiting_model": [self.make_calls] * 5 + [self.say, self.step, self.withdraw],
            "resolving_calls": [self.resolve] * 4 + [self.step],
            "awaiting_advance": [self.step],
            "executing_tools": [self.answer_some] * 3
            + [self.answer_badly] * 3
            + [self.step, self.start_some, self.fail_what_was_started],
            "done": [self.step, self.inject if self.now.can_inject() else self.start],
            "failed": [self.step, self.start],
        }
        always = [self.save_and_load, self.append_entry, self.peek, self.call_out_of_order]
        data.draw(st.sampled_from(natural[self.now.state] * 2 + always))(data)

    # -- driving it well --

    def step(self, data: st.DataObject) -> None:
        now = self.now
        match now.state:
            case "preparing" if now.turn < now.limit:
                now.turn, now.state = now.turn + 1, "awaiting_model"
                self.expect_call_model(self.run.next_step())
            case "preparing":
                error = self.expect_failure(self.run.next_step, "maxTurns")
                assert error.data["maxTurns"] == now.limit
                assert shown(error.prompt) == (now.before + now.own)[-1]
            case "awaiting_model":
                self.expect_call_model(self.run.next_step())
            case "awaiting_advance":
                self.advance()
            case "executing_tools":
                self.expect_call_tools(self.run.next_step())
            case "done":
                self.expect_done(self.run.next_step())
            case _:
                self.expect_refusal(self.run.next_step, "next_step")

    def withdraw(self, data: st.DataObject) -> None:
        self.now.turn, self.now.state = self.now.turn - 1, "preparing"
        self.run.withdraw_call()

    def advance(self) -> None:
        now = self.now
        if now.cut and now.answerless and not now.made:
            error = self.expect_failure(self.run.next_step, "modelResponseError")
            assert error.data["reason"] == "length"
            return
        if now.made or now.text or now.answerless:
            now.own.append(now.turn_as_shown())
        if now.made:
            now.state = "executing_tools"
            any_skipped = any(made.skipped is not None for made in now.made)
            for made in now.made:
                if made.skipped is not None:
                    made.settled = ("result", made.id, made.name, True, made.skipped[:7])
                elif any_skipped or now.cut:
                    made.settled = not_run(made)
            self.expect_call_tools(self.run.next_step())
        else:
            now.state, now.output = "done", now.text
            self.expect_done(self.run.next_step())

    def say(self, data: st.DataObject) -> None:
        text, thought = data.draw(st.sampled_from(["", "yes", "no"])), data.draw(st.booleans())
        cut, tokens = data.draw(st.booleans()), data.draw(TOKENS)
        content = [*([ReasoningPart(text="hm")] if thought else []), TextPart(text=text)]
        now = self.now
        now.text, now.cut, now.made = text, cut, []
        now.answerless = thought and not text if not cut else not text
        self.answer_with(tuple(content), "length" if cut else "stop", tokens)

    def make_calls(self, data: st.DataObject) -> None:
        calls = data.draw(st.lists(CALL, min_size=1, max_size=4))
        cut, tokens = data.draw(st.sampled_from([False] * 7 + [True])), data.draw(TOKENS)
        now = self.now
        now.text, now.cut, now.answerless, now.made = "", cut, False, []
        fine: list[str | None] = []
        for id, _, _ in calls:
            fine.append(id if id and id not in now.ids and id not in fine else None)
        for i, (_, name, good) in enumerate(calls):
            id = fine[i] or self.unused(f"call-{now.turn}-{i + 1}", {*now.ids, *(f for f in fine if f)})
            now.made.append(Made(id, name, good, asked_as=name))
        content = tuple(ToolCallPart(id=i, name=n, arguments={"x": 1} if good else '{"x') for i, n, good in calls)
        self.answer_with(content, "length" if cut else "toolCalls", tokens)

    def unused(self, wish: str, taken: set[str]) -> str:
        taken |= {made.id for made in self.now.made}
        return next(name for name in (wish, *(f"{wish}-{n}" for n in range(2, 99))) if name not in taken)

    def answer_with(self, content: tuple[Any, ...], reason: Any, tokens: tuple[int, int]) -> None:
        now = self.now
        now.usage = (now.usage[0] + tokens[0], now.usage[1] + tokens[1])
        now.model_calls += 1
        turn = ModelTurn(
            content=content,
            finish_reason=reason,
            usage=Usage(input_tokens=tokens[0], output_tokens=tokens[1]),
            executable_tools=EXISTING,
            allowed_tools=ALLOWED,
        )
        self.expect_outcome(self.run.model_response(turn))

    def resolve(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(["repair", "skip", "retry", "retry", "retry", "repair badly", "fail", "stop"]))
        now = self.now
        asked = now.invalid()
        assert asked is not None
        made, reason = asked
        match kind:
            case "repair" if reason != "malformed_arguments":
                made.name = "mul"
                self.expect_outcome(self.run.resolve_invalid_tool_call(InvalidToolCallAction.repair("mul")))
            case "skip" if not now.choice_none:
                made.skipped = "skipped by me"
                self.expect_outcome(self.run.resolve_invalid_tool_call(InvalidToolCallAction.skip("skipped by me")))
            case "retry" if now.retried < now.retries:
                now.retried, now.state = now.retried + 1, "preparing"
                now.own.append(now.turn_as_shown(original=True))
                for other in now.made:
                    text = "use others" if other is made else "Not run"
                    now.own.append(("result", other.id, other.asked_as, True, text[:7]))
                now.ids |= {other.id for other in now.made}
                assert self.run.resolve_invalid_tool_call(InvalidToolCallAction.retry("use others")) == TurnRetried()
            case "stop":
                self.expect_failure(
                    lambda: self.run.resolve_invalid_tool_call(InvalidToolCallAction.stop("why")), "cancelled"
                )
            case _:
                action = {
                    "repair": InvalidToolCallAction.repair("mul"),
                    "repair badly": InvalidToolCallAction.repair("rm"),
                    "skip": InvalidToolCallAction.skip("x"),
                    "retry": InvalidToolCallAction.retry("x"),
                }.get(kind, InvalidToolCallAction.fail())
                self.expect_failure(lambda: self.run.resolve_invalid_tool_call(action), "unknownToolCall")

    def answer_some(self, data: st.DataObject) -> None:
        batch = data.draw(st.lists(st.sampled_from(self.now.open()), unique_by=id, min_size=1).flatmap(st.permutations))
        given = []
        for made in batch:
            if made.settled is not None:
                given.append(self.settled_result(made))
            else:
                given.append(ToolResultMessage(call_id=made.id, tool_name="", content=parts(f"did {made.id}")))
                made.answer = ("result", made.id, made.name, False, f"did {made.id}")
        for made in batch:
            made.answer = made.answer or made.settled
        self.run.tool_results(given)
        self.close_round()

    def settled_result(self, made: Made) -> ToolResultMessage:
        step = self.run.next_step()
        assert isinstance(step, CallTools)
        return next(p.preresolved_result for p in step.calls if p.call.id == made.id and p.preresolved_result)

    def close_round(self) -> None:
        now = self.now
        if not now.open():
            now.own += [made.answer for made in now.made if made.answer]
            now.ids |= {made.id for made in now.made}
            now.made, now.state = [], "preparing"

    def start_some(self, data: st.DataObject) -> None:
        can_start = [made for made in self.now.open() if made.settled is None]
        if can_start:
            made = data.draw(st.sampled_from(can_start))
            made.started = True
            self.run.mark_dispatched([made.id])

    def fail_what_was_started(self, data: st.DataObject) -> None:
        lost = [made for made in self.now.open() if made.started]
        for made in lost:
            made.answer = ("result", made.id, made.name, True, "interru")
        assert self.run.fail_dispatched() == tuple(made.id for made in lost)
        if lost:
            self.close_round()

    def inject(self, data: st.DataObject) -> None:
        late = data.draw(st.booleans())
        now = self.now
        message = LateResultMessage(call_id="zz", tool_name="b", content=parts("more")) if late else user("more")
        now.own.append((message.role, "more"))
        now.state = "preparing"
        self.run.inject([message])

    def peek(self, data: st.DataObject) -> None:
        before = self.run.model_dump_json()
        self.run.peek()
        assert self.run.model_dump_json() == before

    def append_entry(self, data: st.DataObject) -> None:
        value: Any = data.draw(st.sampled_from([None, 1, {"a": [None]}]))
        self.now.entries.append((self.now.turn, value))
        assert self.run.append_entry("note", value) == len(self.now.entries) - 1

    def save_and_load(self, data: st.DataObject) -> None:
        self.run = data.draw(st.sampled_from(RELOADS))(self.run)

    # -- driving it badly --

    def call_out_of_order(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(OUT_OF_ORDER))
        legal = {
            "model_response": "awaiting_model",
            "resolve_invalid_tool_call": "resolving_calls",
            "tool_results": "executing_tools",
            "mark_dispatched": "executing_tools",
        }
        if self.now.state == legal.get(call) or (call == "max_turns" and self.now.state == "preparing"):
            return
        if call == "inject" and self.now.can_inject():
            return
        argument: Any = {
            "model_response": ModelTurn.text("x"),
            "resolve_invalid_tool_call": InvalidToolCallAction.fail(),
            "max_turns": 99,
            "inject": [user("x")],
        }.get(call, [])
        self.expect_refusal(lambda: getattr(self.run, call)(argument), call)

    def answer_badly(self, data: st.DataObject) -> None:
        kind = data.draw(
            st.sampled_from(["unknown", "again", "again", "twice", "no result", "another", "start unknown"])
        )
        now = self.now
        good = next((made.id for made in now.open() if made.settled is None), None)
        done = next((made.id for made in now.made if made.answer is not None), None)
        settled = next((made.id for made in now.open() if made.settled is not None), None)

        def bad(*ids: str) -> Callable[[], None]:
            results = [ToolResultMessage(call_id=i, tool_name="add", content=parts("bad")) for i in ids]
            return lambda: self.run.tool_results(results)

        head = [good] if good else []
        if kind == "unknown":
            self.expect_refusal(bad(*head, "nobody"), "tool_results")
        elif kind == "again" and done:
            self.expect_refusal(bad(*head, done), "tool_results")
        elif kind == "twice" and good:
            self.expect_refusal(bad(good, good), "tool_results")
        elif kind == "another" and settled:
            self.expect_refusal(bad(*head, settled), "tool_results")
        elif kind == "no result":
            self.expect_refusal(lambda: self.run.tool_results([user("x")]), "tool_results")  # type: ignore[list-item]
        elif kind == "start unknown":
            self.expect_refusal(lambda: self.run.mark_dispatched([*head, settled or "nobody"]), "mark_dispatched")

    # -- what is expected --

    def expect_call_model(self, step: Any) -> None:
        now = self.now
        assert isinstance(step, CallModel)
        assert step.turn == now.turn
        assert [shown(m) for m in (*step.history, step.prompt)] == now.before + now.own

    def expect_call_tools(self, step: Any) -> None:
        assert isinstance(step, CallTools)
        assert [(p.call.id, p.call.name) for p in step.calls] == [(m.id, m.name) for m in self.now.open()]
        settled = [shown(p.preresolved_result) if p.preresolved_result else None for p in step.calls]
        assert settled == [made.settled for made in self.now.open()]

    def expect_done(self, step: Any) -> None:
        now = self.now
        assert isinstance(step, Done)
        assert step.result.output == now.output
        assert [shown(m) for m in step.result.messages] == now.own
        assert (step.result.usage.input_tokens, step.result.usage.output_tokens) == now.usage
        assert [made.index for made in step.result.model_calls] == list(range(now.model_calls))

    def expect_outcome(self, outcome: Any) -> None:
        now = self.now
        asked = now.invalid()
        if asked is None:
            now.state = "awaiting_advance"
            assert outcome == Continue()
            return
        now.state = "resolving_calls"
        assert isinstance(outcome, NeedsResolution)
        self.expect_question(outcome.context, *asked)

    def expect_question(self, context: Any, made: Made, reason: str) -> None:
        now = self.now
        assert (context.call_id, context.tool_name, context.reason) == (made.id, made.name, reason)
        assert (context.available_tools, context.allowed_tools) == (EXISTING, ALLOWED)
        assert [shown(m) for m in context.history] == [*now.before, *now.own, now.turn_as_shown(original=True)]

    def expect_failure(self, do: Callable[[], Any], kind: str) -> Any:
        with pytest.raises((RunFailed, ModelResponseError)) as caught:
            do()
        self.now.state = "failed"
        assert caught.value.kind == kind
        assert [shown(m) for m in caught.value.history] == self.now.before + self.now.own
        assert_closed(caught.value.history)
        assert self.run.failure is not None
        assert self.run.failure.kind == kind
        return caught.value

    def expect_refusal(self, do: Callable[[], Any], call: str) -> None:
        before = self.run.model_dump_json()
        with pytest.raises(ProtocolViolation) as caught:
            do()
        assert caught.value.data == {"kind": "protocolViolation", "call": call, "state": self.now.state}
        assert self.run.model_dump_json() == before

    @invariant()
    def stands_where_the_rules_say(self) -> None:
        now, run = self.now, self.run
        assert (run.state, run.turn) == (now.state, now.turn)
        assert (run.usage.input_tokens, run.usage.output_tokens) == now.usage
        assert len(run.model_calls) == now.model_calls
        assert [shown(m) for m in run.messages] == now.own
        assert [(entry.turn, entry.value) for entry in run.entries] == now.entries
        assert run.can_continue == (now.turn < now.limit and now.state != "failed")
        assert_closed(run.full_history())

    @invariant()
    def asks_the_same_question_at_any_time(self) -> None:
        context = self.run.pending_invalid_tool_call()
        assert (context is not None) == (self.now.state == "resolving_calls")
        asked = self.now.invalid()
        if context is not None and asked is not None:
            self.expect_question(context, *asked)


TestDriving = Driving.TestCase
TestDriving.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # Who only wants to know whether it fails (`run_mutations.py`) need not wait for the shortest way to make it fail.
    phases=[Phase.generate] if "RUN_MUTATIONS" in os.environ else settings.default.phases,
)
