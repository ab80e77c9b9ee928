"""Loads the plugins that a config permits; imports no part that loads or runs models."""

import os
from collections.abc import Mapping

from vlmkit.config.paths import expanded
from vlmkit.config.providers import broken_files
from vlmkit.plugins import loader
from vlmkit.plugins.loader import Plugins
from vlmkit.settings.plugins import PluginSettings


def load_plugins(
    settings: PluginSettings,
    *,
    environ: Mapping[str, str] | None = None,
    diagnoses: bool = False,
    is_lenient: bool = False,
) -> Plugins:
    """Load all plugins, including those of the config, except those in VLMKIT_BLOCK.

    If ``plugins.only`` is set, no other installed plugin is imported.

    Args:
        settings: the plugin files, and the distributions that may be loaded.
        environ: the environment with VLMKIT_BLOCK; that of the process when None.
        diagnoses: record an error of a plugin file in the result, instead of raising it.
        is_lenient: record a wrong name in ``plugins.only`` in the result, instead of raising.

    Raises:
        ConfigError: ``plugins.only`` names a distribution that is not installed.
        PluginError: a plugin file in the config cannot be loaded.
    """
    block = (os.environ if environ is None else environ).get("VLMKIT_BLOCK", "").split(",")
    files = [expanded(file) for file in settings.files]
    plugins = loader.load(files=files, block=block, only=settings.only, is_lenient=is_lenient)
    if not diagnoses:
        for error in broken_files(settings, plugins):
            raise error
    return plugins
