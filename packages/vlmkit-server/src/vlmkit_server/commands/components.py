"""What a server has beside its models: sources of tools and monitors, built as its config says.

And the fields that plugins added to requests, which are known before a model is loaded.

Errors are those of :func:`vlmkit.assembly.load.load`, whose business models are.
"""

from typing import TypeVar

from vlmkit.config import Config
from vlmkit.config.providers import names_of
from vlmkit.interfaces.request_field import FieldFacts
from vlmkit.plugins.kinds import Kind
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.prompting.request_fields import facts_of
from vlmkit_server.interfaces.kinds import MONITOR, TOOL_SOURCE
from vlmkit_server.interfaces.monitor import Monitor
from vlmkit_server.interfaces.tool_source import ToolSource

T = TypeVar("T")


def tool_sources(config: Config, plugins: Plugins) -> dict[str, ToolSource]:
    """Build the sources of tools that a config uses, by their names."""
    return _of_server(TOOL_SOURCE, config, plugins)


def monitors(config: Config, plugins: Plugins) -> dict[str, Monitor]:
    """Build the monitors that a config uses, by their names."""
    return _of_server(MONITOR, config, plugins)


def request_fields(plugins: Plugins) -> dict[str, tuple[FieldFacts, ...]]:
    """Return every field that installed plugins added to requests, whatever models take it."""
    found: dict[str, tuple[FieldFacts, ...]] = {}
    for kind in plugins.kinds:
        for provider in plugins.of(kind):
            for field in provider.request_fields:
                facts, known = facts_of(field), found.get(field.name, ())
                if facts not in known:
                    found[field.name] = (*known, facts)
    return found


def _of_server(kind: Kind[T], config: Config, plugins: Plugins) -> dict[str, T]:
    registry, group = plugins.of(kind), config.group(kind.section)
    context, given = BuildContext(registries=plugins.by_kind), group.settings
    found = names_of(group, registry, None)
    return {name: registry.build(name, given.get(name, {}), context) for name in found}
