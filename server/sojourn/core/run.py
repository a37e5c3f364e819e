"""AgentRun: one run of an agent as a plain value that says what is to be done next. It does no I/O.

A driver calls `next_step()`, does what it says (ask the model, run tools) and feeds the answer back. Between any two
calls the run can be saved (`model_dump_json`) and loaded (`load`), by another process, days later. Nothing live is in
it: no model, no tools, no clock. Everything that moves it from state to state stands in this file, and `TRANSITIONS`
says where it may go, `ACCEPTS` what may be called where. What is refused (`ProtocolViolation`) changes nothing.

Its `history` is what it was given, `messages` are its own. A turn is one emitted `CallModel`; emitting it again costs
nothing. A turn that was cut short (`length`, `contentFilter`) never runs its calls, whether or not their arguments
parse: every one of them is preresolved with an error that the model reads, and the conversation goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ._document import RUN_FORMAT, Ending, RunDocument, State
from ._output import OutputRules, final_message
from ._steps import (
    CallModel,
    CallTools,
    Continue,
    Done,
    Failed,
    Failure,
    InvalidToolCallAction,
    InvalidToolCallContext,
    ModelTurn,
    NeedsResolution,
    Outcome,
    Owed,
    PendingToolCall,
    RunEntry,
    RunResult,
    Step,
    TurnRetried,
    step_to_wire,
)
from ._turns import (
    NOT_RUN,
    NOT_RUN_OUTPUT,
    OpenTurn,
    Round,
    assistant_message,
    call_ids,
    explain,
    has_calls,
    is_answerless,
    is_cut,
    is_empty,
    sound,
)
from .agent import ModelCall
from .errors import Cancelled, MaxTurns, ModelResponseError, RunFailed, SojournError, UnknownToolCall
from .messages import (
    AssistantMessage,
    LateResultMessage,
    Message,
    SummaryMessage,
    ToolCallPart,
    ToolResultMessage,
    Usage,
    UserMessage,
    text_of,
    tool_result,
    user,
)

TRANSITIONS: Mapping[State, Mapping[str, State]] = {
    "preparing": {"model called": "awaiting_model", "failed": "failed"},
    "awaiting_model": {
        "turn taken": "awaiting_advance",
        "call invalid": "resolving_calls",
        "withdrawn": "preparing",
        "failed": "failed",
    },
    "resolving_calls": {
        "turn taken": "awaiting_advance",
        "call invalid": "resolving_calls",
        "turn retried": "preparing",
        "failed": "failed",
    },
    "awaiting_advance": {
        "tools called": "executing_tools",
        "output refused": "preparing",
        "answered": "done",
        "failed": "failed",
    },
    "executing_tools": {"round closed": "preparing"},
    "done": {"reopened": "preparing"},
    "failed": {},
}
"""Where each state may go, and why. `done` and `failed` are terminal; only `inject` reopens a `done` run."""

ACCEPTS: Mapping[str, frozenset[State]] = {
    "next_step": frozenset(("preparing", "awaiting_model", "awaiting_advance", "executing_tools", "done")),
    "model_response": frozenset(("awaiting_model",)),
    "resolve_invalid_tool_call": frozenset(("resolving_calls",)),
    "tool_results": frozenset(("executing_tools",)),
    "mark_dispatched": frozenset(("executing_tools",)),
    "withdraw_call": frozenset(("awaiting_model",)),
    "abandon": frozenset(("preparing", "awaiting_model")),
    "inject": frozenset(("preparing", "done")),
}
"""The states in which each call is taken; in the others it is a `ProtocolViolation`. Calls not named read only."""

E = TypeVar("E", bound=SojournError)


class AgentRun(RunDocument):
    """A run. Make one with `AgentRun.new(prompt)`, load one with `AgentRun.load(document)`."""

    # -- driving it -----------------------------------------------------------------------------------------------

    def next_step(self) -> Step:
        """What the driver owes. Until it is fed, the same again, free of charge, also after a reload.

        Raises `MaxTurns` when a turn is due and none is left, `ModelResponseError` when the last turn was cut and holds
        nothing to keep; both fail the run.
        """
        self._require("next_step")
        match self.state:
            case "preparing":
                return self._call_model()
            case "awaiting_model":
                return self._model_step()
            case "awaiting_advance":
                return self._advance()
            case "executing_tools":
                return self._tools_step()
            case _:
                return Done(self._result())

    def peek(self) -> Owed | None:
        """What `next_step` would say, without taking the step: no turn is counted, nothing changes.

        Also says that an invalid call waits for a decision, and that the run has failed or would fail now. None when
        there is no message to send.
        """
        if self.failure is not None:
            return Failed(self.failure)
        if (context := self.pending_invalid_tool_call()) is not None:
            return NeedsResolution(context)
        if not (self.messages or self.history):
            return None
        ahead = self.model_copy(update={"messages": list(self.messages)})
        try:
            return ahead.next_step()
        except (RunFailed, ModelResponseError) as error:
            return Failed(Failure.of(error))

    def model_response(self, turn: ModelTurn) -> Outcome:
        """Takes the model's turn: its usage counts from now on, its calls are checked in the order of their making."""
        self._require("model_response")
        taken = self._known_ids() if has_calls(turn.content) else frozenset[str]()
        message = assistant_message(turn, taken=taken, number=self.turn)
        self._count_call(turn)
        return self._scan(OpenTurn.begin(message, turn))

    def withdraw_call(self) -> None:
        """Takes back a model call that got no answer: its turn is not counted, and messages can be injected again.

        For a driver that died or lost its connection while the model was answering.
        """
        self._require("withdraw_call")
        self.turn -= 1
        self._move("withdrawn")

    def abandon(self, error: SojournError) -> None:
        """Ends the run as failed because of `error`: its driver cannot go on (the model failed, it was stopped)."""
        self._require("abandon")
        self._failed(error)

    def pending_invalid_tool_call(self) -> InvalidToolCallContext | None:
        """The call that waits for a decision, the same after a reload; None when none does."""
        turn = self.open_turn
        if self.state != "resolving_calls" or turn is None:
            return None
        call = turn.calls[turn.position]
        reason = turn.invalid(call, self.output_tool)
        assert reason is not None
        return InvalidToolCallContext.model_construct(
            tool_name=call.name,
            call_id=call.id,
            args=call.arguments,
            reason=reason,
            available_tools=turn.executable_tools,
            allowed_tools=turn.allowed_tools,
            tool_choice=self.choice,
            history=[*self.history, *self.messages, turn.message],
        )

    def resolve_invalid_tool_call(self, action: InvalidToolCallAction) -> Outcome:
        """Decides about the pending invalid call.

        Raises `UnknownToolCall` (`fail`, and every action that is rejected) or `Cancelled` (`stop`); both fail the run
        and record nothing of the turn.
        """
        self._require("resolve_invalid_tool_call")
        context, turn = self.pending_invalid_tool_call(), self.open_turn
        assert context is not None
        assert turn is not None
        match action.action:
            case "retry":
                return self._retry(turn, context, action.feedback)
            case "repair":
                return self._repair(turn, context, action.tool_name or "")
            case "skip":
                return self._skip(turn, context, action.reason or "This call was skipped.")
            case "stop":
                reason = action.reason or "the driver stopped it"
                raise self._failed(
                    Cancelled(
                        f"The run was stopped at the call of {context.tool_name!r}: {reason}",
                        history=self.full_history(),
                        reason=reason,
                    )
                )
            case _:
                raise self._failed_at(context, "the driver decided to fail the run")

    def tool_results(self, results: Iterable[ToolResultMessage | Mapping[str, Any]]) -> None:
        """Answers all open calls or some of them, in any order; mappings are in wire form (`callId`, `content`).

        Checked as a whole: when one does not fit, none is kept. With the last answer, the results enter the messages in
        call order.
        """
        self._require("tool_results")
        self._answer(self._round().answered(results))

    def mark_dispatched(self, call_ids: Iterable[str]) -> None:
        """Marks calls as started: whoever continues this document must not run them again."""
        self._require("mark_dispatched")
        self.round = self._round().marked(call_ids)

    def fail_dispatched(self) -> tuple[str, ...]:
        """Answers the calls that were started and have no result with an error; their ids, in call order."""
        if self.round is None:
            return ()
        results = self.round.interrupted()
        self._answer(self.round.answered(results))
        return tuple(result.call_id for result in results)

    def inject(self, messages: Iterable[UserMessage | LateResultMessage | SummaryMessage]) -> None:
        """Adds what came from outside, before a model call or to a run that is done (which reopens it)."""
        self._require("inject")
        fresh = list(messages)
        for message in fresh:
            if not isinstance(message, UserMessage | LateResultMessage | SummaryMessage):
                raise self._violation("inject", f"takes user messages, late results and summaries, not {message!r}")
        if self.state == "done" and not self.can_continue:
            raise self._violation("inject", f"finds no turn left of {self.turn_limit}; check can_continue first")
        if not fresh:
            return
        self._record(*(sound(message) for message in fresh))
        if self.state == "done":
            self.ending = None
            self._move("reopened")

    # -- the moves ------------------------------------------------------------------------------------------------

    def _call_model(self) -> CallModel:
        if not (self.messages or self.history):
            raise self._violation("next_step", "finds no message to send; inject one first")
        if not self.can_continue:
            step = self._model_step()
            raise self._failed(
                MaxTurns(
                    f"The run has used up its {self.turn_limit} turns and the model is still owed an answer; "
                    "a run with a higher max_turns can go on from its history.",
                    prompt=step.prompt,
                    history=self.full_history(),
                    max_turns=self.turn_limit,
                )
            )
        self.turn += 1
        self._move("model called")
        return self._model_step()

    def _model_step(self) -> CallModel:
        conversation = [*self.history, *self.messages]
        return CallModel(prompt=conversation.pop(), history=conversation, turn=self.turn)

    def _tools_step(self) -> CallTools:
        return CallTools(self._round().owed())

    def _scan(self, turn: OpenTurn) -> Outcome:
        self.open_turn = turn = turn.judged(self.output_tool)
        if turn.position >= len(turn.calls):
            self._move("turn taken")
            return Continue()
        self._move("call invalid")
        context = self.pending_invalid_tool_call()
        assert context is not None
        return NeedsResolution(context)

    def _retry(self, turn: OpenTurn, context: InvalidToolCallContext, feedback: str | None) -> TurnRetried:
        if self.invalid_call_retries >= self.invalid_call_limit:
            raise self._failed_at(context, f"all {self.invalid_call_limit} retries for invalid calls are used up")
        text = feedback or f"This call was not run: {explain(context)}."
        self._record(turn.message, *_answers(turn.message, {context.call_id: text}, otherwise=NOT_RUN))
        self.invalid_call_retries += 1
        self.open_turn = None
        self._move("turn retried")
        return TurnRetried()

    def _repair(self, turn: OpenTurn, context: InvalidToolCallContext, tool_name: str) -> Outcome:
        if context.reason == "malformed_arguments":
            raise self._failed_at(
                context, f"a call cannot be repaired to {tool_name!r} when its arguments are malformed", tool_name
            )
        if tool_name not in context.allowed_tools and tool_name != self.output_tool:
            raise self._failed_at(
                context, f"it cannot be repaired to {tool_name!r}, which is not allowed either", tool_name
            )
        return self._scan(turn.model_copy(update={"repaired": {**turn.repaired, context.call_id: tool_name}}))

    def _skip(self, turn: OpenTurn, context: InvalidToolCallContext, reason: str) -> Outcome:
        if self.choice is not None and self.choice.mode == "none":
            raise self._failed_at(context, "a call cannot be skipped under the tool choice 'none'")
        return self._scan(turn.model_copy(update={"skipped": {**turn.skipped, context.call_id: reason}}))

    def _advance(self) -> Step:
        turn = self.open_turn
        assert turn is not None
        message = turn.accepted()
        if self.output is not None and (call := self.output.call_in(message)) is not None:
            return self._take_output(self.output, message, call)
        if is_cut(message) and is_answerless(message):
            raise self._failed(
                ModelResponseError(
                    f"The model's turn {self.turn} was cut (finish reason {message.finish_reason!r}) before it said "
                    "anything; raise the model's limit of output tokens, or ask for less.",
                    history=self.full_history(),
                    reason=message.finish_reason,
                )
            )
        self.open_turn = None
        recorded = not is_empty(message)
        if recorded:
            self._record(message)
        if calls := message.calls:
            self.round = Round.trusted(calls=calls, preresolved=turn.preresolved(), answers={}, dispatched=())
            self._move("tools called")
            return self._tools_step()
        return self._take_text(message, recorded=recorded)

    def _take_text(self, message: AssistantMessage, *, recorded: bool) -> Step:
        error = self.output.error_in_text(text_of(message.content)) if self.output else None
        if self.output is not None and error is not None and self._may_ask_again(self.output):
            return self._ask_again(self.output, user(self.output.feedback(error)))
        return self._end(recorded=recorded, error=error)

    def _take_output(self, rules: OutputRules, message: AssistantMessage, call: ToolCallPart) -> Step:
        error = rules.error_in_call(message, call)
        if error is not None and self._may_ask_again(rules):
            results = _answers(message, {call.id: rules.feedback(error)}, otherwise=NOT_RUN_OUTPUT)
            return self._ask_again(rules, message, *results)
        self._record(final_message(message, call))
        return self._end(recorded=True, error=error)

    def _may_ask_again(self, rules: OutputRules) -> bool:
        return self.can_continue and rules.retries < rules.max_retries

    def _ask_again(self, rules: OutputRules, *messages: Message) -> Step:
        self._record(*messages)
        self.output = rules.retried()
        self.open_turn = None
        self._move("output refused")
        return self.next_step()

    def _end(self, *, recorded: bool, error: str | None) -> Done:
        self.open_turn = None
        self.ending = Ending(recorded=recorded, error=error or "")
        self._move("answered")
        return Done(self._result())

    def _result(self) -> RunResult:
        assert self.ending is not None
        content = self.messages[-1].content if self.ending.recorded else ()
        return RunResult.trusted(
            output=text_of(content),
            content=content,
            messages=tuple(self.messages),
            usage=self.usage,
            model_calls=tuple(self.model_calls),
            best_effort=bool(self.ending.error),
        )

    def _answer(self, answered: Round) -> None:
        if answered.open_calls:
            self.round = answered
            return
        self._record(*answered.results())
        self.round = None
        self._move("round closed")

    def _count_call(self, turn: ModelTurn) -> None:
        usage = turn.usage or Usage()
        self.model_calls.append(
            ModelCall.trusted(
                index=len(self.model_calls),
                usage=usage,
                finish_reason=turn.finish_reason,
                message_id=turn.message_id,
                response_id=turn.response_id,
                request_id=turn.request_id,
                raw=turn.raw if self.raw_kept else None,
            )
        )
        self.usage += usage

    def _record(self, *messages: Message) -> None:
        self.messages.extend(messages)
        if (ids := self._ids) is not None:
            ids.update(call_ids(messages))

    def _known_ids(self) -> set[str]:
        # Read once from the conversation, then kept up to date: a turn costs no more in a longer conversation.
        if (ids := self._ids) is None:
            ids = self._ids = set(call_ids([*self.history, *self.messages]))
        return ids

    def _round(self) -> Round:
        assert self.round is not None
        return self.round

    def _move(self, event: str) -> None:
        self.state = TRANSITIONS[self.state][event]

    def _failed(self, error: E) -> E:
        self.failure = Failure.of(error)
        self.open_turn = None
        self._move("failed")
        return error

    def _failed_at(self, context: InvalidToolCallContext, why: str, tool_name: str | None = None) -> UnknownToolCall:
        return self._failed(
            UnknownToolCall(
                f"The model made a call that it cannot make: {explain(context)}; and {why}.",
                history=self.full_history(),
                toolName=tool_name or context.tool_name,
                callId=context.call_id,
                reason=context.reason,
                availableTools=list(context.available_tools),
                allowedTools=list(context.allowed_tools),
            )
        )

    def _require(self, call: str) -> None:
        if self.state not in ACCEPTS[call]:
            right = ", ".join(sorted(ACCEPTS[call]))
            raise self._violation(call, f"is taken in the states {right} only")


def _answers(message: AssistantMessage, texts: Mapping[str, str], *, otherwise: str) -> Iterator[ToolResultMessage]:
    return (tool_result(call, texts.get(call.id, otherwise), is_error=True) for call in message.calls)


__all__ = [
    "ACCEPTS",
    "RUN_FORMAT",
    "TRANSITIONS",
    "AgentRun",
    "CallModel",
    "CallTools",
    "Continue",
    "Done",
    "Failed",
    "Failure",
    "InvalidToolCallAction",
    "InvalidToolCallContext",
    "ModelTurn",
    "NeedsResolution",
    "Outcome",
    "Owed",
    "PendingToolCall",
    "RunEntry",
    "RunResult",
    "State",
    "Step",
    "TurnRetried",
    "step_to_wire",
]
