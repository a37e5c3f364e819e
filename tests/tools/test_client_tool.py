"""Tools that a connected client runs: what becomes of answers, silence, refusals and lost connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tool_fakes import FakeHost

from sojourn.core.errors import AlreadyDecided, CallNotFound, ClientRefused, StorageError
from sojourn.core.messages import ImagePart, ToolSpec, text_of
from sojourn.tools.base import ToolContext, ToolInfo, ToolOutput
from sojourn.tools.client import ClientTool, OwnerAway

pytestmark = pytest.mark.anyio

INFO = ToolInfo(ToolSpec(name="lint", description="Lints."), source="client vim")


class Owner:
    """The other end: answers when it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.taken_back = 0
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def send(self, params: dict[str, Any]) -> Any:
        self.asked.append(params)
        try:
            return await self.answer
        except asyncio.CancelledError:
            self.taken_back += 1
            raise


def answering(answer: Any) -> Callable[[dict[str, Any]], Any]:
    async def send(_: dict[str, Any]) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return send


async def execute(send: Callable[[dict[str, Any]], Any], **more: Any) -> ToolOutput:
    async with asyncio.timeout(5):
        return await ClientTool(INFO, "vim", send, **more).execute({"path": "a.py"}, FakeHost().context("lint"))


async def test_the_owner_is_asked_with_everything_it_needs_to_know() -> None:
    owner = Owner()
    owner.answer.set_result({"content": "2 warnings"})
    output = await execute(owner.send)
    assert owner.asked == [
        {
            "agentId": "agent-1",
            "runId": "run-1",
            "callId": "msg-2-call-1",
            "name": "lint",
            "arguments": {"path": "a.py"},
        }
    ]
    assert (text_of(output.content), output.is_error, output.is_pending) == ("2 warnings", False, False)


@pytest.mark.parametrize(
    ("answer", "text", "is_error", "is_pending"),
    [
        ({"content": "ok", "isError": True}, "ok", True, False),
        ({"content": "wait", "pending": True}, "wait", False, True),
        ({"content": [], "pending": True}, "'vim' has started; its result will follow.", False, True),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", False, False),
        ({"content": "x", "somethingNew": 1}, "x", False, False),
        ({"content": "lone \ud800"}, "lone �", False, False),
    ],
)
async def test_an_answer_becomes_a_result(answer: Any, text: str, is_error: bool, is_pending: bool) -> None:
    output = await execute(answering(answer))
    assert (text_of(output.content), output.is_error, output.is_pending) == (text, is_error, is_pending)
    assert output.sent is (True if is_pending else None)


async def test_an_image_passes_as_it_is() -> None:
    output = await execute(answering({"content": [{"type": "image", "mimeType": "image/png", "data": "aGk="}]}))
    assert output.content == (ImagePart(mime_type="image/png", data="aGk="),)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (None, "the answer"),
        ("done", "the answer"),
        ([], "the answer"),
        ({"content": 3}, "content"),
        ({"content": [{"type": "video"}]}, "content"),
        ({"content": [{"type": "toolCall", "id": "1", "name": "x", "arguments": {}}]}, "content"),
        ({"content": "x", "isError": "perhaps"}, "isError"),
        ({"content": "x", "isError": True, "pending": True}, "either an error or pending"),
        ({"content": [{"type": "image", "mimeType": "a/b", "data": float("nan")}]}, "finite"),
        ({"content": "x", "is_error": True, "isError": []}, "isError"),
    ],
)
async def test_an_answer_of_another_form_is_an_error_that_says_so(answer: Any, named: str) -> None:
    output = await execute(answering(answer))
    assert output.is_error
    assert "not a tool result" in text_of(output.content)
    assert named in text_of(output.content)


async def test_a_refusal_is_an_error_in_the_clients_words() -> None:
    output = await execute(answering(ClientRefused(-32601, "I run no tools.")))
    assert output.is_error
    assert text_of(output.content) == "'vim' refused the call: I run no tools. (-32601)."


async def test_an_owner_that_is_away_leaves_the_call_pending_and_unsent() -> None:
    output = await execute(answering(OwnerAway()))
    assert output.is_pending
    assert output.sent is False
    assert "will be sent when it returns" in text_of(output.content)


@pytest.mark.parametrize(
    "lost",
    [
        ConnectionResetError(),
        BrokenPipeError(),
        EOFError(),
        anyio.ClosedResourceError(),
        anyio.BrokenResourceError(),
        anyio.EndOfStream(),
        asyncio.CancelledError(),
    ],
    ids=lambda lost: type(lost).__name__,
)
async def test_an_owner_that_leaves_in_the_middle_leaves_the_call_pending_and_sent(lost: BaseException) -> None:
    output = await execute(answering(lost))
    assert output.is_pending
    assert output.sent is True
    assert "may have taken effect" in text_of(output.content)


async def test_a_silent_owner_leaves_the_call_pending_and_its_late_answer_is_handed_over() -> None:
    owner, late = Owner(), asyncio.get_running_loop().create_future()

    async def on_late(ctx: ToolContext, output: ToolOutput) -> None:
        late.set_result((ctx.agent_id, ctx.call_id, text_of(output.content), output.is_error))

    output = await execute(owner.send, wait_s=0.01, on_late=on_late)
    assert output.is_pending
    assert output.sent is True
    owner.answer.set_result({"content": "at last", "isError": True})
    async with asyncio.timeout(5):
        assert await late == ("agent-1", "msg-2-call-1", "at last", True)
    assert len(owner.asked) == 1


@pytest.mark.parametrize(
    ("answer", "items"),
    [
        ({"content": "ok"}, [("resolve", "msg-2-call-1", "ok")]),
        ({"content": "bad", "isError": True}, [("reject", "msg-2-call-1", "bad")]),
        ({"content": [], "isError": True}, [("reject", "msg-2-call-1", "The tool failed.")]),
        ({"content": "still", "pending": True}, []),
    ],
)
async def test_without_a_taker_a_late_answer_goes_through_the_inbox(answer: Any, items: list[Any]) -> None:
    owner, host = Owner(), FakeHost()
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Any) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    tool = ClientTool(INFO, "vim", owner.send, wait_s=0.01, spawn=spawn)
    async with asyncio.timeout(5):
        assert (await tool.execute({}, host.context("lint"))).is_pending
        owner.answer.set_result(answer)
        await asyncio.gather(*tasks)
    assert host.inbox.items == items


@pytest.mark.parametrize(
    ("refuse", "logged"),
    [
        (AlreadyDecided("Somebody was first."), "was dropped"),
        (CallNotFound("There is none."), "was dropped"),
        (StorageError("The disk is full."), "could not be delivered"),
    ],
)
async def test_a_late_answer_that_nobody_can_take_is_logged_and_harms_nothing(
    refuse: Exception, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner, host = Owner(), FakeHost()
    host.inbox.refuse = refuse
    tool = ClientTool(INFO, "vim", owner.send, wait_s=0.01)
    with caplog.at_level(logging.INFO):
        await tool.execute({}, host.context("lint"))
        owner.answer.set_result({"content": "late"})
        async with asyncio.timeout(5):
            while logged not in caplog.text:
                await asyncio.sleep(0)


async def test_stopping_takes_the_request_back() -> None:
    owner = Owner()
    call = asyncio.create_task(ClientTool(INFO, "vim", owner.send).execute({}, FakeHost().context("lint")))
    async with asyncio.timeout(5):
        while not owner.asked:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert owner.taken_back == 1


async def test_closing_the_tool_gives_up_the_late_answers() -> None:
    owner, host = Owner(), FakeHost()
    tool = ClientTool(INFO, "vim", owner.send, wait_s=0)
    async with asyncio.timeout(5):
        await tool.execute({}, host.context("lint"))
        while not owner.asked:
            await asyncio.sleep(0)
        await tool.aclose()
        await tool.aclose()
        while not owner.taken_back:
            await asyncio.sleep(0)
    assert host.inbox.items == []
