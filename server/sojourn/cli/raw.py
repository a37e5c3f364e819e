"""`call`, `protocol`: the wire for scripts and the curious."""

from __future__ import annotations

import difflib
import json as jsonlib
import sys
from typing import Annotated, Any, Optional

import typer

from sojourn_client import RpcError
from sojourn_client.client import Client

from ._app import Exit, Failure, JsonFlag, Options, client, command, say
from ._show import json_line

_METHOD_NOT_FOUND = -32601


def register(app: typer.Typer) -> None:
    """Enters the commands."""
    command(app)(call)
    command(app)(protocol)


async def call(
    options: Options,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="For example agent/list.")],
    params: Annotated[
        Optional[str],  # noqa: UP045 - typer reads it at run time
        typer.Argument(metavar="JSON", help="The params, an object; `-` reads them from stdin."),
    ] = None,
    *,
    json: JsonFlag = False,
) -> int | None:
    """Calls any method and prints its result. An error answer is printed as JSON with --json, and exits with 1."""
    body = _params(sys.stdin.read() if params == "-" else params)
    async with client(options) as daemon:
        try:
            result = await daemon.call(method, body)
        except RpcError as error:
            if not json:
                say(f"{error.message} ({error.code}){_meant(method, daemon, error)}")
            else:
                json_line({"error": {"code": error.code, "message": error.message, "data": error.data}})
            return Exit.ERROR
    if json or not sys.stdout.isatty():
        json_line(result)
    else:
        print(jsonlib.dumps(result, indent=2, ensure_ascii=False))
    return None


def protocol(options: Options, *, json: JsonFlag = False) -> None:
    """The protocol's reference, made from the code. With --json it is a JSON Schema of everything."""
    del options
    from sojourn.methods._docs import protocol_schema
    from sojourn.methods._markdown import protocol_markdown

    if json:
        json_line(protocol_schema())
    else:
        print(protocol_markdown())


def _meant(method: str, daemon: Client, error: RpcError) -> str:
    if error.code != _METHOD_NOT_FOUND:
        return ""
    known = daemon.info["capabilities"]["experimental"]["sojourn"].get("methods", [])
    close = difflib.get_close_matches(method, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else " `sojourn protocol` lists the methods."


def _params(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = jsonlib.loads(text)
    except ValueError as error:
        raise Failure(f"The params are not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise Failure("The params must be a JSON object: the parameters by name.")
    return value
