"""What a server says of its tools, judged: a tool whose schema cannot be used costs only that tool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sojourn.core.errors import InvalidParams
from sojourn.core.messages import ToolSpec
from sojourn.core.schemas import SchemaFault, check
from sojourn.core.values import clean

from .naming import tool_name

MAX_TOOLS = 1_000
MAX_DESCRIPTION = 20_000


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool of a server: `raw` is its own name. `as_task`: the server runs it as a task when it is asked to."""

    raw: str
    spec: ToolSpec
    as_task: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of a server by the names that they have here, and what is wrong with others, a sentence each."""

    tools: dict[str, ListedTool]
    problems: tuple[str, ...] = ()


def read_listing(server: str, entries: Iterable[Any], *, tasks: bool) -> Listing:
    """The listing out of the entries of `tools/list`. `tasks`: whether the server runs calls as tasks at all."""
    tools: dict[str, ListedTool] = {}
    problems: list[str] = []
    for entry in entries:
        try:
            tool = _read(server, clean(entry), tasks=tasks)
        except (ValueError, RecursionError, InvalidParams) as error:
            name = entry.get("name") if isinstance(entry, dict) else None
            reason = "its schema is nested too deep" if isinstance(error, RecursionError) else str(error)
            which = f"Its tool {name[:100]!r}" if isinstance(name, str) else "One of its tools"
            problems.append(f"{which} is left out: {reason}.")
            continue
        if tool.spec.name in tools:
            problems.append(f"Its tool {tool.raw!r} is left out: it was listed twice.")
        elif len(tools) >= MAX_TOOLS:
            problems.append(f"It lists more than {MAX_TOOLS} tools; those behind {tool.raw!r} are left out.")
            break
        else:
            tools[tool.spec.name] = tool
    return Listing(tools, tuple(problems))


def _read(server: str, entry: Any, *, tasks: bool) -> ListedTool:
    if not isinstance(entry, dict) or not isinstance(raw := entry.get("name"), str) or not raw:
        raise ValueError("it has no name")
    if len(raw) > 500:
        raise ValueError("its name has more than 500 characters")
    description = entry.get("description") or entry.get("title") or ""
    if not isinstance(description, str):
        raise ValueError("its description is no text")
    if len(description) > MAX_DESCRIPTION:
        description = description[:MAX_DESCRIPTION] + " […]"
    execution = entry.get("execution")
    support = execution.get("taskSupport") if isinstance(execution, dict) else None
    if support == "required" and not tasks:
        raise ValueError("it runs as a task only, and the server says that it has no tasks")
    spec = ToolSpec(name=tool_name(server, raw), description=description, input_schema=_schema(entry))
    return ListedTool(raw, spec, tasks and support in ("optional", "required"))


def _schema(entry: dict[str, Any]) -> dict[str, Any]:
    schema = entry.get("inputSchema")
    if not isinstance(schema, dict):
        raise ValueError("its inputSchema is no object")
    schema = {"type": "object", **schema}
    if schema["type"] != "object":
        raise ValueError("its inputSchema does not have the type 'object'")
    try:
        check(schema)
    except SchemaFault as error:
        place = error.place or "its top"
        raise ValueError(f"its inputSchema is no JSON Schema (at {place}: {error.message[:300]})") from None
    return schema
