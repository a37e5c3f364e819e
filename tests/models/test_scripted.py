"""The scripted model: its rules, what it streams, how it fails."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from models.loopback import ONCE, PATIENT, Heard, asked, calls_of, listen, spec_for, text_in, texts

from sojourn.core.errors import InvalidParams, ModelError
from sojourn.core.messages import (
    AssistantMessage,
    LateResultMessage,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    ToolSpec,
    Usage,
    user,
)
from sojourn.models._script import read_rules
from sojourn.models.base import ModelRequest
from sojourn.models.scripted import ScriptedModel
from sojourn.models.table import make_model

pytestmark = pytest.mark.anyio


@pytest.fixture
def model_of(tmp_path: Path) -> Any:
    def make(rules: Any, **fields: Any) -> ScriptedModel:
        path = tmp_path / "script.json"
        path.write_text(json.dumps({"rules": rules}))
        return ScriptedModel(spec_for(backend="scripted", script=str(path), **fields), policy=PATIENT)

    return make


def said(text: str, *calls: str) -> AssistantMessage:
    parts = [ToolCallPart(id=f"id-{name}", name=name, arguments={}) for name in calls]
    return AssistantMessage(content=(TextPart(text=text), *parts))


def result(name: str, text: str = "ok") -> ToolResultMessage:
    return ToolResultMessage(call_id=f"id-{name}", tool_name=name, content=(TextPart(text=text),))


def late(name: str, text: str = "ok") -> LateResultMessage:
    return LateResultMessage(call_id=f"id-{name}", tool_name=name, content=(TextPart(text=text),))


BUILD = [user("please build x"), said("", "build", "other")]
MATCHES: dict[str, tuple[dict[str, Any], ModelRequest, bool]] = {
    "user searches": ({"user": "b.ild"}, asked(*BUILD[:1]), True),
    "user is case sensitive": ({"user": "Build"}, asked(*BUILD[:1]), False),
    "user alone does not fire on its call's result": ({"user": "build"}, asked(*BUILD, result("build")), False),
    "user alone does not fire on a late result": (
        {"user": "build"},
        asked(*BUILD[:1], said("a"), late("build")),
        False,
    ),
    "user beside a result searches what was asked": (
        {"user": "build", "tool_result": "build"},
        asked(*BUILD, result("build")),
        True,
    ),
    "user beside a turn searches what was asked": (
        {"user": "build", "turn": 2},
        asked(*BUILD, result("build"), turn=2),
        True,
    ),
    "user beside a result must match too": (
        {"user": "deploy", "tool_result": "build"},
        asked(*BUILD, result("build")),
        False,
    ),
    "user pushed in the middle of a run": ({"user": "also"}, asked(*BUILD, result("build"), user("also y")), True),
    "only the last user message": ({"user": "build"}, asked(user("build"), said("a"), user("thanks")), False),
    "tool result": ({"tool_result": "build"}, asked(*BUILD, result("build"), result("other")), True),
    "tool result of another": ({"tool_result": "build"}, asked(*BUILD, result("other")), False),
    "tool result of any": ({"tool_result": "*"}, asked(*BUILD, result("other")), True),
    "tool result of an earlier turn": (
        {"tool_result": "build"},
        asked(*BUILD, result("build"), said("a"), user("b")),
        False,
    ),
    "a late result is no tool result": ({"tool_result": "build"}, asked(*BUILD[:1], said("a"), late("build")), False),
    "late result": ({"late_result": "build"}, asked(*BUILD[:1], said("a"), late("build"), user("b")), True),
    "late result of another": ({"late_result": "deploy"}, asked(*BUILD[:1], said("a"), late("build")), False),
    "turn": ({"turn": 3}, asked(turn=3), True),
    "another turn": ({"turn": 3}, asked(turn=2), False),
    "tool offered": ({"tool": "build"}, asked(tools=(ToolSpec(name="build"),)), True),
    "tool not offered": ({"tool": "build"}, asked(tools=(ToolSpec(name="other"),)), False),
    "one of two tools offered": ({"tool": ["build", "x"]}, asked(tools=(ToolSpec(name="build"),)), False),
    "always": ({"always": True}, asked(), True),
    "never": ({"always": False}, asked(), False),
    "a conversation without a user": ({"user": "x"}, asked(said("a")), False),
    "a conversation without a user matches the empty text only": ({"user": "^$", "turn": 1}, asked(said("a")), True),
}


@pytest.mark.parametrize("name", MATCHES)
async def test_a_rule_answers_when_all_its_conditions_hold(name: str, model_of: Any) -> None:
    when, request, matches = MATCHES[name]
    rules = [{"when": when, "reply": {"text": "matched"}}, {"when": {"always": True}, "reply": {"text": "passed over"}}]
    heard = await listen(model_of(rules), request)
    assert text_in(heard) == ("matched" if matches else "passed over")


async def test_the_first_rule_that_matches_answers(model_of: Any) -> None:
    rules = [{"when": {"always": True}, "reply": {"text": text}} for text in ("one", "two")]
    assert text_in(await listen(model_of(rules))) == "one"


async def test_no_rule_is_a_failure_that_says_what_was_asked(model_of: Any) -> None:
    with pytest.raises(ModelError, match="'hi'") as caught:
        await listen(model_of([{"when": {"turn": 9}, "reply": {}}]))
    assert not caught.value.retryable
    assert caught.value.data["reason"] == "noRule"


TEMPLATES = [
    ("{1} and {2}", "build x", "build and x"),
    ("{0}!", "build x", "build x!"),
    ("{what}", "build x", "x"),
    ("{user}: {result}", "build x", "build x: it is done"),
    ("{tool}", "build x", "t"),
    ('{"json": {1}} {9} {no} {}', "build x", '{"json": build} {9} {no} {}'),
    ("{3|nothing} {1|nothing}", "build x", "nothing build"),
    ("{3}.", "build x", "."),
    ("{user}", "build {result} {1}", "build {result} {1}"),
]


@pytest.mark.parametrize(("template", "text", "filled"), TEMPLATES)
async def test_templates_quote_the_match_and_the_result_once(
    template: str, text: str, filled: str, model_of: Any
) -> None:
    when = {"user": r"(build) (?P<what>\S+)(z)?", "tool_result": "t"}
    reply = {"text": template, "reasoning": template, "calls": [{"name": "c", "arguments": {"a": [template, 5]}}]}
    request = asked(user(text), said("", "t"), result("t", "it is done"))
    heard = await listen(model_of([{"when": when, "reply": reply}]), request)
    assert text_in(heard) == filled
    assert heard.answer.content[0].text == filled
    assert calls_of(heard) == [("c", {"a": [filled, 5]})]


async def test_the_result_is_the_one_that_the_rule_asks_for(model_of: Any) -> None:
    request = asked(user("x"), said("", "a", "b"), result("a", "of a"), result("b", "of b"))
    for when, text in (({"tool_result": "a"}, "of a"), ({"tool_result": "*"}, "of b"), ({"always": True}, "of b")):
        heard = await listen(model_of([{"when": when, "reply": {"text": "{result}"}}]), request)
        assert text_in(heard) == text


async def test_an_answer_streams_word_by_word(model_of: Any) -> None:
    reply = {"reasoning": "well  then", "text": " one two\nthree ", "calls": [{"name": "c", "arguments": {"a": 1}}]}
    heard = await listen(model_of([{"when": {"always": True}, "reply": reply}]))
    assert [(event.part, event.text) for event in heard.events[:-1]] == [
        (0, "well  "),
        (0, "then"),
        (1, " one "),
        (1, "two\n"),
        (1, "three "),
        (2, '{"a":1}'),
    ]
    assert texts(heard.answer.content) == ["reasoning", "text", "toolCall"]
    assert heard.answer.finish_reason == "toolCalls"


async def test_pieces_may_have_a_size_of_their_own(model_of: Any) -> None:
    reply = {"text": "héllo", "chunk_chars": 2}
    heard = await listen(model_of([{"when": {"always": True}, "reply": reply}]))
    assert [event.text for event in heard.events[:-1]] == ["hé", "ll", "o"]


async def test_a_delay_stands_before_each_piece(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("rules:\n- when: {always: true}\n  reply: {text: a b c, delay_ms: 250}\n")
    waited: list[float] = []

    async def sleep(delay_s: float) -> None:
        waited.append(delay_s)

    await listen(ScriptedModel(spec_for(backend="scripted", script=str(path)), sleep=sleep))
    assert waited == [0.25] * 3


async def test_a_slow_answer_can_be_cancelled(model_of: Any) -> None:
    model = model_of([{"when": {"always": True}, "reply": {"text": "a", "delay_ms": 60_000}}])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await listen(model)


async def test_usage_and_finish_reason_may_be_said(model_of: Any) -> None:
    reply = {"text": "a", "finish_reason": "content_filter", "usage": {"input_tokens": 7, "cached_input_tokens": 3}}
    answer = (await listen(model_of([{"when": {"always": True}, "reply": reply}]))).answer
    assert answer.usage == Usage(input_tokens=7, output_tokens=0, cached_input_tokens=3)
    assert answer.finish_reason == "contentFilter"


async def test_usage_is_estimated_when_it_is_not_said(model_of: Any) -> None:
    answer = (await listen(model_of([{"when": {"always": True}, "reply": {"text": "eight by"}}]))).answer
    assert answer.usage.output_tokens == 2
    assert answer.usage.input_tokens > 0


async def test_a_length_cut_is_told_beside_its_calls(model_of: Any) -> None:
    reply = {"text": "a", "calls": [{"name": "c"}], "finish_reason": "length"}
    heard = await listen(model_of([{"when": {"always": True}, "reply": reply}]))
    assert heard.answer.finish_reason == "length"
    assert texts(heard.answer.content) == ["text", "toolCall"]


async def test_arguments_given_as_text_are_sent_as_they_are(model_of: Any) -> None:
    reply = {"calls": [{"name": "c", "arguments": '{"a": '}, {"name": "d", "arguments": '{"a": 1}'}]}
    heard = await listen(model_of([{"when": {"always": True}, "reply": reply}]))
    assert calls_of(heard) == [("c", '{"a": '), ("d", {"a": 1})]
    assert len({part.id for part in heard.answer.content}) == 2


FAILS: list[tuple[dict[str, Any], list[str], dict[str, Any]]] = [
    ({"error": {"status": 529}}, [], {"status": 529, "reason": "overloaded"}),
    ({"error": {}, "text": "half "}, ["retry"], {"status": 500, "reason": "serverError"}),
    ({"text": "a long answer", "cut_after_chars": 3}, ["retry"], {"reason": "streamCut"}),
    ({"text": "short", "cut_after_chars": 99}, ["retry"], {"reason": "streamCut"}),
    ({"text": "short", "cut_after_chars": 0}, [], {"reason": "streamCut"}),
    ({"calls": [{"name": "c", "arguments": {"a": 1}}], "cut_after_chars": 3}, ["retry"], {"reason": "streamCut"}),
]


@pytest.mark.parametrize(("reply", "resets", "data"), FAILS)
async def test_a_failure_once_is_told_and_tried_again(reply: Any, resets: list[str], data: Any, model_of: Any) -> None:
    rules = [
        {"when": {"always": True}, "reply": reply, "times": 1},
        {"when": {"always": True}, "reply": {"text": "good"}},
    ]
    heard = await listen(model_of(rules))
    assert text_in(heard) == "good"
    assert texts(heard.answer.content) == ["text"]
    assert heard.resets == resets
    assert [notice.code for notice in heard.notices] == ["modelRetry"]
    assert heard.notices[0].data.items() >= data.items()


async def test_what_was_told_before_a_cut_is_the_beginning(model_of: Any) -> None:
    heard = Heard()
    rules = [{"when": {"always": True}, "reply": {"text": "one two", "cut_after_chars": 5}}]
    model = model_of(rules)
    model._policy = ONCE
    with pytest.raises(ModelError) as caught:
        await listen(model, heard=heard)
    assert heard.told == {(0, "text"): "one t"}
    assert caught.value.retryable


async def test_a_failure_for_ever_ends_the_turn(model_of: Any) -> None:
    reply = {"error": {"status": 503, "message": "no {user}", "retry_after_s": 0.25}}
    heard = Heard()
    with pytest.raises(ModelError, match="no hi") as caught:
        await listen(model_of([{"when": {"always": True}, "reply": reply}]), heard=heard)
    assert caught.value.data["attempts"] == 3
    assert len(heard.notices) == 2


async def test_a_failure_that_will_not_pass_is_not_tried_again(model_of: Any) -> None:
    heard = Heard()
    with pytest.raises(ModelError):
        await listen(model_of([{"when": {"always": True}, "reply": {"error": {"status": 400}}}]), heard=heard)
    assert not heard.events


async def test_times_count_for_each_model_of_its_own(model_of: Any) -> None:
    rules = [
        {"when": {"always": True}, "reply": {"text": "first"}, "times": 2},
        {"when": {"always": True}, "reply": {"text": "then"}},
    ]
    one, other = model_of(rules), model_of(rules)
    assert [text_in(await listen(one)) for _ in range(3)] == ["first", "first", "then"]
    assert text_in(await listen(other)) == "first"
    await one.aclose()


MISTAKES: list[tuple[str, str]] = [
    ("rules: [", "no YAML"),
    ("[]", "mapping"),
    ("{}", "'rules'"),
    ("rules: []", "'rules'"),
    ("rules: [{when: {always: true}, reply: {}}]\nmore: 1", "'more'"),
    ("rules: [5]", "rule 1"),
    ("rules: [{reply: {}}]", "rule 1, key 'when'"),
    ("rules: [{when: {always: true}}]", "rule 1, key 'reply'"),
    ("rules: [{when: {}, reply: {}}]", "rule 1, key 'when': must hold at least one condition"),
    ("rules: [{when: {always: true}, reply: {}}, {when: {use: x}, reply: {}}]", "rule 2, key 'when.use'"),
    ("rules: [{when: {user: '('}, reply: {}}]", "rule 1, key 'when.user': is no regular expression"),
    ("rules: [{when: {user: 5}, reply: {}}]", "rule 1, key 'when.user': must be a regular expression"),
    ("rules: [{when: {turn: 0}, reply: {}}]", "rule 1, key 'when.turn'"),
    ("rules: [{when: {turn: '1'}, reply: {}}]", "rule 1, key 'when.turn'"),
    ("rules: [{when: {tool: 5}, reply: {}}]", "rule 1, key 'when.tool'"),
    ("rules: [{when: {always: true}, reply: {txt: a}}]", "rule 1, key 'reply.txt'"),
    ("rules: [{when: {always: true}, reply: {text: 5}}]", "rule 1, key 'reply.text'"),
    ("rules: [{when: {always: true}, reply: {calls: [{nam: a}]}}]", "rule 1, key 'reply.calls.0.nam"),
    ("rules: [{when: {always: true}, reply: {calls: 5}}]", "rule 1, key 'reply.calls'"),
    ("rules: [{when: {always: true}, reply: {finish_reason: x}}]", "rule 1, key 'reply.finish_reason': must be one of"),
    ("rules: [{when: {always: true}, reply: {error: {status: 200}}}]", "rule 1, key 'reply.error.status'"),
    ("rules: [{when: {always: true}, reply: {delay_ms: -1}}]", "rule 1, key 'reply.delay_ms'"),
    ("rules: [{when: {always: true}, reply: {chunk_chars: 0}}]", "rule 1, key 'reply.chunk_chars'"),
    ("rules: [{when: {always: true}, reply: {}, times: 0}]", "rule 1, key 'times'"),
    ("rules: [{when: {always: true}, reply: {usage: {input_tokens: .nan}}}]", "is nan"),
    ("rules: [{when: {always: true}, reply: {calls: [{name: a, arguments: {b: {1: 2}}}]}}]", "must be JSON"),
]


@pytest.mark.parametrize(("text", "words"), MISTAKES)
def test_a_mistake_in_a_script_names_file_rule_and_key(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(text)
    with pytest.raises(InvalidParams) as caught:
        make_model(spec_for(backend="scripted", script=str(path)))
    assert str(path) in caught.value.message
    assert words.lower() in caught.value.message.lower()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "names no script"),
        ("builtin:nothing", "only 'demo'"),
        ("/no/such.yaml", "No such file"),
        ("/bin/sh", "not UTF-8"),
    ],
)
def test_a_script_that_is_not_there_is_named(script: str | None, words: str) -> None:
    with pytest.raises(InvalidParams, match=words):
        make_model(spec_for(backend="scripted", script=script))


def test_the_scripts_of_the_docs_can_be_read() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/scripted-model.md").read_text()
    scripts = re.findall(r"```yaml\n(rules:.*?)```", page, re.DOTALL)
    assert [len(read_rules(script, "docs")) > 3 for script in scripts] == [True, True]


# --- the built-in demo

OFFERED = tuple(ToolSpec(name=name) for name in ("demo_build", "demo_deploy", "demo_time", "delegate"))
THREE = ("demo_build", "demo_deploy", "demo_time")
DEMO: list[tuple[list[Message], str, list[Any]]] = [
    ([user("Hello there")], "Hello!", []),
    ([user("build the website")], "", [("demo_build", {"target": "website"})]),
    ([user("Please build it")], "", [("demo_build", {"target": "it"})]),
    ([user("build")], "", [("demo_build", {"target": "the project"})]),
    ([user("deploy site-2")], "", [("demo_deploy", {"target": "site-2"})]),
    ([user("Publish the docs, please")], "", [("demo_deploy", {"target": "docs"})]),
    (
        [user("Build and deploy the website")],
        "start the build",
        [("demo_build", {"target": "website"}), ("demo_deploy", {"target": "website"})],
    ),
    (
        [user("build docs and then publish them")],
        "start the build",
        [("demo_build", {"target": "docs"}), ("demo_deploy", {"target": "docs"})],
    ),
    ([user("What time is it?")], "", [("demo_time", {})]),
    (
        [user("Research old bridges.")],
        "helper",
        [("delegate", {"task": "Summarize what is known about old bridges."})],
    ),
    ([user("Summarize what is known about old bridges.")], "About old bridges:", []),
    ([user("the weather is nice")], "You said: the weather is nice", []),
    ([user(" ")], "I am listening.", []),
    (
        [user("build x"), said("", "demo_build"), result("demo_build", "Started job 1.")],
        "Started job 1. You can go on",
        [],
    ),
    ([user("build x"), said(""), late("demo_build", "All green.")], "has finished: All green.", []),
    ([user("build x"), said(""), late("other", "All green.")], "other has finished: All green.", []),
    (
        [user("deploy x"), said("", "demo_deploy"), result("demo_deploy", "Denied.")],
        "About the deployment: Denied.",
        [],
    ),
    (
        [
            user("build and deploy x"),
            said("", "demo_build", "demo_deploy"),
            result("demo_build", "Started."),
            result("demo_deploy", "Deployed x."),
        ],
        "The build is under way, and about the deployment: Deployed x.",
        [],
    ),
    ([user("research x"), said("", "delegate"), result("delegate", "X is old.")], "My helper reports: X is old.", []),
    ([user("the time"), said("", "demo_time"), result("demo_time", "noon")], "It is noon.", []),
    ([user("x"), said("", "other"), result("other", "42")], "other answered: 42", []),
]


@pytest.mark.parametrize("number", range(len(DEMO)))
async def test_the_demo_answers_like_a_small_assistant(number: int) -> None:
    messages, text, calls = DEMO[number]
    model = make_model(spec_for(backend="scripted", script="builtin:demo"))
    heard = await listen(model, asked(*messages, tools=OFFERED))
    assert text in text_in(heard)
    assert calls_of(heard) == calls


@pytest.mark.parametrize("text", ["build x", "deploy x", "build and deploy x", "research x", "what time is it"])
async def test_the_demo_without_tools_answers_in_words(text: str) -> None:
    heard = await listen(make_model(spec_for(backend="scripted", script="builtin:demo")), asked(user(text)))
    assert calls_of(heard) == []
    assert "not given the tool" in text_in(heard)


ORDERS: list[tuple[str, str, dict[str, Any]]] = [
    ("run make test", "shell", {"command": "make test"}),
    ("Please run `ls -la | wc -l`.", "shell", {"command": "ls -la | wc -l"}),
    ("run ./build.sh --all > out.txt", "shell", {"command": "./build.sh --all > out.txt"}),
    ("run a.out", "shell", {"command": "a.out"}),
    ("run echo {user} {command}", "shell", {"command": "echo {user} {command}"}),
    ("can you run cat <<X\none\nX", "shell", {"command": "cat <<X\none\nX"}),
    ("run sleep 60; echo up in the background.", "shell", {"command": "sleep 60; echo up", "background": True}),
    ("run `make build` in the background", "shell", {"command": "make build", "background": True}),
    ("run in the background: make deploy", "shell", {"command": "make deploy", "background": True}),
    ("read README.md", "read", {"path": "README.md"}),
    ("Please read the file docs/build.md.", "read", {"path": "docs/build.md"}),
    ('read "my notes.txt"', "read", {"path": "my notes.txt"}),
    ("list", "list", {"path": "."}),
    ("List the files in src/app!", "list", {"path": "src/app"}),
    ("list ..", "list", {"path": "."}),
    ("find **/*.py", "glob", {"pattern": "**/*.py"}),
    ("grep TODO", "grep", {"pattern": "TODO", "path": "."}),
    ('grep "the time" in docs', "grep", {"pattern": "the time", "path": "docs"}),
    (r"grep def \w+\( in a.py", "grep", {"pattern": r"def \w+\(", "path": "a.py"}),
    ("edit a.py: x = 1 -> x = 2", "edit", {"path": "a.py", "old_text": "x = 1", "new_text": "x = 2"}),
    ("edit a.py: # build it ->", "edit", {"path": "a.py", "old_text": "# build it", "new_text": ""}),
    ("edit a.py:\none\ntwo -> three", "edit", {"path": "a.py", "old_text": "one\ntwo", "new_text": "three"}),
    ("write notes/a.txt: deploy on Monday", "write", {"path": "notes/a.txt", "content": "deploy on Monday\n"}),
    ("Write to a.txt:\none\n  two\n", "write", {"path": "a.txt", "content": "one\n  two\n"}),
]
WORKING = tuple(ToolSpec(name=name) for name in ("shell", "read", "list", "glob", "grep", "edit", "write"))


async def demo(*messages: Message, tools: tuple[ToolSpec, ...]) -> Heard:
    return await listen(make_model(spec_for(backend="scripted", script="builtin:demo")), asked(*messages, tools=tools))


@pytest.mark.parametrize(("text", "name", "arguments"), ORDERS)
async def test_the_demo_works_with_files_and_the_shell(text: str, name: str, arguments: dict[str, Any]) -> None:
    assert calls_of(await demo(user(text), tools=OFFERED + WORKING)) == [(name, arguments)]
    without = await demo(user(text), tools=tuple(tool for tool in WORKING if tool.name != name))
    assert calls_of(without) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("run the build", ["demo_build"]),
        ("Run a build in the background, please", ["demo_build"]),
        ("run build and deploy", ["demo_build", "demo_deploy"]),
        ("read up on it and build the docs", ["demo_build"]),
        ("find out the time", ["demo_time"]),
        ("write the docs: no, build them", ["demo_build"]),
        ("list what to research", ["delegate"]),
        ("read the weather report", []),
        ("grep", []),
        ("edit a.py", []),
        ("edit a.py: x = 1", []),
        ("run", []),
        ("I run a shop", []),
    ],
)
async def test_what_is_no_order_is_answered_as_ever(text: str, names: list[str]) -> None:
    assert [name for name, _ in calls_of(await demo(user(text), tools=OFFERED + WORKING))] == names


@pytest.mark.parametrize(("order", "name"), [("run ls", "shell"), ("read a", "read"), ("edit a: b -> c", "edit")])
async def test_the_demo_tells_what_its_order_came_to(order: str, name: str) -> None:
    heard = await demo(user(order), said("", name), result(name, "one\ntwo"), tools=WORKING)
    assert (text_in(heard), calls_of(heard)) == ("one\ntwo", [])


@pytest.mark.parametrize("text", ["help", "What can you do?", "Please help me!", "what do you understand"])
@pytest.mark.parametrize("tools", [(), OFFERED + WORKING])
async def test_the_demo_says_what_it_is_and_understands(text: str, tools: tuple[ToolSpec, ...]) -> None:
    told = text_in(await demo(user(text), tools=tools))
    assert "no language model" in told
    assert [verb for verb in ("run", "read", "list", "find", "grep", "write", "edit") if f"{verb} " not in told] == []
