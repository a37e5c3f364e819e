"""The model backends by name. A backend is one module with one class, imported when a model of its kind is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from sojourn.core.errors import InvalidParams

from .base import Model, ModelSpec

Factory = Callable[[ModelSpec], Model]


def make_model(spec: ModelSpec) -> Model:
    """The model that `spec` describes. Raises `InvalidParams` for an unknown backend or a spec it cannot use."""
    factory = BACKENDS.get(spec.backend)
    if factory is None:
        raise InvalidParams(
            f"The model {spec.name!r} has the backend {spec.backend!r}, which does not exist; "
            f"there are: {', '.join(sorted(BACKENDS))}.",
            field="backend",
        )
    return factory(spec)


def _lazy(module: str, name: str) -> Factory:
    def make(spec: ModelSpec) -> Model:
        model: Model = getattr(import_module(f"sojourn.models.{module}"), name)(spec)
        return model

    return make


BACKENDS: Mapping[str, Factory] = {
    "scripted": _lazy("scripted", "ScriptedModel"),
    "openai-chat": _lazy("openai_chat", "OpenAIChat"),
    "openai-responses": _lazy("openai_responses", "OpenAIResponses"),
    "anthropic": _lazy("anthropic", "Anthropic"),
    "local": _lazy("local", "Local"),
}
