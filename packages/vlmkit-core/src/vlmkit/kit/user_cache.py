"""The user's cache folder, for files that vlmkit can create again.

Only that user may write to it, because files in it are loaded.
"""

import os
from pathlib import Path


def folder() -> Path:
    """Return the cache folder in ``XDG_CACHE_HOME`` or ``~/.cache``; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "vlmkit"
