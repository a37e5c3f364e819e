"""The transitions of a turn: a pass begins, a model call is about to be made, the model has answered.

Each function runs inside one transition of the store and answers what the loop does next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sojourn.core import events as ev
from sojourn.core import hot_events as hot
from sojourn.core.agent import Cause, Origin
from sojourn.core.errors import MaxTurns, ModelError, RunFailed, SojournError
from sojourn.core.messages import Part, TextPart, ToolCallPart, ToolChoice, Usage
from sojourn.core.run import (
    CallModel,
    CallTools,
    Done,
    InvalidToolCallAction,
    ModelTurn,
    NeedsResolution,
)
from sojourn.models.base import ModelAnswer
from sojourn.models.prices import priced
from sojourn.store.records import AgentRecord, RunRecord

from . import clock, compaction, ending, hooks, mailbox
from .children import nest_of
from .ledger import Ledger
from .passes import AskModel, Over, Pass, Todo
from .runtime import Runtime


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a model call took, in milliseconds."""

    total_ms: int
    first_token_ms: int | None


def start(
    ledger: Ledger, p: Pass, cause: Cause, *, driver: str = "agent", origin: Origin | None = None
) -> tuple[AgentRecord, RunRecord]:
    """Opens a pass: `agentStart`."""
    agent, record = p.records(ledger)
    record.active, record.pass_open, record.driver, record.cause = True, True, driver, cause
    record.pass_first_seq, record.pass_first_message = agent.last_seq + 1, agent.message_count
    agent.active_run_id = record.run_id
    p.bodies = []
    p.count_time(record.created_at)
    p.nest = nest_of(ledger.tx, record)
    ledger.event(agent, hot.agent_start(cause), run=record, origin=origin)
    ledger.save_run(record)
    return agent, record


def turn(ledger: Ledger, p: Pass) -> Todo:
    """Before a model call: the turn is counted and its message begun, or the budget or a limit ends the pass."""
    agent, record = p.records(ledger)
    limit = _limit_reached(p, record)
    if limit is not None:
        return _pause(ledger, p, *limit)
    if compaction.is_due(p):
        return compaction.begin(ledger, p)
    try:
        step = p.run.next_step()
    except MaxTurns as error:
        return ending.end(ledger, p, "maxTurns", error=ending.error_info(error))
    assert isinstance(step, CallModel)
    message_id = f"msg-{agent.next_message}"
    agent.next_message += 1
    record.streaming_message = message_id
    p.save(ledger)
    p.streamed.clear()
    ledger.event(agent, hot.turn_start(step.turn), run=record)
    ledger.event(agent, _budget(p), run=record)
    ledger.event(agent, hot.message_start(message_id, "assistant"), run=record)
    ledger.set_state(agent, "running", "model")
    messages = step.history  # made for this step: nobody else has it, and a copy of a long one costs
    messages.append(step.prompt)
    return AskModel(message_id, messages, step.turn)


def _pause(ledger: Ledger, p: Pass, name: str, value: float, most: float) -> Over:
    agent, record = p.records(ledger)
    text = f"The run reached its limit {name!r}: {value} of {most}. Raise the limit and resume it to go on."
    ledger.warning(agent, "limitReached", text, run=record, data={"limit": name, "value": value, "max": most})
    return ending.end(ledger, p, "paused")


def out_of_time(ledger: Ledger, p: Pass) -> Over:
    """The time of the run is over while a model writes: nothing of its answer is kept, a resume asks it again."""
    agent, record = p.records(ledger)
    if not record.pass_open:
        return Over("paused")
    if record.streaming_message is not None:
        ledger.event(agent, ev.MessageReset(message_id=record.streaming_message, reason="cut"), run=record)
        record.streaming_message = None
    p.streamed.clear()
    if p.run.state == "awaiting_model":
        ledger.event(agent, hot.turn_end(p.run.turn), run=record)
        p.run.withdraw_call()
    assert p.config.limits is not None
    most = p.config.limits.wall_clock_s or 0.0
    return _pause(ledger, p, "wallClockS", max(round(clock.seconds_since(record.created_at), 3), most), most)


def _budget(p: Pass) -> hot.WireEvent:
    return hot.context_budget(compaction.used_tokens(p), p.model.spec.context_window, 0)


def _limit_reached(p: Pass, record: RunRecord) -> tuple[str, float, float] | None:
    limits = p.config.limits
    if limits is None:
        return None
    usage = p.run.usage
    if limits.cost is not None and usage.cost is not None and usage.cost >= limits.cost:
        return "cost", usage.cost, limits.cost
    if limits.tokens is not None and usage.input_tokens + usage.output_tokens >= limits.tokens:
        return "tokens", usage.input_tokens + usage.output_tokens, limits.tokens
    spent = clock.seconds_since(record.created_at)
    if limits.wall_clock_s is not None and spent >= limits.wall_clock_s:
        return "wallClockS", round(spent, 3), limits.wall_clock_s
    return None


def own_ids(message_id: str, content: Sequence[Part]) -> tuple[Part, ...]:
    """The content with our call ids, `<message id>-call-<i>`; the provider's own stay in `provider_id`."""
    parts: list[Part] = []
    number = 0
    for part in content:
        if isinstance(part, ToolCallPart):
            number += 1
            original = part.provider_id or part.id or None
            part = part.but(id=f"{message_id}-call-{number}", provider_id=original)
        parts.append(part)
    return tuple(parts)


def answered(ledger: Ledger, rt: Runtime, p: Pass, answer: ModelAnswer, timing: Timing) -> Todo:
    """The model has answered: its message is kept, its calls are gated and dispatched, or the run ends."""
    agent, record = p.records(ledger)
    message_id = record.streaming_message
    if not record.pass_open or message_id is None:
        return Over("stopped")  # it was ended while the model was asked
    record.streaming_message = None
    p.streamed.clear()
    usage = priced(answer.usage, p.model.spec.price)
    ledger.event(agent, _stats(p, answer, usage, timing), run=record)
    ending.add_usage(agent, usage)
    choice = choice_of(p)
    try:
        step = _feed(
            p,
            ModelTurn.trusted(
                content=own_ids(message_id, answer.content),
                usage=usage,
                finish_reason=answer.finish_reason,
                message_id=message_id,
                at=ledger.now,
                model=answer.model or p.model_name,
                response_id=answer.response_id,
                request_id=answer.request_id,
                raw=None,
                executable_tools=tuple(p.tools),
                allowed_tools=_allowed(p, choice),
            ),
        )
    except (RunFailed, ModelError) as error:
        ledger.event(agent, ev.MessageReset(message_id=message_id, reason="cut"), run=record)
        return _failed(ledger, p, agent, record, error)
    kept = show(ledger, p, agent, record, message_id)
    if not kept:
        ledger.event(agent, ev.MessageReset(message_id=message_id, reason="cut"), run=record)
    if isinstance(step, CallTools):
        return hooks.enter_round(ledger, rt, p, step.calls, fresh=True)
    ledger.event(agent, hot.turn_end(p.run.turn), run=record)
    if isinstance(step, Done):
        return final(ledger, p)
    return next_turn(ledger, p)


def _feed(p: Pass, model_turn: ModelTurn) -> CallTools | Done | None:
    """Gives the machine the model's turn; None when it has to be asked again. The daemon answers a slip by `retry`."""
    outcome = p.run.model_response(hooks.narrowed(p, model_turn))
    while isinstance(outcome, NeedsResolution):
        context = outcome.context
        known = ", ".join(context.allowed_tools) or "none"
        feedback = (
            f"There is no valid call here: {context.reason} ({context.tool_name!r}). Tools you can call: {known}."
        )
        outcome = p.run.resolve_invalid_tool_call(hooks.chosen(p, InvalidToolCallAction.retry(feedback)))
    if p.run.state == "preparing":
        return None
    step = p.run.next_step()
    if isinstance(step, CallModel):  # the output was not valid: the turn that asks again begins like any other
        p.run.withdraw_call()
        return None
    return step


def choice_of(p: Pass) -> ToolChoice | None:
    """The tool choice of the next turn. One that makes the model call holds until it has, or it could never answer."""
    choice = p.run.choice
    if choice is None or choice.mode in ("auto", "none"):
        return choice
    called = any(message.role == "assistant" and message.calls for message in p.run.messages)
    return None if called else choice


def _allowed(p: Pass, choice: ToolChoice | None) -> tuple[str, ...]:
    if choice is None or choice.mode in ("auto", "required"):
        return tuple(p.tools)
    return () if choice.name is None else (choice.name,)


def show(ledger: Ledger, p: Pass, agent: AgentRecord, record: RunRecord, started: str | None) -> bool:
    """Saves the run and shows its new messages; whether the message `started` (begun before) was among them."""
    kept = False
    for message, body in p.save(ledger):
        was_started = message.message_id == started
        kept = kept or was_started
        ledger.show_message(agent, message, body, run=record, started=was_started)
    return kept


def final(ledger: Ledger, p: Pass) -> Todo:
    """The final answer: what reached the inbox meanwhile is answered in this run when a turn is left, else it ends.

    The inbox is read in the transition that would end the run, so no message falls between "empty" and "over".
    """
    agent = p.records(ledger)[0]
    if agent.inbox and p.run.can_continue and mailbox.read(ledger, p):
        return turn(ledger, p)
    return ending.end(ledger, p, "done")


def next_turn(ledger: Ledger, p: Pass) -> Todo:
    """Before every model call after the first: the inbox is read, then the turn begins."""
    if p.records(ledger)[0].inbox:
        mailbox.read(ledger, p)
    return turn(ledger, p)


def _failed(ledger: Ledger, p: Pass, agent: AgentRecord, record: RunRecord, error: Exception) -> Over:
    ledger.event(agent, hot.turn_end(p.run.turn), run=record)
    return ending.end(ledger, p, "failed", error=ending.error_info(error))


def model_failed(ledger: Ledger, p: Pass, error: Exception) -> Over:
    """The model could not answer: nothing of its answer is kept, the run ends as failed with the provider's words."""
    agent, record = p.records(ledger)
    if not record.pass_open:
        return Over("stopped")
    if record.streaming_message is not None:
        reset = ev.MessageReset(message_id=record.streaming_message, reason="cut")
        ledger.event(agent, reset, run=record)
        record.streaming_message = None
    p.run.abandon(error if isinstance(error, SojournError) else ModelError(str(error)))
    return _failed(ledger, p, agent, record, error)


def compacted(ledger: Ledger, p: Pass, asked: compaction.Asked) -> Todo:
    """The conversation was summed up, or could not be: the turn that waited for it begins."""
    agent, record = p.records(ledger)
    message_id = record.streaming_message
    assert message_id is not None
    record.streaming_message, record.crashes = None, 0
    p.streamed.clear()
    for call in compaction.count(ledger, agent, p.model, message_id, asked, run=record):
        p.run.count_call(call)
    before = compaction.used_tokens(p)
    if asked.error is None:
        p.run.inject([compaction.summary(ledger.tx, agent, message_id, asked)])
        show(ledger, p, agent, record, message_id)
    p.compacted_at = len(p.conversation.messages)
    compaction.tell(ledger, agent, message_id, asked, before, compaction.used_tokens(p), run=record)
    return turn(ledger, p)


def stop_model_call(ledger: Ledger, p: Pass) -> Over:
    """Stopped while the model was writing: whole text that was streamed is kept as a message, half calls are not."""
    agent, record = p.records(ledger)
    message_id = record.streaming_message
    record.streaming_message = None
    text = "".join(piece.text for _, piece in sorted(p.streamed.items()) if piece.kind == "text")
    p.streamed.clear()
    if p.run.state == "awaiting_model" and message_id is not None:
        if text:
            p.run.model_response(
                ModelTurn(
                    content=(TextPart(text=text),),
                    finish_reason="stopped",
                    message_id=message_id,
                    at=ledger.now,
                    model=p.model_name,
                )
            )
            p.run.next_step()
            show(ledger, p, agent, record, message_id)
        else:
            ledger.event(agent, ev.MessageReset(message_id=message_id, reason="cut"), run=record)
            p.run.abandon(ending.stopped_by_user())
        ledger.event(agent, hot.turn_end(p.run.turn), run=record)
    elif message_id is not None:
        ledger.event(agent, ev.MessageReset(message_id=message_id, reason="cut"), run=record)
    return ending.end(ledger, p, "stopped")


def _stats(p: Pass, answer: ModelAnswer, usage: Usage | None, timing: Timing) -> hot.WireEvent:
    return hot.generation_stats(
        answer.model or p.model_name,
        usage,
        duration_ms=timing.total_ms,
        first_token_ms=timing.first_token_ms,
        finish_reason=answer.finish_reason,
    )
