"""Which plugins are loaded."""

from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.settings.paths import PluginPath

Distribution = Annotated[str, Meta(min_length=1, max_length=256)]


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose code is run.

    Attributes:
        only: distributions whose plugins are loaded, such as ``vlmkit-hf``; no other one is
            imported. All that are installed when null.
        files: Python files, and folders with an ``__init__.py``, that are plugins too.
            ``plugins = [...]`` means the same.
    """

    only: tuple[Distribution, ...] | None = None
    files: tuple[PluginPath, ...] = ()
