"""The supervisor of one command: starts it in a session of its own, and ends all of it, whatever becomes of the daemon.

A program by itself (`python -I -S _supervise.py KEY=VALUE… -- COMMAND…`): it imports nothing of Sojourn, starts in
milliseconds, and the daemon may be killed beside it at any moment. Three ways of working:

    attached   the command's output is this program's stderr, how it ended is told on stdout; stdin is a lifeline: when
               it closes (the call was stopped, the daemon is dead), the command and all that it started are ended
    dir=PATH   a job: output, start and end are files there, SIGTERM ends the command. The file descriptor `lock` is
               held for as long as this program lives: who finds its file unlocked knows that it is gone. A
               job whose directory was removed is ended: nobody could find it any more
    watch      no command of its own: lines on stdin name leaders of sessions, `+PID BIRTH` that one has begun, `-PID`
               that it is over. When stdin closes (the daemon is dead), what is left is ended with its session

Keys: `cwd`; `grace` (seconds from TERM to KILL); `limit` (seconds the command may take, 0 = any); `umask` (octal);
`most` (bytes of output that a job keeps: its first quarter stays, the rest is what came last).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

SEGMENTS = 4
_LEAVING_S = 0.05
"""What is gone this long after the command was only slower than it, and not left behind."""
_TAIL_S = 0.2
_LOOK_S = 2.0
"""How often a job looks whether its directory is still there."""
_NOTE_TRIES = 600
_SUBREAPER = 36  # prctl(2): PR_SET_CHILD_SUBREAPER
_KILL_S = 2.0


class Output:
    """A job's output in files named by the offset of their first byte. The first of them stays, of the others the last
    ones do; what the disk does not take is counted and missing."""

    def __init__(self, directory: str, most: int) -> None:
        self._directory = directory
        self._size = max(1024, most // SEGMENTS)
        self._names: list[str] = []
        self._fd = -1
        self._room = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        """Appends `data`."""
        while data:
            if self._fd < 0 or not self._room:
                self._next()
            piece = data[: self._room] if self._fd >= 0 else data
            try:
                written = os.write(self._fd, piece)
            except OSError:  # a full disk must not hold the command: the next piece begins a new file
                written = len(piece)
                self.close()
            self._room -= written
            self.total += written
            data = data[written:]

    def _next(self) -> None:
        self.close()
        name = os.path.join(self._directory, f"out-{self.total:015d}")
        try:
            self._fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        self._room = self._size
        self._names.append(name)
        if len(self._names) > SEGMENTS:
            os.unlink(self._names.pop(1))

    def close(self) -> None:
        """Closes the file under way."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._room = -1, 0


class Command:
    """The command and everything that came of it."""

    def __init__(self, argv: list[str], options: dict[str, str]) -> None:
        self._options = options
        self._directory = options.get("dir", "")
        self._output = Output(self._directory, int(options.get("most", "0"))) if self._directory else None
        self._poll = select.poll()
        self._bell, ring = os.pipe()
        os.set_blocking(ring, False)
        os.set_blocking(self._bell, False)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        self._stop = False
        self.began = time.time()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._asked)
        self._source = -1
        self.pid = 0
        self.status: int | None = None
        self.error = self._start(argv)

    # -- starting ---------------------------------------------------------------------------------------------------

    def _start(self, argv: list[str]) -> str:
        """Forks and executes; why that failed, or nothing. The command runs once it is written down that it does."""
        source, sink = os.pipe() if self._output else (-1, 2)
        told, tell = os.pipe()
        gate, key = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(key)
            if os.read(gate, 1):
                self._become(argv, sink, tell)
            os._exit(127)
        os.close(tell)
        os.close(gate)
        self._write_down()
        os.write(key, b"!")
        os.close(key)
        self._poll.register(self._bell, select.POLLIN)
        if self._output:
            os.close(sink)
            os.set_blocking(source, False)
            self._source = source
            self._poll.register(source, select.POLLIN)
        else:
            self._poll.register(0, select.POLLIN)
        with os.fdopen(told, "rb") as pipe:
            return pipe.read().decode(errors="replace")

    def _write_down(self) -> None:
        if self._directory:
            own = os.getpid()
            text = f"pid={own}\nbirth={birth(own)}\nboot={boot()}\nbegan={self.began}\n"
            text += f"command={self.pid}\ncommandBirth={birth(self.pid)}\n"
            tell(self._directory, "started", text.encode(), tries=1)  # without it the job runs, and cannot be stopped
        else:
            tell("", "", f"command={self.pid}\ncommandBirth={birth(self.pid)}\n".encode(), tries=1)

    def _become(self, argv: list[str], sink: int, tell: int) -> None:
        """In the child: never returns."""
        try:
            os.setsid()
            for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if "umask" in self._options:
                os.umask(int(self._options["umask"], 8))
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            if self._options.get("cwd"):
                os.chdir(self._options["cwd"])
            os.execvp(argv[0], argv)  # noqa: S606 - that is what it is for
        except OSError as error:
            os.write(tell, f"{error.strerror}: {error.filename or argv[0]!r}".encode(errors="replace"))
        finally:
            os._exit(127)

    def _asked(self, _number: int, _frame: object) -> None:
        self._stop = True

    # -- while it runs ----------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Waits for its end: `exited`, `stopped` or `timedOut`."""
        limit = float(self._options.get("limit", "0"))
        deadline = time.monotonic() + limit if limit else None
        while self.status is None:
            if self._stop:
                return "stopped"
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return "timedOut"
            if self._directory and _is_gone(self._directory):
                return "stopped"
            self._turn(left if not self._directory else _LOOK_S if left is None else min(left, _LOOK_S))
        return "exited"

    def _turn(self, seconds: float | None) -> bool:
        """Waits for something to happen and takes it in; whether output came."""
        came = False
        for fd, _event in self._poll.poll(None if seconds is None else seconds * 1000 + 1):
            if fd == self._bell:
                os.read(fd, 4096)
            elif fd == self._source:
                came = self._copy()
            elif not os.read(fd, 4096):
                self._poll.unregister(fd)
                self._stop = True
        self._reap()
        return came

    def _copy(self) -> bool:
        assert self._output is not None
        try:
            data = os.read(self._source, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._poll.unregister(self._source)
            return False
        self._output.add(data)
        return True

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.pid:
                self.status = status

    # -- the end ----------------------------------------------------------------------------------------------------

    def end(self, *, everything: bool) -> bool:
        """Ends what is left of it: TERM, a grace, KILL. Its process group, or `everything` that descends from it.

        Answers whether the command had left processes behind.
        """
        patience = time.monotonic() + (0 if everything else _LEAVING_S)
        while (left := bool(self._left(everything))) and time.monotonic() < patience:
            self._turn(0.005)
        deadline = time.monotonic() + float(self._options.get("grace", "2"))
        self._signal(signal.SIGTERM, everything)
        self._signal(signal.SIGCONT, everything)  # what was stopped hears of it only now
        pause = 0.01
        while self._left(everything) and time.monotonic() < deadline:
            self._turn(pause)
            pause = min(2 * pause, 0.2)  # many of these at once must not keep the machine busy with looking
        deadline = time.monotonic() + _KILL_S
        while self._left(everything) and time.monotonic() < deadline:
            self._signal(signal.SIGKILL, everything)
            self._turn(0.02)
        return left

    def _left(self, everything: bool) -> set[int]:
        self._reap()
        found = descendants() if everything else set()
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return found
        return found | {self.pid}

    def _signal(self, number: int, everything: bool) -> None:
        targets = descendants() if everything else set()
        for kill, pid in [(os.killpg, self.pid), *((os.kill, one) for one in targets)]:
            try:
                kill(pid, number)
            except (ProcessLookupError, PermissionError):
                continue

    def drain(self) -> int:
        """Takes what is still in the pipe; a process that went its own way may hold that open. How much came in all."""
        if self._output is None:
            return 0
        deadline = time.monotonic() + _TAIL_S
        while time.monotonic() < deadline and self._turn(0):
            pass
        self._output.close()
        return self._output.total


def _is_gone(path: str) -> bool:
    """Whether nothing is there. A disk that cannot be read now is another matter."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _nothing(_number: int, _frame: object) -> None:
    """A handler, so that the signal rings the bell."""


def descendants(roots: set[int] | None = None) -> set[int]:
    """The processes below this one (or below `roots`), as Linux tells them. Elsewhere none are found."""
    parents: dict[int, int] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return set()
    for name in names:
        if name.isdigit() and (fields := stat_of(int(name))):
            parents[int(name)] = int(fields[1])
    found: set[int] = set()
    fresh = {os.getpid()} if roots is None else roots
    while fresh := {pid for pid, parent in parents.items() if parent in fresh} - found:
        found |= fresh
    return found


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state, parent, group, session, …; none when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def birth(pid: int) -> str:
    """When a process started, in ticks since boot (proc(5), field 22); with its id it names it for good."""
    fields = stat_of(pid)
    return fields[19] if fields else ""


def boot() -> str:
    """Which start of the machine this is."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def adopt_orphans() -> None:
    """Lets processes whose parent dies become this one's, wherever they went (Linux), so that `end` finds them."""
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        return


def tell(directory: str, name: str, text: bytes, *, tries: int = _NOTE_TRIES) -> None:
    """Tells something: as a file of the job's, once the disk takes it, or on stdout."""
    for left in reversed(range(tries)):
        try:
            if directory:
                _write(directory, name, text)
            else:
                os.write(1, text)
        except (BrokenPipeError, FileNotFoundError):  # nobody wants to know any more
            return
        except OSError:
            time.sleep(1 if left else 0)
        else:
            return


def _write(directory: str, name: str, text: bytes) -> None:
    """Writes a file of the job: all of it or nothing."""
    fresh = os.path.join(directory, name + ".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(fresh, os.path.join(directory, name))


def ended(status: int | None) -> dict[str, object]:
    """How the command ended: its exit code, or the signal."""
    if status is None:
        return {}
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status)}


def keep_watch(grace_s: float) -> None:
    """Reads who is to be ended with the daemon, until that is gone; then ends them: first by itself, TERM, KILL."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    named: dict[int, str] = {}
    for line in sys.stdin:
        words = line[1:].split()
        if line.startswith("-"):
            named.pop(int(words[0]), None)
        else:
            named[int(words[0])] = words[1] if len(words) > 1 else ""
    found: dict[int, str] = {}
    for blow in (0, signal.SIGTERM, signal.SIGKILL):
        found |= {pid: birth(pid) for pid in _of_sessions(named)}
        for pid in [pid for pid in found if blow and _lives(pid, found[pid])]:
            _kill(pid, blow)
        deadline = time.monotonic() + grace_s
        while any(_lives(pid, found[pid]) for pid in found) and time.monotonic() < deadline:
            time.sleep(0.01)


def _of_sessions(named: dict[int, str]) -> set[int]:
    """The processes of these sessions, and what their leaders have started anywhere."""
    leaders = {pid for pid, born in named.items() if birth(pid) in ("", born)}
    found = descendants({pid for pid in leaders if birth(pid)})
    for name in os.listdir("/proc") if leaders and os.path.isdir("/proc") else ():
        if name.isdigit() and (fields := stat_of(int(name))) and int(fields[3]) in leaders:
            found.add(int(name))
    return found | leaders


def _lives(pid: int, born: str) -> bool:
    """Whether this very process is there. Where there is no /proc, whether one of its id is."""
    fields = stat_of(pid)
    if fields or os.path.isdir("/proc"):
        return bool(fields) and fields[0] != "Z" and fields[19] == born
    return _kill(pid, 0)


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main(arguments: list[str]) -> None:
    """Runs the command to its end."""
    place = arguments.index("--")
    options = dict(one.split("=", 1) for one in arguments[:place])
    if "watch" in options:
        keep_watch(float(options["grace"]))
        return
    directory = options.get("dir", "")
    if "lock" in options:
        os.set_inheritable(int(options["lock"]), False)
    adopt_orphans()
    command = Command(arguments[place + 1 :], options)
    how = "notStarted" if command.error else command.run()
    left = command.end(everything=how != "exited")
    size = command.drain()
    lines: dict[str, object] = {"outcome": how, **ended(command.status)}
    lines |= {"left": int(left and how == "exited"), "began": command.began, "ended": time.time(), "bytes": size}
    if command.error:
        lines["error"] = " ".join(command.error.split())
    tell(directory, "result", "".join(f"{key}={value}\n" for key, value in lines.items()).encode(errors="replace"))


if __name__ == "__main__":
    main(sys.argv[1:])
