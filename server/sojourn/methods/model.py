"""`model/*`: the configured models."""

from __future__ import annotations

from typing import Any

from ._table import Params, Result, Session, method


class ListParams(Params):
    """Nothing to say."""


class ModelEntry(Result):
    """A model as configured; never a secret. `default` marks the one that agents without a `model` use."""

    name: str
    backend: str
    model: str | None = None
    base_url: str | None = None
    context_window: int | None = None
    default: bool = False


class Models(Result):
    """Models by name."""

    models: tuple[ModelEntry, ...]


@method("model/list", params=ListParams, result=Models)
async def list_(session: Session, params: ListParams) -> Any:
    """The models that an agent's config may name."""
    return await session.hub.models()
