"""The program behind the `local` backend: it serves one GGUF file on loopback, to one daemon, and ends with it.

Run as a process of its own; the daemon never imports its packages. Its first line on stdin is a JSON object `{file,
window, name, key}`; its first line on stdout is `{"url": …}` or `{"error": …}`. Then nothing is said: when stdin ends
the daemon is gone, however it went, and so is this.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from importlib import import_module
from typing import Any

MOST_TOKENS = 1024
"""How long an answer may get for which nobody set a limit: a small model may not find its end."""
TEMPERATURE, TOP_P, REPEAT_PENALTY = 0.2, 0.9, 1.1
"""What the makers of SmolLM2 recommend, and what keeps it from saying one sentence for ever. `sampling` overrides."""
SLEEP_S = 600
"""Seconds without a request after which the model leaves the memory; the next one loads it again, in about a second."""
MOST_THREADS = 4
"""At most so many, and half of the cores: one thread more than there are idle cores makes all of them wait (measured:
2 s with one thread, minutes with two, on two busy cores)."""


def main() -> None:
    """Serves until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the daemon.
    told = json.loads(sys.stdin.buffer.readline() or b"null")
    over = threading.Thread(target=_leave_with_the_daemon)
    if told is None:
        return
    over.start()
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # What libraries print is not the answer.
        try:
            server = _serve(told)
            said = {"url": server.listening_address}
        except Exception as error:  # noqa: BLE001 - whatever the library says is what the daemon wants to hear
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=answer)
    over.join()


def _serve(told: dict[str, Any]) -> Any:
    xllamacpp = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = told["file"], {told["name"]}
    params.n_ctx, params.n_parallel, params.n_predict = told["window"], 1, MOST_TOKENS
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [told["key"]]
    params.use_jinja, params.ui, params.endpoint_slots, params.offline = True, False, False, True
    params.sampling.temp, params.sampling.top_p = TEMPERATURE, TOP_P
    params.sampling.penalty_repeat = REPEAT_PENALTY
    params.sleep_idle_seconds = SLEEP_S
    params.cache_ram_mib = 0
    params.cpuparams.n_threads = max(1, min(MOST_THREADS, (os.cpu_count() or 1) // 2))
    return xllamacpp.Server(params)


def _leave_with_the_daemon() -> None:
    while sys.stdin.buffer.readline():
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
