"""docs/tools.md and examples/tool_package say what is so: their code runs, and does what they promise."""

from __future__ import annotations

import asyncio
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from tool_fakes import FakeHost

from sojourn.core.agent import AgentConfig
from sojourn.core.messages import parts, text_of
from sojourn.tools import ToolOutput
from sojourn.tools.base import ChildReply
from sojourn.tools.table import GROUP, Toolbox

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/tools.md").read_text()
PACKAGE = ROOT / "examples/tool_package"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The page's Python, run from top to bottom as one module."""
    names: dict[str, Any] = {"__name__": "docs_tools"}
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)):
        exec(compile(block, f"docs/tools.md block {number}", "exec"), names)
    return names


@pytest.fixture
def package() -> Iterator[Toolbox]:
    """The example's tools as the daemon gets them: by the entry points of its pyproject."""
    table = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    sys.path.insert(0, str(PACKAGE / "src"))
    toolbox = Toolbox()
    toolbox.load([EntryPoint(name, value, GROUP) for name, value in table.items()])
    yield toolbox
    sys.path.remove(str(PACKAGE / "src"))
    sys.modules.pop("weather_station", None)


async def run(one: Any, args: dict[str, Any], host: FakeHost | None = None) -> ToolOutput:
    async with asyncio.timeout(5):
        return await one.execute(args, (host or FakeHost()).context(one.info.spec.name))


async def delivered(host: FakeHost) -> list[tuple[str, ...]]:
    async with asyncio.timeout(5):
        while not host.inbox.items:
            await asyncio.sleep(0.001)
    return host.inbox.items


async def test_the_first_example_counts_refuses_and_can_be_called(page: dict[str, Any]) -> None:
    word_count = page["word_count"]
    assert text_of((await run(word_count, {"text": "a bb", "at_least": 2})).content) == '{"words":1}'
    refused = await run(word_count, {"text": "a bb", "at_least": 0})
    assert refused.is_error
    assert "'at_least'" in text_of(refused.content)
    assert word_count("a b") == {"words": 2}
    assert (
        word_count.info.spec.input_schema["properties"]["at_least"]["description"] == "Count only words of this length."
    )


async def test_the_report_is_pending_and_its_result_follows(page: dict[str, Any]) -> None:
    host = FakeHost()
    output = await run(page["nightly_report"], {"day": "monday"}, host)
    assert output.is_pending
    assert await delivered(host) == [("resolve", "msg-2-call-1", "Report written to out/monday.csv")]
    await run(page["nightly_report"], {"day": "tuesday"}, host)
    await page["nightly_report"].aclose()
    assert not page["running"]


async def test_the_researchers_are_children(page: dict[str, Any]) -> None:
    host = FakeHost()
    assert text_of((await run(page["research"], {"question": "why"}, host)).content) == "did: why"
    assert (await run(page["research_meanwhile"], {"question": "how"}, host)).is_pending
    assert [(how, prompt) for how, _, prompt in host.children] == [("run", "why"), ("start", "how")]


async def test_the_loop_in_a_thread_stops_when_asked_and_tells_its_progress(page: dict[str, Any]) -> None:
    host = FakeHost()
    whole = await run(page["checksum"], {"rounds": 3000}, host)
    assert [fraction for _, fraction in host.progress] == [0.0, 1 / 3, 2 / 3]
    assert text_of((await run(page["checksum"], {"rounds": 3000}, FakeHost(stop=True))).content) == "0"
    assert text_of(whole.content) != "0"


async def test_the_repeatable_tool_and_the_one_by_hand_are_tools(page: dict[str, Any]) -> None:
    toolbox = Toolbox([page["put_record"], page["Shout"]()])
    assert toolbox.select(("put_record",))["put_record"].info.on_interrupt == "rerun"
    await run(page["put_record"], {"key": "k", "value": "v"})
    assert page["records"] == {"k": {"value": "v", "request": "msg-2-call-1"}}
    assert text_of((await run(toolbox.select(("shout",))["shout"], {"text": "hey"})).content) == "HEY"


def test_every_field_of_the_context_is_on_the_page() -> None:
    section = PAGE.split("## What a tool gets")[1].split("## ")[0]
    for name in (
        "agent_id",
        "run_id",
        "call_id",
        "cwd",
        "progress",
        "stop_requested",
        "inbox",
        "run_child",
        "start_child",
    ):
        assert f"`{name}" in section


def test_the_pages_entry_point_is_the_group_that_is_read() -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert list(tomllib.loads(block)["project"]["entry-points"]) == [GROUP]


async def test_the_example_package_offers_a_tool_a_pending_one_and_a_child(package: Toolbox) -> None:
    assert package.problems == []
    tools = package.select(("temperature", "measure", "compare"))
    assert text_of((await run(tools["temperature"], {"city": "Oslo"})).content) == '{"celsius":7.5}'

    host = FakeHost()
    assert (await run(tools["measure"], {"city": "Oslo", "seconds": 0.001}, host)).is_pending
    assert await delivered(host) == [("resolve", "msg-2-call-1", "Mean of 0.001 s in Oslo: 7.5 °C.")]
    host = FakeHost()
    await run(tools["measure"], {"city": "Atlantis", "seconds": 0.001}, host)
    assert await delivered(host) == [("reject", "msg-2-call-1", "There is no station in Atlantis.")]

    async def child(_: str) -> ChildReply:
        return ChildReply("child-1", parts("Nairobi."), "Nairobi.")

    host = FakeHost(child=child)
    assert text_of((await run(tools["compare"], {"cities": ["Oslo", "Nairobi"]}, host)).content) == "Nairobi."
    ((how, config, prompt),) = host.children
    assert (how, prompt) == ("run", "Which of these is the warmest: Oslo, Nairobi?")
    assert isinstance(config, AgentConfig)
    assert set(config.tools or ()) <= set(tools)


async def test_the_example_package_leaves_no_task_behind(package: Toolbox) -> None:
    before = asyncio.all_tasks()
    await run(package.select(("measure",))["measure"], {"city": "Oslo", "seconds": 3600})
    assert asyncio.all_tasks() != before
    await package.aclose()
    assert asyncio.all_tasks() == before
