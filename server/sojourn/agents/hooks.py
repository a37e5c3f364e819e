"""Hooks at work: where the loop and its transitions ask them, and what their answers do.

Rule: a hook runs outside of transitions, before what it may change is committed. `before_tool` is asked before a call
is gated, so that what a hook made of the arguments is what an approval shows, binds and runs. Without hooks each place
costs one look at an empty tuple.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from sojourn.core.approvals import args_sha256, misfit
from sojourn.core.errors import Cancelled, SojournError
from sojourn.core.messages import Content, InputPart, ToolCallPart, UserMessage, parts
from sojourn.core.run import InvalidToolCallAction, ModelTurn, NeedsResolution, PendingToolCall, RunEntry
from sojourn.core.values import clean
from sojourn.models.base import ModelAnswer, ModelRequest
from sojourn.store.base import ReadTx
from sojourn.store.records import AgentRecord, CallRecord, EntryRecord, RunRecord
from sojourn.tools import hooks as api
from sojourn.tools.base import ToolOutput

from . import ending, previews, rounds, stored
from .ledger import Ledger
from .passes import AskHooks, Over, Pass, Todo, insert_entry, read_entries

if TYPE_CHECKING:
    from .runtime import Runtime

log = logging.getLogger(__name__)

KIND = "hook"
"""The kind of the entries that say what a hook did to a call."""
WITHHELD = "The tool ran, but its result is withheld:"
Verdict = api.Veto | api.Replace | api.Answer | api.Stop


class Chain:
    """The hooks of the daemon, in the order in which they are asked."""

    def __init__(self, hooks: Sequence[api.Hook] = (), *, wait_s: float = 10) -> None:
        self.wait_s = wait_s
        self.before_model, self.on_invalid_call, self.before_tool, self.after_tool, self.on_run_end = (
            tuple(hook for hook in hooks if point in hook.functions) for point in api.POINTS
        )


class _Asking:
    """One visit of hooks at one point: the context they share, and what is to be told of it."""

    def __init__(self, rt: Runtime, ctx: api.HookContext) -> None:
        self._rt = rt
        self.ctx = ctx
        self.faults: list[tuple[str, str]] = []

    async def ask(self, hook: api.Hook, *arguments: Any) -> Any:
        """The hook's answer. Raises `HookFault` where a fault closes what it guards, else a fault is no answer."""
        try:
            return await hook.call(self.ctx.point, self.ctx, *arguments, within_s=self._rt.hooks.wait_s)
        except api.HookFault as fault:
            self.fault(hook, str(fault))
            if hook.closes and self.ctx.point in api.GUARDED:
                raise
            return None

    def fault(self, hook: api.Hook, why: str) -> str:
        """Notes what went wrong, for the warning; in words."""
        text = f"The hook {hook.name!r} failed at {self.ctx.point}: {why}."
        self.faults.append((hook.name, text))
        log.warning("%s (agent %s)", text, self.ctx.agent_id)
        return text

    def note(self, hook: api.Hook, call: CallRecord, action: str, **more: Any) -> None:
        """Notes in the run what a hook did to a call."""
        said = {"hook": hook.name, "action": action, "callId": call.call_id, "toolName": call.tool_name, **more}
        self.ctx.fresh.append(RunEntry(kind=KIND, turn=self.ctx.turn, value=said))

    def write(self, ledger: Ledger, agent: AgentRecord, record: RunRecord) -> None:
        """Keeps what was noted, and warns of what failed."""
        keep_entries(ledger, record.run_id, self.ctx.fresh)
        for name, text in self.faults:
            data = {"hook": name, "point": self.ctx.point}
            ledger.warning(agent, "hookFailed", text, run=record, data=data)

    async def commit(self, p: Pass) -> None:
        """`write` in a transition of its own, where there is something to write."""
        if self.ctx.fresh or self.faults:
            await self._rt.write("tell", lambda ledger: self.write(ledger, *p.records(ledger)))


def keep_entries(ledger: Ledger, run_id: str, entries: Sequence[RunEntry]) -> None:
    """Appends entries to a run."""
    position = ledger.tx.count(EntryRecord, run_id=run_id) if entries else 0
    for number, entry in enumerate(entries):
        insert_entry(ledger, run_id, position + number, entry)


async def _asking(rt: Runtime, p: Pass, point: api.Point) -> _Asking:
    seen = len(p.noted)
    fresh = await rt.store.read(lambda tx: read_entries(tx, p.run_id, after=seen - 1))
    p.noted.extend(fresh[len(p.noted) - seen :])  # another call of the round may have read them meanwhile
    ctx = api.HookContext(
        agent_id=p.agent_id,
        run_id=p.run_id,
        turn=p.run.turn,
        point=point,
        preset=p.config.preset,
        cwd=p.config.cwd,
        noted=list(p.noted),
    )
    return _Asking(rt, ctx)


# -- before a model call ----------------------------------------------------------------------------------------------


async def before_model(rt: Runtime, p: Pass, request: ModelRequest) -> ModelRequest:
    """The request as it is sent. Raises `Cancelled` when a hook stops the run, or fails in guarding it."""
    p.offered = None
    if not rt.hooks.before_model:
        return request
    asking = await _asking(rt, p, "before_model")
    try:
        for hook in rt.hooks.before_model:
            answer = await _ask_before_model(p, asking, hook, request)
            if isinstance(answer, api.Stop):
                raise Cancelled(f"The hook {hook.name!r} stopped the run: {answer.reason}", reason=answer.reason)
            if answer is not None:
                request = _changed(request, answer)
                p.offered = tuple(tool.name for tool in request.tools)
        return request
    finally:
        await asking.commit(p)


async def _ask_before_model(
    p: Pass, asking: _Asking, hook: api.Hook, request: ModelRequest
) -> api.Change | api.Stop | None:
    shown = api.Request(
        model=p.model_name,
        system=request.system,
        messages=tuple(request.messages),
        tools=tuple(tool.name for tool in request.tools),
        sampling=dict(request.sampling),
        turn=request.turn,
    )
    try:
        answer: api.Change | api.Stop | None = await asking.ask(hook, shown)
        if isinstance(answer, api.Change) and (fault := _misfit_change(answer, shown)):
            asking.fault(hook, fault)
            if hook.closes:
                raise api.HookFault(fault)
            return None
    except api.HookFault as fault:
        text = f"The hook {hook.name!r} failed before the model call, so nothing was sent: {fault}."
        raise Cancelled(text, reason="a hook failed") from None
    return answer


def _misfit_change(change: api.Change, request: api.Request) -> str | None:
    unknown = [name for name in change.tools or () if name not in request.tools]
    return f"its Change offers tools that are not there: {unknown!r}" if unknown else None


def _changed(request: ModelRequest, change: api.Change) -> ModelRequest:
    messages, tools = request.messages, request.tools
    if change.note is not None:
        messages = [*messages, UserMessage(content=parts(clean(change.note)))]
    if change.tools is not None:
        kept = set(change.tools)
        tools = tuple(tool for tool in tools if tool.name in kept)
    return replace(
        request,
        messages=messages,
        tools=tools,
        system=request.system if change.system is None else clean(change.system),
        sampling={**request.sampling, **(change.sampling or {})},
    )


# -- invalid calls ----------------------------------------------------------------------------------------------------


async def judge_invalid(rt: Runtime, p: Pass, message_id: str, answer: ModelAnswer) -> None:
    """Asks what to do with the calls of an answer that the model cannot make; the answers wait in `p.resolutions`."""
    p.resolutions = []
    if not rt.hooks.on_invalid_call or not _is_suspect(p, answer):
        return
    from . import turns

    asking = await _asking(rt, p, "on_invalid_call")
    ahead = p.run.model_copy(update={"messages": list(p.run.messages), "model_calls": list(p.run.model_calls)})
    ahead._ids = None
    actions: list[InvalidToolCallAction | None] = []
    try:
        outcome = ahead.model_response(_draft(p, turns.own_ids(message_id, answer.content), answer))
        while isinstance(outcome, NeedsResolution):
            action: InvalidToolCallAction | None = None
            for hook in rt.hooks.on_invalid_call:
                action = action or await asking.ask(hook, outcome.context)
            actions.append(action)
            outcome = ahead.resolve_invalid_tool_call(action or InvalidToolCallAction.retry("as usual"))
    except SojournError:
        pass  # what was chosen fails the run: it does so again where that is recorded
    p.resolutions = actions
    await asking.commit(p)


def chosen(p: Pass, usual: InvalidToolCallAction) -> InvalidToolCallAction:
    """What a hook said about the next invalid call, else what is usual."""
    return (p.resolutions.pop(0) if p.resolutions else None) or usual


def narrowed(p: Pass, turn: ModelTurn) -> ModelTurn:
    """The model's turn with only those tools allowed that hooks left it."""
    if p.offered is None:
        return turn
    allowed = turn.executable_tools if turn.allowed_tools is None else turn.allowed_tools
    return turn.model_copy(update={"allowed_tools": tuple(name for name in allowed if name in p.offered)})


def _is_suspect(p: Pass, answer: ModelAnswer) -> bool:
    known = p.tools if p.offered is None else p.offered
    calls = (part for part in answer.content if isinstance(part, ToolCallPart))
    return any(call.name not in known or not isinstance(call.arguments, dict) for call in calls)


def _draft(p: Pass, content: tuple[Any, ...], answer: ModelAnswer) -> ModelTurn:
    names = tuple(p.tools)
    return ModelTurn(
        content=content,
        finish_reason=answer.finish_reason,
        executable_tools=names,
        allowed_tools=names if p.offered is None else p.offered,
    )


# -- before tools -----------------------------------------------------------------------------------------------------


def enter_round(ledger: Ledger, rt: Runtime, p: Pass, calls: Sequence[PendingToolCall], *, fresh: bool = False) -> Todo:
    """A round begins: at once, or when the hooks have been asked about its calls. `fresh` as of `open_round`."""
    if not rt.hooks.before_tool:
        return rounds.open_round(ledger, rt, p, calls, fresh=fresh)
    agent, record = p.records(ledger)
    for position, pending in enumerate(calls):
        if ledger.call(agent.agent_id, pending.call.id) is None:
            ledger.adopt_call(rounds.new_row(ledger, p, agent, record, pending, position))
    ledger.set_state(agent, "running", "tool")
    p.save(ledger)
    return AskHooks(tuple(calls))


class Judged:
    """What hooks made of the calls of a round."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.asking: _Asking | None = None


async def judge_calls(rt: Runtime, p: Pass) -> Judged:
    """Asks the hooks about each call of the round, one after another."""
    rows = await rt.store.read(lambda tx: _proposed(tx, p))
    judged = Judged()
    judged.asking = asking = await _asking(rt, p, "before_tool")
    for row in rows:
        verdict = await _judge_call(rt, p, asking, row)
        if verdict is not None:
            judged.verdicts[row.call_id] = verdict
        if isinstance(verdict, api.Stop):
            break
    if any(isinstance(verdict, api.Replace) for verdict in judged.verdicts.values()):
        await _look_ahead(rt, p, rows, judged.verdicts)
    return judged


async def _look_ahead(rt: Runtime, p: Pass, rows: list[CallRecord], verdicts: dict[str, Verdict]) -> None:
    """What the calls would change, with the arguments that they have now."""
    calls = []
    for row in rows:
        verdict = verdicts.get(row.call_id, api.Replace(stored.args(row)))
        if isinstance(verdict, api.Replace):
            calls.append(ToolCallPart(id=row.call_id, name=row.tool_name, arguments=verdict.arguments))
    await previews.look_ahead(rt, p, [call for call in calls if previews.has(p, call)])


def _proposed(tx: ReadTx, p: Pass) -> list[CallRecord]:
    calls = p.run.round.calls if p.run.round is not None else ()
    rows = [tx.get(CallRecord, p.agent_id, call.id) for call in calls]
    return [row for row in rows if row is not None and row.state == "proposed"]


async def _judge_call(rt: Runtime, p: Pass, asking: _Asking, row: CallRecord) -> Verdict | None:
    arguments: dict[str, Any] = stored.args(row)
    replaced = False
    for hook in rt.hooks.before_tool:
        try:
            call = api.ToolCall(row.call_id, row.tool_name, orjson.loads(orjson.dumps(arguments)))
            answer: Verdict | None = await asking.ask(hook, call)
            if isinstance(answer, api.Replace):
                changed = _replacement(p, row, answer)
                if isinstance(changed, str):
                    asking.fault(hook, changed)
                    if hook.closes:
                        raise api.HookFault(changed)
                    continue
                arguments, replaced = changed, True
                asking.note(hook, row, "replace", argsSha256=args_sha256(arguments))
            elif answer is not None:
                asking.note(hook, row, type(answer).__name__.lower(), words=_words(answer))
                return answer
        except api.HookFault as fault:
            return api.Veto(f"the hook {hook.name!r}, which must be asked, failed: {fault}")
    return api.Replace(arguments) if replaced else None


def _replacement(p: Pass, row: CallRecord, answer: api.Replace) -> dict[str, Any] | str:
    """The arguments that a hook wants, or why they cannot be."""
    try:
        arguments: dict[str, Any] = orjson.loads(orjson.dumps(clean(answer.arguments)))
    except (TypeError, ValueError, SojournError) as error:
        return f"its Replace has arguments that are not JSON: {error}"
    tool = p.tools.get(row.tool_name)
    fault = misfit(arguments, tool.info.spec.input_schema) if tool is not None else None
    return arguments if fault is None else f"its arguments do not fit the schema of {row.tool_name!r}: {fault[1]}"


def _words(answer: api.Veto | api.Answer | api.Stop) -> str:
    said = answer.words if isinstance(answer, api.Veto) else answer.reason if isinstance(answer, api.Stop) else ""
    return str(clean(said))


def open_judged(ledger: Ledger, rt: Runtime, p: Pass, calls: Sequence[PendingToolCall], judged: Judged) -> Todo:
    """The hooks have been asked: what they decided is written, and the round opens."""
    agent, record = p.records(ledger)
    if not record.pass_open:
        return Over("stopped")  # it was ended while they were asked
    assert judged.asking is not None
    judged.asking.write(ledger, agent, record)
    for row in rounds.round_rows(ledger, p):
        verdict = judged.verdicts.get(row.call_id)
        if isinstance(verdict, api.Stop):
            text = f"A hook stopped the run at the call of {row.tool_name!r}: {_words(verdict)}"
            ledger.warning(agent, "hookStopped", text, run=record, data={"callId": row.call_id})
            return rounds.stop_round(ledger, p)
        if verdict is not None and row.state == "proposed":
            _apply(row, verdict)
            ledger.tx.update(row, "state", "result", "args", "args_sha256")
    return rounds.open_round(ledger, rt, p, calls)


def _apply(row: CallRecord, verdict: api.Veto | api.Replace | api.Answer) -> None:
    if isinstance(verdict, api.Veto):
        row.state = "denied"
        row.result = rounds.text_result(f"Not executed: {_words(verdict)}")
    elif isinstance(verdict, api.Answer):
        row.state = "returned"
        content = [clean(part.wire()) for part in as_parts(verdict.content)]
        row.result = orjson.dumps({"content": content, "isError": False, "pending": False}).decode()
    else:
        row.args = orjson.dumps(verdict.arguments).decode()
        row.args_sha256 = args_sha256(verdict.arguments)


# -- after a tool -----------------------------------------------------------------------------------------------------


async def after_tool(rt: Runtime, p: Pass, row: CallRecord, output: ToolOutput) -> ToolOutput:
    """The output as it is recorded."""
    if not rt.hooks.after_tool:
        return output
    asking = await _asking(rt, p, "after_tool")
    for hook in rt.hooks.after_tool:
        call = api.ToolCall(row.call_id, row.tool_name, stored.args(row))
        try:
            answer = await asking.ask(hook, call, output)
        except api.HookFault as fault:
            output = ToolOutput.error(f"{WITHHELD} the hook {hook.name!r}, which must be asked, failed: {fault}.")
            break
        if answer is not None:
            output = _output(answer, output)
            asking.note(hook, row, "result")
    await asking.commit(p)
    return output


def as_parts(content: Content) -> tuple[InputPart, ...]:
    """What a hook gave as content, as parts."""
    return tuple(parts(clean(content) if isinstance(content, str) else content))


def _output(answer: ToolOutput | str, old: ToolOutput) -> ToolOutput:
    if isinstance(answer, str):
        return replace(old, content=parts(clean(answer)))
    return replace(answer, content=as_parts(answer.content), is_pending=old.is_pending, sent=old.sent)


# -- the end ----------------------------------------------------------------------------------------------------------


async def run_ended(rt: Runtime, agent_id: str, run_id: str) -> None:
    """Tells the hooks what a run came to. They can note something; the run is over."""

    def query(tx: ReadTx) -> tuple[AgentRecord, RunRecord, list[RunEntry]] | None:
        agent, record = tx.get(AgentRecord, agent_id), tx.get(RunRecord, run_id)
        if agent is None or record is None or record.active or record.outcome is None:
            return None  # deleted, or the pass has ended and the run has not
        return agent, record, read_entries(tx, run_id)

    found = await rt.store.read(query)
    if found is None:
        return
    agent, record, entries = found
    outcome = await rt.store.read(lambda tx: ending.outcome_of(tx, record, agent))
    config = stored.config(agent)
    ctx = api.HookContext(
        agent_id, run_id, record.turn, "on_run_end", preset=config.preset, cwd=config.cwd, noted=entries
    )
    asking = _Asking(rt, ctx)
    for hook in rt.hooks.on_run_end:
        await asking.ask(hook, outcome)
    if ctx.fresh:
        await rt.write("tell", lambda ledger: keep_entries(ledger, run_id, ctx.fresh))
