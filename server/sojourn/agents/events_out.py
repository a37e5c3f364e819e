"""Events that a running model call commits by the way: a retry's reset, a notice."""

from __future__ import annotations

from typing import Literal

from sojourn.core import events as ev
from sojourn.models.base import ModelNotice

from .ledger import Ledger
from .passes import Pass


def message_reset(ledger: Ledger, p: Pass, message_id: str, reason: Literal["retry", "cut"]) -> None:
    """What was streamed of the message under way is void."""
    agent, record = p.records(ledger)
    ledger.event(agent, ev.MessageReset(message_id=message_id, reason=reason), run=record)


def notice(ledger: Ledger, p: Pass, said: ModelNotice) -> None:
    """The model backend has something to tell."""
    agent, record = p.records(ledger)
    ledger.warning(agent, said.code, said.message, run=record, data=dict(said.data) or None)
