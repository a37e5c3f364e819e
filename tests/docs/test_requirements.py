"""Every requirement is shown by a test, and tests name none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

from shared_inputs import ROOT

ID = re.compile(r"\bR-[A-Z]{2}-\d+\b")
PAGE = (ROOT / "docs/requirements.md").read_text(encoding="utf-8")


def requirements() -> list[str]:
    return re.findall(r"^\| (R-[A-Z]{2}-\d+) \| .+ \|$", PAGE, re.MULTILINE)


def named_in_tests() -> dict[str, set[str]]:
    """Each id that a test names, with the files that do."""
    named: dict[str, set[str]] = {}
    for file in (ROOT / "tests").rglob("*.py"):
        if file != Path(__file__).resolve():
            for found in ID.findall(file.read_text(encoding="utf-8")):
                named.setdefault(found, set()).add(str(file.relative_to(ROOT)))
    return named


def test_every_requirement_has_one_id_and_the_ids_count_up() -> None:
    assert requirements() == ID.findall(PAGE), "an id stands somewhere else than in its row"
    for kind in ("LW", "DR"):
        numbers = [int(one.rpartition("-")[2]) for one in requirements() if one.startswith(f"R-{kind}-")]
        assert numbers == list(range(1, len(numbers) + 1))


def test_every_requirement_is_shown_by_a_test() -> None:
    assert not set(requirements()) - set(named_in_tests())


def test_tests_name_no_requirement_that_does_not_exist() -> None:
    named = named_in_tests()
    unknown = {one: named[one] for one in named.keys() - set(requirements())}
    assert not unknown
