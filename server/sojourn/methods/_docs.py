"""The protocol as data: one JSON Schema document of everything, read from `METHODS`, the wire tables and the errors.

`docs/protocol.md` is made from it (`_markdown`), and `sojourn protocol --json` prints it. Nothing is said twice: a
description is a docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from sojourn._version import __version__
from sojourn.core import errors
from sojourn.core.events import Event
from sojourn.core.messages import InputPart, Message, Part
from sojourn.core.values import Value

from ._steps import Step
from ._table import METHODS, Method, Params, Result
from ._wire import NOTIFICATIONS, REQUESTS

PROTOCOL_VERSION = 1

JSON_RPC_ERRORS: tuple[tuple[int, str, str], ...] = (
    (-32700, "parseError", "The frame is not JSON; the answer's id is null."),
    (-32600, "invalidRequest", "The JSON is not a JSON-RPC 2.0 message."),
    (-32601, "methodNotFound", "No method has this name."),
    (-32603, "internal", "A fault of the daemon's own; its log has it under the same `ref`."),
    (-32002, "notInitialized", "`initialize` comes first."),
    (-32800, "requestCancelled", "The client cancelled the request with `$/cancelRequest`."),
)
"""Errors that no exception of ours stands for."""

_UNIONS: dict[str, Any] = {"InputPart": InputPart, "Part": Part, "Message": Message, "Event": Event, "Step": Step}
_REF = "#/$defs/"

Schema = dict[str, Any]


def protocol_schema() -> Schema:
    """JSON Schema (2020-12) of the whole protocol: methods, notifications, requests, events, errors and shapes."""
    defs = _definitions()
    inputs = {_def_name(defs, model) for model in _input_models()}
    inputs |= _reachable(defs, [defs[name] for name in inputs])
    for name, schema in defs.items():
        if name not in inputs:
            _as_said(schema)
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The wire protocol of Sojourn",
        "protocolVersion": PROTOCOL_VERSION,
        "serverVersion": __version__,
        "methods": {name: _method(defs, method) for name, method in METHODS.items()},
        "notifications": {
            name: {"description": doc_of(model), "params": _place(defs, model)} for name, model in NOTIFICATIONS.items()
        },
        "requests": {
            name: {
                "description": request.doc,
                "params": _place(defs, request.params),
                "result": _place(defs, request.result),
            }
            for name, request in REQUESTS.items()
        },
        "events": {
            _event_type(model): {"description": doc_of(model), "schema": {"$ref": _REF + model.__name__}}
            for model in event_models()
        },
        "errors": error_table(),
    }
    kept = _reachable(defs, [document])
    return {**document, "$defs": {name: defs[name] for name in sorted(kept)}}


def event_models() -> tuple[type[Value], ...]:
    """The models of the events, in the order in which a pass emits them."""
    return get_args(get_args(Event)[0])


def error_table() -> list[dict[str, Any]]:
    """Every error with its code, its kind, and what its `data` may hold beside the kind: JSON-RPC's and LSP's own,
    then ours as they are defined in `core.errors`."""
    drawn = dict(
        re.findall(r"── (\w+) +(?:-\d+ +)?([a-z]\w*(?:(?:, | \| )[a-z]\w*)*)$", errors.__doc__ or "", re.MULTILINE)
    )
    ours = [
        (kind.code, kind.kind, doc_of(kind), re.findall(r"\w+", drawn.get(kind.__name__, "")))
        for kind in _subclasses(errors.SojournError)
        if "kind" in vars(kind)  # else it is its base to clients
    ]
    theirs = [(code, kind, doc, ["ref"] if kind == "internal" else []) for code, kind, doc in JSON_RPC_ERRORS]
    return [
        {"code": code, "kind": kind, "data": data, "description": doc}
        for code, kind, doc, data in sorted([*theirs, *ours], key=lambda one: (one[0] > -32000, abs(one[0])))
    ]


def doc_of(thing: Any) -> str:
    """A docstring as paragraphs."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(thing) or "")


def _method(defs: Schema, method: Method) -> Schema:
    said: Schema = {
        "description": re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(method.doc)),
        "mutating": method.params.MUTATING,
        "params": _place(defs, method.params),
        "result": {"type": "null"} if method.result is None else _place(defs, method.result),
    }
    if method.many:
        said["result"] = {"type": "array", "items": said["result"]}
    if method.accepted is not None:
        said["accepted"] = _place(defs, method.accepted)
    return said


def _place(defs: Schema, model: type[Value]) -> Schema:
    """What stands where `model` is used: shapes by name, the params and the result of one method in full."""
    if issubclass(model, Params | Result):
        return defs[_def_name(defs, model)]  # type: ignore[no-any-return]
    return {"$ref": _REF + _def_name(defs, model)}


def _def_name(defs: Schema, model: type[Value]) -> str:
    # pydantic writes the module into the name where two classes have the same one
    long = f"{model.__module__}.{model.__qualname__}".replace(".", "__")
    return long if long in defs else model.__name__


def _input_models() -> Iterator[type[Value]]:
    for method in METHODS.values():
        yield method.params
    for request in REQUESTS.values():
        yield request.result


def _models() -> Iterator[type[Value]]:
    yield from _input_models()
    for method in METHODS.values():
        yield from (model for model in (method.result, method.accepted) if model is not None)
    yield from NOTIFICATIONS.values()
    yield from (request.params for request in REQUESTS.values())
    yield from event_models()


def _definitions() -> Schema:
    """Every model's schema by name, the discriminated unions as shapes of their own."""
    models = list(dict.fromkeys(_models()))
    _, document = models_json_schema([(model, "validation") for model in models])
    defs: Schema = {name: _tidy(schema) for name, schema in document["$defs"].items()}
    unions = {name: _tidy(TypeAdapter(union).json_schema()) for name, union in _UNIONS.items()}
    for union in unions.values():
        defs = {**union.pop("$defs"), **defs}
    defs = {name: _name_unions(schema, unions) for name, schema in defs.items()}
    return {**defs, **unions}


def _tidy(node: Any) -> Any:
    """Without the titles that pydantic makes of names; what tells the members of a union apart is required."""
    if isinstance(node, list):
        return [_tidy(value) for value in node]
    if not isinstance(node, dict):
        return node
    tags = [name for name, field in node.get("properties", {}).items() if "default" in field and "const" in field]
    node = {key: _tidy(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    for name in tags:
        del node["properties"][name]["default"]
        node["required"] = [name, *node.get("required", [])]
    return node


def _name_unions(node: Any, unions: Schema) -> Any:
    if isinstance(node, list):
        return [_name_unions(value, unions) for value in node]
    if not isinstance(node, dict):
        return node
    for name, union in unions.items():
        if node.get("oneOf") == union["oneOf"]:
            rest = {key: value for key, value in node.items() if key not in ("oneOf", "discriminator")}
            return {"$ref": _REF + name, **rest}
    return {key: _name_unions(value, unions) for key, value in node.items()}


def _as_said(schema: Schema) -> None:
    """What the daemon says: a field that is None is left out, every other one is there."""
    properties = schema.get("properties", {})
    for field in properties.values():
        if field.pop("default", ...) is None:
            choices = [one for one in field.pop("anyOf", []) if one != {"type": "null"}]
            field.update(choices[0] if len(choices) == 1 else {"anyOf": choices} if choices else {})
            field["x-optional"] = True
    required = [name for name, field in properties.items() if not field.pop("x-optional", False)]
    if required:
        schema["required"] = required


def _reachable(defs: Schema, roots: Iterable[Any]) -> set[str]:
    found: set[str] = set()
    todo: list[Any] = list(roots)
    while todo:
        for name in _refs(todo.pop()):
            if name not in found:
                found.add(name)
                todo.append(defs[name])
    return found


def _refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(ref := node.get("$ref"), str):
            yield ref.removeprefix(_REF)
        for value in node.values():
            yield from _refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from _refs(value)


def _event_type(model: type[Value]) -> str:
    return str(model.model_fields["type"].default)


def _subclasses(kind: type[errors.SojournError]) -> Iterator[type[errors.SojournError]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from _subclasses(child)
