"""What every value of the core shares: frozen, strict about unknown fields, camelCase outside and snake_case inside.

Text from outside passes `clean` once, at the door; after that nothing in it can make an encoder raise.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Self, TypeVar, cast

import orjson
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from .errors import InvalidParams

Json = Any
"""A JSON value: dict, list, str, int, float, bool or None. Always finite, never a lone surrogate (see `clean`)."""

T = TypeVar("T")


M = TypeVar("M", bound=BaseModel)

# pydantic's own slots of a model; written by their descriptors, which spares looking each of them up by name.
_new = object.__new__
_set_fields, _set_names, _set_extra, _set_private = (
    vars(BaseModel)[slot].__set__
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


@cache
def _names_of(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


def unchecked(model: type[M], fields: dict[str, Any]) -> M:
    """A model of all of its fields, which must be right as they are: `model_construct` at a tenth of its cost."""
    new = _new(model)
    _set_fields(new, fields)
    _set_names(new, _names_of(model))
    _set_extra(new, None)
    _set_private(new, None)
    return new


class Value(BaseModel):
    """A frozen pydantic value. On the wire its fields are lowerCamelCase and absent when None."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    @classmethod
    def trusted(cls, **fields: Any) -> Self:
        """A value of these fields, which must be all of them and right as they are: nothing is checked or filled in.

        For the few places that every turn passes; as `model_construct`, at a fifth of its cost.
        """
        return unchecked(cls, fields)

    def but(self, **changes: Any) -> Self:
        """The same with other fields, which must be right as they are; as `model_copy`, at a third of its cost."""
        return unchecked(type(self), {**self.__dict__, **changes})

    def wire(self) -> dict[str, Any]:
        """The value as plain JSON data in its wire form (camelCase, optional fields that are None left out)."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def json_bytes(self) -> bytes:
        """The same as compact UTF-8 JSON."""
        return self.__pydantic_serializer__.to_json(self, by_alias=True, exclude_none=True)


def encode(value: Json) -> bytes:
    """JSON data (already `clean`, e.g. from `Value.wire`) as compact UTF-8 JSON."""
    return orjson.dumps(value)


def decode(data: bytes | str) -> Json:
    """The JSON data in `data`, which we wrote ourselves. Text from outside is parsed where it comes in."""
    return orjson.loads(data)


MAX_DEPTH = 200
"""Nesting of JSON that is taken: what is kept is written again inside of other things, and writers end at about 250."""


def clean(value: T, *, at: str = "") -> T:
    """`value` with lone surrogates replaced by U+FFFD, everywhere in it; the same object when nothing had to change.

    Raises `InvalidParams` naming the place (as `a.b[2]`) of a NaN, an infinity or an integer beyond 64 bits: they are
    not JSON that every reader takes, and SQLite's integers end there; so is nesting beyond `MAX_DEPTH`.
    """
    return cast("T", _clean(value, at, MAX_DEPTH))


def _clean(value: Any, at: str, left: int) -> Any:
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise InvalidParams(f"{at or 'the value'!r} is {value!r}; a JSON number must be finite.", field=at)
    if isinstance(value, int):
        if -(2**63) <= value < 2**64:
            return value
        raise InvalidParams(f"{at or 'the value'!r} does not fit into 64 bits.", field=at)
    if isinstance(value, dict | list) and not left:
        raise InvalidParams(f"{at[:80] + '…'!r} is nested more than {MAX_DEPTH} deep.", field=at[:80])
    if isinstance(value, dict):
        return _clean_dict(value, at, left - 1)
    if isinstance(value, list):
        new = [_clean(item, f"{at}[{i}]", left - 1) for i, item in enumerate(value)]
        return new if any(a is not b for a, b in zip(new, value, strict=True)) else value
    return value


def _clean_dict(value: dict[Any, Any], at: str, left: int) -> dict[Any, Any]:
    changed = False
    new: dict[Any, Any] = {}
    for key, item in value.items():
        fresh_key, fresh = _clean(key, at, left), _clean(item, f"{at}.{key}" if at else str(key), left)
        changed = changed or fresh_key is not key or fresh is not item
        new[fresh_key] = fresh
    return new if changed else value


def _clean_text(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
