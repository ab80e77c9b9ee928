"""What plugins and providers may be called, and when two names are one."""

import re
from pathlib import Path

OWN = "vlmkit"
"""The distribution whose providers nobody's replace: a name of theirs means theirs."""


def canonical(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def is_plain(name: object) -> bool:
    """Tell whether something can name a provider: letters, digits, ``-`` and ``_``."""
    return isinstance(name, str) and name.replace("-", "").replace("_", "").isalnum()


def is_called(source: str, name: str) -> bool:
    """Tell whether a name means a distribution or a local file, which goes by its stem, too."""
    is_path = "/" in source or "\\" in source
    own = {source, Path(source).stem} if is_path else {source}
    return canonical(name) in map(canonical, own)
