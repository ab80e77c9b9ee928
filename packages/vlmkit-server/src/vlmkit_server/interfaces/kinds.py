"""The kinds of components that a server has once, beside its models."""

from vlmkit.plugins.kinds import Kind
from vlmkit_server.interfaces.monitor import Monitor
from vlmkit_server.interfaces.tool_source import ToolSource

TOOL_SOURCE: Kind[ToolSource] = Kind(
    "tool_source",
    ToolSource,
    "all",
    "what has tools that the server runs for models",
    "vlmkit_testing:ToolSourceContract",
    is_optional=True,
)
MONITOR: Kind[Monitor] = Kind(
    "monitor",
    Monitor,
    "all",
    "what looks on a server and shows or sends what it saw",
    "vlmkit_testing:MonitorContract",
    serves="named",
)
