"""Unix sockets and TCP: any number of clients, nobody else, and no file of anybody's removed."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from wire_fakes import Daemon, FakeHub, Wire, daemon, hello, request, until, wire_methods

from sojourn import _paths
from sojourn.rpc import listen
from sojourn.rpc.host import Host
from sojourn.rpc.listen import CannotListen, parse_address, read_token, serve_tcp, serve_unix

pytestmark = pytest.mark.anyio


def host() -> Host:
    return Host(FakeHub())  # type: ignore[arg-type]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def open_umask() -> Any:
    before = os.umask(0)
    yield
    os.umask(before)


# ── several clients ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_each_client_gets_its_own_answers_and_one_leaving_changes_nothing(served: Daemon) -> None:
    a = await served.connect()
    a.send(request(1, "test/wait", {"value": "a"}))
    b = await served.connect()
    assert (await b.call("test/echo", id=1, value="b"))["result"] == {"value": "b"}
    b.raw(b"Content-Length: nonsense\r\n\r\n")
    await b.rest()
    assert await a.barrier() == []
    served.hub.gate.set()
    assert await a.receive() == {"jsonrpc": "2.0", "id": 1, "result": {"value": "a"}}


async def test_clients_that_are_reset_in_mid_stream_harm_nobody(served: Daemon) -> None:
    """Fifty times: a TCP client is flooded and resets its connection (SO_LINGER 0 sends RST)."""
    stays = await served.connect()
    before = asyncio.all_tasks()
    async with serve_tcp(served.host, "127.0.0.1:0", token="t" * 20) as (name, port):
        for n in range(50):
            reader, writer = await asyncio.open_connection(name, port)
            wire = Wire(reader, writer)
            wire.send(hello(token="t" * 20), request(1, "test/flood", {"count": 40, "size": 20_000}))
            await wire.receive()
            peer = writer.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            assert (await stays.call("test/echo", value=n))["result"] == {"value": n}
        await until(lambda: len(served.host.connections) == 1)
        assert len(served.hub.gone) == 50
        assert (await stays.call("server/status"))["result"]["clients"] == 1
    await until(lambda: asyncio.all_tasks() <= before)


# ── the unix socket ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("open_umask")
async def test_the_socket_is_the_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "s.sock"
    async with serve_unix(host(), path) as used:
        assert used == path
        assert mode(path) == 0o600
        assert mode(path.parent) == 0o700
        assert mode(Path(f"{path}.lock")) == 0o600
        assert os.umask(0) == 0
    assert not path.exists()


async def test_the_default_directory_is_made_private_and_a_named_one_is_left_as_it_is(tmp_path: Path) -> None:
    for name, expected in (("sojourn", 0o700), ("mine", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
        async with serve_unix(host(), tmp_path / name / "s.sock"):
            assert mode(tmp_path / name) == expected


async def test_a_directory_that_anybody_may_write_is_refused_unless_sticky(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(CannotListen, match="Anybody may replace"):
        async with serve_unix(host(), tmp_path / "s.sock"):
            raise AssertionError
    tmp_path.chmod(0o1777)
    async with serve_unix(host(), tmp_path / "s.sock") as used:
        assert used.exists()


async def test_a_directory_that_cannot_be_made_or_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "s.sock", Path("/proc/none/s.sock")):
        with pytest.raises(CannotListen) as refused:
            async with serve_unix(host(), path):
                raise AssertionError
        assert "\n" not in str(refused.value)


async def test_a_socket_left_by_a_crash_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(path))
    async with serve_unix(host(), path):
        reader, writer = await asyncio.open_unix_connection(path)
        wire = Wire(reader, writer)
        wire.send(hello())
        assert "result" in await wire.receive()
        wire.close()


async def test_a_daemon_that_listens_is_never_replaced_also_when_it_is_too_busy_to_accept(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(os.fspath(path))
        busy.listen(0)
        waiting = []
        for _ in range(4):  # fills the queue: the next connect gets EAGAIN
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            waiting.append(client)
            try:
                client.connect(os.fspath(path))
            except BlockingIOError:
                break
        for _ in range(2):
            with pytest.raises(CannotListen, match="listens on") as refused:
                async with serve_unix(host(), path):
                    raise AssertionError
            assert "sojourn connect" in str(refused.value)
            assert path.is_socket()
            for client in waiting:
                client.close()


PLANTED = {
    "file": lambda path, other: path.write_text("precious"),
    "directory": lambda path, other: path.mkdir(),
    "symlink to a file": lambda path, other: (other.write_text("precious"), path.symlink_to(other)),
    "symlink to nothing": lambda path, other: path.symlink_to(other),
    "fifo": lambda path, other: os.mkfifo(path),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())
async def test_what_is_no_socket_is_refused_and_left_as_it_is(tmp_path: Path, plant: Any) -> None:
    path, other = tmp_path / "s.sock", tmp_path / "other"
    plant(path, other)
    before = path.lstat()
    with pytest.raises(CannotListen, match="not a socket"):
        async with serve_unix(host(), path):
            raise AssertionError
    assert path.lstat() == before
    if other.exists():
        assert other.read_text() == "precious"


async def test_a_planted_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "s.sock.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CannotListen, match="lock"):
        async with serve_unix(host(), tmp_path / "s.sock"):
            raise AssertionError
    assert not (tmp_path / "elsewhere").exists()


async def test_starters_wait_for_each_other_with_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "_LOCK_TRIES", 2)
    import fcntl

    lock = os.open(tmp_path / "s.sock.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(CannotListen, match="Another process is starting"):
        async with serve_unix(host(), tmp_path / "s.sock"):
            raise AssertionError
    os.close(lock)


async def test_only_its_own_socket_is_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    async with serve_unix(host(), path):
        path.unlink()
        path.write_text("somebody else's")
    assert path.read_text() == "somebody else's"
    path.unlink()
    async with serve_unix(host(), path):
        path.unlink()  # gone already: nothing to do


async def test_one_of_many_starters_serves(tmp_path: Path) -> None:
    """Four at once, over a stale file, ten rounds; the losers say why in one line."""
    path = tmp_path / "s.sock"
    for _ in range(10):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(os.fspath(path))
        stop, results = asyncio.Event(), []

        async def start(stop: asyncio.Event = stop, results: list[str] = results) -> None:
            try:
                async with serve_unix(host(), path):
                    results.append("serves")
                    await stop.wait()
            except CannotListen as refused:
                results.append(str(refused))

        tasks = [asyncio.create_task(start()) for _ in range(4)]
        await until(lambda results=results: len(results) == 4)
        stop.set()
        await asyncio.gather(*tasks)
        assert sorted(result == "serves" for result in results) == [False, False, False, True]
        assert not path.exists()


@pytest.mark.parametrize("letter", ["x", "ü"])
async def test_a_path_over_the_limit_gets_a_short_one_that_both_sides_derive(tmp_path: Path, letter: str) -> None:
    named = tmp_path / (letter * 60) / (letter * 60) / "s.sock"
    async with serve_unix(host(), named) as used:
        assert used == _paths.socket_path(named)
        assert used.parent == _paths.short_directory()
        assert _paths.owned(used.parent)
        assert len(os.fsencode(used)) <= _paths.MAX_SOCKET_PATH
        assert mode(used) == 0o600
    assert not used.exists()
    Path(f"{used}.lock").unlink()


async def test_a_short_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_paths, "_SHORT", str(tmp_path / "planted"))
    _paths.short_directory().mkdir()
    _paths.short_directory().chmod(0o755)
    with pytest.raises(CannotListen, match="must be yours"):
        async with serve_unix(host(), tmp_path / ("x" * 120)):
            raise AssertionError


async def test_a_peer_of_another_user_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with daemon(tmp_path) as served:
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        wire = await served.connect(greet=False)
        wire.send(hello())
        assert await wire.rest() == []
        monkeypatch.undo()
        assert (await (await served.connect()).call("test/nothing"))["result"] is None


async def test_running_out_of_files_costs_the_newcomer_only(tmp_path: Path) -> None:
    """In a process of its own, whose limit of open files is lowered until accept(2) fails."""
    program = textwrap.dedent("""
        import asyncio, os, resource, sys
        sys.path.insert(0, sys.argv[2])
        from wire_fakes import daemon
        from pathlib import Path

        async def main():
            async with daemon(Path(sys.argv[1])) as served:
                wire = await served.connect()
                spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
                top = os.dup(0)
                hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
                resource.setrlimit(resource.RLIMIT_NOFILE, (top + 2, hard))
                late = asyncio.open_unix_connection(served.path)
                reader, writer = await late
                await asyncio.sleep(0.1)
                assert (await wire.call("test/nothing"))["result"] is None
                for fd in [top, *spare]:
                    os.close(fd)
                writer.write(b'{"jsonrpc":"2.0","id":1,"method":"x"}\\n')
                async with asyncio.timeout(5):
                    assert b"-32002" in await reader.readline()
                writer.close()

        asyncio.run(main())
    """)
    tests = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(tests)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert "could not be accepted" in done.stderr


# ── TCP ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def tcp(address: tuple[str, int]) -> Wire:
    return Wire(*await asyncio.open_connection(*address))


async def test_tcp_wants_the_token_in_initialize() -> None:
    shared = host()
    with wire_methods():
        async with serve_tcp(shared, "127.0.0.1:0", token="a-long-secret-token") as address:
            for shown in ({}, {"token": "wrong"}, {"token": "a-long-secret-tokeN"}, {"token": "ü"}):
                wire = await tcp(address)
                wire.send(request(1, "test/nothing"), hello(**shown), request(2, "test/nothing"))
                answers = await wire.rest()
                assert [answer["error"]["code"] for answer in answers] == [-32002, -31011]
                assert answers[1]["error"]["data"] == {"kind": "unauthorized"}
                wire.close()
            assert shared.hub.here == []
            wire = await tcp(address)
            wire.send(hello(token="a-long-secret-token"), request(2, "test/nothing"))
            assert "result" in await wire.receive()
            assert (await wire.receive())["result"] is None
            wire.close()


async def test_tcp_is_never_served_open() -> None:
    with pytest.raises(CannotListen, match="token"):
        async with serve_tcp(host(), "127.0.0.1:0", token=""):
            raise AssertionError


async def test_serving_other_machines_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async with serve_tcp(host(), "0.0.0.0:0", token="t" * 20):
        assert "other machines" in caplog.text


async def test_a_port_in_use_and_an_unknown_host_are_one_line() -> None:
    async with serve_tcp(host(), "127.0.0.1:0", token="t" * 20) as (name, port):
        with pytest.raises(CannotListen, match="in use"):
            async with serve_tcp(host(), f"{name}:{port}", token="t" * 20):
                raise AssertionError
    with pytest.raises(CannotListen, match="cannot be used"):
        async with serve_tcp(host(), "no host at all:1", token="t" * 20):
            raise AssertionError


ADDRESSES = {
    "127.0.0.1:80": ("127.0.0.1", 80),
    ":8080": ("127.0.0.1", 8080),
    "0": ("127.0.0.1", 0),
    "[::1]:5": ("::1", 5),
    "localhost:65535": ("localhost", 65535),
}


@pytest.mark.parametrize(("text", "expected"), ADDRESSES.items())
async def test_an_address_is_loopback_unless_told_otherwise(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "h:65536", "h:-1", "h:٣"])
async def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(CannotListen, match="no TCP address"):
        parse_address(text)


@pytest.mark.usefixtures("open_umask")
async def test_the_token_is_made_once_for_the_user_alone(tmp_path: Path) -> None:
    path = _paths.token_file(tmp_path)
    token = read_token(path)
    assert len(token) >= 32
    assert mode(path) == 0o600
    assert read_token(path) == token
    assert read_token(tmp_path / "another") != token


SPOILT = {
    "open to others": (lambda path: (path.write_text("x" * 40), path.chmod(0o644)), "open to others"),
    "empty": (lambda path: (path.write_text(""), path.chmod(0o600)), "holds no token"),
    "not text": (lambda path: (path.write_bytes(b"\xff" * 40), path.chmod(0o600)), "not text"),
    "a directory": (lambda path: path.mkdir(mode=0o700), "token"),
    "a symlink": (lambda path: path.symlink_to("/dev/null"), "cannot be read"),
    "a fifo": (lambda path: os.mkfifo(path, 0o600), "holds no token"),
}


@pytest.mark.parametrize(("spoil", "reason"), SPOILT.values(), ids=SPOILT.keys())
async def test_a_token_file_that_cannot_be_trusted_is_refused(tmp_path: Path, spoil: Any, reason: str) -> None:
    spoil(tmp_path / "token")
    with pytest.raises(CannotListen, match=reason):
        read_token(tmp_path / "token")


async def test_a_token_file_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match="cannot be made"):
        read_token(tmp_path / "no directory" / "token")
