"""The key of a model's provider, fetched from where the config says it is.

The rule: it never enters a log, an error or a store.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path

from sojourn.core.errors import ModelError

from .base import ModelSpec

COMMAND_LIMIT_S = 30.0
_ANEW = (
    "Set it and start the daemon anew, which keeps the environment that it began with (`sojourn shutdown`; the next \
command starts it)"
)


class ApiKey:
    """The key of one model; None when its spec names no source. A command runs once, until `forget`."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._from_command: str | None = None

    async def get(self) -> str | None:
        """The key. Raises `ModelError` naming the source that holds none."""
        spec = self._spec
        if spec.api_key_env:
            return self._checked(
                os.environ.get(spec.api_key_env), f"the environment variable {spec.api_key_env!r}", _ANEW
            )
        if spec.api_key_file:
            return self._checked(self._read(spec.api_key_file), f"the file {spec.api_key_file!r}")
        if spec.api_key_command:
            if self._from_command is None:
                output = await self._run(spec.api_key_command)
                self._from_command = self._checked(output, f"the output of {_program(spec.api_key_command)!r}")
            return self._from_command
        return None

    def forget(self) -> None:
        """The provider refused the key: ask the command again next time."""
        self._from_command = None

    def _read(self, path: str) -> str:
        try:
            return Path(path).expanduser().read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise self._error(f"the file {path!r} cannot be read ({reason})") from None

    async def _run(self, command: str) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except (OSError, ValueError):
            raise self._error(f"the command {_program(command)!r} cannot be started") from None
        try:
            async with asyncio.timeout(COMMAND_LIMIT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            raise self._error(f"the command {_program(command)!r} took over {COMMAND_LIMIT_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise self._error(f"the command {_program(command)!r} ended with exit code {process.returncode}")
        return output.decode("utf-8", "replace")

    def _checked(self, text: str | None, source: str, advice: str = "Set it") -> str:
        key = (text or "").strip()
        if not key:
            raise self._error(f"{source} holds no key", advice)
        if not key.isascii() or not key.isprintable() or " " in key:
            raise self._error(f"{source} holds characters that no key has")
        return key

    def _error(self, what: str, advice: str = "Set it") -> ModelError:
        return ModelError(
            f"The model {self._spec.name!r} has no API key: {what}. {advice}, or change its `api_key_*` entry.",
            retryable=False,
            provider=self._spec.backend,
            reason="noApiKey",
        )


def _program(command: str) -> str:
    """The command's first word: its arguments may hold what should not be shown."""
    return command.split()[0] if command.split() else command
