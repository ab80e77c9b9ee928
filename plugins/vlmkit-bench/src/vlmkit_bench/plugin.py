"""The hooks of vlmkit-bench. Imports nothing heavy: the build function does."""

import importlib.util
from typing import Any

from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry

VLMKIT_API = (1, 0)


def _why_not() -> str | None:
    found = importlib.util.find_spec("aiohttp")
    return None if found else "the package aiohttp is not installed"


def _build(_: BuildContext) -> Any:
    from vlmkit_bench.command import bench

    return bench


@hookimpl
def vlmkit_register_commands(registry: Registry[Any]) -> None:
    """Register ``vlmkit bench``."""
    registry.add(
        "bench",
        _build,
        why_not=_why_not,
        description="Measure a server that speaks OpenAI's API under load, with images.",
    )
