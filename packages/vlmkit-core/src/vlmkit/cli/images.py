"""Opens images that are named on the command line: files, URLs or standard input."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from vlmkit.kit.image_fetcher import ImageFetcher
    from vlmkit.settings.pipeline import PipelineSettings
    from vlmkit.types.image import Image
    from vlmkit.types.media import FilePart
    from vlmkit.types.message import ImagePart

STDIN = "standard input"
WILD = frozenset("*?[")


def opened(
    source: str, bounds: "PipelineSettings", *, decodes: bool = True
) -> "ImagePart | FilePart":
    """Return the part for an image; a file of another type is left to a media loader.

    Args:
        source: a path, a URL (data, file, http or https), or ``-`` for standard input.
        bounds: the limits of a request.
        decodes: whether an image is decoded once, so that errors appear before a model is loaded.

    Raises:
        MediaError: the image cannot be read, or is refused.
    """
    from vlmkit.errors import ImageError, MediaError
    from vlmkit.inputs.images import WEB, named, shown_part
    from vlmkit.types.message import ImagePart

    if source == "-" and sys.stdin.isatty():
        raise click.UsageError("--image - reads an image from standard input: pipe one in")
    content: str | bytes = source
    if source == "-":
        content = sys.stdin.buffer.read(max(bounds.images.max_bytes, bounds.max_media_bytes) + 1)
    fetcher = _fetcher(bounds) if source.lower().startswith(WEB) else None
    try:
        part = shown_part(content, bounds, fetcher)
    except ImageError as error:
        if error.code != "image_url_not_allowed":
            raise
        raise ImageError(str(error), code=error.code, hint="save it, and name the file") from error
    if decodes and isinstance(part, ImagePart):
        try:
            part.image.to_pil()
        except MediaError as error:
            raise named(error, part.name or STDIN * (source == "-")) from error
    return part


def opened_image(source: str, bounds: "PipelineSettings") -> "Image":
    """Return an image as :func:`opened` does, for a command without media loaders.

    Raises:
        MediaError: the image cannot be read, or its format is not supported.
    """
    from vlmkit.errors import MediaError
    from vlmkit.inputs.images import named
    from vlmkit.types.image import Image
    from vlmkit.types.message import ImagePart

    part = opened(source, bounds)
    if isinstance(part, ImagePart):
        return part.image
    try:
        return Image.open(part.data, bounds.images)
    except MediaError as error:
        raise named(error, part.name) from error


def matching(sources: Iterable[str]) -> list[str]:
    """Return sources with patterns such as ``*.png`` replaced by the matching files.

    Raises:
        ImageError: a pattern matches no file.
    """
    import glob
    from pathlib import Path

    from vlmkit.errors import ImageError
    from vlmkit.types.base64_text import is_data_url

    found: list[str] = []
    for source in sources:
        is_url = "://" in source or is_data_url(source)
        if is_url or not WILD & set(source) or Path(source).is_file():
            found.append(source)
        elif files := sorted(glob.glob(source)):  # noqa: PTH207 - also for absolute paths
            found += files
        else:
            raise ImageError(f"no file matches {source!r}", hint="check the pattern and the folder")
    return found


def _fetcher(bounds: "PipelineSettings") -> "ImageFetcher":
    """Return a fetcher for the owner of this machine, which may connect to any address."""
    from vlmkit.kit.image_fetcher import ImageFetcher
    from vlmkit.settings.fetch import FetchSettings

    settings = FetchSettings(enabled=True, allow_http=True, max_bytes=bounds.images.max_bytes)
    return ImageFetcher(settings, may_connect=lambda _: True, is_for_owner=True)
