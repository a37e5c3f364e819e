"""Approval rules: which one holds, what a pattern matches, and that what allows a command cannot be fooled."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sojourn.core import rules
from sojourn.core.agent import AgentConfig
from sojourn.core.rules import Call, Subject, judge

SHELL = {"type": "object", "properties": {"command": {"type": "string"}}}
FILE = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
FETCH = {"type": "object", "properties": {"target": {"type": "string"}, "count": {"type": "integer"}}}


def shell(command: Any) -> Call:
    return Call("shell", {"command": command}, SHELL)


def write(path: str, **more: Any) -> Call:
    return Call("write", {"path": path, "content": "x"}, FILE, cwd="/work", **more)


@pytest.mark.parametrize(
    ("given_rules", "right"),
    [
        ({}, "ask"),
        ({"*": "allow"}, "allow"),
        ({"shell": "deny", "*": "allow"}, "deny"),
        ({"sh*": "deny", "*": "allow"}, "deny"),
        ({"sh*": "deny", "shell": "allow"}, "allow"),
        ({"sh*": "deny", "she*": "allow"}, "allow"),
        ({"other": "deny"}, "ask"),
        ({"shell": "deny", "shell: git status*": "allow"}, "allow"),
        ({"shell": "allow", "shell: git *": "deny"}, "deny"),
        ({"shell: git *": "deny", "shell: git status*": "allow"}, "deny"),
        ({"shell: git *": "ask", "shell: git status*": "allow"}, "allow"),
        ({"shell: git status*": "ask", "shell: git status *": "allow"}, "allow"),
        ({"shell: git status*": "ask", "sh*: git status*": "allow"}, "ask"),
        ({"*: git *": "deny", "shell": "allow"}, "deny"),
        ({"shell: rm *": "deny", "shell": "allow"}, "allow"),
        ({"shell: command=git status*": "allow"}, "allow"),
        ({"shell: nothing=git status*": "allow"}, "ask"),
    ],
)
def test_the_closest_rule_holds_and_a_pattern_that_denies_wins(given_rules: dict[str, Any], right: str) -> None:
    assert judge(shell("git status -s"), given_rules, "ask") == right


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("git status", "git status"),
        ("git status", "  git   status "),
        ("git status*", "git status --short"),
        ("git status *", "git status"),
        ("git status *", "'git' \"status\" -s"),
        ("git commit -m *", "git commit -m 'Fix it; all of it'"),
        ("git commit -m *", 'git commit -m "two words"'),
        ("ls ~/x", "ls ~/x"),
        ("echo é", "echo é"),
        (r"grep '\*' x", "grep '*' x"),
        ("*", "make"),
        ("*test", "make test"),
        ("a*b*c", "aXbYc"),
    ],
)
def test_a_pattern_allows_one_plain_command(pattern: str, command: str) -> None:
    assert judge(shell(command), {f"shell: {pattern}": "allow"}, "ask") == "allow"


FOOLING = [
    "git status; rm -rf x", "git status;rm x", "git status && rm x", "git status || rm x", "git status & rm x",
    "git status | sh", "git status |& sh", "git status\nrm x", "git status\r\nrm x", "git status > x",
    "git status >> x", "git status < x", "git status 2>&1", "git status <<E\nrm x\nE", "git status $(rm x)",
    "git status `rm x`", 'git status "$(rm x)"', 'git status "`rm x`"', "git status $HOME", 'git status "$HOME"',
    "git status ${x}", "git status <(rm x)", "(git status)", "{ git status; }", "git status {a,b}", "git status *.py",
    "git status [a]", "git status ?", "git status # x", "git status \\", "git status \\\nrm x", "git status '",
    'git status "', "! git status", "git status !!", "git status\x00rm x", "git status\x0brm", "git status\u2028rm x",
    "GIT_DIR=x git status", "X=1 git status", "git status '\nrm x'", "git status\xa0x", "git stat", "git", "", "   ",
    "rm x #git status", "xgit status", "git status ^x",
]  # fmt: skip


@pytest.mark.parametrize("command", FOOLING)
def test_a_pattern_that_allows_is_not_fooled(command: str) -> None:
    assert judge(shell(command), {"shell: git status*": "allow"}, "ask") == "ask"
    assert judge(shell(command), {"shell: *": "allow"}, "ask") == "ask" or rules.plain_words(command)


@pytest.mark.parametrize("command", [None, 5, ["git status"], {"x": "git status"}])
def test_what_is_no_text_is_not_allowed(command: Any) -> None:
    assert judge(shell(command), {"shell: git status*": "allow"}, "ask") == "ask"


words = st.text(st.sampled_from("ab -;&|<>$`'\"\\(){}*?#!~=\n\té,"), max_size=14)


@given(words)
def test_a_plain_command_is_read_as_a_shell_reads_it(tail: str) -> None:
    """The oracle is the shell: a command called plain is one program with these words and nothing else."""
    command = f"printf %s, {tail}"
    said = rules.plain_words(command)
    if said is None or any(word.startswith("~") for word in said):
        return
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=10, check=False)
    assert done.stderr == ""
    assert done.stdout == "".join(f"{word}," for word in said[2:] or [""])


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=8),
        min_size=1,
        max_size=4,
    )
)
def test_quoted_words_are_words(given_words: list[str]) -> None:
    said = rules.plain_words(" ".join(["run", *map(shlex.quote, given_words)]))
    assert said is None or said[1:] == given_words


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf x", "git status; rm -rf x", "git status&&rm -rf x", "sudo rm -rf x", "/bin/rm -rf x", "x=$(rm -rf x)",
        "`rm -rf x`", "sh -c 'rm -rf x'", "r\\m -rf x", "'rm' -rf x", "ls\nrm -rf x", "rm   -rf\tx", "xargs rm -rf x",
        "rm \\\n -rf x", "FOO=1 rm -rf x", "(rm -rf x)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("policy", ["deny", "ask"])
def test_what_denies_or_asks_is_found_anywhere_in_a_command(command: str, policy: Any) -> None:
    assert judge(shell(command), {"shell": "allow", "shell: rm *": policy}, "ask") == policy


@pytest.mark.parametrize(
    ("pattern", "command", "found"),
    [
        ("git push", "git push", True),
        ("git push", "git push; ls", True),
        ("git push", "ls && git push", True),
        ("git push", "git push origin", False),
        ("git push *", "git push", True),
        ("git push *--force*", "git push origin --force", True),
        ("git push *--force*", "git push origin", False),
        ("rm *", "farm x", False),
        ("rm *", "ls rmdir", False),
        ("*force", "git push --force", True),
        ("*force", "git push --force-with-lease", False),
        ("*", "anything", True),
    ],
)
def test_where_a_command_is_found(pattern: str, command: str, found: bool) -> None:
    assert (judge(shell(command), {f"shell: {pattern}": "deny"}, "allow") == "deny") is found


def test_a_long_command_with_many_stars_costs_little() -> None:
    """Counted by time only in that it ends at once: a pattern is never tried from every place."""
    pattern = "a*" * 40 + "b"
    command = "a " * 20_000
    assert judge(shell(command), {f"shell: {pattern}": "deny"}, "allow") == "allow"
    assert judge(shell(command), {f"shell: {pattern}": "allow"}, "ask") == "ask"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("docs/a.md", True),
        ("./docs/a.md", True),
        ("/work/docs/a.md", True),
        ("docs/../docs/a.md", True),
        ("docs/../src/a.py", False),
        ("docs/../../etc/passwd", False),
        ("/docs/a.md", False),
        ("~/docs/a.md", False),
        ("src/a.py", False),
        ("docs", False),
    ],
)
def test_a_path_is_compared_as_it_is_after_all_dots(path: str, allowed: bool) -> None:
    assert (judge(write(path), {"write: docs/*": "allow"}, "ask") == "allow") is allowed
    assert (judge(write(path), {"write": "allow", "write: docs/*": "deny"}, "ask") == "deny") >= allowed


def test_a_link_out_of_the_allowed_place_is_not_allowed() -> None:
    def resolve(path: str) -> str:
        return path.replace("/work/docs/link", "/work/src")

    assert judge(write("docs/link/a", resolve=resolve), {"write: docs/*": "allow"}, "ask") == "ask"
    assert judge(write("docs/link/a", resolve=resolve), {"write: src/*": "deny"}, "ask") == "deny"
    assert judge(write("docs/a", resolve=resolve), {"write: docs/*": "allow"}, "ask") == "allow"


def test_above_a_link_is_above_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "src/deep").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/link").symlink_to("../src/deep")
    (tmp_path / "docs/a").symlink_to("../other")

    def says(path: str, policy: Literal["allow", "deny"], pattern: str) -> str:
        call = Call("write", {"path": path}, FILE, cwd=str(tmp_path), resolve=os.path.realpath)
        return judge(call, {f"write: {pattern}": policy}, "ask")

    assert says("docs/link/../x", "allow", "docs/*") == "ask", "it is src/x"
    assert says("docs/link/../x", "allow", "src/*") == "ask", "it reads like docs/x"
    assert says("docs/link/../x", "deny", "src/*") == says("docs/link/../x", "deny", "docs/*") == "deny"
    assert says("docs/link/../a", "deny", "other") == "deny", "what it reads like may be a link as well"
    assert says("docs/../docs/x", "allow", "docs/*") == "allow"


def test_any_argument_can_be_named_and_a_tool_may_say_what_its_calls_are_about() -> None:
    call = Call("fetch", {"target": "https://example.org/a", "count": 3}, FETCH)
    named = {"fetch: target=https://example.org/*": "allow"}
    assert judge(call, named, "ask") == "allow"
    assert judge(call, {"fetch: https://example.org/*": "allow"}, "ask") == "ask", "nothing says which argument"
    assert judge(call, {"fetch: https://example.org/*": "deny"}, "ask") == "deny", "any text that may be meant"
    assert judge(call, {"fetch: count=3": "allow"}, "ask") == "allow"
    assert judge(call, {"fetch: count=4": "allow"}, "ask") == "ask"
    about = Call("fetch", call.args, FETCH, Subject("target"))
    assert judge(about, {"fetch: https://example.org/*": "allow"}, "ask") == "allow"
    missing = Call("fetch", {}, FETCH, Subject("target"))
    assert judge(missing, {"fetch: *": "allow"}, "ask") == "ask"
    assert judge(missing, {"fetch: *": "deny"}, "ask") == "ask"
    assert rules.exactly(missing) is None
    assert rules.exactly(about) == "fetch: target=https://example.org/a"


@pytest.mark.parametrize("command", ["git status", "make && make test", "rm *.o", "a \\* b", "x\ny", "git push; a:b=c"])
def test_a_lasting_approval_of_a_command_covers_exactly_that_command(command: str) -> None:
    rule = rules.covering(shell(command), {}, "ask")
    assert rule is not None
    lasting: Any = {rule: "allow"}
    assert judge(shell(command), lasting, "ask") == "allow"
    for other in (f"{command} x", f"{command}; x", f"x {command}", command[:-1], command.replace("*", "y;z") + " "):
        if other.strip() != command:
            assert judge(shell(other), lasting, "ask") == "ask"


def test_a_lasting_approval_of_other_tools_covers_the_tool_unless_a_rule_asks_for_more() -> None:
    call = Call("fetch", {"target": "prod"}, FETCH, Subject("target"))
    assert rules.covering(call, {}, "ask") == "fetch"
    assert rules.covering(call, {"fetch": "ask"}, "ask") == "fetch"
    assert rules.covering(call, {"fetch: target=p*": "ask"}, "ask") == "fetch: target=prod"
    assert rules.covering(call, {"fetch: target=p*": "deny"}, "ask") is None
    assert rules.covering(shell("x" * 5000), {}, "ask") is None
    assert not rules.lets_through(call, "fetch", {"fetch": "deny"}, "ask")


@pytest.mark.parametrize("key", ["", "  ", ":", "shell:", "shell: ", ": ls", "x" * 5000])
def test_what_is_no_rule_is_refused_in_a_config(key: str) -> None:
    with pytest.raises(ValidationError, match="rule"):
        AgentConfig(approvals={key: "allow"})


def test_names_alone_need_no_look_into_a_call() -> None:
    assert rules.are_simple({"*": "ask", "deploy": "allow"})
    assert not rules.are_simple({"files__*": "ask"})
    assert not rules.are_simple({"shell: ls": "ask"})


def test_the_real_shell_agrees_that_what_is_allowed_touches_nothing(tmp_path: Path) -> None:
    """Every fooling command that a pattern for `true` would let through is run; none may leave a file."""
    allowed = []
    for text in FOOLING:
        command = text.replace("git status", "true").replace("rm x", "touch x")
        if judge(shell(command), {"shell: true*": "allow"}, "ask") == "allow":
            allowed.append(command)
            subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, timeout=10, check=False, capture_output=True)
    assert list(tmp_path.iterdir()) == []
    assert allowed == []
