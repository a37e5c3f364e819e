"""Where connections come from: a unix socket, TCP. (`stdio.py` is the third way in.)

A listener is an async context manager that serves in its own task group and has let go of everything when it is left.
What it cannot do raises `CannotListen` with one line for the user. A socket file is removed only when it is a socket
that nobody listens on, and at the end only when it is still our own.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import ipaddress
import logging
import os
import secrets
import socket
import stat
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from sojourn import _paths

from .connection import Connection
from .host import Host

log = logging.getLogger(__name__)

_BACKLOG = 128
_LOCK_TRIES = 100
_OUT_OF_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class CannotListen(Exception):
    """A listener cannot start; the message is one line for the user."""


@asynccontextmanager
async def serve_unix(host: Host, path: str | os.PathLike[str]) -> AsyncIterator[Path]:
    """Serves any number of this user's clients on the unix socket named `path`; gives the path that is used.

    The socket is 0600; a directory that is made for it is 0700; peers of another user are refused.
    """
    used = _paths.socket_path(path)
    _prepare_directory(used.parent)
    listener = await _bind_unix(used)
    ours = os.stat(used)
    try:
        async with _accepting(host, listener, name="unix", check=_same_user):
            yield used
    finally:
        listener.close()
        _remove_if_ours(used, ours)


@asynccontextmanager
async def serve_tcp(host: Host, address: str, *, token: str) -> AsyncIterator[tuple[str, int]]:
    """Serves clients that show `token` on `HOST:PORT` (port 0 = any free one); gives the address that is used."""
    name, port = parse_address(address)
    if not token:
        raise CannotListen("TCP is never served without a token.")
    listener = _bind_tcp(name, port)
    used = listener.getsockname()[:2]
    if not ipaddress.ip_address(used[0]).is_loopback:
        log.warning("TCP is served on %s, which other machines may reach; the token is all that protects it.", used[0])
    try:
        async with _accepting(host, listener, name="tcp", token=token):
            yield used
    finally:
        listener.close()


def parse_address(address: str) -> tuple[str, int]:
    """`HOST:PORT`, `[HOST]:PORT`, `:PORT` or `PORT`; without a host the loopback one. Raises `CannotListen`."""
    name, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise CannotListen(f"{address!r} is no TCP address; HOST:PORT would be one, such as 127.0.0.1:7700.")
    return name.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def read_token(path: str | os.PathLike[str]) -> str:
    """The token in the file `path`, which is made with a new one at the first start. Raises `CannotListen`."""
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read_token(path)
    except OSError as error:
        raise CannotListen(f"The token file {os.fspath(path)!r} cannot be made: {error.strerror}.") from None
    token = secrets.token_urlsafe(32)
    with os.fdopen(made, "w") as file:
        os.fchmod(made, 0o600)
        file.write(token + "\n")
    return token


def _read_token(path: str | os.PathLike[str]) -> str:
    shown = os.fspath(path)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            found = os.fstat(file.fileno())
            token = file.read(4096).strip() if stat.S_ISREG(found.st_mode) else ""
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CannotListen(f"The token file {shown!r} cannot be read: {reason}.") from None
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise CannotListen(f"The token file {shown!r} is open to others; remove it, and a new one is made.")
    if len(token) < 16:
        raise CannotListen(f"The token file {shown!r} holds no token; remove it, and a new one is made.")
    return token


# ── accepting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _accepting(
    host: Host, listener: socket.socket, *, name: str, token: str | None = None, check: object = None
) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_accept, host, listener, tasks, name, token, check is _same_user)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


async def _accept(
    host: Host, listener: socket.socket, tasks: TaskGroup, name: str, token: str | None, same_user: bool
) -> None:
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    while True:
        try:
            peer, _ = await loop.sock_accept(listener)
        except OSError as error:
            # A peer that is gone already concerns nobody; out of files, others' ends free some.
            log.warning("A connection could not be accepted: %s", error.strerror)
            await anyio.sleep(0.2 if error.errno in _OUT_OF_FILES else 0)
            continue
        if same_user and not _same_user(peer):
            log.warning("A connection of another user was refused.")
            peer.close()
            continue
        tasks.start_soon(_serve_socket, host, peer, name, token)


async def _serve_socket(host: Host, peer: socket.socket, name: str, token: str | None) -> None:
    peer.setblocking(False)
    connection = Connection(host, name=name, token=token)
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, peer)
        await connection.serve()
    except Exception:
        log.exception("The connection %s ended by a fault.", connection.session.name)


def _same_user(peer: socket.socket) -> bool:
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:  # no such option on this system: the socket's mode and directory have to do
        return True
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return bool(uid == os.geteuid())


# ── binding ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _bind_tcp(name: str, port: int) -> socket.socket:
    shown = f"{name}:{port}"
    try:
        family, kind, proto, _, where = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise CannotListen(f"The address {shown!r} cannot be used: {error.strerror}.") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise CannotListen(f"The address {shown!r} cannot be listened on: {reason}.") from None
    return listener


def _prepare_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True)
        directory.chmod(0o700)  # whatever the umask was
    except FileExistsError:
        pass
    except OSError as error:
        raise CannotListen(f"The socket's directory {str(directory)!r} cannot be made: {error.strerror}.") from None
    _judge_directory(directory)


def _judge_directory(directory: Path) -> None:
    shown = str(directory)
    found = os.stat(directory)
    if not stat.S_ISDIR(found.st_mode):
        raise CannotListen(f"The socket's directory {shown!r} is not a directory.")
    if directory == _paths.short_directory() and not _paths.owned(directory):
        raise CannotListen(f"The socket's directory {shown!r} must be yours with mode 0700.")
    if directory.name == "sojourn" and found.st_uid == os.geteuid():
        directory.chmod(0o700)  # the default place is ours alone; a directory that somebody named is left as it is
    elif found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise CannotListen(f"Anybody may replace files in the socket's directory {shown!r}; make it 0700.")


async def _bind_unix(path: Path) -> socket.socket:
    """A listening socket at `path`. A lock beside it keeps two starters from removing each other's."""
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotListen(f"The lock of the socket {str(path)!r} cannot be made: {error.strerror}.") from None
    try:
        await _lock(lock, path)
        _clear(path)
        return _listen_unix(path)
    finally:
        os.close(lock)


async def _lock(lock: int, path: Path) -> None:
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await anyio.sleep(0.02)
        else:
            return
    raise CannotListen(f"Another process is starting on the socket {str(path)!r}.")


def _listen_unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _umask(0o177):
            listener.bind(os.fspath(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotListen(f"The socket {str(path)!r} cannot be listened on: {error.strerror or error}.") from None
    return listener


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _clear(path: Path) -> None:
    """Removes a socket at `path` that nobody listens on; refuses anything else that is there."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise CannotListen(f"{str(path)!r} exists and is not a socket; it is left as it is.")
    if _somebody_listens(path):
        raise CannotListen(f"A daemon listens on {str(path)!r} already; 'sojourn connect' reaches it.")
    path.unlink()


def _somebody_listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            # A full queue (EAGAIN: a busy or stopped daemon), no permission: not ours to remove.
            return True
    return True


def _remove_if_ours(path: Path, ours: os.stat_result) -> None:
    try:
        found = os.lstat(path)
        if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
            path.unlink()
    except OSError as error:
        log.debug("The socket %s was not removed: %s", path, error.strerror)
