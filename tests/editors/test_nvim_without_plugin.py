"""A real Neovim with no plugin at all: its own `vim.lsp` client prompts, approves, and keeps its unsaved text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from nvim_driver import nvim_path

from sojourn_client.testing import DaemonProcess

SCRIPT = """
rules:
  - when: {tool_result: read}
    reply: {calls: [{name: edit, arguments: {path: f.txt, old_text: "unsaved 😀", new_text: "edited 😀!"}}]}
  - when: {tool_result: "*"}
    reply: {text: "{result}"}
  - when: {always: true}
    reply: {calls: [{name: read, arguments: {path: f.txt}}]}
"""
LUA = """
local told, asked, progress = {}, {}, {}
vim.lsp.handlers["window/showMessage"] = function(_, result) table.insert(told, result.message) end
vim.lsp.handlers["window/showMessageRequest"] = function(_, result)
  table.insert(asked, result.message)
  return result.actions[1]
end
vim.api.nvim_create_autocmd("LspProgress", { callback = function(event)
  table.insert(progress, event.data.params.value.kind)
end })
vim.cmd.edit("f.txt")
vim.api.nvim_buf_set_lines(0, 0, -1, false, { "first", "unsaved 😀", "last" })
local id = vim.lsp.start({ name = "sojourn", cmd = vim.json.decode(vim.env.COMMAND), root_dir = vim.uv.cwd() })
local client = vim.lsp.get_client_by_id(id)
assert(vim.wait(20000, function() return client.initialized end), "not initialized")
vim.api.nvim_buf_set_text(0, 2, 0, 2, 4, { "typed", "on" })
local prompt = { command = "sojourn.prompt", arguments = { "go" } }
-- the number, not 0: only for that does Neovim send what was just typed before it sends the request
local answer = client:request_sync("workspace/executeCommand", prompt, 20000, vim.api.nvim_get_current_buf())
local ended = vim.wait(20000, function() return #told > 0 end)
vim.wait(2000, function() return progress[#progress] == "end" end)
print(vim.json.encode({
  answer = answer, ended = ended, told = told, asked = asked, progress = progress,
  lines = vim.api.nvim_buf_get_lines(0, 0, -1, false), modified = vim.bo.modified, id = client.id,
}))
vim.cmd("qall!")
"""


def test_neovims_own_client_prompts_approves_and_is_edited(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("saved\n")
    (tmp_path / "go.lua").write_text(LUA)
    with DaemonProcess(script=SCRIPT) as daemon:
        command = [sys.executable, "-m", "sojourn", "connect"]
        env = {**daemon.env, "XDG_STATE_HOME": str(daemon.root), "COMMAND": json.dumps(command)}
        done = subprocess.run(
            [nvim_path(), "--headless", "-u", "NONE", "-i", "NONE", "-n", "-c", "luafile go.lua"],
            cwd=tmp_path,
            env={**env, "XDG_DATA_HOME": str(daemon.root), "NVIM_LOG_FILE": str(daemon.root / "nvim.log")},
            capture_output=True,
            timeout=90,
            check=True,
        )
    said: dict[str, Any] = json.loads(done.stderr.decode().strip().splitlines()[-1])
    assert said["ended"], said
    assert said["lines"] == ["first", "edited 😀!", "typed", "on"], said
    assert said["modified"]
    assert (tmp_path / "f.txt").read_text() == "saved\n"
    (question,) = said["asked"]
    assert "-unsaved 😀\n+edited 😀!" in question
    assert " typed\n on\n" in question
    assert said["told"] == ["Edited 'f.txt'. It is open in 'Neovim' and was changed there, unsaved."]
    assert said["progress"][:1] == ["begin"]
