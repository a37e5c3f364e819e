"""A pattern that does not let its own call through: the plain cause, and what would."""

from __future__ import annotations

from typing import Any

import pytest

from sojourn.core.rule_misfits import why_not
from sojourn.core.rules import Call, lets_through

SHELL = {"type": "object", "properties": {"command": {"type": "string"}}}
FILE = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
DEPLOY = {"type": "object", "properties": {"target": {"type": "string"}, "count": {"type": "integer"}}}


def shell(command: Any) -> Call:
    return Call("shell", {"command": command}, SHELL)


def write(path: str, **more: Any) -> Call:
    return Call("write", {"path": path, "content": "x"}, FILE, cwd="/work", **more)


DEPLOYED = Call("deploy", {"target": "site", "count": 2}, DEPLOY)


@pytest.mark.parametrize(
    ("call", "pattern", "given", "said"),
    [
        (
            shell("git push origin"),
            "git status *",
            {},
            (
                "The pattern 'git status *' does not fit this call: its 'command' is 'git push origin'. "
                "What would fit: 'git push origin' or 'git *'."
            ),
        ),
        (
            shell("cat a | sh"),
            "cat *",
            {},
            (
                "The pattern 'cat *' does not fit this call: its 'command' is 'cat a | sh', more than one plain "
                "command, which only its exact text covers. What would fit: 'cat a | sh'."
            ),
        ),
        (
            shell("rm *"),
            "ls *",
            {},
            (
                "The pattern 'ls *' does not fit this call: its 'command' is 'rm *', more than one plain command, "
                r"which only its exact text covers. What would fit: 'rm \*'."
            ),
        ),
        (
            shell("git push"),
            "git *",
            {"shell: git push *": "deny"},
            "The pattern 'git *' fits this call, but the rule 'shell: git push *' denies it, and it goes first.",
        ),
        (
            shell("git push"),
            "git *",
            {"shell: git push *": "ask"},
            "The pattern 'git *' fits this call, but the rule 'shell: git push *' asks about it, and it goes first.",
        ),
        (
            shell("git push"),
            "git *",
            {"shell: git *": "deny"},
            "'shell: git *' is a rule of this agent already, and it denies.",
        ),
        (
            shell("git push"),
            "ls",
            {"shell: git *": "deny"},
            "The pattern 'ls' does not fit this call: its 'command' is 'git push'.",
        ),
        (
            write("src/a.py"),
            "docs/*",
            {},
            "The pattern 'docs/*' does not fit this call: its 'path' is 'src/a.py'. What would fit: 'src/a.py'.",
        ),
        (
            write("docs/../a.py"),
            "docs/*",
            {},
            "The pattern 'docs/*' does not fit this call: its 'path' is 'docs/../a.py', which stands for '/work/a.py'.",
        ),
        (
            write("~/a"),
            "~/*",
            {},
            (
                "The pattern '~/*' does not fit this call: its 'path' is '~/a', and a path that begins with '~' is "
                "never covered."
            ),
        ),
        (
            DEPLOYED,
            "target=db*",
            {},
            "The pattern 'target=db*' does not fit this call: its 'target' is 'site'. What would fit: 'target=site'.",
        ),
        (
            DEPLOYED,
            "site",
            {},
            (
                "The pattern 'site' does not say which argument of 'deploy' it is about: ARGUMENT=PATTERN is needed, "
                "with 'count' or 'target' as the argument."
            ),
        ),
        (
            Call("ping", {}, {}),
            "x",
            {},
            (
                "The pattern 'x' does not say which argument of 'ping' it is about, and this call has none; no pattern "
                "can cover it."
            ),
        ),
        (
            Call("deploy", {"count": 2}, DEPLOY),
            "target=x",
            {},
            "The pattern 'target=x' does not fit this call: it has no argument 'target'.",
        ),
    ],
)
def test_the_cause_is_named_and_what_would_fit(call: Call, pattern: str, given: Any, said: str) -> None:
    key = f"{call.tool_name}: {pattern}"
    assert not lets_through(call, key, given, "ask")
    assert why_not(call, key, given, "ask") == said


def test_long_values_are_cut_and_not_offered() -> None:
    said = why_not(shell("echo " + "x" * 1000), "shell: ls *", {}, "ask")
    assert len(said) < 400
    assert "…" in said
    assert said.endswith("What would fit: 'echo *'.")
