"""A daemon that follows a transcript: it waits for each of the client's recorded messages and answers as recorded.

What the transcript does not tell of is answered as by a daemon in which nothing else is; a message that contradicts it
is answered with an error that says what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ._read import Transcript

_COMPARED = ("agentId", "callId", "approvalId", "content", "error", "decision", "arguments", "afterSeq")
_UNTOLD: dict[str, Any] = {
    "agent/watch": None,
    "agent/unwatch": None,
    "agent/detach": None,
    "agent/list": {"agents": []},
    "approval/list": {"approvals": []},
    "model/list": {"models": []},
    "tool/list": {"tools": []},
    "tool/register": None,
    "shutdown": None,
}
_INVALID = -32602


class Off(Exception):
    """The client left, or the transcript is over; `left` are the client's messages that never came."""

    def __init__(self, left: list[str]) -> None:
        super().__init__(f"never came: {', '.join(left)}" if left else "everything came")
        self.left = left


def play(
    transcript: Transcript,
    read: Callable[[], dict[str, Any] | None],
    write: Callable[[dict[str, Any]], None],
    *,
    connection: int = 1,
) -> None:
    """Plays one connection of a transcript; returns when the client leaves after everything came, else raises `Off`.

    `read` answers the client's next message, None at its end.
    """
    frames = [frame for frame in transcript.frames if frame.connection == connection]
    ids: dict[Any, Any] = {}
    for number, frame in enumerate(frames):
        if frame.to == "client":
            write(_under(frame.body, ids))
            continue
        for message in _messages(read):
            if _fits(frame.body, message):
                ids[frame.body.get("id")] = message.get("id")
                break
            _answer_untold(message, frame.body, write)
        else:
            raise Off([_name(one.body) for one in frames[number:] if one.to == "daemon"])
    for message in _messages(read):
        _answer_untold(message, {}, write)


def _messages(read: Callable[[], dict[str, Any] | None]) -> Iterator[dict[str, Any]]:
    while (message := read()) is not None:
        yield message


def _fits(expected: dict[str, Any], message: dict[str, Any]) -> bool:
    if "method" not in expected:  # An answer to a request of the daemon, whose id is the daemon's own.
        return "method" not in message and message.get("id") == expected.get("id")
    if message.get("method") != expected["method"]:
        return False
    told, real = expected.get("params") or {}, message.get("params") or {}
    return all(told[key] == real.get(key) for key in _COMPARED if key in told)


def _answer_untold(message: dict[str, Any], expected: dict[str, Any], write: Callable[[dict[str, Any]], None]) -> None:
    method, id = message.get("method"), message.get("id")
    if method is None or id is None:
        return
    if method != expected.get("method") and method in _UNTOLD:
        write({"jsonrpc": "2.0", "id": id, "result": _UNTOLD[method]})
        return
    said = f"The transcript goes on with {_name(expected)}, not with {_name(message)}."
    write({"jsonrpc": "2.0", "id": id, "error": {"code": _INVALID, "message": said, "data": {"kind": "invalidParams"}}})


def _under(body: dict[str, Any], ids: dict[Any, Any]) -> dict[str, Any]:
    """An answer carries the id that this client gave its request."""
    return {**body, "id": ids[body["id"]]} if "id" in body and "method" not in body else body


def _name(body: dict[str, Any]) -> str:
    if "method" not in body:
        return "its end" if not body else f"the answer to request {body.get('id')!r}"
    params = body.get("params") or {}
    said = ", ".join(f"{key} {params[key]!r}" for key in _COMPARED if key in params)
    return f"{body['method']} ({said})" if said else str(body["method"])
