"""The daemon's configuration: a TOML file, overridden by `SOJOURN__…` in the environment; everything has a default.

Read by the daemon and the command line only; other rooms are given values. What is unknown, of a wrong type or out of
range is refused here, naming file, key and what would be right, and never the value: it may be a secret in a wrong
place. A key itself never stands in a config; models name where theirs is kept.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
    field_validator,
)
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from sojourn import _paths
from sojourn.core import servers
from sojourn.core.agent import AgentConfig, Limits, Name
from sojourn.core.servers import SECRET_HEADERS, ServerName, Url, Variable, looks_secret
from sojourn.models.base import ModelSpec
from sojourn.models.prices import Price

from ._config_faults import ENV_PREFIX, ConfigError, Fault, faults_of, unknown_key, unknown_variables

OFFLINE = "offline"

Seconds = Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[StrictInt, Field(ge=1024)]
Count = Annotated[StrictInt, Field(ge=1)]


class _Section(BaseModel):
    """A table of the file: frozen, strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DaemonConfig(_Section):
    """`[daemon]`: the process itself."""

    default_model: str = OFFLINE
    durability: Literal["full", "normal"] = "full"
    idle_exit_s: Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)] = 0
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class LimitsConfig(_Section):
    """`[limits]`: every limit has a name and a default; reaching one pauses or refuses with that name."""

    max_frame_bytes: Bytes = 64 * 1024 * 1024
    max_client_queue_bytes: Bytes = 8 * 1024 * 1024
    max_active_runs: Count = 4096
    max_inflight: Count = 256
    client_tool_wait_s: Seconds = 60
    hook_wait_s: Seconds = 10
    tool_concurrency: Count = 8
    max_children_depth: Annotated[StrictInt, Field(ge=0)] = 4
    max_children: Annotated[StrictInt, Field(ge=0)] = 64
    max_result_bytes: Bytes = 8 * 1024 * 1024
    max_inbox_items: Count = 10_000
    max_jobs: Annotated[StrictInt, Field(ge=0)] = 64
    max_kept_jobs: Annotated[StrictInt, Field(ge=0)] = 256
    max_job_output_bytes: Bytes = 8 * 1024 * 1024
    compact_at: Annotated[StrictFloat, Field(ge=0, le=1)] = 0.8


Number = Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]


class PriceConfig(_Section):
    """`[models.NAME.price]`: what a million tokens cost, in any one currency."""

    input: Number = 0
    output: Number = 0
    cached_input: Number | None = None


class ModelConfig(_Section):
    """`[models.NAME]`: a model and how to reach it. None of the three `api_key_*` = no Authorization header."""

    backend: Literal["openai-chat", "openai-responses", "anthropic", "scripted", "local"]
    model: str = ""
    base_url: Url | None = None
    api_key_env: Variable | None = None
    api_key_file: str | None = None
    api_key_command: str | None = None
    context_window: Count | None = None
    idle_timeout_s: Seconds = 120
    total_timeout_s: Seconds = 1800
    max_retries: Annotated[StrictInt, Field(ge=0, le=100)] = 5
    headers: dict[str, str] = Field(default_factory=dict)
    extra: dict[str, Any] = Field(default_factory=dict)
    script: str | None = None
    dialect: str | None = None
    structured_output: Literal["native", "tool"] | None = None
    price: PriceConfig | None = None

    @field_validator("headers")
    @classmethod
    def _no_key(cls, headers: dict[str, str]) -> dict[str, str]:
        if found := sorted(name for name in headers if name.lower() in SECRET_HEADERS):
            raise ValueError(f"header {found[0]!r} carries a key; name where the key is kept with api_key_env")
        return headers

    def faults(self) -> list[tuple[str, str]]:
        """What does not fit together, as (key, what would be right)."""
        found = []
        keys = [name for name in ("api_key_env", "api_key_file", "api_key_command") if getattr(self, name) is not None]
        if len(keys) > 1:
            found.append((keys[1], f"{keys[0]!r} says already where the key is; keep one of them"))
        if self.backend == "scripted" and self.script is None:
            found.append(("script", "backend 'scripted' needs it: a path, or 'builtin:demo'"))
        if self.backend not in ("scripted", "local") and not self.model:
            found.append(("model", f"backend {self.backend!r} needs it: the model's name at the server"))
        if self.backend != "scripted" and self.script is not None:
            found.append(("script", "only backend 'scripted' takes it"))
        if self.backend == "local":
            wrong = [name for name in ("base_url", *keys) if getattr(self, name) is not None]
            found += [(name, "backend 'local' is on this machine and takes none") for name in wrong]
        return found

    def spec(self, name: str, base: Path) -> ModelSpec:
        """The model as `models` takes it; relative paths count from `base`."""
        values = self.model_dump()
        values["api_key_file"] = _path(self.api_key_file, base)
        values["price"] = None if self.price is None else Price(**self.price.model_dump())
        if self.backend == "local" and self.model:
            values["model"] = _path(self.model, base)
        if self.script is not None and not self.script.startswith("builtin:"):
            values["script"] = _path(self.script, base)
        return ModelSpec(name=name, **values)


class ToolsConfig(_Section):
    """`[tools]`: which tools agents may name besides those that belong to the daemon itself."""

    files: StrictBool = True
    demo: StrictBool = True
    shell: StrictBool = True
    packages: StrictBool = True


class HooksConfig(_Section):
    """`[hooks]`: other code that looks at every model call and tool call (docs/hooks.md)."""

    packages: StrictBool = True
    files: tuple[str, ...] = ()


class McpServer(servers.McpServer):
    """`[mcp.servers.NAME]`: a server of tools, started with `command` (stdio) or reached at `url` (streamable HTTP)."""

    model_config = ConfigDict(validate_by_alias=False)


class McpConfig(_Section):
    """`[mcp]`: servers of tools."""

    servers: dict[ServerName, McpServer] = Field(default_factory=dict)


class _PresetLimits(Limits):
    model_config = ConfigDict(validate_by_alias=False)


class Preset(AgentConfig):
    """`[agents.NAME]`: an agent's config under a name, written with snake_case keys like the rest of the file."""

    model_config = ConfigDict(validate_by_alias=False)

    limits: _PresetLimits | None = None
    mcp_servers: dict[ServerName, McpServer] | None = None  # type: ignore[assignment]  # the same, by other key names
    description: str | None = None
    """What this kind of agent is for; told to models that may delegate to it."""


class Config(BaseSettings):
    """The whole configuration. `load` is how to get one."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", env_ignore_empty=True, extra="forbid", frozen=True
    )

    daemon: DaemonConfig = DaemonConfig()
    limits: LimitsConfig = LimitsConfig()
    models: dict[Name, ModelConfig] = Field(default_factory=dict)
    tools: ToolsConfig = ToolsConfig()
    hooks: HooksConfig = HooksConfig()
    mcp: McpConfig = McpConfig()
    agents: dict[Name, Preset] = Field(default_factory=dict)

    _file: Path | None = PrivateAttr(default=None)

    @field_validator("models")
    @classmethod
    def _with_offline(cls, models: dict[str, ModelConfig]) -> dict[str, ModelConfig]:
        return {OFFLINE: ModelConfig(backend="scripted", script="builtin:demo"), **models}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment over the file; nothing else has a say."""
        return _Environment(settings_cls), init_settings

    @property
    def file(self) -> Path | None:
        """The file that was read, if there was one."""
        return self._file

    def model_specs(self) -> dict[str, ModelSpec]:
        """The configured models by name; the offline one is always there."""
        base = self._file.parent if self._file else Path.cwd()
        return {name: model.spec(name, base) for name, model in self.models.items()}

    def mcp_servers(self) -> dict[str, servers.McpServer]:
        """The configured servers of tools by name; a relative `cwd` counts from the file."""
        base = self._file.parent if self._file else Path.cwd()
        return {
            name: server.model_copy(update={"cwd": _path(server.cwd, base)})
            for name, server in self.mcp.servers.items()
        }

    def secret_variables(self) -> frozenset[str]:
        """The environment variables that hold keys of ours; no command of a tool gets to see them."""
        keys = [model.api_key_env for model in self.models.values()]
        for server in self.mcp.servers.values():
            keys += [server.bearer_token_env, *server.header_env.values(), *filter(looks_secret, server.pass_env)]
        return frozenset(key for key in keys if key is not None)

    def hook_files(self) -> list[str]:
        """The files of hooks; relative paths count from the config file."""
        base = self._file.parent if self._file else Path.cwd()
        return [str(base / Path(file).expanduser()) for file in self.hooks.files]

    def presets(self) -> dict[str, AgentConfig]:
        """The presets by name."""
        return {
            name: AgentConfig(**preset.model_dump(exclude_unset=True, exclude={"description"}))
            for name, preset in self.agents.items()
        }

    def kinds(self) -> dict[str, str | None]:
        """The presets as kinds of child agents, each with what it is for."""
        return {name: preset.description for name, preset in self.agents.items()}

    def faults(self, file: str) -> list[Fault]:
        """What does not fit together between keys that are right by themselves."""
        found = []
        if self.daemon.default_model not in self.models:
            found.append(Fault(file, "daemon.default_model", self._no_model(self.daemon.default_model)))
        for name, model in self.models.items():
            found += [Fault(file, f"models.{name}.{key}", message) for key, message in model.faults()]
        for name, server in self.mcp.servers.items():
            found += [Fault(file, f"mcp.servers.{name}.{key}", message) for key, message in server.faults()]
        for name, preset in self.agents.items():
            if preset.model is not None and preset.model not in self.models:
                found.append(Fault(file, f"agents.{name}.model", self._no_model(preset.model)))
            if preset.preset is not None:
                found.append(Fault(file, f"agents.{name}.preset", "a preset does not build on another one"))
        return found

    def _no_model(self, name: str) -> str:
        return f"there is no [models.{name}]; there are: {', '.join(sorted(self.models))}"


def load(option: str | os.PathLike[str] | None = None) -> Config:
    """The configuration: from `option` (`--config`), `$SOJOURN_CONFIG` or the default file, and the environment.

    Raises `ConfigError` with everything that is wrong. A missing default file is fine.
    """
    path, named = _paths.config_file(option)
    data = _read(path, required=named)
    faults = unknown_variables(os.environ, variables())
    faults += [
        Fault(str(path), name, unknown_key(name, Config.model_fields, table="a config"))
        for name in data or {}
        if name not in Config.model_fields
    ]
    if faults:
        raise ConfigError(faults)
    try:
        config = Config(**(data or {}))
    except ValidationError as error:
        said = _Environment(Config)()
        raise ConfigError(faults_of(error, Config, file=str(path), variables=said)) from None
    if faults := config.faults(str(path)):
        raise ConfigError(faults)
    config._file = None if data is None else path
    return config


def variables() -> dict[str, str]:
    """The environment variables that override a key, each with the key."""
    tables: dict[str, type[_Section]] = {"daemon": DaemonConfig, "limits": LimitsConfig, "tools": ToolsConfig}
    return {
        f"{ENV_PREFIX}{table}__{key}".upper(): f"{table}.{key}"
        for table, section in tables.items()
        for key in section.model_fields
    }


class _Environment(EnvSettingsSource):
    """The variables' text is read as TOML values, so that a number is a number; what is no TOML value is a string."""

    def __call__(self) -> dict[str, Any]:
        return {name: _typed(value) for name, value in super().__call__().items()}


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _typed(inner) for name, inner in value.items()}
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value


def _read(path: Path, *, required: bool) -> dict[str, Any] | None:
    """The file's tables; None when there is no file and none is required."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        if required:
            raise ConfigError(
                [Fault(str(path), "", "there is no such file; --config or $SOJOURN_CONFIG names it")]
            ) from None
        return None
    except OSError as error:
        raise ConfigError([Fault(str(path), "", f"it cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise ConfigError([Fault(str(path), "", "it is not UTF-8 text, as TOML must be")]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([Fault(str(path), "", f"it is not TOML: {error}")]) from None


def _path(path: str | None, base: Path) -> str | None:
    return None if path is None else str(base / Path(path).expanduser())
