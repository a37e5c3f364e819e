"""What can go wrong with a server. Messages are ends of sentences that begin with the server: "it ended with …"."""

from __future__ import annotations


class ServerDown(Exception):
    """The server cannot be used now."""


class ConnectionLost(Exception):
    """The connection ended while a request was under way; it may have taken effect."""


class NotSent(Exception):
    """The server is there but did not take the request; it had no effect."""


class CallRefused(Exception):
    """The server answered a request with an error, or with something that is not an answer."""
