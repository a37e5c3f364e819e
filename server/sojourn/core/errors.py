"""Every deliberate exception of Sojourn, one JSON-RPC error code each.

    SojournError
    ├── InvalidParams            -32602   field
    ├── AgentNotFound            -31001
    ├── RunNotFound              -31002
    ├── CallNotFound             -31003
    ├── AlreadyDecided           -31004   by, at, decision
    ├── AgentBusy                -31005   runId
    ├── NothingToResume          -31006
    ├── Forbidden                -31007
    ├── StaleRevision            -31008   revision
    ├── ProtocolVersion          -31009   supported
    ├── RequestIdReused          -31010
    ├── Unauthorized             -31011
    ├── Overloaded               -31012   retryAfterMs
    ├── ProtocolViolation        -31013   call, state
    ├── LimitReached             -31015   limit, value, max
    ├── SeqAhead                 -31016   seq
    ├── Draining                 -31017
    ├── FormatUnsupported        -31018   found, supported | field
    ├── ModelError               -31019   retryable, provider, status
    │   └── ModelResponseError            reason
    ├── StorageError             -31020   table, key, column
    │   └── DamagedRecord
    ├── ApprovalNotFound         -31021
    ├── UnknownModel             -31022
    ├── UnknownTool              -31023
    ├── AlreadyExists            -31024
    ├── JobNotFound              -31025
    └── RunFailed                -31013   what ends a run as `failed`; history is closed
        ├── MaxTurns                      maxTurns
        ├── UnknownToolCall               toolName, availableTools, allowedTools
        └── Cancelled                     reason
    Aborted                               the run that a tool works for was stopped (not an error of anybody's)

A message is one full sentence for a person: it names the thing with `!r`, the state it is in and what would be right.
`data` carries the machine-readable part in wire form; `kind` is always in it.
"""

from __future__ import annotations

from typing import Any, ClassVar


class SojournError(Exception):
    """A failure that Sojourn answers on purpose. `code` is its JSON-RPC code, `kind` its stable name."""

    code: ClassVar[int] = -32603
    kind: ClassVar[str] = "internal"

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data: dict[str, Any] = {"kind": self.kind, **{k: v for k, v in data.items() if v is not None}}


class InvalidParams(SojournError):
    """A request's parameters do not have the form that its method takes; `field` names the place."""

    code, kind = -32602, "invalidParams"


class AgentNotFound(SojournError):
    """No agent has this id."""

    code, kind = -31001, "agentNotFound"


class RunNotFound(SojournError):
    """No run has this id."""

    code, kind = -31002, "runNotFound"


class CallNotFound(SojournError):
    """No tool call of this agent has this id, or it never was pending."""

    code, kind = -31003, "callNotFound"


class AlreadyDecided(SojournError):
    """Somebody was first: `by` and `at` say who and when."""

    code, kind = -31004, "alreadyDecided"


class AgentBusy(SojournError):
    """The agent has an active pass; `runId` names its run."""

    code, kind = -31005, "agentBusy"


class NothingToResume(SojournError):
    """The inbox is empty and no reply is owed."""

    code, kind = -31006, "nothingToResume"


class Forbidden(SojournError):
    """The caller may not do this."""

    code, kind = -31007, "forbidden"


class StaleRevision(SojournError):
    """The run has moved on; `revision` is where it is now."""

    code, kind = -31008, "staleRevision"


class ProtocolVersion(SojournError):
    """Client and daemon have no protocol version in common."""

    code, kind = -31009, "protocolVersion"


class RequestIdReused(SojournError):
    """The `requestId` was used before with another body."""

    code, kind = -31010, "requestIdReused"


class Unauthorized(SojournError):
    """The connection has not shown the daemon's token."""

    code, kind = -31011, "unauthorized"


class Overloaded(SojournError):
    """Too much is under way; try again after `retryAfterMs`."""

    code, kind = -31012, "overloaded"


class ProtocolViolation(SojournError):
    """A run was driven out of order. Nothing has changed; `call` and `state` say what was tried and where it stood."""

    code, kind = -31013, "protocolViolation"


class LimitReached(SojournError):
    """A named limit was reached: `limit`, `value`, `max`."""

    code, kind = -31015, "limitReached"


class SeqAhead(SojournError):
    """`afterSeq` lies beyond the newest event, `seq`."""

    code, kind = -31016, "seqAhead"


class Draining(SojournError):
    """The daemon is about to end and takes no new work."""

    code, kind = -31017, "draining"


class FormatUnsupported(SojournError):
    """A saved document is of another format, or has a field too many or too few."""

    code, kind = -31018, "formatUnsupported"


class ModelError(SojournError):
    """The model server failed, or said something that is no answer; the message carries its own words."""

    code, kind = -31019, "modelError"

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return bool(self.data.get("retryable", False))


class ModelResponseError(ModelError):
    """The model's turn holds nothing to keep because it was cut; `reason` is the finish reason, `history` is closed."""

    kind = "modelResponseError"

    def __init__(self, message: str, *, history: list[Any] | None = None, **data: Any) -> None:
        super().__init__(message, **data)
        self.history: list[Any] = history or []


class StorageError(SojournError):
    """The disk said no; nothing was acknowledged or published. With `table`: a record in it cannot be read."""

    code, kind = -31020, "storageError"


class DamagedRecord(StorageError):
    """A record of the store cannot be read: `table`, `key` and `column` name it. No other is harmed."""

    @classmethod
    def of(cls, table: str, key: list[Any], column: str, why: str) -> DamagedRecord:
        """Names the record, says what is wrong with it and what would be right."""
        shown = ", ".join(map(repr, key))
        text = (
            f"The record {shown} of the store's table {table!r} is damaged: its {column!r} cannot be read ({why}). "
            "No other record is harmed. Put back a copy of the database to have it again; to go on without it, fork "
            "the agent from a message before it, replace the agent's messages, or delete the agent."
        )
        return cls(text, table=table, key=key, column=column)

    @classmethod
    def file(cls, table: str, why: str, remedy: str) -> DamagedRecord:
        """Says that the database cannot be read where a table is kept, and what to do."""
        text = (
            f"The database is damaged where this part of the table {table!r} is kept ({why}); what is elsewhere is not "
            f"harmed. Stop the daemon and {remedy}."
        )
        return cls(text, table=table)


class ApprovalNotFound(SojournError):
    """No approval has this id."""

    code, kind = -31021, "approvalNotFound"


class UnknownModel(SojournError):
    """No model is configured under this name."""

    code, kind = -31022, "unknownModel"


class UnknownTool(SojournError):
    """No tool has this name."""

    code, kind = -31023, "unknownTool"


class AlreadyExists(SojournError):
    """The name or id is taken."""

    code, kind = -31024, "alreadyExists"


class JobNotFound(SojournError):
    """No job has this id, or it is so old that it was forgotten."""

    code, kind = -31025, "jobNotFound"


class RunFailed(SojournError):
    """A run ended as `failed`. `history` is closed: each call in it has exactly one result directly after it."""

    code, kind = -31013, "runFailed"

    def __init__(self, message: str, *, history: list[Any] | None = None, **data: Any) -> None:
        super().__init__(message, **data)
        self.history: list[Any] = history or []


class MaxTurns(RunFailed):
    """The turn budget is used up and the model is still owed an answer to `prompt`, the last message of `history`."""

    kind = "maxTurns"

    def __init__(
        self, message: str, *, prompt: Any = None, history: list[Any] | None = None, max_turns: int | None = None
    ) -> None:
        super().__init__(message, history=history, maxTurns=max_turns)
        self.prompt = prompt


class UnknownToolCall(RunFailed):
    """The model called a tool that it cannot call, and nobody could mend it."""

    kind = "unknownToolCall"


class Cancelled(RunFailed):
    """The driver decided to end the run at an invalid call."""

    kind = "cancelled"


class Aborted(Exception):
    """The run that this work belongs to was stopped: end it, keep what is finished."""


class ClientRefused(Exception):
    """A client answered a request of the daemon with an error; `code` is its JSON-RPC code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"The client refused: {message} ({code}).")
        self.code = code
        self.message = message
