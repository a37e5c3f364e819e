"""Approval rules: which policy a call falls under, by its tool's name and by what it is about.

A rule is a key of `approvals`: `*` (every tool), a tool's name (with `*` for any letters), or `NAME: PATTERN`, which
looks at the call's *subject*: the command of a shell, the path of a file tool, or the argument that the pattern names
(`NAME: ARGUMENT=PATTERN`). In a pattern `*` stands for any text and `\\*` for a star; nothing else is special.

Which rule holds: a pattern that denies wins over all others; then patterns go over names, names over names with `*`,
those over `*` alone, and that over the tool's own policy. Among rules of one kind the one that says more letters wins,
among equal ones the stricter.

What allows must not be fooled: a pattern that allows a command matches one plain command only, without operators,
redirections, expansions or line breaks. What denies or asks is found anywhere in a command.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import orjson

from .approvals import Policy

Kind = Literal["text", "command", "path"]
MOST = 4_000
"""How long a rule may be, in characters."""
_STRICT: Mapping[Policy, int] = {"allow": 0, "ask": 1, "deny": 2}
_PLAIN = frozenset("_-./:=,+@%~")
"""What may stand in a plain command without quotes, besides letters and digits."""
_BEFORE = frozenset(" \t\n\r;&|(){}<>`'\"$=/\\")
"""What may stand before a command inside of a longer one."""
_AFTER = frozenset("\n\r;&|)}<>`'\"")
"""What may end a command inside of a longer one."""
_USUAL: Mapping[str, Kind] = {"command": "command", "path": "path", "file_path": "path", "url": "text"}
"""Arguments that are what a call is about, for tools that do not say it themselves."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The argument that a tool's calls are about, and how it is compared."""

    argument: str
    kind: Kind = "text"


@dataclass(frozen=True, slots=True)
class Call:
    """A call as rules look at it. `resolve` follows links: the real path of an absolute one."""

    tool_name: str
    args: Mapping[str, Any]
    schema: Mapping[str, Any] = field(default_factory=dict)
    subject: Subject | None = None
    cwd: str | None = None
    resolve: Callable[[str], str] = posixpath.normpath


@dataclass(frozen=True, slots=True)
class Glob:
    """A text in which `*` stands for any text: the literal parts between the stars."""

    parts: tuple[str, ...]

    @classmethod
    def of(cls, pattern: str) -> Glob:
        """Reads a pattern."""
        pieces = re.split(r"(\\.|\*)", pattern, flags=re.DOTALL)
        parts = [""]
        for piece in pieces:
            if piece == "*":
                parts.append("")
            else:
                parts[-1] += piece[1:] if piece in (r"\*", r"\\") else piece
        return cls(tuple(parts))

    @property
    def literal(self) -> str | None:
        """The one text that it matches, when it has no star."""
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def weight(self) -> int:
        """How many letters it says."""
        return sum(map(len, self.parts))

    def matches(self, text: str) -> bool:
        """Whether it is the whole text."""
        first, *rest = self.parts
        if not rest:
            return text == first
        if not text.startswith(first):
            return False
        at = len(first)
        for part in rest[:-1]:
            found = text.find(part, at)
            if found < 0:
                return False
            at = found + len(part)
        return text.endswith(rest[-1]) and len(text) - len(rest[-1]) >= at

    def is_in(self, command: str) -> bool:
        """Whether it is a command inside of a longer one. The earliest place leaves most room, so one try is enough."""
        first, *rest = self.parts
        at = _place(command, first, 0, ends=not rest)
        for number, part in enumerate(rest, 1):
            if at < 0:
                return False
            last = number == len(rest)
            at = _after(command, part, at, ends=last and bool(part))
        return at >= 0

    def without_arguments(self) -> Glob | None:
        """`git status *` also means `git status`."""
        if len(self.parts) > 1 and self.parts[-1] == "" and self.parts[-2].endswith(" "):
            return Glob((*self.parts[:-2], self.parts[-2][:-1]))
        return None


def _place(command: str, part: str, at: int, *, ends: bool) -> int:
    """Where a command that begins with `part` goes on after it; -1 when there is none."""
    while (found := command.find(part, at)) >= 0:
        begins = found == 0 or command[found - 1] in _BEFORE or not part
        if begins and (not ends or _ends(command, found + len(part))):
            return found + len(part)
        at = found + 1
        if at > len(command):
            break
    return -1


def _after(command: str, part: str, at: int, *, ends: bool) -> int:
    while (found := command.find(part, at)) >= 0:
        if not ends or _ends(command, found + len(part)):
            return found + len(part)
        at = found + 1
    return -1


def _ends(command: str, at: int) -> bool:
    rest = command[at : at + 64].lstrip(" \t")
    return not rest or rest[0] in _AFTER


@dataclass(frozen=True, slots=True)
class Rule:
    """A key of `approvals`, read."""

    tool: Glob
    pattern: Glob | None = None
    text: str | None = None
    """The pattern as it was written."""

    def rank(self, call: Call, policy: Policy) -> tuple[int, int] | None:
        """How closely it fits the call: (kind, letters); None when it does not."""
        if not self.tool.matches(call.tool_name):
            return None
        if self.pattern is None or self.text is None:
            kind = 2 if self.tool.literal is not None else 1 if self.tool.weight else 0
            return kind, self.tool.weight
        wanted, pattern = self.aim(call)
        fits = _allows if policy == "allow" else _finds
        return (3, self.tool.weight + pattern.weight) if fits(call, wanted, pattern) else None

    def aim(self, call: Call) -> tuple[Subject | None, Glob]:
        """The argument that the pattern looks at, and the pattern without the argument's name."""
        text, pattern = self.text or "", self.pattern or Glob(("",))
        subject = subject_of(call)
        name, equals, rest = text.partition("=")
        if not equals or name.strip() not in properties(call):
            return subject, pattern
        named = name.strip()
        same = subject is not None and subject.argument == named
        return (subject if same else Subject(named)), Glob.of(rest.strip())


@lru_cache(maxsize=2048)
def parse(key: str) -> Rule:
    """Reads a rule. Raises `ValueError` saying what would be right."""
    name, colon, pattern = key.partition(":")
    name, pattern = name.strip(), pattern.strip()
    if len(key) > MOST:
        raise ValueError(f"a rule has {len(key)} characters; the limit is {MOST}")
    if not name or (colon and not pattern):
        raise ValueError(f"{key!r} is no rule; it is a tool's name, '*', or 'NAME: PATTERN'")
    return Rule(Glob.of(name), Glob.of(pattern), pattern) if colon else Rule(Glob.of(name))


def judge(call: Call, rules: Mapping[str, Policy], own: Policy) -> Policy:
    """The policy of a call; `own` is the tool's."""
    key = ruling(call, rules)
    return own if key is None else rules[key]


def ruling(call: Call, rules: Mapping[str, Policy]) -> str | None:
    """The rule that holds for a call; None when none does, and the tool's own policy counts."""
    found: tuple[tuple[int, int], int, str] | None = None
    for key, policy in rules.items():
        rank = parse(key).rank(call, policy)
        if rank is None:
            continue
        if rank[0] == 3 and policy == "deny":
            return key
        if found is None or (rank, _STRICT[policy]) > found[:2]:
            found = rank, _STRICT[policy], key
    return None if found is None else found[2]


def are_simple(rules: Mapping[str, Policy]) -> bool:
    """Whether there are only names and `*`: nothing that has to look into a call."""
    return all(key == "*" or not ("*" in key or ":" in key) for key in rules)


def exactly(call: Call, subject: Subject | None = None) -> str | None:
    """The rule for exactly this subject, the tool's unless one is said; None when the call has none, or one that is too
    long for a rule."""
    subject = subject or subject_of(call)
    text = None if subject is None else value_of(call, subject)
    if subject is None or not text or not text.strip():
        return None
    name = subject.argument if subject.kind == "text" else None
    pattern = re.sub(r"([\\*])", r"\\\1", text.strip())
    key = f"{call.tool_name}: {f'{name}=' if name else ''}{pattern}"
    return key if len(key) <= MOST else None


def covering(call: Call, rules: Mapping[str, Policy], own: Policy) -> str | None:
    """The rule that a lasting approval of this call makes: the tool, or (a command, or where another rule asks for
    more) exactly this subject. None when no rule of the kind would let the call through."""
    subject = subject_of(call)
    exact = exactly(call)
    names = [] if subject is not None and subject.kind == "command" else [call.tool_name]
    for key in (*names, *([exact] if exact else [])):
        if lets_through(call, key, rules, own):
            return key
    return None


def lets_through(call: Call, key: str, rules: Mapping[str, Policy], own: Policy) -> bool:
    """Whether the call would run by itself if `key` were allowed as well. A rule that denies stays."""
    return rules.get(key) != "deny" and judge(call, {**rules, key: "allow"}, own) == "allow"


def subject_of(call: Call) -> Subject | None:
    """What a call of this tool is about: as the tool says, else an argument with one of the usual names."""
    if call.subject is not None:
        return call.subject
    said = properties(call)
    for name, kind in _USUAL.items():
        if isinstance(declared := said.get(name), dict) and declared.get("type") == "string":
            return Subject(name, kind)
    return None


def properties(call: Call) -> Mapping[str, Any]:
    """What the schema says of each argument."""
    said = call.schema.get("properties")
    return said if isinstance(said, dict) else {}


def value_of(call: Call, subject: Subject) -> str | None:
    """The call's value of an argument as patterns see it; None when it has none."""
    value = call.args.get(subject.argument)
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _allows(call: Call, subject: Subject | None, pattern: Glob) -> bool:
    """Whether a pattern that allows fits: it must be certain."""
    text = None if subject is None else value_of(call, subject)
    if subject is None or text is None:
        return False
    if subject.kind == "command":
        if pattern.literal is not None and pattern.literal == text.strip():
            return True
        words = plain_words(text)
        return words is not None and _fits_command(pattern, _join(words))
    if subject.kind == "path":
        return not text.startswith("~") and all(
            any(pattern.matches(form) for form in forms) for forms in _paths(call, text)
        )
    return pattern.matches(text)


def _fits_command(pattern: Glob, command: str) -> bool:
    short = pattern.without_arguments()
    return pattern.matches(command) or (short is not None and short.matches(command))


def _finds(call: Call, subject: Subject | None, pattern: Glob) -> bool:
    """Whether a pattern that denies or asks fits: it is enough that it may."""
    if subject is None:
        return any(pattern.matches(value) for value in call.args.values() if isinstance(value, str))
    text = value_of(call, subject)
    if text is None:
        return False
    if subject.kind == "command":
        return any(_found_in(pattern, form) for form in _forms(text))
    if subject.kind == "path":
        return pattern.matches(text) or any(pattern.matches(form) for forms in _paths(call, text) for form in forms)
    return pattern.matches(text)


def _found_in(pattern: Glob, command: str) -> bool:
    short = pattern.without_arguments()
    return pattern.is_in(command) or (short is not None and short.is_in(command))


def _forms(command: str) -> Iterator[str]:
    """A command as it was written and without what only hides its words."""
    blanks = re.sub(r"[ \t]+", " ", command.replace("\\\n", "").strip())
    yield blanks
    bare = re.sub(r"[\\'\"]", "", blanks)
    if bare != blanks:
        yield bare


def _paths(call: Call, path: str) -> list[tuple[str, ...]]:
    """The path as it reads, and as links lead it: walked name by name, so that `link/..` is above where the link leads,
    and as it reads. Each is relative to the working directory (inside it) and absolute."""
    given = call.cwd or "/"
    cwd = posixpath.normpath(given)
    plain = posixpath.normpath(posixpath.join(cwd, path))
    walked, led, real_cwd = call.resolve(posixpath.join(given, path)), call.resolve(plain), call.resolve(given)
    return [_both(plain, cwd), *(_both(real, real_cwd) for real in dict.fromkeys((walked, led)))]


def _both(path: str, cwd: str) -> tuple[str, ...]:
    inside = path.startswith(cwd.rstrip("/") + "/")
    return (posixpath.relpath(path, cwd), path) if inside else (path,)


def _join(words: list[str]) -> str:
    """The words with quotes around those that need them, so that one command reads one way."""
    return " ".join(word if word and all(map(_is_plain, word)) else shlex.quote(word) for word in words)


def _is_plain(letter: str) -> bool:
    return letter in _PLAIN or letter.isalnum()


def plain_words(command: str) -> list[str] | None:
    """The words of one plain command; None for anything that a shell would do more with than run a program."""
    words: list[str] = []
    word: str | None = None
    quote = ""
    for letter in command.strip(" \t"):
        if quote:
            if letter == quote:
                quote = ""
            elif not letter.isprintable() or (quote == '"' and letter in "$`\\!"):
                return None
            else:
                word = (word or "") + letter
        elif letter in "'\"":
            quote, word = letter, word or ""
        elif letter in " \t":
            words += [] if word is None else [word]
            word = None
        elif _is_plain(letter):
            word = (word or "") + letter
        else:
            return None
    if quote:
        return None
    words += [] if word is None else [word]
    return words if words and "=" not in words[0] else None
