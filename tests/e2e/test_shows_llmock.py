"""Conversations with tools through the chat completions backend, with a server of other people's making, by the CLI."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.stage import client, conversation, stored

from sojourn_client.testing import DaemonProcess

pytest.importorskip("llmock")

WEATHER = {
    "name": "get_weather",
    "description": "Tells the weather in a city.",
    "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "approval": "allow",
}


@pytest.fixture
def house(llmock: Any, make_daemon: Callable[..., DaemonProcess]) -> Iterator[DaemonProcess]:
    config = f"""
[daemon]
default_model = "mock"
[models.mock]
backend = "openai-chat"
model = "gpt-5"
base_url = "{llmock.base_url()}"
api_key_env = "OPENAI_API_KEY"
"""
    yield make_daemon(config=config).start()
    llmock.assert_resilient(strict=True)


def told(output: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What `prompt --json` prints: the events, and the outcome last."""
    *events, outcome = [json.loads(line) for line in output.splitlines()]
    return [params["event"] for params in events], outcome


def test_a_tool_of_the_daemon_is_called_and_its_result_sent_back(house: DaemonProcess, llmock: Any) -> None:
    done = house.run("prompt", "--agent", "a", "--tool", "demo_echo", "--json", "Say it twice, please – ¡dos veces!")
    assert done.returncode == 0, done.stderr
    events, outcome = told(done.stdout)
    (end,) = [event for event in events if event["type"] == "toolExecEnd"]
    assert (end["toolName"], end["result"]["isError"]) == ("demo_echo", False)
    assert outcome["reason"] == "done"
    assert outcome["output"]
    deltas = [e for e in events if e["type"] == "messageDelta" and e["kind"] == "text"]
    assert "".join(event["text"] for event in deltas) == outcome["output"]
    assert [message["role"] for message in outcome["messages"]] == ["user", "assistant", "toolResult", "assistant"]
    assert outcome["usage"]["inputTokens"] > 0
    assert outcome["usage"]["outputTokens"] > 0
    assert len(llmock.requests) == 2

    llmock.tool_mode("off").reply("That was all.")
    again = house.run("prompt", "--agent", "a", "And now?")
    assert (again.returncode, again.stdout.strip()) == (0, "That was all."), again.stderr
    assert len(llmock.requests) == 3


def test_a_tool_of_another_client_is_called_through_the_daemon(house: DaemonProcess, llmock: Any) -> None:
    with client(house, "weather-station", tools={"execute": {}}) as station:
        station.call("tool/register", {"tools": [WEATHER]})
        command = [sys.executable, "-m", "sojourn", "prompt", "--agent", "a", "--json", "The weather in Paris?"]
        with subprocess.Popen(command, env=house.env, stdout=subprocess.PIPE, text=True) as asking:
            request = station.request("tool/execute")
            assert isinstance(request["params"]["arguments"]["city"], str)
            station.reply(request, {"content": "21 degrees, ☀"})
            output, _ = asking.communicate(timeout=30)
        assert asking.returncode == 0
        assert told(output)[1]["reason"] == "done"
        roles = conversation(station, "a")
        assert roles[2] == ("toolResult", "21 degrees, ☀")
        assert [role for role, _ in roles] == ["user", "assistant", "toolResult", "assistant"]
    assert len(llmock.requests) == 2


def test_faults_of_the_server_are_survived_and_told(house: DaemonProcess, llmock: Any) -> None:
    llmock.tool_mode("off").reply("All of it, to the last word.", times=None)
    llmock.truncate(after_chunks=2)
    done = house.run("prompt", "--agent", "a", "--json", "Go on", timeout_s=60)
    events, outcome = told(done.stdout)
    assert outcome["output"] == "All of it, to the last word."
    assert len(llmock.requests) == 2
    assert "messageReset" in [event["type"] for event in events]
    with client(house) as wire:
        kept = [params["event"]["type"] for params in stored(wire, "a")]
        assert kept.count("messageEnd") == 2, "the prompt and one answer"
