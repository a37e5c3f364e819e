"""Packing bodies: to the letter, once each, never mistaken."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sojourn.store import _bodies
from sojourn.store._bodies import LARGE_BODY, MARK, must_pack, none_to_pack, pack, unpack

LONG = "x" * 5000
FILL = "f" * 70_000


def image(data: str) -> str:
    return json.dumps({"type": "image", "mimeType": "image/png", "data": data}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        (json.dumps([LONG, "short", FILL]), [LONG, FILL]),
        (json.dumps({"a": LONG, LONG + "k": 1, "b": FILL}), [LONG, LONG + "k", FILL]),
        (json.dumps([LONG]), None),
        (json.dumps(["y" * 4000] * 20), None),
        (json.dumps(["y" * 4095] * 20 + ["z" * 4096]), ["z" * 4096]),
        (image("A" * 65), ["A" * 65]),
        (image("A" * 64), None),
        (json.dumps([LONG]) + image("A" * 500), ["A" * 500]),
        ('{"type":"image","uri":"' + "u" * 500 + '"}', None),
        ('{"type":"image", "data":null}', None),
        (json.dumps(['quote " and backslash \\', FILL]), [FILL]),
        (json.dumps(["ends with \\", FILL, "\\\\"]), [FILL]),
        (json.dumps(['"' * 70_000]), ['\\"' * 70_000]),
        (json.dumps(["\\" * 70_000, "x"]), ["\\\\" * 70_000]),
        ("", None),
        ('"never ends' + FILL, None),
    ],
)
def test_what_is_taken_out(body: str, taken: list[str] | None) -> None:
    packed = pack(body)
    if taken is None:
        assert packed is None
    else:
        assert packed is not None
        assert packed.blobs == {sha256(text.encode()).hexdigest(): text.encode() for text in taken}
        assert packed.text.startswith(MARK)
        assert unpack(packed.text, packed.blobs.get) == body


def test_the_same_string_is_one_blob() -> None:
    packed = pack(json.dumps([FILL, {"again": FILL}, FILL]))
    assert packed is not None
    assert len(packed.blobs) == 1
    assert len(packed.text) < 500


def test_a_body_that_looks_packed_is_packed() -> None:
    first = pack(json.dumps([FILL]))
    assert first is not None
    for text in (MARK, MARK + "{}", first.text):
        assert must_pack(text)
        packed = pack(text)
        assert packed is not None
        assert packed.text != text
        assert unpack(packed.text, packed.blobs.get) == text


@pytest.mark.parametrize(
    ("texts", "none"),
    [
        ([], True),
        (["{}", '{"type":"text"}'], True),
        (["x" * LARGE_BODY] * 3, True),
        (["{}", "x" * (LARGE_BODY + 1)], False),
        (["{}", '{"type":"image"}', "{}"], False),
        (["{}", MARK], False),
    ],
)
def test_bodies_are_looked_at_one_by_one_when_one_of_them_may_have_to_be_packed(texts: list[str], none: bool) -> None:
    assert none_to_pack(texts) is none
    assert not (none and any(map(must_pack, texts)))


def test_a_lost_blob_leaves_json_that_says_so() -> None:
    packed = pack(json.dumps({"kept": 1, "text": FILL}))
    assert packed is not None
    rest = json.loads(unpack(packed.text, lambda digest: None))
    assert rest == {"kept": 1, "text": f"[lost: {sha256(FILL.encode()).hexdigest()}]"}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(['\\"', "\\" * 9]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["data", "type"]), inner),
    max_leaves=30,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(value=JSON, ascii_only=st.booleans(), image_too=st.booleans())
def test_any_json_comes_back_to_the_letter(value: object, ascii_only: bool, image_too: bool) -> None:
    body = json.dumps([value, {"type": "image", "data": "AAAA"}] if image_too else value, ensure_ascii=ascii_only)
    with pytest.MonkeyPatch.context() as small:
        small.setattr(_bodies, "LARGE_BODY", 20)
        small.setattr(_bodies, "LARGE_STRING", 3)
        small.setattr(_bodies, "SHORTEST", 2)
        packed = pack(body)
    assert packed is None or unpack(packed.text, packed.blobs.get) == body
    strings = [text for text in strings_in(value) if len(text) >= 3]
    if packed is None:
        assert len(body) <= 20 or not strings
    else:
        assert all(len(blob.decode()) >= 3 for blob in packed.blobs.values())


def strings_in(value: object) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(text for item in value.values() for text in strings_in(item))]
    if isinstance(value, list):
        return [text for item in value for text in strings_in(item)]
    return [value] if isinstance(value, str) else []
