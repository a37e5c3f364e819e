"""What a real hub answers is what the protocol's schema says, for every method and every notification on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from jsonschema import Draft202012Validator
from test_methods_calls import ELSEWHERE

from sojourn.agents.hub import Hub
from sojourn.core.agent import Caller
from sojourn.methods._docs import protocol_schema
from sojourn.methods._parse import from_wire
from sojourn.methods._table import METHODS, Mutating, Params
from sojourn.models.base import ModelSpec
from sojourn.models.table import make_model
from sojourn.store.memory import MemoryStore
from sojourn.tools import ToolContext, ToolOutput, tool
from sojourn.tools.table import Toolbox

pytestmark = pytest.mark.anyio

SCHEMA = protocol_schema()
OFFLINE = ModelSpec("offline", "scripted", script="builtin:demo")
STARTER = """
rules:
  - when: {tool_result: "*"}
    reply: {text: "It works."}
  - when: {always: true}
    reply: {calls: [{name: start_work}]}
"""


def judge(place: dict[str, Any], said: Any) -> None:
    Draft202012Validator({**place, "$defs": SCHEMA["$defs"]}).validate(said)


class Client:
    """A connection without a wire: what is called and what it is told is judged by the schema."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.client_id: str | None = "tester"
        self.root_path: str | None = None
        self.delta_latency_ms: int | None = None
        self.answers_approvals = True
        self.runs_tools = True
        self.judged: set[str] = set()
        self.told: list[tuple[str, Any]] = []

    def caller(self, params: Params, method: str) -> Caller:
        request_id = params.request_id if isinstance(params, Mutating) else None
        return Caller(client_id=self.client_id, request_id=request_id, body_sha256=request_id)

    def cancel_requested(self) -> bool:
        return False

    def notify(self, body: bytes) -> bool:
        message = orjson.loads(body)
        self.told.append((message["method"], message["params"]))
        return True

    async def room(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        self.told.append((method, params))
        if method == "tool/execute":
            return {"content": [{"type": "text", "text": "moved"}]}
        return await anyio.sleep_forever()

    async def call(self, name: str, /, **params: Any) -> Any:
        method = METHODS[name]
        answer = await method.handler(self, from_wire(method.params, params, of=name))
        said = orjson.loads(orjson.dumps(answer, default=lambda value: value.wire()))
        wanted = SCHEMA["methods"][name]
        judge(wanted["accepted"] if params.get("wait") is False else wanted["result"], said)
        self.judged.add(name)
        return said

    def judge_what_was_told(self) -> set[str]:
        for name, params in self.told:
            place = SCHEMA["notifications"].get(name) or SCHEMA["requests"][name]
            judge(place["params"], params)
        return {name for name, _ in self.told}


@tool(approval="allow")
async def start_work(ctx: ToolContext) -> ToolOutput:
    """Starts a job."""
    await ctx.start_job("echo working; sleep 300")
    return ToolOutput.pending("It works.")


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    script = tmp_path / "starter.yaml"
    script.write_text(STARTER)
    starter = ModelSpec("starter", "scripted", script=str(script))
    hub = Hub(
        MemoryStore(),
        models={"offline": lambda: make_model(OFFLINE), "starter": lambda: make_model(starter)},
        default_model="offline",
        toolbox=Toolbox([*Toolbox.standard(packages=False), start_work]),
        jobs_dir=tmp_path / "jobs",
    )
    async with hub:
        client = Client(hub)
        hub.client_ready(client)
        yield client
        hub.client_gone(client)


async def talk(client: Client) -> None:
    """An agent's life: a pending build, a gated deployment, a decision, the inbox, a fork, the end."""
    await client.call("agent/watch")
    await client.call("agent/create", agentId="a", config={"tools": ["*"]}, requestId="1")
    await client.call("agent/attach", agentId="a", afterSeq=0)
    await client.call("agent/update", agentId="a", title="T", labels={"k": "v"}, config={"maxTurns": 9})
    accepted = await client.call("agent/prompt", agentId="a", content="Build and deploy the site", wait=False)
    while not (found := await client.call("approval/list"))["approvals"]:
        await anyio.lowlevel.checkpoint()
    await client.call("agent/get", agentId="a")
    await client.call("inbox/push", agentId="a", content="And hurry")
    item = (await client.call("inbox/push", agentId="a", content="Never mind"))["itemId"]
    assert len((await client.call("inbox/list", agentId="a"))["items"]) == 2
    await client.call("inbox/remove", agentId="a", itemId=item)
    approval = found["approvals"][0]
    await client.call("approval/decide", approvalId=approval["approvalId"], decision="approve", scope="agent")
    (rule,) = (await client.call("approval/rules", agentId=approval["agentId"]))["rules"]
    await client.call("approval/revoke", agentId=approval["agentId"], rule=rule["rule"])
    outcome = await client.call("agent/wait", agentId="a", runId=accepted["runId"])
    assert outcome["reason"] == "done"
    (pending,) = (await client.call("agent/pendingCalls", agentId="a"))["pendingCalls"]
    await client.call("inbox/resolve", agentId="a", callId=pending["callId"], content="ready")
    assert (await client.call("agent/resume", agentId="a"))["reason"] == "done"
    await client.call("agent/messages", agentId="a", order="desc", limit=2)
    await client.call("agent/events", agentId="a", limit=1000)
    await client.call("agent/fork", agentId="a")
    await client.call("agent/stop", agentId="a")
    await client.call("agent/create", agentId="quiet")
    await client.call("agent/compact", agentId="quiet")


async def use_tools(client: Client) -> None:
    """A tool that this client runs, a rejected call, and what there is."""
    schema = {"type": "object", "properties": {}}
    tool = {"name": "demo_move", "description": "Moves.", "inputSchema": schema, "approval": "allow"}
    await client.call("tool/register", tools=[tool])
    await client.call("tool/list")
    await client.call("tool/list", agentId="a")
    await client.call("model/list")
    messages = [
        {"role": "user", "content": "Build"},
        {"role": "assistant", "content": [{"type": "toolCall", "id": "c", "name": "demo_build", "arguments": {}}]},
        {"role": "toolResult", "callId": "c", "toolName": "demo_build", "content": "soon", "pending": True},
    ]
    replaced = await client.call("agent/replaceMessages", agentId="a", messages=messages)
    assert [call["callId"] for call in replaced["pendingCalls"]] == ["c"]
    await client.call("inbox/reject", agentId="a", callId="c", error="no space")
    await client.call("tool/unregister", names=["demo_move"])
    await client.call("agent/list", labels={"k": "v"})
    await client.call("agent/detach", agentId="a")
    await client.call("agent/unwatch")
    await client.call("agent/delete", agentId="a", force=True)


async def use_jobs(client: Client) -> None:
    """A job while it runs and when it was stopped."""
    await client.call("agent/create", agentId="j", config={"tools": ["start_work"], "model": "starter"})
    await client.call("agent/prompt", agentId="j", content="Work")
    (job,) = (await client.call("job/list", agentId="j"))["jobs"]
    while not (await client.call("job/output", jobId=job["jobId"]))["text"]:
        await anyio.lowlevel.checkpoint()
    assert (await client.call("job/stop", jobId=job["jobId"]))["outcome"] == "stopped"
    assert (await client.call("job/list", state="running"))["jobs"] == []


async def step_by_hand(client: Client) -> None:
    """A run that is driven by hand, saved, and taken in again."""
    run = (await client.call("run/create", prompt="Go", maxTurns=3, maxInvalidToolCallRetries=1))["runId"]
    step = (await client.call("run/step", runId=run))["step"]
    assert step["type"] == "callModel"
    wrong = {"content": [{"type": "toolCall", "id": "x", "name": "nope", "arguments": {}}]}
    tools = {"executableTools": ["go"], "allowedTools": ["go"]}
    asked = await client.call("run/step", runId=run, modelResponse={**wrong, **tools})
    assert asked["step"]["type"] == "needsResolution"
    fixed = await client.call("run/step", runId=run, resolution={"action": "repair", "toolName": "go"})
    (owed,) = fixed["step"]["calls"]
    await client.call("run/appendEntry", runId=run, kind="ticket", value=None)
    await client.call("run/entries", runId=run)
    results = [{"callId": owed["call"]["id"], "content": "went"}]
    await client.call("run/step", runId=run, toolResults=results)
    done = await client.call("run/step", runId=run, modelResponse={"content": "There.", **tools})
    assert done["step"]["result"]["output"] == "There."
    await client.call("run/get", runId=run)
    await client.call("run/list", limit=1)
    saved = (await client.call("run/export", runId=run))["run"]
    await client.call("run/import", run=saved)
    failed = (await client.call("run/create", prompt="Go", maxTurns=0))["runId"]
    assert (await client.call("run/step", runId=failed))["step"]["type"] == "failed"
    await client.call("run/delete", runId=run)


async def test_every_answer_and_every_notification_is_as_the_protocol_says(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOJOURN_DEMO_SECONDS", "3600")
    with anyio.fail_after(20):
        await talk(client)
        await use_tools(client)
        await use_jobs(client)
        await step_by_hand(client)
        await client.call("server/shutdown", mode="now")
    assert client.judged == set(METHODS) - ELSEWHERE
    assert len(client.told) > 50
    assert {"agent/event", "agent/changed", "approval/request"} <= client.judge_what_was_told()
