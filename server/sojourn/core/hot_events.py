"""The events of every turn as plain data in wire form: building the value and encoding it would cost twice as much.

Each function answers what its class in `core.events` would be on the wire; a test compares them.
"""

from __future__ import annotations

from typing import Any

from .agent import Cause
from .messages import Usage
from .values import Json

WireEvent = dict[str, Any]


def agent_start(cause: Cause) -> WireEvent:
    """`AgentStart`."""
    return {"type": "agentStart", "cause": cause}


def turn_start(turn: int) -> WireEvent:
    """`TurnStart`."""
    return {"type": "turnStart", "turn": turn}


def turn_end(turn: int) -> WireEvent:
    """`TurnEnd`."""
    return {"type": "turnEnd", "turn": turn}


def context_budget(used: int, window: int | None, reserved: int) -> WireEvent:
    """`ContextBudget`."""
    return {"type": "contextBudget", "usedTokens": used, "windowTokens": window, "reservedTokens": reserved}


def message_start(message_id: str, role: str) -> WireEvent:
    """`MessageStart`."""
    return {"type": "messageStart", "messageId": message_id, "role": role}


def generation_stats(
    model: str, usage: Usage | None, *, duration_ms: int, first_token_ms: int | None, finish_reason: str
) -> WireEvent:
    """`GenerationStats`."""
    event: WireEvent = {"type": "generationStats", "model": model}
    if usage is not None:
        event["inputTokens"], event["outputTokens"] = usage.input_tokens, usage.output_tokens
        if usage.cached_input_tokens is not None:
            event["cachedInputTokens"] = usage.cached_input_tokens
        if usage.reasoning_tokens is not None:
            event["reasoningTokens"] = usage.reasoning_tokens
        if usage.cost is not None:
            event["cost"] = usage.cost
    event["durationMs"] = duration_ms
    if first_token_ms is not None:
        event["timeToFirstTokenMs"] = first_token_ms
    event["finishReason"] = finish_reason
    return event


def tool_exec_start(call_id: str, tool_name: str, args: Json) -> WireEvent:
    """`ToolExecStart`."""
    return {"type": "toolExecStart", "toolCallId": call_id, "toolName": tool_name, "args": args}


def tool_exec_end(call_id: str, tool_name: str, result: Json) -> WireEvent:
    """`ToolExecEnd`; `result` in wire form."""
    return {"type": "toolExecEnd", "toolCallId": call_id, "toolName": tool_name, "result": result}
