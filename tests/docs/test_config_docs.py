"""`docs/configuration.md` and the configuration say the same: every key, default, variable, and the example works."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel
from shared_inputs import ROOT

from sojourn import config
from sojourn.core.agent import Limits

PAGE = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
TABLES: dict[str, type[BaseModel]] = {
    "[daemon]": config.DaemonConfig,
    "[limits]": config.LimitsConfig,
    "[models.NAME]": config.ModelConfig,
    "[tools]": config.ToolsConfig,
    "[hooks]": config.HooksConfig,
    "[mcp.servers.NAME]": config.McpServer,
    "[agents.NAME]": config.Preset,
    "[agents.NAME.limits]": Limits,
}


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no section {title!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]


@pytest.mark.parametrize("title", TABLES)
def test_every_key_is_documented_and_every_documented_key_exists(title: str) -> None:
    documented = [row[0].strip("`") for row in rows(section(f"`{title}`"))]
    assert documented == list(TABLES[title].model_fields)


@pytest.mark.parametrize("title", TABLES)
def test_every_documented_default_is_the_real_one(title: str) -> None:
    for key, shown, meaning in rows(section(f"`{title}`")):
        field = TABLES[title].model_fields[key.strip("`")]
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        said = tomllib.loads(f"it = {shown.strip('`')}")["it"] if shown else None
        assert (list(default) if isinstance(default, tuple) else default) == said, key
        assert meaning


def test_every_table_of_a_config_has_a_section() -> None:
    assert {re.split(r"[.\]]", title)[0].strip("[") for title in TABLES} == set(config.Config.model_fields)


def test_every_variable_of_the_source_is_documented_and_every_documented_one_is_read_somewhere() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in _sources())
    read = set(re.findall(r"\bSOJOURN_(?!_)[A-Z_]+[A-Z]\b", source))
    documented = {row[0].strip("`") for row in rows(section("Environment variables"))}
    assert documented == read


def test_the_overriding_variables_in_the_text_exist() -> None:
    shown = set(re.findall(r"\bSOJOURN__[A-Z_]+[A-Z]\b", PAGE))
    assert shown
    assert shown <= set(config.variables())


def test_the_example_is_a_config_that_is_accepted(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", section("An example"), re.DOTALL)
    assert example
    file = tmp_path / "config.toml"
    file.write_text(example[1], encoding="utf-8")
    loaded = config.load(file)
    assert loaded.model_specs()[loaded.daemon.default_model].backend == "openai-chat"
    assert loaded.presets()["careful"].max_turns == 40


def test_the_message_in_the_text_is_the_real_one(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[daemon]\nlog_levl = 'info'\n", encoding="utf-8")
    with pytest.raises(config.ConfigError) as refused:
        config.load(file)
    assert str(refused.value).removeprefix(f"{file}: ") in PAGE


def test_the_dialects_are_those_that_exist() -> None:
    from sojourn.models._chat_dialects import CHAT_DIALECTS

    row = next(row for row in rows(section("`[models.NAME]`")) if row[0] == "`dialect`")
    assert set(re.findall(r'`"([^"]+)"`', row[2])) == set(CHAT_DIALECTS)


def _sources() -> list[Path]:
    return [path for room in ("server", "clients") for path in (ROOT / room).rglob("*.py")]
