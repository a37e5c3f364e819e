"""The Neovim plugin as an installed thing: what it loads, its help, its health, its options, its form."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from nvim_driver import PLUGIN, Nvim, nvim_path

from sojourn_client.testing import DaemonProcess

World = tuple[DaemonProcess, Nvim]

GUIDE = (Path(__file__).parents[2] / "docs" / "neovim.md").read_text()
LUA_CHECKS = Path(__file__).parent / "lua"
SOURCES = sorted(str(file) for file in [*PLUGIN.rglob("*.lua"), *LUA_CHECKS.glob("*.lua")])


def bare(*arguments: str, home: Path) -> str:
    """What a Neovim without a screen prints on stderr and stdout."""
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(home), "NVIM_LOG_FILE": str(home / "log")}
    done = subprocess.run(
        [nvim_path(), "--headless", "-u", "NORC", "-i", "NONE", "--cmd", f"set rtp^={PLUGIN}", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env=env,
        cwd=home,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_startup_requires_nothing_and_maps_no_keys(tmp_path: Path) -> None:
    code = """lua print(vim.json.encode({
      loaded = vim.tbl_filter(function(name) return vim.startswith(name, 'sojourn') end, vim.tbl_keys(package.loaded)),
      commands = vim.fn.exists(':Sojourn'),
      keys = vim.tbl_filter(function(map) return (map.rhs or ''):find('Sojourn', 1, true)
        and not vim.startswith(map.lhs, '<Plug>') end, vim.api.nvim_get_keymap('n')),
      statusline = require('sojourn').statusline(),
      after = vim.tbl_filter(function(name) return vim.startswith(name, 'sojourn') end, vim.tbl_keys(package.loaded)),
    }))"""
    found = json.loads(bare("-c", code.replace("\n", " "), "-c", "qall", home=tmp_path))
    assert found == {"loaded": [], "commands": 2, "keys": [], "statusline": "", "after": ["sojourn"]}


def test_the_help_has_its_tags_and_no_broken_link(tmp_path: Path) -> None:
    docs = tmp_path / "doc"
    shutil.copytree(PLUGIN / "doc", docs)
    assert bare("-c", f"helptags {docs}", "-c", "qall", home=tmp_path) == ""
    tags = {line.split("\t")[0] for line in (docs / "tags").read_text().splitlines()}
    assert {"sojourn", ":Sojourn", "sojourn-config", "sojourn.statusline()"} <= tags
    text = (docs / "sojourn.txt").read_text()
    links = {word for part in text.split("|")[1::2] if " " not in (word := part) and "\n" not in part}
    ours = {link for link in links if "sojourn" in link.lower()}
    assert ours
    assert ours <= tags


def test_the_help_names_every_command_and_option(tmp_path: Path) -> None:
    text = (PLUGIN / "doc" / "sojourn.txt").read_text()
    code = """lua print(vim.json.encode({ require('sojourn.commands').complete('', 'Sojourn ', 8),
      vim.tbl_keys(require('sojourn.config').defaults) }))"""
    commands, options = json.loads(bare("-c", code.replace("\n", " "), "-c", "qall", home=tmp_path))
    assert [name for name in commands if not re.search(rf"Sojourn\S* \[?{name}\b", text)] == []
    assert [name for name in options if f"{name} =" not in text] == []


def test_checkhealth_says_what_is_well(world: World) -> None:
    nvim = world[1]
    nvim.command("checkhealth sojourn")
    text = nvim.lua("return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), '\\n')")
    assert "ERROR" not in text
    assert "WARNING" not in text
    for words in ("Neovim 0.1", "the markdown parser is there", "answers, ready, 0 agents", 'the client "nvim-'):
        assert words in text


def test_checkhealth_says_what_to_do(world: World) -> None:
    nvim = world[1]
    nvim.lua("require('sojourn').setup({ cmd = { 'no-such-sojourn', 'connect' } })")
    nvim.command("checkhealth sojourn")
    nvim.lua("require('sojourn').setup({})")
    text = nvim.lua("return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), '\\n')")
    assert 'ERROR "no-such-sojourn" is not in the PATH' in text
    assert "pip install sojourn" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("{ layuot = 'float' }", 'there is no option "layuot"'),
        ("{ float = { with = 0.5 } }", 'there is no option "float.with"'),
        ("{ input_height = 'tall' }", 'the option "input_height" takes a number, not a string'),
    ],
)
def test_an_option_that_is_wrong_is_refused_by_name(tmp_path: Path, options: str, said: str) -> None:
    code = f"lua print(select(2, pcall(require('sojourn').setup, {options})))"
    assert said in bare("-c", code, "-c", "qall", home=tmp_path)


def test_the_configuration_of_the_guide_is_taken(world: World) -> None:
    nvim = world[1]
    block = re.search(r"```lua\n(.*?)```", GUIDE, re.DOTALL)
    assert block
    nvim.lua(block[1])
    assert nvim.lua("return vim.fn.maparg('<Leader>ap', 'x')") == "<Plug>(sojourn-prompt)"
    assert nvim.lua("return vim.api.nvim_eval_statusline(vim.o.statusline, {}).str")
    nvim.lua("require('sojourn').setup({})")


def test_commands_and_their_arguments_are_completed(world: World) -> None:
    daemon, nvim = world
    nvim.command("Sojourn new alpha")
    nvim.wait("require('sojourn.agents').known.alpha")

    def complete(line: str) -> list[str]:
        return list(nvim.lua("return vim.fn.getcompletion(given, 'cmdline')", line))

    assert complete("Sojourn re") == ["reject", "resolve", "resume", "review"]
    assert complete("Sojourn stop al") == ["alpha"]
    assert complete("Sojourn prompt look at @d") == ["@diagnostics"]
    (daemon.root / "notes.md").write_text("")
    assert complete("Sojourn prompt read @file:no") == ["@file:notes.md"]
    assert complete("Sojourn new model") == ["model="]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: Path(file).name)
def test_lua_is_sound_short_and_sets_no_global(tmp_path: Path, file: str) -> None:
    code = f"""lua local chunk, problem = loadfile('{file}')
      print(problem or #vim.tbl_filter(function(line) return #line > 120 end, vim.fn.readfile('{file}')))"""
    assert bare("-c", code.replace("\n", " "), "-c", "qall", home=tmp_path) == "0"
    lines = Path(file).read_text().splitlines()
    assert len(lines) <= 400


def test_lua_is_formatted() -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("there is no node here, so nobody can look at how Lua is formatted")
    if not (LUA_CHECKS / "node_modules").exists():
        install = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--prefix", str(LUA_CHECKS)]
        if subprocess.run(install, capture_output=True, timeout=120).returncode != 0:
            pytest.skip("npm cannot install the formatter of Lua here")
    done = subprocess.run([node, str(LUA_CHECKS / "format.mjs"), "--check", *SOURCES], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
