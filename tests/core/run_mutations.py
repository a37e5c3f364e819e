"""Breaks a copy of the run in many small ways and shows that the tests notice: `python tests/core/run_mutations.py`.

Each mutation is one piece of text that must stand exactly once in its file. The property test and the tests of single
cases are run apart against every mutation; one that both of them pass is a hole, and the exit code is then 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "core"
PROPERTY = [TESTS / "test_run_property.py"]
CASES = sorted(p for p in TESTS.glob("test_run*.py") if p.stem not in ("test_run_property", "test_run_mutations"))


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    old: str
    new: str


MUTATIONS = (
    Mutation("one turn too many", "_document.py", "self.turn < self.turn_limit", "self.turn <= self.turn_limit"),
    Mutation("one turn too few", "_document.py", "self.turn < self.turn_limit", "self.turn + 1 < self.turn_limit"),
    Mutation("a turn is not counted", "run.py", "self.turn += 1", "self.turn += 0"),
    Mutation(
        "asking again costs a turn",
        "run.py",
        'case "awaiting_model":\n                return',
        'case "awaiting_model":\n                self.turn += 1\n                return',
    ),
    Mutation(
        "a closed round goes on without a new turn",
        "run.py",
        '"round closed": "preparing"',
        '"round closed": "awaiting_model"',
    ),
    Mutation(
        "results in order of arrival",
        "_turns.py",
        "[self.answers[call.id] for call in self.calls if call.id in self.answers]",
        "list(self.answers.values())",
    ),
    Mutation(
        "an unknown id is accepted",
        "_turns.py",
        'raise _refused(method, f"names {call_id!r}, which is no call',
        'return self.calls[0]\n            raise _refused(method, f"names {call_id!r}, which is no call',
    ),
    Mutation("a second result is accepted", "_turns.py", "if call_id in self.answers:", "if False:"),
    Mutation("two results in a batch are accepted", "_turns.py", "if result.call_id in fresh:", "if False:"),
    Mutation(
        "a preresolved call takes any result", "_turns.py", "if settled.content != result.content:", "if False:"
    ),
    Mutation(
        "one retry too many",
        "run.py",
        "self.invalid_call_retries >= self.invalid_call_limit",
        "self.invalid_call_retries > self.invalid_call_limit",
    ),
    Mutation("a retry is not counted", "run.py", "self.invalid_call_retries += 1", "self.invalid_call_retries += 0"),
    Mutation(
        "a retry keeps repaired names",
        "run.py",
        "self._record(turn.message, *_answers(turn.message,",
        "self._record(turn.accepted(), *_answers(turn.accepted(),",
    ),
    Mutation("a call taken back costs a turn", "run.py", "self.turn -= 1", "pass"),
    Mutation("tokens are not summed", "run.py", "self.usage += usage", "self.usage = usage"),
    Mutation(
        "siblings of a skipped call run",
        "_turns.py",
        "self.skipped.get(call.id, NOT_RUN), is_error=True) for call in self.calls}",
        "self.skipped[call.id], is_error=True) for call in self.calls if call.id in self.skipped}",
    ),
    Mutation("calls of a cut turn run", "_turns.py", "if is_cut(self.message):", "if False:"),
    Mutation("only the first call is checked", "_turns.py", "while position < len(calls)", "if position < len(calls)"),
    Mutation("skipping is allowed under none", "run.py", 'self.choice.mode == "none"', 'self.choice.mode == "never"'),
    Mutation(
        "malformed arguments can be repaired", "run.py", 'if context.reason == "malformed_arguments":', "if False:"
    ),
    Mutation(
        "a repair to any tool there is",
        "run.py",
        "tool_name not in context.allowed_tools",
        "tool_name not in context.available_tools",
    ),
    Mutation(
        "a done run takes messages without a turn left",
        "run.py",
        'if self.state == "done" and not self.can_continue:',
        "if False:",
    ),
    Mutation("a failure is forgotten", "run.py", "self.failure = Failure.of(error)", "pass"),
    Mutation(
        "the history is sent last",
        "run.py",
        "conversation = [*self.history, *self.messages]",
        "conversation = [*self.messages, *self.history]",
    ),
    Mutation("a started call is not marked", "_turns.py", "fresh[call_id] = None", "pass"),
    Mutation("calls that never started are failed", "_turns.py", "if c.id in self.dispatched]", "]"),
    Mutation("an id twice in a turn", "_turns.py", "and part.id not in used:", "and True:"),
    Mutation("an id that the history has", "_turns.py", "and part.id not in taken and", "and"),
    Mutation("an empty turn is recorded", "run.py", "recorded = not is_empty(message)", "recorded = True"),
    Mutation(
        "a cut turn without an answer is done", "run.py", "if is_cut(message) and is_answerless(message):", "if False:"
    ),
    Mutation(
        "open calls stay open in errors",
        "_document.py",
        "return closed([*self.history, *self.messages, *answered])",
        "return [*self.history, *self.messages, *answered]",
    ),
    Mutation("an older format is read", "_document.py", "found != RUN_FORMAT", "found > RUN_FORMAT"),
    Mutation(
        "output is asked for beyond the budget",
        "run.py",
        "return self.can_continue and rules.retries",
        "return rules.retries",
    ),
    Mutation(
        "a cut output is taken", "_output.py", "if is_cut(message):", 'if message.finish_reason == "never":'
    ),
    Mutation(
        "siblings of the output are kept",
        "_output.py",
        "not isinstance(part, TextPart | ToolCallPart)",
        "not isinstance(part, TextPart)",
    ),
    Mutation(
        "a refused batch is kept in part",
        "_turns.py",
        "fresh[result.call_id] = self._fitting(result)",
        "fresh[result.call_id] = self.answers[result.call_id] = self._fitting(result)",
    ),
)  # fmt: skip


def passes(copy: Path, tests: list[Path]) -> bool:
    """Whether `tests` pass against the copy of the package."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "RUN_MUTATIONS": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / "hypothesis"),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=1"]
    done = subprocess.run(
        [*command, *map(str, tests)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"The tests could not be run:\n{done.stdout}\n{done.stderr}")
    return done.returncode == 0


def check_copy(copy: Path) -> None:
    """That the tests see the copy, and pass while it is whole."""
    where = subprocess.run(
        [sys.executable, "-c", "import sojourn.core.run as run; print(run.__file__)"],
        env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True, check=True, timeout=60,
    ).stdout.strip()  # fmt: skip
    if not where.startswith(str(copy)):
        raise RuntimeError(f"The tests would look at {where}, not at the copy.")
    for tests in (PROPERTY, CASES):
        if not passes(copy, tests):
            raise RuntimeError("The tests fail without a mutation.")


def main() -> int:
    """Runs all mutations (or those whose names are given), prints who noticed each, and answers the exit code."""
    holes = []
    chosen = [m for m in MUTATIONS if len(sys.argv) < 2 or m.name in sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="run-mutations-") as folder:
        copy = Path(folder).resolve()
        shutil.copytree(ROOT / "server" / "sojourn", copy / "sojourn", ignore=shutil.ignore_patterns("__pycache__"))
        check_copy(copy)
        for mutation in chosen:
            path = copy / "sojourn" / "core" / mutation.file
            whole = path.read_text()
            if whole.count(mutation.old) != 1:
                raise RuntimeError(f"{mutation.name!r}: {mutation.old!r} is not exactly once in {mutation.file}.")
            path.write_text(whole.replace(mutation.old, mutation.new))
            noticed = [name for name, tests in (("property", PROPERTY), ("cases", CASES)) if not passes(copy, tests)]
            path.write_text(whole)
            print(f"{mutation.name:48} {' + '.join(noticed) or 'NOT NOTICED'}", flush=True)
            if not noticed:
                holes.append(mutation.name)
    print(f"{len(chosen) - len(holes)} of {len(chosen)} mutations noticed")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
