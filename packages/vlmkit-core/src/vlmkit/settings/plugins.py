"""Settings that select the plugins to load."""

from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.settings.paths import PluginPath

Distribution = Annotated[str, Meta(min_length=1, max_length=256)]


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plugins whose code runs.

    Attributes:
        only: distributions whose plugins are loaded, such as ``vlmkit-hf``; no other is imported.
            null loads all that are installed.
        files: Python files, and folders with an ``__init__.py``, to load as plugins.
            ``plugins = [...]`` is a short form.
    """

    only: tuple[Distribution, ...] | None = None
    files: tuple[PluginPath, ...] = ()
