"""`sojourn doctor --models`: one cheap request to each model, and in plain words what is wrong with it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from models.loopback import Answer, answer_json, delta, head, loopback, raw, spec_for, sse

from sojourn.models.base import ModelSpec
from sojourn.models.capabilities import described
from sojourn.models.prices import Price
from sojourn.models.trial import try_model

pytestmark = pytest.mark.anyio

OK = sse(delta(role="assistant", content="OK"), delta("stop"))


def error(status: int, message: str, **fields: Any) -> Answer:
    return answer_json({"error": {"message": message, **fields}}, status=status)


FAULTS: dict[str, tuple[Answer, dict[str, Any], str, str]] = {
    "a wrong key": (
        error(401, "Incorrect API key provided"),
        {"api_key_env": "TRIAL_KEY"},
        "Incorrect API key",
        "refuses the key in $TRIAL_KEY",
    ),
    "no key named": (error(401, "no key"), {}, "no key", "the config names none"),
    "a key without rights": (error(403, "not yours"), {}, "not yours", "does not let it use 'm-9'"),
    "a wrong model": (error(404, "model 'm-9' not found"), {}, "not found", "correct 'model' in [models.tested]"),
    "a wrong model, said as a bad request": (error(400, "m-9 is no model"), {}, "no model", "no model 'm-9'"),
    "a wrong address": (raw(head(404, kind="text/plain") + b"nothing here"), {}, "404", "correct 'base_url'"),
    "a web page": (raw(head(200, kind="text/html") + b"<html>"), {}, "text/html", "is no such API"),
    "a used-up quota": (error(429, "You have no money"), {}, "no money", "used up"),
    "overloaded": (error(529, "Overloaded"), {}, "Overloaded", "Try again later"),
    "silent": (raw(head(), hold=True), {"idle_timeout_s": 0.2}, "", "said nothing"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_is_wrong_is_said_in_plain_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIAL_KEY", "sk-very-secret-value")
    answer, fields, words, advice = FAULTS[name]
    async with loopback(answer) as server:
        trial = await try_model(spec_for(server, **{"model": "m-9", **fields}))
        assert len(server.requests) == 1
    assert words in trial.said
    assert advice in trial.advice
    assert "sk-very-secret-value" not in trial.said + trial.advice


async def test_a_model_that_answers_is_well_and_was_asked_for_little() -> None:
    async with loopback(OK) as server:
        trial = await try_model(spec_for(server))
        assert server.requests[0].json["max_tokens"] == 16
    assert (trial.said, trial.advice) == ("answered as 'm-1'", "")


async def test_nothing_at_the_address_is_said_so() -> None:
    trial = await try_model(spec_for(base_url="http://127.0.0.1:9/v1"))
    assert "Nothing answers at http://127.0.0.1:9/v1" in trial.advice


async def test_a_spec_that_cannot_be_used_is_said_so() -> None:
    trial = await try_model(spec_for(dialect="klingon"))
    assert "klingon" in trial.said
    assert trial.advice


CONFIG = """
[models.good]
backend = "openai-chat"
model = "m"
base_url = "{url}"
max_retries = 0

[models.bad]
backend = "openai-chat"
model = "m"
base_url = "http://127.0.0.1:9/v1"
"""


@pytest.mark.parametrize("flag", [True, False])
async def test_doctor_asks_the_models_only_when_it_is_told_to(flag: bool, tmp_path: Path) -> None:
    async with loopback(OK) as server:
        config = tmp_path / "config.toml"
        config.write_text(CONFIG.format(url=server.url))
        places = ["--config", config, "--state-dir", tmp_path / "s", "--socket", tmp_path / "sock"]
        asked = ["--models"] if flag else []
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sojourn",
            "doctor",
            "--json",
            *asked,
            *map(str, places),
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            out, _ = await process.communicate()
        assert len(server.requests) == flag
    found = [json.loads(line) for line in out.decode().splitlines()]
    models = {line["message"].split(" ")[0]: line for line in found if line["check"] == "model"}
    assert models["good"]["ok"]
    assert models["offline"]["ok"]
    assert models["bad"]["ok"] is not flag
    assert process.returncode == flag
    assert ("Nothing answers" in models["bad"].get("advice", "")) is flag


SHOWN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"backend": "scripted", "script": "builtin:demo"}, {"backend": "scripted", "prices": False}),
    (
        {"backend": "openai-chat", "base_url": "https://api.deepseek.com/v1?key=1", "context_window": 9},
        {
            "backend": "openai-chat",
            "model": "m",
            "baseUrl": "https://api.deepseek.com/v1",
            "dialect": "deepseek",
            "images": False,
            "tools": True,
            "reasoning": True,
            "structuredOutput": "json_object",
            "contextWindow": 9,
            "prices": False,
        },
    ),
    (
        {"backend": "anthropic", "price": Price(1, 2), "headers": {"x-team": "secret"}, "api_key_env": "KEY"},
        {
            "backend": "anthropic",
            "model": "m",
            "baseUrl": "https://api.anthropic.com",
            "images": True,
            "tools": True,
            "reasoning": True,
            "structuredOutput": "json_schema",
            "prices": True,
        },
    ),
    (
        {"backend": "openai-chat"},
        {
            "backend": "openai-chat",
            "model": "m",
            "baseUrl": "https://api.openai.com/v1",
            "dialect": "openai",
            "images": True,
            "tools": True,
            "reasoning": False,
            "structuredOutput": "json_schema",
            "prices": False,
        },
    ),
]


@pytest.mark.parametrize(("fields", "shown"), SHOWN)
def test_a_model_is_described_without_secrets(fields: dict[str, Any], shown: dict[str, Any]) -> None:
    model = "" if fields["backend"] == "scripted" else "m"
    assert described(ModelSpec(name="x", model=model, **fields)) == shown
