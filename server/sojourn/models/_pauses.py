"""A provider at work with tools of its own may pause in a turn; it goes on when it is sent what it has said.

All of it is one turn and one message: pieces are put behind each other, their deltas are numbered on, their usage adds
up. What was said before a pause is kept when a later piece fails: the retry begins there, not anew.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from sojourn.core.messages import Part, Usage

from .base import ModelAnswer, ModelDelta, ModelEvent, ModelNotice, ModelRequest

MOST_PAUSES = 16


class PausingTurn:
    """One turn. `attempt` is one try of what is left of it."""

    def __init__(self, request: ModelRequest, ask: Callable[[ModelRequest], AsyncGenerator[ModelEvent, None]]) -> None:
        self._request = request
        self._ask = ask
        self._said: tuple[Part, ...] = ()
        self._usage: Usage | None = None
        self._pauses = 0

    async def attempt(self) -> AsyncGenerator[ModelEvent, None]:
        """What was said before, told again; then the rest, and the whole answer."""
        for delta in self._told_again():
            yield delta
        paused = True
        while paused:
            paused = False
            async with aclosing(self._ask(self._so_far())) as events:
                async for event in events:
                    if isinstance(event, ModelAnswer):
                        whole = self._joined(event)
                        if paused := event.paused and self._pauses < MOST_PAUSES:
                            self._said, self._usage, self._pauses = whole.content, whole.usage, self._pauses + 1
                            continue
                        if event.paused:
                            yield _given_up()
                        yield whole
                    elif self._said and isinstance(event, ModelDelta):
                        yield replace(event, part=event.part + len(self._said))
                    else:
                        yield event

    def _so_far(self) -> ModelRequest:
        return replace(self._request, said=self._said)

    def _joined(self, answer: ModelAnswer) -> ModelAnswer:
        usage = answer.usage if self._usage is None or answer.usage is None else self._usage + answer.usage
        return replace(answer, content=(*self._said, *answer.content), usage=usage or self._usage)

    def _told_again(self) -> list[ModelDelta]:
        return [
            ModelDelta(place, "reasoning" if part.type == "reasoning" else "text", part.text)
            for place, part in enumerate(self._said)
            if part.type in ("text", "reasoning", "refusal") and part.text
        ]


def _given_up() -> ModelNotice:
    text = f"The model paused its own tools' work more than {MOST_PAUSES} times; prompt or resume it to go on."
    return ModelNotice("turnPaused", text)
