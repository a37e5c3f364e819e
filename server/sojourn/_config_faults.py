"""What is wrong with a configuration, said so that a person can put it right: where, which key, what would be right.

No value is ever quoted: it may be a secret that stands in a wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sojourn.core.servers import looks_secret

ENV_PREFIX = "SOJOURN__"
_ADVICE = (
    "a key itself never stands in the config: put it into an environment variable or a file, and name that with {how}"
)

Location = Sequence[int | str]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: `where` (file or variable), `key` (as `a.b`, or empty), and what would be right."""

    where: str
    key: str
    message: str

    def __str__(self) -> str:
        text = f"{self.where}: {f'{self.key!r}: ' if self.key else ''}{self.message}"
        return text if text.endswith("?") else f"{text}."


class ConfigError(Exception):
    """The configuration cannot be used. `faults` has all that is wrong; the message has one line for each."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


def faults_of(
    error: ValidationError, model: type[BaseModel], *, file: str, variables: Mapping[str, Any]
) -> list[Fault]:
    """The faults behind a ValidationError of `model`; what `variables` (nested) had a say in is named as a variable."""
    found = []
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        loc = tuple(step for step in detail["loc"] if step != "[key]")
        if _reaches(variables, loc):
            where, key = ENV_PREFIX + "__".join(str(step).upper() for step in loc), ""
        else:
            where, key = file, key_of(loc)
        found.append(Fault(where, key, _message(detail, model, loc)))
    return found


def unknown_key(name: str, known: Iterable[str], *, table: str) -> str:
    """What is said of a key that does not exist, with the one that was probably meant."""
    known = sorted(known)
    if looks_secret(name) and (how := [key for key in known if key.endswith(("key_env", "token_env"))]):
        return _ADVICE.format(how=repr(how[0]))
    if close := get_close_matches(name, known, n=1) or [key for key in known if name in key]:
        return f"there is no such key; did you mean {close[0]!r}?"
    return f"there is no such key; {table} has {', '.join(known) or 'none'}"


def unknown_variables(names: Iterable[str], known: Iterable[str]) -> list[Fault]:
    """A fault for each environment variable that looks like ours and is none."""
    known = sorted(known)
    found = []
    for name in sorted(names):
        if name.upper().startswith(ENV_PREFIX) and name not in known:
            close = get_close_matches(name.upper(), known, n=1, cutoff=0.8)
            hint = f"did you mean {close[0]}?" if close else "docs/configuration.md lists those that there are"
            found.append(Fault(name, "", f"there is no such variable; {hint}"))
    return found


def key_of(loc: Location) -> str:
    """A location as it stands in the file: `models.gpt.base_url`, `mcp.servers.x.args[0]`."""
    text = ""
    for step in loc:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if re.fullmatch(r"[A-Za-z0-9_-]+", step) else repr(step))
    return text


def _message(detail: ErrorDetails, model: type[BaseModel], loc: Location) -> str:
    kind = detail["type"]
    if kind == "extra_forbidden":
        return unknown_key(str(loc[-1]), _keys_at(model, loc[:-1]), table=f"[{key_of(loc[:-1])}]")
    if kind == "missing":
        return "it must be given"
    if "[key]" in detail["loc"] and loc[-2:-1] in (("servers",), ("mcp_servers",)):
        return "a server's name has up to 32 letters and digits, with single '_' or '-' between them only"
    if "[key]" in detail["loc"]:
        return "a name has letters, digits, '.', '_' and '-' only, and begins with a letter or digit"
    message = re.sub(r"^Value error, ", "", detail["msg"])
    message = (
        re.sub(r"^(Input|String) should", "it must", message).replace("dictionary", "table").replace("tuple", "array")
    )
    message = re.sub(r" or instance of \w+", "", message)
    return message[:1].lower() + message[1:]


def _reaches(data: Any, loc: Location) -> bool:
    for step in loc:
        if not isinstance(data, Mapping) or step not in data:
            return False
        data = data[step]
    return True


def _keys_at(model: type[BaseModel], loc: Location) -> list[str]:
    kind: Any = model
    for step in loc:
        kind = _plain(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            info = kind.model_fields.get(str(step))
            kind = None if info is None else info.annotation
        else:
            kind = get_args(kind)[-1] if get_args(kind) else None
    kind = _plain(kind)
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _plain(kind: Any) -> Any:
    """`X` of `X | None`."""
    if get_origin(kind) in (Union, UnionType):
        return next(one for one in get_args(kind) if one is not NoneType)
    return kind
