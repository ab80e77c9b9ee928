"""Settings: typed, in layers, each with its origin.

A TOML file overrides defaults, the environment overrides the file, and ``--set`` overrides both. An
unknown setting is an error that names the nearest known one. Settings of providers are checked
only after plugins are loaded, and stay raw until then.
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
