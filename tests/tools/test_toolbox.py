"""The table of tools: what an agent may name, what broken packages cost, who closes what."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from sojourn.core.errors import UnknownTool
from sojourn.core.messages import ToolSpec
from sojourn.tools import ToolInfo, ToolOutput, tool
from sojourn.tools.table import GROUP, Toolbox

pytestmark = pytest.mark.anyio


@tool
async def first() -> str:
    """One."""
    return "1"


@tool
async def second() -> str:
    """Two."""
    return "2"


class ByHand:
    """A tool without the decorator."""

    def __init__(self, name: str = "by_hand") -> None:
        self.info = ToolInfo(ToolSpec(name=name), source="somewhere")
        self.closed = 0

    async def execute(self, args: dict[str, Any], ctx: Any) -> ToolOutput:
        return ToolOutput.of("x")

    async def aclose(self) -> None:
        self.closed += 1


class Fixed(ByHand):
    """A tool whose info cannot be changed."""

    @property
    def info(self) -> ToolInfo:  # type: ignore[override]
        return ToolInfo(ToolSpec(name="fixed"), source="itself")

    @info.setter
    def info(self, _: ToolInfo) -> None:
        if hasattr(self, "closed"):
            raise AttributeError("fixed")


def plain(count: int) -> str:
    return "x" * count


async def a_coroutine() -> str:
    return "x"


def boom() -> Any:
    raise RuntimeError("no licence")


@pytest.fixture
def package() -> Iterator[types.ModuleType]:
    module = types.ModuleType("some_tools")
    sys.modules["some_tools"] = module
    yield module
    del sys.modules["some_tools"]


def points(module: types.ModuleType, **values: Any) -> list[EntryPoint]:
    for name, value in values.items():
        setattr(module, name, value)
    return [EntryPoint(name, f"{module.__name__}:{name}", GROUP) for name in values]


def test_a_config_gets_the_tools_that_it_names() -> None:
    toolbox = Toolbox([first, second])
    assert toolbox.select(None) == {}
    assert toolbox.select(()) == {}
    assert toolbox.select(("second",)) == {"second": second}
    assert list(toolbox.select(("*",))) == ["first", "second"]
    assert list(toolbox.select(("second", "*"))) == ["first", "second"]
    assert len(toolbox) == 2
    assert "first" in toolbox


@pytest.mark.parametrize(("tools", "there"), [([first, second], "first, second"), ([], "none")])
@pytest.mark.parametrize("names", [("third",), ("*", "third")])
def test_an_unknown_tool_is_named_together_with_what_exists(
    tools: list[Any], there: str, names: tuple[str, ...]
) -> None:
    with pytest.raises(UnknownTool) as refused:
        Toolbox(tools).select(names)
    assert refused.value.message == f"There is no tool 'third'; there are: {there}."
    assert refused.value.data == {"kind": "unknownTool", "tools": ["third"]}


def test_the_first_of_two_with_one_name_stays_and_the_second_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    toolbox = Toolbox()
    one, two = ByHand("same"), ByHand("same")
    assert toolbox.add(one, source="builtin")
    assert not toolbox.add(two, source="package late")
    assert toolbox.select(("same",)) == {"same": one}
    (problem,) = toolbox.problems
    assert problem.source == "package late"
    assert "'same'" in problem.message
    assert "'builtin'" in problem.message
    assert problem.message in caplog.text


def test_a_tool_knows_where_it_comes_from_unless_it_will_not_be_told() -> None:
    toolbox = Toolbox()
    given, own, fixed = ByHand("a"), ByHand("b"), Fixed()
    toolbox.add(given, source="builtin")
    toolbox.add(own)
    toolbox.add(fixed, source="builtin")
    assert [one.info.source for one in toolbox] == ["builtin", "somewhere", "itself"]


def test_a_tool_can_be_taken_out_again() -> None:
    toolbox = Toolbox([first])
    assert toolbox.remove("first")
    assert not toolbox.remove("first")
    assert toolbox.select(("*",)) == {}


def test_entry_points_may_be_tools_lists_classes_or_functions_that_answer_them(package: types.ModuleType) -> None:
    toolbox = Toolbox()
    more = [ByHand("c"), (ByHand("d"),)]
    toolbox.load(points(package, one=first, many=more, kind=ByHand, made=lambda: [ByHand("e"), second]))
    assert list(toolbox.select(("*",))) == ["first", "c", "d", "by_hand", "e", "second"]
    assert {one.info.source for one in toolbox} == {"package some_tools"}
    assert toolbox.problems == []


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (plain, "TypeError"),
        (a_coroutine, "is not a tool"),
        (lambda: plain, "decorate it with @tool"),
        (boom, "RuntimeError: no licence"),
        (lambda: sys.exit(2), "SystemExit: 2"),
        (42, "42 is not a tool"),
        ([ByHand("good"), "bad"], "'bad' is not a tool"),
    ],
)
def test_a_broken_entry_point_costs_only_itself(broken: Any, said: str, package: types.ModuleType) -> None:
    toolbox = Toolbox()
    toolbox.load(points(package, broken=broken, fine=first))
    assert list(toolbox.select(("*",))) == ["first"]
    (problem,) = toolbox.problems
    assert problem.source == "package some_tools"
    assert "'broken'" in problem.message
    assert said in problem.message


def test_a_package_that_cannot_be_imported_costs_only_itself() -> None:
    toolbox = Toolbox()
    toolbox.load([EntryPoint("x", "no_such_package_at_all:tools", GROUP)])
    (problem,) = toolbox.problems
    assert problem.source == "package no_such_package_at_all"
    assert "ModuleNotFoundError" in problem.message


FILES = ("read", "write", "edit", "list", "glob", "grep")


async def test_the_standard_table_has_delegate_the_files_and_the_demo() -> None:
    toolbox = Toolbox.standard(packages=False)
    sources = {one.info.spec.name: one.info.source for one in toolbox}
    assert sources == {
        "delegate": "builtin",
        **dict.fromkeys(FILES, "builtin"),
        **{f"demo_{name}": "demo" for name in ("build", "deploy", "time", "sleep", "fail", "echo")},
    }
    assert list(Toolbox.standard(files=False, demo=False, packages=False).select(("*",))) == ["delegate"]
    assert tuple(toolbox.select(("files",))) == FILES
    assert list(toolbox.select(("demo_time", "files", "read"))) == ["demo_time", *FILES]
    await toolbox.aclose()


def test_the_standard_table_asks_installed_packages(monkeypatch: pytest.MonkeyPatch, package: types.ModuleType) -> None:
    found = points(package, one=second)
    monkeypatch.setattr("sojourn.tools.table.entry_points", lambda group: found if group == GROUP else [])
    assert "second" in Toolbox.standard()


async def test_closing_the_table_closes_everything_once_whatever_one_of_them_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stubborn(ByHand):
        async def aclose(self) -> None:
            raise RuntimeError("not now")

    one, owned = ByHand(), ByHand()

    @tool(close=owned.aclose)
    def made() -> None: ...

    toolbox = Toolbox([Stubborn("stubborn"), one, first, made])
    async with asyncio.timeout(5):
        await toolbox.aclose()
        await toolbox.aclose()
    assert (one.closed, owned.closed) == (1, 1)
    assert "not now" in caplog.text
