"""`initialize` first, for any LSP client; then `shutdown` and `exit`, which end one connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wire_fakes import Daemon, FakeHub, daemon, hello, notification, request, until

from sojourn.methods._table import METHODS
from sojourn.rpc.host import Host

pytestmark = pytest.mark.anyio


async def test_the_server_says_who_it_is_and_what_it_takes(served: Daemon) -> None:
    wire = await served.connect(greet=False)
    wire.send(hello(protocolVersions=[1, 2]))
    result = (await wire.receive())["result"]
    assert result["serverInfo"]["name"] == "sojourn"
    assert result["capabilities"]["textDocumentSync"] == {"openClose": True, "change": 2}
    about = result["capabilities"]["experimental"]["sojourn"]
    assert about["protocolVersion"] == 1
    assert about["storeId"] == "store-of-tests"
    assert about["instanceId"] == served.host.instance_id
    assert about["limits"]["maxFrameBytes"] == 67108864
    assert about["limits"]["maxInflight"] == 256
    assert about["methods"] == sorted(name for name in METHODS if "/" in name)
    assert Host(FakeHub()).instance_id != served.host.instance_id  # type: ignore[arg-type]


async def test_more_limits_can_be_announced() -> None:
    host = Host(FakeHub(), announce={"maxActiveRuns": 5})  # type: ignore[arg-type]
    assert host.welcome().capabilities.experimental.sojourn.limits["maxActiveRuns"] == 5


async def test_before_initialize_requests_are_refused_and_notifications_dropped(served: Daemon) -> None:
    wire = await served.connect(greet=False)
    wire.send(
        request(1, "test/echo", {"value": 1}),
        request(2, "nope"),
        request(3, "shutdown"),
        notification("test/echo", {"value": 2}),
        hello(),
        request(4, "test/echo", {"value": 3}),
    )
    answers = [await wire.receive() for _ in range(5)]
    assert [answer.get("error", {}).get("code") for answer in answers] == [-32002, -32002, -32002, None, None]
    assert answers[0]["error"]["data"] == {"kind": "notInitialized"}
    assert served.hub.seen == [3]


async def test_a_second_initialize_changes_nothing(served: Daemon) -> None:
    wire = await served.connect(clientId="first")
    wire.send(hello(clientId="second"))
    assert (await wire.receive())["error"]["code"] == -32600
    assert (await wire.call("test/session"))["result"]["client_id"] == "first"
    await until(lambda: len(served.hub.here) == 1)


PLACES = {
    "experimental": lambda own: {"capabilities": {"experimental": {"sojourn": own}}},
    "options": lambda own: {"capabilities": {}, "initializationOptions": {"sojourn": own, "other": 1}},
    "options beside experimental": lambda own: {
        "capabilities": {"experimental": {"snippetTextEdit": True}},
        "initializationOptions": {"sojourn": own},
    },
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
async def test_the_client_says_what_it_can_in_either_place(served: Daemon, place: Any) -> None:
    own = {
        "clientId": "vim.1_a-B",
        "approvals": {"request": {}},
        "tools": {"execute": {}},
        "deltas": {"maxLatencyMs": 50},
        "later": {"unknown": True},
    }
    wire = await served.connect(greet=False)
    wire.send(request("hello", "initialize", {**place(own), "rootUri": "file:///work/my%20dir"}))
    assert "result" in await wire.receive()
    assert (await wire.call("test/session"))["result"] == {
        "client_id": "vim.1_a-B",
        "root_path": "/work/my dir",
        "delta_latency_ms": 50,
        "answers_approvals": True,
        "runs_tools": True,
    }


TOLERATED: dict[str, tuple[Any, str | None]] = {
    "nothing at all": (..., None),
    "empty": ({}, None),
    "nulls": ({"processId": None, "rootUri": None, "capabilities": {}, "workspaceFolders": None}, None),
    "no objects where LSP has any": ({"capabilities": {"experimental": [1]}, "initializationOptions": "x"}, None),
    "an editor's": (
        {
            "processId": 1,
            "clientInfo": {"name": "Neovim", "version": "0.11"},
            "locale": "en",
            "trace": "off",
            "capabilities": {"textDocument": {"hover": {}}, "workspace": {"configuration": True}, "general": {}},
            "workspaceFolders": [{"uri": "file:///a/b", "name": "b"}, {"uri": "file:///c", "name": "c"}],
            "workDoneToken": 7,
        },
        "/a/b",
    ),
    "old root path": ({"rootPath": "/old", "capabilities": {}}, "/old"),
    "relative root path": ({"rootPath": "old", "capabilities": {}}, None),
    "another scheme": ({"rootUri": "untitled:/x", "capabilities": {}}, None),
    "another host": ({"rootUri": "file://elsewhere/x", "capabilities": {}}, None),
    "localhost": ({"rootUri": "file://localhost/x", "capabilities": {}}, "/x"),
    "broken URI": ({"rootUri": "file://[/x", "capabilities": {}}, None),
    "NUL": ({"rootUri": "file:///a%00b", "capabilities": {}}, None),
}


@pytest.mark.parametrize(("params", "root"), TOLERATED.values(), ids=TOLERATED.keys())
async def test_any_lsp_client_can_connect(served: Daemon, params: Any, root: str | None) -> None:
    wire = await served.connect(greet=False)
    wire.send(request("hello", "initialize", params))
    assert "result" in await wire.receive()
    found = (await wire.call("test/session"))["result"]
    assert found["root_path"] == root
    assert found["answers_approvals"] is found["runs_tools"] is False
    assert found["delta_latency_ms"] is None


INVALID = {
    "clientId with a slash": ({"clientId": "a/b"}, "clientId"),
    "clientId empty": ({"clientId": ""}, "clientId"),
    "clientId too long": ({"clientId": "x" * 65}, "clientId"),
    "clientId with a newline": ({"clientId": "a\n"}, "clientId"),
    "clientId a number": ({"clientId": 5}, "clientId"),
    "versions no list": ({"protocolVersions": 1}, "protocolVersions"),
    "versions no numbers": ({"protocolVersions": ["one"]}, "protocolVersions[0]"),
    "token a number": ({"token": 1}, "token"),
    "latency negative": ({"deltas": {"maxLatencyMs": -1}}, "deltas.maxLatencyMs"),
    "approvals true": ({"approvals": True}, "approvals"),
    "execute true": ({"tools": {"execute": True}}, "tools.execute"),
}


@pytest.mark.parametrize(("own", "field"), INVALID.values(), ids=INVALID.keys())
async def test_an_invalid_capability_is_named_and_initialize_may_be_tried_again(
    served: Daemon, own: Any, field: str
) -> None:
    wire = await served.connect(greet=False)
    wire.send(hello(**own))
    error = (await wire.receive())["error"]
    assert error["code"] == -32602
    assert error["data"]["field"] == f"capabilities.experimental.sojourn.{field}"
    wire.send(hello())
    assert "result" in await wire.receive()


async def test_no_common_version_is_refused_with_what_is_supported(served: Daemon) -> None:
    wire = await served.connect(greet=False)
    wire.send(hello(protocolVersions=[2, 3]))
    error = (await wire.receive())["error"]
    assert (error["code"], error["data"]) == (-31009, {"kind": "protocolVersion", "supported": [1]})
    wire.send(hello(protocolVersions=[]))
    assert (await wire.receive())["error"]["code"] == -31009


async def test_after_shutdown_only_exit_is_served_and_the_daemon_lives(served: Daemon) -> None:
    other, wire = await served.connect(), await served.connect()
    wire.send(request(1, "shutdown"), request(2, "test/echo"), request(3, "nope"), notification("test/echo"))
    assert [(await wire.receive()).get("error", {}).get("code") for _ in range(3)] == [None, -32600, -32600]
    wire.send(notification("exit"))
    assert await wire.rest() == []
    assert await other.barrier() == []
    assert served.hub.seen == []


async def test_exit_lets_quick_requests_finish_and_answers_the_others(served: Daemon) -> None:
    wire = await served.connect()
    wire.send(request(1, "test/wait"), request(2, "test/echo"), request(3, "shutdown"), notification("exit"))
    wire.send(request(4, "test/echo", {"value": "after exit"}))
    answers = await wire.rest()
    assert {answer["id"]: answer.get("error", {}).get("code") for answer in answers} == {1: -31017, 2: None, 3: None}
    assert len(answers) == 3
    assert "after exit" not in served.hub.seen


async def test_exit_is_taken_before_initialize_too(served: Daemon) -> None:
    wire = await served.connect(greet=False)
    wire.send(notification("exit"))
    assert await wire.rest() == []
    assert served.hub.here == served.hub.gone == []


async def test_the_hub_hears_of_a_client_after_its_answer_and_when_it_has_gone(served: Daemon) -> None:
    wire = await served.connect(clientId="c")
    (session,) = served.hub.here
    assert session.client_id == "c"
    assert served.hub.gone == []
    wire.close()
    await until(lambda: served.hub.gone == [session])


async def test_a_daemon_that_ends_answers_what_still_waits(tmp_path: Path) -> None:
    async with daemon(tmp_path) as served:
        wire = await served.connect()
        wire.send(request(1, "test/wait"))
        assert await wire.barrier() == []
        served.hang_up = lambda: None  # type: ignore[method-assign]
    answers = await wire.rest()
    assert [(answer["id"], answer["error"]["code"]) for answer in answers] == [(1, -31017)]
    assert served.hub.seen[-1] == ("cancelled", None, False)
    wire.close()
