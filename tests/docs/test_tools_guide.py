"""The package of the guide to tools is whole: what it offers is found, and its wheel has the module."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from sojourn.tools.table import GROUP, Toolbox

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "tools.md").read_text()


def test_the_package_of_the_guide_offers_its_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?def word_count.*?)```", GUIDE, re.DOTALL)
    written = re.search(r"```toml\n(\[build-system\].*?)```", GUIDE, re.DOTALL)
    assert code
    assert written
    project = tomllib.loads(written[1])
    example = tomllib.loads((ROOT / "examples/tool_package/pyproject.toml").read_text())
    assert project["build-system"] == example["build-system"]
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"{code[1]}\n\nTOOLS = [word_count]\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    toolbox = Toolbox()
    try:
        toolbox.load([EntryPoint(*one, GROUP) for one in project["project"]["entry-points"][GROUP].items()])
    finally:
        sys.modules.pop("my_package", None)
    assert toolbox.problems == []
    assert [one.info.spec.name for one in toolbox] == ["word_count"]
