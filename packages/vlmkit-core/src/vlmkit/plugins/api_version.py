"""Whether a plugin was written for this vlmkit, and a part of vlmkit goes with the core.

A plugin states ``VLMKIT_API = (major, minor)``: what it was written for. The major number grows
when an interface changes so that plugins must change too, the minor one when something is added.
"""

from typing import TypeGuard

from vlmkit._version import __version__
from vlmkit.errors import PluginError
from vlmkit.plugins.hookspecs import API_VERSION
from vlmkit.plugins.names import OWN_PLUGINS


def check(stated: object) -> None:
    """Do nothing for a plugin of the same major version, whose minor one is not over ours.

    Raises:
        PluginError: it was written for another version, or does not say for which.
    """
    major, minor = API_VERSION
    version = (stated, 0) if type(stated) is int else stated  # 1 is short for (1, 0)
    if stated is None:
        problem = "does not say VLMKIT_API"
    elif not _is_version(version):
        problem = f"has VLMKIT_API = {stated!r}, which is not (major, minor)"
    elif version[0] != major or version[1] > minor:
        problem = f"has VLMKIT_API = {stated!r}"
    else:
        return
    raise PluginError(
        f"the plugin {problem}; this vlmkit offers {API_VERSION!r}",
        hint=f"install matching versions of both, or state VLMKIT_API = {API_VERSION!r} once the "
        "plugin follows docs/reference/stability.md",
    )


def check_part(distribution: str, version: str) -> None:
    """Do nothing unless a part of vlmkit is of another version than the core.

    Parts go together where their versions begin with the same two numbers.

    Raises:
        PluginError: they do not; names both versions.
    """
    if distribution in OWN_PLUGINS and _series(version) != _series(__version__):
        raise PluginError(
            f"{distribution} {version} does not go with vlmkit-core {__version__}",
            hint=f"install {distribution} {'.'.join(_series(__version__))}, or another core",
        )


def _series(version: str) -> list[str]:
    return version.split(".")[:2]


def _is_version(stated: object) -> TypeGuard[tuple[int, int]]:
    return isinstance(stated, tuple) and [type(part) for part in stated] == [int, int]
