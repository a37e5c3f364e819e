"""`docs/protocol.md`: the protocol as a page for people, made from `protocol_schema` and the prose in `protocol.md`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any

from pydantic import TypeAdapter

from sojourn.core.agent import Name

from ._docs import Schema, protocol_schema

_NAMESPACES = {
    "lifecycle": "Life cycle of a connection (LSP)",
    "server": "The daemon",
    "agent": "Agents",
    "inbox": "Inbox",
    "job": "Jobs",
    "approval": "Approvals",
    "run": "Runs by hand",
    "tool": "Tools",
    "model": "Models",
    "textDocument": "Files open in an editor (LSP)",
    "workspace": "Commands for language clients without a plugin (LSP)",
    "window": "Progress that a person cancels (LSP)",
}
_PLACES = {"Event": "[event](#events)", "EventParams": "[params of `agent/event`](#agentevent)"}
"""Shapes that are described where they belong, not in the list of shapes."""
_ID = TypeAdapter(Name).json_schema()["pattern"]


def protocol_markdown() -> str:
    """The page."""
    schema = protocol_schema()
    prose = files("sojourn.methods").joinpath("protocol.md").read_text(encoding="utf-8")
    lines = [
        prose.rstrip(),
        *_methods(schema),
        *_notifications(schema),
        *_requests(schema),
        *_events(schema),
        *_shapes(schema),
        *_errors(schema),
    ]
    return "\n".join(lines) + "\n"


def _methods(schema: Schema) -> Iterator[str]:
    yield from ("", "## Methods", "")
    yield "`?` marks what may be left out. **Mutating** methods take a `requestId` (see above)."
    for namespace, title in _NAMESPACES.items():
        yield from ("", f"### {title}")
        for name, method in schema["methods"].items():
            if (name.partition("/")[0] if "/" in name else "lifecycle") == namespace:
                yield from _method(name, method)


def _method(name: str, method: Schema) -> Iterator[str]:
    mark = "*Mutating.* " if method["mutating"] else ""
    yield from ("", f"#### `{name}`", "", mark + method["description"])
    yield from _params(method["params"])
    yield from ("", f"Answers {_inline(method['result'])}.")
    if "accepted" in method:
        yield from ("", f"With `wait: false` it answers {_inline(method['accepted'])}.")


def _params(schema: Schema) -> Iterator[str]:
    if not _fields(schema):
        yield from ("", "No params.")
        return
    yield from ("", *_table(schema))
    if about := schema.get("description"):
        yield from ("", _paragraphs(about))


def _table(schema: Schema) -> Iterator[str]:
    yield "| field | type |"
    yield "|---|---|"
    for name, field in _fields(schema).items():
        mark = "" if name in schema.get("required", []) else "?"
        default = field.get("default")
        shown = "" if default is None or not mark else f" = `{json.dumps(default)}`"
        yield f"| `{name}{mark}` | {_type(field)}{shown} |"


def _inline(schema: Schema) -> str:
    """A result in one line: a shape by name, or its fields with what they mean."""
    if "properties" not in schema:
        return _type(schema)
    about = _one_line(schema.get("description", "")).rstrip(".")
    return f"{{{_listed(schema)}}}. {about}" if about else f"{{{_listed(schema)}}}"


def _listed(schema: Schema) -> str:
    required = schema.get("required", [])
    return ", ".join(
        f"`{name}{'' if name in required else '?'}`: {_type(field)}" for name, field in _fields(schema).items()
    )


def _fields(schema: Schema) -> Schema:
    """The properties that are worth a line: not those that every method's params have."""
    properties: Schema = schema.get("properties", {})
    hidden = ("_meta", "requestId") if "_meta" in properties else ()
    return {name: field for name, field in properties.items() if name not in hidden}


def _notifications(schema: Schema) -> Iterator[str]:
    yield from ("", "## Notifications from the daemon")
    for name, one in schema["notifications"].items():
        yield from ("", f"#### `{name}`", "", one["description"], "")
        yield from _table(_resolve(schema, one["params"]))


def _requests(schema: Schema) -> Iterator[str]:
    yield from ("", "## Requests from the daemon", "")
    yield "They go to clients that declared them in `initialize`. Their ids are integers from 2^30 up."
    for name, one in schema["requests"].items():
        yield from ("", f"#### `{name}`", "", one["description"])
        yield from _params(_resolve(schema, one["params"]))
        yield from ("", "The client answers:", "", *_table(_resolve(schema, one["result"])))


def _events(schema: Schema) -> Iterator[str]:
    yield from ("", "## Events", "")
    yield "The `event` of `agent/event`, in the order in which a pass emits them."
    yield from ("", "| `type` | other fields | |", "|---|---|---|")
    for name, event in schema["events"].items():
        fields = _resolve(schema, event["schema"])
        others = {key: value for key, value in fields["properties"].items() if key != "type"}
        yield f"| `{name}` | {_listed({**fields, 'properties': others})} | {_one_line(event['description'])} |"


def _shapes(schema: Schema) -> Iterator[str]:
    hidden = {"#/$defs/Event", *(one["schema"]["$ref"] for one in schema["events"].values())}
    for place in ("notifications", "requests"):
        for one in schema[place].values():
            hidden |= {one[side].get("$ref") for side in ("params", "result") if side in one}
    yield from ("", "## Shapes", "")
    yield "Content that comes in is a string (one text part) or parts; content that goes out is always parts."
    for name, shape in schema["$defs"].items():
        if f"#/$defs/{name}" in hidden:
            continue
        yield from ("", f"#### {name}", "")
        if "oneOf" in shape:
            yield "One of " + _list(_type(one) for one in shape["oneOf"]) + _told_apart(shape) + "."
            continue
        yield from (_paragraphs(shape.get("description", "")), "", *_table(shape))


def _errors(schema: Schema) -> Iterator[str]:
    yield from ("", "## Errors", "")
    yield "An error is `{code, message, data}`; the message is a sentence for people, `data.kind` is always there."
    yield from ("", "| code | `data.kind` | other `data` | |", "|---|---|---|---|")
    for error in schema["errors"]:
        data = ", ".join(f"`{name}`" for name in error["data"])
        yield f"| {error['code']} | `{error['kind']}` | {data} | {_one_line(error['description'])} |"


def _type(schema: Schema) -> str:
    """A JSON Schema as the short notation of the page."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _PLACES.get(name, f"[{name}](#{name.lower()})")
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " \\| ".join(_type(one) for one in choices if one != {"type": "null"} or "default" not in schema)
    if "const" in schema or "enum" in schema:
        return " \\| ".join(f"`{json.dumps(one)}`" for one in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"{_grouped(_type(schema.get('items', {})))}[]"
    values = schema.get("additionalProperties")
    if kind == "object" and isinstance(values, dict):
        return f"{{name: {_type(values)}}}"
    return f"{kind}{_bounds(schema)}"


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if "pattern" in schema:
        return " (an id)" if schema["pattern"] == _ID else f" `{schema['pattern']}`"
    if "exclusiveMinimum" in schema:
        return f" > {schema['exclusiveMinimum']}"
    if low is not None and high is not None:
        return f" {low}…{high}"
    return f" ≥ {low}" if low is not None else ""


def _grouped(text: str) -> str:
    return f"({text})" if "\\|" in text else text


def _told_apart(shape: Schema) -> str:
    tag = shape.get("discriminator", {}).get("propertyName")
    return f", told apart by `{tag}`" if tag else ""


def _list(items: Iterable[str]) -> str:
    return ", ".join(items)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _resolve(schema: Schema, place: Schema) -> dict[str, Any]:
    """The schema behind a reference."""
    return schema["$defs"][place["$ref"].rpartition("/")[2]] if "$ref" in place else place
