"""Names of plugins and providers: what is permitted, reserved and equal."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

OWN = "vlmkit"
"""The distribution of the built-in providers, which no provider of the same name replaces."""
SERVER = "vlmkit-server"
TESTING = "vlmkit-testing"
BENCH = "vlmkit-bench"
GRPC = "vlmkit-grpc"
RAY = "vlmkit-ray"
OWN_PLUGINS = frozenset({SERVER, TESTING, BENCH, GRPC, RAY})
"""Distributions of vlmkit that ``plugins.only`` does not exclude."""
OWNERS_OF_COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("ask", "chat", "config", "doctor", "help", "models", "plan", "plugins"), OWN
        ),
        **dict.fromkeys(("batch", "keys", "serve"), SERVER),
        **dict.fromkeys(("plugins check", "plugins new", "verify"), TESTING),
        "bench": BENCH,
        **dict.fromkeys(("encoder", "worker"), GRPC),
    }
)
"""The distribution that owns each command of vlmkit."""
OWNERS_OF_TABLES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("apis", "monitors", "server", "tool_sources"), SERVER),
        "ray": RAY,
        **dict.fromkeys(("encoder", "worker"), GRPC),
    }
)
"""The distribution that owns each config table of vlmkit that the core does not decode."""


def canonical(name: str) -> str:
    """Return the normalised name of a distribution, as package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def is_plain(name: object, max_words: int = 1) -> bool:
    """Return whether a value can name a provider: words of letters, digits, ``-`` and ``_``."""
    words = name.split(" ") if isinstance(name, str) else []
    plain = [word.replace("-", "").replace("_", "").isalnum() for word in words]
    return 0 < len(words) <= max_words and all(plain)


def is_called(source: str, name: str) -> bool:
    """Return whether a name means a distribution, or a local file by its path or stem."""
    is_path = "/" in source or "\\" in source
    names = {source, Path(source).stem} if is_path else {source}
    return canonical(name) in map(canonical, names)
