"""Defects for the daemon of a crash test, to prove that the suite's checks find them. Never part of the product.

Python imports this module at start when the suite puts this folder on PYTHONPATH; SOJOURN_TEST_PLANT says which one.
"""

from __future__ import annotations

import os
import time
from typing import Any


def acknowledge_before_commit() -> None:
    """What reaches an inbox is acknowledged and published while the commit is still to come."""
    from sojourn.store import _writer

    def is_early(item: Any) -> bool:
        return isinstance(item, list) and any(b'"inboxQueued"' in event.body for event in item)

    def commit(self: Any, batch: Any) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        for job in batch.jobs:
            self._step(job)
        kept = self._write_out(alone=len(batch.jobs) == 1)
        self._note_health(batch, None)
        told = any(is_early(item) for job in batch.jobs for item in job.published)
        if told:
            self._deliver(batch)
            time.sleep(0.02)  # the disk takes its time
        self._db.execute("COMMIT" if kept else "ROLLBACK")
        if not told:
            self._deliver(batch)

    _writer.Writer._commit = commit


def append_results_as_they_finish() -> None:
    """A tool's result enters the conversation when the tool ends, not when its round closes."""
    from sojourn.agents import passes, rounds

    record_output, save, early = rounds.record_output, passes.Pass.save, set()

    def record(ledger: Any, rt: Any, agent: Any, run: Any, row: Any, output: Any) -> None:
        import orjson

        record_output(ledger, rt, agent, run, row, output)
        message = passes.result_message(row, orjson.loads(row.result))
        labels = {"message_id": f"msg-{agent.next_message}", "at": ledger.now}
        agent.next_message += 1
        ledger.append_message(agent, message.model_copy(update=labels))
        early.add((agent.agent_id, row.call_id))

    def save_the_rest(self: Any, ledger: Any) -> Any:
        append = ledger.append_message

        def append_once(agent: Any, message: Any) -> Any:
            if message.role == "toolResult" and (agent.agent_id, message.call_id) in early:
                return message.json_bytes()
            return append(agent, message)

        ledger.append_message = append_once
        try:
            return save(self, ledger)
        finally:
            del ledger.append_message

    rounds.record_output = record
    passes.Pass.save = save_the_rest


PLANTS = {plant.__name__: plant for plant in (acknowledge_before_commit, append_results_as_they_finish)}

if name := os.environ.get("SOJOURN_TEST_PLANT"):
    PLANTS[name]()
