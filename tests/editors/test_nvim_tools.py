"""What agents may do in Neovim: the editor tools, called by a real daemon."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from nvim_driver import Nvim
from wire import Wire

from sojourn_client.testing import DaemonProcess

World = tuple[DaemonProcess, Nvim]

SCRIPT = r"""
rules:
  - when: {user: '^(?P<name>\w+) (?P<args>.*)', turn: 1}
    reply: {calls: [{name: "{name}", arguments: "{args}"}]}
  - when: {tool_result: "*"}
    reply: {text: "{result}"}
"""

ONE = "local one = 1\nlocal two = 2\nlocal two_again = 2\n"
ALLOW = {"approvals": {"*": "allow"}}


@pytest.fixture
def editor(world: World) -> Nvim:
    """An editor with `one.lua` in a window; the chats are made behind its back."""
    daemon, nvim = world
    nvim.command("silent! tabonly | silent! only | %bwipeout!")
    (daemon.root / "one.lua").write_text(ONE)
    (daemon.root / "other.lua").write_text("print(1)\n")
    nvim.command("edit one.lua")
    return nvim


@pytest.fixture
def call(world: World, editor: Nvim, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Has an agent call a tool; what it was answered."""
    agent_id = request.node.name.partition("[")[0][-60:]

    def do(name: str, **arguments: Any) -> str:
        with closing(Wire.unix(world[0].socket)) as wire:
            wire.initialize("caller")
            config = {"cwd": str(world[0].root), "tools": ["read", "edit"], **ALLOW}
            if agent_id not in editor.lua("return vim.tbl_keys(require('sojourn.agents').known)"):
                wire.call("agent/create", {"agentId": agent_id, "config": config})
            editor.lua("require('sojourn.commands'); require('sojourn.chat').get(given)", agent_id)
            editor.wait("require('sojourn.tools').offered_to[given]", given=agent_id)
        return prompted(editor, agent_id, f"{name} {json.dumps(arguments)}")

    return do


def prompted(editor: Nvim, agent_id: str, content: str) -> str:
    """An agent's answer to a prompt from the editor itself, so that the daemon is told of unsaved text before it."""
    editor.lua(
        """
        sojourn_test.answer = nil
        require('sojourn.client').request('agent/prompt', given, function(err, outcome)
          sojourn_test.answer = { err = err, outcome = outcome }
        end)
        """,
        {"agentId": agent_id, "content": content},
    )
    answer = editor.wait("sojourn_test.answer")
    assert "err" not in answer, answer
    return str(answer["outcome"]["output"])


def offered(wire: Wire, agent_id: str) -> bool:
    tools = wire.call("tool/list", {"agentId": agent_id})["tools"]
    return any(tool["name"] == "editor_selection" for tool in tools)


def test_the_tools_are_those_of_every_editor(world: World, editor: Nvim) -> None:
    offered = editor.lua("""
      local sent
      local client = require('sojourn.client')
      local request = client.request
      client.request = function(_, params) sent = params.tools end
      require('sojourn.tools').offer('nobody')
      client.request = request
      return vim.json.encode(sent)
    """)
    assert json.loads(offered) == json.loads((Path(__file__).parent / "tools.json").read_text())


def test_open_buffers_are_named_with_their_unsaved_changes(
    world: World, editor: Nvim, call: Callable[..., str]
) -> None:
    editor.command("badd other.lua | call setline(1, 'changed')")
    lines = call("editor_open_buffers").splitlines()
    root = world[0].root
    assert lines[0] == f"{root}/one.lua (lua, 3 lines, unsaved changes, current)"
    assert lines[1].startswith(f"{root}/other.lua (")


def test_a_buffer_is_read_with_its_unsaved_changes_a_closed_file_is_not(editor: Nvim, call: Callable[..., str]) -> None:
    editor.command("call setline(1, 'changed')")
    assert call("editor_read_buffer", path="one.lua").startswith("changed\nlocal two")
    assert call("editor_read_buffer", path="one.lua", line=2, lines=1) == "local two = 2"
    assert "is not open in the editor" in call("editor_read_buffer", path="other.lua")


def test_diagnostics_and_selection_are_told(editor: Nvim, call: Callable[..., str]) -> None:
    assert call("editor_diagnostics") == "No diagnostics."
    assert call("editor_selection") == "Nothing is selected."
    editor.lua("""
      local namespace = vim.api.nvim_create_namespace('test')
      vim.diagnostic.set(namespace, 0, { { lnum = 1, col = 6, message = 'unused\\nvariable', severity = 1 } })
      vim.cmd('normal! 2GV' .. vim.keycode('<Esc>'))
    """)
    assert call("editor_diagnostics", path="one.lua") == "one.lua:2:7: error: unused variable"
    assert call("editor_selection").endswith("one.lua, lines 2 to 2:\nlocal two = 2")


def test_an_edit_of_a_saved_buffer_is_saved_and_undone_in_one_step(
    world: World, editor: Nvim, call: Callable[..., str]
) -> None:
    edit = {"old_text": "one = 1\nlocal two = 2", "new_text": "one = 11\nlocal more = 1\nlocal two = 22"}
    assert call("editor_apply_edit", path="one.lua", **edit).endswith("and saved it.")
    file = world[0].root / "one.lua"
    assert file.read_text() == "local one = 11\nlocal more = 1\nlocal two = 22\nlocal two_again = 2\n"
    editor.command("undo")
    assert editor.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, false)") == ONE.splitlines()


def test_every_place_can_be_replaced_and_a_new_file_be_made(
    world: World, editor: Nvim, call: Callable[..., str]
) -> None:
    call("editor_apply_edit", path="one.lua", old_text="two", new_text="2nd", replace_all=True)
    root = world[0].root
    assert (root / "one.lua").read_text() == ONE.replace("two", "2nd")
    assert "saved" in call("editor_apply_edit", path="deep/new.lua", old_text="", new_text="return 1\n")
    assert (root / "deep/new.lua").read_text() == "return 1\n"


def test_an_edit_of_a_buffer_with_unsaved_changes_is_not_saved(
    world: World, editor: Nvim, call: Callable[..., str]
) -> None:
    editor.command("call setline(1, 'mine')")
    edit = {"old_text": "mine\nlocal two", "new_text": "ours\nlocal two"}
    assert "was not written to disk" in call("editor_apply_edit", path="one.lua", **edit)
    assert editor.lua("return { vim.fn.getline(1), vim.bo.modified }") == ["ours", True]
    assert (world[0].root / "one.lua").read_text() == ONE


def test_a_file_that_is_not_open_is_opened_for_its_edit(world: World, call: Callable[..., str]) -> None:
    edit = {"old_text": "print(1)", "new_text": "print(2)"}
    assert "saved" in call("editor_apply_edit", path="other.lua", **edit)
    assert (world[0].root / "other.lua").read_text() == "print(2)\n"


def test_an_edit_that_cannot_be_saved_says_so(world: World, editor: Nvim, call: Callable[..., str]) -> None:
    editor.command("autocmd BufWritePre one.lua ++once throw 'the disk is full'")
    edit = {"old_text": "one = 1", "new_text": "one = 11"}
    assert "could not be written to disk" in call("editor_apply_edit", path="one.lua", **edit)
    assert editor.lua("return { vim.fn.getline(1), vim.bo.modified }") == ["local one = 11", True]


def test_what_changed_on_disk_is_edited_as_it_is_there(world: World, editor: Nvim, call: Callable[..., str]) -> None:
    (world[0].root / "one.lua").write_text("from elsewhere\n")
    edit = {"old_text": "elsewhere", "new_text": "here"}
    assert "saved" in call("editor_apply_edit", path="one.lua", **edit)
    assert (world[0].root / "one.lua").read_text() == "from here\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": "one.lua", "old_text": "three", "new_text": ""}, "is not in the buffer as it is now"),
        ({"path": "one.lua", "old_text": "three", "new_text": "", "replace_all": True}, "is not in the buffer"),
        ({"path": "one.lua", "old_text": "two", "new_text": ""}, "more than once"),
        ({"path": "one.lua", "old_text": "", "new_text": "x"}, "has a text already"),
        ({"path": ".", "old_text": "a", "new_text": "b"}, "there is no file"),
        ({"path": ".", "old_text": "", "new_text": "b"}, "there is no file"),
        ({"path": "nowhere.lua", "old_text": "a", "new_text": "b"}, "there is no file"),
    ],
)
def test_an_edit_that_does_not_fit_changes_nothing(
    world: World, editor: Nvim, call: Callable[..., str], arguments: dict[str, Any], said: str
) -> None:
    assert said in call("editor_apply_edit", **arguments)
    assert editor.lua("return { vim.api.nvim_buf_get_lines(0, 0, -1, false), vim.bo.modified }") == [
        ONE.splitlines(),
        False,
    ]
    assert (world[0].root / "one.lua").read_text() == ONE


def test_a_location_is_shown_in_a_window_of_files(world: World, editor: Nvim, call: Callable[..., str]) -> None:
    editor.command("enew")
    assert "at line 2" in call("editor_open_location", path="one.lua", line=2, column=7)
    where = editor.lua("return { vim.fn.expand('%:t'), vim.api.nvim_win_get_cursor(0) }")
    assert where == ["one.lua", [2, 6]]


def test_the_tools_are_withdrawn_when_the_editor_is_left(
    make_daemon: Callable[..., DaemonProcess], make_nvim: Callable[..., Nvim]
) -> None:
    daemon = make_daemon(script=SCRIPT).start()
    nvim = make_nvim(daemon)
    nvim.command("Sojourn new guest")
    nvim.wait("require('sojourn.tools').offered_to.guest")
    with closing(Wire.unix(daemon.socket)) as wire:
        wire.initialize("observer")
        assert offered(wire, "guest")
        nvim.quit()
        deadline = time.monotonic() + 10
        while offered(wire, "guest"):
            assert time.monotonic() < deadline, "the tools are still offered"


def test_the_daemons_own_tools_see_and_change_unsaved_text_here(
    world: World, editor: Nvim, call: Callable[..., str]
) -> None:
    file = world[0].root / "one.lua"
    editor.lua("vim.bo.fileformat = 'dos'; require('sojourn.commands')")
    editor.keys("ggOnew 𝒳<Esc>")
    editor.wait("vim.bo.modified")
    assert call("read", path="one.lua").startswith("new 𝒳\nlocal one")
    assert "one.lua" in call("edit", path="one.lua", old_text="𝒳\nlocal one", new_text="𝒴\nmore\nlocal 1")
    changed = ["new 𝒴", "more", "local 1 = 1", *ONE.splitlines()[1:]]
    assert editor.lua("return { vim.fn.getline(1, '$'), vim.bo.modified, vim.bo.fileformat }") == [changed, True, "dos"]
    assert file.read_text() == ONE, "saving is left to the user"
    assert call("read", path="one.lua").startswith("new 𝒴\nmore\nlocal 1")
    editor.command("undo")
    assert editor.lua("return vim.fn.getline(1, '$')") == ["new 𝒳", *ONE.splitlines()]

    editor.command("silent write")
    assert "Edited" in call("edit", path="one.lua", old_text="new 𝒳", new_text="written")
    assert file.read_bytes().startswith(b"written\r\nlocal one = 1\r\n")
    editor.wait("vim.fn.getline(1) == 'written' and not vim.bo.modified")


def test_a_change_of_a_text_that_has_moved_on_is_not_made(world: World, editor: Nvim, call: Callable[..., str]) -> None:
    editor.command("call setline(1, 'mine')")
    assert "mine" in call("read", path="one.lua")
    editor.lua("""
      local documents = require('sojourn.documents')
      local apply = documents.apply
      documents.apply = function(params)  -- the user types while the request is under way
        documents.apply = apply
        vim.fn.setline(1, 'mine, and more')
        return apply(params)
      end""")
    assert "the user has changed it meanwhile" in call("edit", path="one.lua", old_text="mine", new_text="ours")
    assert editor.lua("return vim.fn.getline(1)") == "mine, and more"
    assert "Edited" in call("edit", path="one.lua", old_text="and more", new_text="ours")
    assert editor.lua("return vim.fn.getline(1)") == "mine, ours"
