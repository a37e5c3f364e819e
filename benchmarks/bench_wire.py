"""The wire's price: the server's CPU time a message, as a ratio to a bare asyncio + orjson server of the same run.

Each server is a process of its own behind a unix socket; its CPU time is what the kernel counts for it. The two take
turns, and the median of the rounds' ratios is printed, one JSON line a case. Exit code 1 when a limit is passed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

import orjson
from _report import Report

CASES = {
    "ping-pong": 2.0,
    "64 in flight": 2.0,
    "2.5 kB prompt": 2.0,
    "one way": 2.0,
    "one event to 100 clients": 1.5,
}
EVENT = {
    "agentId": "agent-1",
    "runId": "run-1",
    "at": "2025-01-01T00:00:00.000Z",
    "event": {"type": "messageDelta", "messageId": "msg-1", "part": 0, "kind": "text", "offset": 1200, "text": "word "},
}


# ── servers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def used() -> int:
    """This process's CPU time in µs."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return round((usage.ru_utime + usage.ru_stime) * 1e6)


def settle() -> None:
    """What the daemon does after its start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


class Bare:
    """The bare server: a task a request, nothing checked, nothing bounded."""

    def __init__(self) -> None:
        self.watching: set[asyncio.StreamWriter] = set()
        self.heard = 0

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(head[len(b"Content-Length: ") :]))
                task = asyncio.create_task(self.answer(orjson.loads(body), writer))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        except asyncio.IncompleteReadError:
            self.watching.discard(writer)
            writer.close()

    async def answer(self, message: dict, writer: asyncio.StreamWriter) -> None:
        params = message["params"]
        match message["method"]:
            case "bench/used":
                result = {"us": used()}
            case "bench/publish":
                result = await self.publish(params["count"])
            case "bench/watch":
                self.watching.add(writer)
                result = {}
            case "bench/heard":
                result = {"count": self.heard}
            case "bench/hear":
                self.heard += len(params["text"])
                return
            case _:
                result = {"text": params["text"][:16]}
        writer.write(framed({"jsonrpc": "2.0", "id": message["id"], "result": result}))

    async def publish(self, count: int) -> dict:
        for n in range(count):
            event = framed({"jsonrpc": "2.0", "method": "agent/event", "params": {**EVENT, "seq": n}})
            for other in self.watching:
                other.write(event)
            await asyncio.sleep(0)
        return {}


def framed(message: object) -> bytes:
    body = orjson.dumps(message)
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


async def bare(path: str) -> None:
    server = await asyncio.start_unix_server(Bare().client, path)
    settle()
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


async def ours(path: str) -> None:
    """Sojourn's wire with the least of methods behind it."""
    from sojourn.core.values import Value
    from sojourn.methods._table import Params, method
    from sojourn.rpc.answers import encode_notification
    from sojourn.rpc.host import Host
    from sojourn.rpc.listen import serve_unix

    class Hub:
        store_id = "bench"

        def client_ready(self, session: object) -> None:
            pass

        def client_gone(self, session: object) -> None:
            watching.discard(session)

    class Said(Params):
        text: str = ""
        count: int = 0

    class Echo(Value):
        text: str

    watching: set = set()
    define_hearing(Said)

    @method("bench/echo", params=Said, result=Echo)
    async def echo(session: object, params: Said) -> Echo:
        return Echo(text=params.text[:16])

    @method("bench/used", params=Said, result=None)
    async def cpu(session: object, params: Said) -> dict:
        return {"us": used()}

    @method("bench/watch", params=Said, result=None)
    async def watch(session: object, params: Said) -> dict:
        watching.add(session)
        return {"text": ""}

    @method("bench/publish", params=Said, result=None)
    async def publish(session: object, params: Said) -> dict:
        for n in range(params.count):
            event = encode_notification("agent/event", {**EVENT, "seq": n})
            for other in watching:
                if not other.notify(event):
                    raise RuntimeError("an event was dropped")
            await asyncio.sleep(0)
        return {"text": ""}

    async with serve_unix(Host(Hub()), path):
        settle()
        print("ready", flush=True)
        await asyncio.Event().wait()


def define_hearing(said: type) -> None:
    """A notification with a task of its own, which costs more than the daemon's own ones, and how much it has heard."""
    from sojourn.methods._table import method

    heard = 0

    @method("bench/hear", params=said, result=None)
    async def hear(session: object, params: said) -> None:
        nonlocal heard
        heard += len(params.text)

    @method("bench/heard", params=said, result=None)
    async def told(session: object, params: said) -> dict:
        return {"count": heard}


# ── the client: blocking sockets, the same for both ──────────────────────────────────────────────────────────────────


class Client:
    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.settimeout(30)
        self.buffer = b""

    def call(self, method: str, **params: object) -> dict:
        self.socket.sendall(request(1, method, params))
        return self.read()

    def read(self) -> dict:
        """The next message."""
        while True:
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            length = int(head.rpartition(b":")[2]) if found else 0
            if found and len(rest) >= length:
                self.buffer = rest[length:]
                return orjson.loads(rest[:length])
            self.buffer += self.socket.recv(1 << 20)

    def skip(self, bodies: int, mark: bytes) -> None:
        """Reads until `bodies` messages with `mark` in them came, parsing none of them."""
        seen = self.buffer.count(mark)
        while seen < bodies:
            self.buffer = self.socket.recv(1 << 20)
            if not self.buffer:
                raise EOFError
            seen += self.buffer.count(mark)
        self.buffer = b""


def request(id: int, method: str, params: object) -> bytes:
    body = orjson.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def notification(method: str, params: object) -> bytes:
    return framed({"jsonrpc": "2.0", "method": method, "params": params})


class Server:
    def __init__(self, kind: str, folder: str) -> None:
        self.path = f"{folder}/{kind}.sock"
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", kind, self.path], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit(f"the {kind} server did not start")
        self.control = self.client()

    def client(self) -> Client:
        client = Client(self.path)
        client.call("initialize", capabilities={}, text="")
        return client

    def cost(self, work: Callable[[], int]) -> float:
        """The server's CPU time in µs for each of the messages that `work` makes it handle."""
        before = self.control.call("bench/used", text="")["result"]["us"]
        messages = work()
        return (self.control.call("bench/used", text="")["result"]["us"] - before) / messages

    def stop(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def ping_pong(server: Server, text: str, count: int) -> Callable[[], int]:
    client = server.client()

    def work() -> int:
        for _ in range(count):
            client.call("bench/echo", text=text)
        return count

    return work


def in_flight(server: Server, text: str, rounds: int) -> Callable[[], int]:
    client = server.client()
    burst = b"".join(request(n, "bench/echo", {"text": text}) for n in range(64))

    def work() -> int:
        for _ in range(rounds):
            client.socket.sendall(burst)
            client.skip(64, b'"result"')
        return 64 * rounds

    return work


def one_way(server: Server, text: str, rounds: int) -> Callable[[], int]:
    """Notifications in bursts of 64. A question behind the last of them waits until they are handled, all of them."""
    client = server.client()
    burst = notification("bench/hear", {"text": text}) * 64

    def work() -> int:
        before = client.call("bench/heard", text="")["result"]["count"]
        for _ in range(rounds):
            client.socket.sendall(burst)
            client.call("bench/heard", text="")
        heard = client.call("bench/heard", text="")["result"]["count"] - before
        if heard != 64 * rounds * len(text):
            raise SystemExit(f"of {64 * rounds} notifications only {heard // len(text)} were handled")
        return 65 * rounds + 2

    return work


def fan_out(server: Server, count: int) -> Callable[[], int]:
    clients = [server.client() for _ in range(100)]
    for client in clients:
        client.call("bench/watch", text="")

    def work() -> int:
        # Fewer bytes than a socket buffers: the readers read after the measurement, and no queue is measured.
        server.control.call("bench/publish", text="", count=count)
        return 100 * count

    def drained() -> int:
        messages = work()
        for client in clients:
            client.skip(count, b"agent/event")
        return messages

    return drained


def work_of(case: str, server: Server, scale: float) -> Callable[[], int]:
    match case:
        case "ping-pong":
            return ping_pong(server, "hello", int(1500 * scale))
        case "64 in flight":
            return in_flight(server, "hello", int(150 * scale))
        case "2.5 kB prompt":
            return ping_pong(server, "word " * 500, int(1500 * scale))
        case "one way":
            return one_way(server, "hello", int(150 * scale))
        case _:
            return fan_out(server, int(100 * scale))


def measure(report: Report, case: str, *, rounds: int, scale: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        servers = {kind: Server(kind, folder) for kind in ("bare", "ours")}
        try:
            works = {kind: work_of(case, server, scale) for kind, server in servers.items()}
            costs: dict[str, list[float]] = {"bare": [], "ours": []}
            for n in range(rounds + 1):
                for kind, server in servers.items():
                    cost = server.cost(works[kind])
                    if n:  # the first round warms up
                        costs[kind].append(cost)
        finally:
            for server in servers.values():
                server.stop()
    report.line(
        f"wire.{case.replace(' ', '_')}",
        statistics.median(costs["ours"]),
        "us CPU/message",
        baseline="a bare asyncio + orjson server",
        baseline_value=statistics.median(costs["bare"]),
        ratio=statistics.median(o / b for o, b in zip(costs["ours"], costs["bare"], strict=True)),
        at_most=CASES[case],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=2, metavar=("KIND", "PATH"))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--scale", type=float, default=1.0, help="how much work a round is")
    parser.add_argument("--case", choices=CASES)
    options = parser.parse_args()
    if options.serve:
        kind, path = options.serve
        asyncio.run({"bare": bare, "ours": ours}[kind](path))
        return 0
    report = Report()
    for case in [options.case] if options.case else CASES:
        measure(report, case, rounds=options.rounds, scale=options.scale)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
