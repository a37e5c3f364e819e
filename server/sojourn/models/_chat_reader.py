"""What the chunks of a chat completions answer say, whoever wrote them.

The rule: nothing about a chunk's form is taken for granted, an error anywhere is an error, and an answer is complete
when a finish reason or `[DONE]` was seen. Calls run because they are there: a finish reason that denies them is put
right, unless it says that the message was cut (`length`, `contentFilter`), and then the run runs none of them. `[DONE]`
without any finish reason counts as a normal end.
"""

from __future__ import annotations

from typing import Any

from sojourn.core.messages import FinishReason, Usage
from sojourn.core.values import Json, clean

from ._assemble import AnswerBuilder
from ._calls import CallAssembler
from ._wire_errors import Peer, read_event, stream_error
from .base import ModelAnswer, ModelDelta, ModelEvent

DONE = b"[DONE]"
_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "complete": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "toolCalls",
    "tool_use": "toolCalls",
    "function_call": "toolCalls",
    "content_filter": "contentFilter",
    "safety": "contentFilter",
    "recitation": "contentFilter",
    "refusal": "refusal",
}
_MOST = 10**12
"""Tokens that one call can have cost: a number beyond it was made up, and the sums of such ones fit no integer."""
_FAILED = frozenset(("error", "insufficient_system_resource", "malformed_function_call"))
"""Finish reasons that say that there is no answer."""


class ChatReader:
    """Reads one answer. Feed it the data of each event, then ask for `answer`."""

    def __init__(self, builder: AnswerBuilder, peer: Peer) -> None:
        self._builder = builder
        self._calls = CallAssembler(builder)
        self._peer = peer
        self._finish: str | None = None
        self._usage: dict[str, Any] | None = None
        self._details: list[dict[str, Any]] = []
        self._model = ""
        self._id: str | None = None
        self.done = False
        """`[DONE]` was seen: nothing more comes."""

    @property
    def finished(self) -> bool:
        """Whether the answer is complete, though usage may still follow."""
        return self.done or self._finish is not None

    def event(self, name: str, data: bytes) -> list[ModelDelta]:
        """The deltas in one event. Raises `ModelError` for an error object, `ValueError` for what is not JSON."""
        if data.strip() == DONE:
            self.done = True
            return []
        chunk = read_event(self._peer, name, data)
        return [] if chunk is None else self._chunk(chunk)

    def whole(self, answer: dict[str, Any]) -> list[ModelDelta] | None:
        """The deltas of an answer that was not streamed; None when it is none."""
        if _choice(answer) is None:
            return None
        self.done = True
        return self._chunk(answer)

    def _chunk(self, chunk: dict[str, Any]) -> list[ModelDelta]:
        self._read_frame(chunk)
        choice = _choice(chunk)
        if choice is None:
            return []
        if choice.get("error"):
            raise stream_error(self._peer, choice["error"])
        deltas: list[ModelDelta] = []
        for key in ("delta", "message"):
            if isinstance(choice.get(key), dict):
                deltas += self._delta(choice[key])
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._finish = reason.lower()
        return deltas

    def answer(self, request_id: str | None) -> list[ModelEvent]:
        """The last deltas, what there is to tell, the answer. Raises `ModelError` when its end says there is none."""
        if self._finish in _FAILED:
            raise stream_error(self._peer, {"message": f"the finish reason is {self._finish!r}", "code": 500})
        events: list[ModelEvent] = list(self._builder.flush())
        if self._details:
            self._builder.add_other({"reasoning_details": self._details})
        events.append(
            ModelAnswer(
                content=self._builder.content(),
                finish_reason=self._finish_reason(),
                usage=read_usage(self._usage),
                model=self._model,
                response_id=self._id,
                request_id=request_id,
            )
        )
        return events

    def _read_frame(self, chunk: dict[str, Any]) -> None:
        for holder in (chunk, chunk.get("x_groq"), _choice(chunk)):
            if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
                self._usage = holder["usage"]
        if not self._model and isinstance(chunk.get("model"), str):
            self._model = clean(chunk["model"])
        if not self._id and isinstance(chunk.get("id"), str):
            self._id = clean(chunk["id"])

    def _delta(self, delta: dict[str, Any]) -> list[ModelDelta]:
        build = self._builder
        reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
        deltas = build.add_text("reasoning", reasoning)
        self._details = merge_details(self._details, delta.get("reasoning_details"))
        content = delta.get("content")
        deltas += self._blocks(content) if isinstance(content, list) else build.add_text("text", _text(content))
        deltas += build.add_text("refusal", _text(delta.get("refusal")))
        self._images(delta.get("images"))
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            deltas += self._calls.add(calls)
        if isinstance(delta.get("function_call"), dict):
            deltas += self._calls.add([{"index": 0, "function": delta["function_call"]}])
        return deltas

    def _blocks(self, blocks: list[Any]) -> list[ModelDelta]:
        """Content as a list of typed blocks (Mistral's reasoning models)."""
        deltas: list[ModelDelta] = []
        for block in blocks:
            if not isinstance(block, dict):
                deltas += self._builder.add_text("text", _text(block))
            elif block.get("type") == "thinking":
                thinking = block.get("thinking")
                pieces = thinking if isinstance(thinking, list) else [thinking]
                for piece in pieces:
                    text = piece.get("text") if isinstance(piece, dict) else piece
                    deltas += self._builder.add_text("reasoning", _text(text))
            elif block.get("type") == "image_url":
                self._images([block])
            else:
                deltas += self._builder.add_text("text", _text(block.get("text")))
        return deltas

    def _images(self, images: Json) -> None:
        """Images that the model made, as OpenRouter and others give them."""
        for image in images if isinstance(images, list) else ():
            held = image.get("image_url") if isinstance(image, dict) else None
            self._builder.add_image(_text(held.get("url") if isinstance(held, dict) else held))

    def _finish_reason(self) -> FinishReason:
        said = _FINISH.get(self._finish or "stop", "other")
        if said in ("length", "contentFilter") and not self._has_refusal():
            return said
        if self._has_refusal():
            return "refusal"
        if self._builder.calls:
            return "toolCalls"
        return "stop" if said == "toolCalls" else said

    def _has_refusal(self) -> bool:
        return any(getattr(slot, "kind", None) == "refusal" for slot in self._builder.slots)


def read_usage(usage: dict[str, Any] | None) -> Usage | None:
    """The usage object of the chat completions API, in the forms seen."""
    if usage is None:
        return None
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    cached = count(prompt, "cached_tokens")
    return Usage(
        input_tokens=count(usage, "prompt_tokens") or 0,
        output_tokens=count(usage, "completion_tokens") or 0,
        cached_input_tokens=cached if cached is not None else count(usage, "prompt_cache_hit_tokens"),
        reasoning_tokens=count(completion, "reasoning_tokens"),
    )


def merge_details(details: list[dict[str, Any]], more: Json) -> list[dict[str, Any]]:
    """OpenRouter's `reasoning_details`: pieces with one index and type are one block, its texts put together."""
    if not isinstance(more, list):
        return details
    for piece in more:
        if not isinstance(piece, dict):
            continue
        last = details[-1] if details else None
        if (
            last is None
            or "index" not in piece
            or (last.get("index"), last.get("type")) != (piece["index"], piece.get("type"))
        ):
            details.append(dict(piece))
            continue
        for key, value in piece.items():
            old = last.get(key)
            glued = key in ("text", "summary", "data") and isinstance(old, str) and isinstance(value, str)
            last[key] = old + value if glued else (old if value is None else value)
    return details


def _choice(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """The first choice: the one with index 0, or with none."""
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and not choice.get("index"):
            return choice
    return None


def count(holder: Json, key: str) -> int | None:
    """The count that a provider reports under `key`; None when it is none."""
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
