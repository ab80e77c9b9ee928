"""Settings: typed, in layers, each with its origin.

Defaults are overridden by a TOML file, that by the environment, that by ``--set``. A setting that
nothing knows is an error which names the nearest one that exists. What a provider's own settings
are is known only once plugins are loaded: they are kept as they are until then.
"""

from vlmkit.config.layers import RESERVED_VARIABLES
from vlmkit.config.reading import LayeredConfig, Layers, Setting, read_layers
from vlmkit.config.structs import COMPONENTS, GROUPS, Component, Config, Group, ModelEntry

__all__ = [
    "COMPONENTS",
    "GROUPS",
    "RESERVED_VARIABLES",
    "Component",
    "Config",
    "Group",
    "LayeredConfig",
    "Layers",
    "ModelEntry",
    "Setting",
    "read_layers",
]
