"""Each request is answered exactly once, whatever becomes of it; the daemon's own requests keep to their side."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from wire_fakes import Daemon, daemon, notification, request, until

pytestmark = pytest.mark.anyio


def cancel(id: Any) -> dict[str, Any]:
    return notification("$/cancelRequest", {"id": id})


async def test_a_cancelled_request_is_answered_once_and_knows_that_its_client_did_it(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(request(1, "test/wait", {"value": "a"}))
    await until(lambda: served.hub.seen == [("started", "a")])
    wire.send(cancel(1), cancel(1))
    answers = await wire.barrier()
    assert [(answer["id"], answer["error"]["code"]) for answer in answers] == [(1, -32800)]
    assert answers[0]["error"]["data"] == {"kind": "requestCancelled"}
    assert served.hub.seen[1:] == [("cancelled", "a", True)]


async def test_requests_cancelled_before_they_start_do_nothing(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(*[message for n in range(10) for message in (request(n, "test/echo", {"value": n}), cancel(n))])
    answers = await wire.barrier()
    assert [(answer["id"], answer["error"]["code"]) for answer in answers] == [(n, -32800) for n in range(10)]
    assert served.hub.seen == []


async def test_a_handler_that_fails_while_it_is_cancelled_is_answered_as_cancelled(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(request(1, "test/stubborn"))
    assert await wire.barrier() == []
    wire.send(cancel(1))
    assert [answer["error"]["code"] for answer in await wire.barrier()] == [-32800]


async def test_a_cancelled_handler_may_tidy_up_before_its_request_is_answered(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(request(1, "test/tidying"))
    assert await wire.barrier() == []
    wire.send(cancel(1))
    assert await wire.barrier() == []
    served.hub.gate.set()
    assert (await wire.receive())["error"]["code"] == -32800
    assert served.hub.seen == ["kept"]


async def test_two_requests_under_one_id_are_both_answered_and_both_cancelled(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(request(1, "test/wait", {"value": "a"}), request(1, "test/wait", {"value": "b"}))
    assert await wire.barrier() == []
    wire.send(cancel(1))
    assert [(answer["id"], answer["error"]["code"]) for answer in await wire.barrier()] == [(1, -32800)] * 2

    wire.send(request(2, "test/wait"), request(2, "test/nothing"))
    assert [answer["result"] for answer in await wire.barrier()] == [None]
    served.hub.gate.set()
    assert (await wire.receive())["id"] == 2


async def test_a_cancel_distinguishes_the_type_of_ids(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(request(7, "test/wait"), request("7", "test/wait"), cancel("7"))
    assert [answer["id"] for answer in await wire.barrier()] == ["7"]


async def test_handlers_start_in_the_order_of_arrival(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(*[request(n, "test/wait" if n % 2 else "test/echo", {"value": n}) for n in range(40)])
    await wire.barrier()
    assert [item[1] if isinstance(item, tuple) else item for item in served.hub.seen] == list(range(40))


async def test_above_the_limit_of_requests_the_next_is_told_when_to_try_again(tmp_path: Path) -> None:
    async with daemon(tmp_path, max_inflight=3) as served:
        wire = await served.connect()
        wire.send(*[request(n, "test/wait") for n in range(4)])
        refused = await wire.receive()
        assert refused["id"] == 3
        assert refused["error"]["code"] == -31012
        assert refused["error"]["data"] == {"kind": "overloaded", "retryAfterMs": 100}
        other = await served.connect()
        assert (await other.call("test/nothing"))["result"] is None
        wire.send(cancel(0))
        assert (await wire.receive())["id"] == 0
        assert (await wire.call("test/nothing"))["result"] is None


FAILURES = {
    "ours": (-31001, {"kind": "agentNotFound", "agentId": "a"}),
    "grouped": (-31012, {"kind": "overloaded", "retryAfterMs": 5}),
    "odd data": (-31001, {"kind": "agentNotFound"}),
}


@pytest.mark.parametrize(("how", "expected"), FAILURES.items(), ids=FAILURES.keys())
async def test_deliberate_errors_keep_their_code_and_data(served: Daemon, how: str, expected: Any) -> None:
    answer = await (await served.connect()).call("test/fail", value=how)
    assert (answer["error"]["code"], answer["error"]["data"]) == expected


async def test_an_unforeseen_error_shows_a_reference_that_the_log_has_too(
    served: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    error = (await (await served.connect()).call("test/fail", value="unforeseen"))["error"]
    assert error["code"] == -32603
    assert error["data"].keys() == {"kind", "ref"}
    assert error["data"]["ref"] in error["message"]
    assert "secret" not in str(error)
    logged = [record for record in caplog.records if error["data"]["ref"] in record.getMessage()]
    assert len(logged) == 1
    assert logged[0].exc_info


async def test_an_unforeseen_error_of_a_notification_is_logged_and_not_answered(
    served: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    wire = await served.connect()
    wire.send(notification("test/fail", {"value": "unforeseen"}))
    assert await wire.barrier() == []
    assert "unforeseen error" in caplog.text


async def test_a_notification_of_a_method_is_carried_out_unanswered(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(notification("test/echo", {"value": "said"}))
    assert await wire.barrier() == []
    assert served.hub.seen == ["said"]


ODD = {
    "nan": {"n": None, "i": None},
    "nan in a value": {"text": "ok", "score": None},
    "surrogate": {"t": "a\ufffdb", "k\ufffd": [1]},
    "surrogate in a value": {"text": "a\ufffdb"},
    "huge": {"n": 10**30},
    "values": {"all": [{"text": "x"}]},
}


@pytest.mark.parametrize(("kind", "expected"), ODD.items(), ids=ODD.keys())
async def test_whatever_a_result_holds_is_strict_json(served: Daemon, kind: str, expected: Any) -> None:
    result = (await (await served.connect()).call("test/odd", value=kind))["result"]
    assert result == expected


async def test_a_result_that_is_no_json_is_an_internal_error(served: Daemon) -> None:
    answer = await (await served.connect()).call("test/odd", value="unserialisable")
    assert answer["error"]["code"] == -32603


async def test_a_result_above_the_queue_is_answered_with_the_limit(tmp_path: Path) -> None:
    async with daemon(tmp_path, max_client_queue_bytes=100_000) as served:
        wire = await served.connect()
        assert len((await wire.call("test/big", size=99_000))["result"]["text"]) == 99_000
        error = (await wire.call("test/big", size=100_001))["error"]
        assert error["code"] == -31015
        assert error["data"]["limit"] == "maxClientQueueBytes"
        assert error["data"]["max"] == 100_000
        assert error["data"]["value"] > 100_001


# ── requests of the daemon ────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_daemons_requests_have_ids_of_their_own_and_get_their_answers(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(request(1, "test/ask", {"value": "x"}), request(2**30, "test/wait"))
    asked = await wire.receive()
    assert asked == {"jsonrpc": "2.0", "id": 2**30, "method": "tool/execute", "params": {"value": "x"}}
    wire.send({"jsonrpc": "2.0", "id": float(2**30), "result": "not this one"})
    wire.send({"jsonrpc": "2.0", "id": 2**30, "result": {"ok": [1, "\ud800"]}})
    answer = await wire.receive()
    assert answer == {"jsonrpc": "2.0", "id": 1, "result": {"answer": {"ok": [1, "\ufffd"]}}}
    wire.send({"jsonrpc": "2.0", "id": 2**30, "result": "again"})
    wire.send(request(3, "test/ask"))
    assert (await wire.receive())["id"] == 2**30 + 1
    assert await wire.barrier() == []  # the client's request with the same number still waits


async def test_cancelling_what_the_daemon_asks_for_tells_the_client(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(request(1, "test/ask"))
    asked = await wire.receive()
    wire.send(cancel(1))
    told = [await wire.receive(), await wire.receive()]
    assert notification("$/cancelRequest", {"id": asked["id"]}) in told
    assert [message["error"]["code"] for message in told if "error" in message] == [-32800]


REFUSALS = [{"code": -32601, "message": "no such method"}, {"code": "x"}, "no", None]


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_client_that_refuses_or_talks_nonsense_fails_that_request_only(served: Daemon, refusal: Any) -> None:
    wire = await served.connect()
    wire.send(request(1, "test/ask"))
    asked = await wire.receive()
    wire.send({"jsonrpc": "2.0", "id": asked["id"], "error": refusal})
    assert (await wire.receive())["error"]["code"] == -32603
    wire.send(request(2, "test/ask"))
    asked = await wire.receive()
    wire.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"n": 10**30}})
    assert (await wire.receive())["error"]["code"] == -32603
    assert await wire.barrier() == []


async def test_a_client_that_leaves_fails_what_it_was_asked_and_cancels_only_its_own_waiting(served: Daemon) -> None:
    wire, other = await served.connect(), await served.connect()
    wire.send(request(1, "test/wait", {"value": "left"}), request(2, "test/ask"))
    other.send(request(1, "test/wait", {"value": "stays"}))
    await until(lambda: ("started", "left") in served.hub.seen and ("started", "stays") in served.hub.seen)
    session = served.hub.here[0]
    wire.close()
    await until(lambda: served.hub.gone == [session])
    assert ("cancelled", "left", False) in served.hub.seen
    assert session.notify(b"{}") is False
    with pytest.raises(ConnectionError):
        await session.request("tool/execute", {})
    served.hub.gate.set()
    assert (await other.receive())["result"] == {"value": "stays"}


async def test_a_question_of_the_hub_itself_fails_when_its_client_leaves(served: Daemon) -> None:
    wire = await served.connect()
    asking = asyncio.create_task(served.hub.here[0].request("approval/request", {}))
    assert (await wire.receive())["method"] == "approval/request"
    wire.close()
    with pytest.raises(ConnectionError):
        await asking


async def test_pyglss_own_way_to_notify_and_ask_is_the_same_wire(served: Daemon) -> None:
    wire = await served.connect()
    (connection,) = served.host.connections
    told: list[Any] = []
    connection.protocol.notify("server/state", {"state": "ready"})
    connection.protocol.notify("server/state")
    connection.protocol.send_request("test/question", callback=told.append)
    assert await wire.receive() == notification("server/state", {"state": "ready"})
    assert await wire.receive() == notification("server/state")
    asked = await wire.receive()
    assert asked["params"] == {}
    wire.send({"jsonrpc": "2.0", "id": asked["id"], "result": "yes"})
    await until(lambda: told == ["yes"])


async def test_an_inline_method_that_waits_is_answered_as_the_fault_it_is(served: Daemon) -> None:
    wire = await served.connect()
    answer = await wire.call("test/inline")
    assert answer["error"]["code"] == -32603
    wire.send(notification("test/inline"))
    assert await wire.barrier() == []


async def test_two_clients_ids_and_cancels_never_meet(served: Daemon) -> None:
    a, b = await served.connect(), await served.connect()
    a.send(request(1, "test/wait", {"value": "a"}))
    b.send(request(1, "test/wait", {"value": "b"}))
    assert await a.barrier() == []
    assert await b.barrier() == []
    b.send(cancel(1))
    assert (await b.receive())["error"]["code"] == -32800
    assert await a.barrier() == []
    b.close()
    await until(lambda: len(served.hub.gone) == 1)
    served.hub.gate.set()
    assert await a.receive() == {"jsonrpc": "2.0", "id": 1, "result": {"value": "a"}}


async def test_server_status_and_shutdown_reach_the_hub(served: Daemon) -> None:
    wire = await served.connect()
    status = (await wire.call("server/status"))["result"]
    assert status["clients"] == 1
    assert status["instanceId"] == served.host.instance_id
    assert status["memoryBytes"] > 2**20
    assert 0 <= status["uptimeS"] < 60
    assert (status["state"], status["agents"], status["activeRuns"]) == ("ready", 3, 1)
    assert (await wire.call("server/shutdown"))["result"] is None
    assert (await wire.call("server/shutdown", mode="now", requestId="r"))["result"] is None
    assert served.hub.shut_down == ["drain", "now"]
    assert (await wire.call("server/shutdown", mode="later"))["error"]["data"]["field"] == "mode"


async def test_a_body_hash_ignores_the_request_id_and_distinguishes_null_from_left_out(served: Daemon) -> None:
    wire = await served.connect(clientId="me")
    base = (await wire.call("test/caller", requestId="r", title="t"))["result"]
    assert base["clientId"] == "me"
    assert base["requestId"] == "r"
    same = (await wire.call("test/caller", requestId="s", title="t", _meta={"x": 1}))["result"]
    assert same["bodySha256"] == base["bodySha256"]
    others = [{"title": "u"}, {"title": "t", "label": None}, {}]
    hashes = {(await wire.call("test/caller", requestId="r", **other))["result"]["bodySha256"] for other in others}
    assert len(hashes | {base["bodySha256"]}) == 4
    assert "bodySha256" not in (await wire.call("test/caller", title="t"))["result"]


async def test_payloads_stay_out_of_the_log(served: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wire = await served.connect()
    await wire.call("test/echo", value="private-text")
    wire.send(request(1, "test/prompt", {"agentId": "private-text"}), notification("nope", {"x": "private-text"}))
    wire.raw(b"Content-Length: 14\r\n\r\n{private-text}")
    await wire.barrier()
    assert "private-text" not in caplog.text


async def test_a_connection_leaves_no_task_behind(served: Daemon) -> None:
    before = asyncio.all_tasks()
    wire = await served.connect()
    wire.send(request(1, "test/wait"), request(2, "test/ask"))
    await wire.receive()
    wire.close()
    await until(lambda: not served.host.connections)
    await until(lambda: asyncio.all_tasks() <= before)
