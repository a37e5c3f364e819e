"""Runs that a plain script drives: a socket, one JSON value a line, nothing else; also over a killed daemon."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest
from e2e.stage import agent, client, conversation, effects, prompt, stored, story, text
from wire import Wire

from sojourn_client.testing import DaemonProcess

SCRIPT = """
rules:
  - when: {tool_result: look_up}
    reply: {text: "From the agent's own model: {result}"}
  - when: {tool_result: "*"}
    reply: {text: "Went on with: {result}"}
  - when: {user: '^slowly'}
    reply: {text: "one two three four five six seven eight", delay_ms: 300}
  - when: {user: '^deploy'}
    reply: {calls: [{name: demo_deploy, arguments: {target: "prod"}}]}
  - when: {user: '^every one'}
    reply:
      calls:
        - {name: demo_deploy, arguments: {target: a1}}
        - {name: demo_deploy, arguments: {target: a2}}
        - {name: demo_deploy, arguments: {target: a3}}
  - when: {user: '^sleep and deploy'}
    reply:
      calls:
        - {name: demo_sleep, arguments: {seconds: 60}}
        - {name: demo_deploy, arguments: {target: "from a document"}}
  - when: {always: true}
    reply: {text: "The model says something."}
"""
names = (f"agent-{number}" for number in count(1))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that lives through all tests and ends in order."""
    world = tmp_path_factory.mktemp("world") / "world"
    with DaemonProcess(script=SCRIPT, env={"SOJOURN_DEMO_WORLD": str(world)}) as daemon:
        yield daemon
        assert daemon.stop() == 0


@pytest.fixture(scope="module")
def mortal() -> Iterator[DaemonProcess]:
    """A daemon that tests may kill."""
    with DaemonProcess(script=SCRIPT) as daemon:
        yield daemon


class Script:
    """What a script of a few lines does: writes a line, reads lines until its answer."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        self._socket.connect(str(daemon.socket))
        self._lines = self._socket.makefile("rw", encoding="utf-8")
        self._ids = count(1)
        self.ask("initialize", capabilities={})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        id = next(self._ids)
        self._lines.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + "\n")
        self._lines.flush()
        while True:
            answer: dict[str, Any] = json.loads(self._lines.readline())
            if answer.get("id") == id:
                return answer

    def ask(self, method: str, **params: Any) -> Any:
        answer = self.send(method, **params)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def refused(self, method: str, **params: Any) -> tuple[int, dict[str, Any]]:
        error = self.send(method, **params)["error"]
        return error["code"], error["data"]


def says(*content: Any, tools: tuple[str, ...] = ("look_up",)) -> dict[str, Any]:
    """A model's response."""
    names = list(tools)
    return {
        "content": [{"type": "text", "text": part} if isinstance(part, str) else part for part in content],
        "usage": {"inputTokens": 10, "outputTokens": 5},
        "executableTools": names,
        "allowedTools": names,
    }


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "toolCall", "id": "same", "name": name, "arguments": arguments}


def to_the_tools(script: Script) -> tuple[str, dict[str, Any]]:
    """A run that owes the results of two calls, and its last step."""
    run_id = script.ask("run/create", prompt="Wo liegt Öland?", maxTurns=2)["runId"]
    first = script.ask("run/step", runId=run_id)
    assert (first["step"]["type"], first["step"]["turn"], first["step"]["history"]) == ("callModel", 1, [])
    assert text(first["step"]["prompt"]["content"]) == "Wo liegt Öland?"
    two = [calls("look_up", was="Öland", genau=True), calls("look_up", was="Gotland")]
    return run_id, script.ask("run/step", runId=run_id, modelResponse=says("Let me see.", *two))


def test_a_script_takes_a_run_through_a_tool_round_and_a_killed_daemon(mortal: DaemonProcess) -> None:
    with Script(mortal) as script:
        run_id, owed = to_the_tools(script)
        assert owed["step"] == {
            "type": "callTools",
            "calls": [
                {"call": {"id": "msg-2-call-1", "name": "look_up", "arguments": {"was": "Öland", "genau": True}}},
                {"call": {"id": "msg-2-call-2", "name": "look_up", "arguments": {"was": "Gotland"}}},
            ],
        }
        some = [{"callId": "msg-2-call-2", "content": "im Osten"}]
        partly = script.ask("run/step", runId=run_id, toolResults=some)
        assert [one["call"]["id"] for one in partly["step"]["calls"]] == ["msg-2-call-1"]
        exported = script.ask("run/export", runId=run_id)["run"]
    mortal.kill9()
    mortal.start()
    with Script(mortal) as script:
        assert script.ask("run/step", runId=run_id) == partly
        assert script.ask("run/export", runId=run_id)["run"] == exported
        copy = script.ask("run/import", run=exported)["runId"]
        assert copy != run_id
        for driven in (run_id, copy):
            assert script.ask("run/step", runId=driven)["step"] == partly["step"]
            finish(script, driven)


def finish(script: Script, run_id: str) -> None:
    rest = [{"callId": "msg-2-call-1", "content": "im Süden"}]
    model = script.ask("run/step", runId=run_id, toolResults=rest)["step"]
    assert (model["type"], model["turn"]) == ("callModel", 2)
    seen = [*model["history"], model["prompt"]]
    assert [(m["role"], text(m["content"])) for m in seen] == [
        ("user", "Wo liegt Öland?"),
        ("assistant", "Let me see."),
        ("toolResult", "im Süden"),
        ("toolResult", "im Osten"),
    ]
    done = script.ask("run/step", runId=run_id, modelResponse=says("Im Süden."))["step"]
    assert (done["type"], done["result"]["output"]) == ("done", "Im Süden.")
    assert done["result"]["usage"] == {"inputTokens": 20, "outputTokens": 10}
    assert script.ask("run/step", runId=run_id)["step"] == done
    shown = script.ask("run/get", runId=run_id)
    assert (shown["state"], shown["turn"], shown["maxTurns"], shown["step"]) == ("done", 2, 2, done)


def test_a_stale_revision_and_a_wrong_feed_change_nothing(house: DaemonProcess) -> None:
    with Script(house) as script:
        run_id, owed = to_the_tools(script)
        result = [{"callId": "msg-2-call-1", "content": "x"}]
        code, data = script.refused("run/step", runId=run_id, revision=owed["revision"] - 1, toolResults=result)
        assert (code, data["kind"], data["revision"]) == (-31008, "staleRevision", owed["revision"])
        wrong: list[dict[str, Any]] = [
            {"modelResponse": says("too early")},
            {"resolution": {"action": "skip"}},
            {"toolResults": [{"callId": "msg-2-call-9", "content": "x"}]},
            {"toolResults": [*result, *result]},
        ]
        for feed in wrong:
            code, data = script.refused("run/step", runId=run_id, revision=owed["revision"], **feed)
            assert (code, data["kind"], data["state"]) == (-31013, "protocolViolation", "executing_tools"), feed
            assert data["call"]
        assert script.ask("run/step", runId=run_id, revision=owed["revision"]) == owed
        assert script.ask("run/step", runId=run_id, toolResults=result)["revision"] == owed["revision"] + 1
        assert script.refused("run/step", runId="run-none")[0] == -31002


def test_a_model_s_response_needs_its_content_and_no_more(house: DaemonProcess) -> None:
    with Script(house) as script:
        run_id = script.ask("run/create", prompt="Say x")["runId"]
        script.ask("run/step", runId=run_id)
        done = script.ask("run/step", runId=run_id, modelResponse={"content": "x"})
        assert (done["step"]["type"], done["step"]["result"]["output"]) == ("done", "x")


def test_a_document_of_another_form_is_refused_by_name(house: DaemonProcess) -> None:
    with Script(house) as script:
        document = script.ask("run/export", runId=to_the_tools(script)[0])["run"]
        code, data = script.refused("run/import", run={**document, "format": document["format"] + 1})
        assert (code, data["kind"], data["found"]) == (-31018, "formatUnsupported", document["format"] + 1)
        assert script.refused("run/import", run={**document, "colour": "blue"})[1]["field"] == "colour"
        less = {key: value for key, value in document.items() if key != "turn"}
        assert script.refused("run/import", run=less)[1]["field"] == "turn"


def test_an_agent_carries_on_an_exported_run_with_its_own_model_and_tools(house: DaemonProcess) -> None:
    with Script(house) as script, client(house) as wire:
        run_id, _ = to_the_tools(script)
        both = [{"callId": f"msg-2-call-{number}", "content": f"result {number}"} for number in (1, 2)]
        assert script.ask("run/step", runId=run_id, toolResults=both)["step"]["type"] == "callModel"
        document = script.ask("run/export", runId=run_id)["run"]
        a = agent(wire, next(names))
        before = wire.call("agent/get", {"agentId": a})
        outcome = wire.call("agent/resume", {"agentId": a, "run": document})
        assert outcome["agentId"] != a
        assert (outcome["reason"], outcome["output"]) == ("done", "From the agent's own model: result 2")
        said = conversation(wire, outcome["agentId"])
        assert [role for role, _ in said] == ["user", "assistant", "toolResult", "toolResult", "assistant"]
        assert wire.call("agent/get", {"agentId": a}) == before
        assert conversation(wire, a) == []
        assert script.ask("run/get", runId=run_id)["state"] == "awaiting_model"


def test_what_a_document_says_was_dispatched_is_failed_and_never_run(house: DaemonProcess) -> None:
    ran = len(effects(Path(house.env["SOJOURN_DEMO_WORLD"])))
    with Script(house) as script, client(house) as wire:
        a = agent(wire, next(names))
        run_id = prompt(wire, a, "sleep and deploy", wait=False)["runId"]
        wire.event("toolExecStart", agent_id=a)
        wire.event("approvalRequested", agent_id=a)
        document = script.ask("run/export", runId=run_id)["run"]
        assert script.refused("run/step", runId=run_id)[0] == -31005
        wire.call("agent/stop", {"agentId": a})

        by_hand = script.ask("run/step", runId=script.ask("run/import", run=document)["runId"])["step"]
        assert [one["call"]["name"] for one in by_hand["calls"]] == ["demo_deploy"]

        resumed = wire.call("agent/resume", {"agentId": a, "run": document, "wait": False})
        other = resumed["agentId"]
        wire.call("agent/attach", {"agentId": other, "afterSeq": 0})
        approval = wire.event("approvalRequested", agent_id=other)["event"]["approval"]
        assert approval["args"] == {"target": "from a document"}
        wire.call("approval/decide", {"approvalId": approval["approvalId"], "decision": "approve"})
        wire.event("agentEnd", agent_id=other, reason="done")
        kinds = [params["event"] for params in stored(wire, other)]
        assert [event["toolName"] for event in kinds if event["type"] == "toolExecStart"] == ["demo_deploy"]
        assert [event["code"] for event in kinds if event["type"] == "warning"] == ["callInterrupted"]
        sleep, deploy = [said for role, said in conversation(wire, other) if role == "toolResult"]
        assert "may have taken effect" in sleep
        assert deploy == "Deployed from a document."
        assert [one["target"] for one in effects(Path(house.env["SOJOURN_DEMO_WORLD"]))[ran:]] == ["from a document"]


# an agent's own run, stepped


def paused(wire: Wire) -> tuple[str, str]:
    """An agent whose run is paused at a call that waits for a decision."""
    a = agent(wire, next(names), onApproval="pause")
    outcome = prompt(wire, a, "deploy it")
    assert outcome["reason"] == "paused"
    wire.notifications.clear()
    return a, outcome["runId"]


def told(wire: Wire, agent_id: str, seq: int) -> list[dict[str, Any]]:
    return [params["event"] for params in stored(wire, agent_id, seq)]


def test_an_agents_paused_run_is_stepped_to_its_end_with_events(house: DaemonProcess) -> None:
    with client(house) as wire, Script(house) as script:
        a, run_id = paused(wire)
        seq = wire.call("agent/get", {"agentId": a})["seq"]
        owed = script.ask("run/step", runId=run_id)
        assert [one["call"]["arguments"] for one in owed["step"]["calls"]] == [{"target": "prod"}]
        assert script.ask("run/step", runId=run_id) == owed
        assert told(wire, a, seq) == [], "asking is no feed"
        wire.call("inbox/push", {"agentId": a, "content": "and hurry"})
        results = [{"callId": "msg-2-call-1", "content": "deployed by hand"}]
        fed = script.ask("run/step", runId=run_id, revision=owed["revision"], toolResults=results)
        assert fed["revision"] == owed["revision"] + 1
        model = fed["step"]
        assert (model["type"], model["turn"]) == ("callModel", 2)
        assert [text(m["content"]) for m in [*model["history"], model["prompt"]]][-2:] == [
            "deployed by hand",
            "and hurry",
        ]
        assert wire.call("agent/get", {"agentId": a})["state"] == "running"
        assert wire.error("agent/prompt", {"agentId": a, "content": "x"}).code == -31005
        done = script.ask("run/step", runId=run_id, modelResponse=says("All deployed.", tools=("demo_deploy",)))["step"]
        assert (done["type"], done["result"]["output"]) == ("done", "All deployed.")
        events = [event for event in told(wire, a, seq) if event["type"] != "inboxQueued"]
        assert events[0] == {"type": "agentStart", "cause": "step"}
        assert story(events) == [
            "agentStart", "messageStart", "messageEnd", "turnEnd", "messageStart", "messageEnd", "turnStart",
            "messageEnd", "turnEnd", "agentEnd",
        ]  # fmt: skip
        assert events[-1]["reason"] == "done"
        assert wire.call("agent/get", {"agentId": a})["state"] == "idle"
        assert wire.call("approval/list", {"agentId": a}) == {"approvals": []}
        assert conversation(wire, a)[-1] == ("assistant", "All deployed.")
        assert prompt(wire, a, "and now?")["output"] == "The model says something."


@pytest.mark.parametrize("takes_over", ["the connection closes", "agent/resume"])
def test_a_stepped_pass_ends_interrupted_when(house: DaemonProcess, takes_over: str) -> None:
    with client(house) as wire:
        a, run_id = paused(wire)
        with Script(house) as script:
            seq = wire.call("agent/get", {"agentId": a})["seq"]
            results = [{"callId": "msg-2-call-1", "content": "by hand"}]
            assert script.ask("run/step", runId=run_id, toolResults=results)["step"]["turn"] == 2
            if takes_over == "agent/resume":
                outcome = wire.call("agent/resume", {"agentId": a})
        if takes_over == "the connection closes":
            wire.event("agentEnd", agent_id=a, reason="interrupted")
            assert wire.call("agent/get", {"agentId": a})["state"] == "interrupted"
            outcome = wire.call("agent/resume", {"agentId": a})
        assert (outcome["runId"], outcome["reason"], outcome["output"]) == (run_id, "done", "Went on with: by hand")
        events = told(wire, a, seq)
        passes = [(e.get("cause") or e.get("reason")) for e in events if e["type"] in ("agentStart", "agentEnd")]
        assert passes == ["step", "interrupted", "resume", "done"]


def test_an_interrupted_run_is_stepped_after_a_kill(mortal: DaemonProcess) -> None:
    with client(mortal) as wire:
        a = agent(wire, next(names))
        run_id = prompt(wire, a, "slowly", wait=False)["runId"]
        wire.event("messageDelta", agent_id=a)
        mortal.kill9()
    mortal.start()
    with client(mortal) as wire, Script(mortal) as script:
        wire.call("agent/attach", {"agentId": a})
        model = script.ask("run/step", runId=run_id)["step"]
        assert (model["type"], model["turn"], text(model["prompt"]["content"])) == ("callModel", 1, "slowly")
        assert wire.call("agent/get", {"agentId": a})["state"] == "interrupted"
        step = script.ask("run/step", runId=run_id, modelResponse=says(calls("look_up", q="?")))["step"]
        assert [one["call"]["name"] for one in step["calls"]] == ["look_up"]
        answer = [{"callId": step["calls"][0]["call"]["id"], "content": "!"}]
        assert script.ask("run/step", runId=run_id, toolResults=answer)["step"]["turn"] == 2
        assert script.ask("run/step", runId=run_id, modelResponse=says("Done by hand."))["step"]["type"] == "done"
        wire.event("agentStart", agent_id=a, cause="step")
        wire.event("agentEnd", agent_id=a, reason="done")
        assert [said for _, said in conversation(wire, a)] == ["slowly", "", "!", "Done by hand."]
        kinds = [event["type"] for event in told(wire, a, 0)]
        assert kinds.count("agentStart") == kinds.count("agentEnd") == 2


@pytest.mark.parametrize("first", ["abort", "step"])
def test_what_was_aborted_is_not_carried_on_by_anybody(house: DaemonProcess, first: str) -> None:
    """One call is approved, one aborted, one executed by hand: the approved one does not run any more."""
    with client(house) as wire:
        name = agent(wire, next(names), onApproval="pause")
        run_id = prompt(wire, name, "every one")["runId"]
        a, b, c = wire.call("approval/list", {"agentId": name})["approvals"]
        wire.call("approval/decide", {"approvalId": b["approvalId"], "decision": "approve"})
        before = effects(Path(house.env["SOJOURN_DEMO_WORLD"]))
        by_hand = {"runId": run_id, "toolResults": [{"callId": c["callId"], "content": "by hand"}]}
        abort = {"approvalId": a["approvalId"], "decision": "abort"}
        with Script(house) as script:
            if first == "step":
                script.ask("run/step", **by_hand)
            wire.call("approval/decide", abort)
            if first == "abort":
                step = script.ask("run/step", **by_hand)["step"]
                assert (step["type"], step["error"]["kind"]) == ("failed", "cancelled")
        wire.event("agentEnd", agent_id=name, reason="stopped")
        assert wire.call("agent/get", {"agentId": name})["state"] == "idle"
        assert effects(Path(house.env["SOJOURN_DEMO_WORLD"])) == before
        assert prompt(wire, name, "hello")["reason"] == "done"


def at_the_tools_by_hand(wire: Wire, script: Script) -> tuple[str, str]:
    """An agent whose run owes the results of two calls that a client's own model made."""
    a, run_id = paused(wire)
    deployed = [{"callId": "msg-2-call-1", "content": "by hand"}]
    script.ask("run/step", runId=run_id, toolResults=deployed)
    made = says("Look:", calls("look_up", q=1), calls("look_up", q=2))
    step = script.ask("run/step", runId=run_id, modelResponse=made)["step"]
    some = [{"callId": step["calls"][1]["call"]["id"], "content": "the second"}]
    assert len(script.ask("run/step", runId=run_id, toolResults=some)["step"]["calls"]) == 1
    return a, run_id


@pytest.mark.parametrize("at", ["the model", "its own calls", "calls made by hand", "an invalid call"])
def test_a_run_that_a_client_steps_is_stopped_at_once(house: DaemonProcess, at: str) -> None:
    with client(house) as wire, Script(house) as script:
        if at == "its own calls":
            a = agent(wire, next(names), onApproval="pause")
            run_id = prompt(wire, a, "every one")["runId"]
            results = [{"callId": "msg-2-call-2", "content": "by hand"}]
            script.ask("run/step", runId=run_id, toolResults=results)
        elif at == "calls made by hand":
            a, run_id = at_the_tools_by_hand(wire, script)
        else:
            a, run_id = paused(wire)
            results = [{"callId": "msg-2-call-1", "content": "by hand"}]
            script.ask("run/step", runId=run_id, toolResults=results)
            if at == "an invalid call":
                step = script.ask("run/step", runId=run_id, modelResponse=says(calls("fly"), calls("look_up")))["step"]
                assert step["type"] == "needsResolution"
        assert wire.call("agent/stop", {"agentId": a}) == {"stopped": True, "runId": run_id}
        assert wire.call("agent/stop", {"agentId": a}) == {"stopped": False}
        end = wire.event("agentEnd", agent_id=a, reason="stopped")["event"]
        kinds = [event["type"] for event in told(wire, a, 0)]
        assert kinds[-2:] == ["turnEnd", "agentEnd"]
        for begun, over in (("agentStart", "agentEnd"), ("turnStart", "turnEnd"), ("messageStart", "messageEnd")):
            assert kinds.count(begun) == kinds.count(over)
        assert "messageReset" not in kinds, "nothing had been shown that would have to be taken back"
        assert wire.call("agent/wait", {"agentId": a})["messages"] == end["messages"]
        assert wire.call("agent/get", {"agentId": a})["state"] == "idle"
        assert wire.call("approval/list", {"agentId": a}) == {"approvals": []}
        step = script.ask("run/step", runId=run_id)["step"]
        assert (step["type"], step["error"]["kind"]) == ("failed", "cancelled")
        check_whole(wire, a)
        assert prompt(wire, a, "hello")["reason"] == "done"


def check_whole(wire: Wire, a: str) -> None:
    """Every call of the conversation has its one result."""
    said = wire.call("agent/messages", {"agentId": a})["messages"]
    made = [part["id"] for message in said for part in message["content"] if part["type"] == "toolCall"]
    assert [message["callId"] for message in said if message["role"] == "toolResult"] == made


def test_a_prompt_after_hand_made_calls_that_nobody_answered_leaves_a_whole_conversation(house: DaemonProcess) -> None:
    with client(house) as wire:
        with Script(house) as script:
            a, _run_id = at_the_tools_by_hand(wire, script)
        wire.event("agentEnd", agent_id=a, reason="interrupted")
        assert wire.call("agent/stop", {"agentId": a}) == {"stopped": False}
        assert prompt(wire, a, "hello")["reason"] == "done"
        check_whole(wire, a)
        results = [said for role, said in conversation(wire, a) if role == "toolResult"]
        assert results == ["by hand", "Not executed: the run was ended by a new prompt.", "the second"]


def test_a_stop_of_a_stepped_run_that_a_kill_caught_ends_it_at_the_next_start(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    env = {"SOJOURN_FAULT": "after:stop", "SOJOURN_DEMO_WORLD": str(tmp_path / "world")}
    daemon = make_daemon(script=SCRIPT, env=env).start()
    with client(daemon) as wire, Script(daemon) as script:
        a, run_id = paused(wire)
        script.ask("run/step", runId=run_id, toolResults=[{"callId": "msg-2-call-1", "content": "by hand"}])
        wire.send("agent/stop", {"agentId": a})
        assert daemon.wait(timeout_s=10) == -signal.SIGKILL
    del daemon.env["SOJOURN_FAULT"]
    daemon.start()
    with client(daemon) as wire:
        wire.call("agent/attach", {"agentId": a, "afterSeq": 0})
        wire.event("agentEnd", agent_id=a, reason="stopped")
        assert prompt(wire, a, "hello")["reason"] == "done"
