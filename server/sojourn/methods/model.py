"""`model/*`: the configured models."""

from __future__ import annotations

from typing import Any, Literal

from ._table import Params, Result, Session, method


class ListParams(Params):
    """Nothing to say."""


class ModelEntry(Result):
    """A model as configured; never a secret. `default` marks the one that agents without a `model` use.

    `images`, `tools`, `reasoning` and `structuredOutput` say what its protocol carries; whether the model itself can is
    known to its server only. `reasoning`: its thoughts go back to it in later turns. `structuredOutput` is the
    strongest form. `fault` says why a model of this machine cannot run, and what to do about it.
    """

    name: str
    backend: str
    model: str | None = None
    base_url: str | None = None
    dialect: str | None = None
    context_window: int | None = None
    images: bool | None = None
    tools: bool | None = None
    reasoning: bool | None = None
    structured_output: Literal["json_schema", "json_object", "none"] | None = None
    prices: bool = False
    fault: str | None = None
    default: bool = False


class Models(Result):
    """Models by name."""

    models: tuple[ModelEntry, ...]


@method("model/list", params=ListParams, result=Models)
async def list_(session: Session, params: ListParams) -> Any:
    """The models that an agent's config may name."""
    return await session.hub.models()
