"""`demo`: the main job, offline, for real: a daemon is killed in the middle of the work, and nothing is lost.

Every step is checked; the last line is the verdict. Nothing of the user's own is touched: state, socket and the file
that stands for the world are in a temporary directory.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import typer

from sojourn_client import RpcError
from sojourn_client._process import DaemonProcess
from sojourn_client.client import Client

from ._app import Exit, Options, command
from ._show import arguments, console

_PROMPT = "Please build and deploy the website."
_AGENT = "release"
_LIMIT_S = 60.0


class _Wrong(Exception):
    """Something that the demo shows turned out not to be true."""


def register(app: typer.Typer) -> None:
    """Enters the command."""
    command(app)(demo)


async def demo(options: Options) -> int:
    """Kills a daemon in the middle of its work: nothing is lost. Offline; the last line is the verdict."""
    del options  # It has a daemon, a state directory and a config of its own.
    story = _Story(console())
    try:
        async with asyncio.timeout(_LIMIT_S):
            await story.tell()
    except (_Wrong, RpcError, ConnectionError, RuntimeError, TimeoutError) as error:
        story.verdict(f"FAILED: {error or 'it took too long'}", "bold red")
        return Exit.ERROR
    story.verdict("PASSED: the daemon was killed in the middle, and nothing was lost or done twice.", "bold green")
    return Exit.DONE


class _Story:
    def __init__(self, out: Any) -> None:
        self._out = out
        self._step = 0

    async def tell(self) -> None:
        """The whole story. Raises `_Wrong` where it is not as it should be."""
        daemon = DaemonProcess()
        world = daemon.root / "world.jsonl"
        daemon.env.update(SOJOURN_DEMO_WORLD=str(world))
        daemon.env.pop("SOJOURN_DEMO_SECONDS", None)
        try:
            before = await self._begin(daemon)
            await self._kill(daemon)
            await self._carry_on(daemon, world, *before)
        finally:
            await asyncio.to_thread(daemon.close)

    def verdict(self, text: str, style: str) -> None:
        """The last line."""
        self._out.print(text, style=style)

    async def _begin(self, daemon: DaemonProcess) -> tuple[dict[str, Any], dict[str, Any]]:
        self._say("A daemon starts, with the built-in offline model.")
        await asyncio.to_thread(daemon.start)
        async with daemon.connect(client_id="first") as first:
            tools = ["demo_build", "demo_deploy"]
            await first.call("agent/create", {"agentId": _AGENT, "config": {"tools": tools}})
            self._say(f"A client prompts an agent: {_PROMPT!r}")
            async with first.events(_AGENT, after_seq=0) as events:
                await first.call("agent/prompt", {"agentId": _AGENT, "content": _PROMPT, "wait": False})
                wanted = {"approvalRequested", "toolExecEnd"}
                async for event in events:
                    wanted.discard(event.type)
                    if not wanted:
                        break
            call, approval = await self._owed(first)
        self._tell(f"demo_build takes long; it answered with a placeholder and its call {call['callId']} is pending")
        self._tell(f"demo_deploy {arguments(approval['args'])} waits for a person's decision")
        return call, approval

    async def _kill(self, daemon: DaemonProcess) -> None:
        self._say(f"kill -9 {daemon.pid}: the daemon dies in the middle of the run.")
        await asyncio.to_thread(daemon.kill9)
        self._say("The daemon starts again on the same state.")
        await asyncio.to_thread(daemon.start)

    async def _carry_on(
        self, daemon: DaemonProcess, world: Path, call: dict[str, Any], approval: dict[str, Any]
    ) -> None:
        async with AsyncExitStack() as stack:
            second = await stack.enter_async_context(daemon.connect(client_id="second"))
            third = await stack.enter_async_context(daemon.connect(client_id="third"))
            self._say("Another client connects and asks what is open.")
            found_call, found_approval = await self._owed(second)
            self._check(_same(call, found_call, "callId", "toolName", "args"), f"the pending call {call['callId']}")
            self._check(
                _same(approval, found_approval, "approvalId", "callId", "args", "argsSha256"),
                f"the approval {approval['approvalId']} with the same arguments",
            )
            self._check(_lines(world) == 0, "nothing was deployed yet")
            await self._approve(second, third, approval["approvalId"])
            outcome = await second.call("agent/wait", {"agentId": _AGENT})
            self._check(outcome["reason"] == "done", f"the run went on to its end: {outcome['output']!r}")
            self._check(_lines(world) == 1, "it was deployed, exactly once")
            await self._resolve(second, call["callId"])

    async def _approve(self, second: Client, third: Client, approval_id: str) -> None:
        self._say("It approves the deployment; somebody else does so, too, a moment later.")
        decision = {"approvalId": approval_id, "decision": "approve"}
        await second.call("approval/decide", decision)
        try:
            await third.call("approval/decide", decision)
        except RpcError as error:
            late = error
        else:
            raise _Wrong("two clients decided the same approval")
        first = late.kind == "alreadyDecided" and late.data.get("by") == "second"
        self._check(first, f"the first decision counts; the other was told: {late.message}")

    async def _resolve(self, client: Client, call_id: str) -> None:
        self._say("The build is done; its result goes into the agent's inbox, and the agent answers.")
        result = "build 7 of the website is ready"
        await client.call("inbox/resolve", {"agentId": _AGENT, "callId": call_id, "content": result})
        outcome = await client.call("agent/resume", {"agentId": _AGENT})
        self._check(outcome["reason"] == "done" and result in outcome["output"], f"it said: {outcome['output']!r}")
        left = await client.call("agent/pendingCalls", {"agentId": _AGENT})
        self._check(not left["pendingCalls"], "nothing is owed any more")

    async def _owed(self, client: Client) -> tuple[dict[str, Any], dict[str, Any]]:
        calls = (await client.call("agent/pendingCalls", {"agentId": _AGENT}))["pendingCalls"]
        approvals = (await client.call("approval/list"))["approvals"]
        if len(calls) != 1 or len(approvals) != 1:
            raise _Wrong(f"one pending call and one approval were due, not {len(calls)} and {len(approvals)}")
        return calls[0], approvals[0]

    def _say(self, text: str) -> None:
        self._step += 1
        self._out.print(f"{self._step}. {text}", style="bold")

    def _tell(self, text: str) -> None:
        self._out.print(f"   · {text}")

    def _check(self, holds: bool, text: str) -> None:
        if not holds:
            raise _Wrong(f"this is not so: {text}")
        self._out.print(f"   ✓ {text}", style="green")


def _same(one: dict[str, Any], other: dict[str, Any], *fields: str) -> bool:
    return all(one[field] == other[field] for field in fields)


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0
