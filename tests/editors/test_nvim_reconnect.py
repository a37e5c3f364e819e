"""Neovim and the daemon are killed, cut and restarted: a chat comes back with nothing missing and nothing twice."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from nvim_driver import Nvim
from wire import Wire

from sojourn_client.testing import DaemonProcess

Make = Callable[..., DaemonProcess]
MakeNvim = Callable[..., Nvim]
World = tuple[DaemonProcess, Nvim]

SCRIPT = r"""
rules:
  - when: {late_result: demo_build}
    reply: {text: "It came: {result}"}
  - when: {user: '^count'}
    reply: {text: "one two three four five six seven eight nine ten", delay_ms: 60}
  - when: {user: '^build', turn: 1}
    reply:
      reasoning: "A long one."
      calls: [{name: demo_build, arguments: {target: "site"}}, {name: demo_deploy, arguments: {target: "site"}}]
  - when: {tool_result: "*"}
    reply: {text: "The tool said: {result}"}
  - when: {always: true}
    reply: {text: "You said: {user}"}
"""


def lines(nvim: Nvim, agent_id: str) -> list[str]:
    return [line for line in nvim.chat(agent_id).splitlines() if line]


def told(daemon: DaemonProcess, agent_id: str) -> tuple[int, list[str]]:
    """What the daemon has of an agent: its newest event's number, and what was said in the conversation."""
    with closing(Wire.unix(daemon.socket)) as wire:
        wire.initialize("observer")
        seq = wire.call("agent/get", {"agentId": agent_id})["seq"]
        messages: list[dict[str, Any]] = wire.call("agent/messages", {"agentId": agent_id})["messages"]
    texts = [part["text"] for message in messages for part in message["content"] if part["type"] == "text"]
    return seq, texts


def chatting(make_daemon: Make, make_nvim: MakeNvim, agent_id: str, prompt: str) -> tuple[DaemonProcess, Nvim]:
    """A daemon, and an editor at it whose new agent was just prompted."""
    daemon = make_daemon(script=SCRIPT).start()
    nvim = make_nvim(daemon)
    nvim.command(f"Sojourn new {agent_id}")
    nvim.wait("vim.b.sojourn_agent == given", given=agent_id)
    nvim.command("wincmd t")
    nvim.command(f"Sojourn prompt {prompt}")
    return daemon, nvim


def test_a_killed_daemon_is_started_again_and_the_paused_conversation_goes_on(
    make_daemon: Make, make_nvim: MakeNvim
) -> None:
    daemon, nvim = chatting(make_daemon, make_nvim, "guide", "build it")
    nvim.wait_chat("guide", "pending msg-2-call-1")
    before = nvim.wait_chat("guide", "waits for your approval")
    instance = nvim.lua("return require('sojourn.client').server.instance_id")

    daemon.kill9()
    nvim.command("Sojourn push are you there?")  # said into the gap: it waits for the new daemon
    nvim.wait("require('sojourn.client').server.instance_id ~= given", given=instance, timeout_s=40)
    after = nvim.wait_chat("guide", "⇢ queued: are you there?")
    assert after.startswith(before.rstrip("\n"))

    nvim.command("Sojourn approve")
    nvim.wait_chat("guide", "The tool said: Deployed site.")
    assert "## You\n\nare you there?\n" in nvim.chat("guide")
    nvim.command("Sojourn resolve msg-2-call-1 built")
    nvim.wait_chat("guide", "⇢ result queued")
    nvim.command("Sojourn resume")
    nvim.wait_chat("guide", "It came: built")

    fresh = make_nvim(daemon, "fresh")
    fresh.command("Sojourn chat guide")
    fresh.wait_chat("guide", "It came: built")
    # The fresh editor reads the whole story at once; the other lived through it.
    assert lines(fresh, "guide") == lines(nvim, "guide")
    seq, texts = told(daemon, "guide")
    assert nvim.lua("return require('sojourn.chat').open_chats.guide.transcript.seq") == seq
    for text in ("build it", "are you there?", "It came: built"):
        assert texts.count(text) == 1


def test_a_daemon_killed_while_it_streams_leaves_no_half_answer(make_daemon: Make, make_nvim: MakeNvim) -> None:
    daemon, nvim = chatting(make_daemon, make_nvim, "counter", "count")
    nvim.wait_chat("counter", "three")
    daemon.kill9()
    chat = nvim.wait_chat("counter", "— interrupted", timeout_s=40)
    assert "three" not in chat
    nvim.wait("require('sojourn.agents').known.counter.state == 'interrupted'")
    assert nvim.lua("return require('sojourn').statusline()") == "sojourn: 1 needs you"
    nvim.command("Sojourn resume")
    assert nvim.wait_chat("counter", "nine ten").count("one two") == 1


def test_a_lost_connection_in_the_middle_of_an_answer_leaves_no_trace(make_daemon: Make, make_nvim: MakeNvim) -> None:
    _, nvim = chatting(make_daemon, make_nvim, "counter", "count")
    nvim.wait_chat("counter", "two")
    # The bridge dies, daemon and editor live on.
    nvim.lua("""
      for _, child in ipairs(vim.api.nvim_get_proc_children(vim.uv.os_getpid())) do
        vim.uv.kill(child, "sigkill")
      end""")
    chat = nvim.wait_chat("counter", "nine ten", timeout_s=40)
    assert chat == "## You\n\ncount\n\n## counter\n\none two three four five six seven eight nine ten\n\n"


def test_a_killed_editor_comes_back_to_the_same_conversation(make_daemon: Make, make_nvim: MakeNvim) -> None:
    daemon, nvim = chatting(make_daemon, make_nvim, "guide", "build it")
    nvim.wait_chat("guide", "pending msg-2-call-1")
    before = nvim.wait_chat("guide", "waits for your approval")
    nvim.kill9()

    again = make_nvim(daemon, "again")
    again.choose("guide")
    again.command("Sojourn")
    assert again.wait_chat("guide", "waits for your approval") == before
    again.command("Sojourn approve")
    assert again.wait_chat("guide", "The tool said").count("build it") == 1


def test_a_conversation_in_another_store_replaces_what_was_drawn(make_daemon: Make, make_nvim: MakeNvim) -> None:
    daemon, nvim = chatting(make_daemon, make_nvim, "guide", "hello")
    nvim.wait_chat("guide", "You said: hello")
    nvim.command("Sojourn disconnect")
    daemon.kill9()
    for file in daemon.state_dir.glob("sojourn.db*"):
        file.unlink()
    daemon.start()
    with closing(Wire.unix(daemon.socket)) as wire:
        wire.initialize("other")
        wire.call("agent/create", {"agentId": "guide"})
        wire.call("agent/prompt", {"agentId": "guide", "content": "a new life"})
    nvim.command("Sojourn status")
    chat = nvim.wait_chat("guide", "You said: a new life")
    assert "hello" not in chat


def test_replaced_messages_are_read_anew(make_daemon: Make, make_nvim: MakeNvim) -> None:
    daemon, nvim = chatting(make_daemon, make_nvim, "guide", "hello")
    nvim.wait_chat("guide", "You said: hello")
    with closing(Wire.unix(daemon.socket)) as wire:
        wire.initialize("other")
        message = {"role": "user", "content": [{"type": "text", "text": "another past"}]}
        wire.call("agent/replaceMessages", {"agentId": "guide", "messages": [message]})
    assert "hello" not in nvim.wait_chat("guide", "another past")
    nvim.command("Sojourn prompt and on")
    nvim.wait_chat("guide", "You said: and on")


def test_a_daemon_that_was_shut_down_stays_down_until_it_is_needed(make_daemon: Make, make_nvim: MakeNvim) -> None:
    daemon = make_daemon(script=SCRIPT).start()
    nvim = make_nvim(daemon)
    nvim.command("Sojourn status")
    nvim.wait_said("this one is")
    with closing(Wire.unix(daemon.socket)) as wire:
        wire.initialize("other")
        wire.call("server/shutdown")
    assert daemon.wait() == 0
    nvim.wait("require('sojourn.client').state == 'off'")
    assert not daemon.answers()
    nvim.lua("sojourn_test.said = {}")
    nvim.command("Sojourn status")
    nvim.wait_said("this one is")
    assert daemon.answers()


def test_what_nobody_could_hear_stands_in_the_input_again(world: World, make_nvim: MakeNvim) -> None:
    nvim = make_nvim(world[0], "deaf", setup="{ cmd = { 'false' } }")
    nvim.command("Sojourn new early")
    nvim.keys("ixyzzy<C-s>")
    bar = "vim.api.nvim_buf_call(require('sojourn.chat').open_chats.early.buf, require('sojourn.chat').winbar)"
    nvim.wait(f"{bar}:find('What you said waits.', 1, true)")
    nvim.wait("vim.fn.getline(1) == 'xyzzy' and require('sojourn.client').state == 'off'", timeout_s=30)
    nvim.lua("require('sojourn').setup({})")
    nvim.keys("<CR>")
    assert nvim.wait_chat("early", "You said: xyzzy", timeout_s=40).count("## You") == 1
    assert "waits" not in nvim.lua(f"return {bar}")


@pytest.mark.parametrize(
    ("cmd", "said"),
    [
        ("{ 'no-such-sojourn', 'connect' }", "no-such-sojourn"),
        ("{ 'sh', '-c', 'echo broken config >&2; exit 1' }", "broken config"),
        (r"{ 'sh', '-c', 'printf \'no frame\\r\\n\\r\\n\'; cat >/dev/null' }", "could not be read"),
    ],
)
def test_a_daemon_that_cannot_be_reached_is_said_and_tried_again_later(
    world: World, make_nvim: MakeNvim, cmd: str, said: str
) -> None:
    nvim = make_nvim(world[0], "lost", setup=f"{{ cmd = {cmd} }}")
    nvim.command("Sojourn status")
    nvim.wait_said(said)
    assert nvim.lua("return require('sojourn.client').state") == "off"
    nvim.lua("require('sojourn').setup({})")
    nvim.command("Sojourn status")
    nvim.wait_said("this one is")
    assert re.search(r'this one is "nvim-[0-9a-f]{8}"', "\n".join(nvim.said()))
