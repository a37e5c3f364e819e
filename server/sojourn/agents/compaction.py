"""Compaction: when the model's window fills, the model itself sums up what came before; nothing is deleted.

The rule: a cut is only ever made between rounds. What the summary stands for is worked out by `make_plan`, the model
is asked by `ask` in pieces that fit its window, and the summary becomes a message like any other. Calls whose results
are still owed, and messages that are still to be answered, are restated in it word for word.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson

from sojourn.core import events as ev
from sojourn.core import hot_events as hot
from sojourn.core.agent import Caller, ModelCall
from sojourn.core.errors import AgentBusy, ModelError, SojournError
from sojourn.core.history import late_heading, since_summary
from sojourn.core.inbox import needs_reply
from sojourn.core.messages import (
    ImagePart,
    InputPart,
    Message,
    Part,
    SummaryMessage,
    TextPart,
    Usage,
    text_of,
    user,
)
from sojourn.models.base import NEUTRAL, Gauge, Model, ModelAnswer, ModelDelta, ModelEvent, ModelRequest, ModelReset
from sojourn.models.prices import priced
from sojourn.store.base import ReadTx
from sojourn.store.records import AgentRecord, RequestRecord, RunRecord

from . import stored
from .ending import add_usage, pending_of
from .ledger import Ledger, message_json
from .passes import Compact, Pass
from .runtime import Runtime, Stopping, weigh, weight_of

BYTES_PER_TOKEN = 4
UNKNOWN_WINDOW = 32_000
"""What is taken for a window whose size the config does not tell, when a client asks for a summary."""
KEPT, KEPT_AT_MOST = 0.25, 0.5
"""Which part of the window the newest rounds may fill and stay as they are: so much if rounds can be left out, else."""
MOST_OUTPUT = 4_096
STOP_S = 0.8
"""How long a stop waits for the model's connection to be closed."""
HALVINGS = 4
"""How often the pieces are halved when the model says that one is too long for it."""
INSTRUCTIONS = """\
You sum up the first part of a conversation between a user and an assistant that uses tools, so that the assistant can \
go on without having seen it. Keep what it will need: what the user wants and has decided, what was done and found \
out, names, numbers, paths and ids exactly as they are, what failed and why, and what is still to be done. Leave out \
greetings and repetition. Write plain notes, nothing else; do not answer the conversation and call no tools."""

Hear = Callable[[ModelEvent, bool], Awaitable[None]]
"""Is told what the model says; the flag marks the last piece, whose text is the summary itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a summary will stand for, from which message on things stay as they are, and what must be restated."""

    covered: tuple[Message, ...]
    kept_from: str | None
    restated: tuple[Message, ...]
    window: int


@dataclass(slots=True)
class Asked:
    """What came of asking: the text, or why there is none; and every answer, for each was paid for."""

    plan: Plan
    text: str = ""
    error: SojournError | None = None
    answers: list[tuple[ModelAnswer, int]] = field(default_factory=list)
    """Each answer and how many milliseconds it took."""


# -- when -------------------------------------------------------------------------------------------------------------


def used_tokens(p: Pass) -> int:
    """About how many tokens the next request takes: by its length, or more if the provider counted more so far."""
    seen = p.conversation
    gauge = p.model.gauge
    now, then = seen.weight.tokens(gauge), seen.counted_weight.tokens(gauge)
    guessed = now + int(len(p.config.system_prompt or "") / gauge.bytes_per_token)
    if p.tools:
        guessed += gauge.tools + 60 * len(p.tools)
    if seen.counted <= then:
        return guessed
    since = (now - then) * seen.counted // max(1, then)
    return max(guessed, seen.counted + since)


def is_due(p: Pass) -> bool:
    """Whether the window is so full that the conversation is to be summed up before the next turn."""
    window = p.model.spec.context_window
    if not window or not p.compact_at or used_tokens(p) < window * p.compact_at:
        return False
    return p.run.can_continue and len(p.conversation.messages) > p.compacted_at and _plan(p, window) is not None


def plan_for(p: Pass) -> Plan:
    """What is summed up when it `is_due`."""
    plan = _plan(p, p.model.spec.context_window or UNKNOWN_WINDOW)
    assert plan is not None
    return plan


def _plan(p: Pass, window: int) -> Plan | None:
    kept, most = int(window * KEPT), int(window * KEPT_AT_MOST)
    return make_plan(p.conversation.messages, window, kept=kept, most=most, gauge=p.model.gauge)


def begin(ledger: Ledger, p: Pass) -> Compact:
    """The summary's message is begun; the model is asked next."""
    agent, record = p.records(ledger)
    message_id = _begin_message(ledger, agent, record)
    record.streaming_message = message_id
    ledger.set_state(agent, "running", "model")
    p.save(ledger)
    p.streamed.clear()
    return Compact(message_id)


def _begin_message(ledger: Ledger, agent: AgentRecord, run: RunRecord | None) -> str:
    message_id = f"msg-{agent.next_message}"
    agent.next_message += 1
    ledger.event(agent, hot.message_start(message_id, "summary"), run=run)
    return message_id


# -- what -------------------------------------------------------------------------------------------------------------


def make_plan(messages: Sequence[Message], window: int, *, kept: int, most: int, gauge: Gauge = NEUTRAL) -> Plan | None:
    """Where a conversation is cut; None when nothing can be summed up.

    The newest rounds that take at most `kept` tokens stay as they are, or the newest one when it takes at most `most`;
    a round without all of its results stays in any case.
    """
    seen = since_summary(messages)
    cuts = list(_cuts(seen))
    if not cuts:
        return None
    sizes = [weigh(message, message_json(message)).tokens(gauge) for message in seen]
    fitting = [cut for cut in cuts if 0 < sum(sizes[cut:]) <= kept]
    newest = [cut for cut in cuts if 0 < sum(sizes[cut:]) <= most][-1:]
    cut = (fitting or newest or cuts[-1:])[0]
    covered = tuple(seen[:cut])
    if all(message.role == "summary" for message in covered):
        return None
    kept_from = seen[cut].message_id if cut < len(seen) else None
    return Plan(covered, kept_from, _unanswered(covered) if kept_from is None else (), window)


def _cuts(seen: Sequence[Message]) -> Iterator[int]:
    """Every position at which no round is open, the end included."""
    owed: list[str] = []
    for position, message in enumerate(seen):
        if message.role == "assistant":
            owed = []
        if position and not owed and message.role not in ("toolResult", "summary") and message.message_id:
            yield position
        if message.role == "assistant":
            owed = [call.id for call in message.calls]
        elif message.role == "toolResult" and message.call_id in owed:
            owed.remove(message.call_id)
    if seen and not owed:
        yield len(seen)


def _unanswered(covered: Sequence[Message]) -> tuple[Message, ...]:
    """The user's last words, and what came in after the model's last ones, where the model owes an answer."""
    if not needs_reply(covered):
        return ()
    asked = max((n for n, message in enumerate(covered) if message.role == "user"), default=-1)
    spoke = max((n for n, message in enumerate(covered) if message.role == "assistant"), default=-1)
    return tuple(
        message
        for n, message in enumerate(covered)
        if n == asked or (n > spoke and message.role in ("user", "lateResult"))
    )


# -- asking -----------------------------------------------------------------------------------------------------------


async def ask(model: Model, plan: Plan, hear: Hear) -> Asked:
    """Has the model sum up what the plan covers, in as many requests as it takes. What fails is in `Asked.error`."""
    asked = Asked(plan)
    size = plan.window * BYTES_PER_TOKEN // 2
    for halving in range(HALVINGS + 1):
        try:
            asked.text = await _sum_up(model, plan, size, hear, asked)
        except ModelError as error:
            if error.data.get("reason") == "contextWindow" and halving < HALVINGS:
                size //= 2
                await hear(ModelReset("retry"), True)
                continue
            asked.error = error
        return asked
    raise AssertionError("unreachable")


async def _sum_up(model: Model, plan: Plan, size: int, hear: Hear, asked: Asked) -> str:
    limit = max(64, min(MOST_OUTPUT, plan.window // 8))
    notes = next((text_of(message.content) for message in plan.covered if message.role == "summary"), "")
    script = "\n\n".join(_told(message) for message in plan.covered if message.role != "summary")
    pieces = list(_pieces(script, max(256, size)))
    for number, piece in enumerate(pieces, 1):
        said = f"Your notes on what came before:\n{_clipped(notes, size // 2)}\n\n" if notes else ""
        part = f" (part {number} of {len(pieces)})" if len(pieces) > 1 else ""
        request = ModelRequest(
            messages=[user(f"{said}The conversation to sum up{part}:\n\n{piece}\n\nWrite the notes now.")],
            system=INSTRUCTIONS,
            sampling={"maxTokens": limit},
        )
        notes = await _answer(model, request, hear, asked, last=number == len(pieces))
    return notes


async def _answer(model: Model, request: ModelRequest, hear: Hear, asked: Asked, *, last: bool) -> str:
    began = time.monotonic()
    answer: ModelAnswer | None = None
    try:
        async with aclosing(model.stream(request)) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, ModelAnswer):
                    answer = event
                else:
                    await hear(event, last)
    except SojournError:
        raise
    except Exception as error:  # a backend's own mistake must not end the run: the turn is tried without a summary
        raise ModelError(f"The model backend failed: {type(error).__name__}: {error}") from error
    if answer is None:
        raise ModelError("The model ended its stream without an answer.")
    asked.answers.append((answer, int((time.monotonic() - began) * 1000)))
    text = text_of(answer.content).strip()
    if not text:
        raise ModelError(f"The model gave no summary (finish reason {answer.finish_reason!r}).")
    return text


def _told(message: Message) -> str:
    head = {"user": "[user]", "assistant": "[assistant]", "system": "[system]"}.get(message.role, "")
    if message.role == "toolResult":
        state = ", failed" if message.is_error else ", a placeholder" if message.pending else ""
        head = f"[result of {message.tool_name} ({message.call_id}){state}]"
    elif message.role == "lateResult":
        head = late_heading(message)
    return "\n".join([head, *(said for part in message.content if (said := _told_part(part)))])


def _told_part(part: Part) -> str:
    match part.type:
        case "text" | "refusal":
            return part.text
        case "image":
            return "[an image]"
        case "resource":
            return f"[{part.uri}]\n{part.text or ''}"
        case "toolCall":
            return f"[calls {part.name} ({part.id}) with {orjson.dumps(part.arguments).decode()}]"
        case _:
            return ""


def _pieces(text: str, size: int) -> Iterator[str]:
    """`text` in pieces of at most `size` bytes, cut at the end of a line where one is near."""
    while text:
        piece = text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore") if len(text) * 4 > size else text
        if len(piece) < len(text) and (line := piece.rfind("\n", len(piece) // 2)) > 0:
            piece = piece[: line + 1]
        yield piece
        text = text[len(piece) :]


def _clipped(text: str, size: int) -> str:
    """`text`, its middle left out where it is longer than `size` bytes; a line says so."""
    if len(text.encode("utf-8", "replace")) <= size:
        return text
    half = max(1, size // 8)
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters are left out here …]\n{text[-half:]}"


# -- what comes of it -------------------------------------------------------------------------------------------------


def summary(tx: ReadTx, agent: AgentRecord, message_id: str, asked: Asked, *, at: str | None = None) -> SummaryMessage:
    """The summary as a message, with what is still owed and what is still to be answered."""
    plan = asked.plan
    size = plan.window * BYTES_PER_TOKEN // 4
    texts = [asked.text]
    if plan.restated:
        told = "\n".join(_clipped(_told(message), size) for message in plan.restated)
        texts.append(f"[not answered yet, word for word]\n{told}")
    if pending := pending_of(tx, agent):
        lines = [
            f"- {call.tool_name} ({call.call_id}), started {call.since}, with {orjson.dumps(call.args).decode()}: "
            f"{text_of(call.placeholder)}"
            for call in pending
        ]
        texts.append("\n".join(["[calls whose results are still to come]", *(_clipped(line, size) for line in lines)]))
    images = [part for message in plan.restated for part in message.content if isinstance(part, ImagePart)]
    content: tuple[InputPart, ...] = (TextPart(text="\n\n".join(texts)), *images)
    return SummaryMessage(content=content, kept_from=plan.kept_from, message_id=message_id, at=at)


def count(
    ledger: Ledger, agent: AgentRecord, model: Model, message_id: str, asked: Asked, *, run: RunRecord | None
) -> Iterator[ModelCall]:
    """Tells what each request took and adds it to the agent's usage; the calls, for the run's."""
    for answer, took_ms in asked.answers:
        usage = priced(answer.usage, model.spec.price)
        stats = hot.generation_stats(
            answer.model or model.spec.name,
            usage,
            duration_ms=took_ms,
            first_token_ms=None,
            finish_reason=answer.finish_reason,
        )
        ledger.event(agent, stats, run=run)
        add_usage(agent, usage)
        yield ModelCall(
            index=0,
            usage=usage or Usage(),
            finish_reason=answer.finish_reason,
            message_id=message_id,
            response_id=answer.response_id,
            request_id=answer.request_id,
        )


def tell(
    ledger: Ledger,
    agent: AgentRecord,
    message_id: str,
    asked: Asked,
    before: int,
    after: int,
    *,
    run: RunRecord | None,
) -> None:
    """The `warning` that says what was done, or that it failed."""
    data: dict[str, Any] = {"messageId": message_id, "requests": len(asked.answers), "tokensBefore": before}
    if asked.error is not None:
        ledger.event(agent, ev.MessageReset(message_id=message_id, reason="cut"), run=run)
        text = f"The conversation could not be summed up: {asked.error.message}"
        ledger.warning(agent, "compactionFailed", text, run=run, data=data)
        return
    text = f"The conversation was summed up: about {before} tokens became {after}. Nothing was deleted."
    ledger.warning(agent, "compacted", text, run=run, data={**data, "tokensAfter": after})


# -- when a client asks -----------------------------------------------------------------------------------------------


async def compact(rt: Runtime, caller: Caller, agent_id: str) -> Any:
    """`agent/compact`: sums up the whole conversation now. Raises `AgentBusy`, `ModelError`.

    `messageId` is left out when there is nothing to sum up.
    """
    if caller.request_id is not None and await rt.store.read(lambda tx: _was_made(tx, caller)):
        return await rt.answer_once(caller, "compact", lambda _ledger: None)
    agent = await rt.agent(agent_id)
    await rt.store.read(lambda tx: _refuse_busy(agent, tx.get(RunRecord, agent.active_run_id or "")))
    model = rt.model_of(rt.model_name(rt.config_of(stored.config(agent))))
    conversation = await rt.conversations.load(rt.store, agent)
    before, seen = conversation.weight.tokens(model.gauge), (agent.conversation, agent.message_count)
    plan = make_plan(conversation.messages, model.spec.context_window or UNKNOWN_WINDOW, kept=0, most=0)
    if plan is None:
        return {"tokensBefore": before, "tokensAfter": before}
    if agent_id in rt.compacting:
        raise AgentBusy(f"The conversation of {agent_id!r} is being summed up already.")
    stopping = rt.compacting[agent_id] = Stopping()
    message_id = ""
    asked = Asked(plan, error=ModelError("It was cancelled."))
    try:
        message_id = await rt.write("tell", lambda ledger: _begin_message(ledger, ledger.agent(agent_id), None))
        asked = await _ask_or_stop(ask(model, plan, _teller(rt, agent_id, message_id)), stopping, plan)
    finally:
        try:
            if asked.error is not None and message_id:
                await rt.write("tell", lambda ledger: _failed(ledger, agent_id, model, message_id, asked, before))
        finally:
            del rt.compacting[agent_id]
            stopping.over.set()
    if asked.error is not None:
        raise asked.error

    def change(ledger: Ledger) -> Any:
        now = ledger.agent(agent_id)
        list(count(ledger, now, model, message_id, asked, run=None))
        if (now.conversation, now.message_count) != seen:
            asked.error = AgentBusy(f"The agent {agent_id!r} went on meanwhile; compact it again when it rests.")
            tell(ledger, now, message_id, asked, before, before, run=None)
            return asked.error
        _refuse_busy(now, ledger.active_run(now))
        message = summary(ledger.tx, now, message_id, asked, at=ledger.now)
        body = ledger.append_message(now, message)
        ledger.show_message(now, message, body, run=None, started=True)
        after = weight_of(since_summary([*conversation.messages, message])).tokens(model.gauge)
        tell(ledger, now, message_id, asked, before, after, run=None)
        return {"messageId": message_id, "tokensBefore": before, "tokensAfter": after}

    answer = await rt.answer_once(caller, "compact", change)
    rt.conversations.forget(conversation.id)
    return answer


async def stop(rt: Runtime, agent_id: str) -> bool:
    """Ends the `agent/compact` of an agent if one is under way; whether there was one. Returns when it has ended."""
    stopping = rt.compacting.get(agent_id)
    if stopping is None:
        return False
    stopping.asked.set()
    await stopping.over.wait()
    return True


async def _ask_or_stop(asking: Coroutine[Any, Any, Asked], stopping: Stopping, plan: Plan) -> Asked:
    summing, stop_asked = asyncio.create_task(asking), asyncio.create_task(stopping.asked.wait())
    try:
        await asyncio.wait({summing, stop_asked}, return_when=asyncio.FIRST_COMPLETED)
        if summing.done():
            return summing.result()
        return Asked(plan, error=ModelError("It was stopped.", reason="stopped", retryable=False))
    finally:
        stop_asked.cancel()
        summing.cancel()
        await asyncio.wait({summing, stop_asked}, timeout=STOP_S)


def _was_made(tx: ReadTx, caller: Caller) -> bool:
    return tx.get(RequestRecord, caller.client_id or "", caller.request_id or "") is not None


def _refuse_busy(agent: AgentRecord, run: RunRecord | None) -> None:
    if run is None or not (run.pass_open or run.state == "executing_tools"):
        return
    what = "at work" if run.pass_open else "in the middle of a tool round"
    raise AgentBusy(
        f"The agent {agent.agent_id!r} is {what}; its conversation is summed up between rounds only.", runId=run.run_id
    )


def _failed(ledger: Ledger, agent_id: str, model: Model, message_id: str, asked: Asked, before: int) -> None:
    agent = ledger.agent(agent_id)
    list(count(ledger, agent, model, message_id, asked, run=None))
    tell(ledger, agent, message_id, asked, before, before, run=None)


def _teller(rt: Runtime, agent_id: str, message_id: str) -> Hear:
    told = [0]

    async def hear(event: ModelEvent, last: bool) -> None:
        if isinstance(event, ModelDelta) and last and event.kind == "text":
            rt.feed.delta(agent_id, None, message_id, 0, "text", told[0], event.text)
            told[0] += len(event.text)
        elif isinstance(event, ModelReset) and told[0]:
            told[0] = 0
            reset = ev.MessageReset(message_id=message_id, reason=event.reason)
            await rt.write("tell", lambda ledger: ledger.event(ledger.agent(agent_id), reset) and None)

    return hear
