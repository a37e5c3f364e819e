"""The types of single fields that several methods share: ids, pages, content, schemas, each with its rule.

A rule that pydantic cannot tell by itself raises `InvalidParams`, which passes through pydantic untouched.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, WithJsonSchema

from sojourn.core import schemas
from sojourn.core.agent import Name
from sojourn.core.errors import InvalidParams
from sojourn.core.messages import ImagePart, InputPart, Message, Part, ToolChoice, UserMessage

MAX_LIMIT = 1000

AgentId = Name
"""An agent's id, which a client may choose."""
Id = Annotated[str, Field(min_length=1, max_length=300)]
"""An id that the daemon made; opaque."""
Cursor = Annotated[str, Field(min_length=1, max_length=1000)]
"""Where the next page begins: the `nextCursor` of the page before."""
Limit = Annotated[StrictInt, Field(ge=1, le=MAX_LIMIT)]
"""How many items a page has at most."""
Seq = Annotated[StrictInt, Field(ge=0, le=2**53)]
"""An event's number; 0 is before the first."""
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
"""A tool's name in the form that every provider takes."""
Label = Annotated[str, Field(max_length=500)]
Labels = Annotated[dict[Annotated[str, Field(min_length=1, max_length=100)], Label], Field(max_length=100)]
"""Names and values that mean something to clients only."""
RunDocument = dict[str, Any]
"""A saved run, `{format, …}`; judged by the run itself, not by its place in the params."""


def _expand(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _expand_message(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        return {**value, "content": _expand(value["content"])}
    return value


def _say_something(content: tuple[InputPart, ...]) -> tuple[InputPart, ...]:
    if not any(getattr(part, "text", True) for part in content):
        raise ValueError("Nothing is said; content needs at least one part that is not empty")
    return content


def _check_images(content: tuple[Any, ...]) -> tuple[Any, ...]:
    for part in content:
        if isinstance(part, ImagePart):
            _check_image(part)
    return content


def _check_image(part: ImagePart) -> None:
    if (part.data is None) == (part.uri is None):
        raise ValueError("An image has either data (base64) or a uri, and not both")
    if part.data is not None:
        try:
            base64.b64decode(part.data, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("The data of an image must be base64") from None


def _check_message(message: Message) -> Message:
    _check_images(message.content)
    return message


def _content_schema(part: str) -> WithJsonSchema:
    parts = {"type": "array", "items": {"$ref": f"#/$defs/{part}"}}
    return WithJsonSchema({"anyOf": [{"type": "string"}, parts], "description": "A string stands for one text part."})


ResultContent = Annotated[
    tuple[InputPart, ...], BeforeValidator(_expand), AfterValidator(_check_images), _content_schema("InputPart")
]
"""A tool's result: a string or parts, both of which may be empty."""
PromptContent = Annotated[
    tuple[InputPart, ...],
    BeforeValidator(_expand),
    AfterValidator(_check_images),
    AfterValidator(_say_something),
    _content_schema("InputPart"),
]
"""What a person says: a string or parts, not empty."""
ModelContent = Annotated[tuple[Part, ...], BeforeValidator(_expand), _content_schema("Part")]
"""What a model said: a string or parts."""
InputMessage = Annotated[
    Message,
    BeforeValidator(_expand_message),
    AfterValidator(_check_message),
    WithJsonSchema({"$ref": "#/$defs/Message"}),
]
"""A message from outside; its content may be a string too."""


def _as_message(value: Any) -> Any:
    return {"role": "user", "content": _expand(value)} if isinstance(value, str | list) else _expand_message(value)


def _check_prompt(message: Message) -> Message:
    if isinstance(message, UserMessage):
        _say_something(message.content)
    return _check_message(message)


RunPrompt = Annotated[
    Message,
    BeforeValidator(_as_message),
    AfterValidator(_check_prompt),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"$ref": "#/$defs/InputPart"}},
                {"$ref": "#/$defs/Message"},
            ],
            "description": "A string or parts stand for a user message.",
        }
    ),
]
"""What a run begins with: content of a user message, or a message."""


def _choice(value: Any) -> Any:
    return {"mode": value} if isinstance(value, str) else value


def _check_choice(choice: ToolChoice) -> ToolChoice:
    if (choice.mode == "tool") != (choice.name is not None):
        raise ValueError("The name of a tool belongs to mode 'tool', and only to it")
    return choice


ToolChoiceInput = Annotated[
    ToolChoice,
    BeforeValidator(_choice),
    AfterValidator(_check_choice),
    WithJsonSchema(
        {"anyOf": [{"$ref": "#/$defs/ToolChoice"}, {"type": "string", "enum": ["auto", "none", "required"]}]}
    ),
]
"""A tool choice, or its mode alone as a string."""


def _check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        schemas.check(schema)
    except schemas.SchemaFault as error:
        place = error.place.replace(".", "/") or "its root"
        raise ValueError(f"It is not a valid JSON Schema at {place}: {error.message[:200]}") from None
    return schema


def _check_object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type") != "object":
        raise ValueError('The schema of a tool\'s arguments must say "type": "object"')
    return _check_schema(schema)


JsonSchema = Annotated[dict[str, Any], AfterValidator(_check_schema)]
"""A JSON Schema."""
ObjectSchema = Annotated[dict[str, Any], AfterValidator(_check_object_schema)]
"""A JSON Schema of an object."""


def needs(condition: object, message: str, *, field: str) -> None:
    """Raises `InvalidParams` with `message` that names `field` unless `condition` holds."""
    if not condition:
        raise InvalidParams(message, field=field)
