"""The models of one daemon: each is made when it is first used, and closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .base import Model
from .capabilities import described


class Models:
    """Models by the names that the config gives them; `factories` make them."""

    def __init__(self, factories: Mapping[str, Callable[[], Model]], default: str) -> None:
        self._factories = dict(factories)
        self._default = default
        self._made: dict[str, Model] = {}

    def get(self, name: str) -> Model:
        """The model of this name, which must be one of `names`."""
        if name not in self._made:
            self._made[name] = self._factories[name]()
        return self._made[name]

    def names(self) -> list[str]:
        """All names, in the order of the config."""
        return list(self._factories)

    def listed(self) -> list[dict[str, Any]]:
        """What `model/list` shows."""
        return [
            {"name": name, **described(self.get(name).spec), "default": name == self._default}
            for name in self._factories
        ]

    async def aclose(self) -> None:
        """Closes those that were made."""
        for model in self._made.values():
            await model.aclose()
