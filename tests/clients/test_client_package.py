"""The package itself: generated code is up to date, importing it is light, fakes and reading agree on the methods."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import sojourn_client
from sojourn.methods._table import LSP_NAMESPACES, METHODS
from sojourn_client._api import Api

ROOT = Path(__file__).resolve().parents[2]


def test_the_typed_calls_are_those_of_the_table() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts/generate_client.py"), "--check"])
    assert done.returncode == 0, "run `python scripts/generate_client.py`"


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, sojourn_client; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    assert not loaded & {"pydantic", "asyncio", "orjson", "typer", "sojourn.core", "pytest"}
    code = "import sys, sojourn_client; sojourn_client.Client; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    assert "asyncio" in loaded
    assert not loaded & {"pydantic", "pygls", "httpx", "sojourn.agents", "sojourn.store", "sojourn.rpc"}


def test_every_public_name_is_there() -> None:
    for name in sojourn_client.__all__:
        assert getattr(sojourn_client, name)
    with pytest.raises(AttributeError):
        _ = sojourn_client.nothing


class Sent(Exception):
    """What a typed call would have sent."""


class Recorder(Api):
    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        raise Sent(method, params)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "name", [name for name in METHODS if "/" in name and not name.startswith(("$", *LSP_NAMESPACES))]
)
async def test_a_typed_call_sends_its_method_with_the_wires_own_names(name: str) -> None:
    space, verb = name.split("/")
    snake = "".join(f"_{char.lower()}" if char.isupper() else char for char in verb)
    call = getattr(getattr(Recorder(), space), "import_" if verb == "import" else snake)
    fields = {field: info.alias for field, info in METHODS[name].params.model_fields.items() if field != "meta"}
    assert set(inspect.signature(call).parameters) == set(fields)
    with pytest.raises(Sent) as sent:
        await call(**dict.fromkeys(fields, "x"))
    assert sent.value.args == (name, dict.fromkeys(fields.values(), "x"))
    required = {field for field, info in METHODS[name].params.model_fields.items() if info.is_required()}
    with pytest.raises(Sent) as sent:
        await call(**dict.fromkeys(required, "x"))
    assert set(sent.value.args[1]) == {fields[field] for field in required}
