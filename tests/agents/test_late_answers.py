"""Answers that come after their agent is gone: an agent of the same name may owe a call of the same name."""

from __future__ import annotations

from typing import Any

import pytest
from house import ToldTool, call, house

from sojourn.core.agent import Caller
from sojourn.core.errors import CallNotFound
from sojourn.tools.base import ToolOutput

pytestmark = pytest.mark.anyio


async def test_a_late_answer_is_for_the_run_that_asked_and_for_no_other() -> None:
    handles: list[Any] = []

    def begins(_args: dict[str, Any], ctx: Any) -> ToolOutput:
        handles.append(ctx.inbox())
        return ToolOutput.pending("begun")

    async with house([call("build")], "wait", [call("build")], "wait", tools=[ToldTool("build", begins)]) as h:
        for _ in range(2):
            await h.agent()
            (pending,) = (await h.prompt()).pending_calls
            if len(handles) == 1:
                await h.hub.delete_agent(Caller(), "a", force=True)
        with pytest.raises(CallNotFound, match="of the run"):
            await handles[0].resolve(pending.call_id, "of the agent before")
        with pytest.raises(CallNotFound, match="of the run"):
            await handles[0].reject(pending.call_id, "of the agent before")
        await handles[1].resolve(pending.call_id, "its own")
        await h.resume()
        assert [text for role, text in await h.said() if role == "lateResult"] == ["its own"]
