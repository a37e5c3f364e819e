"""JSON Schemas from outside (clients' tools, MCP servers, structured output): checked and applied within bounds.

Rule: nothing else makes a validator. A schema never reaches outside of itself, and judging with it takes so many steps
at most: it may happen inside a transition, where nothing can interrupt it. What takes more is not judged, in words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import orjson

from .values import Json

MAX_BYTES = 256 * 1024
MAX_PATTERN = 1_000
MAX_STEPS = 50_000
"""A step is a few microseconds: what a judgement may take is some tenths of a second."""
MAX_CHECK_STEPS = 400_000
"""What the check of a schema may take: about five hundred steps for each of its properties."""
_MAX_COUNT = 10_000
"""The sum of the repeat counts of a pattern: the library unrolls them when it compiles."""
_SEARCH_STEPS = 50
_SEARCH_S = 0.05
_LEAST_SEARCH_S = 0.001
_MOST_SHOWN = 500
_COUNTS = re.compile(r"\{(\d*),?(\d*)\}")


class SchemaFault(ValueError):
    """A schema that cannot be used: why, and at which of its places (`a.b`, empty for all of it)."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = place


@dataclass(frozen=True, slots=True)
class Fault:
    """Where a value does not fit a schema, and why. `path`: as JSONPath writes it."""

    place: str
    path: str
    why: str


def check(schema: Mapping[str, Any]) -> None:
    """Raises `SchemaFault` unless `schema` is a JSON Schema that may be judged with."""
    _survey(schema)
    kind = _kind(schema)
    meta = _bounded(kind)(kind.META_SCHEMA, registry=_no_registry(), format_checker=kind.FORMAT_CHECKER)
    error = _within_bounds(lambda: next(iter(meta.iter_errors(schema)), None), MAX_CHECK_STEPS)
    if error is not None:
        raise SchemaFault(_shown(error.message), ".".join(str(step) for step in error.absolute_path))


def fault(value: Json, schema: Mapping[str, Any], *, best: bool = False) -> Fault | None:
    """Where `value` does not fit `schema`: the first place, or (`best`) the most telling one. None when it fits.

    Raises `SchemaFault` when that cannot be told within bounds.
    """
    from jsonschema.exceptions import best_match

    _survey(schema)

    def judge() -> Any:
        errors = _bounded(_kind(schema))(schema, registry=_no_registry()).iter_errors(value)
        return best_match(errors) if best else next(iter(errors), None)

    error = _within_bounds(judge, MAX_STEPS)
    if error is None:
        return None
    place = ".".join(str(step) for step in error.absolute_path)
    return Fault(place, error.json_path, _shown(error.message))


def _shown(message: str) -> str:
    """A message, short enough. It begins with the value, and says at its end what is wrong with that."""
    if len(message) <= _MOST_SHOWN:
        return message
    end = _MOST_SHOWN // 2
    return f"{message[: _MOST_SHOWN - end - 3]} … {message[-end:]}"


class _Exhausted(Exception):
    """A judgement has taken its steps."""


@dataclass(slots=True)
class _Budget:
    left: int
    searches: int = 0


_budget: ContextVar[_Budget] = ContextVar("budget of a judgement")


def _within_bounds(judge: Callable[[], Any], steps: int) -> Any:
    """What `judge` finds, if anything. Raises `SchemaFault`."""
    from referencing.exceptions import Unresolvable

    token = _budget.set(_Budget(steps))
    try:
        return judge()
    except _Exhausted as error:
        raise SchemaFault(str(error)) from None
    except RecursionError:
        raise SchemaFault("it is nested too deeply, or refers to itself without end") from None
    except Unresolvable as error:
        raise SchemaFault(f"it refers to {str(error.ref)[:200]!r}, which is not there") from None
    except Exception as error:  # noqa: BLE001 (from outside: an unchecked part that a $ref names may be anything)
        raise SchemaFault(f"it cannot be applied: {type(error).__name__}: {error}"[:_MOST_SHOWN]) from None
    finally:
        _budget.reset(token)


def _spend(steps: int) -> None:
    budget = _budget.get()
    budget.left -= steps
    if budget.left < 0:
        raise _Exhausted("to judge by it takes too many steps")


# -- a schema as a whole ---------------------------------------------------------------------


def _survey(schema: Mapping[str, Any]) -> None:
    """Refuses what needs no validator to be refused. Cheap: it looks at each node once."""
    try:
        size = len(orjson.dumps(schema))
    except (TypeError, orjson.JSONEncodeError) as error:
        raise SchemaFault(f"it is no JSON: {error}") from None
    if size > MAX_BYTES:
        raise SchemaFault(f"it has more than {MAX_BYTES} bytes")
    names = set()
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        for key, value in node.items() if isinstance(node, Mapping) else enumerate(node):
            names.add(key if isinstance(value, Mapping) or key == "unevaluatedProperties" else None)
            _survey_entry(key, value)
            if isinstance(value, Mapping | list | tuple):
                waiting.append(value)
    if {"unevaluatedProperties", "patternProperties"} <= names:
        raise SchemaFault("it has both 'unevaluatedProperties' and 'patternProperties', which is not supported")


def _survey_entry(key: Any, value: Any) -> None:
    if key in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(value, str) and not value.startswith("#"):
        raise SchemaFault(f"it refers to {value[:200]!r}, which is outside of it; nothing is fetched")
    if key == "pattern" and isinstance(value, str):
        _survey_pattern(value)
    if key == "patternProperties" and isinstance(value, Mapping):
        for pattern in value:
            _survey_pattern(pattern)


def _survey_pattern(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN:
        raise SchemaFault(f"it has a pattern of {len(pattern)} characters, the limit is {MAX_PATTERN}")
    if _counts(pattern) > _MAX_COUNT:
        raise SchemaFault(f"the repeat counts of its pattern {pattern[:80]!r} add up to more than {_MAX_COUNT}")


def _counts(pattern: str) -> int:
    return sum(int(number[:9]) for pair in _COUNTS.findall(pattern) for number in pair if number)


# -- validators that count ---------------------------------------------------------------------


def _kind(schema: Mapping[str, Any]) -> Any:
    from jsonschema.validators import Draft202012Validator, validator_for

    return validator_for(dict(schema), default=Draft202012Validator)


def _no_registry() -> Any:
    """A registry of its own: without one, jsonschema fetches what `$ref` names from the network."""
    from referencing import Registry

    return Registry()


@cache
def _bounded(kind: Any) -> Any:
    """A draft's validator whose every keyword takes steps."""
    from jsonschema.validators import extend

    own = {"pattern": _pattern, "patternProperties": _pattern_properties, "additionalProperties": _additional}
    keywords = {name: _counted(name, own.get(name, judge)) for name, judge in kind.VALIDATORS.items()}
    made: Any = extend(kind, validators=keywords)  # type: ignore[no-untyped-call]
    made.evolve = _evolve
    return made


def _evolve(self: Any, **changes: Any) -> Any:
    """The validator of a part. The library's own would take another class where a part names its own `$schema`."""
    _spend(1)
    kept = {"registry": self._registry, "_resolver": self._resolver, "format_checker": self.format_checker}
    return type(self)(changes.pop("schema", self.schema), **kept | changes)


def _counted(name: str, judge: Callable[..., Any]) -> Callable[..., Any]:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _spend(1 + (_length(value) + _length(instance)) // 16 + _extra(name, value, instance))
        return judge(validator, value, instance, schema)

    return counted


def _length(value: Any) -> int:
    return len(value) if isinstance(value, dict | list | str) else 0


def _extra(name: str, value: Any, instance: Any) -> int:
    """What a keyword takes that does more than look at what it is given."""
    if name in ("$ref", "$dynamicRef", "$recursiveRef"):
        return 5 if value == "#" or str(value).startswith("#/") else 50  # an anchor is looked for
    if name == "uniqueItems" and isinstance(instance, list):
        plain = all(isinstance(item, str | int | float) for item in instance)
        return len(instance) if plain else len(instance) ** 2  # each with each, when they have no order
    return 20 if name == "format" else 0


# -- keywords of our own: the patterns ---------------------------------------------------------------------


@lru_cache(256)
def _compiled(pattern: str) -> Any:
    import regex

    re.compile(pattern)  # what only the library knows (recursion, fuzzy matching) is no pattern of a schema
    return regex.compile(pattern)


def _found(pattern: str, text: str) -> bool:
    """Whether the pattern is in the text. The more searches there were, the less time another one gets."""
    _survey_pattern(pattern)
    budget = _budget.get()
    budget.searches += 1
    _spend(_SEARCH_STEPS)
    try:
        limit = max(_LEAST_SEARCH_S, _SEARCH_S / budget.searches)
        return _compiled(pattern).search(text, timeout=limit) is not None
    except TimeoutError:
        raise _Exhausted(f"its pattern {pattern[:80]!r} takes too long") from None


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for pattern, part in patterns.items():
            for key, value in instance.items():
                if _found(pattern, key):
                    yield from validator.descend(value, part, path=key, schema_path=pattern)


def _additional(validator: Any, wanted: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if not validator.is_type(instance, "object"):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extras = [key for key in instance if key not in named and not any(_found(one, key) for one in patterns)]
    if validator.is_type(wanted, "object"):
        for key in extras:
            yield from validator.descend(instance[key], wanted, path=key)
    elif not wanted and extras:
        shown = ", ".join(repr(key) for key in extras[:20])
        verb = "was" if len(extras) == 1 else "were"
        yield ValidationError(f"Additional properties are not allowed ({shown} {verb} unexpected)")
