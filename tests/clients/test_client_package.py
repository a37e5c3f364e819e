"""The package itself: generated code is up to date, importing it is light, fakes and reading agree on the methods."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sojourn_client
from sojourn.methods._table import METHODS
from sojourn_client._api import Api

ROOT = Path(__file__).resolve().parents[2]


def test_the_typed_calls_are_those_of_the_table() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts/generate_client.py"), "--check"])
    assert done.returncode == 0, "run `python scripts/generate_client.py`"


def test_every_method_of_the_protocol_has_a_typed_call() -> None:
    class Nobody(Api):
        async def call(self, method: str, params: object = None) -> object:
            raise NotImplementedError

    api = Nobody()
    for name in METHODS:
        space, slash, verb = name.partition("/")
        if slash and not name.startswith("$"):
            snake = "".join(f"_{char.lower()}" if char.isupper() else char for char in verb)
            assert callable(getattr(getattr(api, space), "import_" if verb == "import" else snake)), name


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
