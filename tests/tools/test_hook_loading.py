"""Loading hooks: from packages and files, in their order; what cannot be loaded is said by name, with what to do."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from shared_inputs import ROOT

from sojourn.tools import hooks
from sojourn.tools.hooks import GROUP, POINTS, Hook, HookProblem, load

EXAMPLE = ROOT / "examples/hooks/guard.py"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    made = types.ModuleType("hook_package")
    monkeypatch.setitem(sys.modules, "hook_package", made)
    yield made
    for name in [name for name in sys.modules if name.startswith("sojourn_hook_")]:
        del sys.modules[name]


def offer(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    found = [EntryPoint(name, value, GROUP) for name, value in points.items()]
    monkeypatch.setattr(hooks, "entry_points", lambda *, group: found if group == GROUP else [])


class Guard:
    on_fault = "open"

    async def before_tool(self, _ctx: Any, _call: Any) -> None: ...


def test_hooks_of_packages_come_by_name_then_files_as_listed(
    module: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module.Guard, module.made, module.after_tool = Guard, Guard(), print  # type: ignore[attr-defined]
    offer(monkeypatch, zebra="hook_package:Guard", apple="hook_package:made", whole="hook_package")
    (tmp_path / "late.py").write_text("def on_run_end(ctx, outcome): ...\n")
    found = load(files=[tmp_path / "late.py", EXAMPLE])
    assert [hook.name for hook in found] == ["apple", "whole", "zebra", "late", "guard"]
    assert [hook.closes for hook in found] == [False, True, False, True, True]
    assert list(found[1].functions) == ["after_tool"]
    assert repr(found[0]) == "<hook 'apple'>"
    assert [hook.name for hook in load(packages=False, files=[])] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "has none of the functions"),
        ("def before_tool(:\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit"),
        ("import nothing_like_this\n", "nothing_like_this"),
        ("on_fault = 'maybe'\ndef before_tool(ctx, call): ...\n", "'closed' or 'open'"),
    ],
)
def test_a_file_that_is_no_hook_is_said(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(text)
    with pytest.raises(HookProblem, match=words) as caught:
        load(packages=False, files=[file])
    assert str(file) in str(caught.value)
    assert "hooks.files" in str(caught.value)
    assert "sojourn_hook_bad" not in sys.modules


@pytest.mark.parametrize("name", ["missing.py", "guard.txt"])
def test_a_file_that_is_none_is_said(name: str, tmp_path: Path) -> None:
    (tmp_path / "guard.txt").write_text("x")
    with pytest.raises(HookProblem, match=name):
        load(packages=False, files=[tmp_path / name])


@pytest.mark.parametrize("value", ["hook_package:nothing", "hook_package:number", "no_such_package:x"])
def test_a_package_that_is_no_hook_is_said(
    value: str, module: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.number = 5  # type: ignore[attr-defined]
    offer(monkeypatch, odd=value)
    with pytest.raises(HookProblem, match=r"'odd'.*hooks\.packages = false"):
        load()
    assert load(packages=False) == []


def test_every_point_may_be_the_only_one() -> None:
    for point in POINTS:
        assert list(Hook("one", types.SimpleNamespace(**{point: print})).functions) == [point]
