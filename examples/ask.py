"""Asks an agent, prints its answer while it is streamed, and decides with you about what it wants to do.

    python examples/ask.py "Please build and deploy the website" [AGENT]

Without AGENT a new one is made. Ctrl-C leaves the agent running: ask again under its name to come back to it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from sojourn_client import Client, connect

shown: dict[str, int] = {}
"""How much of each unfinished message was printed."""


async def main(question: str, agent_id: str | None) -> None:
    async with connect(client_id="ask-py") as client:
        if agent_id is None:
            agent_id = (await client.agent.create(config={"tools": ["*"]})).agent_id
        before = (await client.agent.get(agent_id=agent_id)).seq
        await client.agent.prompt(agent_id=agent_id, content=question, wait=False)
        async for event in client.events(agent_id, after_seq=before):
            if await show(client, event.event):
                break
        for call in (await client.agent.pending_calls(agent_id=agent_id)).pending_calls:
            print(f"{call.tool_name} is still at work: {agent_id} hears of its result later.")


async def show(client: Client, event: dict[str, Any]) -> bool:
    """Prints an event; whether it was the last one of the answer."""
    match event:
        case {"type": "messageDelta", "kind": "text", "messageId": id, "offset": offset, "text": text}:
            print(text, end="", flush=True)
            shown[id] = offset + len(text)
        case {"type": "messageEnd", "message": {"role": "assistant", "messageId": id, "content": content}}:
            words = "".join(part["text"] for part in content if part["type"] == "text")
            print(words[shown.pop(id, 0) :])  # all of it, when it was streamed before we listened
        case {"type": "toolExecStart", "toolName": name, "args": args}:
            print(f"[{name} {args}]")
        case {"type": "approvalRequested", "approval": {"approvalId": id, "toolName": name, "args": args}}:
            print(f"{name} {args}: run it? [y/N] ", end="", flush=True)
            yes = (await asyncio.to_thread(sys.stdin.readline)).strip() == "y"
            await client.approval.decide(approval_id=id, decision="approve" if yes else "deny")
        case {"type": "agentEnd", "reason": reason}:
            print(f"({reason})")
            return True
    return False


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else None))
