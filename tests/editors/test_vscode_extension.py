"""The VS Code extension: built, checked, packaged, and tested by node's own runner against real daemons.

Needs node 18 and npm; the packages come once, as the lock file says. Where they cannot come the tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from shared_inputs import ROOT

EXTENSION = ROOT / "clients" / "vscode"
MANIFEST = json.loads((EXTENSION / "package.json").read_text())
NODE_TESTS = sorted((EXTENSION / "test").glob("*.test.ts"))


def run(*command: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """Runs a command in the extension's folder, with this environment's Sojourn for its tests."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SOJOURN_", "npm_"))}
    env = {**kept, "SOJOURN_TEST_COMMAND": json.dumps([sys.executable, "-m", "sojourn"])}
    return subprocess.run(command, cwd=EXTENSION, env=env, capture_output=True, text=True, timeout=timeout_s)


@pytest.fixture(scope="module")
def packages() -> None:
    """Node is there, and so is what the lock file names."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed, so the VS Code extension is not tested")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.lstrip("v").partition(".")[0]) < 18:
        pytest.skip(f"the VS Code extension is tested with node 18 or newer, this is {version}")
    installed, lock = EXTENSION / "node_modules" / ".package-lock.json", EXTENSION / "package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime:
        return
    came = run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
    if came.returncode != 0:
        pytest.skip(f"the extension's packages cannot be installed here: npm exits with {came.returncode}")


@pytest.fixture(scope="module")
def built(packages: None) -> None:
    """dist/ and out/test/ are made from the sources."""
    for arguments in ([], ["--test"]):
        made = run("node", "esbuild.mjs", *arguments)
        assert made.returncode == 0, made.stderr


def test_its_types_hold(packages: None) -> None:
    checked = run("node", "node_modules/typescript/bin/tsc")
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("source", NODE_TESTS, ids=lambda path: path.name.partition(".")[0])
def test_its_own_tests_pass(source: Path, built: None) -> None:
    """Types, markdown and edits in plain node; the protocol and the whole extension against daemons that are killed."""
    done = run("node", "--test", f"out/test/{source.stem}.js")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout or "fail 0" in done.stdout
    assert "# pass 0" not in done.stdout


def test_the_package_holds_what_the_manifest_names_and_no_sources(built: None, tmp_path: Path) -> None:
    packed = run("node", "scripts/package.mjs")
    assert packed.returncode == 0, packed.stderr
    file = EXTENSION / packed.stdout.strip()
    first = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        names = set(archive.namelist())
        manifest = json.loads(archive.read("extension/package.json"))
        assert archive.testzip() is None
    assert {"extension.vsixmanifest", "[Content_Types].xml", "extension/README.md", "extension/LICENSE.txt"} <= names
    assert "extension/dist/chat.js" in names
    assert f"extension/{manifest['main'].removeprefix('./')}" in names
    steps = manifest["contributes"]["walkthroughs"][0]["steps"]
    assert {f"extension/{step['media']['markdown']}" for step in steps} <= names
    assert not [name for name in names if name.endswith((".ts", ".map")) or "node_modules" in name]
    assert len(first) < 500_000
    assert run("node", "scripts/package.mjs").returncode == 0
    assert file.read_bytes() == first, "the same input gives another package"


def test_the_lock_file_names_no_host() -> None:
    lock = json.loads((EXTENSION / "package-lock.json").read_text())
    assert len(lock["packages"]) > 5
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]
    assert all("integrity" in package for name, package in lock["packages"].items() if name)


def test_its_version_is_the_daemons() -> None:
    from sojourn._version import __version__

    assert MANIFEST["version"] == __version__
