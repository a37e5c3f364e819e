"""Lives of a daemon on one store: each is ended by SIGKILL, at a named point or at a random moment, and looked at."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from crash.checks import check_dead, check_recovered, check_settled, read_store
from crash.client import VERBS, Client
from crash.daemon import Daemon
from crash.notebook import Notebook
from wire import WireClosed, WireError, WireTimeout

POINTS = ("accept", "model", "advance", "tool", "end", "push", "decide")
"""The transitions that the random client reaches in every life (agents/_faults.py)."""


class Broken(AssertionError):
    """Checks did not hold: `found` says which, the message also in which life and with which seed."""

    def __init__(self, message: str, found: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.found = list(found)


class Store:
    """One store, its world, and what its client knows, over many lives.

    `plant` puts a defect into every daemon (`plants/sitecustomize.py`), to see that the checks find it. `verbs` are
    what the client asks for.
    """

    def __init__(self, home: Path, seed: int, *, plant: str | None = None, verbs: Sequence[str] = VERBS) -> None:
        self._home = home
        self._seed = seed
        self._rng = random.Random(seed)
        self._plant = plant
        self._verbs = verbs
        self._notebook = Notebook(home / "world")
        self.lives = 0
        self.struck: list[str] = []
        """The kill points that were reached."""

    def life(self, *, fault: str | None = None, actions: int = 80) -> None:
        """Starts the daemon, checks what it recovered, lets the client act, and kills it: at the kill point `fault`, or
        at a random moment within `actions`. Raises `Broken`."""
        self.lives += 1
        daemon = Daemon(self._home, fault=fault, plant=self._plant)
        try:
            with daemon.connect() as wire:
                wire.initialize("crash-client")
                self._check(check_recovered(wire), daemon)
                client = Client(wire, self._notebook, self._rng, self._verbs)
                client.enter()
                client.act(actions if fault else self._rng.randrange(actions))
                if self._rng.random() < 0.5:
                    client.last_word()
        except WireClosed:
            pass  # the kill point was reached while the daemon recovered, or while the client was entering
        except (WireTimeout, WireError) as wrong:
            raise Broken(f"{self._where(fault)}: {wrong}\n{daemon.log()}") from wrong
        finally:
            struck = daemon.kill()
            if struck and fault:
                self.struck.append(fault)
        assert struck or not daemon.fell, f"{self._where(fault)}: the daemon ended by itself\n{daemon.log()}"
        self._check(check_dead(read_store(self._home / "state"), self._notebook), daemon)

    def end(self) -> None:
        """A last life without a kill: everything is brought to its end, and then nothing may be owed."""
        self.lives += 1
        daemon = Daemon(self._home, plant=self._plant)
        try:
            with daemon.connect() as wire:
                wire.initialize("crash-client")
                self._check(check_recovered(wire), daemon)
                client = Client(wire, self._notebook, self._rng, self._verbs)
                client.enter()
                client.settle()
                self._check(check_recovered(wire), daemon)
            code = daemon.terminate()
            assert code == 0, f"{self._where(None)}: the daemon ended with {code}\n{daemon.log()}"
        finally:
            daemon.kill()
        stored = read_store(self._home / "state")
        self._check([*check_dead(stored, self._notebook), *check_settled(stored, self._notebook)], daemon)

    @property
    def summary(self) -> str:
        """What happened so far, in numbers."""
        intents = self._notebook.intents
        acknowledged = sum(intent.acknowledged for intent in intents)
        return (
            f"{self.lives} lives, {len(self.struck)} kill points reached, "
            f"{len(intents)} requests ({acknowledged} done), "
            f"{len(self._notebook.heard)} events heard, {len(self._notebook.effects())} effects"
        )

    def _check(self, found: list[str], daemon: Daemon) -> None:
        if found:
            shown = "\n".join(found[:10])
            raise Broken(f"{self._where(None)}: {len(found)} checks do not hold:\n{shown}\n{daemon.log()}", found)

    def _where(self, fault: str | None) -> str:
        return f"seed {self._seed}, life {self.lives}, {fault or 'a random kill'} ({self.summary})"
