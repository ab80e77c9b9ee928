"""Pictures that somebody names on the command line: files, URLs, or standard input."""

import asyncio
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from vlmkit.ask.image import Image
    from vlmkit.settings.images import ImageLimits


def opened(source: str, limits: "ImageLimits") -> "Image":
    """Return a picture: of a file, of a URL (data, file, http or https), or of standard input.

    The last is for ``-``.

    Raises:
        ImageError: it cannot be read, or it is not a picture that may be decoded.
    """
    from vlmkit.ask.image import Image
    from vlmkit.errors import ImageError

    if is_file_url(source):
        source = path_of(source)
    if source == "-" and sys.stdin.isatty():
        raise click.UsageError("--image - reads a picture from standard input: pipe one in")
    try:
        content: str | bytes = source
        if source == "-":
            content = sys.stdin.buffer.read(limits.max_bytes + 1)
        elif source.startswith(("http://", "https://")):
            content = _fetched(source, limits)
        image = Image.open(content, limits)
        image.to_pil()  # one that cannot be decoded is told now, by its name
    except ImageError as error:
        if source.startswith("data:") or repr(source) in str(error):
            raise
        name = "standard input" if source == "-" else repr(source)
        raise ImageError(f"{name}: {error}", hint=error.hint) from error
    return image


def is_file_url(source: str) -> bool:
    """Tell whether somebody names a file of this machine by its URL."""
    return source[:5].lower() == "file:"


def path_of(url: str) -> str:
    """Return the path that a ``file:`` URL names.

    Raises:
        ImageError: it is a path on another machine, or not a whole one.
    """
    from urllib.request import url2pathname

    from vlmkit.errors import ImageError

    rest = url[5:]
    if rest.startswith("//"):
        host, slash, rest = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise ImageError(f"image {url!r} is on another machine", hint="copy it to this one")
        rest = slash + rest
    if not rest.startswith("/") or rest.startswith("//"):
        raise ImageError(f"image {url!r} names no file by its whole path", hint="name the file")
    return url2pathname(rest)


def _fetched(url: str, limits: "ImageLimits") -> bytes:
    """Fetch what the owner of this machine asked for; any address they can reach is theirs."""
    from vlmkit.errors import ImageError
    from vlmkit.kit.image_fetcher import ImageFetcher
    from vlmkit.settings.server import FetchSettings

    settings = FetchSettings(enabled=True, allow_http=True, max_bytes=limits.max_bytes)
    fetcher = ImageFetcher(settings, may_connect=lambda _: True)
    try:
        return asyncio.run(fetcher.fetch(url))
    except ImageError as error:
        hint = "save it, and name the file"  # the fetcher's own is for clients of a server
        raise ImageError(str(error), hint=hint) from error
