"""Why a pattern would not let the call through that it was made for: a sentence with the cause, and what would fit."""

from __future__ import annotations

from collections.abc import Mapping

from .approvals import Policy
from .rules import Call, Glob, Subject, exactly, lets_through, parse, plain_words, properties, ruling, value_of

_SHOWN = 120


def why_not(call: Call, key: str, rules: Mapping[str, Policy], own: Policy) -> str:
    """For a rule `NAME: PATTERN` that `rules.lets_through` refuses for this call."""
    rule = parse(key)
    if rules.get(key) == "deny":
        return f"{_shown(key)} is a rule of this agent already, and it denies."
    held = {**rules, key: "allow"}
    if rule.rank(call, "allow") is not None and (holds := ruling(call, held)) is not None:
        does = "denies it" if held[holds] == "deny" else "asks about it"
        return (
            f"The pattern {_shown(rule.text)} fits this call, but the rule {_shown(holds)} {does}, and it goes first."
        )
    subject, pattern = rule.aim(call)
    if subject is None:
        return _names_no_argument(call, rule.text)
    said = f"The pattern {_shown(rule.text)} does not fit this call: {_cause(call, subject, pattern)}."
    fitting = _fitting(call, subject, rules, own)
    return f"{said} What would fit: {' or '.join(fitting)}." if fitting else said


def _names_no_argument(call: Call, text: str | None) -> str:
    names = sorted(call.args.keys() & properties(call).keys()) or sorted(call.args)
    said = f"The pattern {_shown(text)} does not say which argument of {call.tool_name!r} it is about"
    if not names:
        return f"{said}, and this call has none; no pattern can cover it."
    return f"{said}: ARGUMENT=PATTERN is needed, with {' or '.join(map(repr, names))} as the argument."


def _cause(call: Call, subject: Subject, pattern: Glob) -> str:
    value = value_of(call, subject)
    if value is None:
        return f"it has no argument {subject.argument!r}"
    its = f"its {subject.argument!r} is {_shown(value)}"
    if subject.kind == "command" and plain_words(value) is None:
        return f"{its}, more than one plain command, which only its exact text covers"
    if subject.kind == "path" and value.startswith("~"):
        return f"{its}, and a path that begins with '~' is never covered"
    if subject.kind == "path" and pattern.matches(value):
        return f"{its}, which stands for {_shown(_led(call, value))}"
    return its


def _led(call: Call, path: str) -> str:
    return call.resolve(path if path.startswith("/") else f"{call.cwd or ''}/{path}")


def _fitting(call: Call, subject: Subject, rules: Mapping[str, Policy], own: Policy) -> list[str]:
    """Patterns that would cover the call: exactly what it is about, and for a command its program with anything."""
    exact = exactly(call, subject)
    found = [] if exact is None else [exact]
    if subject.kind == "command" and (words := plain_words(value_of(call, subject) or "")) and len(words) > 1:
        found.append(f"{call.tool_name}: {words[0]} *")
    fitting = [key for key in found if len(key) <= _SHOWN and lets_through(call, key, rules, own)]
    return [f"'{key.partition(': ')[2]}'" for key in fitting]  # As it is typed: `repr` would double backslashes.


def _shown(text: str | None) -> str:
    return repr(text if text is None or len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…")
