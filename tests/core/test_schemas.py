"""Schemas from outside: what they may do, and that none of them holds the daemon."""

import socket
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sojourn.core.approvals import misfit
from sojourn.core.errors import InvalidParams
from sojourn.core.run import AgentRun
from sojourn.core.schemas import Fault, SchemaFault, check, fault

SLOW = "^(a|aa)+$"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def nest(keyword: str) -> dict[str, Any]:
    """A schema whose judging doubles with each of its thirty definitions."""
    parts: dict[str, Any] = {
        f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(30)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**parts, "d30": {"type": "string"}}}


HOSTILE: list[tuple[str, Any, dict[str, Any]]] = [
    ("a slow pattern", "a" * 60 + "!", {"pattern": SLOW}),
    ("a slow pattern of names", {"a" * 60 + "!": 1}, {"patternProperties": {SLOW: {}}}),
    (
        "a slow pattern of names left",
        {"a" * 60 + "!": 1},
        {"patternProperties": {SLOW: {}}, "additionalProperties": False},
    ),
    ("another draft inside", {"a": "a" * 60 + "!"}, {"properties": {"a": {"$schema": DRAFT_7, "pattern": SLOW}}}),
    ("many patterns", ["a"] * 5_000, {"items": {"pattern": "^a"}}),
    ("allOf without end", "x", nest("allOf")),
    ("anyOf without end", 3, nest("anyOf")),
    ("itself", {}, {"$ref": "#"}),
    ("unique things", [{"i": i} for i in range(2_000)], {"uniqueItems": True}),
    ("a long list of names", [7] * 50_000, {"items": {"enum": list(range(5_000))}}),
    ("a reference to nowhere", {}, {"$ref": "#/nowhere"}),
    ("a part that is no schema", "x", {"$ref": "#/x", "x": {"pattern": "("}}),
    ("recursion in a pattern", "x", {"$ref": "#/x", "x": {"pattern": "(?R)"}}),
]


@pytest.mark.parametrize(("value", "schema"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_what_cannot_be_judged_within_bounds_is_said_and_never_fits(value: Any, schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaFault):
        fault(value, schema)
    with pytest.raises(SchemaFault):
        fault(value, schema, best=True)
    _place, why = misfit(value, schema) or ("", "")
    assert why.startswith("they could not be judged by this schema: ")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"$ref": "http://127.0.0.1:9/x"}, "outside of it; nothing is fetched"),
    ({"properties": {"a": {"items": [{"$dynamicRef": "file:///etc/passwd"}]}}}, "outside of it"),
    ({"pattern": "a" * 1_001}, "1001 characters"),
    ({"patternProperties": {"(a{1,9000}){1,9000}": {}}}, "add up to more"),
    ({"description": "x" * 300_000}, "more than 262144 bytes"),
    ({"unevaluatedProperties": False, "patternProperties": {"a": {}}}, "not supported"),
    ({"properties": {f"p{i}": {"type": "string", "minLength": 1} for i in range(4_000)}}, "too many steps"),
    ({"type": "nonsense"}, "is not valid under any"),
    ({"pattern": "("}, "is not a 'regex'"),
]


@pytest.mark.parametrize(("schema", "words"), REFUSED, ids=[row[1] for row in REFUSED])
def test_a_schema_that_may_not_be_used_is_refused_before_it_is(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(SchemaFault, match=words):
        check(schema)
    with pytest.raises(InvalidParams, match=words):
        AgentRun.new(None).output_schema(schema)


def test_a_schema_never_reaches_the_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        schema = {"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/schema"}
        assert "outside of it" in (misfit({}, schema) or ("", ""))[1]
        with pytest.raises(BlockingIOError):
            server.accept()


USUAL: list[tuple[Any, dict[str, Any]]] = [
    ({"a": 1}, {"properties": {"a": {"type": "integer"}}, "additionalProperties": False}),
    ({"b": 1}, {"properties": {"a": {"type": "integer"}}, "additionalProperties": False}),
    ({"b": "x"}, {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}),
    ({"x-a": 1, "c": 2}, {"patternProperties": {"^x-": {"type": "string"}}}),
    ({"x-a": 1, "c": 2}, {"patternProperties": {"^x-": {}}, "additionalProperties": False}),
    ({"x-a": 1}, {"patternProperties": {"^x-": {}}, "additionalProperties": False}),
    ("a-b-c", {"pattern": "^[a-z]+(-[a-z]+)*$"}),
    ("a-b-", {"pattern": "^[a-z]+(-[a-z]+)*$"}),
    (5, {"pattern": "a"}),
    ([1, 1], {"uniqueItems": True}),
    ([[1], [2]], {"uniqueItems": True}),
    ({"n": {"n": {"n": 3}}}, {"properties": {"n": {"$ref": "#"}}, "type": "object"}),
    (
        {"n": {"n": {}}},
        {"$defs": {"t": {"$anchor": "t", "type": "object", "properties": {"n": {"$ref": "#t"}}}}, "$ref": "#t"},
    ),
    ({"a": 1, "b": 2}, {"properties": {"a": {}}, "unevaluatedProperties": False}),
    (["x", 1], {"prefixItems": [{"type": "string"}], "items": {"type": "string"}}),
]


@pytest.mark.parametrize(("value", "schema"), USUAL)
def test_usual_schemas_judge_as_the_library_alone_does(value: Any, schema: dict[str, Any]) -> None:
    check(schema)
    places = {".".join(map(str, error.absolute_path)) for error in Draft202012Validator(schema).iter_errors(value)}
    found = fault(value, schema)
    assert (found is None) == (not places)
    assert found is None or found.place in places


def test_a_fault_names_its_place_and_shows_little_of_what_is_long() -> None:
    found = fault({"a": ["x" * 5_000]}, {"properties": {"a": {"items": {"type": "integer"}}}})
    assert found is not None
    assert (found.place, found.path, len(found.why)) == ("a.0", "$.a[0]", 500)
    assert isinstance(found, Fault)


def test_of_a_long_value_the_end_of_the_message_is_shown_too() -> None:
    found = fault("x" * 40_000, {"type": "string", "maxLength": 30_000})
    assert found is not None
    assert len(found.why) == 500
    assert found.why.startswith("'xxx")
    assert found.why.endswith("x' is too long")
