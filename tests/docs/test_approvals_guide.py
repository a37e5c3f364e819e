"""What the page about approvals says of rules is what they do."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from shared_inputs import ROOT

from sojourn.config import Preset
from sojourn.core.rules import Call, judge

PAGE = (ROOT / "docs/approvals.md").read_text(encoding="utf-8")
SHELL = {"type": "object", "properties": {"command": {"type": "string"}}}
EXAMPLES = re.findall(r"^\| (`shell.*?) \| `([^|]*)` \| (allow|ask|deny) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("rules", "command", "policy"), EXAMPLES, ids=[example[1] for example in EXAMPLES])
def test_every_example_of_the_page_is_so(rules: str, command: str, policy: str) -> None:
    given: dict[str, Any] = dict(re.findall(r"`([^`]+)` = (allow|ask|deny)", rules))
    assert given
    assert judge(Call("shell", {"command": command}, SHELL), given, "ask") == policy


def test_the_page_has_examples_and_its_config_can_be_read() -> None:
    assert len(EXAMPLES) == 12
    found = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found
    presets = tomllib.loads(found[1])["agents"]
    approvals = Preset.model_validate(presets["careful"]).approvals
    assert approvals is not None
    write = {"type": "object", "properties": {"path": {"type": "string"}}}
    deploy = {"type": "object", "properties": {"target": {"type": "string"}}}
    for call, right in (
        (Call("write", {"path": "docs/a.md"}, write, cwd="/w"), "allow"),
        (Call("write", {"path": "docs/../a.md"}, write, cwd="/w"), "ask"),
        (Call("demo_deploy", {"target": "test"}, deploy), "allow"),
        (Call("demo_deploy", {"target": "prod"}, deploy), "ask"),
        (Call("git__log", {}), "allow"),
    ):
        assert judge(call, approvals, "deny") == right


def test_every_key_that_the_page_names_is_one() -> None:
    named = re.findall(r"^\| `([a-z_.]+)` \|", PAGE, re.MULTILINE)
    assert named == ["on_approval", "on_approval_unattended", "limits.approval_s"]
    for name in named[:2]:
        assert name in Preset.model_fields
