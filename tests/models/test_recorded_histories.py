"""Conversations that broke other systems, put into an agent's place: the next request is one that each strict provider
takes, and what was owed is told once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from house import house
from models.stubs import CHECKERS
from models.test_switching import providers_house
from shared_inputs import shared

from sojourn.core.agent import Caller
from sojourn.core.errors import CallNotFound
from sojourn.core.messages import MESSAGES

pytestmark = pytest.mark.anyio

WORDS = {
    "st01_call_without_result": ["Interrupted"],
    "st01b_call_then_user": ["are you there?", "Interrupted"],
    "st02_result_without_call": ["next"],
    "st03_placeholder_and_late_result": ["Started job 7.", "Report written to out/nightly.csv"],
}
"""What the model must be told of each."""
WARNED = {"st01_call_without_result", "st01b_call_then_user", "st02_result_without_call"}


def messages_of(name: str) -> list[dict[str, Any]]:
    """A neutral message list in our own words."""
    told = json.loads((shared("hazards/inputs/store") / f"{name}.json").read_text())["messages"]
    names = {call["id"]: call["name"] for message in told for call in message.get("tool_calls", ())}
    return [_message(message, names) for message in told]


def _message(message: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": message["content"]}] if message["content"] else []
    if message["role"] != "tool":
        calls = [{"type": "toolCall", **call} for call in message.get("tool_calls", ())]
        return {"role": message["role"], "content": [*content, *calls]}
    role = "lateResult" if message.get("late") else "toolResult"
    pending = {"pending": True} if message.get("pending") else {}
    call_id = message["tool_call_id"]
    return {"role": role, "callId": call_id, "toolName": names.get(call_id, "gone"), "content": content, **pending}


@pytest.mark.parametrize("api", CHECKERS)
@pytest.mark.parametrize("name", WORDS)
async def test_what_broke_others_is_a_request_that_strict_providers_take(name: str, api: str) -> None:
    async with providers_house() as (h, providers):
        await h.agent("b", model=api)
        await h.hub.replace_messages(Caller(), "b", MESSAGES.validate_python(messages_of(name)))
        assert await h.pending("b") == []
        outcome = await h.prompt("And now?", "b")
        assert (outcome.reason, outcome.error, providers.refused) == ("done", None, [])
        first = providers.bodies[0][1]
        for words in WORDS[name]:
            assert words in first
        warnings = [event for event in await h.stored_events("b") if event["type"] == "warning"]
        assert bool(warnings) == (name in WARNED)


async def test_a_second_result_of_the_call_that_was_answered_late_is_refused() -> None:
    async with house() as h:
        await h.agent()
        messages = MESSAGES.validate_python(messages_of("st03_placeholder_and_late_result"))
        await h.hub.replace_messages(Caller(), "a", messages)
        with pytest.raises(CallNotFound):
            await h.resolve("c1", "again")
        codes = [event["code"] for event in await h.stored_events() if event["type"] == "warning"]
        assert codes == ["resultDropped"]
