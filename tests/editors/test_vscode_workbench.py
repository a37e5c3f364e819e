"""The packaged VS Code extension in a real workbench: code-server in chromium, a real daemon that is killed meanwhile.

A long stage of its own. It needs packages that `make check` does not: the folder that SOJOURN_WORKBENCH_PACKAGES names
holds `node_modules` with code-server, its native modules built, and playwright-core; Debian's chromium is in the PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_inputs import ROOT

from sojourn_client.testing import DaemonProcess

EXTENSION = ROOT / "clients" / "vscode"
SCRIPT = r"""
rules:
  - when: {user: '(?i)edit the notes', tool: editor_apply_edit}
    reply:
      text: "The notes name the wrong target; I mend that line."
      calls:
        - name: editor_apply_edit
          arguments:
            path: notes.md
            old_text: Deploys go to production.
            new_text: Deploys go to staging first, then to production.
  - when: {user: '(?i)build and deploy', tool: demo_build}
    reply:
      reasoning: "The build can run by itself; the deployment needs a person's approval."
      text: |-
        I start the **build** and ask for the deployment:

        1. `demo_build` runs in the background
        2. `demo_deploy` waits for you
      calls:
        - {name: demo_build, arguments: {target: website}}
        - {name: demo_deploy, arguments: {target: website}}
  - when: {late_result: "*"}
    reply: {text: "The build you asked for has finished: {result}."}
  - when: {tool_result: "*"}
    reply: {text: "{result}"}
  - when: {always: true}
    reply: {text: "You said: {user}"}
"""
STEPS = 10


@pytest.mark.crash
def test_a_person_works_in_a_real_workbench(make_daemon: Callable[..., DaemonProcess], tmp_path: Path) -> None:
    packages = os.environ.get("SOJOURN_WORKBENCH_PACKAGES")
    chromium = shutil.which("chromium")
    if packages is None or chromium is None:
        pytest.skip("SOJOURN_WORKBENCH_PACKAGES names no folder with code-server, or chromium is not installed")
    modules = Path(packages) / "node_modules"
    package = subprocess.run(["npm", "run", "--silent", "package"], cwd=EXTENSION, capture_output=True, text=True)
    assert package.returncode == 0, package.stderr
    daemon = make_daemon(script=SCRIPT)
    given = {
        "codeServer": str(modules / "code-server" / "out" / "node" / "entry.js"),
        "playwright": str(modules / "playwright-core"),
        "chromium": chromium,
        "vsix": str(EXTENSION / package.stdout.strip().splitlines()[-1]),
        "command": [sys.executable, "-m", "sojourn"],
        "root": str(daemon.root / "workbench"),
        "shots": os.environ.get("SOJOURN_WORKBENCH_SHOTS", str(tmp_path / "shots")),
    }
    done = subprocess.run(
        ["node", str(EXTENSION / "test" / "workbench.mjs")],
        env={**daemon.env, "SOJOURN_WORKBENCH": json.dumps(given)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(line.startswith("ok ") for line in done.stdout.splitlines()) == STEPS
