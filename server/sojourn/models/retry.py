"""What is tried again, how long to wait before it, and how that is told.

The rule: one bounded count per turn, whatever the failures are (a status, an overload inside a stream, a broken or cut
connection). A failure knows by itself whether it may pass (`ModelError.retryable`); `retryable_status` says so for
HTTP. `Retry-After` is a lower bound, capped; 0 or garbage means our own back-off. What was streamed before a failure is
void, and a `ModelReset` says so before the next try. Waiting is a plain await: cancelling or closing ends it at once.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from sojourn.core.errors import ModelError

from .base import ModelAnswer, ModelDelta, ModelEvent, ModelNotice, ModelReset

Attempt = Callable[[], AsyncGenerator[ModelEvent, None]]
"""Starts one try. The generator ends with a `ModelAnswer` or raises `ModelError`."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and after how long. Times are in seconds; clock, chance and sleep are given so that tests need none.

    The wait before retry n is `first_delay_s * factor**(n-1)`, at most `max_delay_s`, less up to `jitter` of it by
    chance, and at least what the server asked for, which is believed up to `max_retry_after_s`.
    """

    max_retries: int = 5
    first_delay_s: float = 0.5
    factor: float = 2.0
    max_delay_s: float = 30.0
    jitter: float = 0.25
    max_retry_after_s: float = 120.0
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def delay_s(self, retry: int, retry_after_s: float | None) -> float:
        """How long to wait before retry number `retry` (from 1)."""
        own = min(self.first_delay_s * self.factor ** (retry - 1), self.max_delay_s)
        own *= 1 - self.jitter * self.chance()
        return max(own, min(retry_after_s or 0.0, self.max_retry_after_s))


async def stream_with_retries(
    attempt: Attempt, policy: RetryPolicy, *, time_left: Callable[[], float] = lambda: math.inf
) -> AsyncGenerator[ModelEvent, None]:
    """The events of the first try that succeeds, each failed one before it told as reset (if needed) and notice.

    Raises the last `ModelError` when it is not retryable or the tries are used up, or `time_left` (seconds) does not
    suffice for the wait; `attempts` in its data counts the tries.
    """
    retry = 0
    while True:
        streamed = False
        try:
            async with aclosing(attempt()) as events:
                async for event in events:
                    streamed = streamed or isinstance(event, ModelDelta)
                    yield event
                    if isinstance(event, ModelAnswer):
                        return
            raise ModelError("The model's stream ended without an answer.", retryable=True, reason="streamCut")
        except ModelError as error:
            retry += 1
            delay_s = policy.delay_s(retry, error.data.get("retryAfterS"))
            if not error.retryable or retry > policy.max_retries or delay_s >= time_left():
                error.data["attempts"] = retry
                raise
            failure = error
        if streamed:
            yield ModelReset("retry")
        yield _notice(failure, retry, policy.max_retries, delay_s)
        await policy.sleep(delay_s)


def retryable_status(status: int) -> bool:
    """Whether a request that was answered with this HTTP status may succeed later (529: overloaded)."""
    return status in (408, 409, 425, 429) or status >= 500


def parse_retry_after(value: str | None, *, now: Callable[[], float] = time.time) -> float | None:
    """The seconds that a `Retry-After` asks for: a number or an HTTP date; None when absent, past or garbage."""
    if value is None:
        return None
    text = value.strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - now()
        except (ValueError, TypeError, OverflowError):
            return None
    return seconds if 0 < seconds < float("inf") else None


def _notice(failure: ModelError, retry: int, max_retries: int, delay_s: float) -> ModelNotice:
    data = {
        "attempt": retry,
        "max": max_retries,
        "delayS": round(delay_s, 3),
        "status": failure.data.get("status"),
        "reason": failure.data.get("reason") or "modelError",
    }
    return ModelNotice(
        code="modelRetry",
        message=f"{failure.message} Trying again in {delay_s:.1f} s ({retry} of {max_retries}).",
        data={key: value for key, value in data.items() if value is not None},
    )
