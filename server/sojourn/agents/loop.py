"""The one loop: it does what the last transition said, and gives the answer to the next.

    AskModel  stream the model, tell its deltas, commit the answer        → turns.answered
    AskHooks  ask the hooks about the calls of a round      → hooks.open_judged
    RunTools  start tools, wait for a result or a decision, commit it     → rounds.returned, rounds.advance
    Wait      only a decision moves the run on: the loop ends             → a decision starts it again
    Over      the pass has ended

Prompt, resume, a decision after a restart and a step by hand that is handed back all enter here. Record = commit, then
publish; commit, then the effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from sojourn.core.errors import Aborted, DamagedRecord, ModelError, SojournError, StorageError
from sojourn.core.messages import ToolCallPart
from sojourn.models.base import ModelAnswer, ModelDelta, ModelEvent, ModelNotice, ModelRequest, ModelReset
from sojourn.store.records import CallRecord
from sojourn.tools.base import ToolOutput

from . import compaction, hooks, opening, previews, rounds, turns
from . import events_out as out
from .ledger import Ledger
from .passes import AskHooks, AskModel, Compact, Over, Pass, RunTools, Streamed, Todo, Wait
from .runtime import Runtime
from .toolset import run_tool

T = TypeVar("T")

log = logging.getLogger(__name__)

STOP_S = 5.0
STILL_AT_WORK = "The tool did not end when it was told to, and may still take effect."
"""How long a run whose stop was asked for waits for it to come, before it ends by itself."""


async def drive(rt: Runtime, p: Pass) -> None:
    """Drives the pass until it is over or only a decision moves it on. Being cancelled leaves it as it is on disk."""
    try:
        while p.todo is not None:
            match p.todo:
                case AskModel():
                    p.todo = await _ask(rt, p, p.todo)
                case Compact():
                    p.todo = await _compact(rt, p, p.todo)
                case AskHooks():
                    p.todo = await _judge(rt, p, p.todo)
                case RunTools():
                    p.todo = await _round(rt, p)
                case Wait() | Over():
                    return
    except DamagedRecord:
        rt.drop(p.agent_id)
        raise
    except StorageError as error:
        log.error("The run %s of %s is left as it is on disk: %s", p.run_id, p.agent_id, error)
        p.broken = error
        await leave_tools(p)
        rt.drop(p.agent_id)
    finally:
        await leave_tools(p)


async def leave_tools(p: Pass) -> None:
    """Cancels the tools at work in this process and waits for them."""
    p.leaving = True
    tasks = list(p.running.values())
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=1.0)
    for call_id, task in p.running.items():
        if not task.done():
            p.goes_on.setdefault(call_id, STILL_AT_WORK)
    p.running.clear()


# -- the model ------------------------------------------------------------------------------------------------------


async def _ask(rt: Runtime, p: Pass, todo: AskModel) -> Todo:
    try:
        answered = await _unless_given_up(p, _stream(rt, p, todo), within=p.seconds_left)
    except SojournError as error:
        if isinstance(error, StorageError):
            raise
        failure = error
        return await rt.write("end", lambda ledger: turns.model_failed(ledger, p, failure))
    except Exception as error:
        log.exception("The model %r failed in an unexpected way.", p.model_name)
        failure = ModelError(f"The model backend of {p.model_name!r} failed: {type(error).__name__}: {error}")
        return await rt.write("end", lambda ledger: turns.model_failed(ledger, p, failure))
    if answered is None:
        return await _cut(rt, p)
    answer, timing = answered
    p.previews.clear()
    if previews.wanted(p, answer.content):
        await _look_ahead(rt, p, previews.wanted(p, turns.own_ids(todo.message_id, answer.content)))
    return await _go_on(rt, p, lambda ledger: turns.answered(ledger, rt, p, answer, timing))


async def _look_ahead(rt: Runtime, p: Pass, calls: list[ToolCallPart]) -> None:
    await _ended(p, asyncio.create_task(previews.look_ahead(rt, p, calls), name=f"previews {p.agent_id}"))


async def _compact(rt: Runtime, p: Pass, todo: Compact) -> Todo:
    """Has the conversation summed up. A stop ends it; what fails is told, and the turn is tried all the same."""

    async def hear(event: ModelEvent, last: bool) -> None:
        if isinstance(event, ModelDelta) and last and event.kind == "text":
            _tell_delta(rt, p, todo.message_id, event)
        elif isinstance(event, ModelReset) and p.streamed:
            p.streamed.clear()
            await rt.write("tell", lambda ledger: out.message_reset(ledger, p, todo.message_id, event.reason))
        elif isinstance(event, ModelNotice):
            await rt.write("tell", lambda ledger: out.notice(ledger, p, event))

    plan = compaction.plan_for(p)
    summing = asyncio.create_task(compaction.ask(p.model, plan, hear), name=f"summary {p.agent_id}")
    if not await _ended(p, summing, within=p.seconds_left):
        return await _cut(rt, p)
    asked = summing.result()
    return await _go_on(rt, p, lambda ledger: turns.compacted(ledger, p, asked))


async def _judge(rt: Runtime, p: Pass, todo: AskHooks) -> Todo:
    judging = asyncio.create_task(hooks.judge_calls(rt, p), name=f"hooks {p.agent_id}")
    if not await _ended(p, judging):
        return await rt.write("end", lambda ledger: stop(ledger, p))
    judged = judging.result()
    return await _go_on(rt, p, lambda ledger: hooks.open_judged(ledger, rt, p, todo.calls, judged))


async def _cut(rt: Runtime, p: Pass) -> Todo:
    """A model call was given up: the run is to be stopped, or has no time left."""
    if p.stop_asked:
        return await rt.write("end", lambda ledger: stop(ledger, p))
    return await _go_on(rt, p, lambda ledger: turns.out_of_time(ledger, p))


async def _go_on(rt: Runtime, p: Pass, change: Callable[[Ledger], Todo]) -> Todo:
    """Commits what moves the run on; not when its stop was asked for, which comes here after the agent's children."""

    def unless_stopped(ledger: Ledger) -> Todo | None:
        record = p.records(ledger)[1]
        return None if record.pass_open and record.stop_requested else change(ledger)

    todo = await rt.write("model", unless_stopped)
    if todo is not None:
        return todo
    with contextlib.suppress(TimeoutError):  # whoever asked for it may have failed: then it is done here
        async with asyncio.timeout(STOP_S):
            await _stop_has_come(p)
    return await rt.write("end", lambda ledger: stop(ledger, p))


async def _stop_has_come(p: Pass) -> None:
    if not p.stop_asked:
        asked = asyncio.Event()
        p.give_up = asked.set
        try:
            await asked.wait()
        finally:
            p.give_up = None


async def _unless_given_up(p: Pass, work: Coroutine[Any, Any, T], *, within: float | None) -> T | None:
    """What the work comes to; None when it was given up, as in `_ended`. It is done in this very task, which spares
    several turns of the event loop, and must be work that ends when it is cancelled."""
    if p.stop_asked:
        work.close()
        return None
    try:
        async with asyncio.timeout(within) as limit:
            p.give_up = partial(_reach, limit)
            return await work
    except TimeoutError:
        if limit.expired():
            return None
        raise
    finally:
        p.give_up = None


def _reach(limit: asyncio.Timeout) -> None:
    if not limit.expired():
        limit.reschedule(0)


async def _ended(p: Pass, work: asyncio.Task[Any], *, within: float | None = None) -> bool:
    """Whether the work came to its end; it is given up when the run is to be stopped, or after `within` seconds."""
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await _answered_or_stopped(p, work)
        return work.done()
    finally:
        p.give_up = None
        await _cancel(work)


async def _answered_or_stopped(p: Pass, answering: asyncio.Task[Any]) -> None:
    if p.stop_asked:
        return
    over = asyncio.Event()
    p.give_up = over.set
    answering.add_done_callback(lambda _task: over.set())
    await over.wait()


async def _cancel(task: asyncio.Task[object]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)
    if task.done() and not task.cancelled():
        task.exception()  # marks it as seen


async def _stream(rt: Runtime, p: Pass, todo: AskModel) -> tuple[ModelAnswer, turns.Timing]:
    await rt.toolset.ready(rt, p)
    request = ModelRequest(
        messages=todo.messages,
        system=p.config.system_prompt,
        tools=tuple(tool.info.spec for tool in p.tools.values()),
        tool_choice=turns.choice_of(p),
        sampling=p.config.sampling or {},
        output_schema=None if p.run.output is None else p.run.output.json_schema,
        output_tool=p.run.output_tool,
        turn=todo.turn,
    )
    request = await hooks.before_model(rt, p, request)
    began = time.monotonic()
    first: float | None = None
    answer: ModelAnswer | None = None
    async with aclosing(p.model.stream(request)) as events:  # type: ignore[type-var]
        async for event in events:
            if isinstance(event, ModelDelta):
                first = first or time.monotonic()
                _tell_delta(rt, p, todo.message_id, event)
            elif isinstance(event, ModelReset):
                p.streamed.clear()
                reason = event.reason
                await rt.write("tell", lambda ledger, r=reason: out.message_reset(ledger, p, todo.message_id, r))  # type: ignore[misc]
            elif isinstance(event, ModelNotice):
                notice = event
                await rt.write("tell", lambda ledger, n=notice: out.notice(ledger, p, n))  # type: ignore[misc]
            else:
                answer = event
    if answer is None:
        raise ModelError(f"The model {p.model_name!r} ended its stream without an answer.")
    await hooks.judge_invalid(rt, p, todo.message_id, answer)
    return answer, turns.Timing(_ms(time.monotonic() - began), None if first is None else _ms(first - began))


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _tell_delta(rt: Runtime, p: Pass, message_id: str, delta: ModelDelta) -> None:
    piece = p.streamed.setdefault(delta.part, Streamed(delta.kind))
    offset = len(piece.text)
    piece.text += delta.text
    rt.feed.delta(p.agent_id, p.run_id, message_id, delta.part, delta.kind, offset, delta.text)


# -- the tools ------------------------------------------------------------------------------------------------------


async def _round(rt: Runtime, p: Pass) -> Todo:
    while isinstance(p.todo, RunTools):
        for call in () if p.stop_asked else p.todo.start:
            p.time_call(call.call_id)
            p.running[call.call_id] = asyncio.create_task(_run_call(rt, p, call), name=f"tool {call.call_id}")
        p.todo = RunTools()
        await _something_happened(rt, p)
        p.wake.clear()
        if p.broken is not None:
            raise p.broken
        if p.over and isinstance(p.todo, RunTools):
            await leave_tools(p)
            return Over("interrupted")
        if p.stop_asked:
            await leave_tools(p)
            return await rt.write("end", lambda ledger: stop(ledger, p))
        if p.nudged:
            p.nudged = False
            _merge(p, await rt.write("advance", lambda ledger: _advance(ledger, rt, p)))
    assert p.todo is not None
    return p.todo


async def _something_happened(rt: Runtime, p: Pass) -> None:
    """Returns when the round is to be looked at. Calls whose time is over meanwhile, and that have no limit of their
    own, are told to end: nothing else would end one that hangs."""
    if not p.timed:
        await p.wake.wait()
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, min(p.timed.values()) - time.monotonic())):
            await p.wake.wait()
            return
    await _end_unbounded(rt, p)


async def _end_unbounded(rt: Runtime, p: Pass) -> None:
    names = {call.id: call.name for call in p.run.round.calls} if p.run.round is not None else {}
    told: dict[str, asyncio.Task[None]] = {}
    for call_id in [call_id for call_id, ends_at in p.timed.items() if ends_at <= time.monotonic()]:
        del p.timed[call_id]
        tool = p.tools.get(names.get(call_id, ""))
        if tool is None or not tool.info.bounded:
            p.out_of_time.add(call_id)
            told[call_id] = p.running[call_id]
            told[call_id].cancel()
    if told:
        await asyncio.wait(told.values(), timeout=1.0)
    for call_id in [call_id for call_id, task in told.items() if not task.done() and call_id in p.out_of_time]:
        p.out_of_time.discard(call_id)
        p.left_behind.add(call_id)
        await _record(rt, p, call_id, ToolOutput.error(f"{rounds.OUT_OF_TIME} {STILL_AT_WORK}"))


def _cancelled(p: Pass, call: CallRecord) -> ToolOutput | None:
    """What a call came to whose tool ended by a cancellation; None when it is left to whoever stops or resumes it."""
    task = asyncio.current_task()
    assert task is not None
    if call.call_id in p.out_of_time and not p.leaving and task.uncancel() == 0:
        why = p.goes_on.pop(call.call_id, None)
        return ToolOutput.error(f"{rounds.OUT_OF_TIME} {why}" if why else rounds.OUT_OF_TIME)
    if not p.stop_asked and task.cancelling() == 0:
        return ToolOutput.error("The tool cancelled itself.")
    return None


def _advance(ledger: Ledger, rt: Runtime, p: Pass) -> Todo | None:
    record = p.records(ledger)[1]
    if p.run.state != "executing_tools" or record.stop_requested or not record.pass_open:
        return None
    return rounds.advance(ledger, rt, p)


def _merge(p: Pass, todo: Todo | None) -> None:
    """Takes what a transition said: calls to start join those that wait to be started."""
    if isinstance(todo, RunTools) and isinstance(p.todo, RunTools):
        p.todo = RunTools((*p.todo.start, *todo.start))
    elif todo is not None:
        p.todo = todo


def stop(ledger: Ledger, p: Pass) -> Over:
    """Stops the run wherever it stands; a pass that ended meanwhile stays as it ended."""
    record = p.records(ledger)[1]
    if not record.pass_open or record.driver != "agent":
        return Over("stopped")
    return opening.stop(ledger, p)


async def _run_call(rt: Runtime, p: Pass, call: CallRecord) -> None:
    """One tool call: its effect, then the record of its result. Errors are results that the model reads."""
    tool = p.tools.get(call.tool_name)
    output: ToolOutput | None = None
    try:
        if tool is None:
            output = ToolOutput.error(f"The tool {call.tool_name!r} is not available any more.")
        else:
            output = await run_tool(rt, p, call, tool)
    except Aborted:
        output = ToolOutput.error(rounds.STOPPED)
    except asyncio.CancelledError:
        output = _cancelled(p, call)
        if output is None:
            raise
    except (SystemExit, KeyboardInterrupt) as error:  # it ends the tool; asyncio would end the daemon
        output = ToolOutput.error(f"The tool ended with {type(error).__name__}: {error}")
    except Exception as error:
        log.debug("The tool %r failed.", call.tool_name, exc_info=True)
        output = ToolOutput.error(str(error) or type(error).__name__)
    finally:
        p.timed.pop(call.call_id, None)
        p.out_of_time.discard(call.call_id)
        if output is None:
            p.running.pop(call.call_id, None)
    if call.call_id in p.left_behind:
        return
    output = await hooks.after_tool(rt, p, call, output)
    await _record(rt, p, call.call_id, output)
    if output.sent is False and call.client_id is not None:  # its owner may have come back while this was written
        await rt.toolset.send_waiting(rt, call.client_id)


async def _record(rt: Runtime, p: Pass, call_id: str, output: ToolOutput) -> None:
    try:
        _merge(p, await rt.write("tool", lambda ledger: rounds.returned(ledger, rt, p, call_id, output)))
    except Exception as error:  # noqa: BLE001 - the driver raises it: a call without a record would hold its round for ever
        p.broken = error
    p.wake.set()
