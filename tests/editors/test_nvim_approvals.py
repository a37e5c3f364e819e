"""Approvals in Neovim: what is shown is what runs, and nothing runs by an accident of typing."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest
from nvim_driver import Nvim
from wire import Wire

from sojourn_client.testing import DaemonProcess

World = tuple[DaemonProcess, Nvim]

SCRIPT = r"""
rules:
  - when: {user: '^deploy (?P<what>\S+)', turn: 1}
    reply: {calls: [{name: demo_deploy, arguments: {target: "{what}"}}]}
  - when: {user: '^both', turn: 1}
    reply:
      calls: [{name: demo_deploy, arguments: {target: one}}, {name: demo_deploy, arguments: {target: two}}]
  - when: {user: '^add', turn: 1}
    reply:
      calls:
        - {name: editor_apply_edit, arguments: {path: "sum.py", old_text: "a - b", new_text: "a + b"}}
  - when: {user: '^odd', turn: 1}
    reply:
      calls:
        - {name: odd, arguments: '{"big": 12345678901234567890, "no": null, "list": [], "map": {}, "f": 0.1}'}
  - when: {user: '^rewrite', turn: 1}
    reply: {calls: [{name: edit, arguments: {path: "old.txt", old_text: "before", new_text: "after"}}]}
  - when: {user: '^delegate', turn: 1}
    reply: {calls: [{name: delegate, arguments: {task: "deploy inside", preset: helper}}]}
  - when: {tool_result: "*"}
    reply: {text: "The tool said: {result}"}
  - when: {always: true}
    reply: {text: "You said: {user}"}
"""

WINDOWS = (
    "vim.tbl_filter(function(window) return vim.api.nvim_win_get_config(window).relative ~= '' end,"
    " vim.api.nvim_list_wins())"
)
FLOATS = f"#{WINDOWS}"

CONFIG = """
[agents.helper]
tools = ["*"]
"""


def ask(world: World, agent_id: str, text: str) -> Nvim:
    """A chat whose agent waits for an approval; the cursor is in a window of no agent's."""
    nvim = world[1]
    nvim.command("stopinsert | silent! tabonly | silent! only | enew")
    nvim.lua("sojourn_test.answers, sojourn_test.asked, sojourn_test.said = {}, {}, {}")
    nvim.command(f"Sojourn new {agent_id}")
    nvim.wait("vim.b.sojourn_agent == given", given=agent_id)
    nvim.command("wincmd t")
    nvim.command(f"Sojourn prompt {text}")
    nvim.wait_chat(agent_id, "waits for your approval")
    return nvim


def test_a_call_is_approved_and_a_later_decision_is_told_who_was_first(world: World) -> None:
    nvim = ask(world, "one", "deploy site")
    approval = nvim.wait("next(require('sojourn.approvals').open)")
    nvim.command("Sojourn approve")
    chat = nvim.wait_chat("one", "The tool said: Deployed site.")
    assert '✓ demo_deploy {"target": "site"} — approved by nvim-' in chat
    with closing(Wire.unix(world[0].socket)) as wire:
        wire.initialize("late")
        error = wire.error("approval/decide", {"approvalId": approval, "decision": "deny"})
    assert error.data["by"].startswith("nvim-")


def test_a_call_is_denied_with_a_reason_that_the_model_reads(world: World) -> None:
    nvim = ask(world, "denied", "deploy site")
    nvim.command("Sojourn deny not on a Friday")
    chat = nvim.wait_chat("denied", "The tool said")
    assert "⊘ demo_deploy" in chat
    assert "not on a Friday" in chat.split("The tool said", 1)[1]


def test_the_arguments_are_edited_in_a_buffer(world: World) -> None:
    nvim = ask(world, "edited", "deploy site")
    nvim.choose("Edit the arguments")
    nvim.command("Sojourn review")
    nvim.wait("vim.bo.buftype == 'acwrite'")
    assert nvim.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, false)") == ["{", '  "target": "site"', "}"]
    nvim.lua("vim.api.nvim_buf_set_lines(0, 0, -1, false, { 'no json' }); vim.cmd.write()")
    nvim.wait_said("must be a JSON object; nothing was decided")
    nvim.lua("""vim.api.nvim_buf_set_lines(0, 0, -1, false, { '{"target": "staging"}' }); vim.cmd.write()""")
    chat = nvim.wait_chat("edited", "The tool said: Deployed staging.")
    assert '✓ demo_deploy {"target": "staging"} — edited by nvim-' in chat
    nvim.wait("vim.fn.bufnr('sojourn://approval') == -1")


def test_an_answer_in_place_of_the_tool_runs_nothing(world: World) -> None:
    nvim = ask(world, "answered", "deploy site")
    nvim.choose("Answer in its place", "it is there already")
    nvim.command("Sojourn review")
    assert "The tool said: it is there already" in nvim.wait_chat("answered", "The tool said")


def test_a_run_is_stopped_instead(world: World) -> None:
    nvim = ask(world, "aborted", "deploy site")
    nvim.choose("Stop the run")
    nvim.command("Sojourn review")
    assert "⊘ demo_deploy" in nvim.wait_chat("aborted", "— stopped")


def test_arguments_are_shown_and_sent_back_as_they_are(world: World) -> None:
    daemon, nvim = world
    with closing(Wire.unix(daemon.socket)) as owner:
        owner.initialize("owner", tools={"execute": {}})
        schema = {"type": "object"}
        owner.call("tool/register", {"tools": [{"name": "odd", "description": "Odd.", "inputSchema": schema}]})
        ask(world, "odd", "odd")
        shown = nvim.chat("odd").split("waits for your approval\n")[1].replace("│ ", "")
        wanted = {"big": 12345678901234567890, "no": None, "list": [], "map": {}, "f": 0.1}
        assert json.loads(shown) == wanted
        nvim.choose("Edit the arguments")
        nvim.command("Sojourn review")
        nvim.wait("vim.bo.buftype == 'acwrite'")
        nvim.command("write")
        call = owner.request("tool/execute")
        assert call["params"]["arguments"] == wanted
        assert '"big":12345678901234567890' in json.dumps(call["params"]["arguments"], separators=(",", ":"))
        owner.reply(call, {"content": "fine"})
        nvim.wait_chat("odd", "The tool said: fine")
        owner.call("tool/unregister", {"names": ["odd"]})


def test_an_edit_is_shown_as_its_diff(world: World) -> None:
    (world[0].root / "sum.py").write_text("def add(a, b):\n    return a - b\n")
    nvim = ask(world, "diffed", "add")
    assert "│  def add(a, b):\n│ -    return a - b\n│ +    return a + b\n" in nvim.chat("diffed")
    assert nvim.lua("return vim.fn.bufexists('sum.py')") == 0, "showing it opens nothing"
    nvim.choose("Run it")
    nvim.command("Sojourn review")
    nvim.wait_chat("diffed", "The tool said: Edited")
    screen = nvim.lua("return sojourn_test.asked[#sojourn_test.asked].screen")
    assert "-    return a - b\n+    return a + b" in screen
    assert (world[0].root / "sum.py").read_text() == "def add(a, b):\n    return a + b\n"


def test_a_change_of_a_file_is_shown_as_its_diff_and_read_into_its_buffer(world: World) -> None:
    file = world[0].root / "old.txt"
    file.write_text("before\nend\n")
    world[1].command(f"edit {file}")
    nvim = ask(world, "rewriter", "rewrite")
    assert "│ -before\n│ +after\n│  end\n" in nvim.chat("rewriter")
    nvim.choose("Run it, and ")
    nvim.command("Sojourn review")
    nvim.wait_chat("rewriter", "The tool said")
    assert "-before\n+after" in nvim.lua("return sojourn_test.asked[1].screen")
    assert file.read_text() == "after\nend\n"
    nvim.wait("vim.fn.getbufoneline('old.txt', 1) == 'after'")


def test_a_lasting_decision_is_listed_and_taken_back(world: World) -> None:
    nvim = ask(world, "lasting", "deploy site")
    nvim.choose("Run it, and demo_deploy from now on for this agent")
    nvim.command("Sojourn review")
    nvim.wait_chat("lasting", "Deployed site.")
    nvim.choose("demo_deploy: allow (agent)", "Take it back")
    nvim.command("Sojourn rules lasting")
    nvim.wait_said("lasting no longer has the rule demo_deploy")
    nvim.command("Sojourn rules lasting")
    nvim.wait_said("lasting has no approval rules")


def test_a_childs_call_is_decided_from_its_parents_chat(world: World) -> None:
    nvim = ask(world, "boss", "delegate")
    assert "│ ? demo_deploy — waits for your approval\n│ │ {\n" in nvim.chat("boss")
    nvim.wait("require('sojourn.agents').known.boss.waitingFor == 'approval'")
    assert "1 needs you" in nvim.lua("return require('sojourn').statusline()")
    boss = "require('sojourn.agents').describe(require('sojourn.agents').known.boss)"
    assert nvim.lua(f"return {boss}") == "a child waits for your approval"
    nvim.choose("Run it")
    nvim.command("Sojourn review boss")
    nvim.wait_chat("boss", "The tool said: The tool said: Deployed inside.")
    assert nvim.lua("return sojourn_test.asked[1].prompt").startswith("boss › ")


def test_what_waits_is_shown_in_the_chat_in_normal_mode_and_takes_no_key(world: World) -> None:
    nvim = ask(world, "shy", "deploy one")
    assert nvim.lua(f"return {FLOATS}") == 0
    nvim.command("Sojourn approve")
    nvim.wait_chat("shy", "Deployed one.")

    nvim.command("Sojourn chat shy")
    nvim.keys("ideploy two<C-s>iand more")  # typing goes on while the question comes
    nvim.wait_chat("shy", "waits for your approval")
    assert nvim.lua(f"return {{ {FLOATS}, vim.api.nvim_get_mode().mode }}") == [0, "i"]
    nvim.choose("Do not run it", "")
    nvim.keys("<Esc>cc<Esc><CR>")  # with nothing typed, this asks about what waits
    nvim.wait_chat("shy", "⊘")

    nvim.keys("ideploy three<C-s>")
    nvim.wait(f"{FLOATS} == 1")
    assert nvim.lua("return #sojourn_test.asked") == 2, "only what was asked for"
    nvim.keys("i1")  # as if a question were numbered: it is text, and what was shown goes
    assert nvim.lua(f"return {{ {FLOATS}, vim.fn.getline(1) }}") == [0, "1"]
    nvim.choose("Run it")
    nvim.keys("<Esc>cc<Esc><CR>")
    nvim.wait_chat("shy", "Deployed three.")


def test_when_one_of_two_is_decided_the_other_is_shown(world: World) -> None:
    nvim = ask(world, "twins", "both")
    nvim.command("Sojourn chat twins")
    nvim.choose('twins: demo_deploy {"target": "one"}', "Run it")
    nvim.command("Sojourn review")
    nvim.wait_chat("twins", "Deployed one.")
    nvim.wait(f"{FLOATS} == 1")
    shown = nvim.lua(f"return vim.fn.getbufline(vim.fn.winbufnr({WINDOWS}[1]), 1, '$')")
    assert '  "target": "two"' in shown
    nvim.choose("Run it")
    nvim.keys("<CR>")
    nvim.wait_chat("twins", "The tool said: Deployed two.")
    nvim.wait(f"{FLOATS} == 0")


def test_the_review_is_withdrawn_when_somebody_else_decides(world: World) -> None:
    daemon, nvim = world
    nvim = ask(world, "race", "deploy site")
    nvim.lua("""
      sojourn_test.select = vim.ui.select
      vim.ui.select = function(items, _, on_choice)
        sojourn_test.late = function() on_choice(items[1], 1) end
      end
      vim.cmd('Sojourn review')""")
    nvim.wait(f"sojourn_test.late and {FLOATS} == 1")
    with closing(Wire.unix(daemon.socket)) as wire:
        wire.initialize("faster")
        approval = wire.call("approval/list", {"agentId": "race"})["approvals"][0]
        wire.call("approval/decide", {"approvalId": approval["approvalId"], "decision": "deny"})
    nvim.wait(f"{FLOATS} == 0")
    assert "denied by faster" in nvim.wait_chat("race", "⊘")
    nvim.lua("sojourn_test.late(); vim.ui.select = sojourn_test.select")
    nvim.wait("table.concat(sojourn_test.said):find('faster', 1, true)")


def test_a_background_agent_that_needs_somebody_says_so_once(world: World) -> None:
    daemon, nvim = world
    nvim.command("silent! tabonly | silent! only | enew")
    nvim.lua("sojourn_test.said = {}")
    with closing(Wire.unix(daemon.socket)) as wire:
        wire.initialize("elsewhere")
        wire.call("agent/create", {"agentId": "far", "config": {"tools": ["*"], "cwd": str(daemon.root.resolve())}})
        wire.call("agent/create", {"agentId": "foreign", "config": {"cwd": "/"}})
        wire.call("agent/prompt", {"agentId": "foreign", "content": "of another place"})
        wire.call("agent/prompt", {"agentId": "far", "content": "deploy site", "wait": False})
        nvim.wait_said("far waits for your approval (:Sojourn review)")
        assert "1 needs you" in nvim.lua("return require('sojourn').statusline()")
        nvim.choose("Run it")
        nvim.command("Sojourn review far")
        nvim.wait_said("far is done")
    assert [words for words in nvim.said() if "far " in words or "foreign" in words] == [
        "sojourn: far waits for your approval (:Sojourn review)",
        "sojourn: far is done",
    ]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("Sojourn approve", "nothing waits for a decision"),
        ("Sojourn approve nonsense", "no approval nonsense is open"),
        ("Sojourn resolve", "calm has no call pending"),
        ("Sojourn resume", "no reply is owed"),
        ("Sojourn stop", "calm was not running"),
        ("Sojourn chat nobody/else", "must match pattern"),
        ("Sojourn dance", 'there is no command "dance"'),
        ("Sojourn new calm", "calm"),
    ],
)
def test_what_cannot_be_done_is_said(world: World, command: str, said: str) -> None:
    nvim: Any = world[1]
    nvim.command("silent! tabonly | silent! only | enew")
    nvim.lua("sojourn_test.said = {}; require('sojourn.chat').last = 'calm'")
    with closing(Wire.unix(world[0].socket)) as wire:
        wire.initialize("maker")
        wire.call("agent/create", {"agentId": "calm", "requestId": "once"})
    nvim.command(command)
    nvim.wait_said(said)
