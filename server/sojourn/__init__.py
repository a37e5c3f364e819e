"""Sojourn: a daemon for LLM agents, built like a language server.

As a library, the durable run can be used on its own:

>>> from sojourn import AgentRun, CallModel
>>> run = AgentRun.new("Hello").max_turns(4)
>>> step = run.next_step()
>>> isinstance(step, CallModel), step.turn
(True, 1)
"""

from __future__ import annotations

from ._version import __version__

TYPE_CHECKING = False  # As typing has it, whose import takes longer than `sojourn connect` can wait.
if TYPE_CHECKING:
    from typing import Any

    from .core.run import AgentRun as AgentRun
    from .core.run import CallModel as CallModel
    from .core.run import CallTools as CallTools
    from .core.run import Done as Done
    from .core.run import ModelTurn as ModelTurn

_LAZY = ("AgentRun", "CallModel", "CallTools", "Done", "ModelTurn")

__all__ = ["AgentRun", "CallModel", "CallTools", "Done", "ModelTurn", "__version__"]


def __getattr__(name: str) -> Any:
    # Importing pydantic takes a tenth of a second; `sojourn connect` must not pay for it.
    if name in _LAZY:
        from .core import run

        return getattr(run, name)
    raise AttributeError(f"module 'sojourn' has no attribute {name!r}")
