"""The guide to hooks and the example hook do what they say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from house import ToldTool, call, house
from shared_inputs import ROOT

from sojourn.config import HooksConfig
from sojourn.tools.hooks import GROUP, POINTS, Hook, load

pytestmark = pytest.mark.anyio

PAGE = (ROOT / "docs/hooks.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples/hooks/guard.py"


def guide(tmp_path: Path) -> Hook:
    found = re.search(r"```python\n(from.*?)```", PAGE, re.DOTALL)
    assert found
    (tmp_path / "guide.py").write_text(found[1])
    return load(packages=False, files=[tmp_path / "guide.py"])[0]


def deploy(**options: Any) -> ToldTool:
    return ToldTool("deploy", lambda args, _ctx: f"deployed with sk-{'a' * 20} to {args['target']}", **options)


async def test_the_hook_of_the_guide_vetoes_replaces_and_stops(tmp_path: Path) -> None:
    tool = deploy(approval="ask")
    denied = [call("deploy", target="test", version="latest")]
    replies = ([call("deploy", target="prod")], denied, denied, denied, "never")
    async with house(*replies, tools=[tool], hooks=[guide(tmp_path)]) as h:
        h.client.answers_approvals = True
        h.client.answers["approval/request"] = lambda _p: {"decision": "deny"}
        await h.agent()
        outcome = await h.prompt()
        assert outcome.reason == "failed"
        assert "Three denials are enough." in outcome.error.message  # type: ignore[union-attr]
        texts = [m["content"][0]["text"] for m in await h.messages() if m["role"] == "toolResult"]
        assert texts[0] == "Not executed: Production is off limits. Deploy to staging."
        assert len(h.client.asked) == 3
        assert h.client.asked[0][1]["approval"]["args"] == {"target": "test", "version": "stable"}
        assert tool.ran == []


@pytest.mark.parametrize(("weekday", "target", "runs"), [(4, "prod", True), (5, "prod", False), (6, "test", True)])
async def test_the_example_guards_the_weekend_and_takes_keys_out(
    weekday: int, target: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = load(packages=False, files=[EXAMPLE])
    monkeypatch.setitem(example.functions["before_tool"].__globals__, "_weekday", lambda: weekday)
    tool = deploy()
    async with house([call("deploy", target=target)], "done", tools=[tool], hooks=[example]) as h:
        await h.agent()
        assert (await h.prompt()).output == "done"
        (result,) = [m["content"][0]["text"] for m in await h.messages() if m["role"] == "toolResult"]
        assert (result == f"deployed with [key] to {target}") is runs
        assert bool(tool.ran) is runs


async def test_the_example_counts_calls_and_asks_for_an_end() -> None:
    (example,) = load(packages=False, files=[EXAMPLE])
    assert isinstance(example.functions["before_tool"].__globals__["_weekday"](), int)
    calls = [call("deploy", target="test") for _ in range(20)]
    async with house(calls, "done", tools=[deploy()], hooks=[example]) as h:
        await h.agent()
        await h.prompt()
        assert "Come to an end" in str(h.model.requests[-1].messages[-1])
        assert "Come to an end" not in str(h.model.requests[0].messages)


def test_the_guide_names_every_function_key_and_group() -> None:
    assert re.findall(r"^\| `(\w+)\(ctx", PAGE, re.MULTILINE) == list(POINTS)
    tables = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
    HooksConfig.model_validate(tables[0]["hooks"])
    assert list(tables[1]["project"]["entry-points"]) == [GROUP]
