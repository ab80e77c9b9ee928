"""The component kinds of which a server has its own, beside its models'."""

from vlmkit.plugins.kinds import Kind
from vlmkit_server.interfaces.monitor import Monitor
from vlmkit_server.interfaces.tool_source import ToolSource

TOOL_SOURCE: Kind[ToolSource] = Kind(
    "tool_source",
    ToolSource,
    "all",
    "tools that the server runs for models",
    "vlmkit_testing:ToolSourceContract",
    is_optional=True,
)
MONITOR: Kind[Monitor] = Kind(
    "monitor",
    Monitor,
    "all",
    "collects the server's events and metrics, and exports them",
    "vlmkit_testing:MonitorContract",
    serves="named",
)
