"""The one vocabulary of conversations: parts, calls, usage and the six kinds of message.

A stored conversation is made of these and of nothing else; what a provider gets is worked out by `history.project`.
`message_id` and `at` are given by whoever drives (the core reads no clock); a run used as a library may leave them out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, TypeAdapter

from .values import Json, Value


class TextPart(Value):
    """Plain text. `opaque` is what the provider wants back with it, byte for byte."""

    type: Literal["text"] = "text"
    text: str
    provider: str | None = None
    opaque: Json = None


class ImagePart(Value):
    """An image: base64 `data`, or a `uri`. `opaque`: what else `provider` wants back of one that it made."""

    type: Literal["image"] = "image"
    mime_type: str
    data: str | None = None
    uri: str | None = None
    provider: str | None = None
    opaque: Json = None


class ResourcePart(Value):
    """A document that the user points at; `text` when it is embedded."""

    type: Literal["resource"] = "resource"
    uri: str
    mime_type: str | None = None
    text: str | None = None


class ReasoningPart(Value):
    """The model's reasoning. `opaque` (signature, encrypted or redacted block) goes back only to `provider`."""

    type: Literal["reasoning"] = "reasoning"
    text: str
    provider: str | None = None
    opaque: Json = None


class ToolCallPart(Value):
    """A tool call. `arguments` is an object, or the raw string when it could not be parsed as one.

    `id` is ours (`msg-<n>-call-<i>` in the daemon); `provider_id` is what the provider called it.
    """

    type: Literal["toolCall"] = "toolCall"
    id: str
    name: str
    arguments: dict[str, Any] | str
    provider: str | None = None
    provider_id: str | None = None
    opaque: Json = None


class RefusalPart(Value):
    """The model's refusal, in its words."""

    type: Literal["refusal"] = "refusal"
    text: str


class OtherPart(Value):
    """A block that only `provider` understands, kept byte for byte for it."""

    type: Literal["other"] = "other"
    provider: str
    data: Json = None
    """Absent when it is null, as all that is None: what is stored must be read again."""


Part = Annotated[
    TextPart | ImagePart | ResourcePart | ReasoningPart | ToolCallPart | RefusalPart | OtherPart,
    Discriminator("type"),
]
InputPart = Annotated[TextPart | ImagePart | ResourcePart, Discriminator("type")]
"""What a person or a tool may send."""

FinishReason = Literal["stop", "length", "toolCalls", "contentFilter", "refusal", "stopped", "other"]


MOST_TOKENS = 2**53 - 1
"""Where counts end: the last integer that every reader of JSON takes exactly."""


class Usage(Value):
    """Tokens of one model call or of many; input includes cached; an absent field was not reported.

    `cost` is there where the config says what the model's tokens cost, in whatever currency it says it.
    """

    input_tokens: int = Field(default=0, ge=0, le=MOST_TOKENS)
    output_tokens: int = Field(default=0, ge=0, le=MOST_TOKENS)
    cached_input_tokens: int | None = Field(default=None, ge=0, le=MOST_TOKENS)
    reasoning_tokens: int | None = Field(default=None, ge=0, le=MOST_TOKENS)
    cost: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    def __add__(self, other: Usage) -> Usage:
        return Usage.trusted(
            input_tokens=min(self.input_tokens + other.input_tokens, MOST_TOKENS),
            output_tokens=min(self.output_tokens + other.output_tokens, MOST_TOKENS),
            cached_input_tokens=_add(self.cached_input_tokens, other.cached_input_tokens),
            reasoning_tokens=_add(self.reasoning_tokens, other.reasoning_tokens),
            cost=self.cost if other.cost is None else round((self.cost or 0) + other.cost, 10),
        )


def _add(a: int | None, b: int | None) -> int | None:
    return None if a is None and b is None else min((a or 0) + (b or 0), MOST_TOKENS)


class _Message(Value):
    message_id: str | None = None
    at: str | None = None


class SystemMessage(_Message):
    """Instructions inside a conversation (an agent's own system prompt is not stored as a message)."""

    role: Literal["system"] = "system"
    content: tuple[InputPart, ...]


class UserMessage(_Message):
    """What a person, a client or the inbox said."""

    role: Literal["user"] = "user"
    content: tuple[InputPart, ...]


class AssistantMessage(_Message):
    """One turn of the model."""

    role: Literal["assistant"] = "assistant"
    content: tuple[Part, ...]
    model: str | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls of this turn in the order in which the model made them."""
        return tuple([part for part in self.content if type(part) is ToolCallPart])


class ToolResultMessage(_Message):
    """The result that stands directly after its call's turn; `pending` marks a placeholder."""

    role: Literal["toolResult"] = "toolResult"
    call_id: str
    tool_name: str
    content: tuple[InputPart, ...]
    is_error: bool = False
    pending: bool = False


class LateResultMessage(_Message):
    """The real result of a pending call, as it came later. Never a second result under one id at a provider."""

    role: Literal["lateResult"] = "lateResult"
    call_id: str
    tool_name: str
    content: tuple[InputPart, ...]
    is_error: bool = False


class SummaryMessage(_Message):
    """Stands for everything before it in what the model sees; nothing is deleted.

    `kept_from` is the id of a message before it: that one and what follows it are seen as well, after the summary.
    """

    role: Literal["summary"] = "summary"
    content: tuple[InputPart, ...]
    kept_from: str | None = None


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolResultMessage | LateResultMessage | SummaryMessage,
    Discriminator("role"),
]
MESSAGE: TypeAdapter[Message] = TypeAdapter(Message)
MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])

Content = str | tuple[InputPart, ...]
"""What comes in where content is asked for: a string stands for one text part."""


class ToolSpec(Value):
    """What a model is told of a tool; `input_schema` is a JSON Schema object."""

    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})


class ToolChoice(Value):
    """`auto`, `none`, `required`, or `tool` with the one `name` that must be called."""

    mode: Literal["auto", "none", "required", "tool"] = "auto"
    name: str | None = None


def parts(content: Content) -> tuple[InputPart, ...]:
    """`content` as parts."""
    return (TextPart(text=content),) if isinstance(content, str) else content


def text_of(content: tuple[Part, ...] | tuple[InputPart, ...]) -> str:
    """The concatenated text parts of `content`."""
    return "".join(part.text for part in content if isinstance(part, TextPart))


def user(content: Content, *, message_id: str | None = None, at: str | None = None) -> UserMessage:
    """A user message."""
    return UserMessage(content=parts(content), message_id=message_id, at=at)


def tool_result(
    call: ToolCallPart, content: Content, *, is_error: bool = False, pending: bool = False
) -> ToolResultMessage:
    """The result of `call`."""
    return ToolResultMessage(
        call_id=call.id, tool_name=call.name, content=parts(content), is_error=is_error, pending=pending
    )
