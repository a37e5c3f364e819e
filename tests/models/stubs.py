"""Model servers of the tests' own: whole answers in the words of each API, and a judge as strict as they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from models.loopback import Received, call, delta
from strict_checkers import (
    check_anthropic,
    check_deepseek,
    check_mistral,
    check_openai_chat,
    check_openai_responses,
)

Wire = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """What a stub answers; `mark` is unique to the answer and stands in what only its provider understands."""

    mark: str
    text: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, Wire]] = ()
    finish: str | None = None


def events_of(api: str, said: Said) -> list[bytes]:
    """The answer as the events of a stream, the terminal ones last."""
    return {"responses": _responses, "anthropic": _anthropic}.get(api, _chat)(said, api)


def stream_of(api: str, said: Said) -> bytes:
    """The whole body of a stream."""
    return b"".join(events_of(api, said))


def _chat(said: Said, api: str) -> list[bytes]:
    chunks = [delta(role="assistant", content="")]
    chunks += [delta(reasoning_content=piece) for piece in _halves(said.reasoning) if api != "mistral"]
    chunks += [delta(content=piece) for piece in _halves(said.text)]
    for index, (name, arguments) in enumerate(said.calls):
        id = f"{said.mark[-4:]:0>8}{index}" if api == "mistral" else f"call_{said.mark}_{index}"
        chunks.append(delta(tool_calls=[call("", index=index, id=id, name=name, type="function")]))
        chunks += [delta(tool_calls=[call(piece, index=index)]) for piece in _halves(json.dumps(arguments))]
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    chunks.append({**delta(said.finish or ("tool_calls" if said.calls else "stop")), "usage": usage})
    return [_event(chunk) for chunk in chunks] + [b"data: [DONE]\n\n"]


def _responses(said: Said, _api: str) -> list[bytes]:
    items: list[Wire] = []
    if said.reasoning:
        summary = [{"type": "summary_text", "text": said.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{said.mark}", "summary": summary, "encrypted_content": said.mark})
    if said.text:
        content = [{"type": "output_text", "text": said.text, "annotations": []}]
        item = {"type": "message", "id": f"msg_{said.mark}", "role": "assistant", "status": "completed"}
        items.append({**item, "content": content})
    for index, (name, arguments) in enumerate(said.calls):
        fields = {"call_id": f"call_{said.mark}_{index}", "name": name, "arguments": json.dumps(arguments)}
        items.append({"type": "function_call", "id": f"fc_{said.mark}_{index}", "status": "completed", **fields})
    events: list[Wire] = [{"type": "response.created", "response": {"status": "in_progress", "output": []}}]
    for index, item in enumerate(items):
        void = {key: type(item[key])() for key in ("content", "arguments", "summary") if key in item}
        events.append({"type": "response.output_item.added", "output_index": index, "item": {**item, **void}})
        if item["type"] == "message":
            for piece in _halves(said.text):
                told = {"type": "response.output_text.delta", "output_index": index, "content_index": 0}
                events.append({**told, "delta": piece})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    response = {"id": f"resp_{said.mark}", "model": "m", "status": "completed", "output": items, "usage": usage}
    events.append({"type": "response.completed", "response": response})
    return [_event(event, event["type"]) for event in events]


def _anthropic(said: Said, _api: str) -> list[bytes]:
    start = {"id": f"m_{said.mark}", "type": "message", "role": "assistant", "model": "m", "content": []}
    usage = {"input_tokens": 10, "output_tokens": 1}
    events: list[Wire] = [{"type": "message_start", "message": {**start, "usage": usage}}]
    blocks: list[tuple[Wire, list[Wire]]] = []
    if said.reasoning:
        pieces = [{"type": "thinking_delta", "thinking": piece} for piece in _halves(said.reasoning)]
        signed = {"type": "signature_delta", "signature": said.mark}
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, [*pieces, signed]))
    if said.text:
        blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": p} for p in _halves(said.text)]))
    for index, (name, arguments) in enumerate(said.calls):
        begin = {"type": "tool_use", "id": f"toolu_{said.mark}_{index}", "name": name, "input": {}}
        pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in _halves(json.dumps(arguments))]
        blocks.append((begin, pieces))
    for index, (begin, pieces) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": begin})
        events += [{"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces]
        events.append({"type": "content_block_stop", "index": index})
    reason = said.finish or ("tool_use" if said.calls else "end_turn")
    events.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}})
    events.append({"type": "message_stop"})
    return [_event(event, event["type"]) for event in events]


def _event(value: Wire, name: str | None = None) -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def _halves(text: str) -> list[str]:
    return [piece for piece in (text[: len(text) // 2], text[len(text) // 2 :]) if piece]


# -- judging ----------------------------------------------------------------------------------------------------------

CHECKERS: dict[str, Callable[[Wire], None]] = {
    "chat": lambda body: check_openai_chat(body["messages"]),
    "mistral": lambda body: check_mistral(body["messages"]),
    "deepseek": lambda body: check_deepseek(body["messages"]),
    "responses": lambda body: check_openai_responses(body["input"]),
    "anthropic": lambda body: check_anthropic(
        _unmarked(body["messages"]), "\n".join(block["text"] for block in body.get("system", ())) or None
    ),
}
SPECS: dict[str, Wire] = {
    "chat": {"backend": "openai-chat", "dialect": "openai"},
    "mistral": {"backend": "openai-chat", "dialect": "mistral"},
    "deepseek": {"backend": "openai-chat", "dialect": "deepseek"},
    "responses": {"backend": "openai-responses"},
    "anthropic": {"backend": "anthropic"},
}


def api_of(received: Received) -> str:
    """Which API a request is for: the first step of its path."""
    return received.line.split(" ")[1].split("/")[1]


def verdict(received: Received) -> str | None:
    """Why the provider would refuse this request with 400; None when it takes it."""
    try:
        CHECKERS[api_of(received)](received.json)
    except (AssertionError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _unmarked(messages: list[Wire]) -> list[Wire]:
    return [
        {
            **message,
            "content": [{k: v for k, v in block.items() if k != "cache_control"} for block in message["content"]],
        }
        for message in messages
    ]
