"""Pictures that somebody names on the command line: files, URLs, or standard input."""

import asyncio
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from vlmkit.image import Image, ImageLimits


def opened(source: str, limits: "ImageLimits") -> "Image":
    """Return a picture: of a file, of a ``data:`` or http(s) URL, or of standard input for ``-``.

    Raises:
        ImageError: it cannot be read, or it is not a picture that may be decoded.
    """
    from vlmkit.errors import ImageError
    from vlmkit.image import Image

    if source == "-" and sys.stdin.isatty():
        raise click.UsageError("--image - reads a picture from standard input: pipe one in")
    try:
        if source == "-":
            return Image.open(sys.stdin.buffer.read(limits.max_bytes + 1), limits)
        if source.startswith(("http://", "https://")):
            return Image.open(_fetched(source, limits), limits)
        return Image.open(source, limits)
    except ImageError as error:
        if source.startswith("data:") or repr(source) in str(error):
            raise
        name = "standard input" if source == "-" else repr(source)
        raise ImageError(f"{name}: {error}", hint=error.hint) from error


def _fetched(url: str, limits: "ImageLimits") -> bytes:
    """Fetch what the owner of this machine asked for; any address they can reach is theirs."""
    from vlmkit.errors import ImageError
    from vlmkit.server.fetch import ImageFetcher
    from vlmkit.server.settings import FetchSettings

    settings = FetchSettings(enabled=True, allow_http=True, max_bytes=limits.max_bytes)
    fetcher = ImageFetcher(settings, may_connect=lambda _: True)
    try:
        return asyncio.run(fetcher.fetch(url))
    except ImageError as error:
        hint = "save it, and name the file"  # the fetcher's own is for clients of a server
        raise ImageError(str(error), hint=hint) from error
