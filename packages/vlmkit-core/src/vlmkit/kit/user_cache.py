"""Where vlmkit keeps what it can make again: one folder for each user of a machine.

Who can write there can plant what is loaded from there, so it belongs to that user alone.
"""

import os
from pathlib import Path


def folder() -> Path:
    """Return the folder, which need not exist: in ``XDG_CACHE_HOME``, or in ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "vlmkit"
