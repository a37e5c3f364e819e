"""How much reading a model's stream costs, as a ratio to parsing the JSON in it (limit: 2).

Prints one JSON line. `ratio` is bytes -> events -> parsed chunks over parsing the same chunks from a ready list.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import orjson
from _report import Report

from sojourn.models.sse import SseDecoder

DELTAS = 50_000
PIECE = 16 * 1024


def main() -> int:
    lines = [_chunk(n) for n in range(DELTAS)]
    stream = b"".join(b"data: " + line + b"\n\n" for line in lines)
    pieces = [stream[at : at + PIECE] for at in range(0, len(stream), PIECE)]
    rounds = [(_timed(lambda: _parse(lines)), _timed(lambda: _read(pieces))) for _ in range(7)]
    parse_s, read_s = (min(times) for times in zip(*rounds, strict=True))
    report = Report()
    report.line(
        "sse.50000_deltas",
        read_s * 1000,
        "ms",
        baseline="orjson, the same chunks from a ready list",
        baseline_value=parse_s * 1000,
        ratio=read_s / parse_s,
        at_most=2.0,
    )
    return report.exit_code


def _chunk(n: int) -> bytes:
    choice = {"index": 0, "delta": {"content": f" word{n}"}, "logprobs": None, "finish_reason": None}
    return orjson.dumps(
        {
            "id": "chatcmpl-benchmark",
            "object": "chat.completion.chunk",
            "created": 1_750_000_000,
            "model": "benchmark",
            "choices": [choice],
        }
    )


def _parse(lines: list[bytes]) -> int:
    loads, count = orjson.loads, 0
    for line in lines:
        loads(line)
        count += 1
    return count


def _read(pieces: list[bytes]) -> int:
    decoder, loads, count = SseDecoder(), orjson.loads, 0
    for piece in pieces:
        for _, data in decoder.feed(piece):
            loads(data)
            count += 1
    return count


def _timed(work: Callable[[], int]) -> float:
    start = time.perf_counter()
    if work() != DELTAS:
        raise AssertionError("a delta was lost")
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
