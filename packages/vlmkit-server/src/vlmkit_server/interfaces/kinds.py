"""The component kinds of which a server has its own, beside its models'."""

from vlmkit.plugins.kinds import Kind
from vlmkit_server.interfaces.api import Api
from vlmkit_server.interfaces.monitor import Monitor
from vlmkit_server.interfaces.tool_source import ToolSource

API: Kind[Api] = Kind(
    "api",
    Api,
    "all",
    "what adds HTTP routes in one wire format",
    "vlmkit_testing:ApiContract",
)
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
