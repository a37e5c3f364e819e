"""What an answer looks like: JSON-RPC bodies of results and errors, and the one place that turns exceptions into them.

An error is always `{code, message, data{kind}}`: never a traceback, a path or the input. What nobody foresaw is -32603
with a short `ref` that the log has as well.
"""

from __future__ import annotations

import json
import logging
import secrets
from typing import Any

import orjson
from pydantic_core import PydanticSerializationError

from sojourn.core.errors import LimitReached, SojournError
from sojourn.core.values import Json, Value, clean

from ._pygls import exceptions as rpc

log = logging.getLogger(__name__)

Id = int | float | str | None
"""A request's id. None stands for one that could not be read."""

_KINDS: dict[type[rpc.JsonRpcException], str] = {
    rpc.JsonRpcParseError: "parseError",
    rpc.JsonRpcInvalidRequest: "invalidRequest",
    rpc.JsonRpcMethodNotFound: "methodNotFound",
    rpc.JsonRpcServerNotInitialized: "notInitialized",
    rpc.JsonRpcRequestCancelled: "requestCancelled",
}


def result_body(id: Id, result: Any, *, limit: int) -> bytes:
    """The answer with `result`: a Value, JSON data (Values in it are fine) or None.

    One above `limit` bytes becomes the error `limitReached`, so that a reader never waits for what it cannot get.
    """
    shown = b"%d" % id if type(id) is int else _id(id)
    body = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (shown, _json(result))
    if len(body) <= limit:
        return body
    return error_body(
        id,
        LimitReached(
            f"The result has {len(body)} bytes and a connection's queue takes {limit}; ask for a smaller part of it.",
            limit="maxClientQueueBytes",
            value=len(body),
            max=limit,
        ),
    )


def error_body(id: Id, error: BaseException) -> bytes:
    """The answer with what `error` says, or an internal error that the log explains under the same `ref`."""
    code, message, data = _describe(error)
    answer = {"code": code, "message": message, "data": data}
    try:
        text = _json(answer)
    except TypeError:  # something in `data` is not JSON; code and message still say what happened
        log.exception("The error %s carries what is not JSON.", data.get("kind"))
        text = _json({**answer, "data": {"kind": str(data.get("kind"))}})
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (_id(id), text)


def unwrap(error: BaseException) -> BaseException:
    """The one error inside of nested exception groups of one, as task groups raise them."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def encode_request(id: int, method: str, params: Json) -> bytes:
    """A request of the daemon to its client."""
    return b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}' % (id, orjson.dumps(method), _json(params))


def encode_notification(method: str, params: Json) -> bytes:
    """A notification; without params when they are None."""
    if params is None:
        return b'{"jsonrpc":"2.0","method":%b}' % orjson.dumps(method)
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (orjson.dumps(method), _json(params))


def _describe(error: BaseException) -> tuple[int, str, dict[str, Any]]:
    error = unwrap(error)
    if isinstance(error, SojournError):
        return error.code, error.message, error.data
    if isinstance(error, rpc.JsonRpcException) and type(error) in _KINDS:
        return error.code, error.message, {"kind": _KINDS[type(error)], **(error.data or {})}
    ref = secrets.token_hex(4)
    log.error("An unforeseen error was answered with ref %s.", ref, exc_info=error)
    message = f"Something went wrong inside of the daemon; its log says more under the reference {ref}."
    return rpc.JsonRpcInternalError.CODE, message, {"kind": "internal", "ref": ref}


def _id(id: Id) -> bytes:
    if type(id) is int:  # orjson ends at 64 bits
        return b"%d" % id
    try:
        return orjson.dumps(id)
    except TypeError:  # a lone surrogate: escaped, it goes back as it came
        return json.dumps(id).encode()


def _json(value: Any) -> bytes:
    if value is None:
        return b"null"
    try:
        return value.json_bytes() if isinstance(value, Value) else orjson.dumps(value, default=_plain)
    except (TypeError, PydanticSerializationError):
        # A lone surrogate, or an integer beyond 64 bits, from somewhere that did not clean it.
        return _json_of_odd_data(value)


def _json_of_odd_data(value: Any) -> bytes:
    plain = json.loads(json.dumps(value, default=_plain), parse_constant=lambda _: None)
    return json.dumps(_without_surrogates(plain), ensure_ascii=False, separators=(",", ":")).encode()


def _without_surrogates(value: Json) -> Json:
    if isinstance(value, dict):
        return {clean(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    return clean(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Value):
        return value.wire()
    raise TypeError(f"A {type(value).__name__} is not JSON.")
