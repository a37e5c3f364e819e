"""A model that says what its script tells it to: the offline default, the demo and the tests' model.

A rule looks at what the model is to answer: the messages after its own last one. The first rule whose conditions all
hold answers.

- `user: REGEX` searches the text of the last user message. Alone it also asks that this message is among those to be
  answered, so that a rule does not fire again on the results of its own calls; beside `tool_result`, `late_result` or
  `turn` it only searches.
- `tool_result: NAME`, `late_result: NAME`: a result of that tool is among them (`"*"`: of any).
- `turn: N`: this is the run's N-th turn. `tool: NAME` (or a list): the tools are offered. `always: true`.

Text, reasoning, arguments and error messages are templates: `{1}`, `{name}` quote groups of the `user` match, `{0}`
all of it, `{result}` the text of the last result that the rule asks for (or of any), `{tool}` its tool, `{user}` the
last user message; `{name|text}` has a text for when it is empty; anything else in braces stays. Errors and cuts are
told and retried exactly as a real backend's; a try looks for its rule anew, so a rule with `times: 1` lets the retry
succeed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import orjson

from sojourn.core.errors import ModelError
from sojourn.core.messages import (
    AssistantMessage,
    LateResultMessage,
    Message,
    ToolResultMessage,
    Usage,
    UserMessage,
    text_of,
)

from ._assemble import AnswerBuilder
from ._estimate import BYTES_PER_TOKEN, estimate_tokens
from ._script import Failure, Reply, ScriptedUsage, When, load_script
from ._wire_errors import Peer, status_error
from .base import NEUTRAL, ModelAnswer, ModelDelta, ModelEvent, ModelRequest, ModelSpec
from .retry import RetryPolicy, stream_with_retries

_WORD = re.compile(r"\s*\S+\s*|\s+")
_QUOTE = re.compile(r"\{(\w+)(?:\|([^{}]*))?\}")


class ScriptedModel:
    """A model that reads its script once, when it is made. Raises `InvalidParams` for a script with a mistake."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.spec = spec
        self._rules = load_script(spec)
        self._answered = [0] * len(self._rules)
        self._policy = policy or RetryPolicy(max_retries=spec.max_retries)
        self._sleep = sleep
        self._peer = Peer("scripted", spec.name)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Model.stream`."""
        tries = stream_with_retries(lambda: self._attempt(request), self._policy)
        async with aclosing(tries):
            async for event in tries:
                yield event

    gauge = NEUTRAL

    def estimate_tokens(self, request: ModelRequest) -> int:
        """See `Model.estimate_tokens`."""
        return estimate_tokens(request)

    async def aclose(self) -> None:
        """See `Model.aclose`. There is nothing to close."""

    async def _attempt(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        reply, quotes = self._reply(request)
        build = AnswerBuilder("scripted")
        left = reply.cut_after_chars
        for delta in _deltas(reply, quotes, build):
            await self._sleep(reply.delay_ms / 1000)
            told = delta if left is None else replace(delta, text=delta.text[:left])
            if told.text:
                yield told
            left = None if left is None else left - len(told.text)
            if left == 0:
                break
        if left is not None:
            raise self._peer.error(
                "broke off before the end of its answer; nothing of it is kept.", retryable=True, reason="streamCut"
            )
        if reply.error is not None:
            raise self._failure(reply.error, quotes)
        yield self._answer(reply, build, request)

    def _reply(self, request: ModelRequest) -> tuple[Reply, Mapping[str, str]]:
        scene = Scene.of(request)
        for number, rule in enumerate(self._rules):
            if rule.times is not None and self._answered[number] >= rule.times:
                continue
            quotes = scene.match(rule.when)
            if quotes is not None:
                self._answered[number] += 1
                return rule.reply, quotes
        raise self._peer.error(
            f"has no rule in {self.spec.script!r} for turn {request.turn} after the user message {scene.user!r}; "
            "end the script with a rule for `always: true`.",
            retryable=False,
            reason="noRule",
        )

    def _failure(self, error: Failure, quotes: Mapping[str, str]) -> ModelError:
        headers = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
        body = orjson.dumps({"error": {"message": fill(error.message, quotes)}})
        return status_error(self._peer, error.status, headers, body)

    def _answer(self, reply: Reply, build: AnswerBuilder, request: ModelRequest) -> ModelAnswer:
        usage = reply.usage or ScriptedUsage(
            input_tokens=estimate_tokens(request), output_tokens=-(-build.said_bytes() // BYTES_PER_TOKEN)
        )
        return ModelAnswer(
            content=build.content(),
            finish_reason=reply.finish,
            usage=Usage(**usage.model_dump()),
            model=self.spec.model or self.spec.name,
        )


@dataclass(frozen=True, slots=True)
class Scene:
    """What a rule can see of a request. `open` are the messages to be answered, oldest first."""

    user: str
    user_is_open: bool
    open: tuple[Message, ...]
    turn: int
    tools: frozenset[str]

    @classmethod
    def of(cls, request: ModelRequest) -> Scene:
        """The scene of a request."""
        messages = request.messages
        start = next((n + 1 for n in range(len(messages) - 1, -1, -1) if isinstance(messages[n], AssistantMessage)), 0)
        last = next((n for n in range(len(messages) - 1, -1, -1) if isinstance(messages[n], UserMessage)), -1)
        return cls(
            user=text_of(messages[last].content) if last >= 0 else "",
            user_is_open=last >= start,
            open=tuple(messages[start:]),
            turn=request.turn,
            tools=frozenset(tool.name for tool in request.tools),
        )

    def match(self, when: When) -> Mapping[str, str] | None:
        """What templates may quote when all conditions hold, else None."""
        found = self._search(when)
        tool_result = self._result(ToolResultMessage, when.tool_result)
        late_result = self._result(LateResultMessage, when.late_result)
        holds = (
            (when.user is None or found is not None)
            and (when.tool_result is None or tool_result is not None)
            and (when.late_result is None or late_result is not None)
            and when.turn in (None, self.turn)
            and self.tools.issuperset(when.tool)
            and when.always is not False
        )
        if not holds:
            return None
        asked = late_result or tool_result or self._any_result()
        quotes = {"user": self.user, "result": "", "tool": ""}
        if asked is not None:
            quotes |= {"result": text_of(asked.content), "tool": asked.tool_name}
        return quotes | (_groups(found) if found is not None else {})

    def _search(self, when: When) -> re.Match[str] | None:
        alone = when.tool_result is None and when.late_result is None and when.turn is None
        if when.user is None or (alone and not self.user_is_open):
            return None
        return when.user.search(self.user)

    def _result(
        self, kind: type[ToolResultMessage | LateResultMessage], name: str | None
    ) -> ToolResultMessage | LateResultMessage | None:
        """The last open result of this kind and tool."""
        for message in reversed(self.open):
            if isinstance(message, kind) and name in ("*", message.tool_name):
                return message
        return None

    def _any_result(self) -> ToolResultMessage | LateResultMessage | None:
        results = (m for m in reversed(self.open) if isinstance(m, ToolResultMessage | LateResultMessage))
        return next(results, None)


def fill(template: str, quotes: Mapping[str, str]) -> str:
    """`template` with `{name}` and `{name|what stands for an empty one}` quoted; other braces stay as they are."""
    return _QUOTE.sub(lambda found: (quotes[found[1]] or found[2] or "") if found[1] in quotes else found[0], template)


def _fill_in(value: Any, quotes: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return fill(value, quotes)
    if isinstance(value, dict):
        return {key: _fill_in(item, quotes) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_in(item, quotes) for item in value]
    return value


def _groups(found: re.Match[str]) -> dict[str, str]:
    groups = {str(number): text or "" for number, text in enumerate((found[0], *found.groups()))}
    return groups | {name: text or "" for name, text in found.groupdict().items()}


def _deltas(reply: Reply, quotes: Mapping[str, str], build: AnswerBuilder) -> Iterator[ModelDelta]:
    """What the reply streams, put together in `build` as it goes."""
    for piece in _pieces(fill(reply.reasoning, quotes), reply.chunk_chars):
        yield from build.add_text("reasoning", piece)
    for piece in _pieces(fill(reply.text, quotes), reply.chunk_chars):
        yield from build.add_text("text", piece)
    for call in reply.calls:
        slot = build.open_call(id=f"call_{len(build.calls) + 1}", name=fill(call.name, quotes))
        arguments = _fill_in(call.arguments, quotes)
        text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
        for piece in _pieces(text, reply.chunk_chars or len(text)):
            yield from build.add_arguments(slot, piece)


def _pieces(text: str, chunk_chars: int | None) -> list[str]:
    if chunk_chars is None:
        return _WORD.findall(text)
    return [text[at : at + chunk_chars] for at in range(0, len(text), chunk_chars)]
