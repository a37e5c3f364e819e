"""A chat in Neovim, as its user sees and uses it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from nvim_driver import Nvim
from wire import Wire

from sojourn_client.testing import DaemonProcess

World = tuple[DaemonProcess, Nvim]

SCRIPT = r"""
rules:
  - when: {late_result: demo_build}
    reply: {text: "It came: {result}"}
  - when: {user: '^slow'}
    reply: {text: "one two three four five six seven eight nine ten", delay_ms: 60}
  - when: {user: '^think'}
    reply: {reasoning: "first\nsecond\nthird", text: "**Done** thinking."}
  - when: {user: '^sleep', turn: 1}
    reply: {calls: [{name: demo_sleep, arguments: {seconds: 30}}]}
  - when: {user: '^long', turn: 1}
    reply: {calls: [{name: demo_echo, arguments: {text: "1\n2\n3\n4\n5\n6\n7\n8\n9"}}]}
  - when: {user: '^fail', turn: 1}
    reply: {calls: [{name: demo_fail, arguments: {reason: "no disk"}}]}
  - when: {user: '^ask a helper', turn: 1}
    reply: {calls: [{name: delegate, arguments: {task: "think about it"}}]}
  - when: {user: '^build', turn: 1}
    reply: {calls: [{name: demo_build, arguments: {target: "site"}}]}
  - when: {tool_result: "*"}
    reply: {text: "The tool said: {result}"}
  - when: {always: true}
    reply: {text: "You said: {user}"}
"""


def new(world: World, agent_id: str) -> Nvim:
    nvim = world[1]
    nvim.command("stopinsert | silent! tabonly | silent! only")
    nvim.command(f"Sojourn new {agent_id}")
    nvim.wait("require('sojourn.chat').open_chats[given] and vim.b.sojourn_agent == given", given=agent_id)
    return nvim


def prompts(world: World, agent_id: str) -> list[list[dict[str, Any]]]:
    """The contents of the user messages that the daemon has."""
    with closing(Wire.unix(world[0].socket)) as wire:
        wire.initialize("observer")
        messages = wire.call("agent/messages", {"agentId": agent_id})["messages"]
    return [message["content"] for message in messages if message["role"] == "user"]


def test_what_is_typed_into_the_input_is_sent_and_the_input_is_cleared(world: World) -> None:
    nvim = new(world, "typing")
    nvim.keys("ihello there<C-s>")
    chat = nvim.wait_chat("typing", "You said: hello there")
    assert chat.startswith("## You\n\nhello there\n\n## typing\n\nYou said: hello there\n")
    nvim.wait("vim.fn.getline(1) == '' and vim.bo.filetype == 'sojourn-input'")
    nvim.keys("<Esc>")


def test_an_answer_is_drawn_while_it_is_streamed(world: World) -> None:
    nvim = new(world, "streaming")
    nvim.command("Sojourn prompt slow")
    chat = nvim.wait_chat("streaming", "two")
    assert "ten" not in chat
    assert nvim.wait_chat("streaming", "ten").count("one two three") == 1


def test_reasoning_is_folded_and_text_is_markdown(world: World) -> None:
    nvim = new(world, "thinker")
    nvim.command("Sojourn prompt think")
    chat = nvim.wait_chat("thinker", "**Done** thinking.")
    assert "┊ first\n┊ second\n┊ third\n" in chat
    window = "vim.fn.bufwinid('sojourn://thinker$')"
    fold = nvim.lua(
        f"""return vim.api.nvim_win_call({window}, function()
          vim.cmd.redraw()
          local first = vim.fn.search('┊', 'nw')
          local closed, stop = vim.fn.foldclosed(first), vim.fn.foldclosedend(first)
          return {{ closed - first, stop - first, vim.fn.foldtextresult(first) }}
        end)"""
    )
    assert fold == [0, 2, "▸ thought, 3 lines: first"]
    language = "vim.treesitter.highlighter.active[vim.fn.bufnr('sojourn://thinker$')].tree:lang()"
    assert nvim.lua(f"return {language}") == "markdown"


def test_long_output_is_folded_after_its_first_lines(world: World) -> None:
    nvim = new(world, "lines")
    nvim.command("Sojourn prompt long")
    chat = nvim.wait_chat("lines", "The tool said")
    assert "│ 6\n┆ 7\n┆ 8\n┆ 9\n" in chat


def test_a_failed_tool_is_marked(world: World) -> None:
    nvim = new(world, "failing")
    nvim.command("Sojourn prompt fail")
    assert '✗ demo_fail {"reason": "no disk"} — failed\n│ ' in nvim.wait_chat("failing", "The tool said")


def test_a_child_stands_indented_in_its_call(world: World) -> None:
    nvim = new(world, "parent")
    nvim.command("Sojourn prompt ask a helper")
    chat = nvim.wait_chat("parent", "The tool said")
    call, child, answer = (chat.index(text) for text in ("delegate {", "│ **Done** thinking.", "The tool said"))
    assert call < child < answer
    assert "│ ## Task\n│\n│ think about it\n│\n│ ## Helper\n│\n│ ┊ first\n│ ┊ second" in chat
    assert "✓ delegate" in chat


def test_a_pending_call_is_resolved_by_hand_and_the_agent_resumed(world: World) -> None:
    nvim = new(world, "builder")
    nvim.command("Sojourn prompt build")
    nvim.wait_chat("builder", "The tool said")
    assert '◷ demo_build {"target": "site"} — pending msg-2-call-1\n│ Started' in nvim.chat("builder")
    assert nvim.lua("return require('sojourn').statusline()") == "sojourn: 1 pending"
    assert nvim.lua("return require('sojourn.commands').complete('', 'Sojourn resolve ', 16)") == ["msg-2-call-1"]
    nvim.command("Sojourn resolve msg-2-call-1 built in 42 s")
    assert "⇢ result queued for msg-2-call-1: built in 42 s" in nvim.wait_chat("builder", "⇢")
    nvim.command("Sojourn resume")
    chat = nvim.wait_chat("builder", "It came: built in 42 s")
    assert "⇢" not in chat
    assert "✓ result of demo_build (msg-2-call-1)\n│ built in 42 s" in chat
    assert "✓ demo_build" in chat


def test_a_pending_call_is_rejected_from_the_line_it_stands_on(world: World) -> None:
    nvim = new(world, "rejected")
    nvim.command("Sojourn prompt build")
    nvim.wait_chat("rejected", "The tool said")
    nvim.choose("Say that it failed", "the disk is full")
    nvim.lua("vim.api.nvim_set_current_win(vim.fn.bufwinid('sojourn://rejected$')); vim.fn.search('◷', 'w')")
    nvim.keys("<CR>")
    nvim.wait_chat("rejected", "rejection queued for msg-2-call-1: the disk is full")
    nvim.keys("gr")
    assert "✗ failure of demo_build" in nvim.wait_chat("rejected", "It came")


def test_what_is_pushed_or_prompted_while_it_runs_is_queued_then_answered(world: World) -> None:
    nvim = new(world, "busy")
    nvim.command("Sojourn prompt slow")
    nvim.wait_chat("busy", "one")
    nvim.command("Sojourn push and the README")
    nvim.command("Sojourn prompt and the docs")
    nvim.wait_chat("busy", "⇢ queued: and the docs")
    chat = nvim.wait_chat("busy", "You said: and the docs")
    assert "⇢" not in chat
    assert "## You\n\nand the README\n" in chat


def test_a_run_is_stopped(world: World) -> None:
    nvim = new(world, "sleeper")
    nvim.command("Sojourn prompt sleep")
    nvim.wait_chat("sleeper", "running")
    nvim.wait("require('sojourn').statusline():find('1 running', 1, true)")
    nvim.command("Sojourn stop")
    assert "✗ demo_sleep" in nvim.wait_chat("sleeper", "— stopped")
    nvim.wait_said("sleeper has stopped")


@pytest.fixture
def source(world: World) -> Nvim:
    """A file with unsaved changes in a window of its own."""
    daemon, nvim = world
    (daemon.root / "a.lua").write_text("local one = 1\nlocal two = 2\nlocal three = 3\n")
    nvim.command("tabnew | edit a.lua")
    nvim.lua("vim.api.nvim_buf_set_lines(0, 0, 1, false, {'local one = 11'})")
    return nvim


def test_a_range_goes_along_with_a_prompt(world: World, source: Nvim) -> None:
    new(world, "ranges")
    source.command("wincmd p | wincmd h")
    source.wait("vim.fn.expand('%:t') == 'a.lua' or vim.cmd('wincmd w')")
    source.command("1,2Sojourn prompt what is this?")
    source.wait_chat("ranges", "You said")
    text, resource = prompts(world, "ranges")[0]
    assert text["text"] == "what is this?"
    assert resource["text"] == "local one = 11\nlocal two = 2"
    assert resource["uri"] == (world[0].root / "a.lua").resolve().as_uri() + "#L1-L2"
    assert resource["mimeType"] == "text/x-lua"


def test_selection_buffer_file_and_diagnostics_go_along_when_they_are_named(world: World, source: Nvim) -> None:
    (world[0].root / "b.md").write_text("# B\n")
    source.lua("""
      local namespace = vim.api.nvim_create_namespace('test')
      vim.diagnostic.set(namespace, 0, { { lnum = 1, col = 6, message = 'unused', severity = 2 } })
      vim.cmd('normal! 2Gwviw' .. vim.keycode('<Esc>'))
    """)
    new(world, "named")
    source.command("Sojourn prompt see @selection @buffer @file:b.md and @diagnostics (not @nothing)")
    source.wait_chat("named", "You said")
    text, selection, buffer, file, diagnostics = prompts(world, "named")[0]
    assert text["text"].startswith("see @selection")
    assert selection["text"] == "two"
    assert buffer["text"] == "local one = 11\nlocal two = 2\nlocal three = 3"
    assert (file["text"], file["uri"].rsplit("/")[-1]) == ("# B\n", "b.md")
    assert diagnostics["text"] == "Diagnostics:\na.lua:2:7: warning: unused"


def test_a_selection_alone_opens_the_chat_and_waits_for_the_words(world: World, source: Nvim) -> None:
    new(world, "waiting")
    source.command("wincmd p")
    source.lua("vim.cmd('tabfirst | edit a.lua')")
    source.command("3Sojourn prompt")
    source.wait("vim.bo.filetype == 'sojourn-input'")
    assert "a.lua#L3" in source.lua("return require('sojourn.window').input_bar()")
    source.keys("iexplain<C-s>")
    source.wait_chat("waiting", "You said")
    assert [part["text"] for part in prompts(world, "waiting")[0]] == ["explain", "local three = 3"]
    source.keys("<Esc>")


def test_a_file_that_is_not_there_sends_nothing_and_keeps_what_was_typed(world: World) -> None:
    nvim = new(world, "missing")
    nvim.keys("iread @file:nowhere.txt<C-s>")
    nvim.wait_said('there is no file "nowhere.txt"')
    assert nvim.lua("return vim.fn.getline(1)") == "read @file:nowhere.txt"
    nvim.keys("<Esc>")
    assert prompts(world, "missing") == []


def test_what_the_daemon_refuses_stands_in_the_input_again(world: World) -> None:
    nvim = new(world, "refused")
    with closing(Wire.unix(world[0].socket)) as wire:
        wire.initialize("deleter")
        nvim.wait("require('sojourn.chat').open_chats.refused.attached")
        wire.call("agent/delete", {"agentId": "refused"})
    nvim.keys("iare you there?<C-s>")
    nvim.wait_said("no agent 'refused'")
    assert nvim.lua("return vim.fn.getline(1)") == "are you there?"


def test_bytes_that_are_not_text_are_sent_as_text(world: World) -> None:
    nvim = new(world, "bytes")
    (world[0].root / "c.txt").write_bytes(b"caf\xe9 caf\xc3\xa9 \xff")
    nvim.command("Sojourn prompt @file:c.txt")
    nvim.wait_chat("bytes", "You said")
    assert prompts(world, "bytes")[0][1]["text"] == "caf\ufffd café \ufffd"


def test_agents_are_listed_and_opened_from_the_list(world: World) -> None:
    nvim = new(world, "listed")
    nvim.command("tabnew | Sojourn agents")
    nvim.wait("vim.fn.getline(1):find('listed', 1, true)")
    nvim.keys("gg<CR>")
    nvim.wait("vim.bo.filetype == 'sojourn-input' and vim.b.sojourn_agent == 'listed'")


def test_the_list_says_what_was_last_said_to_whom_has_no_title(world: World) -> None:
    daemon, nvim = world
    with closing(Wire.unix(daemon.socket)) as wire:
        wire.initialize("elsewhere")
        wire.call("agent/create", {"agentId": "untitled", "config": {"cwd": "/elsewhere"}})
        wire.call("agent/create", {"agentId": "titled"})
        wire.call("agent/update", {"agentId": "titled", "title": "A name"})
        for agent_id in ("untitled", "titled"):
            wire.call("agent/prompt", {"agentId": agent_id, "content": "a story of bears\nand of bees"})
        nvim.command("tabnew | Sojourn agents")
        lines = "table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), '\\n')"
        line = f"({lines}:match(given .. '[^\\n]*') or '')"
        nvim.wait(f"{line}:find('idle +a story of bears …  /elsewhere$')", given="untitled")
        wire.call("agent/prompt", {"agentId": "untitled", "content": "a story of ants"})
        nvim.wait(f"{line}:find('idle +a story of ants  /elsewhere$')", given="untitled")
        assert "story" not in nvim.lua(f"return {line}", "A name")
        nvim.lua("""
          sojourn_test.select = vim.ui.select
          vim.ui.select = function(items, options) sojourn_test.offered = vim.tbl_map(options.format_item, items) end
          require('sojourn.agents').pick('Which?', function() end)
        """)
        nvim.wait("vim.tbl_contains(sojourn_test.offered or {}, given)", given="untitled  [idle]  a story of ants")
        nvim.lua("vim.ui.select = sojourn_test.select")
        nvim.command("tabclose")


def test_a_chat_can_float(world: World) -> None:
    nvim = new(world, "floating")
    nvim.command("tabnew")
    nvim.lua("require('sojourn').setup({ layout = 'float' })")
    nvim.command("Sojourn chat floating")
    kinds = nvim.lua("""
      return vim.tbl_map(function(window)
        return { vim.fn.bufname(vim.api.nvim_win_get_buf(window)), vim.api.nvim_win_get_config(window).relative }
      end, vim.api.nvim_tabpage_list_wins(0))""")
    assert sorted(name for name, relative in kinds if relative) == ["sojourn://floating", "sojourn://floating/input"]
    nvim.command("Sojourn close")
    nvim.wait("#vim.api.nvim_tabpage_list_wins(0) == 1")
    nvim.lua("require('sojourn').setup({})")


def test_a_deleted_agent_is_gone_from_the_list(world: World) -> None:
    nvim = new(world, "doomed")
    nvim.choose("Keep it")
    nvim.command("Sojourn delete doomed")
    nvim.choose("Delete it")
    nvim.command("Sojourn delete doomed")
    nvim.wait_said("doomed is deleted")
    nvim.wait("require('sojourn.agents').known.doomed == nil")


def test_the_input_keeps_its_height_when_a_window_below_is_closed(world: World) -> None:
    nvim = new(world, "tidy")
    height = "return vim.api.nvim_win_get_height(vim.fn.bufwinid('sojourn://tidy/input'))"
    before = nvim.lua(height)
    nvim.command("Sojourn agents")
    nvim.keys("q")
    nvim.wait("vim.fn.bufwinid('sojourn://$') == -1")
    nvim.wait(f"(function() {height} end)() == given", given=before)


@pytest.mark.parametrize("layout", ["vsplit", "float"])
def test_the_cursor_goes_from_the_input_to_the_chat_and_back(world: World, layout: str) -> None:
    world[1].lua("require('sojourn').setup({ layout = given })", layout)
    try:
        nvim = new(world, f"moving-{layout}")
        nvim.keys("<C-w>k")
        nvim.wait("vim.bo.filetype == 'sojourn'")
        nvim.keys("<C-w>j")
        nvim.wait("vim.bo.filetype == 'sojourn-input'")
        nvim.command("Sojourn close")
    finally:
        world[1].lua("require('sojourn').setup({})")
