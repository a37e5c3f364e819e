"""What a configuration may say, and what is said about one that is wrong: where, which key, what would be right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sojourn.config import Config, ConfigError, load
from sojourn.core.agent import AgentConfig, Limits
from sojourn.models.base import ModelSpec

SECRET = "sk-live-4f9a"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.upper().startswith(("SOJOURN", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def read(file: Path, text: str) -> Config:
    file.write_text(text, encoding="utf-8")
    return load(file)


def refusal(file: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        read(file, text)
    return str(refused.value)


def test_without_any_file_everything_has_its_default() -> None:
    config = load()
    assert config.file is None
    assert config.daemon.default_model == "offline"
    assert (config.daemon.durability, config.daemon.idle_exit_s, config.daemon.log_level) == ("full", 0, "info")
    assert config.limits.max_frame_bytes == 67_108_864
    assert config.limits.max_inflight == 256
    assert config.model_specs() == {"offline": ModelSpec("offline", "scripted", script="builtin:demo")}
    assert config.presets() == {}


def test_an_empty_file_is_the_same_as_none(file: Path) -> None:
    assert read(file, "").model_dump() == load().model_dump()


def test_the_default_file_is_read_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "sojourn").mkdir()
    (tmp_path / "sojourn/config.toml").write_text("[daemon]\nidle_exit_s = 4\n")
    assert load().daemon.idle_exit_s == 4
    assert load().file == tmp_path / "sojourn/config.toml"


def test_the_option_wins_over_the_variable_that_names_a_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = file.with_name("other.toml")
    other.write_text("[daemon]\nidle_exit_s = 1\n")
    monkeypatch.setenv("SOJOURN_CONFIG", str(other))
    assert load().daemon.idle_exit_s == 1
    assert read(file, "[daemon]\nidle_exit_s = 2\n").daemon.idle_exit_s == 2


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_named_file_that_is_missing_is_an_error(by: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOJOURN_CONFIG", str(file) if by == "variable" else "")
    with pytest.raises(ConfigError, match=f"{file}: there is no such file"):
        load(file if by == "option" else None)


def test_every_table_can_be_set(file: Path) -> None:
    config = read(
        file,
        """
        [daemon]
        default_model = "gpt"
        durability = "normal"
        idle_exit_s = 2.5
        log_level = "debug"
        [limits]
        max_children_depth = 0
        client_tool_wait_s = 0.5
        [models.gpt]
        backend = "openai-chat"
        model = "gpt-5.5"
        base_url = "http://localhost:8080/v1"
        api_key_env = "OPENAI_API_KEY"
        context_window = 400000
        headers = { X-Team = "blue" }
        extra = { service_tier = "flex" }
        [models.offline]
        backend = "scripted"
        script = "rules.yaml"
        [tools]
        demo = false
        [mcp.servers.files]
        command = "serve-files"
        args = ["--root", "."]
        env = { LANG = "C" }
        pass_env = ["FILES_TOKEN"]
        approval = "allow"
        [mcp.servers.web]
        url = "https://tools.example/mcp"
        bearer_token_env = "WEB_TOKEN"
        [agents.careful]
        model = "gpt"
        tools = ["*"]
        max_turns = 3
        approvals = { "*" = "ask" }
        limits = { wall_clock_s = 60 }
        """,
    )
    gpt, offline = config.model_specs()["gpt"], config.model_specs()["offline"]
    assert (gpt.model, gpt.base_url, gpt.api_key_env) == ("gpt-5.5", "http://localhost:8080/v1", "OPENAI_API_KEY")
    assert (gpt.context_window, gpt.headers, gpt.extra) == (400_000, {"X-Team": "blue"}, {"service_tier": "flex"})
    assert (gpt.idle_timeout_s, gpt.total_timeout_s, gpt.max_retries) == (120, 1800, 5)
    assert offline.script == str(file.parent / "rules.yaml")
    assert (config.limits.max_children_depth, config.limits.client_tool_wait_s) == (0, 0.5)
    assert (config.tools.demo, config.tools.packages) == (False, True)
    files, web = config.mcp.servers["files"], config.mcp.servers["web"]
    assert (files.command, files.args, files.pass_env, files.approval) == (
        "serve-files",
        ("--root", "."),
        ("FILES_TOKEN",),
        "allow",
    )
    assert (web.url, web.approval) == ("https://tools.example/mcp", "ask")
    assert config.presets() == {
        "careful": AgentConfig(
            model="gpt", tools=("*",), max_turns=3, approvals={"*": "ask"}, limits=Limits(wall_clock_s=60)
        )
    }


def test_paths_count_from_the_config_file_and_know_the_home_directory(file: Path, tmp_path: Path) -> None:
    model = '[models.{0}]\nbackend = "anthropic"\nmodel = "m"\napi_key_file = "{1}"\n'
    config = read(file, model.format("near", "key") + model.format("home", "~/key") + model.format("abs", "/k"))
    files = {name: spec.api_key_file for name, spec in config.model_specs().items()}
    assert files == {"near": str(tmp_path / "key"), "home": str(tmp_path / "home/key"), "abs": "/k", "offline": None}


def test_a_preset_only_holds_what_it_says() -> None:
    assert Config(agents={"a": {"max_turns": 2}}).presets()["a"].model_fields_set == {"max_turns"}


def test_the_environment_wins_over_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOJOURN__DAEMON__LOG_LEVEL", "debug")
    monkeypatch.setenv("SOJOURN__LIMITS__MAX_INFLIGHT", "7")
    monkeypatch.setenv("SOJOURN__TOOLS__DEMO", "false")
    monkeypatch.setenv("SOJOURN__DAEMON__DURABILITY", "")
    config = read(file, "[daemon]\nlog_level = 'error'\nidle_exit_s = 5\n[limits]\nmax_inflight = 9\n")
    assert (config.daemon.log_level, config.daemon.idle_exit_s, config.daemon.durability) == ("debug", 5, "full")
    assert config.limits.max_inflight == 7
    assert config.tools.demo is False


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SOJOURN__DAEMON__IDLE_EXIT_S", "soon", "SOJOURN__DAEMON__IDLE_EXIT_S: it must be a valid number."),
        ("SOJOURN__LIMITS__MAX_INFLIGHT", "0", "SOJOURN__LIMITS__MAX_INFLIGHT: it must be greater than or equal to 1."),
        (
            "SOJOURN__DAEMON__LOGLEVEL",
            "info",
            "SOJOURN__DAEMON__LOGLEVEL: there is no such variable; did you mean SOJOURN__DAEMON__LOG_LEVEL?",
        ),
        (
            "sojourn__daemon__log_level",
            "info",
            "sojourn__daemon__log_level: there is no such variable; did you mean SOJOURN__DAEMON__LOG_LEVEL?",
        ),
        (
            "SOJOURN__X",
            "1",
            "SOJOURN__X: there is no such variable; docs/configuration.md lists those that there are.",
        ),
        (
            "SOJOURN__MODELS__GPT__MODEL",
            "x",
            "SOJOURN__MODELS__GPT__MODEL: there is no such variable; docs/configuration.md lists those that there are.",
        ),
    ],
)
def test_a_variable_that_is_wrong_is_named(
    variable: str, value: str, said: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert refusal(file, "") == said


GPT = '[models.gpt]\nbackend = "openai-chat"\nmodel = "m"\n'
WRONG = [
    # unknown keys
    ("[deamon]\n", "'deamon'", "there is no such key; did you mean 'daemon'?"),
    ("_env_file = 'x'\n", "'_env_file'", "a config has agents, daemon, hooks, limits, mcp, models, tools."),
    ("[daemon]\nlog_levl = 'info'\n", "'daemon.log_levl'", "did you mean 'log_level'?"),
    ("[daemon]\nzzz = 1\n", "'daemon.zzz'", "[daemon] has default_model, durability, idle_exit_s, log_level."),
    ("[limits]\nmax_frame_byte = 1\n", "'limits.max_frame_byte'", "did you mean 'max_frame_bytes'?"),
    (GPT + "url = 'http://x'\n", "'models.gpt.url'", "there is no such key; did you mean 'base_url'?"),
    ("[mcp.server.x]\n", "'mcp.server'", "did you mean 'servers'?"),
    ("[mcp.servers.x]\ncomand = 'a'\n", "'mcp.servers.x.comand'", "did you mean 'command'?"),
    ("[agents.a]\nmaxTurns = 1\n", "'agents.a.maxTurns'", "did you mean 'max_turns'?"),
    ("[agents.a.limits]\nwallClockS = 1\n", "'agents.a.limits.wallClockS'", "did you mean 'wall_clock_s'?"),
    # wrong types
    ("daemon = 5\n", "'daemon'", "it must be a valid table."),
    ("[daemon]\nidle_exit_s = '5'\n", "'daemon.idle_exit_s'", "it must be a valid number."),
    ("[daemon]\ndefault_model = 5\n", "'daemon.default_model'", "it must be a valid string."),
    ("[limits]\nmax_inflight = true\n", "'limits.max_inflight'", "it must be a valid integer."),
    ("[limits]\nmax_inflight = 2.5\n", "'limits.max_inflight'", "it must be a valid integer."),
    ("[tools]\ndemo = 1\n", "'tools.demo'", "it must be a valid boolean."),
    ("[agents.a]\nmax_turns = '5'\n", "'agents.a.max_turns'", "it must be a valid integer."),
    ("[agents.a]\ntools = 'all'\n", "'agents.a.tools'", "it must be a valid array."),
    ("[mcp.servers.x]\ncommand = 'a'\nargs = [1]\n", "'mcp.servers.x.args[0]'", "it must be a valid string."),
    # bad values
    ("[daemon]\ndurability = 'some'\n", "'daemon.durability'", "it must be 'full' or 'normal'."),
    ("[daemon]\nlog_level = 'INFO'\n", "'daemon.log_level'", "it must be 'debug', 'info', 'warning' or 'error'."),
    ("[daemon]\nidle_exit_s = -1\n", "'daemon.idle_exit_s'", "it must be greater than or equal to 0."),
    ("[daemon]\nidle_exit_s = inf\n", "'daemon.idle_exit_s'", "it must be a finite number."),
    ("[limits]\nclient_tool_wait_s = 0\n", "'limits.client_tool_wait_s'", "it must be greater than 0."),
    ("[limits]\nmax_frame_bytes = 0\n", "'limits.max_frame_bytes'", "it must be greater than or equal to 1024."),
    (GPT + "idle_timeout_s = 0\n", "'models.gpt.idle_timeout_s'", "it must be greater than 0."),
    (GPT + "max_retries = -1\n", "'models.gpt.max_retries'", "it must be greater than or equal to 0."),
    ("[models.gpt]\nmodel = 'm'\n", "'models.gpt.backend'", "it must be given."),
    (
        "[models.gpt]\nbackend = 'openai'\n",
        "'models.gpt.backend'",
        "it must be 'openai-chat', 'openai-responses', 'anthropic', 'scripted' or 'local'.",
    ),
    (GPT + "base_url = 'localhost:80'\n", "'models.gpt.base_url'", "it must be a URL that begins with http://"),
    ("[models.'a b']\nbackend = 'scripted'\n", "\"models.'a b'\"", "a name has letters, digits"),
    ("[agents.a]\napprovals = { x = 'maybe' }\n", "'agents.a.approvals.x'", "it must be 'allow', 'ask' or 'deny'."),
    ("[mcp.servers.x]\nurl = 'ftp://x'\n", "'mcp.servers.x.url'", "it must be a URL"),
    # what does not fit together
    ("[daemon]\ndefault_model = 'gpt'\n", "'daemon.default_model'", "there is no [models.gpt]; there are: offline."),
    ("[agents.a]\nmodel = 'gpt'\n", "'agents.a.model'", "there is no [models.gpt]; there are: offline."),
    ("[agents.a]\npreset = 'b'\n", "'agents.a.preset'", "a preset does not build on another one."),
    ("[models.s]\nbackend = 'scripted'\n", "'models.s.script'", "backend 'scripted' needs it"),
    ("[models.s]\nbackend = 'anthropic'\n", "'models.s.model'", "backend 'anthropic' needs it"),
    ("[models.l]\nbackend = 'local'\nbase_url = 'http://x'\n", "'models.l.base_url'", "'local' is on this machine"),
    ("[models.l]\nbackend = 'local'\napi_key_env = 'K'\n", "'models.l.api_key_env'", "'local' is on this machine"),
    (GPT + "script = 'x'\n", "'models.gpt.script'", "only backend 'scripted' takes it."),
    (
        GPT + "api_key_env = 'A'\napi_key_command = 'b'\n",
        "'models.gpt.api_key_command'",
        "'api_key_env' says already where the key is; keep one of them.",
    ),
    ("[mcp.servers.x]\n", "'mcp.servers.x.command'", "a server has either a 'command' or a 'url'."),
    ("[mcp.servers.x]\ncommand = 'a'\nurl = 'http://x'\n", "'mcp.servers.x.url'", "either a 'command' or a 'url'."),
    (
        "[mcp.servers.x]\nurl = 'http://x'\nargs = ['a']\n",
        "'mcp.servers.x.args'",
        "only a server with a 'command' takes it.",
    ),
    (
        "[mcp.servers.x]\ncommand = 'a'\nbearer_token_env = 'A'\n",
        "'mcp.servers.x.bearer_token_env'",
        "only a server with a 'url' takes it.",
    ),
]


@pytest.mark.parametrize(("text", "key", "said"), WRONG)
def test_what_is_wrong_is_named_with_file_key_and_what_would_be_right(
    text: str, key: str, said: str, file: Path
) -> None:
    message = refusal(file, text)
    assert message.startswith(f"{file}: {key}: ")
    assert said in message
    assert "\n" not in message


def test_everything_that_is_wrong_is_said_at_once(file: Path) -> None:
    message = refusal(file, "[daemon]\nlog_level = 1\n[limits]\nx = 1\nmax_inflight = 0\n")
    assert [line.split(": ")[1] for line in message.splitlines()] == [
        "'daemon.log_level'",
        "'limits.max_inflight'",
        "'limits.x'",
    ]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (GPT + f"api_key = '{SECRET}'\n", "a key itself never stands in the config"),
        (GPT + f"apikey = '{SECRET}'\n", "name that with 'api_key_env'"),
        (GPT + f"token = '{SECRET}'\n", "name that with 'api_key_env'"),
        (GPT + f"api_key_env = '{SECRET}'\n", "it must be the name of an environment variable"),
        (GPT + f"headers = {{ Authorization = 'Bearer {SECRET}' }}\n", "name where the key is kept with api_key_env"),
        (GPT + f"headers = {{ x-api-key = '{SECRET}' }}\n", "header 'x-api-key' carries a key"),
        (GPT + f"base_url = 'https://me:{SECRET}@host/v1'\n", "no user or password in it"),
        (f"[mcp.servers.x]\nurl = 'http://x'\ntoken = '{SECRET}'\n", "name that with 'bearer_token_env'"),
        (f"[mcp.servers.x]\ncommand = 'a'\nenv = {{ GIT_TOKEN = '{SECRET}' }}\n", "name it in pass_env"),
    ],
)
def test_a_key_never_stands_in_a_config_and_is_never_repeated(text: str, advice: str, file: Path) -> None:
    message = refusal(file, text)
    assert advice in message
    assert SECRET not in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"x = \n", "it is not TOML: Invalid value (at line 1, column 5)."),
        (b"[daemon]\n[daemon]\n", "it is not TOML: "),
        (b"\xff\xfe", "it is not UTF-8 text, as TOML must be."),
    ],
)
def test_a_file_that_is_no_toml_is_refused(content: bytes, said: str, file: Path) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert str(refused.value).startswith(f"{file}: {said}")


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it cannot be read: Is a directory"):
        load(tmp_path)


def test_a_refusal_can_be_taken_apart(file: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(file, "[daemon]\nlog_level = 1\n")
    (fault,) = refused.value.faults
    assert (fault.where, fault.key) == (str(file), "daemon.log_level")


def test_the_variables_that_hold_keys_are_known_and_others_are_not_hidden(file: Path) -> None:
    file.write_text(
        """
[models.a]
backend = "openai-chat"
model = "m"
api_key_env = "A_KEY"

[mcp.servers.one]
command = "x"
pass_env = ["LANG", "GITHUB_TOKEN"]

[mcp.servers.two]
url = "https://example.org/mcp"
bearer_token_env = "TWO"

[mcp.servers.three]
url = "https://example.org/mcp"
header_env = { x-account = "THREE" }
"""
    )
    assert load(file).secret_variables() == {"A_KEY", "GITHUB_TOKEN", "TWO", "THREE"}
