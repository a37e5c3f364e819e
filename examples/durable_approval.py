"""A call that waits for a person, kept by the daemon: ask today, decide tomorrow, from another process or machine.

    python examples/durable_approval.py ask           # an agent wants to deploy; this ends as soon as its call waits
    python examples/durable_approval.py decide        # later, from anywhere: a person decides about each open call

It needs the default model to be `offline`, as it is without a config: any other one may ask for nothing.
In between the daemon may be killed, the machine may be switched off: the question is on disk, with its arguments.
For each call you are asked:

    y              run it as the model made it
    edit TARGET    run it with another target
    abort          stop the agent's run
    anything else is a denial, which the model reads
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from sojourn.core.approvals import Approval
from sojourn_client import Client, RpcError, connect


async def ask(client: Client) -> None:
    """Prompts an agent and goes away as soon as something waits for a person."""
    agent = await client.agent.create(config={"tools": ["*"]})
    await client.agent.prompt(agent_id=agent.agent_id, content="Please deploy the website", wait=False)
    async for event in client.events(agent.agent_id, after_seq=0):
        if event.type == "approvalRequested":
            approval = event.event["approval"]
            print(f"{approval['toolName']}({approval['args']}) waits; it will wait for as long as it takes.")
            return
        if event.type == "agentEnd":
            print("The agent asked for nothing.")
            return


async def decide(client: Client) -> None:
    """Asks the person about every open call, then waits for what each agent makes of it."""
    approvals = (await client.approval.list()).approvals
    if not approvals:
        print("Nothing waits for a decision.")
    for approval in approvals:
        print(f"approve {approval.tool_name}({approval.args})? [y / edit TARGET / abort / N] ", flush=True)
        answer = (await asyncio.to_thread(sys.stdin.readline)).split()
        try:
            await client.approval.decide(approval_id=approval.approval_id, **decision(approval, answer))
        except RpcError as error:  # somebody else was faster: the error names them
            print(error.message)
            continue
        outcome = await client.agent.wait(agent_id=approval.agent_id, run_id=approval.run_id)
        print(f"{outcome.reason}: {outcome.output}")


def decision(approval: Approval, answer: list[str]) -> dict[str, Any]:
    """What the person typed, as params of `approval/decide`. Fail-closed: only a clear yes runs anything."""
    match answer:
        case ["y"]:
            return {"decision": "approve"}
        case ["edit", target]:
            return {"decision": "edit", "arguments": {**approval.args, "target": target}}
        case ["abort"]:
            return {"decision": "abort"}
        case _:
            return {"decision": "deny", "reason": " ".join(answer) or "no answer"}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ask", "decide"])
    what = parser.parse_args().what
    async with connect(client_id="durable-approval") as client:
        await (ask if what == "ask" else decide)(client)


if __name__ == "__main__":
    asyncio.run(main())
