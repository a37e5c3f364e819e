"""Every JSON-RPC method, one module per namespace; importing this package fills `METHODS`."""

from . import agent, approval, document, inbox, job, lifecycle, model, run, server, tool, workspace

__all__ = [
    "agent",
    "approval",
    "document",
    "inbox",
    "job",
    "lifecycle",
    "model",
    "run",
    "server",
    "tool",
    "workspace",
]
