"""Approvals of changes: they carry the diff, are bound to what it starts from, and are not asked for in vain."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from house import House, ToldTool, call, house, killed_house

from sojourn.core.approvals import Preview
from sojourn.tools.files import FileTools

pytestmark = pytest.mark.anyio


async def waiting(h: House, agent_id: str = "a") -> dict[str, Any]:
    """The approval that the run has come to wait for."""
    await h.client.until("approvalRequested")
    return (await h.approvals(agent_id))[0]


async def until_done(h: House) -> list[tuple[str, str]]:
    await h.client.until("agentEnd")
    return await h.said()


def edit(old: str, new: str) -> tuple[Any, ...]:
    return (call("edit", path="f", old_text=old, new_text=new),)


async def test_an_approval_carries_the_change_and_what_was_approved_is_done(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\n")
    async with house(edit("two", "2"), "edited", extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(tmp_path))
        await h.start()
        approval = await waiting(h)
        assert approval["preview"]["path"] == "f"
        assert approval["preview"]["text"].endswith("@@ -1,2 +1,2 @@\n one\n-two\n+2\n")
        event = await h.client.until("approvalRequested")
        assert event["approval"] == approval
        assert (tmp_path / "f").read_text() == "one\ntwo\n"
        await h.decide(approval["approvalId"])
        assert ("toolResult", "Edited 'f'.") in await until_done(h)
    assert (tmp_path / "f").read_text() == "one\n2\n"


async def test_a_file_that_changed_while_somebody_decided_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\n")
    async with house(edit("two", "2"), "sorry", extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(tmp_path))
        await h.start()
        approval = await waiting(h)
        (tmp_path / "f").write_text("ONE\ntwo\n")
        await h.decide(approval["approvalId"])
        said = dict(await until_done(h))
        assert "has changed since" in said["toolResult"]
    assert (tmp_path / "f").read_text() == "ONE\ntwo\n"


async def test_the_bond_survives_a_crash_of_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\n")
    options: dict[str, Any] = {"path": tmp_path / "db", "tools": FileTools().tools()}
    async with killed_house(edit("two", "2"), **options) as h:
        await h.agent(cwd=str(tmp_path))
        await h.start()
        before = await waiting(h)
    (tmp_path / "f").write_text("one\ntwo\nthree\n")
    async with house("sorry", path=tmp_path / "db", extra_tools=FileTools().tools()) as h:
        await h.hub.attach(h.client, "a", after_seq=0, deltas=False)
        (after,) = await h.approvals()
        assert after["preview"] == before["preview"]
        await h.decide(after["approvalId"])
        resumed = asyncio.create_task(h.resume()) if (await h.state())["state"] == "interrupted" else None
        said = dict(await until_done(h))
        assert "has changed since" in said["toolResult"]
        if resumed is not None:
            await resumed
    assert (tmp_path / "f").read_text() == "one\ntwo\nthree\n"


async def test_a_change_that_cannot_be_made_fails_and_nobody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\n")
    async with house(edit("two", "2"), "I see", extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(tmp_path))
        await h.prompt()
        assert "old_text does not stand in 'f'" in dict(await h.said())["toolResult"]
        assert "approvalRequested" not in h.client.types()


async def test_two_edits_of_one_file_in_one_turn_are_each_shown_on_top_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\n")
    async with house((*edit("one", "1"), *edit("two", "2")), "both", extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(tmp_path))
        await h.start()
        await h.client.until("approvalRequested", count=2)
        first, second = await h.approvals()
        assert "-two\n+2\n" in second["preview"]["text"]
        assert " 1\n" in second["preview"]["text"]
        await h.decide(first["approvalId"])
        await h.client.until("toolExecEnd")
        await h.decide(second["approvalId"])
        await until_done(h)
    assert (tmp_path / "f").read_text() == "1\n2\n"


async def test_other_arguments_are_not_bound_to_what_was_shown(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\n")
    (tmp_path / "g").write_text("two\n")
    async with house(edit("one", "1"), "edited", extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(tmp_path))
        await h.start()
        approval = await waiting(h)
        other = {"path": "g", "old_text": "two", "new_text": "2"}
        await h.decide(approval["approvalId"], "edit", arguments=other)
        assert ("toolResult", "Edited 'g'.") in await until_done(h)
    assert ((tmp_path / "f").read_text(), (tmp_path / "g").read_text()) == ("one\n", "2\n")


async def test_of_two_equal_calls_in_one_turn_only_the_second_has_nothing_to_do(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\n")
    async with house((*edit("one", "1"), *edit("one", "1")), "done", extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(tmp_path))
        await h.start()
        approval = await waiting(h)
        assert "-one\n+1\n" in approval["preview"]["text"]
        await h.decide(approval["approvalId"])
        first, second = [text for role, text in await until_done(h) if role == "toolResult"]
        assert first == "Edited 'f'."
        assert "old_text does not stand in 'f'" in second
    assert (tmp_path / "f").read_text() == "1\n"


@pytest.mark.parametrize("decision", ["approve", "edit"])
async def test_a_link_that_leads_elsewhere_after_the_approval_is_not_written_through(
    tmp_path: Path, decision: str
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("one\n")
    (tmp_path / "link").symlink_to("a")
    arguments = {"path": "link/f", "old_text": "one", "new_text": "1"}
    async with house((call("edit", **arguments),), "sorry", extra_tools=FileTools().tools()) as h:
        await h.agent(cwd=str(tmp_path))
        await h.start()
        approval = await waiting(h)
        assert approval["preview"]["path"] == "a/f"
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to("b")
        more = {} if decision == "approve" else {"arguments": {**arguments, "new_text": "2"}}
        await h.decide(approval["approvalId"], decision, **more)
        said = dict(await until_done(h))
        assert "What was approved is a change of 'a/f', and this path leads to 'b/f' now" in said["toolResult"]
    assert [(tmp_path / name / "f").read_text() for name in ("a", "b")] == ["one\n", "one\n"]


async def test_changes_of_one_file_in_one_turn_are_made_in_the_order_of_the_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tuple(call("write", path=path, content=f"{n}") for n, path in enumerate(["f", "./f", "x/../f", "f"]))
    (tmp_path / "x").mkdir()
    async with house(calls, "done", extra_tools=FileTools().tools()) as h:
        read, overtaken, looking = h.store.read, asyncio.Event(), 0

        async def slow_at_first(work: Any) -> Any:
            nonlocal looking
            if (asyncio.current_task() or h).get_name().startswith("tool "):
                looking += 1
                if looking == 1:  # the others come first, if they can
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(overtaken.wait(), 0.3)
                elif looking == len(calls):
                    overtaken.set()
            return await read(work)

        monkeypatch.setattr(h.store, "read", slow_at_first)
        await h.agent(cwd=str(tmp_path), approvals={"write": "allow"})
        await h.prompt()
        assert looking >= len(calls)
        results = [text for role, text in await h.said() if role == "toolResult"]
        assert results == ["Made 'f': 1 line.", *["Wrote 'f': 1 line."] * 3]
    assert (tmp_path / "f").read_text() == "3"


class Slow(ToldTool):
    """A tool whose preview never comes, or has nothing to show."""

    def __init__(self, preview: Preview | None = None, *, hang: bool = False) -> None:
        super().__init__("slow", approval="ask")
        self.asked = asyncio.Event()
        self._preview, self._hang = preview, hang

    async def preview(self, args: dict[str, Any], ctx: Any) -> Preview | None:
        self.asked.set()
        if self._hang:
            await asyncio.Event().wait()
        with pytest.raises(RuntimeError, match="no inbox"):
            ctx.inbox()
        return self._preview


async def test_a_tool_may_have_nothing_to_show() -> None:
    async with house((call("slow"),), "done", tools=[Slow()]) as h:
        await h.agent()
        await h.start()
        approval = await waiting(h)
        assert "preview" not in approval
        await h.decide(approval["approvalId"])
        await until_done(h)


async def test_a_run_is_stopped_while_a_preview_is_worked_out() -> None:
    tool = Slow(hang=True)
    async with house((call("slow"),), tools=[tool]) as h, asyncio.timeout(8):
        await h.agent()
        await h.start()
        await tool.asked.wait()
        assert (await h.hub.stop(h.client.caller(None, ""), "a"))["stopped"]
        assert (await h.state())["state"] == "idle"
        assert await h.approvals() == []


async def test_a_preview_that_takes_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sojourn.agents.previews.WAIT_S", 0.05)
    async with house((call("slow"),), "done", tools=[Slow(hang=True)]) as h:
        await h.agent()
        await h.start()
        assert "preview" not in await waiting(h)
