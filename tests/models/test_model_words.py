"""What is said of a model: where its key is, what its protocol carries, and why its server could not be spoken to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sojourn.core.errors import ModelError
from sojourn.models import _http
from sojourn.models.base import ModelSpec
from sojourn.models.capabilities import described
from sojourn.models.trial import _advice


def spec(**more: Any) -> ModelSpec:
    return ModelSpec(name="m", backend="openai-chat", model="m-1", **more)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"api_key_env": "KEY"}, "the key in $KEY"),
        ({"api_key_file": "/run/key"}, "the key in /run/key"),
        ({"api_key_command": "pass show key"}, "the key that api_key_command prints"),
        ({}, "the key; the config names none (api_key_env)"),
    ],
)
def test_a_key_that_is_refused_is_named_by_its_place_and_never_shown(where: dict[str, str], words: str) -> None:
    error = ModelError("401", reason="unauthorized")
    assert _advice(spec(**where), error) == (
        f"The server refuses {words}. Make a new one, or correct where it is kept."
    )


@pytest.mark.parametrize(
    ("reason", "message", "advice"),
    [
        ("badRequest", "there is no 'm-1' here", "The server has no model 'm-1': correct 'model' in [models.m]."),
        ("notFound", "nothing here", "There is no such API at the provider's own address"),
        ("somethingNew", "odd", "Look at what it said, and at its table in the config."),
    ],
)
def test_what_to_do_follows_from_the_reason_and_what_the_server_said(reason: str, message: str, advice: str) -> None:
    assert _advice(spec(), ModelError(message, reason=reason)).startswith(advice)


def test_a_model_that_is_asked_for_structure_by_a_tool_has_none_of_its_own() -> None:
    assert described(spec())["structuredOutput"] != "none"
    assert described(spec(structured_output="tool"))["structuredOutput"] == "none"
    scripted = ModelSpec(name="s", backend="scripted", model="", structured_output="tool")
    assert "structuredOutput" not in described(scripted)


def test_certificates_are_those_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert _http._trust() is True
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    folder = _http._trust()
    assert folder is not True
    assert folder.get_ca_certs() == []  # type: ignore[union-attr]
