"""Tools that a connected client runs: the call goes to its owner as `tool/execute`, the answer comes back as a result.

Rule: a call whose owner is away, silent for too long or lost in the middle is pending, never failed: only its owner
knows whether it took effect. The hub says who the newest connection of the owner is and keeps what must survive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
from pydantic import ConfigDict, ValidationError, model_validator

from sojourn.core.errors import AlreadyDecided, CallNotFound, ClientRefused, InvalidParams
from sojourn.core.messages import InputPart, parts, text_of
from sojourn.core.values import Value, clean

from .base import ToolContext, ToolInfo, ToolOutput

logger = logging.getLogger(__name__)

Send = Callable[[dict[str, Any]], Awaitable[Any]]
"""Sends `tool/execute` with these params to the newest connection of the owner and answers its result.

Raises `OwnerAway` before anything was sent, `core.errors.ClientRefused` for an error answer, `ConnectionError` or one
of anyio's stream errors when the connection ended first. Being cancelled cancels the request.
"""
OnLate = Callable[[ToolContext, ToolOutput], Awaitable[None]]
"""Takes the answer that came after its call had become pending."""
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]

DEFAULT_WAIT_S = 60.0
_LOST = (ConnectionError, EOFError, anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream)


class OwnerAway(Exception):
    """The client that owns a tool has no connection; nothing was sent."""


class ClientAnswer(Value):
    """The answer to `tool/execute`. Unknown fields are ignored, as in every answer from outside."""

    model_config = ConfigDict(extra="ignore")

    content: str | tuple[InputPart, ...] = ()
    is_error: bool = False
    pending: bool = False

    @model_validator(mode="after")
    def _not_both(self) -> ClientAnswer:
        if self.is_error and self.pending:
            raise ValueError("an answer is either an error or pending")
        return self


class ClientTool:
    """One registered tool of one client.

    `wait_s`: how long the owner may be silent before its call becomes pending (`limits.client_tool_wait_s`); its answer
    is then awaited in a task made by `spawn` and handed to `on_late`. Without `spawn` the task belongs to this tool,
    until `aclose`; without `on_late` the answer goes through the agent's inbox. A call that was never sent
    (`ToolOutput.sent` is False) may be executed again when its owner is back, once.
    """

    def __init__(
        self,
        info: ToolInfo,
        client_id: str,
        send: Send,
        *,
        wait_s: float = DEFAULT_WAIT_S,
        on_late: OnLate | None = None,
        spawn: Spawn | None = None,
    ) -> None:
        self.info = info
        self.client_id = client_id
        self._send = send
        self._wait_s = wait_s
        self._on_late = on_late or through_inbox
        self._spawn = spawn or self._keep
        self._late: set[asyncio.Task[None]] = set()

    async def execute(self, args: dict[str, Any], ctx: ToolContext) -> ToolOutput:
        """Asks the owner. Cancelling takes the request back (`$/cancelRequest`)."""
        params = {
            "agentId": ctx.agent_id,
            "runId": ctx.run_id,
            "callId": ctx.call_id,
            "name": self.info.spec.name,
            "arguments": args,
        }
        request = asyncio.create_task(self._ask(params), name=f"tool/execute {ctx.agent_id} {ctx.call_id}")
        try:
            await asyncio.wait({request}, timeout=self._wait_s)
        except asyncio.CancelledError:
            request.cancel()
            await asyncio.wait({request}, timeout=1)
            raise
        if request.cancelled():  # by whoever carries it out, not by us: the connection was taken down
            return self._lost()
        if request.done():
            return request.result()
        late = self._spawn(self._deliver_late(request, ctx))
        late.add_done_callback(lambda _: request.cancel())  # also when it is cancelled before its first step
        text = f"{self.client_id!r} has not answered yet; its result will follow."
        return ToolOutput.pending(text, sent=True)

    async def aclose(self) -> None:
        """Gives up the late answers that this tool itself waits for."""
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        return task

    async def _ask(self, params: dict[str, Any]) -> ToolOutput:
        try:
            return read_answer(await self._send(params), self.client_id)
        except OwnerAway:
            text = f"{self.client_id!r}, which runs this tool, is away; the call will be sent when it returns."
            return ToolOutput.pending(text, sent=False)
        except ClientRefused as refusal:
            return ToolOutput.error(f"{self.client_id!r} refused the call: {refusal.message} ({refusal.code}).")
        except _LOST:
            return self._lost()

    def _lost(self) -> ToolOutput:
        text = f"{self.client_id!r} got the call and left before it answered; the call may have taken effect."
        return ToolOutput.pending(text, sent=True)

    async def _deliver_late(self, request: asyncio.Task[ToolOutput], ctx: ToolContext) -> None:
        try:
            output = await request
            if not output.is_pending:
                await self._on_late(ctx, output)
        except Exception:  # the task's own boundary: nobody waits for it, the call stays pending and can be resolved
            logger.exception("The late answer to call %r of %r could not be delivered.", ctx.call_id, ctx.agent_id)


def read_answer(answer: Any, client_id: str) -> ToolOutput:
    """A client's answer to `tool/execute` as an output; one that is malformed becomes an error that says so."""
    try:
        read = ClientAnswer.model_validate(clean(answer), by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"]) or "the answer"
        return _malformed(client_id, f"{place}: {first['msg']}")
    except InvalidParams as error:
        return _malformed(client_id, error.message)
    if read.pending:
        return ToolOutput.pending(read.content or f"{client_id!r} has started; its result will follow.", sent=True)
    return ToolOutput(parts(read.content), is_error=read.is_error)


async def through_inbox(ctx: ToolContext, output: ToolOutput) -> None:
    """Delivers a late answer as a result or a rejection in the agent's inbox; somebody else's came first: dropped."""
    inbox = ctx.inbox()
    try:
        if output.is_error:
            await inbox.reject(ctx.call_id, text_of(output.content) or "The tool failed.")
        else:
            await inbox.resolve(ctx.call_id, output.content)
    except (AlreadyDecided, CallNotFound) as error:
        logger.info("A late answer to call %r of %r was dropped: %s", ctx.call_id, ctx.agent_id, error)


def _malformed(client_id: str, what: str) -> ToolOutput:
    return ToolOutput.error(
        f"{client_id!r} answered the call with something that is not a tool result ({what}); it may have taken effect."
    )
