"""The Emacs plugin: clean by Emacs' own checkers, and its ERT tests against a real daemon, in one Emacs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from emacs_process import FILES, PLUGIN, command, daemon, emacs

TESTS = FILES / "sojourn-tests.el"
NAMES = re.findall(r"^\(ert-deftest (\S+)", TESTS.read_text(), re.MULTILINE)
SOURCES = sorted(path.name for path in PLUGIN.glob("*.el"))


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """By the name of an ERT test: `passed`, or what Emacs says of its failure."""
    arguments = command("-l", str(TESTS))
    with daemon() as running:
        done = subprocess.run(
            [*arguments, "-f", "ert-run-tests-batch-and-exit"],
            env=running.env,
            capture_output=True,
            text=True,
            timeout=400,
        )
    said = done.stdout + done.stderr
    passed = dict.fromkeys(re.findall(r"^ +passed +\d+/\d+ +(\S+)", said, re.MULTILINE), "passed")
    return {name: passed.get(name) or _failure(name, said) for name in NAMES}


def _failure(name: str, said: str) -> str:
    found = re.search(rf"^Test {re.escape(name)} condition:.*?(?=^Test |^ +passed |\Z)", said, re.MULTILINE | re.DOTALL)
    return found.group()[:6000] if found else said[-6000:]


@pytest.mark.parametrize("name", NAMES)
def test_in_emacs(name: str, results: dict[str, str]) -> None:
    assert results[name] == "passed", results[name]


def test_the_tools_are_those_of_every_editor() -> None:
    says = "(princ (sojourn-encode (vconcat (mapcar #'sojourn-tools--registration sojourn-tools))))"
    done = subprocess.run(command("-l", "sojourn-tools", "--eval", says), capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == json.loads((FILES.parent / "tools.json").read_text()), done.stderr


def test_every_file_compiles_without_a_warning(tmp_path: Path) -> None:
    for name in SOURCES:
        shutil.copy(PLUGIN / name, tmp_path)
    done = _batch(
        "-L", str(tmp_path), "--eval", "(setq byte-compile-error-on-warn t load-prefer-newer t)",
        "-f", "batch-byte-compile", *(str(tmp_path / name) for name in SOURCES),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.elc"))) == len(SOURCES)


def test_checkdoc_has_nothing_to_say() -> None:
    done = _batch("-l", str(FILES / "checkdoc.el"), *(str(PLUGIN / name) for name in SOURCES))
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


def test_checkdoc_would_say_something(tmp_path: Path) -> None:
    (tmp_path / "bad.el").write_text('(defun bad (argument)\n  "no sentence"\n  argument)\n')
    done = _batch("-l", str(FILES / "checkdoc.el"), str(tmp_path / "bad.el"))
    assert "ARGUMENT" in done.stdout


def test_the_package_installs_and_its_commands_are_there_before_it_is_loaded(tmp_path: Path) -> None:
    packages = f'(setq package-user-dir "{tmp_path / "elpa"}" package-archives nil)'
    source = shutil.copytree(PLUGIN, tmp_path / "sojourn")
    made = _batch(
        "--eval", f"(progn (require 'package) {packages} (package-initialize))",
        "--eval", f'(package-install-file "{source}")', load_path=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    commands = "sojourn sojourn-list sojourn-chat sojourn-new sojourn-prompt sojourn-add-region sojourn-decide "
    commands += "sojourn-health sojourn-mode-line-mode"
    seen = _batch(
        "--eval", f"(progn (require 'package) {packages} (package-initialize))",
        "--eval", f"(dolist (name '({commands})) (unless (autoloadp (symbol-function name)) (error \"%s\" name)))",
        "--eval", "(progn (global-set-key [f5] 'sojourn-prefix-map) (princ (key-binding [f5 ?l])))",
        load_path=False,
    )  # fmt: skip
    assert (seen.returncode, seen.stdout) == (0, "sojourn-list"), seen.stderr


@pytest.mark.parametrize("name", SOURCES)
def test_a_file_has_the_headers_of_a_package(name: str) -> None:
    text = (PLUGIN / name).read_text()
    assert re.match(rf";;; {re.escape(name)} --- \S.* -\*- lexical-binding: t; -\*-\n", text)
    for line in (";;; Commentary:", ";;; Code:", f"(provide '{name.removesuffix('.el')})", f";;; {name} ends here"):
        assert f"\n{line}\n" in text, line
    if name == "sojourn.el":
        for key in ("Author", "Version", "Package-Requires", "Keywords", "SPDX-License-Identifier"):
            assert re.search(rf"^;; {key}: \S", text, re.MULTILINE), key


def _batch(*arguments: str, load_path: bool = True) -> subprocess.CompletedProcess[str]:
    asked = command(*arguments) if load_path else [emacs(), "-Q", "--batch", *arguments]
    return subprocess.run(asked, capture_output=True, text=True, timeout=120)
