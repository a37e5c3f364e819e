"""What a client does for the daemon: running the tools that it registered, and deciding approvals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ._connection import REQUEST_CANCELLED, Connection
from .errors import ConnectionLost, RpcError

if TYPE_CHECKING:
    from sojourn.core.approvals import Approval

_log = logging.getLogger(__name__)

_METHOD_NOT_FOUND = -32601

Content = str | Sequence[dict[str, Any]]
"""A string stands for one text part; otherwise parts in wire form."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a registered tool. `call_id` is what the inbox knows it by when the tool answers pending."""

    agent_id: str
    run_id: str
    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolReply:
    """A tool's answer; `pending` makes it a placeholder whose real result follows through `inbox/resolve`."""

    content: Content
    is_error: bool = False
    pending: bool = False


ToolHandler = Callable[[ToolCall], Awaitable[ToolReply | Content]]
"""Runs a call. An exception becomes a failed result that the model reads."""

Verdict = dict[str, Any] | Literal["approve", "deny"] | None
ApprovalHandler = Callable[["Approval"], Awaitable[Verdict]]
"""Decides an approval: a decision as `approval/decide` takes it (without the id), its bare name, or None to decide
nothing. It is cancelled when somebody else decided first."""


@dataclass(frozen=True, slots=True)
class RegisteredTool:
    """A tool as this client offers it: what `tool/register` takes, for which agent (None: all), and who runs it."""

    spec: dict[str, Any]
    agent_id: str | None
    handler: ToolHandler


class Serving:
    """Answers the daemon's requests, each in a task of its own.

    `call` is the client's; it delivers a tool's result through the inbox when the connection that asked is gone.
    """

    def __init__(
        self, call: Callable[[str, dict[str, Any]], Awaitable[Any]], on_approval: ApprovalHandler | None
    ) -> None:
        self.tools: dict[str, RegisteredTool] = {}
        self.decides = on_approval is not None
        self._call = call
        self._on_approval = on_approval
        self._tasks: dict[tuple[int, Any], asyncio.Task[None]] = {}

    def begin(self, connection: Connection, request_id: Any, method: str, params: dict[str, Any]) -> None:
        """Starts answering a request of the daemon."""
        work: Coroutine[Any, Any, None]
        if method == "tool/execute":
            work = self._execute(connection, request_id, params)
        elif method == "approval/request" and self._on_approval is not None:
            work = self._decide(connection, request_id, params, self._on_approval)
        else:
            connection.refuse(request_id, _METHOD_NOT_FOUND, f"This client does not answer {method!r}.")
            return
        key = (id(connection), request_id)
        task = asyncio.create_task(work, name=f"sojourn-client-{method}")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def cancel(self, request_id: Any) -> None:
        """The daemon no longer wants this answer (`$/cancelRequest`)."""
        for (_, waiting_id), task in list(self._tasks.items()):
            if waiting_id == request_id:
                task.cancel()

    async def aclose(self) -> None:
        """Ends everything under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _execute(self, connection: Connection, request_id: Any, params: dict[str, Any]) -> None:
        call = ToolCall(
            agent_id=params["agentId"],
            run_id=params["runId"],
            call_id=params["callId"],
            name=params["name"],
            arguments=params["arguments"],
        )
        tool = self.tools.get(call.name)
        if tool is None:
            connection.refuse(request_id, _METHOD_NOT_FOUND, f"This client has no tool {call.name!r}.")
            return
        try:
            reply = await _run(tool.handler, call)
        except asyncio.CancelledError:
            connection.refuse(request_id, REQUEST_CANCELLED, f"The tool {call.name!r} was stopped.")
            raise
        if connection.closed:
            await self._deliver(call, reply)
            return
        fields = {"isError": reply.is_error or None, "pending": reply.pending or None}
        connection.answer(request_id, {"content": reply.content} | {k: v for k, v in fields.items() if v})

    async def _deliver(self, call: ToolCall, reply: ToolReply) -> None:
        if reply.pending:
            return
        where = {"agentId": call.agent_id, "callId": call.call_id}
        try:
            if reply.is_error:
                await self._call("inbox/reject", {**where, "error": _text(reply.content)})
            else:
                await self._call("inbox/resolve", {**where, "content": reply.content})
        except (RpcError, ConnectionLost) as error:
            _log.warning("The result of call %r came too late: %s", call.call_id, error)

    async def _decide(
        self, connection: Connection, request_id: Any, params: dict[str, Any], handler: ApprovalHandler
    ) -> None:
        from sojourn.core.approvals import Approval

        try:
            verdict = await handler(Approval.model_validate(params["approval"], by_name=False))
        except asyncio.CancelledError:
            connection.refuse(request_id, REQUEST_CANCELLED, "Somebody else decided.")
            raise
        except Exception as error:  # noqa: BLE001 - the handler is foreign code; its failure must decide nothing
            _log.warning("The approval handler failed: %r", error)
            verdict = None
        if verdict is None:
            connection.refuse(request_id, _METHOD_NOT_FOUND, "This client decides nothing here.")
        else:
            connection.answer(request_id, {"decision": verdict} if isinstance(verdict, str) else verdict)


async def _run(handler: ToolHandler, call: ToolCall) -> ToolReply:
    try:
        reply = await handler(call)
    except Exception as error:  # noqa: BLE001 - the tool is foreign code; the model reads its failure
        _log.info("The tool %r failed.", call.name, exc_info=True)
        return ToolReply(f"{type(error).__name__}: {error}", is_error=True)
    return reply if isinstance(reply, ToolReply) else ToolReply(reply)


def _text(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content) or "The tool failed."
