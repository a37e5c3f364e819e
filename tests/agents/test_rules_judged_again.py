"""What a rule lets through is judged once more when it runs, and a file tool goes where its path led by then."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from house import House, ToldTool, call, house
from tool_fakes import FakeHost

from sojourn.agents.runtime import HubLimits
from sojourn.core.approvals import Policy
from sojourn.core.messages import text_of
from sojourn.tools._places import FileRefused
from sojourn.tools.files import FileTools

pytestmark = pytest.mark.anyio

REFUSED = "Not executed: no rule lets this call through any more"
DOCS: Mapping[str, Policy] = {"read": "ask", "read: docs/*": "allow", "write": "ask", "write: docs/*": "allow"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("docs", "private"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(f"what is {name}\n")
    (tmp_path / "docs/link").symlink_to("f")
    return tmp_path


def point(link: Path, target: str) -> None:
    """Has a link lead elsewhere."""
    link.unlink()
    link.symlink_to(target)


async def results(h: House) -> list[str]:
    return [text for role, text in await h.said() if role == "toolResult"]


async def after_the_gate(root: Path, then: Any, approvals: Mapping[str, Policy]) -> list[str]:
    """The results of a round of two calls: the first points the link elsewhere, when the second has passed its gate."""
    first = ToldTool("turn", lambda _args, _ctx: point(root / "docs/link", "../private/f"))
    one_by_one = HubLimits(tool_concurrency=1)
    more = FileTools().tools()
    async with house([call("turn"), then], "done", tools=[first], extra_tools=more, limits=one_by_one) as h:
        await h.agent(cwd=str(root), approvals=approvals)
        await h.prompt()
        return await results(h)


@pytest.mark.parametrize(
    "approvals", [DOCS, {"read": "allow", "read: private/*": "deny", "write": "allow", "write: private/*": "deny"}]
)
@pytest.mark.parametrize("then", [call("read", path="docs/link"), call("write", path="docs/link", content="mine")])
async def test_a_link_pointed_elsewhere_after_the_gate_is_not_followed(
    root: Path, then: Any, approvals: Mapping[str, Policy]
) -> None:
    (_, result) = await after_the_gate(root, then, approvals)
    assert result.startswith(REFUSED)
    assert (root / "private/f").read_text() == "what is private\n"


async def test_a_link_that_stays_where_rules_allow_is_followed(root: Path) -> None:
    async with house([call("read", path="docs/link")], "done", extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(root), approvals=DOCS)
        await h.prompt()
        assert await results(h) == ["what is docs\n"]


async def test_what_somebody_approved_runs_though_rules_ask_for_it(root: Path) -> None:
    async with house([call("read", path="private/f")], "done", extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(root), approvals=DOCS)
        await h.start()
        await h.client.until("approvalRequested")
        await h.decide((await h.approvals())[0]["approvalId"])
        await h.client.until("agentEnd")
        assert await results(h) == ["what is private\n"]


ASKED: list[Mapping[str, Policy]] = [{"*": "ask"}, {"*": "ask", "read: x*": "allow"}]
"""With names alone, and with a pattern that looks into each call."""
MY_PATH: Mapping[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}


async def once_approved(h: House, *, meanwhile: Any, **decision: Any) -> list[str]:
    """The results of a run whose call is approved once `meanwhile` has happened."""
    await h.start()
    await h.client.until("approvalRequested")
    (asked,) = await h.approvals()
    meanwhile(asked)
    await h.decide(asked["approvalId"], **decision)
    await h.client.until("agentEnd")
    return await results(h)


@pytest.mark.parametrize("approvals", ASKED)
@pytest.mark.parametrize(
    ("then", "led"),
    [
        (call("read", path="docs/link"), "docs/f"),
        (call("grep", pattern="what", path="here"), "docs"),
        (call("list", path="here"), "docs"),
        (call("mine", path="docs/link"), "docs/f"),
    ],
)
async def test_an_approved_path_that_leads_elsewhere_meanwhile_is_not_followed(
    root: Path, approvals: Mapping[str, Policy], then: Any, led: str
) -> None:
    ran: list[Any] = []
    mine = ToldTool("mine", lambda args, _ctx: ran.append(args), schema=dict(MY_PATH))
    (root / "here").symlink_to("docs")

    def turn(asked: dict[str, Any]) -> None:
        assert asked["leadsTo"] == str((root / led).resolve())
        point(root / "docs/link", "../private/f")
        point(root / "here", "private")

    async with house([then], "done", "again", tools=[mine], extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(root), approvals=approvals)
        (result,) = await once_approved(h, meanwhile=turn)
        assert result.startswith("Not executed: its path leads elsewhere than when this call was approved. It led to ")
        assert result.endswith(f"and leads to {str((root / led.replace('docs', 'private')).resolve())!r} now.")
        assert ran == []


@pytest.mark.parametrize("approvals", ASKED)
async def test_an_approved_path_is_followed_where_it_led_and_the_tool_is_told(
    root: Path, approvals: Mapping[str, Policy]
) -> None:
    told: list[str | None] = []
    mine = ToldTool("mine", lambda _args, ctx: told.append(ctx.led_to), schema=dict(MY_PATH))
    async with house([call("mine", path="docs/link")], "done", tools=[mine]) as h:
        await h.agent(cwd=str(root), approvals=approvals)
        await once_approved(h, meanwhile=lambda _asked: None)
    assert told == [str((root / "docs/f").resolve())]


@pytest.mark.parametrize("approvals", ASKED)
async def test_a_person_who_names_another_path_means_where_that_leads(
    root: Path, approvals: Mapping[str, Policy]
) -> None:
    async with house([call("read", path="docs/link")], "done", extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(root), approvals=approvals)
        turned = {"decision": "edit", "arguments": {"path": "private/f"}}
        said = await once_approved(h, meanwhile=lambda _asked: point(root / "docs/link", "nowhere"), **turned)
        assert said == ["what is private\n"]


@pytest.mark.parametrize("approvals", ASKED)
async def test_a_path_that_is_no_path_is_asked_for_and_fails_in_its_tool(
    root: Path, approvals: Mapping[str, Policy]
) -> None:
    for path in ("a\0b", "\ud800", "y/" * 3000, "../../../../etc/passwd", "~root/x"):
        async with house([call("read", path=path)], "done", extra_tools=FileTools().tools()) as h:
            await h.agent(cwd=str(root), approvals=approvals)
            (said,) = await once_approved(h, meanwhile=lambda _asked: None)
            assert "what is" not in said


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("read", {}),
        ("write", {"content": "mine"}),
        ("edit", {"old_text": "what", "new_text": "that"}),
        ("grep", {"pattern": "what"}),
    ],
)
async def test_a_file_tool_goes_where_the_path_led_when_it_was_judged(
    root: Path, name: str, args: dict[str, Any]
) -> None:
    one = next(one for one in FileTools().tools() if one.info.spec.name == name)
    judged = FakeHost().context(name, cwd=str(root), led_to=str((root / "docs/f").resolve()))
    async with asyncio.timeout(10):
        point(root / "docs/link", "../private/f")
        with pytest.raises(FileRefused, match="leads elsewhere than when this call was let through"):
            await one.execute({"path": "docs/link", **args}, judged)
        assert (root / "private/f").read_text() == "what is private\n"
        point(root / "docs/link", "../docs/f")
        output = await one.execute({"path": "docs/link", **args}, judged)
        assert not output.is_error, text_of(output.content)


@pytest.mark.parametrize(("name", "args"), [("list", {}), ("glob", {"pattern": "*"})])
async def test_a_directory_is_looked_into_where_it_was_judged(root: Path, name: str, args: dict[str, Any]) -> None:
    one = next(one for one in FileTools().tools() if one.info.spec.name == name)
    (root / "here").symlink_to("private")
    judged = FakeHost().context(name, cwd=str(root), led_to=str((root / "docs").resolve()))
    async with asyncio.timeout(10):
        with pytest.raises(FileRefused, match="leads elsewhere"):
            await one.execute({"path": "here", **args}, judged)
        point(root / "here", "docs")
        assert "f" in text_of((await one.execute({"path": "here", **args}, judged)).content)


async def test_a_tool_is_told_where_its_path_led_only_when_a_rule_has_looked(root: Path) -> None:
    told: list[str | None] = []
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    tool = ToldTool("open", lambda _args, ctx: told.append(ctx.led_to), schema=schema)
    for approvals in ({}, {"open": "allow"}, {"open: docs/*": "allow"}, {"open: docs/*": "allow", "open": "deny"}):
        async with house([call("open", path="docs/../docs/link")], "done", tools=[tool]) as h:
            await h.agent(cwd=str(root), approvals=approvals)
            await h.prompt()
    real = str((root / "docs/f").resolve())
    assert told == [None, None, real, real]
