"""Structured output: what was asked for, and what counts as it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from pydantic import Field

from . import schemas
from ._turns import is_cut, unused
from .errors import InvalidParams
from .messages import AssistantMessage, TextPart, ToolCallPart
from .values import Value, clean


class OutputRules(Value):
    """The output that was asked for: its JSON Schema, the tool that takes it, and how often to ask again."""

    json_schema: dict[str, Any]
    tool: str
    max_retries: int = Field(ge=0, strict=True)
    retries: int = Field(ge=0, strict=True)

    @classmethod
    def of(cls, schema: Mapping[str, Any], *, tool: str, max_retries: int, taken: Iterable[str]) -> OutputRules:
        """The rules for `schema`; the tool's name differs from those `taken`. Raises `InvalidParams`."""
        plain = dict(schema)
        try:
            schemas.check(plain)
        except schemas.SchemaFault as error:
            raise InvalidParams(
                f"The output schema is no JSON Schema: {error.message}.", field="outputSchema"
            ) from None
        return cls(json_schema=clean(plain), tool=unused(tool, set(taken)), max_retries=max_retries, retries=0)

    def call_in(self, message: AssistantMessage) -> ToolCallPart | None:
        """The call that gives the output."""
        return next((call for call in message.calls if call.name == self.tool), None)

    def error_in_text(self, text: str) -> str | None:
        """What is wrong with a text as output: it is the output's JSON and nothing else."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            return f"it is not JSON: {error}"
        return self.error_in(value)

    def error_in_call(self, message: AssistantMessage, call: ToolCallPart) -> str | None:
        """What is wrong with the arguments of `call` as output. What was cut is not whole, even when it looks so."""
        if is_cut(message):
            return f"the turn was cut (finish reason {message.finish_reason!r})"
        if isinstance(call.arguments, str):
            return "the arguments are not a JSON object"
        return self.error_in(call.arguments)

    def error_in(self, value: Any) -> str | None:
        """What is wrong with `value` as output."""
        try:
            found = schemas.fault(value, self.json_schema, best=True)
        except schemas.SchemaFault as error:
            return f"the output schema cannot be applied: {error.message}"[:500]
        return None if found is None else f"at {found.path}: {found.why}"[:500]

    def retried(self) -> OutputRules:
        """The rules after the model was asked once more."""
        return self.model_copy(update={"retries": self.retries + 1})

    def feedback(self, error: str) -> str:
        """What the model reads about an output that is not valid."""
        return (
            f"This is not the output that was asked for: {error}. Answer again: call {self.tool!r} with valid "
            "arguments, or say the JSON and nothing else."
        )


def final_message(message: AssistantMessage, call: ToolCallPart) -> AssistantMessage:
    """The turn that gives its output through `call`, with the output as its only text and no calls."""
    given = call.arguments
    text = given if isinstance(given, str) else orjson.dumps(given).decode()
    content = tuple(
        TextPart(text=text) if part is call else part
        for part in message.content
        if part is call or not isinstance(part, TextPart | ToolCallPart)
    )
    return message.model_copy(update={"content": content})
