"""The hooks of vlmkit-heif. Only the process that decodes a file loads libheif."""

import importlib.util

from vlmkit.interfaces.media_loader import MediaLoader
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry

VLMKIT_API = (1, 0)


def _why_not() -> str | None:
    found = importlib.util.find_spec("pillow_heif")
    return None if found else "the package pillow-heif is not installed"


def _build(_: BuildContext) -> MediaLoader:
    from vlmkit_heif.loader import HeifLoader

    return HeifLoader()


@hookimpl
def vlmkit_register_media_loaders(registry: Registry[MediaLoader]) -> None:
    """Register ``media_loaders.use = ["heif"]``."""
    registry.add(
        "heif",
        _build,
        why_not=_why_not,
        description="HEIC images, by libheif in a process of its own",
    )
