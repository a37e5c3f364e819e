"""What a model is to the rest of the house: a request goes in, deltas come out, one answer ends it.

A model reads no store and knows no agent. Retries happen inside it and are told as `ModelReset` and `ModelNotice`;
what cannot be answered is a `core.errors.ModelError` with the provider's own words.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sojourn.core.messages import FinishReason, Message, Part, ToolChoice, ToolSpec, Usage

from .prices import Price


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One configured model, `[models.NAME]` of the config with secrets still by reference."""

    name: str
    backend: str
    model: str = ""
    base_url: str | None = None
    api_key_env: str | None = None
    api_key_file: str | None = None
    api_key_command: str | None = None
    context_window: int | None = None
    idle_timeout_s: float = 120
    total_timeout_s: float = 1800
    max_retries: int = 5
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    script: str | None = None
    dialect: str | None = None
    price: Price | None = None
    structured_output: Literal["native", "tool"] | None = None
    """How output by a schema is asked for; None = as is known of the API and the model."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One turn's request. `messages` is the stored conversation; the model projects it into its own dialect."""

    messages: list[Message]
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    output_tool: str | None = None
    """The tool that takes the output where the API has no form of its own for it; None = there is to be none."""
    turn: int = 1
    said: tuple[Part, ...] = ()
    """What the model has said of its answer already, before it paused."""


@dataclass(frozen=True, slots=True)
class ModelDelta:
    """A piece of part `part` (the position it will have in the answer's content)."""

    part: int
    kind: Literal["text", "reasoning", "toolArguments"]
    text: str


@dataclass(frozen=True, slots=True)
class ModelReset:
    """All deltas so far are void: the model starts its answer again."""

    reason: Literal["retry", "cut"]


@dataclass(frozen=True, slots=True)
class ModelNotice:
    """Something to tell the clients as a `warning` event, e.g. code `modelRetry`."""

    code: str
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The whole answer, the last thing a stream yields. A call's `id` and `provider_id` are both the provider's."""

    content: tuple[Part, ...]
    finish_reason: FinishReason
    usage: Usage | None = None
    model: str = ""
    response_id: str | None = None
    request_id: str | None = None
    paused: bool = False
    """The provider has not ended: sent back what it said so far, it goes on."""


ModelEvent = ModelDelta | ModelReset | ModelNotice | ModelAnswer


@dataclass(frozen=True, slots=True)
class Gauge:
    """How an API counts tokens, about: for an estimate of what a request takes before anybody has counted."""

    bytes_per_token: float = 4
    """Bytes of UTF-8 text, for English and code; other scripts have more bytes a letter and more tokens, too."""
    image: int = 1_000
    """Tokens of an image of usual size."""
    reasoning: bool = True
    """Whether reasoning goes back with later requests, and so takes room in them."""
    tools: int = 0
    """What any tools at all cost beside their own text."""


NEUTRAL = Gauge()


class Model(Protocol):
    """A model backend bound to its spec."""

    spec: ModelSpec
    gauge: Gauge

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Deltas, resets and notices, then exactly one `ModelAnswer`. Raises `ModelError`; never ends without either.

        Closing the iterator (`aclose`) or cancelling closes the connection.
        """
        ...

    def estimate_tokens(self, request: ModelRequest) -> int:
        """About how many tokens the request takes (cheap, no I/O)."""
        ...

    async def aclose(self) -> None:
        """Closes what is shared between requests."""
        ...
