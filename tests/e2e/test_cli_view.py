"""What a person sees of an agent's events."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from sojourn.cli._show import one_line, printable
from sojourn.cli._view import View
from sojourn.core.approvals import DecisionKind

APPROVAL = {"approvalId": "p", "callId": "c", "toolName": "rm", "args": {"path": "/"}}
DECIDED = {**APPROVAL, "decision": {"decision": "deny", "by": "me", "reason": "no"}}


def text(words: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": words}]


def delta(words: str, kind: str = "text") -> dict[str, Any]:
    return {"type": "messageDelta", "messageId": "m", "part": 0, "kind": kind, "offset": 0, "text": words}


def said(words: str, role: str = "assistant") -> dict[str, Any]:
    return {"type": "messageEnd", "message": {"messageId": "m", "role": role, "content": text(words)}}


def refused(words: str, **more: Any) -> dict[str, Any]:
    message = {"role": "toolResult", "callId": "c", "toolName": "t", "content": text(words), "isError": True, **more}
    return {"type": "messageEnd", "message": message}


def nested(event: dict[str, Any]) -> dict[str, Any]:
    return {"type": "nested", "toolCallId": "c", "event": event}


def ended(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "toolExecEnd", "toolCallId": "c", "toolName": "t", "result": {"content": text(words), **more}}


@pytest.mark.parametrize(
    ("events", "screen"),
    [
        pytest.param([delta("Hel"), delta("lo"), said("Hello")], "Hello\n", id="streamed text is not said twice"),
        pytest.param([said("Hello")], "Hello\n", id="a replayed message is said whole"),
        pytest.param([delta("hm", "reasoning"), delta("{", "toolArguments")], "", id="only text is streamed"),
        pytest.param([said("hi", "user")], "> hi\n", id="a user"),
        pytest.param(
            [
                {
                    "type": "approvalRequested",
                    "approval": {**APPROVAL, "preview": {"path": "f", "text": "-a\n+b\x1b[2J\n"}},
                }
            ],
            "-a\n+b[2J\n? rm f waits for a decision: sojourn approve p\n",
            id="a change that waits",
        ),
        pytest.param([nested(delta("x")), nested(said("child"))], "  ↳ child\n", id="a child is told when it is done"),
        pytest.param(
            [delta("bad"), {"type": "messageReset", "messageId": "m", "reason": "retry"}, delta("good"), said("good")],
            "bad\n… what stands above is void; the answer starts again\ngood\n",
            id="a retry",
        ),
        pytest.param(
            [delta("bad"), {"type": "messageReset", "messageId": "m", "reason": "restart"}],
            "bad\n… what stands above is void\n",
            id="a restart",
        ),
        pytest.param(
            [{"type": "agentEnd", "reason": "interrupted"}], "interrupted; `sojourn resume` goes on\n", id="interrupted"
        ),
        pytest.param(
            [{"type": "toolExecStart", "toolCallId": "c", "toolName": "t", "args": {"a": 1}}],
            '· t {"a": 1}\n',
            id="a tool starts",
        ),
        pytest.param(
            [{"type": "toolExecProgress", "toolCallId": "c", "text": "half", "fraction": 0.5}],
            "  50% half\n",
            id="progress",
        ),
        pytest.param([ended("ok\n")], "✓ t: ok\n", id="a result"),
        pytest.param([ended("ok\n  more\n")], "✓ t:\n    ok\n      more\n", id="a result of two lines"),
        pytest.param(
            [nested(ended("1\n2\n3\n4\n5\n6\n" + "x" * 200))],
            "  ✓ t:\n      1\n      2\n      3\n      4\n      5\n      … 2 more lines\n",
            id="a long result",
        ),
        pytest.param([refused("Denied by policy.")], "✗ t: Denied by policy.\n", id="a refused call"),
        pytest.param([ended("ok"), refused("ok", isError=False)], "✓ t: ok\n", id="a result as a message"),
        pytest.param(
            [ended("ok"), nested(refused("Vetoed."))], "✓ t: ok\n  ✗ t: Vetoed.\n", id="a child's call of the same id"
        ),
        pytest.param(
            [{"type": "approvalResolved", "approval": DECIDED}, refused("Denied: no")],
            "! rm: denied by me: no\n",
            id="a denied call",
        ),
        pytest.param([ended("no", isError=True)], "✗ t: no\n", id="a failure"),
        pytest.param([ended("later", pending=True)], "… t (c): later\n", id="a placeholder"),
        pytest.param([{**ended("real"), "type": "toolResolved"}], "✓ t: real\n", id="a late result"),
        pytest.param(
            [{"type": "approvalRequested", "approval": APPROVAL}],
            '? rm {"path": "/"} waits for a decision: sojourn approve p\n',
            id="an approval",
        ),
        pytest.param([{"type": "approvalResolved", "approval": DECIDED}], "! rm: denied by me: no\n", id="a decision"),
        pytest.param(
            [{"type": "inboxQueued", "item": {"kind": "result", "callId": "c"}}],
            "→ a result for c is in the inbox\n",
            id="a result in the inbox",
        ),
        pytest.param([{"type": "inboxQueued", "item": {"kind": "message"}}], "", id="a message in the inbox"),
        pytest.param([{"type": "warning", "code": "x", "message": "Mind."}], "! Mind.\n", id="a warning"),
        pytest.param(
            [{"type": "paused", "pending": [{"toolName": "t", "callId": "c"}], "approvals": [APPROVAL]}],
            "paused; waits for t (c), a decision about rm\n",
            id="a pause",
        ),
        pytest.param([{"type": "agentEnd", "reason": "done"}], "", id="an end as it should be"),
        pytest.param(
            [delta("x"), {"type": "agentEnd", "reason": "failed", "error": {"kind": "k", "message": "Boom."}}],
            "x\nfailed: Boom.\n",
            id="a failed end",
        ),
        pytest.param([{"type": "somethingNew"}], "", id="an event of a newer daemon"),
        pytest.param([delta("\x1b[31mred\x07"), said("")], "[31mred\n", id="nothing moves the cursor"),
    ],
)
def test_an_event_on_the_screen(events: list[dict[str, Any]], screen: str, capsys: pytest.CaptureFixture[str]) -> None:
    view = View(all_on_stdout=True)
    for event in events:
        view.show_wire({"agentId": "a", "event": event})
    assert capsys.readouterr() == (screen, "")


@pytest.mark.parametrize(
    ("kind", "mark", "words"),
    [
        ("approve", "✓", "approved by x"),
        ("edit", "✓", "approved with other arguments by x"),
        ("answer", "✓", "answered by x"),
        ("deny", "!", "denied by x"),
        ("abort", "!", "stopped by x"),
        ("stopped", "!", "not decided, the run was stopped"),
        ("closed", "!", "not decided, it is needed no more"),
        ("expired", "!", "not decided in time"),
        ("postponed", "!", "postponed by x"),
    ],
)
def test_every_end_of_an_approval_has_words(
    kind: str, mark: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    approval = {**APPROVAL, "decision": {"decision": kind, "by": "x"}}
    View(all_on_stdout=True).show_wire({"agentId": "a", "event": {"type": "approvalResolved", "approval": approval}})
    assert capsys.readouterr().out == f"{mark} rm: {words}\n"


def test_the_protocol_has_no_other_end_of_an_approval() -> None:
    table = test_every_end_of_an_approval_has_words.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert set(get_args(DecisionKind)) == {kind for kind, *_ in table} - {"postponed"}


def test_for_a_pipe_only_the_answer_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    view = View(all_on_stdout=False, own_prompts=False)
    for event in (said("hi", "user"), delta("An"), ended("ok"), delta("swer"), said("Answer")):
        view.show_wire({"agentId": "a", "event": event})
    assert capsys.readouterr() == ("Answer\n", "✓ t: ok\n")


def test_text_from_outside_is_cut_and_cleaned() -> None:
    assert one_line("a\n b\tc" + "d" * 200, 10) == "a b cdddd…"
    assert printable("a\x00b\x9bc\nd\t") == "abc\nd\t"
