"""How a model's server is reached, how it fails, and what is done about it."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from models.loopback import (
    ONCE,
    PATIENT,
    Heard,
    Loopback,
    Peer,
    answer_json,
    body_of,
    delta,
    head,
    listen,
    loopback,
    raw,
    spec_for,
    sse,
    text_in,
)

from sojourn.core.errors import ModelError
from sojourn.models.openai_chat import OpenAIChat
from sojourn.models.retry import RetryPolicy

pytestmark = pytest.mark.anyio

GOOD = sse(delta(content="ok"), delta("stop"))
KEY = "sk-very-secret-0123456789"


async def failure(server: Loopback, policy: Any = ONCE, **spec: Any) -> ModelError:
    model = OpenAIChat(spec_for(server, **spec), policy=policy)
    with pytest.raises(ModelError) as caught:
        await listen(model)
    await model.aclose()
    return caught.value


class Waits:
    """A policy's sleep that only notes how long it was."""

    def __init__(self, **fields: Any) -> None:
        self.waited: list[float] = []
        self.policy = RetryPolicy(chance=lambda: 0.0, sleep=self._sleep, **fields)

    async def _sleep(self, delay_s: float) -> None:
        self.waited.append(delay_s)


STATUSES: list[tuple[int, Any, bool, str]] = [
    (400, {"error": {"message": "bad shape", "type": "invalid_request_error"}}, False, "badRequest"),
    (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}, False, "contextWindow"),
    (401, {"error": {"message": "bad key"}}, False, "unauthorized"),
    (403, {"detail": "not yours"}, False, "forbidden"),
    (404, {"error": "no such model"}, False, "notFound"),
    (408, {"error": {"message": "slow"}}, True, "timeout"),
    (409, {"message": "locked"}, True, "refused"),
    (413, b"", False, "tooLarge"),
    (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, False, "badRequest"),
    (429, {"error": {"message": "slow down"}}, True, "rateLimited"),
    (429, {"error": {"message": "pay", "code": "insufficient_quota"}}, False, "rateLimited"),
    (500, {"error": {"code": 500, "message": "boom", "type": "server_error"}}, True, "serverError"),
    (500, b"plain words", True, "serverError"),
    (502, b"<html>bad gateway</html>", True, "serverError"),
    (503, [{"error": {"message": "full", "status": "UNAVAILABLE"}}], True, "overloaded"),
    (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, True, "overloaded"),
    (301, b"", False, "refused"),
    (204, b"", False, "refused"),
]


@pytest.mark.parametrize(("status", "body", "retryable", "reason"), STATUSES)
async def test_a_status_says_whether_it_may_pass(status: int, body: Any, retryable: bool, reason: str) -> None:
    async with loopback(answer_json(body, status, x_request_id="req-7")) as server:
        error = await failure(server)
    assert (error.retryable, error.data["reason"], error.data["status"]) == (retryable, reason, status)
    assert error.data["provider"] == "compatible:127.0.0.1"
    assert error.data["requestId"] == "req-7"
    assert "'tested'" in error.message
    words = {400: ("bad shape", "too long"), 403: ("not yours",), 422: ("field required",), 502: ("web page",)}
    assert any(word in error.message for word in words.get(status, ("",)))


@pytest.mark.parametrize(("header", "retryable"), [("true", True), ("false", False)])
async def test_a_server_s_word_on_retrying_wins(header: str, retryable: bool) -> None:
    status = 400 if retryable else 500
    async with loopback(answer_json({"error": "x"}, status, x_should_retry=header)) as server:
        assert (await failure(server)).retryable is retryable


async def test_words_without_end_are_cut() -> None:
    async with loopback(answer_json({"error": {"message": "x" * 200_000}}, 400)) as server:
        error = await failure(server)
    assert len(error.message) < 5_000


async def test_an_error_answer_that_is_cut_is_still_that_error() -> None:
    async with loopback(raw(head(429, content_length="999") + b"slow do")) as server:
        error = await failure(server)
    assert error.data["status"] == 429
    assert "slow do" in error.message


RETRY_AFTER = [("2", 2.0), ("0", 0.5), ("-3", 0.5), ("garbage", 0.5), ("99999", 120.0), ("0.7", 0.7), ("nan", 0.5)]


@pytest.mark.parametrize(("header", "waited"), RETRY_AFTER)
async def test_retry_after_is_a_capped_lower_bound(header: str, waited: float) -> None:
    waits = Waits()
    async with loopback(answer_json({"error": "x"}, 429, retry_after=header), GOOD) as server:
        model = OpenAIChat(spec_for(server, total_timeout_s=1000), policy=waits.policy)
        heard = await listen(model)
        await model.aclose()
    assert waits.waited == [waited]
    assert heard.notices[0].data == {"attempt": 1, "max": 5, "delayS": waited, "status": 429, "reason": "rateLimited"}
    assert not heard.resets
    assert text_in(heard) == "ok"


async def test_tries_are_bounded_over_all_kinds_of_failure_together() -> None:
    answers = [
        answer_json({"error": "x"}, 500),
        sse(delta(content="half"), done=False),
        sse({"error": {"type": "overloaded_error", "message": "Overloaded"}}),
        raw(b""),
        GOOD,
    ]
    waits = Waits(max_retries=3)
    async with loopback(*answers) as server:
        error = await failure(server, waits.policy)
        assert len(server.requests) == 4
    assert error.data["attempts"] == 4
    assert waits.waited == [0.5, 1.0, 2.0]


async def test_the_config_says_how_often() -> None:
    async with loopback(answer_json({"error": "x"}, 500)) as server:
        model = OpenAIChat(spec_for(server, max_retries=0))
        with pytest.raises(ModelError):
            await listen(model)
        await model.aclose()
        assert len(server.requests) == 1


async def test_a_wait_beyond_the_total_limit_is_not_begun() -> None:
    async with loopback(answer_json({"error": "x"}, 429, retry_after="60")) as server:
        error = await failure(server, RetryPolicy(), total_timeout_s=5)
    assert error.data["status"] == 429


async def test_closing_during_the_wait_ends_it_at_once() -> None:
    async with loopback(answer_json({"error": "x"}, 429, retry_after="60")) as server:
        model = OpenAIChat(spec_for(server, total_timeout_s=600))
        waiting = asyncio.Event()

        async def run() -> None:
            async for _ in model.stream(_request()):
                waiting.set()

        task = asyncio.create_task(run())
        async with asyncio.timeout(5):
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await model.aclose()


async def test_the_same_body_is_sent_again() -> None:
    async with loopback(answer_json({"error": "x"}, 500), GOOD) as server:
        model = OpenAIChat(spec_for(server), policy=PATIENT)
        await listen(model)
        await model.aclose()
        assert server.requests[0].body == server.requests[1].body


def _request() -> Any:
    from models.loopback import asked

    return asked()


# --- limits, closing


async def never(peer: Peer) -> None:
    await peer.until_gone()


async def test_a_server_that_never_answers_is_given_up() -> None:
    async with loopback(never) as server:
        error = await failure(server, PATIENT, idle_timeout_s=0.05)
        assert error.data["reason"] == "idleTimeout"
        assert error.retryable
        assert len(server.requests) == 3
        await _all_closed(server)


async def test_a_stall_after_the_first_token_is_given_up() -> None:
    async with loopback(sse(delta(content="one"), done=False, hold=True)) as server:
        error = await failure(server, idle_timeout_s=0.05)
        assert error.data["reason"] == "idleTimeout"
        await _all_closed(server)


async def test_comments_keep_an_answer_alive_but_not_for_ever() -> None:
    async def chatter(peer: Peer) -> None:
        await peer.send(head())
        while not peer.reader.at_eof():
            await peer.send(b": thinking\n\n")
            await asyncio.sleep(0.01)

    async with loopback(chatter) as server:
        error = await failure(server, PATIENT, idle_timeout_s=5, total_timeout_s=0.2)
        assert error.data["reason"] == "totalTimeout"
        assert not error.retryable
        assert len(server.requests) == 1


async def test_the_total_limit_also_ends_the_wait_for_the_head() -> None:
    async with loopback(never) as server:
        error = await failure(server, PATIENT, idle_timeout_s=5, total_timeout_s=0.1)
    assert error.data["reason"] == "totalTimeout"


async def test_an_abandoned_stream_is_closed() -> None:
    async with loopback(sse(delta(content="one "), delta(content="two"), done=False, hold=True)) as server:
        model = OpenAIChat(spec_for(server))
        stream = model.stream(_request())
        async with asyncio.timeout(5):
            await anext(stream)
            await stream.aclose()
            await _all_closed(server)
        await model.aclose()


async def test_cancelling_closes_the_connection() -> None:
    async with loopback(sse(delta(content="one"), done=False, hold=True)) as server:
        model = OpenAIChat(spec_for(server))
        heard, told = Heard(), asyncio.Event()

        async def run() -> None:
            async for event in model.stream(_request()):
                heard.add(event)
                told.set()

        task = asyncio.create_task(run())
        async with asyncio.timeout(5):
            await told.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await _all_closed(server)
        await model.aclose()


async def test_a_refused_connection_may_pass() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        error = await failure(None, PATIENT, base_url=f"http://127.0.0.1:{free.getsockname()[1]}/v1")
    assert error.retryable
    assert error.data["reason"] == "connectionFailed"
    assert error.data["attempts"] == 3


async def test_a_finished_connection_is_used_again() -> None:
    async def twice(peer: Peer) -> None:
        for turn in range(2):
            if turn:
                await peer.reader.readuntil(b"\r\n\r\n")
                await peer.reader.read(65536)
            body = body_of(delta(content=f"t{turn}"), delta("stop"))
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            await peer.send(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")

    async with loopback(twice) as server:
        model = OpenAIChat(spec_for(server), policy=ONCE)
        assert [text_in(await listen(model)) for _ in range(2)] == ["t0", "t1"]
        assert server.connections == 1
        await model.aclose()


async def test_a_closed_model_can_be_used_again() -> None:
    async with loopback(GOOD) as server:
        model = OpenAIChat(spec_for(server), policy=ONCE)
        for _ in range(2):
            assert text_in(await listen(model)) == "ok"
            await model.aclose()


async def _all_closed(server: Loopback) -> None:
    async with asyncio.timeout(5):
        await server.closed.wait()
    assert server.open == 0


# --- proxies


PROXIES = [
    {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"},
    {"ALL_PROXY": "socks5h://127.0.0.1:9", "all_proxy": "socks5h://127.0.0.1:9"},
    {"http_proxy": "nonsense::"},
]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


@pytest.mark.parametrize("variables", PROXIES)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_loopback_server_is_reached_without_the_environment_s_proxy(
    environment: pytest.MonkeyPatch, variables: dict[str, str], host: str
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    async with loopback(GOOD) as server:
        model = OpenAIChat(spec_for(server, base_url=f"http://{host}:{server.port}/v1"), policy=ONCE)
        heard = await listen(model)
        await model.aclose()
    assert text_in(heard) == "ok"
    assert not heard.notices


async def test_a_remote_server_is_asked_through_the_proxy(environment: pytest.MonkeyPatch) -> None:
    async with loopback(GOOD) as proxy:
        environment.setenv("http_proxy", f"127.0.0.1:{proxy.port}")
        model = OpenAIChat(spec_for(base_url="http://model.example/v1"), policy=ONCE)
        assert text_in(await listen(model)) == "ok"
        await model.aclose()
        assert proxy.requests[0].line.startswith("POST http://model.example/v1/chat/completions ")


async def test_no_proxy_is_obeyed(environment: pytest.MonkeyPatch) -> None:
    async with loopback(GOOD) as proxy:
        environment.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        environment.setenv("no_proxy", "model.invalid")
        error = await failure(None, base_url="http://model.invalid/v1")
        assert not proxy.requests
    assert error.data["reason"] == "connectionFailed"


async def test_a_socks_proxy_is_told_once_and_passed_over(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("all_proxy", "socks5h://user:secret@127.0.0.1:9")
    model = OpenAIChat(spec_for(base_url="http://model.invalid/v1"), policy=PATIENT)
    heard = Heard()
    with pytest.raises(ModelError):
        await listen(model, heard=heard)
    await model.aclose()
    assert [notice.code for notice in heard.notices].count("proxyIgnored") == 1
    assert "socks5h" in str(heard.notices)
    assert "secret" not in str(heard.notices)


async def test_a_proxy_that_is_no_url_is_said_to_be(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("http_proxy", "http://host:port")
    error = await failure(None, base_url="http://model.invalid/v1")
    assert error.data["reason"] == "badConfig"


# --- keys


async def key_sent(**spec: Any) -> str | None:
    async with loopback(GOOD) as server:
        model = OpenAIChat(spec_for(server, **spec), policy=ONCE)
        await listen(model)
        await model.aclose()
        return server.requests[0].headers.get("authorization")


async def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    assert await key_sent(api_key_env="A_KEY") == f"Bearer {KEY}"


async def test_a_key_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    assert await key_sent(api_key_file=str(tmp_path / "key")) == f"Bearer {KEY}"


async def test_a_key_comes_from_a_command() -> None:
    assert await key_sent(api_key_command=f"{sys.executable} -c \"print('{KEY}')\"") == f"Bearer {KEY}"


async def test_headers_of_the_config_are_sent_and_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    assert await key_sent(api_key_env="A_KEY", headers={"Authorization": "Basic x"}) == "Basic x"


async def test_a_command_runs_once_until_its_key_is_refused(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    command = f"{sys.executable} -c \"open({str(counter)!r}, 'a').write('x'); print('key-one')\""
    answers = [GOOD, GOOD, answer_json({"error": "no"}, 401), GOOD]
    async with loopback(*answers) as server:
        model = OpenAIChat(spec_for(server, api_key_command=command), policy=ONCE)
        await listen(model)
        await listen(model)
        with pytest.raises(ModelError):
            await listen(model)
        assert counter.read_text() == "x"
        await listen(model)
        assert counter.read_text() == "xx"
        await model.aclose()


BAD_KEYS: list[tuple[dict[str, str], str]] = [
    ({"api_key_env": "NO_SUCH_VARIABLE"}, "'NO_SUCH_VARIABLE'"),
    ({"api_key_env": "BLANK"}, "'BLANK'"),
    ({"api_key_env": "ODD"}, "no key has"),
    ({"api_key_file": "/no/such/file"}, "'/no/such/file'"),
    ({"api_key_file": "/bin/sh"}, "'/bin/sh'"),
    ({"api_key_command": "/no/such/program --token x"}, "'/no/such/program'"),
    ({"api_key_command": "'"}, "cannot be started"),
    ({"api_key_command": f'{sys.executable} -c "raise SystemExit(3)"'}, "exit code 3"),
    ({"api_key_command": f'{sys.executable} -c "pass"'}, "holds no key"),
]


@pytest.mark.parametrize(("spec", "words"), BAD_KEYS)
async def test_a_key_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, str], words: str
) -> None:
    monkeypatch.setenv("BLANK", " ")
    monkeypatch.setenv("ODD", "secret\nsecond line")
    async with loopback(GOOD) as server:
        error = await failure(server, **spec)
        assert not server.requests
    assert words in error.message
    assert error.data["reason"] == "noApiKey"
    assert not error.retryable
    assert "second line" not in error.message
    assert "--token" not in error.message


async def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sojourn.models._secrets.COMMAND_LIMIT_S", 0.1)
    async with loopback(GOOD) as server:
        error = await failure(server, api_key_command=f'{sys.executable} -c "import time; time.sleep(60)"')
    assert "took over" in error.message


async def test_a_key_is_in_no_error_and_no_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    answers = [
        answer_json({"error": {"message": f"the key {KEY} is wrong"}}, 500),
        sse({"error": {"message": f"Bearer {KEY} expired"}}),
        answer_json({"error": f"{KEY}!"}, 401),
    ]
    heard = Heard()
    async with loopback(*answers) as server:
        model = OpenAIChat(spec_for(server, api_key_env="A_KEY", headers={"x-team": "team-secret"}), policy=PATIENT)
        with pytest.raises(ModelError) as caught:
            await listen(model, heard=heard)
        await model.aclose()
    told = f"{caught.value.message} {caught.value.data} {heard.events} {caplog.text}"
    assert len(heard.notices) == 2
    assert "[secret]" in told
    assert KEY not in told


async def test_a_header_that_cannot_be_sent_is_a_failure_of_the_config() -> None:
    async with loopback(GOOD) as server:
        error = await failure(server, PATIENT, headers={"x-team": "two\nlines-of-text"})
        assert not server.requests
    assert error.data["reason"] == "badConfig"
    assert "lines-of-text" not in error.message


async def test_certificates_that_the_environment_names_are_used(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import ssl

    (tmp_path / "empty.pem").write_text("")
    environment.setenv("SSL_CERT_FILE", str(tmp_path / "empty.pem"))
    model = OpenAIChat(spec_for(base_url="https://model.invalid/v1"), policy=ONCE)
    with pytest.raises(ModelError) as caught:
        await listen(model)
    assert caught.value.data["reason"] == "badConfig"
    environment.setenv("SSL_CERT_FILE", ssl.get_default_verify_paths().openssl_cafile)
    environment.setenv("SSL_CERT_DIR", str(tmp_path))
    with pytest.raises(ModelError) as caught:
        await listen(model)
    assert caught.value.data["reason"] in ("connectionFailed", "badConfig")
    await model.aclose()


def test_making_a_model_imports_no_http_library() -> None:
    import subprocess

    code = (
        "import sys; from sojourn.models.base import ModelSpec; from sojourn.models.table import make_model;"
        "make_model(ModelSpec(name='a', backend='openai-chat', model='m'));"
        "make_model(ModelSpec(name='a', backend='scripted', script='builtin:demo'));"
        "sys.exit('httpx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0


def test_a_request_body_is_strict_json() -> None:
    from models.loopback import asked

    from sojourn.models._chat_dialects import dialect_of
    from sojourn.models._chat_request import chat_body

    spec = spec_for()
    body = chat_body(asked(sampling={"temperature": float("nan")}), spec, dialect_of(spec))
    json.loads(body, parse_constant=pytest.fail)
