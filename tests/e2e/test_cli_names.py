"""The beginning of an id stands for it on the command line, where it is the beginning of just one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from cli_running import Cli

from sojourn_client.testing import DaemonProcess

ALIKE, ALSO = "agent-aaaa000000000001", "agent-aaaa000000000002"
OTHER = "agent-bbbb000000000001"


@pytest.fixture(scope="module")
def served() -> Iterator[DaemonProcess]:
    with DaemonProcess() as daemon:
        yield daemon


@pytest.fixture
def cli(served: DaemonProcess) -> Cli:
    command = Cli(served)
    there = {agent["agentId"] for agent in command.json("ps")} if served.answers() else set()
    for agent in {ALIKE, ALSO, OTHER} - there:
        assert command("create", agent).code == 0
    return command


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["stop", "{}"], id="stop"),
        pytest.param(["events", "{}"], id="events"),
        pytest.param(["rules", "{}"], id="rules"),
        pytest.param(["approvals", "{}"], id="approvals"),
        pytest.param(["inbox", "list", "{}"], id="inbox list"),
        pytest.param(["inbox", "push", "{}", "hello"], id="inbox push"),
        pytest.param(["jobs", "list", "--agent", "{}"], id="jobs list"),
        pytest.param(["run", "list", "--agent", "{}"], id="run list"),
        pytest.param(["prompt", "hello", "--agent", "{}"], id="prompt"),
    ],
)
def test_every_command_takes_the_beginning_of_an_id(cli: Cli, command: list[str]) -> None:
    done = cli(*(word.format("agent-bbbb") for word in command))
    assert done.code == 0, done
    unclear = cli(*(word.format("agent-aaaa") for word in command))
    assert (unclear.code, unclear.out) == (1, "")
    assert f"{ALIKE}, {ALSO}" in unclear.err or f"{ALSO}, {ALIKE}" in unclear.err


def test_the_beginning_reaches_the_very_agent(cli: Cli) -> None:
    cli("inbox", "push", "agent-b", "a word for you")
    assert "a word for you" in cli("inbox", "list", OTHER).out
    assert cli("inbox", "list", ALIKE).out == ""


def test_an_id_that_others_begin_with_is_itself(cli: Cli) -> None:
    cli("create", "build")
    cli("create", "build-2")
    assert cli("stop", "build").code == 0
    assert "build, build-2" in (done := cli("stop", "buil")).err or "build-2, build" in done.err
    assert cli("stop", "build-").code == 0


def test_nothing_that_begins_so_is_said_in_the_daemons_words(cli: Cli) -> None:
    assert cli("stop", "agent-cccc").err == "There is no agent 'agent-cccc'.\n"


def test_a_prompt_makes_an_agent_of_a_persons_name_though_others_begin_with_it(cli: Cli) -> None:
    cli("create", "nightly-build")
    assert cli("prompt", "hello", "--agent", "nightly").err == "new agent nightly\n"
    assert cli("prompt", "hello", "--agent", "agent-1").err == "new agent agent-1\n"


def test_a_child_is_found_by_its_beginning(cli: Cli) -> None:
    cli("prompt", "research whales", "--agent", "parent", "--tool", "delegate", "--on-approval", "pause")
    for approval in cli.json("approvals", "parent"):
        assert cli("approve", approval["approvalId"][:-1]).code == 0
    cli("call", "agent/wait", '{"agentId": "parent"}')
    cli("resume", "parent")
    child = next(agent["agentId"] for agent in cli.json("ps", "--all") if "parent" in agent)
    assert cli.json("events", child[:-1])[0]["agentId"] == child


def test_an_approval_is_decided_by_the_beginning_of_its_id(cli: Cli) -> None:
    for agent in ("one", "two"):
        cli("prompt", "deploy it", "--agent", agent, "--tool", "demo_deploy", "--on-approval", "pause")
    unclear = cli("approve", "approval-")
    assert unclear.code == 1
    assert "2 approvals" in unclear.err
    first, second = (approval["approvalId"] for approval in cli.json("approvals"))
    assert cli("approve", first[:-1], "--deny").code == 0
    assert cli("approve", "approval-", "--deny").code == 0
    assert "already" in cli("approve", second).err


def test_a_job_is_named_by_its_beginning(cli: Cli) -> None:
    cli("create", "worker", "--tool", "shell")
    cli("prompt", "run sleep 60 in the background", "--agent", "worker", "--on-approval", "pause")
    assert cli("approve", "approval-").code == 0
    cli("resume", "worker")
    (job,) = cli.json("jobs", "list", "--agent", "worker")
    assert cli("jobs", "stop", job["jobId"][:-1]).err == f"{job['jobId']}: stopped by cli.\n"
    assert cli("jobs", "output", "job-").code == 5


def test_an_agent_is_deleted(cli: Cli) -> None:
    cli("prompt", "hello", "--agent", "gone-tomorrow")
    assert cli("delete", "gone-").err == "gone-tomorrow is deleted.\n"
    assert "gone-tomorrow" not in {agent["agentId"] for agent in cli.json("ps")}
    assert cli("delete", "gone-tomorrow").code == 1


def test_an_agent_at_work_is_deleted_only_by_force(cli: Cli) -> None:
    cli("create", "busy", "--tool", "demo_deploy")
    cli("prompt", "deploy it", "--agent", "busy", "--no-wait")
    deadline = time.monotonic() + 20
    while not cli.json("approvals", "busy"):
        assert time.monotonic() < deadline
    refused = cli("delete", "busy")
    assert (refused.code, refused.out) == (1, "")
    assert cli("delete", "busy", "--force").code == 0
    assert json.loads(cli("call", "agent/list", "--json").out)["agents"]
