"""The client's framings, byte by byte."""

from __future__ import annotations

import pytest

from sojourn_client._framing import Splitter


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_lines_are_split_wherever_the_chunks_end(size: int) -> None:
    splitter = Splitter("lines")
    data = b'{"a":1}\n\n {"b":2}\r\n{"c"'
    found = [body for at in range(0, len(data), size) for body in splitter.feed(data[at : at + size])]
    assert found == [b'{"a":1}', b'{"b":2}']
    assert splitter.feed(b":3}\n") == [b'{"c":3}']


def test_a_header_without_a_length_is_refused() -> None:
    with pytest.raises(ValueError, match="Content-Length"):
        Splitter("headers").feed(b"Content-Type: x\r\n\r\n{}")
