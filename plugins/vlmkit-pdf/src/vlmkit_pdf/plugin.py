"""The hooks of vlmkit-pdf. Only the process that opens a file loads PDFium."""

import importlib.util

from vlmkit.interfaces.media_loader import MediaLoader
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_pdf.settings import PdfSettings

VLMKIT_API = (1, 0)


def _why_not() -> str | None:
    found = importlib.util.find_spec("pypdfium2")
    return None if found else "the package pypdfium2 is not installed"


def _build(context: BuildContext) -> MediaLoader:
    from vlmkit_pdf.loader import PdfLoader

    return PdfLoader(context.settings)


@hookimpl
def vlmkit_register_media_loaders(registry: Registry[MediaLoader]) -> None:
    """Register ``media_loaders.use = ["pdf"]``."""
    registry.add(
        "pdf",
        _build,
        why_not=_why_not,
        settings=PdfSettings,
        description="pages of PDF files as pictures, by PDFium in a process of its own",
    )
