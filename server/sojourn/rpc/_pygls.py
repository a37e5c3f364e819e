"""The one module that imports pygls and lsprotocol: the others of this room take their names from here.

lsprotocol defines more than 550 classes, of which this daemon uses two; making them took a third of its start. Here
each is made when it is first used: its first object, or the first look at its fields, runs what `attrs.define` would
have run at its import. They have no slots, as a class cannot get them later. Where something else has imported
lsprotocol before, its classes are what they always are.
"""

from __future__ import annotations

import functools
from typing import Any

import attrs
import cattrs

_define = attrs.define


class _Unmade:
    """Stands for the fields of a class that is not made yet, and makes it when anybody asks for them."""

    def __init__(self, cls: type, options: dict[str, Any]) -> None:
        self._cls, self._options = cls, options

    def __get__(self, _object: object, _asked: type) -> Any:
        self.make()
        return self._cls.__attrs_attrs__  # type: ignore[attr-defined]

    def make(self) -> None:
        """Gives the class its fields, its `__init__` and the rest of what `attrs.define` makes."""
        if self._cls.__dict__.get("__attrs_attrs__") is self:
            del self._cls.__attrs_attrs__, self._cls.__init__
            _define(self._cls, **{**self._options, "slots": False})


@functools.wraps(_define)
def _define_later(maybe_cls: Any = None, **options: Any) -> Any:
    def later(cls: Any) -> Any:
        unmade = cls.__attrs_attrs__ = _Unmade(cls, options)

        def first(self: Any, *args: Any, **fields: Any) -> None:
            unmade.make()
            cls.__init__(self, *args, **fields)

        cls.__init__ = first
        return cls

    return later if maybe_cls is None else later(maybe_cls)


attrs.define = _define_later
try:
    from lsprotocol.types import CANCEL_REQUEST, ResponseError, ResponseErrorMessage
finally:
    attrs.define = _define

from pygls import exceptions  # noqa: E402 (after lsprotocol's classes)
from pygls.exceptions import JsonRpcInternalError  # noqa: E402
from pygls.protocol.json_rpc import (  # noqa: E402
    JsonRPCNotification,
    JsonRPCProtocol,
    JsonRPCRequestMessage,
    JsonRPCResponseMessage,
)
from pygls.server import JsonRPCServer  # noqa: E402


@functools.cache
def no_converter() -> cattrs.Converter:
    """The converter that pygls wants. Nothing is converted with it: pygls's own would make all of those classes."""
    return cattrs.Converter()


__all__ = [
    "CANCEL_REQUEST",
    "JsonRPCNotification",
    "JsonRPCProtocol",
    "JsonRPCRequestMessage",
    "JsonRPCResponseMessage",
    "JsonRPCServer",
    "JsonRpcInternalError",
    "ResponseError",
    "ResponseErrorMessage",
    "exceptions",
    "no_converter",
]
