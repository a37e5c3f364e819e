"""From the bytes of a frame to a JSON-RPC message: only the envelope is looked at, never what is inside of params."""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic_core import from_json

from sojourn.core.values import MAX_DEPTH, Json

from ._pygls import (
    JsonRpcInternalError,
    JsonRPCNotification,
    JsonRPCRequestMessage,
    JsonRPCResponseMessage,
    ResponseError,
    ResponseErrorMessage,
)
from .answers import Id

_MAX_ID = 10**100


class Unreadable(Exception):
    """A message that is no JSON-RPC; `id` is its id when that much could be read, `answer` whether it gets one."""

    def __init__(self, reason: str, id: Id = None, *, answer: bool = True) -> None:
        super().__init__(reason)
        self.id = id
        self.answer = answer


def parse(body: bytes) -> Json:
    """The JSON of a frame. Raises `ValueError` for what is none, `Unreadable` for what is nested too deeply.

    Lone surrogates and NaN, which pydantic's reader refuses, are read by the standard library's, so that the request
    can be answered under its id: `clean` mends the ones and refuses the other.
    """
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError:
        pass
    try:
        data = json.loads(body.decode())
    except RecursionError:
        raise ValueError("The JSON is nested too deeply.") from None
    if _deeper_than(data, MAX_DEPTH):
        id = data.get("id") if isinstance(data, dict) else None
        raise Unreadable(f"A message is nested more than {MAX_DEPTH} deep.", id if is_id(id) else None)
    return data


def structure(data: Json) -> Any:
    """The pygls message for parsed JSON. Raises `Unreadable`."""
    if type(data) is not dict:
        raise Unreadable("A message must be an object.")
    if data.get("jsonrpc") != "2.0":
        raise Unreadable("A message must have 'jsonrpc': '2.0'.", _readable_id(data))
    if "method" not in data:
        return _answer(data)
    method, params = data["method"], data.get("params")
    if type(method) is not str:
        raise Unreadable("A 'method' must be a string.", _readable_id(data))
    if params is not None and type(params) is not dict and type(params) is not list:
        raise Unreadable("The 'params' must be an object.", _readable_id(data))
    if "id" not in data:
        return JsonRPCNotification(method, "2.0", params)
    id = data["id"]
    if type(id) is not str and not is_id(id):
        raise Unreadable("An 'id' must be a number or a string.")
    return JsonRPCRequestMessage(id, method, "2.0", params)


def is_id(value: object) -> bool:
    """Whether `value` can be a request's id: a string or a finite number (of at most a hundred digits)."""
    if type(value) is int:
        return -_MAX_ID < value < _MAX_ID
    return type(value) is str or (type(value) is float and math.isfinite(value))


def _answer(data: dict[str, Any]) -> Any:
    id: Any = data.get("id")
    if "error" in data:
        error = data["error"] if isinstance(data["error"], dict) else {}
        code, text = error.get("code"), error.get("message")
        known = ResponseError(
            code=code if type(code) is int else JsonRpcInternalError.CODE,
            message=text if type(text) is str else "it gave no reason",
        )
        return ResponseErrorMessage(id=id, error=known)
    if "result" in data:
        return JsonRPCResponseMessage(id=id, jsonrpc="2.0", result=data["result"])
    raise Unreadable(
        "A message has neither 'method' nor 'result' nor 'error'.", _readable_id(data), answer="id" in data
    )


def _readable_id(data: dict[str, Any]) -> Id:
    id: Id = data.get("id")
    return id if is_id(id) else None


def _deeper_than(value: Json, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [item for box in level if isinstance(box, dict | list) for item in _items(box)]
        if not level:
            return False
    return True


def _items(box: dict[str, Any] | list[Any]) -> Any:
    return box.values() if isinstance(box, dict) else box
