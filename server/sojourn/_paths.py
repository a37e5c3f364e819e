"""Where things live: config, state, socket and token, found the same way by the daemon and by every client.

Standard library only, and little of it: `sojourn connect` imports this and must start in milliseconds, so paths are
strings inside (importing pathlib takes longer than all the rest). Nothing here creates anything.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # As typing has it, whose import is not small either; type checkers know the name.
if TYPE_CHECKING:
    from pathlib import Path

MAX_SOCKET_PATH = 107 if sys.platform.startswith("linux") else 103
"""Bytes that fit into `sockaddr_un.sun_path` beside its closing NUL (unix(7); the BSDs have four less)."""
_SHORT = "/tmp/sojourn"  # noqa: S108 (0700, and its owner is checked before use)


def config_file(option: str | os.PathLike[str] | None = None) -> tuple[Path, bool]:
    """The config file, and whether somebody named it (a named one that is missing is an error)."""
    named = option or os.environ.get("SOJOURN_CONFIG")
    if named:
        return _path(_absolute(named)), True
    return _path(os.path.join(_xdg("XDG_CONFIG_HOME", ".config"), "sojourn", "config.toml")), False


def state_dir(option: str | os.PathLike[str] | None = None) -> Path:
    """The state directory: the option, `$SOJOURN_STATE_DIR`, `$XDG_STATE_HOME/sojourn`."""
    return _path(state_dir_name(option))


def state_dir_name(option: str | os.PathLike[str] | None = None) -> str:
    """`state_dir` as a string."""
    named = option or os.environ.get("SOJOURN_STATE_DIR")
    return _absolute(named) if named else os.path.join(_xdg("XDG_STATE_HOME", ".local/state"), "sojourn")


def socket_file(option: str | os.PathLike[str] | None = None, *, state: str | os.PathLike[str] | None = None) -> Path:
    """The socket as it is named: the option, `$SOJOURN_SOCKET`, `$XDG_RUNTIME_DIR/sojourn/sojourn.sock`, else in the
    state directory (`state` is the option that names that). Bind and connect to `socket_path` of it."""
    return _path(socket_file_name(option, state=state))


def socket_file_name(
    option: str | os.PathLike[str] | None = None, *, state: str | os.PathLike[str] | None = None
) -> str:
    """`socket_file` as a string."""
    named = option or os.environ.get("SOJOURN_SOCKET")
    if named:
        return _absolute(named)
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return os.path.join(runtime, "sojourn", "sojourn.sock")
    return os.path.join(state_dir_name(state), "sojourn.sock")


def socket_path(path: str | os.PathLike[str]) -> Path:
    """The path that is used for the socket named `path`: itself, or a short one where the system's limit is passed.

    The limit counts bytes of the absolute path. The short one depends on that path and the user only, so that both
    sides derive the same whatever their environment; its directory must be the user's own (`owned`).
    """
    return _path(socket_path_name(path))


def socket_path_name(path: str | os.PathLike[str]) -> str:
    """`socket_path` as a string."""
    absolute = _absolute(path)
    if len(os.fsencode(absolute)) <= MAX_SOCKET_PATH:
        return absolute
    import hashlib  # loads OpenSSL, which costs some milliseconds that the common case need not pay

    return f"{_SHORT}-{os.getuid()}/{hashlib.sha256(os.fsencode(absolute)).hexdigest()[:32]}.sock"


def short_directory() -> Path:
    """The directory of the short socket paths. `$TMPDIR` has no say: it differs between sessions of one user."""
    return _path(f"{_SHORT}-{os.getuid()}")


def owned(directory: str | os.PathLike[str]) -> bool:
    """Whether `directory` is a real directory of this user that nobody else may enter."""
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    return (found.st_mode & 0o170077) == 0o040000 and found.st_uid == os.geteuid()


def token_file(state: str | os.PathLike[str]) -> Path:
    """The file with the token that TCP clients must show."""
    return _path(state) / "token"


def _xdg(variable: str, default: str) -> str:
    # The XDG base directory specification: a relative path in these variables is invalid and ignored.
    value = os.environ.get(variable, "")
    return value if value.startswith("/") else os.path.join(os.path.expanduser("~"), default)


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _path(path: str | os.PathLike[str]) -> Path:
    from pathlib import Path

    return Path(path)
