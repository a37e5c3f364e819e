"""The chat completions backend against a mock server of other people's making, which also judges how it behaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from models.loopback import Heard, asked, calls_of, listen, text_in

from sojourn.core.errors import ModelError
from sojourn.core.messages import (
    AssistantMessage,
    LateResultMessage,
    Message,
    ToolSpec,
    parts,
    text_of,
    tool_result,
    user,
)
from sojourn.models.base import ModelSpec
from sojourn.models.retry import RetryPolicy
from sojourn.models.table import make_model

pytest.importorskip("llmock")
pytestmark = pytest.mark.anyio

WEATHER = ToolSpec(
    name="get_weather",
    description="Tells the weather in a city.",
    input_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
QUICK = RetryPolicy(max_retries=2, first_delay_s=0.05)


BACKENDS = {"openai-chat": "openai", "openai-responses": "openai", "anthropic": "anthropic"}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def model_at(llmock: Any, backend: str = "openai-chat", **fields: Any) -> Any:
    url = llmock.base_url(BACKENDS[backend])
    base = {"name": "mock", "backend": backend, "model": "gpt-5", "idle_timeout_s": 15.0, "total_timeout_s": 30.0}
    spec = ModelSpec(**{**base, "base_url": url, "api_key_env": "OPENAI_API_KEY", **fields})
    model = make_model(spec)
    model._policy = QUICK
    return model


def judge(llmock: Any) -> None:
    """The server's verdict: no error, and no warning but two that a busy machine brings about.

    These are: short waits that look alike, and a bad chunk that was followed by the last bytes before we hung up.
    """
    llmock.assert_resilient()
    assert {finding.code for finding in llmock.verdict().findings} <= {"no_backoff", "malformed_chunk_ignored"}


async def test_a_conversation_with_tools_comes_to_its_end(llmock: Any, backend: str) -> None:
    model = model_at(llmock, backend)
    messages: list[Message] = [user("What is the weather in Paris?")]
    first = await listen(model, asked(*messages, tools=(WEATHER,), system="Use the tool."))
    said = AssistantMessage(content=first.answer.content)
    assert [name for name, _ in calls_of(first)] == ["get_weather"]
    assert first.answer.finish_reason == "toolCalls"
    assert first.answer.usage.output_tokens > 0
    messages += [said, *[tool_result(call, "21 degrees") for call in said.calls]]
    last = await listen(model, asked(*messages, tools=(WEATHER,), turn=2))
    await model.aclose()
    assert text_in(last)
    assert not calls_of(last)
    assert await asyncio.to_thread(lambda: len(llmock.requests)) == 2


async def test_a_late_result_and_a_second_prompt_are_accepted(llmock: Any, backend: str) -> None:
    model = model_at(llmock, backend)
    first = await listen(model, asked(user("Weather in Oslo?"), tools=(WEATHER,)))
    said = AssistantMessage(content=first.answer.content)
    call = said.calls[0]
    late = LateResultMessage(call_id=call.id, tool_name=call.name, content=parts("3 degrees"))
    messages = [
        user("Weather in Oslo?"),
        said,
        tool_result(call, "Started.", pending=True),
        AssistantMessage(content=parts("It is under way.")),
        late,
        user("And?"),
    ]
    llmock.tool_mode("off").reply("It is 3 degrees.")
    assert text_of((await listen(model, asked(*messages, tools=(WEATHER,)))).answer.content) == "It is 3 degrees."
    await model.aclose()


PASSING: dict[str, Callable[[Any], Any]] = {
    "rate limit": lambda llmock: llmock.rate_limit(times=2, retry_after=0.3),
    "server error": lambda llmock: llmock.fail(500, times=2),
    "overloaded": lambda llmock: llmock.fail(529),
    "connection dropped": lambda llmock: llmock.disconnect(after_chunks=2),
    "stream ends early": lambda llmock: llmock.truncate(after_chunks=2),
    "a chunk that is not JSON": lambda llmock: llmock.corrupt(after_chunks=2),
    "a stall": lambda llmock: llmock.stall(after_chunks=2, seconds=10),
    "several at once": lambda llmock: llmock.fail(503).truncate(after_chunks=1),
}


@pytest.mark.parametrize("fault", PASSING)
async def test_a_fault_that_passes_is_survived_as_a_good_client_would(fault: str, llmock: Any, backend: str) -> None:
    llmock.reply("All of the answer, to the last word.", times=None)
    PASSING[fault](llmock)
    model = model_at(llmock, backend, idle_timeout_s=1.0 if fault == "a stall" else 15.0)
    heard = await listen(model)
    await model.aclose()
    assert text_in(heard) == "All of the answer, to the last word."
    assert heard.notices
    await asyncio.to_thread(judge, llmock)


LASTING: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "bad request": (lambda llmock: llmock.fail(400), False),
    "bad key": (lambda llmock: llmock.fail(401), False),
    "too long": (lambda llmock: llmock.context_overflow(), False),
    "outage": (lambda llmock: llmock.outage(), True),
}


@pytest.mark.parametrize("fault", LASTING)
async def test_a_fault_that_lasts_is_told_in_the_end(fault: str, llmock: Any, backend: str) -> None:
    inject, retried = LASTING[fault]
    inject(llmock)
    model = model_at(llmock, backend)
    heard = Heard()
    with pytest.raises(ModelError) as caught:
        await listen(model, heard=heard)
    await model.aclose()
    assert caught.value.data["attempts"] == (3 if retried else 1)
    await asyncio.to_thread(judge, llmock)


async def test_broken_tool_calls_are_kept_for_the_run_to_judge(llmock: Any, backend: str) -> None:
    model = model_at(llmock, backend)
    llmock.break_tool_call("malformed_arguments")
    name, arguments = calls_of(await listen(model, asked(user("Weather?"), tools=(WEATHER,))))[0]
    assert name == "get_weather"
    assert isinstance(arguments, str)
    llmock.break_tool_call("unknown_tool")
    name, _ = calls_of(await listen(model, asked(user("Weather?"), tools=(WEATHER,))))[0]
    assert name != "get_weather"
    await model.aclose()
