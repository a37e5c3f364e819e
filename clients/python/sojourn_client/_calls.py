"""How a typed call becomes plain JSON and its result a model. The calls themselves are in `_api`, generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sojourn.core.messages import InputPart, Part

    Content = str | Sequence[InputPart | Part | Mapping[str, Any]]
    """A string stands for one text part; parts are values, or plain JSON in wire form."""

Fields = Mapping[str, Any]
"""A value as plain JSON in wire form."""


class Unset:
    """The default of a parameter that may be left out: None says `null`, which can mean something else."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


class Caller(Protocol):
    """Whoever sends plain JSON."""

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The result of `method` as plain JSON."""
        ...


class Namespace:
    """The methods of one namespace."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def _call(self, name: str, params: dict[str, Any]) -> Any:
        body = {key: to_wire(value) for key, value in params.items() if value is not UNSET}
        answer = await self._caller.call(name, body)
        return from_wire(name, body, answer)


def to_wire(value: Any) -> Any:
    """Values, also inside lists and dicts, as plain JSON in wire form."""
    if isinstance(value, Mapping):
        return {key: to_wire(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_wire(item) for item in value]
    return value.wire() if hasattr(value, "wire") else value


def from_wire(name: str, params: Mapping[str, Any], answer: Any) -> Any:
    """The answer of the method `name` as the model of its result."""
    import sojourn.methods  # noqa: F401 - fills the table
    from sojourn.methods._table import METHODS

    method = METHODS[name]
    model = method.result
    if method.accepted is not None and params.get("wait") is False:
        model = method.accepted
    return answer if model is None else model.model_validate(answer, by_name=False)
