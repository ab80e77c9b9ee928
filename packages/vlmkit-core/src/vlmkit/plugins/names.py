"""What plugins and providers may be called, and when two names are one."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

OWN = "vlmkit"
"""The distribution whose providers nobody's replace: a name of theirs means theirs."""
SERVER = "vlmkit-server"
TESTING = "vlmkit-testing"
OWN_PLUGINS = frozenset({SERVER, TESTING})
"""Distributions that are parts of vlmkit: ``plugins.only`` does not exclude them."""
OWNERS_OF_COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("ask", "chat", "config", "doctor", "help", "models", "plugins"), OWN),
        **dict.fromkeys(("keys", "serve"), SERVER),
        **dict.fromkeys(("plugins check", "plugins new", "verify"), TESTING),
    }
)
"""The distribution that has each of vlmkit's own commands."""
OWNERS_OF_TABLES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("monitors", "server", "tool_sources"), SERVER)
)
"""The distribution that decodes a table of the config, of those that the core leaves to others."""


def canonical(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def is_plain(name: object, max_words: int = 1) -> bool:
    """Tell whether something can name a provider: words of letters, digits, ``-`` and ``_``."""
    words = name.split(" ") if isinstance(name, str) else []
    plain = [word.replace("-", "").replace("_", "").isalnum() for word in words]
    return 0 < len(words) <= max_words and all(plain)


def is_called(source: str, name: str) -> bool:
    """Tell whether a name means a distribution or a local file, which goes by its stem, too."""
    is_path = "/" in source or "\\" in source
    own = {source, Path(source).stem} if is_path else {source}
    return canonical(name) in map(canonical, own)
