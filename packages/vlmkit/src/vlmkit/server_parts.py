"""What a server has beside its models, built as its config says: sources of tools, and monitors.

Errors are those of :func:`vlmkit.assembly.load`, whose business models are.
"""

from typing import TypeVar

from vlmkit.config import Config
from vlmkit.config.providers import names_of
from vlmkit.plugins.kinds import MONITOR, TOOL_SOURCE, Kind
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import BuildContext
from vlmkit.seams.monitor import Monitor
from vlmkit.seams.tool_source import ToolSource

T = TypeVar("T")


def tool_sources(config: Config, plugins: Plugins) -> dict[str, ToolSource]:
    """Build the sources of tools that a config uses, by their names."""
    return _of_server(TOOL_SOURCE, config, plugins)


def monitors(config: Config, plugins: Plugins) -> dict[str, Monitor]:
    """Build the monitors that a config uses, by their names."""
    return _of_server(MONITOR, config, plugins)


def _of_server(kind: Kind[T], config: Config, plugins: Plugins) -> dict[str, T]:
    registry, group = plugins.of(kind), config.group(kind.section)
    context, given = BuildContext(registries=plugins.by_kind), group.settings
    found = names_of(group, registry, None)
    return {name: registry.build(name, given.get(name, {}), context) for name in found}
