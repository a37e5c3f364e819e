"""Answers of MCP servers that cannot be read: their calls fail at once."""

import pytest

from sojourn.tools.mcp.process import unreadable

DEEP = b'{"a":' * 3_000 + b"1" + b"}" * 3_000


@pytest.mark.parametrize(
    ("line", "call"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"content":[],"structuredContent":' + DEEP + b"}}\n", 7),
        (b'{"id": 7, "jsonrpc": "2.0", "result": ' + DEEP + b"}\n", 7),
        (b'{"jsonrpc":"2.0","result":' + DEEP + b',"id":7}\n', 7),
        (b'{"result":' + DEEP + b',"id":7,"jsonrpc":"2.0"}\n', 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":' + DEEP + b"}\n", None),
        (b'{"jsonrpc":"2.0","method":"x","params":' + DEEP + b"}\n", None),
        (b"{ starting up }\n", None),
    ],
)
def test_an_answer_nested_too_deeply_is_an_error_of_its_call(line: bytes, call: int | None) -> None:
    message = unreadable(line)
    assert (message.message.id if message else None) == call  # type: ignore[union-attr]
    assert message is None or "nested too deeply" in message.message.error.message  # type: ignore[union-attr]
