"""A scripted model's script: rules as values, checked when it is read, and which rule answers a request.

Errors name the file, the rule (from 1) and the key. The words are explained in `docs/scripted-model.md`.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sojourn.core.errors import InvalidParams
from sojourn.core.messages import FinishReason
from sojourn.core.values import clean

from .base import ModelSpec

BUILTIN = "builtin:"
_FAST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""For our own script, which most daemons read at their first prompt; it takes less than JSON may hold in a string."""
_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "toolCalls": "toolCalls",
    "tool_calls": "toolCalls",
    "contentFilter": "contentFilter",
    "content_filter": "contentFilter",
    "refusal": "refusal",
    "other": "other",
}


class _Checked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)


class When(_Checked):
    """When a rule answers: every condition that is given holds."""

    user: re.Pattern[str] | None = None
    tool_result: str | None = None
    late_result: str | None = None
    turn: int | None = Field(default=None, ge=1)
    tool: tuple[str, ...] = ()
    always: bool | None = None

    @field_validator("user", mode="before")
    @classmethod
    def _compile(cls, value: object) -> object:
        if not isinstance(value, str):
            raise ValueError("must be a regular expression, as a string")
        try:
            return re.compile(value)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None

    @field_validator("tool", mode="before")
    @classmethod
    def _one_or_more(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


class Call(_Checked):
    """A tool call to make. Strings in `arguments` are templates."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)

    @field_validator("arguments")
    @classmethod
    def _is_json(cls, value: dict[str, Any] | str) -> dict[str, Any] | str:
        try:
            parsed: dict[str, Any] | str = orjson.loads(orjson.dumps(value))
        except TypeError as error:
            raise ValueError(f"must be JSON: {error}") from None
        return parsed


class Failure(_Checked):
    """A failure, as a server would answer it."""

    status: int = Field(default=500, ge=400, le=599)
    retry_after_s: float | None = Field(default=None, ge=0)
    message: str = "scripted failure"


class ScriptedUsage(_Checked):
    """The usage to report."""

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    cached_input_tokens: int | None = Field(default=None, ge=0)
    reasoning_tokens: int | None = Field(default=None, ge=0)


class Reply(_Checked):
    """What a rule answers."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[Call, ...] = ()
    finish_reason: str | None = None
    usage: ScriptedUsage | None = None
    delay_ms: float = Field(default=0, ge=0)
    chunk_chars: int | None = Field(default=None, ge=1)
    error: Failure | None = None
    cut_after_chars: int | None = Field(default=None, ge=0)

    @field_validator("calls", mode="before")
    @classmethod
    def _as_tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("finish_reason")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in _FINISH_REASONS:
            raise ValueError(f"must be one of {', '.join(_FINISH_REASONS)}")
        return value

    @property
    def finish(self) -> FinishReason:
        """The finish reason, said or from what is there."""
        if self.finish_reason is not None:
            return _FINISH_REASONS[self.finish_reason]
        return "toolCalls" if self.calls else "stop"


class Rule(_Checked):
    """One rule. `times`: how often it answers, for each model instance, before it is passed over."""

    when: When
    reply: Reply
    times: int | None = Field(default=None, ge=1)

    @field_validator("when")
    @classmethod
    def _says_when(cls, when: When) -> When:
        if when == When():
            raise ValueError("must hold at least one condition, e.g. `always: true`")
        return when


class _Script(_Checked):
    rules: list[Rule] = Field(min_length=1)


def load_script(spec: ModelSpec) -> tuple[Rule, ...]:
    """The rules of the script that `spec` names: a path, or `builtin:NAME`. Raises `InvalidParams`."""
    name = spec.script
    if not name:
        raise InvalidParams(
            f"The model {spec.name!r} is scripted and names no script; give `script` a path or 'builtin:demo'.",
            field="script",
        )
    if name.startswith(BUILTIN):
        return read_rules(_builtin(spec, name.removeprefix(BUILTIN)), name, loader=_FAST)
    return read_rules(_read(spec, name), name)


def read_rules(text: str, name: str, *, loader: Any = yaml.SafeLoader) -> tuple[Rule, ...]:
    """The rules in the YAML or JSON `text` of the script `name`. Raises `InvalidParams` naming rule and key."""
    try:
        document = clean(yaml.load(text, Loader=loader))  # noqa: S506 - both loaders are safe ones
    except yaml.YAMLError as error:
        raise _bad(name, f"it is no YAML: {' '.join(str(error).split())}") from None
    except InvalidParams as error:
        raise _bad(name, error.message.rstrip(".")) from None
    if not isinstance(document, dict):
        raise _bad(name, "it must be a mapping with the one key 'rules'")
    try:
        return tuple(_Script.model_validate(document).rules)
    except ValidationError as error:
        raise _bad(name, "; ".join(_said(item["loc"], item["msg"]) for item in error.errors()[:3])) from None


def _said(place: tuple[int | str, ...], message: str) -> str:
    """`("rules", 2, "when", "user")` as rule 3, key 'when.user'."""
    if len(place) > 1 and isinstance(place[1], int):
        key = ".".join(str(step) for step in place[2:])
        where = f"rule {place[1] + 1}" + (f", key {key!r}" if key else "")
    else:
        where = f"key {'.'.join(map(str, place))!r}"
    return f"{where}: {message.removeprefix('Value error, ')}"


def _read(spec: ModelSpec, path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8")
    except OSError as error:
        raise _bad(path, f"it cannot be read ({error.strerror}); the model {spec.name!r} names it") from None
    except UnicodeDecodeError:
        raise _bad(path, "it is not UTF-8") from None


def _builtin(spec: ModelSpec, name: str) -> str:
    folder = resources.files("sojourn.models") / "scripts"
    files = {file.name.removeprefix("builtin_").removesuffix(".yaml"): file for file in folder.iterdir()}
    if name not in files:
        raise _bad(f"{BUILTIN}{name}", f"there is none of this name, only {', '.join(map(repr, sorted(files)))}")
    return files[name].read_text("utf-8")


def _bad(name: str, what: str) -> InvalidParams:
    return InvalidParams(f"The script {name!r} cannot be used: {what}.", field="script")
