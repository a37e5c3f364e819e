"""Stepping a run by hand: it stops whenever the model wants to call tools, is saved to a file, and a person decides.

    python examples/run_stepping.py run.json            # asks at once
    python examples/run_stepping.py --pause run.json    # ends once calls wait; start it again, whenever, to decide

No daemon is needed: `AgentRun` is a plain value, and this program is its driver. The model is a function of this file;
put a call of your provider's client in its place. For each call you are asked:

    y            run it as the model made it
    edit 100     run it with another amount
    abort        stop driving (the file keeps the run; start again to go on)
    anything else is a denial, which the model reads
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sojourn import AgentRun, CallModel, CallTools, Done, ModelTurn
from sojourn.core.messages import Message, ToolCallPart, ToolResultMessage, text_of, tool_result
from sojourn.core.run import InvalidToolCallAction, NeedsResolution, PendingToolCall


class Abort(Exception):
    """The person wants to stop here."""


def transfer_funds(arguments: dict[str, Any]) -> str:
    """The one tool there is."""
    return f"Transferred ${arguments['amount']} to account {arguments['account']}."


TOOLS = {"transfer_funds": transfer_funds}


def ask_model(messages: Sequence[Message], tools: Sequence[str]) -> ModelTurn:
    """Stands for a request to a model server: it wants to transfer money, then tells what came of it."""
    last = messages[-1]
    if isinstance(last, ToolResultMessage):
        return ModelTurn.text(f"The bank says: {text_of(last.content)}", tools=tools)
    call = ToolCallPart(id="call_1", name="transfer_funds", arguments={"amount": 500, "account": "B-2"})
    return ModelTurn.calls(call, tools=tools)


def decide(pending: PendingToolCall) -> ToolResultMessage:
    """Asks the person about one call and answers with its result."""
    call = pending.call
    if pending.preresolved_result is not None:  # settled by invalid-call recovery: it must not run
        return pending.preresolved_result
    assert isinstance(call.arguments, dict)
    print(f"approve {call.name}({call.arguments})? [y / edit AMOUNT / abort / N] ", flush=True)
    answer = sys.stdin.readline().split()
    match answer:
        case ["y"]:
            return tool_result(call, TOOLS[call.name](call.arguments))
        case ["edit", amount]:
            return tool_result(call, TOOLS[call.name]({**call.arguments, "amount": int(amount)}))
        case ["abort"]:
            raise Abort
        case _:
            return tool_result(call, "denied by the reviewer", is_error=True)


def drive(run: AgentRun, checkpoint: Path, *, pause: bool) -> str | None:
    """Drives the run to its end and answers its output, or None when it stopped before."""
    while True:
        match run.next_step():
            case CallModel(prompt=prompt, history=history):
                outcome = run.model_response(ask_model([*history, prompt], list(TOOLS)))
                while isinstance(outcome, NeedsResolution):
                    outcome = run.resolve_invalid_tool_call(InvalidToolCallAction.fail())
            case CallTools():
                # Everything between these two lines may be another process, a request handler, or the next day.
                checkpoint.write_text(run.model_dump_json())
                if pause:
                    return None
                run = AgentRun.load(checkpoint.read_text())
                step = run.next_step()
                assert isinstance(step, CallTools), "a reloaded run asks for the same calls"
                run.tool_results([decide(pending) for pending in step.calls])
            case Done(result=result):
                return result.output


def main() -> None:
    """Starts a run, or goes on with the one in the file."""
    parser = argparse.ArgumentParser(description="Step a run by hand.")
    parser.add_argument("--pause", action="store_true", help="end once calls wait for a decision")
    parser.add_argument("checkpoint", type=Path, help="where the run is saved")
    options = parser.parse_args()
    if options.checkpoint.exists():
        run = AgentRun.load(options.checkpoint.read_text())
    else:
        run = AgentRun.new("Transfer $500 to account B-2.").max_turns(4)
    try:
        output = drive(run, options.checkpoint, pause=options.pause)
    except Abort:
        output = None
    if output is None:
        print(f"stopped; the run waits in {options.checkpoint}")
        return
    options.checkpoint.unlink()
    print(output)


if __name__ == "__main__":
    main()
