"""`approvals`, `approve`, `rules`: calls that wait for somebody's decision, and what need not ask any more."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Annotated, Any, Optional

import typer

from ._app import AgentArgument, Exit, Failure, JsonFlag, Options, client, command, say
from ._named import agent_named, approval_named
from ._show import ago, arguments, decided, json_line, table


def register(app: typer.Typer) -> None:
    """Enters the commands."""
    command(app)(approvals)
    command(app)(approve)
    command(app)(rules)


async def approvals(
    options: Options,
    agent: Annotated[
        Optional[str],  # noqa: UP045 - typer reads it at run time
        typer.Argument(metavar="AGENT", help="Of this agent and its children only."),
    ] = None,
    *,
    json: JsonFlag = False,
) -> None:
    """The open approvals, oldest first. Those of all agents and their children, unless one is named."""
    async with client(options) as daemon:
        named = {} if agent is None else {"agentId": await agent_named(daemon, agent)}
        found = (await daemon.call("approval/list", named))["approvals"]
    if json:
        for approval in found:
            json_line(approval)
        return
    if not found:
        say("Nothing waits for a decision.")
        return
    table(("APPROVAL", "AGENT", "TOOL", "ARGUMENTS", "SINCE"), [_row(approval) for approval in found])


async def approve(
    options: Options,
    approval: Annotated[str, typer.Argument(metavar="ID", help="The approval's id, or the beginning of it.")],
    *,
    deny: Annotated[bool, typer.Option("--deny", help="Deny instead; the model is told.")] = False,
    reason: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--reason", metavar="TEXT", help="Why, for the record and, when denied, for the model."),
    ] = None,
    edit: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--edit", metavar="JSON", help="Approve with these arguments instead."),
    ] = None,
    answer: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--answer", metavar="TEXT", help="Run nothing; this is the result."),
    ] = None,
    abort: Annotated[bool, typer.Option("--abort", help="Stop the run.")] = False,
    scope: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--scope", metavar="once|run|agent", help="How far an approval reaches."),
    ] = None,
    pattern: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--pattern", metavar="PATTERN", help="What a lasting approval covers, e.g. 'git status *'."),
    ] = None,
    json: JsonFlag = False,
) -> int | None:
    """Decides an approval. It approves, unless an option says otherwise. The first decision wins."""
    if pattern is not None and scope not in ("run", "agent"):
        raise typer.BadParameter("--pattern is about a lasting approval: add --scope run or --scope agent.")
    if scope is not None and (deny or abort or answer is not None):
        raise typer.BadParameter("--scope is how far an approval reaches; leave it out where nothing is approved.")
    decision = _decision(deny=deny, edit=edit, answer=answer, abort=abort)
    extra = {"reason": reason, "scope": scope, "pattern": pattern}
    params = {**decision, **{key: value for key, value in extra.items() if value is not None}}
    async with client(options) as daemon:
        params["approvalId"] = await approval_named(daemon, approval)
        made = (await daemon.call("approval/decide", params))["approval"]
    if json:
        json_line(made)
    else:
        say(f"{made['toolName']}: {decided(made['decision'])}.")
    return Exit.DONE


async def rules(
    options: Options,
    agent: AgentArgument,
    *,
    revoke: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--revoke", metavar="RULE", help="Take this rule back."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """The approval rules of an agent.

    Lasting decisions are among them; --revoke takes one back.
    """
    async with client(options) as daemon:
        agent = await agent_named(daemon, agent)
        if revoke is not None:
            await daemon.call("approval/revoke", {"agentId": agent, "rule": revoke})
        found = (await daemon.call("approval/rules", {"agentId": agent}))["rules"]
    if json:
        for rule in found:
            json_line(rule)
    elif not found:
        say(f"{agent} has no approval rules; its tools' own hold.")
    else:
        table(("RULE", "POLICY", "FROM"), [(rule["rule"], rule["policy"], rule["source"]) for rule in found])


def _decision(*, deny: bool, edit: str | None, answer: str | None, abort: bool) -> dict[str, Any]:
    given = {"--deny": deny, "--edit": edit is not None, "--answer": answer is not None, "--abort": abort}
    chosen = [name for name, wanted in given.items() if wanted]
    if len(chosen) > 1:
        raise typer.BadParameter(f"{chosen[0]} and {chosen[1]} are two decisions; one is needed.")
    if edit is not None:
        return {"decision": "edit", "arguments": _object(edit)}
    if answer is not None:
        return {"decision": "answer", "content": answer}
    return {"decision": "deny" if deny else "abort" if abort else "approve"}


def _object(text: str) -> dict[str, Any]:
    try:
        value = jsonlib.loads(text)
    except ValueError as error:
        raise Failure(f"--edit is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise Failure("--edit needs a JSON object: the arguments by name.")
    return value


def _row(approval: dict[str, Any]) -> tuple[str, ...]:
    return (
        approval["approvalId"],
        approval["agentId"],
        approval["toolName"],
        preview["path"] if (preview := approval.get("preview")) else arguments(approval["args"]),
        ago(approval["since"]) if sys.stdout.isatty() else approval["since"],
    )
