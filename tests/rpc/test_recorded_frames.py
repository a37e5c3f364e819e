"""Recorded byte streams of clients that went wrong, as they are kept beside the checkout."""

from __future__ import annotations

import json
from typing import Any

import pytest
from shared_inputs import shared
from wire_fakes import Daemon

pytestmark = pytest.mark.anyio

LIVE = ("live", -32601)
UNKNOWN = (1, -32601)
BAD = (None, -32600)

EXPECTED: dict[str, list[tuple[Any, int | None]]] = {
    "r01_multibyte_body": [UNKNOWN, LIVE],
    "r02_header_content_type_after": [UNKNOWN, LIVE],
    "r02_header_content_type_before": [UNKNOWN, LIVE],
    "r02_header_lower_case": [UNKNOWN, LIVE],
    "r02_header_no_space": [UNKNOWN, LIVE],
    "r02_header_two_spaces": [UNKNOWN, LIVE],
    "r02_header_unknown_header": [UNKNOWN, LIVE],
    "r02_header_lf_only": [UNKNOWN, LIVE],
    "r03_body_contains_header": [UNKNOWN, LIVE],
    "r04_unknown_request_and_notification": [UNKNOWN, (2, -32601), LIVE],
    "r05_ids": [(id, -32601) for id in (0, "", "7", 7, -1, 2**53 + 1, "a b/ü")] + [LIVE],
    "r05b_id_null_and_fraction": [BAD, (1.5, -32601), LIVE],
    "r05c_id_wrong_type": [BAD, BAD, BAD, LIVE],
    "r06_batch": [(1, -32601), (2, -32601), BAD, BAD, LIVE],
    "r08_length_empty": [(None, -32700)],
    "r08_length_float": [(None, -32700)],
    "r08_length_hex": [(None, -32700)],
    "r08_length_negative": [(None, -32700)],
    "r08_length_plus": [(None, -32700)],
    "r08_length_text": [(None, -32700)],
    "r08b_length_huge": [(None, -31015)],
    "r08c_length_zero": [(None, -32700), LIVE],
    "r09_bad_json": [(None, -32700)] * 3 + [BAD] * 3 + [LIVE],
    "r09b_wrong_envelope": [*[(id, -32600) for id in range(1, 6)], LIVE],
    "r10_params_left_out": [(1, None), (2, None), (3, None), (4, -32602), (5, -32602), (6, -32602), LIVE],
    "r12_cancel": [LIVE],
    "r13_reply_to_nothing": [LIVE],
    "r14_same_id_twice": [(1, -32602), (1, -32601), LIVE],
    "r15_before_initialize": [(1, -32002), LIVE],
    "r16_exit_without_shutdown": [],
    "r16b_request_after_shutdown": [(1, -32600)],
    "r17_eof_inside_frame": [],
    "r17b_eof_inside_header": [],
    "r18_initialize_twice": [(1, -32600), LIVE],
    "r19_banner_before_frame": [(None, -32700)],
    "r20_three_megabyte_request": [UNKNOWN, LIVE],
}


async def replay(served: Daemon, data: bytes, *, piece: int) -> list[tuple[Any, int | None]]:
    """(id, error code) of every answer, those to the streams' own `initialize` and `shutdown` left out."""
    wire = await served.connect(greet=False)
    for start in range(0, len(data), piece):
        wire.raw(data[start : start + piece])
        if piece < 100:
            await wire.writer.drain()
    if not data.endswith(b'"exit"}'):
        wire.writer.write_eof()
    found = []
    for message in await wire.rest():
        for answer in message if isinstance(message, list) else [message]:
            assert "error" not in answer or answer["error"].keys() == {"code", "message", "data"}
            assert "Traceback" not in str(answer)
            found.append((answer["id"], answer.get("error", {}).get("code")))
    return [answer for answer in found if answer not in (("init", None), ("bye", None))]


@pytest.mark.parametrize("piece", [2**30, 1], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("name", EXPECTED)
async def test_every_request_in_it_is_answered_once_and_the_daemon_lives(served: Daemon, name: str, piece: int) -> None:
    data = shared(f"hazards/inputs/rpc/{name}.bin").read_bytes()
    if piece == 1:
        piece = 1 if len(data) < 10_000 else 7919
    stays = await served.connect()
    found = await replay(served, data, piece=piece)
    assert sorted(found, key=repr) == sorted(EXPECTED[name], key=repr)
    assert await stays.barrier() == []


def test_every_recorded_stream_is_replayed() -> None:
    manifest = json.loads(shared("hazards/inputs/manifest.json").read_text())
    streams = {entry["file"]: entry["expect"] for entry in manifest if entry["file"].startswith("rpc/")}
    assert {name.removeprefix("rpc/").removesuffix(".bin") for name in streams} == EXPECTED.keys()
    for name, expect in streams.items():
        if 'id "live"' in expect and "or the connection is closed" not in expect:
            assert LIVE in EXPECTED[name.removeprefix("rpc/").removesuffix(".bin")]
