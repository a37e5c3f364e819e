"""Every command of the command line, against one daemon with the built-in offline model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from cli_running import Cli

from sojourn.cli._commands import command_line
from sojourn.cli._meant import MEANT
from sojourn_client.testing import DaemonProcess

CONFIG = """
[models.broken]
backend = "scripted"
script = "broken.yaml"

[agents.builder]
tools = ["demo_build"]
pause_on_pending = true
"""
BROKEN = 'rules: [{when: {always: true}, reply: {error: {status: 400, message: "no such model"}}}]'


@pytest.fixture(scope="module")
def served() -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(config=CONFIG)
    (daemon.root / "broken.yaml").write_text(BROKEN)
    with daemon:
        yield daemon


@pytest.fixture
def cli(served: DaemonProcess) -> Cli:
    return Cli(served)


def pending(cli: Cli, agent: str) -> str:
    """Leaves `agent` paused on a pending build; its call's id."""
    assert cli("prompt", "build the site", "--agent", agent, "--preset", "builder").code == 4
    return str(cli.json("call", "agent/pendingCalls", json.dumps({"agentId": agent}))[0]["pendingCalls"][0]["callId"])


def gated(cli: Cli, agent: str) -> str:
    """Leaves `agent` paused on a deployment that waits for approval; the approval's id."""
    done = cli("prompt", "deploy it", "--agent", agent, "--tool", "demo_deploy", "--on-approval", "pause")
    assert done.code == 4, done
    return str(cli.json("approvals", agent)[0]["approvalId"])


def test_a_prompt_streams_the_answer_on_stdout_and_notes_on_stderr(cli: Cli) -> None:
    done = cli("prompt", "what time is it", "--agent", "clock", "--tool", "demo_time")
    assert done.code == 0
    assert done.out.startswith("It is 2")
    assert done.out.count("\n") == 1
    assert "agent clock" in done.err
    assert "✓ demo_time" in done.err


def test_a_prompt_as_json_prints_every_event_and_then_the_outcome(cli: Cli) -> None:
    done = cli("prompt", "hello", "--new", "--json")
    *events, outcome = done.json
    types = [line["event"]["type"] for line in events]
    assert (types[0], types[-1]) == ("agentStart", "agentEnd")
    assert "messageDelta" in types
    assert (outcome["reason"], outcome["lastSeq"]) == ("done", events[-1]["seq"])
    assert done.err == ""


def test_a_prompt_goes_on_with_the_agent_of_this_directory(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second, third = (cli("prompt", "hello", *new).err.splitlines()[0] for new in ([], [], ["--new"]))
    assert first == f"new {second}"
    assert third.startswith("new agent ")
    assert third != first


def test_a_prompt_reads_its_text_from_stdin(cli: Cli) -> None:
    assert cli("prompt", "-", "--new", stdin="ping pong").out == "You said: ping pong\n"


def test_an_agent_that_exists_is_used_and_with_new_refused(cli: Cli) -> None:
    assert cli("prompt", "one", "--agent", "twice").code == 0
    assert "\nagent twice\n" in "\n" + cli("prompt", "two", "--agent", "twice").err
    refused = cli("prompt", "three", "--agent", "twice", "--new")
    assert refused.code == 1
    assert "twice" in refused.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param([" ", "--agent", "unmade"], "empty", id="no text"),
        pytest.param(["-", "--agent", "unmade"], "empty", id="no text on stdin"),
        pytest.param(["hi", "--agent", "unmade", "--on-approval", "ask"], "wait, pause, deny", id="no such choice"),
        pytest.param(["hi", "--agent", "no agent"], "letters, digits", id="an id that cannot be"),
        pytest.param(["hi", "--agent", "settled", "--model", "offline"], "there already", id="an old model"),
        pytest.param(["hi", "--agent", "settled", "--tool", "none_such"], "there already", id="an old tool"),
    ],
)
def test_a_prompt_that_makes_no_sense_is_wrong_usage_and_makes_no_agent(
    cli: Cli, arguments: list[str], words: str
) -> None:
    cli("create", "settled")
    before = cli.json("ps")
    done = cli("prompt", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words in " ".join(done.err.replace("│", " ").split())
    assert cli.json("ps") == before


def test_a_prompt_that_the_daemon_refuses_leaves_no_empty_agent(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sojourn.cli.prompt._ON_APPROVAL", ("nonsense",))
    done = cli("prompt", "hello", "--agent", "refused", "--on-approval", "nonsense")
    assert (done.code, done.out) == (1, "")
    assert "refused" not in {agent["agentId"] for agent in cli.json("ps")}


def test_an_agent_is_made_and_resumed_by_commands(cli: Cli) -> None:
    assert cli("create", "made", "--tool", "demo_build").out == "made\n"
    assert cli.json("create")[0]["agentId"] != "made"
    assert cli("create", "not an id").code == 2
    assert cli("prompt", "build the site", "--agent", "made").code == 0
    said = cli("inbox", "resolve", "made", "msg-2-call-1", "built in 5 s").err
    assert "it is read at the next prompt, or `sojourn resume made`" in said
    assert cli("resume", "made").out == "The build you asked for has finished: built in 5 s\n"
    nothing = cli("resume", "made")
    assert (nothing.code, nothing.out) == (1, "")
    assert "made" in nothing.err
    cli("inbox", "push", "made", "hello")
    assert cli("resume", "made", "--json").json[-1]["reason"] == "done"
    cli("inbox", "push", "made", "hello again")
    assert "runId" in cli("resume", "made", "--no-wait").json[0]


def test_a_prompt_that_does_not_wait_answers_the_run(cli: Cli) -> None:
    done = cli("prompt", "hello", "--agent", "later", "--no-wait")
    assert done.code == 0
    run = done.json[0]["runId"]
    outcome = cli.json("call", "agent/wait", json.dumps({"agentId": "later", "runId": run}))[0]
    assert outcome["reason"] == "done"


def test_a_run_that_fails_exits_with_five(cli: Cli) -> None:
    done = cli("prompt", "hello", "--agent", "unlucky", "--model", "broken")
    assert done.code == 5
    assert "no such model" in done.err
    assert done.err.splitlines()[-1].startswith("`sojourn doctor --models`")
    assert "doctor" not in cli("prompt", "hello", "--new", "--model", "broken", "--json").err


def test_ps_shows_what_each_agent_waits_for(cli: Cli) -> None:
    pending(cli, "psbuild")
    gated(cli, "psdeploy")
    rows = {line.split("\t")[0]: line.split("\t") for line in cli("ps").out.splitlines()}
    assert rows["psbuild"][1:3] == ["paused", "1 pending call (msg-2-call-1)"]
    assert rows["psdeploy"][2] == "1 approval"
    assert {agent["agentId"] for agent in cli.json("ps")} >= {"psbuild", "psdeploy"}


def test_ps_tells_agents_apart_by_their_title_or_what_was_said_or_where_they_were_made(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = cli("prompt", "hello", "--new").err.split()[2]
    assert _last_cell(cli, made) == "hello"
    cli("prompt", "what time is it,\nplease?", "--agent", made)
    assert _last_cell(cli, made) == "what time is it, please?"
    cli("call", "agent/replaceMessages", json.dumps({"agentId": made, "messages": []}))
    assert _last_cell(cli, made)[:20] == str(tmp_path)[:20]
    cli("call", "agent/update", json.dumps({"agentId": made, "title": "Greeter"}))
    assert _last_cell(cli, made) == "Greeter"


def _last_cell(cli: Cli, agent: str) -> str:
    return next(line.split("\t")[-1] for line in cli("ps").out.splitlines() if line.startswith(agent))


def test_ps_shows_children_when_asked_to(cli: Cli) -> None:
    assert cli("prompt", "research whales", "--agent", "parent", "--tool", "delegate").code in (0, 4)
    parents = {agent["agentId"]: agent.get("parent", {}).get("agentId") for agent in cli.json("ps", "--all")}
    if approvals := cli.json("approvals", "parent"):
        assert cli("approve", approvals[0]["approvalId"]).code == 0
        cli("call", "agent/wait", '{"agentId": "parent"}')
        parents = {agent["agentId"]: agent.get("parent", {}).get("agentId") for agent in cli.json("ps", "--all")}
    assert "parent" in parents.values()


def test_a_result_goes_through_the_inbox(cli: Cli) -> None:
    call = pending(cli, "inboxed")
    assert cli("inbox", "resolve", "inboxed", call, "built in 3 s").code == 0
    assert cli("inbox", "push", "inboxed", "and hurry").code == 0
    items = cli.json("inbox", "list", "inboxed")
    assert [item["kind"] for item in items] == ["result", "message"]
    assert "built in 3 s" in cli("inbox", "list", "inboxed").out
    again = cli("inbox", "reject", "inboxed", call, "no")
    assert again.code == 1
    assert call in again.err
    outcome = cli.json("call", "agent/resume", '{"agentId": "inboxed"}')[0]
    assert "built in 3 s" in outcome["output"] or "hurry" in outcome["output"]


def test_a_rejection_is_an_inbox_item_as_well(cli: Cli) -> None:
    call = pending(cli, "rejected")
    assert cli.json("inbox", "reject", "rejected", call, "exit 2")[0]["itemId"]
    assert "exit 2" in cli("inbox", "list", "rejected").out


@pytest.mark.parametrize(
    ("options", "decision"),
    [
        pytest.param([], "approve", id="approve"),
        pytest.param(["--deny", "--reason", "too late"], "deny", id="deny"),
        pytest.param(["--edit", '{"target": "staging"}'], "edit", id="edit"),
        pytest.param(["--answer", "done by hand"], "answer", id="answer"),
        pytest.param(["--abort"], "abort", id="abort"),
        pytest.param(["--scope", "agent"], "approve", id="scope"),
    ],
)
def test_an_approval_is_decided_once(cli: Cli, options: list[str], decision: str) -> None:
    approval = gated(cli, f"decide-{decision}-{len(options)}")
    decided = cli.json("approve", approval, *options)[0]
    assert decided["decision"]["decision"] == decision
    assert decided["decision"]["by"] == "cli"
    late = cli("approve", approval)
    assert late.code == 1
    assert "'cli'" in late.err


def test_a_lasting_decision_is_listed_and_can_be_taken_back(cli: Cli) -> None:
    approval = gated(cli, "lasting")
    wide = ("--scope", "agent", "--pattern", "target=i*")
    misfit = cli("approve", approval, "--scope", "agent", "--pattern", "target=db*")
    assert misfit.code == 1
    assert misfit.err == (
        "The pattern 'target=db*' does not fit this call: its 'target' is 'it'. What would fit: 'target=it'.\n"
    )
    assert cli.json("approve", approval, *wide)[0]["decision"]["covers"] == "demo_deploy: target=i*"
    cli("call", "agent/wait", '{"agentId": "lasting"}')
    assert "demo_deploy: target=i*" in cli("rules", "lasting").out
    assert cli.json("rules", "lasting")[0] == {
        "rule": "demo_deploy: target=i*", "policy": "allow", "source": "agent",
    }  # fmt: skip
    assert cli("rules", "lasting", "--revoke", "nothing").code == 1
    assert "no approval rules" in cli("rules", "lasting", "--revoke", "demo_deploy: target=i*").err


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        pytest.param(["--deny", "--abort"], 2, "two decisions", id="two decisions"),
        pytest.param(["--pattern", "ls *"], 2, "add --scope run", id="a pattern for once"),
        pytest.param(["--edit", "nonsense"], 1, "not JSON", id="no JSON"),
        pytest.param(["--edit", "[1]"], 1, "JSON object", id="no object"),
    ],
)
def test_a_decision_that_makes_no_sense_is_refused(cli: Cli, options: list[str], code: int, words: str) -> None:
    done = cli("approve", "approval-x", *options)
    assert done.code == code
    assert words in done.err


def test_approvals_say_what_is_asked_and_when_nothing_is(cli: Cli) -> None:
    gated(cli, "asking")
    row = cli("approvals", "asking").out.split("\t")
    assert row[1:3] == ["asking", "demo_deploy"]
    cli("prompt", "hello", "--agent", "quiet")
    assert "Nothing waits" in cli("approvals", "quiet").err


def test_stop_says_whether_there_was_anything_to_stop(cli: Cli) -> None:
    cli("prompt", "hello", "--agent", "calm")
    assert "Nothing" in cli("stop", "calm").err
    assert cli.json("stop", "calm") == [{"stopped": False}]
    long = ["prompt", "deploy it", "--agent", "waiting", "--tool", "demo_deploy", "--no-wait"]
    assert cli(*long).code == 0
    assert cli("stop", "waiting").err == "Stopped.\n"


def test_events_are_read_from_any_number_on(cli: Cli) -> None:
    cli("prompt", "what time is it", "--agent", "noted", "--tool", "demo_time")
    numbers = [event["seq"] for event in cli.json("events", "noted")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [event["seq"] for event in cli.json("events", "noted", "--after", "3")] == numbers[3:]
    assert len(cli.json("events", "noted", "--limit", "2")) == 2
    shown = cli("events", "noted").out
    assert "> what time is it" in shown
    assert "✓ demo_time" in shown


def test_following_events_ends_at_the_limit(cli: Cli) -> None:
    cli("prompt", "hello", "--agent", "followed")
    lines = cli.json("events", "followed", "--follow", "--limit", "3")
    assert [line["seq"] for line in lines] == [1, 2, 3]
    assert all(line["replayed"] for line in lines)


def test_a_run_is_shown_exported_imported_and_driven_by_hand(cli: Cli, tmp_path: Path) -> None:
    cli("prompt", "hello", "--agent", "runner")
    run = cli.json("run", "list", "--agent", "runner")[0]["runId"]
    assert run in cli("run", "list").out
    assert json.loads(cli("run", "show", run).out)["state"] == "done"
    file = tmp_path / "run.json"
    assert cli("run", "export", run, "--output", str(file)).code == 0
    assert json.loads(cli("run", "export", run).out) == json.loads(file.read_text())
    copy = cli("run", "import", str(file)).out.strip()
    assert copy not in ("", run)
    assert cli.json("run", "import", str(file))[0]["runId"] != copy
    made = cli.json("call", "run/create", '{"prompt": "2+2?"}')[0]
    step = cli.json("run", "step", made["runId"])[0]["step"]
    assert (step["type"], step["turn"]) == ("callModel", 1)
    response = {"modelResponse": {"content": "4", "executableTools": [], "allowedTools": []}}
    stepped = cli("run", "step", made["runId"], json.dumps(response))
    assert json.loads(stepped.out)["step"]["result"]["output"] == "4"
    stale = cli("run", "step", made["runId"], "--revision", "0")
    assert stale.code == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param("nonsense", "not JSON", id="no JSON"),
        pytest.param("[]", "JSON object", id="no object"),
        pytest.param(None, "cannot be read", id="no file"),
        pytest.param('{"format": 99}', "99", id="another format"),
    ],
)
def test_a_document_that_is_no_run_is_refused(cli: Cli, tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "run.json"
    if content is not None:
        file.write_text(content)
    done = cli("run", "import", str(file))
    assert done.code == 1
    assert words in done.err


def test_any_method_can_be_called(cli: Cli) -> None:
    assert cli.json("call", "server/status")[0]["state"] == "ready"
    cli("create", "listed")
    assert json.loads(cli("call", "agent/list", "-", stdin='{"limit": 1}').out)["agents"]
    refused = cli("call", "agent/get", '{"agentId": "nobody"}')
    assert (refused.code, "-31001" in refused.err) == (1, True)
    as_json = cli("call", "agent/get", '{"agentId": "nobody"}', "--json")
    assert (as_json.code, as_json.json[0]["error"]["data"]["kind"]) == (1, "agentNotFound")
    assert "`sojourn protocol`" in cli("call", "no/method").err
    assert "Did you mean 'agent/list'?" in cli("call", "agents/list").err
    assert cli("call", "agents/list").code == 1


@pytest.mark.parametrize("params", ["nonsense", "[]"])
def test_params_that_are_no_object_are_refused(cli: Cli, params: str) -> None:
    done = cli("call", "agent/list", params)
    assert done.code == 1
    assert "JSON" in done.err


def test_the_protocol_is_printed_without_a_daemon(cli: Cli) -> None:
    schema = cli.json("protocol")[0]
    assert "agent/prompt" in schema["methods"]
    assert "agent/prompt" in cli("protocol").out


def test_doctor_finds_nothing_wrong_with_a_daemon_that_is_well(cli: Cli) -> None:
    done = cli("doctor")
    assert done.code == 0, done
    assert "All is well" in done.out
    found = {line["check"]: line for line in cli("doctor", "--json").json}
    assert {"version", "config", "state", "socket", "daemon", "model", "tools"} <= set(found)
    assert all(line["ok"] for line in found.values())


def test_an_unknown_agent_is_one_line_and_code_one(cli: Cli) -> None:
    done = cli("events", "nobody")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "nobody" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["ps", "--no-such-option"], id="an unknown option"),
        pytest.param(["no-such-command"], id="an unknown command"),
        pytest.param(["prompt"], id="a missing argument"),
        pytest.param(["serve", "--stdio", "--detach"], id="options that do not go together"),
        pytest.param(["connect", "--nope"], id="an unknown option of connect"),
        pytest.param(["connect", "--socket"], id="an option of connect without its value"),
    ],
)
def test_wrong_usage_exits_with_two(cli: Cli, arguments: list[str]) -> None:
    done = cli(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("status", "sojourn ps"), ("logs", "daemon.log"), ("restart", "sojourn shutdown"), ("deny", "--deny")],
)
def test_a_word_of_other_programs_is_answered_with_ours(cli: Cli, typed: str, meant: str) -> None:
    done = cli(typed)
    assert (done.code, done.out) == (2, "")
    assert meant in " ".join(done.err.split())


def test_no_hint_stands_in_the_way_of_a_command() -> None:
    known = typer.main.get_command(command_line()).commands  # type: ignore[attr-defined]
    assert not MEANT.keys() & known.keys()
    for hint in MEANT.values():
        for command in re.findall(r"`sojourn ([a-z]+)", hint):
            assert command in known


def test_the_version_is_told(cli: Cli) -> None:
    from sojourn import __version__

    assert cli("--version").out == f"sojourn {__version__}\n"


def test_the_pid_is_read_where_the_system_does_not_tell_it(
    cli: Cli, served: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("socket.SO_PEERCRED", raising=False)
    assert cli("pid").out == f"{served.pid}\n"
    where = served.state_dir / "daemon.json"
    told = where.read_text()
    where.unlink()
    try:
        unknown = cli("pid")
    finally:
        where.write_text(told)
    assert (unknown.code, unknown.out) == (1, "")


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("ps", "Usage: sojourn ps [OPTIONS]"),
        ("create", "Usage: sojourn create [OPTIONS] [AGENT]"),
        ("inbox resolve", "Usage: sojourn inbox resolve [OPTIONS] AGENT CALL RESULT"),
        ("call", "Usage: sojourn call [OPTIONS] METHOD [JSON]"),
    ],
)
def test_the_usage_is_what_one_types(cli: Cli, command: str, usage: str) -> None:
    assert cli(*command.split(), "--help").out.splitlines()[0].strip() == usage


def test_an_empty_inbox_is_said_in_words(cli: Cli) -> None:
    cli("create", "nothing-to-read")
    assert cli("inbox", "list", "nothing-to-read").err == "Nothing waits in the inbox.\n"
    assert cli.json("inbox", "list", "nothing-to-read") == []


def test_every_command_takes_the_three_options(cli: Cli) -> None:
    commands = ["serve", "shutdown", "prompt", "attach", "ps", "stop", "events", "approvals", "approve", "call"]
    commands += ["protocol", "doctor", "demo", "connect", "inbox push", "inbox list", "run list", "run step"]
    for name in commands:
        text = cli(*name.split(), "--help").out
        assert all(option in text for option in ("--config", "--state-dir", "--socket")), name
