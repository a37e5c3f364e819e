"""Trying a model: one cheap request, and in plain words what is wrong and what to do about it."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace

from sojourn.core.errors import InvalidParams, ModelError
from sojourn.core.messages import user

from .base import ModelAnswer, ModelRequest, ModelSpec
from .table import make_model

LIMIT_S = 30.0
MOST_TOKENS = 16
"""The least that every API takes as a limit of output tokens."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it; `advice` is empty when the model has answered."""

    said: str
    advice: str = ""


async def try_model(spec: ModelSpec) -> Trial:
    """Asks the model for one word, once; never raises for what a server does."""
    hasty = replace(
        spec,
        max_retries=0,
        idle_timeout_s=min(spec.idle_timeout_s, LIMIT_S),
        total_timeout_s=min(spec.total_timeout_s, LIMIT_S),
    )
    try:
        answer = await _ask(hasty)
    except InvalidParams as error:
        return Trial(error.message, "Correct its table in the config.")
    except ModelError as error:
        return Trial(error.message, _advice(spec, error))
    return Trial(f"answered as {answer.model or spec.model!r}")


async def _ask(spec: ModelSpec) -> ModelAnswer:
    model = make_model(spec)
    request = ModelRequest(messages=[user("Say OK.")], sampling={"maxTokens": MOST_TOKENS})
    try:
        async with aclosing(model.stream(request)) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, ModelAnswer):
                    return event
    finally:
        await model.aclose()
    raise ModelError(f"The model {spec.name!r} ended its stream without an answer.", reason="streamCut")


def _advice(spec: ModelSpec, error: ModelError) -> str:
    where = spec.base_url or "the provider's own address"
    reason = str(error.data.get("reason"))
    if reason in ("notFound", "badRequest") and spec.model and spec.model in error.message:
        reason = "unknownModel"
    return _ADVICE.get(reason, "Look at what it said, and at its table in the config.").format(
        name=spec.name, model=spec.model, where=where, key=_key_of(spec)
    )


def _key_of(spec: ModelSpec) -> str:
    if spec.api_key_env:
        return f"the key in ${spec.api_key_env}"
    if spec.api_key_file:
        return f"the key in {spec.api_key_file}"
    if spec.api_key_command:
        return "the key that api_key_command prints"
    return "the key; the config names none (api_key_env)"


_ADVICE = {
    "unauthorized": "The server refuses {key}. Make a new one, or correct where it is kept.",
    "forbidden": "The server knows {key} but does not let it use {model!r}.",
    "noApiKey": "Put the key where [models.{name}] says that it is.",
    "unknownModel": "The server has no model {model!r}: correct 'model' in [models.{name}].",
    "notFound": "There is no such API at {where}: correct 'base_url' in [models.{name}] (many servers want it to "
    "end in /v1), or 'model'.",
    "badAnswer": "What answers at {where} is no such API: correct 'base_url' or 'backend' in [models.{name}].",
    "badChunk": "What answers at {where} does not speak as [models.{name}] says: correct 'backend'.",
    "connectionFailed": "Nothing answers at {where}: start the server, or correct 'base_url' in [models.{name}].",
    "idleTimeout": "The server took the request and said nothing: it may still be loading {model!r}. Try again.",
    "totalTimeout": "The server is too slow to answer one word in time. Try again when it is at rest.",
    "rateLimited": "The key is right, but its limit or its quota is used up for now.",
    "overloaded": "The server is overloaded. Try again later.",
    "serverError": "The server itself fails. Try again later, and look into its log if it is yours.",
    "noRule": "Add a rule for `always: true` at the script's end.",
}
