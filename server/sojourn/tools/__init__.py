"""What a model may call.

For authors of tools (docs/tools.md): `from sojourn.tools import tool, ToolContext, ToolOutput`.
"""

from .author import FunctionTool, tool
from .base import ChildReply, InboxHandle, Tool, ToolContext, ToolInfo, ToolOutput

__all__ = [
    "ChildReply",
    "FunctionTool",
    "InboxHandle",
    "Tool",
    "ToolContext",
    "ToolInfo",
    "ToolOutput",
    "tool",
]
