"""Turns as a provider's JSON: chat messages, responses items, Anthropic messages.

What a provider sent with a part (`opaque`, `OtherPart.data`) goes back at the place it came from, unchanged, to that
provider alone; it never overrides what we say ourselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._history_blocks import Block, Picture, is_sayable, told
from ._history_dialects import EMPTY, Dialect, wire_name
from ._history_turns import Said, Spoken
from .messages import Part, ToolCallPart
from .values import encode

Wire = list[dict[str, Any]]

_ITEM_IDS = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
"""How the ids of the responses API's items start; another is refused."""

_OURS = {
    "chat": {"role", "content", "tool_calls", "tool_call_id", "function_call"},
    "anthropic": {"text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result"},
    "responses": {"message", "reasoning", "function_call", "function_call_output"},
}
"""The kinds of block (chat: fields of a message) that other parts stand for; an `OtherPart` may not be one."""


def chat(turns: Iterable[Said | Spoken], dialect: Dialect) -> Wire:
    """The `messages` of a chat completions request."""
    out: Wire = []
    for turn in turns:
        if isinstance(turn, Said):
            out.append({"role": turn.role, "content": _chat_content(turn.blocks)})
            continue
        out.append(_chat_assistant(turn, dialect))
        for result in turn.results:
            out.append({"role": "tool", "tool_call_id": result.wire_id, "content": _chat_content(result.blocks)})
    return out


def responses(turns: Iterable[Said | Spoken], dialect: Dialect) -> Wire:
    """The `input` items of a responses request."""
    out: Wire = []
    own = _Own(dialect.provider)
    for turn in turns:
        if isinstance(turn, Said):
            out.append({"type": "message", "role": turn.role, "content": _input_content(turn.blocks)})
            continue
        out.extend(_response_items(turn, own))
        for result in turn.results:
            texts = [block for block in result.blocks if isinstance(block, str)]
            plain = len(texts) == len(result.blocks)
            output = "\n\n".join(texts) if plain else _input_content(result.blocks)
            out.append({"type": "function_call_output", "call_id": result.wire_id, "output": output})
    return out


def anthropic(turns: Iterable[Said | Spoken], dialect: Dialect) -> Wire:
    """The `messages` of an Anthropic messages request."""
    out: Wire = []
    own = _Own(dialect.provider)
    for turn in turns:
        if isinstance(turn, Spoken):
            out.append({"role": "assistant", "content": _anthropic_assistant(turn, own)})
            if turn.results:
                out.append({"role": "user", "content": [_tool_result(*result) for result in turn.results]})
        elif out and out[-1]["role"] == "user":
            out[-1]["content"].extend(map(_anthropic_block, turn.blocks))
        else:
            out.append({"role": "user", "content": list(map(_anthropic_block, turn.blocks))})
    return out


RENDERERS: Mapping[str, Callable[[Iterable[Said | Spoken], Dialect], Wire]] = {
    "chat": chat,
    "responses": responses,
    "anthropic": anthropic,
}


@dataclass(slots=True)
class _Own:
    """What a provider gets back of its own. An item that was sent once is not sent again: its id must be unique."""

    provider: str
    _sent: set[str] = field(default_factory=set)

    def of(self, parts: tuple[Part, ...]) -> list[dict[str, Any]]:
        """For each part what goes back with it; nothing for the whole turn when one of its items was sent before."""
        own = [opaque_of(part, self.provider) for part in parts]
        if not any(own):
            return own
        ids = [item["id"] for item in own if isinstance(item.get("id"), str)]
        if len(set(ids) - self._sent) < len(ids):
            return [{} for _ in parts]
        self._sent.update(ids)
        return own


def opaque_of(part: Part, provider: str) -> dict[str, Any]:
    """What `provider` wants back with `part`; empty when it is another's or nothing."""
    if getattr(part, "provider", None) != provider:
        return {}
    opaque = part.data if part.type == "other" else getattr(part, "opaque", None)
    return dict(opaque) if isinstance(opaque, dict) else {}


def _with(ours: dict[str, Any], opaque: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in opaque.items():
        ours.setdefault(key, value)
    return ours


def _arguments(call: ToolCallPart) -> dict[str, Any]:
    return {"malformed_arguments": call.arguments} if isinstance(call.arguments, str) else dict(call.arguments)


def _chat_content(blocks: list[Block]) -> str | Wire:
    texts = [block for block in blocks if isinstance(block, str)]
    if len(texts) == len(blocks):
        return "\n\n".join(texts)
    return [
        {"type": "text", "text": block}
        if isinstance(block, str)
        else {"type": "image_url", "image_url": {"url": _url(block)}}
        for block in blocks
    ]


def _chat_assistant(turn: Spoken, dialect: Dialect) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _joined(turn.parts)}
    calls = iter(turn.results)
    tool_calls = [_chat_call(part, next(calls).wire_id, dialect) for part in turn.parts if part.type == "toolCall"]
    if tool_calls:
        message["tool_calls"] = tool_calls
    elif message["content"] is None:
        message["content"] = EMPTY
    if dialect.reasoning_field is not None:
        reasoning = _reasoning(turn.parts, dialect) or dialect.reasoning_padding
        if reasoning is not None:
            message[dialect.reasoning_field] = reasoning
    for part in turn.parts:
        if part.type == "other":
            fields = opaque_of(part, dialect.provider)
            _with(message, {key: value for key, value in fields.items() if key not in _OURS["chat"]})
    return message


def _chat_call(call: ToolCallPart, wire_id: str, dialect: Dialect) -> dict[str, Any]:
    function = {"name": wire_name(call.name), "arguments": encode(_arguments(call)).decode()}
    opaque = opaque_of(call, dialect.provider)
    if isinstance(opaque.get("function"), dict):
        _with(function, opaque["function"])
    return _with({"id": wire_id, "type": "function", "function": function}, opaque)


def _joined(parts: tuple[Part, ...]) -> str | None:
    """What an assistant said, pieces of text as one, everything else in paragraphs of its own."""
    text = ""
    was_text = True
    for part in parts:
        if part.type == "text":
            text += part.text if was_text else f"\n\n{part.text}"
            was_text = True
        elif is_sayable(part):
            text += f"\n\n{told(part)}" if text else told(part)
            was_text = False
    return text if text.strip() else None


def _reasoning(parts: tuple[Part, ...], dialect: Dialect) -> str:
    return "".join(part.text for part in parts if part.type == "reasoning" and part.provider == dialect.provider)


def _input_content(blocks: list[Block]) -> Wire:
    return [
        {"type": "input_text", "text": block}
        if isinstance(block, str)
        else {"type": "input_image", "image_url": _url(block), "detail": "auto"}
        for block in blocks
    ]


def _response_items(turn: Spoken, own: _Own) -> Wire:
    items: Wire = []
    calls = iter(turn.results)
    opaques = own.of(turn.parts)
    for part, opaque in zip(turn.parts, opaques, strict=True):
        if part.type == "toolCall":
            items.append(_function_call(part, next(calls).wire_id, opaque))
        elif part.type == "reasoning":
            items.extend([opaque] if _is_reasoning_item(opaque) else [])
        elif part.type == "other":
            items.extend([opaque] if _is_foreign_kind(opaque, "responses") else [])
        elif part.type == "image" and part.data and _is_foreign_kind(opaque, "responses"):
            items.append({**opaque, "result": part.data})
        elif is_sayable(part):
            items.append(_output_message(told(part), opaque))
    while items and items[-1]["type"] == "reasoning":
        items.pop()  # a reasoning item without the item that it led to is refused
    lacks_reasoning = any(opaque.get("type") == "reasoning" and opaque not in items for opaque in opaques)
    for item in items:
        # An item that names itself is refused without the reasoning that led to it.
        if (lacks_reasoning and item["type"] != "reasoning") or not _is_item_id(item.get("id"), item["type"]):
            item.pop("id", None)
    return items or [_output_message(EMPTY, {})]


def _is_item_id(item_id: object, kind: str) -> bool:
    return isinstance(item_id, str) and item_id.startswith(_ITEM_IDS.get(kind, ""))


def _function_call(call: ToolCallPart, wire_id: str, opaque: Mapping[str, Any]) -> dict[str, Any]:
    arguments = encode(_arguments(call)).decode()
    item = {"type": "function_call", "call_id": wire_id, "name": wire_name(call.name), "arguments": arguments}
    return _with(item, opaque)


def _output_message(text: str, opaque: Mapping[str, Any]) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text}]
    return _with({"type": "message", "role": "assistant", "content": content}, opaque)


def _is_reasoning_item(item: Mapping[str, Any]) -> bool:
    """Whether it can be read without being looked up (nothing of ours is stored at a provider)."""
    return item.get("type") == "reasoning" and bool(item.get("encrypted_content"))


def _is_foreign_kind(block: Mapping[str, Any], shape: str) -> bool:
    return isinstance(block.get("type"), str) and block["type"] not in _OURS[shape]


def _anthropic_assistant(turn: Spoken, own: _Own) -> Wire:
    content: Wire = []
    calls = iter(turn.results)
    for part, opaque in zip(turn.parts, own.of(turn.parts), strict=True):
        if part.type == "toolCall":
            content.append(_tool_use(part, next(calls).wire_id, opaque))
        elif part.type == "reasoning":
            content.extend([opaque] if _is_thinking(opaque) else [])
        elif part.type == "other":
            content.extend([opaque] if _is_foreign_kind(opaque, "anthropic") else [])
        elif is_sayable(part):
            content.append(_with({"type": "text", "text": told(part)}, opaque))
    if not content or content[-1]["type"] in ("thinking", "redacted_thinking"):
        content.append({"type": "text", "text": EMPTY})
    return content


def _tool_use(call: ToolCallPart, wire_id: str, opaque: Mapping[str, Any]) -> dict[str, Any]:
    block = {"type": "tool_use", "id": wire_id, "name": wire_name(call.name), "input": _arguments(call)}
    return _with(block, opaque)


def _tool_result(wire_id: str, blocks: list[Block], is_error: bool) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": wire_id}
    block["content"] = list(map(_anthropic_block, blocks))
    if is_error:
        block["is_error"] = True
    return block


def _anthropic_block(block: Block) -> dict[str, Any]:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if block.url:
        return {"type": "image", "source": {"type": "url", "url": block.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": block.media_type, "data": block.data}}


def _is_thinking(block: Mapping[str, Any]) -> bool:
    """Whether it is a block that can be given back: one without its signature is refused."""
    if block.get("type") == "thinking":
        return isinstance(block.get("thinking"), str) and bool(block.get("signature"))
    return block.get("type") == "redacted_thinking" and bool(block.get("data"))


def _url(picture: Picture) -> str:
    return picture.url or f"data:{picture.media_type};base64,{picture.data}"
