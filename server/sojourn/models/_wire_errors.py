"""What a model server's failure means: its own words, whether the same request may succeed later, and how soon.

The rule: an error is an error wherever it stands (a status, a 200's body, any event of a stream). In a stream the
request was already accepted, so a failure there may pass unless it says of itself that it will not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sojourn.core.errors import ModelError
from sojourn.core.values import Json, clean

from ._assemble import parse_json
from .retry import parse_retry_after, retryable_status

MAX_WORDS = 2_000
_PERMANENT = (
    "insufficient_quota",
    "billing",
    "invalid",
    "authentication",
    "permission",
    "not_found",
    "unsupported",
    "context_length",
    "content_filter",
    "content_policy",
    "request_too_large",
)
_REASONS = {
    400: "badRequest",
    401: "unauthorized",
    403: "forbidden",
    404: "notFound",
    408: "timeout",
    413: "tooLarge",
    422: "badRequest",
    429: "rateLimited",
    503: "overloaded",
    529: "overloaded",
}


@dataclass(frozen=True, slots=True)
class Peer:
    """The server as errors name it. `secrets` are struck out of whatever it says."""

    provider: str
    name: str
    secrets: tuple[str, ...] = ()

    def error(self, message: str, *, retryable: bool, reason: str, **data: Any) -> ModelError:
        """A `ModelError` about this peer; `message` is what it did or said, without a subject."""
        text = f"The model {self.name!r} ({self.provider}) {message}"
        for secret in self.secrets:
            text = text.replace(secret, "[secret]")
        return ModelError(text, retryable=retryable, provider=self.provider, reason=reason, **data)


def status_error(peer: Peer, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """The failure that an HTTP answer other than 200 is."""
    words, kinds = _read_error(_json_or_none(body))
    if not words:
        words = _plain_words(body) or "it gave no reason"
    retryable = retryable_status(status) and not (status == 429 and "insufficient_quota" in kinds)
    hint = headers.get("x-should-retry", "").lower()
    if hint in ("true", "false"):
        retryable = hint == "true"
    return peer.error(
        f"answered with status {status}: {words}",
        retryable=retryable,
        reason=_reason(status, kinds),
        status=status,
        retryAfterS=parse_retry_after(headers.get("retry-after")),
        requestId=headers.get("x-request-id") or headers.get("request-id"),
    )


def stream_error(peer: Peer, error: Json, *, status: int | None = None) -> ModelError:
    """The failure that an error object (or string) in a 200's body or stream is."""
    words, kinds = _read_error(error)
    status = status or _status_in(error)
    if status is not None and 400 <= status < 500:
        retryable = retryable_status(status) and "insufficient_quota" not in kinds
    else:
        retryable = not any(mark in kinds for mark in _PERMANENT)
    return peer.error(
        f"failed while answering: {words or 'it gave no reason'}",
        retryable=retryable,
        reason=_reason(status, kinds),
        status=status,
    )


def error_in(data: dict[str, Any]) -> Json:
    """The error that a chunk or a whole answer carries, in any of the forms seen; None when there is none."""
    if data.get("error"):
        return data["error"]
    if data.get("object") == "error" or (data.get("type") == "error" and "message" in data):
        return data
    return None


def read_event(peer: Peer, name: str, data: bytes) -> dict[str, Any] | None:
    """The object that one event of a stream carries; None when it carries something else.

    Raises `ModelError` when it is an error, by its name or by what it carries, `ValueError` for what is not JSON.
    """
    event = parse_json(data)
    if name == "error":
        raise stream_error(peer, event)
    if not isinstance(event, dict):
        return None
    error = error_in(event)
    if error is not None:
        raise stream_error(peer, error)
    return event


def _read_error(error: Json) -> tuple[str, str]:
    """The words of an error and, lower-case, the names it gives itself."""
    while isinstance(error, list) and error:
        error = error[0]
    if isinstance(error, str):
        return _short(error), ""
    if not isinstance(error, dict):
        return "", ""
    inner = error.get("error")
    if isinstance(inner, dict | str | list) and inner:
        return _read_error(inner)
    words = next((error[key] for key in ("message", "detail", "msg", "error_description") if error.get(key)), "")
    kinds = " ".join(str(error[key]).lower() for key in ("type", "code", "status", "param") if error.get(key))
    return _short(words if isinstance(words, str) else str(words)), kinds


def _reason(status: int | None, kinds: str) -> str:
    if "context_length" in kinds:
        return "contextWindow"
    if "overloaded" in kinds:
        return "overloaded"
    if "rate_limit" in kinds:
        return "rateLimited"
    return _REASONS.get(status or 0, "serverError" if status is None or status >= 500 else "refused")


def _status_in(error: Json) -> int | None:
    if not isinstance(error, dict):
        return None
    for key in ("status", "status_code", "code", "http_status"):
        value = error.get(key)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return None


def _json_or_none(body: bytes) -> Json:
    try:
        return parse_json(body)
    except (ValueError, RecursionError):
        return None


def _plain_words(body: bytes) -> str:
    text = body[:MAX_WORDS].decode("utf-8", "replace").strip()
    return "a web page instead of an answer" if text[:1] == "<" else _short(text)


def _short(words: str) -> str:
    words = clean(" ".join(words.split()))
    return words if len(words) <= MAX_WORDS else words[:MAX_WORDS] + " …"
