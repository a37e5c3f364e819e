"""What is retried and how long is waited, without a clock."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from sojourn.core.errors import ModelError
from sojourn.models.base import ModelAnswer, ModelDelta, ModelEvent, ModelNotice, ModelReset
from sojourn.models.retry import RetryPolicy, parse_retry_after, retryable_status, stream_with_retries

pytestmark = pytest.mark.anyio

ANSWER = ModelAnswer(content=(), finish_reason="stop")
DELTA = ModelDelta(0, "text", "a")


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529, 599])
def test_a_status_that_may_pass(status: int) -> None:
    assert retryable_status(status)


@pytest.mark.parametrize("status", [200, 301, 400, 401, 403, 404, 410, 413, 422, 451])
def test_a_status_that_will_not_pass(status: int) -> None:
    assert not retryable_status(status)


AT = 1_750_000_000.0
RETRY_AFTERS = [
    (None, None),
    ("", None),
    ("2", 2.0),
    (" 2.5 ", 2.5),
    ("0", None),
    ("-1", None),
    ("inf", None),
    ("nan", None),
    ("soon", None),
    ("Sun, 15 Jun 2025 15:07:00 GMT", 20.0),
    ("Sun, 15 Jun 2025 15:07:00 -0000", 20.0),
    ("Sun, 15 Jun 2025 15:06:00 GMT", None),
    ("Sun, 99 Jun 2025 15:06:00 GMT", None),
    ("Sun, 15 Jun 99999 15:06:00 GMT", None),
]


@pytest.mark.parametrize(("header", "seconds"), RETRY_AFTERS)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, now=lambda: AT) == seconds


def test_the_wait_grows_to_its_limit() -> None:
    policy = RetryPolicy(chance=lambda: 0.0)
    assert [policy.delay_s(n, None) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_chance_only_shortens_our_own_wait() -> None:
    policy = RetryPolicy(chance=lambda: 1.0)
    assert policy.delay_s(1, None) == 0.375
    assert policy.delay_s(1, 2) == 2
    assert policy.delay_s(1, 1e9) == 120
    assert policy.delay_s(8, 1) == 22.5


def script(*tries: list[Any]) -> Any:
    """Each try yields its events; an exception in it is raised."""
    left = list(tries)

    async def attempt() -> AsyncGenerator[ModelEvent, None]:
        for event in left.pop(0):
            if isinstance(event, Exception):
                raise event
            yield event

    return attempt


def fault(retryable: bool = True, **data: Any) -> ModelError:
    return ModelError("It broke.", retryable=retryable, **data)


async def events_of(attempt: Any, waits: list[float] | None = None, **kwargs: Any) -> list[Any]:
    async def sleep(delay_s: float) -> None:
        if waits is not None:
            waits.append(delay_s)

    policy = RetryPolicy(max_retries=2, chance=lambda: 0.0, sleep=sleep)
    return [event async for event in stream_with_retries(attempt, policy, **kwargs)]


async def test_a_success_is_passed_on_as_it_is() -> None:
    assert await events_of(script([DELTA, ANSWER])) == [DELTA, ANSWER]


async def test_nothing_is_reset_when_nothing_was_told() -> None:
    waits: list[float] = []
    events = await events_of(script([fault(status=503)], [DELTA, ANSWER]), waits)
    assert [type(event) for event in events] == [ModelNotice, ModelDelta, ModelAnswer]
    assert events[0].data == {"attempt": 1, "max": 2, "delayS": 0.5, "status": 503, "reason": "modelError"}
    assert "It broke. Trying again in 0.5 s (1 of 2)." in events[0].message
    assert waits == [0.5]


async def test_what_was_told_is_reset_before_it_is_told_again() -> None:
    events = await events_of(script([DELTA, fault()], [DELTA, fault(reason="streamCut")], [DELTA, ANSWER]))
    assert [type(event) for event in events] == [
        ModelDelta,
        ModelReset,
        ModelNotice,
        ModelDelta,
        ModelReset,
        ModelNotice,
        ModelDelta,
        ModelAnswer,
    ]
    assert events[1] == ModelReset("retry")
    assert [event.data["attempt"] for event in events if isinstance(event, ModelNotice)] == [1, 2]


async def test_the_last_failure_is_the_one_that_is_raised() -> None:
    last = fault(status=500)
    with pytest.raises(ModelError) as caught:
        await events_of(script([fault()], [fault()], [last]))
    assert caught.value is last
    assert last.data["attempts"] == 3


async def test_a_failure_that_will_not_pass_is_raised_at_once() -> None:
    with pytest.raises(ModelError) as caught:
        await events_of(script([DELTA, fault(retryable=False)]))
    assert caught.value.data["attempts"] == 1


async def test_a_stream_without_an_answer_is_a_cut() -> None:
    events = await events_of(script([DELTA], [ANSWER]))
    assert events[2].data["reason"] == "streamCut"


async def test_a_bug_is_not_retried() -> None:
    with pytest.raises(ZeroDivisionError):
        await events_of(script([ZeroDivisionError()]))


@pytest.mark.parametrize(("left", "tries"), [(0.5, 1), (0.6, 2), (math.inf, 2)])
async def test_a_wait_that_does_not_fit_is_not_begun(left: float, tries: int) -> None:
    attempt = script([fault()], [ANSWER])
    if tries == 1:
        with pytest.raises(ModelError):
            await events_of(attempt, time_left=lambda: left)
    else:
        assert (await events_of(attempt, time_left=lambda: left))[-1] is ANSWER


async def test_a_closed_stream_closes_its_try() -> None:
    closed = []

    async def attempt() -> AsyncGenerator[ModelEvent, None]:
        try:
            yield DELTA
            yield ANSWER
        finally:
            closed.append(True)

    stream = stream_with_retries(attempt, RetryPolicy())
    await anext(stream)
    await stream.aclose()
    assert closed == [True]
