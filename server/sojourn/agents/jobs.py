"""Jobs: processes that outlive the call that started them, and the daemon. Each result reaches its agent exactly once.

A job's row is committed before its supervisor starts, and ends in the one transition that puts its result into the
agent's inbox. What became of the process is read from its directory, by whichever daemon lives then: one that died in
between finds the row as it was and does it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import shutil
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from sojourn.core.agent import Caller, Job, Origin
from sojourn.core.errors import (
    Aborted,
    AgentNotFound,
    DamagedRecord,
    JobNotFound,
    LimitReached,
    RunNotFound,
    SojournError,
    StorageError,
)
from sojourn.core.values import clean
from sojourn.store.base import ReadTx
from sojourn.store.records import AgentRecord, CallRecord, JobRecord
from sojourn.tools import jobs as processes
from sojourn.tools.base import ToolOutput
from sojourn.tools.clip import Clip, whole_characters
from sojourn.tools.processes import GRACE_S, Ended, Order, Surroundings, words

from . import rounds, stored
from .inbox import put, put_answer
from .ledger import Ledger

if TYPE_CHECKING:
    from .passes import Pass
    from .runtime import Runtime

log = logging.getLogger(__name__)

POLL_S = 0.1
_STOP_S = GRACE_S + 3.0
_AGENT_SINCE = "agentSince"
"""When the agent of a job was made: another one may have its name by the time that the job ends."""
WITH_AGENT = "stop"
"""Who stops a job that ends with its agent."""
Delivered = Literal["result", "message", "nowhere"]


class Jobs:
    """The jobs of all agents. Without a directory there are none, and none can be started."""

    def __init__(
        self,
        rt: Runtime,
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
        directory: Path | None,
        around: Surroundings,
    ) -> None:
        self._rt = rt
        self._spawn = spawn
        self._directory = directory
        self._around = around
        self._running: dict[str, asyncio.Event] = {}
        """The jobs whose end is looked for; the event tells that it was delivered."""
        self._starting: set[str] = set()
        self._seen: set[str] = set()
        """Those of `_running` that were seen to run."""
        self._troubles: dict[str, str] = {}
        """Why the end of a job could not be recorded, as the log was told."""
        self._children: dict[str, Any] = {}
        """The supervisors that this process started: they are its children, and it must take note of their end."""
        self._watcher: asyncio.Task[None] | None = None

    # -- starting ---------------------------------------------------------------------------------------------------

    async def start(
        self, p: Pass, call: CallRecord, command: str | Sequence[str], *, cwd: str | None, limit_s: float | None
    ) -> str:
        """Starts a call's job; its id. The same call, run again after a restart, finds its job.

        Raises `Aborted` when the run is being stopped, `LimitReached`, `OSError` when no process can be made.
        """
        order = Order(words(command), cwd=cwd or p.config.cwd, limit_s=limit_s)
        shown = command if isinstance(command, str) else " ".join(command)
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        # A task of the hub: once the row is committed, a call that is stopped must not leave a job half started.
        self._spawn(self._start(p, call, order, shown, done), f"job of {call.call_id}")
        return await asyncio.shield(done)

    async def _start(self, p: Pass, call: CallRecord, order: Order, shown: str, done: asyncio.Future[str]) -> None:
        try:
            done.set_result(await self._launch(p, call, order, shown))
        except asyncio.CancelledError:
            done.cancel()
            raise
        except Exception as error:  # noqa: BLE001 (it is the tool's, which waits for it)
            done.set_exception(error)
            done.exception()  # the call may have been stopped; then nobody asks

    async def _launch(self, p: Pass, call: CallRecord, order: Order, shown: str) -> str:
        directory = self._directory
        if directory is None:
            raise RuntimeError("This daemon has no place for jobs.")
        job_id = "job-" + hashlib.sha256(f"{p.run_id}/{call.call_id}".encode()).hexdigest()[:16]
        self._starting.add(job_id)
        try:
            if not await self._rt.write("job", lambda ledger: self._enter(ledger, p, call, job_id, order, shown)):
                return job_id
            try:
                child = processes.launch(directory / job_id, order, self._around, most_bytes=self._most_bytes)
            except (OSError, ValueError):
                await self._rt.write("jobEnd", lambda ledger: ledger.tx.delete(JobRecord, job_id) and None)
                raise
            self._children[job_id] = child
            self._seen.add(job_id)
        finally:
            self._starting.discard(job_id)
        self._look_after([job_id])
        return job_id

    @property
    def _most_bytes(self) -> int:
        return self._rt.limits.max_job_output_bytes

    def _enter(self, ledger: Ledger, p: Pass, call: CallRecord, job_id: str, order: Order, shown: str) -> bool:
        """Enters the job's row; False when this call has its job already."""
        agent, record = p.records(ledger)
        if record.stop_requested or not record.pass_open or agent.active_run_id != record.run_id:
            raise Aborted
        if ledger.tx.get(JobRecord, job_id) is not None:
            return False
        running, most = ledger.tx.count(JobRecord, state="running"), self._rt.limits.max_jobs
        if running >= most:
            raise LimitReached(
                f"{running} jobs are running, the limit maxJobs; wait for one to end, or stop one.",
                limit="maxJobs",
                value=running,
                max=most,
            )
        body = {"toolName": call.tool_name, "command": clean(shown), "cwd": order.cwd, _AGENT_SINCE: agent.created_at}
        ledger.tx.insert(
            JobRecord(job_id, agent.agent_id, call.call_id, "running", ledger.now, orjson.dumps(body).decode())
        )
        return True

    # -- what a restart finds ---------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Finds the jobs of former lives again. Before the passes are recovered: see `settle_calls`."""
        await self.settle_calls()
        rows = await self._rt.store.read(lambda tx: _jobs(tx, state="running"))
        self.end(row.job_id for row in rows if "stoppedBy" in _known(row))
        self._look_after(row.job_id for row in rows if row.job_id not in self._starting)

    async def settle_calls(self) -> None:
        """A call that had started its job when the daemon went, and not said so yet, becomes pending."""
        rows = await self._rt.store.read(lambda tx: [row for row in _jobs(tx) if _is_dispatched(tx, row)])
        rows = [row for row in rows if row.agent_id not in self._rt.live]
        if rows:
            await self._rt.write("jobs", lambda ledger: self._make_pending(ledger, rows))

    def _make_pending(self, ledger: Ledger, rows: Sequence[JobRecord]) -> None:
        for row in rows:
            try:
                agent, call = ledger.agent(row.agent_id), ledger.call(row.agent_id, row.call_id)
                run = ledger.run(call.run_id) if call is not None else None
            except (AgentNotFound, RunNotFound, DamagedRecord) as error:
                log.info("The call of %s is not told that it started: %s", row.job_id, error)
                continue
            if call is None or run is None or call.state != "dispatched":
                continue
            text = f"Started job {row.job_id}: {_known(row)['command']}\nIts result will follow."
            rounds.record_output(ledger, self._rt, agent, run, call, ToolOutput.pending(text))

    # -- the end of a job -------------------------------------------------------------------------------------------

    def _look_after(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._running.setdefault(job_id, asyncio.Event())
        if self._running and (self._watcher is None or self._watcher.done()):
            self._watcher = self._spawn(self._watch(), "jobs")

    async def _watch(self) -> None:
        while self._running:
            for job_id in list(self._running):
                try:
                    await self._look(job_id)
                except (SojournError, OSError, ValueError) as error:  # the row still says that it runs: tried again
                    if self._troubles.get(job_id) != (why := str(error)):
                        self._troubles[job_id] = why
                        log.warning("The end of %s could not be recorded: %s", job_id, why)
            await asyncio.sleep(POLL_S)

    async def _look(self, job_id: str) -> None:
        child = self._children.get(job_id)
        if child is not None and child.poll() is not None:
            del self._children[job_id]
        job = processes.look(self._place(job_id))
        if job.ended is None:
            self._seen.add(job_id)
            processes.go_on(job)
            return
        ended = job.ended
        if ended.how == "notStarted" and job_id in self._seen and not self._place(job_id).exists():
            ended = Ended("lost", error="its files were removed while it ran")
        if ended.how == "lost":
            processes.end_orphans(job)
        await self._deliver(job_id, ended)
        self._running.pop(job_id).set()
        self._seen.discard(job_id)
        self._troubles.pop(job_id, None)
        await self.tidy()

    def _place(self, job_id: str) -> Path:
        assert self._directory is not None, f"There is a job {job_id!r}, and no place for jobs."
        return self._directory / job_id

    async def _deliver(self, job_id: str, ended: Ended) -> None:
        output = await asyncio.to_thread(processes.clipped, self._place(job_id), Clip())
        size = processes.size(self._place(job_id))

        def change(ledger: Ledger) -> None:
            row = ledger.tx.get(JobRecord, job_id)
            if row is None or row.state != "running":
                return  # a former try was committed, though nobody heard of it
            body = {**_known(row), "endedAt": _time(ended.ended) or ledger.now, "outputBytes": size}
            body |= {"outcome": ended.how, "exitCode": ended.code, "signal": ended.signal}
            body["delivered"] = _hand_over(ledger, row, body, _result(body, output, ended), is_error=ended.is_error)
            row.state, row.body = "ended", orjson.dumps(body).decode()
            ledger.tx.update(row, "state", "body")

        await self._rt.write("jobEnd", change)

    async def tidy(self) -> None:
        """Forgets the oldest ended jobs beyond `maxKeptJobs`, with their output, and directories of no job."""
        if self._directory is None:
            return
        most = self._rt.limits.max_kept_jobs
        rows = await self._rt.store.read(lambda tx: _jobs(tx, state="ended", order=("since", "job_id")))
        old = [row.job_id for row in rows[: max(0, len(rows) - most)]]
        if old:
            await self._rt.write("tidy", lambda ledger: [ledger.tx.delete(JobRecord, one) for one in old] and None)
        for job_id in old:
            await asyncio.to_thread(shutil.rmtree, self._directory / job_id, ignore_errors=True)

    async def sweep(self) -> None:
        """At start: removes the directories whose rows are gone."""
        await self.tidy()
        if self._directory is None or not self._directory.is_dir():
            return
        known = {row.job_id for row in await self._rt.store.read(_jobs)}
        for path in [path for path in self._directory.iterdir() if path.name not in known]:
            if processes.look(path).ended is not None:
                await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    # -- stopping ---------------------------------------------------------------------------------------------------

    async def stop(self, caller: Caller, job_id: str) -> dict[str, Any]:
        """`job/stop`: ends a job; answers it when it has ended, or when that takes longer than its grace.

        Raises `StorageError` when that cannot be written; the job is ended all the same: it may be what fills the disk.
        """
        await self._row(job_id)
        over = self._running.get(job_id)
        by = caller.client_id or "anonymous"
        try:
            self.end(await self._rt.write("jobStop", lambda ledger: _mark(ledger, [job_id], by)))
        except StorageError:
            self.end([job_id] if over is not None else [])
            raise
        if over is not None:
            try:
                async with asyncio.timeout(_STOP_S):
                    await over.wait()
            except TimeoutError:
                log.warning("The job %s was told to stop and has not ended yet.", job_id)
        return self._view(await self._row(job_id))

    async def agents_stopped(self, agent_ids: Sequence[str]) -> None:
        """Agents were stopped: ends the jobs of those whose config wants that (`jobsOnStop`)."""
        if self._running or self._starting:
            self.end(await self._rt.write("jobStop", lambda ledger: self.mark_stopped(ledger, agent_ids)))

    def mark_stopped(self, ledger: Ledger, agent_ids: Sequence[str]) -> list[str]:
        """The jobs that end with these agents, marked so; `end` comes after the commit. A daemon that dies in between
        does the rest at its next start."""
        found = []
        for row in ledger.tx.find(JobRecord, state="running", agent_id=tuple(agent_ids)):
            agent = ledger.tx.get(AgentRecord, row.agent_id)
            with contextlib.suppress(DamagedRecord):  # nobody knows that it is to end
                if agent is not None and self._rt.config_of(stored.config(agent)).jobs_on_stop == "stop":
                    found.append(row.job_id)
        return _mark(ledger, found, WITH_AGENT)

    def end(self, job_ids: Iterable[str]) -> None:
        """Ends the processes of jobs."""
        for job_id in job_ids:
            self._spawn(self._end_process(job_id), f"stop {job_id}")

    async def _end_process(self, job_id: str) -> None:
        try:
            async with asyncio.timeout(_STOP_S):
                while job_id in self._starting or not processes.stop(job := processes.look(self._place(job_id))):
                    if job_id not in self._starting and job.ended is not None:
                        return
                    await asyncio.sleep(0.02)  # its supervisor is about to say who it is
        except (TimeoutError, OSError) as error:
            log.warning("The job %s could not be told to stop: %s", job_id, error or "it does not say who it is")

    # -- looking ----------------------------------------------------------------------------------------------------

    async def listed(self, agent_id: str | None, state: str | None) -> dict[str, Any]:
        """`job/list`: the newest first."""
        if agent_id is not None:
            await self._rt.agent(agent_id)
        where: dict[str, Any] = {
            key: value for key, value in (("agent_id", agent_id), ("state", state)) if value is not None
        }
        rows = await self._rt.store.read(lambda tx: _jobs(tx, order=("since", "job_id"), desc=True, **where))
        return {"jobs": [self._view(row) for row in rows]}

    async def output(self, job_id: str, offset: int, most: int) -> dict[str, Any]:
        """`job/output`: a piece of what a job wrote to stdout and stderr."""
        row = await self._row(job_id)
        place = self._place(job_id)
        piece = await asyncio.to_thread(processes.read, place, offset, most)
        size = processes.size(place)
        data = piece.data
        if row.state == "running" or piece.offset + len(data) < size:
            data = whole_characters(data) or data
        return {
            "job": self._view(row),
            "offset": piece.offset,
            "text": clean(data.decode(errors="replace")),
            "nextOffset": piece.offset + len(data),
        }

    async def _row(self, job_id: str) -> JobRecord:
        row = await self._rt.store.read(lambda tx: tx.get(JobRecord, job_id))
        if row is None:
            raise JobNotFound(f"There is no job {job_id!r}; one that ended long ago is forgotten.", jobId=job_id)
        return row

    def _view(self, row: JobRecord) -> dict[str, Any]:
        body = _known(row)
        if row.state == "running":
            body["outputBytes"] = processes.size(self._place(row.job_id))
        fields = {key: value for key, value in body.items() if value is not None and key != _AGENT_SINCE}
        ids = {"jobId": row.job_id, "agentId": row.agent_id, "callId": row.call_id}
        ids |= {"state": row.state, "since": row.since}
        try:
            return stored.value(row, "body", Job, {**ids, **fields}).wire()
        except DamagedRecord as error:
            return stored.value(row, "state", Job, {**ids, **_unknown(error)}).wire()


def _mark(ledger: Ledger, job_ids: Iterable[str], by: str) -> list[str]:
    """Notes who stops the jobs; those of them that run."""
    rows = [row for job_id in job_ids if (row := ledger.tx.get(JobRecord, job_id)) is not None]
    running = [row for row in rows if row.state == "running"]
    for row in running:
        row.body = orjson.dumps({**_known(row), "stoppedBy": by}).decode()
        ledger.tx.update(row, "body")
    return [row.job_id for row in running]


def _jobs(tx: ReadTx, **question: Any) -> list[JobRecord]:
    """Jobs; a damaged row is one of them, with what it still says."""
    return tx.find(JobRecord, damaged={}, **question)


def _known(row: JobRecord) -> dict[str, Any]:
    """What the row says of its job. A damaged one says that: its process and its call still need an end."""
    try:
        return stored.fields(row, "body", "toolName", "command")
    except DamagedRecord as error:
        log.error("What is known of a job is lost. %s", error)
        return _unknown(error)


def _unknown(error: DamagedRecord) -> dict[str, Any]:
    return {"toolName": "unknown", "command": f"(unknown: {error.message})"}


def _time(seconds: float) -> str | None:
    if not seconds:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_dispatched(tx: ReadTx, row: JobRecord) -> bool:
    try:
        call = tx.get(CallRecord, row.agent_id, row.call_id)
    except DamagedRecord:
        return False
    return call is not None and call.state == "dispatched"


def _result(body: dict[str, Any], output: str, ended: Ended) -> str:
    """What the agent reads of a job."""
    text = output.rstrip("\n") or "(no output)"
    by = body.get("stoppedBy")
    note = (
        f"[stopped by {'the user' if by == WITH_AGENT else repr(by)}]" if by and ended.how != "exited" else ended.text
    )
    return str(clean(f"{text}\n{note}"))


def _hand_over(ledger: Ledger, row: JobRecord, body: dict[str, Any], text: str, *, is_error: bool) -> Delivered:
    """Puts the result into the agent's inbox: as its call's, or as a message when the call can take none any more."""
    agent = ledger.tx.get(AgentRecord, row.agent_id)
    if agent is None or agent.deleted or body.get(_AGENT_SINCE, agent.created_at) != agent.created_at:
        return "nowhere"
    agent, call = ledger.agent(row.agent_id), ledger.call(row.agent_id, row.call_id)
    if call is None or call.answered_at is not None:
        why = "its call is not in the conversation any more" if call is None else "its call was answered already"
        text = f"The result of {row.job_id} is dropped: {why}."
        ledger.warning(agent, "resultDropped", text, data={"callId": row.call_id, "jobId": row.job_id})
        return "nowhere"
    origin = Origin(client_id=f"tool.{body['toolName']}")
    wake = body.get("stoppedBy") != WITH_AGENT  # a job that ended with its agent does not start it again
    part = {"type": "text", "text": text}
    if call.state in ("pending", "dispatched"):
        content, error = (None, text) if is_error else ([part], None)
        put_answer(ledger, agent, call, content=content, error=error, origin=origin, wake=wake)
        return "result"
    part["text"] = f"[{row.job_id}, started by the call {row.call_id}: {body['command']}]\n{text}"
    put(ledger, agent, {"kind": "message", "content": [part]}, origin=origin, wake=wake)
    return "message"
