"""The daemon as a process of its own."""

from __future__ import annotations

from sojourn_client.testing import daemon, make_daemon

__all__ = ["daemon", "make_daemon"]
