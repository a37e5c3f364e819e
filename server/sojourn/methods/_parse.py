"""From JSON params to a method's model: one place that names what is wrong, in wire form, without echoing the input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sojourn.core.errors import InvalidParams
from sojourn.core.values import Value, clean

V = TypeVar("V", bound=Value)

_TAGS = ("type", "role")
_RANK = {"missing": 0, "extra_forbidden": 1}


def from_wire(model: type[V], data: Any, *, of: str) -> V:
    """`data`, JSON from outside, as `model`; absent or null params are `{}`. `of` is the method, for the message.

    Raises `InvalidParams` that names the first wrong field as `a.b[2]`. Only the wire's own names (camelCase) count.
    """
    data = {} if data is None else clean(data)
    try:
        return model.model_validate(data, by_name=False)
    except ValidationError as error:
        raise invalid_params(error, model, data, of=of) from None


def invalid_params(error: ValidationError, model: type[Value], data: Any, *, of: str) -> InvalidParams:
    """The refusal of `data`: what is missing before anything else, then what is unknown, then what is wrong.

    `field` is the first of them; the message of a missing one names an unknown one too: it is often the same, misspelt.
    """
    faults = sorted(error.errors(include_url=False, include_input=False), key=lambda fault: _RANK.get(fault["type"], 2))
    first = faults[0]
    field = _field(first, data)
    unknown = next((fault for fault in faults if fault["type"] == "extra_forbidden"), None)
    stranger = f"knows no field {_field(unknown, data)[:200]!r}{_known(model, unknown['loc'])}" if unknown else ""
    if first["type"] == "missing":
        text = f"{of!r} needs {field!r}{', and ' if stranger else ''}{stranger}."
    elif stranger:
        text = f"{of!r} {stranger}."
    elif not field:
        text = f"The params of {of!r} must be an object."
    else:
        text = f"{field[:200]!r} of {of!r} is not right: {_sentence(first)}."
    return InvalidParams(text, field=field)


def _field(fault: ErrorDetails, data: Any) -> str:
    path = wire_path(fault["loc"], data, keep_last=fault["type"] in _RANK)
    if fault["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return f"{path}.{_tag(fault)}" if path else _tag(fault)
    return path


def _tag(fault: ErrorDetails) -> str:
    return str(fault["ctx"]["discriminator"]).strip("'")


def wire_path(loc: Sequence[int | str], data: Any, *, keep_last: bool = False) -> str:
    """A pydantic location as the client knows it (`content[0].text`): union tags and type names are left out.

    `keep_last` keeps a last step that is not in `data`: the name of a missing or unknown field.
    """
    path, at, tagged = "", data, False
    for position, step in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(at, dict) and not tagged and not last and step in [at.get(tag) for tag in _TAGS]:
            tagged = True
            continue
        found, inner = _descend(at, step)
        if found:
            path, at, tagged = _join(path, step), inner, False
        elif last and keep_last and isinstance(step, str):
            path = _join(path, step)
    return path


def _descend(at: Any, step: int | str) -> tuple[bool, Any]:
    if isinstance(at, dict) and step in at:
        return True, at[step]
    if isinstance(at, list) and isinstance(step, int) and step < len(at):
        return True, at[step]
    return False, None


def _join(path: str, step: int | str) -> str:
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


def _known(model: type[Value], loc: Sequence[int | str]) -> str:
    inner = _model_at(model, loc[:-1])
    if inner is None:
        return ""
    names = [info.alias or name for name, info in inner.model_fields.items() if name != "meta"]
    return f"; it takes {', '.join(names)}" if names else "; it takes none"


def _model_at(model: type[Value], path: Sequence[int | str]) -> type[Value] | None:
    """The model of the object at `path`; None where several are possible, or it is no object of fields."""
    for step in path:
        field = next((info for name, info in model.model_fields.items() if step == (info.alias or name)), None)
        kinds = [field.annotation, *get_args(field.annotation)] if field is not None else []
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Value)]
        if len(models) != 1:
            return None
        model = models[0]
    return model


def _sentence(fault: ErrorDetails) -> str:
    if fault["type"] == "union_tag_invalid":
        return f"it must be one of {fault['ctx']['expected_tags']}"
    if fault["type"] == "union_tag_not_found":
        return "it must be given"
    if fault["type"] in ("tuple_type", "list_type"):
        return "it must be a list" if fault["loc"][-1:] != ("content",) else "it must be a string or a list of parts"
    if fault["type"] in ("dict_type", "model_type", "model_attributes_type"):
        return "it must be an object"
    message = re.sub(r"^Value error, ", "", fault["msg"]).rstrip(".")
    message = re.sub(r"^Input should be", "it must be", message)
    message = re.sub(r"^String should", "it must", message)
    return message[:1].lower() + message[1:]
