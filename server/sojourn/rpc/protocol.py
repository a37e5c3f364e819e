"""One client's JSON-RPC, on top of pygls: bodies in, answers out, each request answered exactly once.

pygls keeps its message and error classes and its place as the protocol object; parsing, dispatch, cancelling and
writing are overridden, because the stock ones leave malformed requests unanswered, send tracebacks and share one table
of ids between both directions. `tests/rpc/test_pygls_contract.py` pins the private names used here.

Rules: handlers start in the order of arrival. One task a request, owned here. Whatever is wrong with a message costs
that message only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from sojourn.core.errors import ClientRefused, Draining, InvalidParams, LimitReached, Overloaded, Unauthorized
from sojourn.core.values import Json, clean
from sojourn.methods._parse import invalid_params
from sojourn.methods._table import METHODS, Method, Params

from ._pygls import (
    CANCEL_REQUEST,
    JsonRPCNotification,
    JsonRPCProtocol,
    JsonRPCRequestMessage,
    JsonRPCResponseMessage,
    JsonRPCServer,
    ResponseError,
    no_converter,
)
from ._pygls import exceptions as rpc
from .answers import (
    encode_notification,
    encode_request,
    error_body,
    result_body,
    unwrap,
)
from .envelope import Unreadable, is_id, parse, structure
from .outbox import Outbox
from .requests import CURRENT, Batch, Request
from .session import ClientSession

log = logging.getLogger(__name__)

FIRST_OWN_ID = 2**30
"""Ids of the daemon's requests start here: some clients mix up both directions' tables (Vim does)."""
RETRY_AFTER_MS = 100
MAX_BATCH = 1_000
"""Messages of one batch: all of them are looked at in one go, and nobody else is meanwhile."""
MAX_UNREADABLE = 1_000
"""Messages in a row that are none, before their sender is taken for something else than a client."""
HEAVY_AT_WORK = 4
"""How many requests with large answers a connection may have at work; the rest wait, unanswered, in order."""


class SojournProtocol(JsonRPCProtocol):
    """The protocol object of one connection. `end(reason)` asks its owner to end the connection."""

    def __init__(
        self,
        server: JsonRPCServer,
        converter: Any,
        session: ClientSession,
        outbox: Outbox,
        end: Callable[[str], None],
    ) -> None:
        super().__init__(server, converter)
        self.session = session
        self.outbox = outbox
        self.requests: set[Request] = set()
        self._end = end
        self._limits = session.host.limits
        self._batch: Batch | None = None
        self._unreadable = 0
        """Messages in a row that were none."""
        self._next_id = FIRST_OWN_ID
        self._own: dict[int, asyncio.Future[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._largest = self._limits.max_client_queue_bytes
        self._heavy = asyncio.Semaphore(HEAVY_AT_WORK)

    # ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, body: bytes) -> None:
        """One frame's body."""
        try:
            data = parse(body)
        except Unreadable as wrong:
            self._refuse(wrong)
            return
        except ValueError as error:
            log.info("Client %s sent what is not JSON: %s", self.session.name, type(error).__name__)
            self._send_data(error_body(None, rpc.JsonRpcParseError("The message is not JSON in UTF-8.")))
            self._count_unreadable()
            return
        if type(data) is list:
            self._receive_batch(data)
            return
        self._receive_one(data)

    structure_message = staticmethod(structure)

    def handle_message(self, message: Any) -> None:
        """Hands a structured message to its handler."""
        kind = type(message)
        self._unreadable = 0
        if kind is JsonRPCRequestMessage:
            self._handle_request(message.id, message.method, message.params)
        elif kind is JsonRPCNotification:
            self._handle_notification(message.method, message.params)
        elif kind is JsonRPCResponseMessage:
            self._handle_response(message.id, message.result)
        else:
            self._handle_response(message.id, None, message.error)

    def _receive_one(self, data: Json) -> None:
        try:
            self.handle_message(self.structure_message(data))
        except Unreadable as wrong:
            self._refuse(wrong)

    def _refuse(self, wrong: Unreadable) -> None:
        log.info("Client %s sent a message that is no JSON-RPC: %s", self.session.name, wrong)
        batch = self._batch
        if wrong.answer or batch:  # in a batch everything but a notification is answered (JSON-RPC 2.0, section 6)
            if batch:
                batch.owed += 1
            self._answer(batch, error_body(wrong.id, rpc.JsonRpcInvalidRequest(str(wrong))))
        self._count_unreadable()

    def _count_unreadable(self) -> None:
        # Two bytes are enough for one, and each is answered: a peer that sends nothing else holds up everybody.
        self._unreadable += 1
        if self._unreadable == MAX_UNREADABLE:
            self._end(f"it sent {MAX_UNREADABLE} messages in a row that are none")

    def _receive_batch(self, items: list[Json]) -> None:
        if not items:
            self._send_data(error_body(None, rpc.JsonRpcInvalidRequest("A batch must not be empty.")))
            return
        if len(items) > MAX_BATCH:
            text = f"A batch of {len(items)} messages is over the limit of {MAX_BATCH}; nothing of it is done."
            self._send_data(
                error_body(None, LimitReached(text, limit="batchMessages", value=len(items), max=MAX_BATCH))
            )
            return
        batch = self._batch = Batch()
        try:
            for item in items:
                self._receive_one(item)
        finally:
            self._batch = None
        self._answer(batch, None)

    # ── requests of the client ────────────────────────────────────────────────────────────────────────────────────

    def _handle_request(self, msg_id: Any, method_name: str, params: Any) -> None:
        batch = self._batch
        if batch:
            batch.owed += 1
        try:
            method = self._admit(method_name)
            model = _validated(method, params)
            if method.inline:
                self._answer(batch, result_body(msg_id, run_inline(method, self.session, model), limit=self._largest))
                return
        except Exception as error:  # noqa: BLE001 (the wire boundary: every failure becomes an answer)
            self._answer(batch, error_body(msg_id, error))
            if isinstance(error, Unauthorized):
                self._end("it did not show the token")
            return
        request = Request(msg_id, batch)
        self.requests.add(request)
        request.task = self._loop.create_task(self._serve(request, method, model), name="request")

    def _handle_notification(self, method_name: str, params: Any) -> None:
        if method_name == CANCEL_REQUEST:
            if isinstance(params, dict) and is_id(params.get("id")):
                self._handle_cancel_notification(params["id"])
            return
        if method_name not in METHODS or method_name == "initialize":
            log.debug("Ignored the notification %.100r.", method_name)
            return
        try:
            method = self._admit(method_name)
            model = _validated(method, params)
            if method.inline:
                run_inline(method, self.session, model)
                return
        except Exception as error:  # noqa: BLE001 (the wire boundary: there is nobody to answer)
            log.info("Dropped the notification %r of client %s: %s", method_name, self.session.name, error)
            return
        request = Request(None, None)
        self.requests.add(request)
        request.task = self._loop.create_task(self._serve(request, method, model), name="request")

    def _handle_cancel_notification(self, msg_id: Any) -> None:
        for request in self.requests:
            if request.id == msg_id and not request.cancelled:
                request.stop(by_client=True)

    def _admit(self, name: str) -> Method:
        session = self.session
        method = METHODS.get(name)
        if session.retired and name != "exit":
            raise rpc.JsonRpcInvalidRequest("After 'shutdown' only 'exit' may follow on this connection.")
        if not session.ready and (method is None or method.ready):
            raise rpc.JsonRpcServerNotInitialized("The first request of a connection must be 'initialize'.")
        if method is None:
            raise rpc.JsonRpcMethodNotFound(f"There is no method {name[:100]!r}.")
        if name == "initialize" and session.ready:
            raise rpc.JsonRpcInvalidRequest("This connection is initialized already.")
        if len(self.requests) >= self._limits.max_inflight and not method.inline:
            raise Overloaded(
                f"This connection has {len(self.requests)} unanswered requests, which is its limit.",
                retryAfterMs=RETRY_AFTER_MS,
            )
        return method

    async def _serve(self, request: Request, method: Method, model: Params) -> None:
        CURRENT.set(request)
        gate = _Gate(self._heavy if method.heavy else None)
        try:
            body = await self._body(request, method, model, gate)
            if self.outbox.full_of_answers:
                await self.outbox.until_answers_fit()
        finally:
            gate.leave()
        self.requests.discard(request)
        if request.batch is not None:
            self._answer(request.batch, body)
        elif request.id is not None:
            self.outbox.answer(self.session.frame(body))

    async def _body(self, request: Request, method: Method, model: Params, gate: _Gate) -> bytes:
        """The request's answer: the result, the error, or that it was cancelled."""
        body: bytes | None = None
        try:
            await gate.enter()
            if not request.stopped:
                request.working = True
                result = await method.handler(self.session, model)
                body = b"" if request.id is None else result_body(request.id, result, limit=self._largest)
        except asyncio.CancelledError:
            if _by_others(request):
                raise
        except Exception as error:  # noqa: BLE001 (the wire boundary: every failure becomes an answer)
            if not request.cancelled:
                body = error_body(request.id, unwrap(error))
        request.working = False
        if body is None or request.cancelled:
            body = error_body(request.id, _cancelled(request))
        return body

    # ── out ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, batch: Batch | None, body: bytes | None) -> None:
        if batch is None:
            if body is not None:
                self._send_data(body)
            return
        batch.owed -= 1
        if body is not None:
            batch.answers.append(body)
        if batch.owed == 0 and batch.answers:
            self._send_data(b"[%b]" % b",".join(batch.answers))

    def _send_data(self, data: Any) -> None:
        self.outbox.answer(self.session.frame(data))

    def notify(self, method: str, params: Any | None = None) -> None:
        """Sends a notification of the daemon, unless the queue of events is at its limit."""
        self.outbox.event(self.session.frame(encode_notification(method, params)))

    def send_request(  # type: ignore[override]  # asyncio's future: there are no threads on this side
        self,
        method: str,
        params: Any | None = None,
        callback: Callable[[Any], None] | None = None,
        msg_id: int | None = None,
    ) -> asyncio.Future[Any]:
        """Sends a request of the daemon; the future gets the result, `ClientRefused`, or `ConnectionError`."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.outbox.closed:
            future.set_exception(ConnectionError("The client is gone."))
            return future
        id = self._next_id if msg_id is None else msg_id
        self._next_id = max(self._next_id, id) + 1
        if callback:
            future.add_done_callback(lambda done: callback(done.result()))
        self._own[id] = future
        future.add_done_callback(lambda done: self._withdraw(id, done))
        self.outbox.must(self.session.frame(encode_request(id, method, params if params is not None else {})))
        return future

    def _withdraw(self, id: int, future: asyncio.Future[Any]) -> None:
        self._own.pop(id, None)
        if future.cancelled():
            self.outbox.must(self.session.frame(encode_notification(CANCEL_REQUEST, {"id": id})))

    def _handle_response(self, msg_id: Any, result: Any | None = None, error: ResponseError | None = None) -> None:
        future = self._own.pop(msg_id, None) if type(msg_id) is int else None
        if future is None or future.done():
            log.info("Client %s answered a request that nobody waits for.", self.session.name)
        elif error is not None:
            future.set_exception(ClientRefused(error.code, error.message))
        else:
            try:
                future.set_result(clean(result))
            except InvalidParams as wrong:
                future.set_exception(ClientRefused(wrong.code, f"its answer is unusable: {wrong}"))

    def abandon(self) -> None:
        """The client has gone: cancels what it asked for, and fails what it was asked."""
        for request in self.requests:
            request.stop(by_client=False)
        for future in list(self._own.values()):
            if not future.done():
                future.set_exception(ConnectionError("The client is gone."))
                future.exception()  # whoever waits still gets it; nobody waiting is no fault


def new_server(session: ClientSession, outbox: Outbox, end: Callable[[str], None]) -> JsonRPCServer:
    """The pygls server of one connection; its `protocol` is a `SojournProtocol`."""

    def protocol(server: JsonRPCServer, converter: Any) -> SojournProtocol:
        return SojournProtocol(server, converter, session, outbox, end)

    return JsonRPCServer(protocol, no_converter)  # type: ignore[arg-type]  # a factory is as good as the class


def bad_framing(reason: str) -> rpc.JsonRpcException:
    """The error for a stream that cannot be read any further."""
    return rpc.JsonRpcParseError(reason)


def run_inline(method: Method, session: ClientSession, model: Params) -> Any:
    """The result of a handler that never waits."""
    running = method.handler(session, model)
    try:
        running.send(None)  # type: ignore[attr-defined]  # handlers are coroutine functions
    except StopIteration as end:
        return end.value
    raise RuntimeError(f"The handler of {method.name!r} is declared inline and waits.")


def _validated(method: Method, params: Json) -> Params:
    if type(params) is list:
        raise InvalidParams(f"{method.name} takes its params by name, in an object.", field="")
    try:
        if params is None:
            params = {}
        for value in params.values():
            # Plain ASCII text has nothing to clean, and most requests are made of that only.
            if type(value) is not str or not value.isascii():
                params = clean(params)
                break
        return method.params.__pydantic_validator__.validate_python(params, by_name=False)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise invalid_params(error, method.params, params, of=method.name) from None


def _by_others(request: Request) -> bool:
    """Whether a request's task was cancelled by somebody besides `Request.stop`, whose own cancelling is settled."""
    task = request.task
    return task is not None and (task.uncancel() if request.stopped else task.cancelling()) > 0


class _Gate:
    """Lets few large answers of a connection be made at a time, each until it is in the queue or given up."""

    def __init__(self, gate: asyncio.Semaphore | None) -> None:
        self._gate = gate
        self._inside = False

    async def enter(self) -> None:
        """Waits for a place."""
        if self._gate is not None:
            self._inside = await self._gate.acquire()

    def leave(self) -> None:
        """Frees the place, if there is one."""
        if self._gate is not None and self._inside:
            self._gate.release()


def _cancelled(request: Request) -> Exception:
    if request.cancelled:
        return rpc.JsonRpcRequestCancelled("The request was cancelled.")
    return Draining("The connection ends before the answer; what was committed of this request stands.")
